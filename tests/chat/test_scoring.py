"""`/v1/score` and `/v1/rerank`: the judge as a service, in the shape that vLLM has for reward models."""

from collections.abc import Iterator
from typing import Any

import pytest
from starlette.testclient import TestClient

from compeer.chat.app import ServeSettings, create_app
from compeer.chat.scoring import MOST_PAIRS, utterances
from tests.support.scripted_supporter import ScriptedJudge, ScriptedSupporter

WHOLE = (
    "History: They lost a job. [exploration]\nEmotion: Low. [negative, sadness, 4]\n"
    "Strategy: Name it. [Reflection of feelings]\nResponse: That hurts."
)
BROKEN = WHOLE.partition("Emotion")[0]


class Counting(ScriptedJudge):
    """Says how many cases came together."""

    def __init__(self) -> None:
        self.batches: list[int] = []

    def judge(self, cases: Any) -> Any:
        self.batches.append(len(cases))
        return super().judge(cases)


@pytest.fixture
def judge() -> Counting:
    return Counting()


@pytest.fixture
def client(judge: Counting) -> Iterator[TestClient]:
    app = create_app(ScriptedSupporter(), judge=judge, settings=ServeSettings(rate=None))
    with TestClient(app, base_url="http://localhost") as found:
        yield found


def test_one_history_and_many_outputs_are_one_batch(client: TestClient, judge: Counting) -> None:
    answer = client.post("/v1/score", json={"model": "any", "text_1": "I lost it.", "text_2": [WHOLE, BROKEN, WHOLE]})
    found = answer.json()
    assert answer.status_code == 200, found
    assert (found["object"], found["model"]) == ("list", "scripted judge")
    assert [(one["index"], one["object"], one["score"]) for one in found["data"]] == [
        (0, "score", 4),
        (1, "score", -3),
        (2, "score", 4),
    ]
    assert set(found["usage"]) == {"prompt_tokens", "completion_tokens", "total_tokens"}
    assert judge.batches == [3]


def test_pairs_and_references(client: TestClient) -> None:
    body = {"queries": ["I lost it.", "Hm."], "documents": [WHOLE, WHOLE], "references": ["Oh.", "No."]}
    assert [one["score"] for one in client.post("/v1/score", json=body).json()["data"]] == [5, 5]
    single = client.post("/v1/score", json={"text_1": "Hm.", "text_2": WHOLE}).json()["data"]
    assert [one["parts"]["response"] for one in single] == [None]


def test_a_failure_is_no_score(client: TestClient) -> None:
    (found,) = client.post("/v1/score", json={"text_1": "unscored", "text_2": WHOLE}).json()["data"]
    assert (found["score"], found["unscored"]) == (None, "the script says so")


def test_the_best_comes_first(client: TestClient) -> None:
    body = {"query": "I lost it.", "documents": [BROKEN, WHOLE, ""], "top_n": 2}
    results = client.post("/v1/rerank", json=body).json()["results"]
    assert [(one["index"], one["relevance_score"]) for one in results] == [(1, 4), (0, -3)]
    assert results[0]["document"] == {"text": WHOLE}


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"text_1": ["a", "b"], "text_2": [WHOLE]}, "text_1"),
        ({"text_1": "Seeker: Hi.\nSupporter: Hello.", "text_2": WHOLE}, "text_1"),
        ({"text_1": " ", "text_2": WHOLE}, "text_1"),
        ({"text_1": "a", "text_2": [WHOLE], "references": []}, "references"),
        ({"text_1": "a", "text_2": ["x"] * (MOST_PAIRS + 1)}, "text_2"),
        ({"text_1": "a"}, "text_2"),
    ],
)
def test_what_cannot_be_scored_is_refused_by_field(client: TestClient, body: dict[str, Any], field: str) -> None:
    answer = client.post("/v1/score", json=body)
    assert answer.status_code == 400
    assert str(answer.json()["error"]["param"]).startswith(field)


def test_without_a_judge_there_is_nothing_to_ask() -> None:
    with TestClient(create_app(ScriptedSupporter()), base_url="http://localhost") as client:
        assert client.post("/v1/score", json={"text_1": "a", "text_2": WHOLE}).status_code == 404


def test_a_transcript_is_read_by_its_speakers() -> None:
    found = utterances("Seeker: I failed.\nAgain.\nSupporter: That hurts.\nUSER：是的")
    assert [(one.speaker, one.text) for one in found] == [
        ("seeker", "I failed.\nAgain."),
        ("supporter", "That hurts."),
        ("seeker", "是的"),
    ]
    assert [one.text for one in utterances("I failed.")] == ["I failed."]
