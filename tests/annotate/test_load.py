"""Annotators at full speed over HTTP while the server is killed: no rule is broken and nothing acknowledged is lost."""

from __future__ import annotations

from benchmarks.workbench import simulate

from tests.support.annotation import cheap_hashes_fixture, database_fixture, postgres_fixture  # noqa: F401


def test_nothing_is_lost_when_the_server_is_killed(database: str) -> None:
    found = simulate(database, annotators=6, items=60, kills=2)
    assert found["problems"] == []
    assert found["first_labels"] == 120
    assert found["adjudications"] > 10
    assert found["calls_made_again"] > 0, "somebody met a server that was gone"
