"""The API against requests made up from its own description, good and bad: each gets an answer that is promised."""

from __future__ import annotations

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

from compeer.chat.app import create_app
from tests.support.scripted_supporter import ScriptedJudge, ScriptedSupporter
from tests.support.served import FREE, served

CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
QUICK = settings(
    max_examples=8,
    deadline=None,
    database=None,
    derandomize=True,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)


@pytest.mark.filterwarnings("ignore")
def test_nothing_that_the_description_allows_or_forbids_breaks_it() -> None:
    known: dict[str, set[int]] = {}
    with served(create_app(ScriptedSupporter(), judge=ScriptedJudge(), settings=FREE)) as started:
        for found in schemathesis.openapi.from_url(f"{started.url}/openapi.json").get_all_operations():
            operation = found.ok()
            wrong = [GenerationMode.NEGATIVE] if operation.method == "post" else []
            for mode in [GenerationMode.POSITIVE, *wrong]:

                @QUICK
                @given(case=operation.as_strategy(generation_mode=mode))
                def holds(case: Any) -> None:
                    answer = case.call(timeout=10)
                    known.setdefault(case.path, set()).add(answer.status_code)
                    case.validate_response(answer, checks=CHECKS)

                holds()
    assert {200, 400} <= known["/v1/chat/completions"]
    assert 400 in known["/v1/judge"]
    assert known["/healthz"] == {200}
