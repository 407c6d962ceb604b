"""A short soak: conversations and labels while upstream, servers and disk fail."""

from __future__ import annotations

import pytest
from benchmarks import soak


def test_a_short_soak_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(soak, "FAULT_SECONDS", 1.0)  # as many faults and turns as otherwise in twenty seconds
    monkeypatch.setattr(soak, "THINKING", 0.4)
    found = soak.soak(8, clients=8, annotators=4)
    assert found["problems"] == []
    assert found["turns_lost"] == 0
    assert found["crisis_messages"] == found["crisis_helped"]
    assert found["faults"]
    assert found["first_labels"] > 0
