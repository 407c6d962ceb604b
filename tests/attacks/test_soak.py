"""A short soak: conversations and labels while upstream, servers and disk fail."""

from __future__ import annotations

from benchmarks.soak import soak


def test_a_short_soak_loses_nothing() -> None:
    found = soak(20, clients=8, annotators=4)
    assert found["problems"] == []
    assert found["turns_lost"] == 0
    assert found["crisis_messages"] == found["crisis_helped"]
    assert found["faults"]
    assert found["first_labels"] > 0
