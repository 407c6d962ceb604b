"""The workbench against what should not be sent: markup, broken files, too much, all that its description allows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from compeer.annotate.backup import verify
from compeer.annotate.store import create_store
from tests.support.annotation import cheap_hashes_fixture, record, steps_project  # noqa: F401
from tests.support.workbench import Bench, Client, lines, workbench

JSON = {"Content-Type": "application/json"}


@pytest.fixture(name="bench")
def bench_fixture(tmp_path: Path) -> Iterator[Bench]:
    with workbench(create_store(str(tmp_path / "store.sqlite"))) as started:
        yield started


def test_text_stays_text_and_faults_are_named(bench: Bench) -> None:
    boss = bench.someone("Boss", "admin")
    evil = "<script>alert(1)</script>"
    boss.got("POST", "/projects", {"name": evil, "task": "steps", "guidelines": evil})
    assert boss("POST", "/projects", {"name": evil, "task": "steps"}).status_code == 409
    answer = boss("GET", "/projects/1/guidelines")
    assert answer.json()["text"] == evil
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert "script-src 'self'" in answer.headers["content-security-policy"]
    broken = lines(record(1)) + b'{"id": "r2"}\n'
    wrong = boss("POST", "/projects/1/items", content=broken)
    assert wrong.status_code == 400
    assert wrong.json()["error"]["message"].startswith("line 2, dialogue:")
    assert boss.got("GET", "/projects")["projects"][0]["stages"] == {}, "nothing of a wrong file is added"
    deep = b'{"a":' * 500 + b"1" + b"}" * 500
    odd = [
        lines(record(1)).replace(b'"r1"', rb'"r\u0000"'),
        lines(record(1)).replace(b'"extra":{}', b'"extra":' + deep),
    ]
    assert all(one != lines(record(1)) for one in odd)
    for bad in (b"\xff\xfe", b"[" * 100_000, b"{}", b"null\n", b'["x"]', b'{"id": "\\ud800"}', *odd):
        assert boss("POST", "/projects/1/items", content=bad).status_code == 400
    assert boss("POST", "/projects/7/items", content=lines(record(1))).status_code == 404
    item = "/items/5/labels"
    for name in (b"\\ud800", b"a\\u0000b"):
        body = b'{"name": "%s", "password": "x"}' % name
        assert boss("POST", "/login", content=body, headers=JSON).status_code == 400
    ann = bench.someone("Ann")
    for answers in ({"<b>": True}, {"history": 10**30}, {"history": None}, {"history": 0.5}, {"history": "x" * 21}):
        assert ann("PUT", item, {"answers": answers}).status_code == 400
    for body in (b'{"answers": {}, "seconds": NaN}', b'{"answers": {"history": "\\ud800"}}', b"[" * 100_000):
        assert ann("PUT", item, content=body, headers=JSON).status_code == 400


def test_only_admins_may_send_much(bench: Bench) -> None:
    steps_project(bench.store)
    boss, ann = bench.someone("Boss", "admin"), bench.someone("Ann")
    much = b" " * 3_000_000 + lines(record(1))
    assert ann("POST", "/projects/1/items", content=much).status_code == 413
    assert Client(bench.url)("POST", "/projects/1/items", content=much).status_code == 413
    assert boss("POST", "/projects/1/guidelines", content=much).status_code == 413
    assert boss("POST", "/projects/1/items", content=much).status_code == 200


CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
QUICK = settings(
    max_examples=6,
    deadline=None,
    database=None,
    derandomize=True,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
ENDS_IT = ("/api/leave", "/api/logout", "/api/me/password")
"""Would end the session that the others need."""


def fuzz(
    operation: Any, mode: GenerationMode, headers: dict[str, str], received: dict[str, set[int]], known: dict[str, int]
) -> None:
    """Calls an operation with what its description allows or forbids; `known` numbers stand in for random ones."""

    @QUICK
    @given(case=operation.as_strategy(generation_mode=mode))
    def holds(case: Any) -> None:
        for part in (case.path_parameters, case.query):
            for name in set(part or {}) & set(known):
                part[name] = known[name]
        answer = case.call(timeout=10, headers=headers)
        received.setdefault(f"{case.method} {case.path}", set()).add(answer.status_code)
        case.validate_response(answer, checks=CHECKS)

    holds()


@pytest.mark.filterwarnings("ignore")
def test_nothing_that_the_description_allows_or_forbids_breaks_it(bench: Bench) -> None:
    steps_project(bench.store, 30)
    robot = bench.someone("Robot", "admin", "annotator", "adjudicator", program=True)
    bench.someone("Boss", "admin")
    held = robot.got("POST", "/next", {})["task"]["item"]
    headers = {"Authorization": robot.http.headers["Authorization"]}
    received: dict[str, set[int]] = {}
    for found in schemathesis.openapi.from_url(f"{bench.url}/openapi.json").get_all_operations():
        operation = found.ok()
        if operation.path in ENDS_IT or (operation.method, operation.path) == ("delete", "/api/people/{person}"):
            continue
        fuzz(operation, GenerationMode.POSITIVE, headers, received, {"project": 1, "item": held, "person": 2})
        if operation.method != "get":
            fuzz(operation, GenerationMode.NEGATIVE, headers, received, {})
    assert verify(bench.store).problems == ()
    fine = [name for name, statuses in received.items() if statuses & {200, 201, 204}]
    assert len(fine) >= 18, received
    assert not [name for name, statuses in received.items() if 500 in statuses]
