"""The judge as a service in vLLM's shape: `/v1/score` for pairs of history and output, `/v1/rerank` for the best first.

`text_1` is a history, a line an utterance with `Seeker:` or `Supporter:` before it (a text without them is one message
of the seeker); `text_2` is an output, four lines. One history and many outputs, or as many of each, are judged as one
batch. A score is UnifiReward's total, −5 to 5. Where the judge failed there is none: `score` is null, and `unscored`
says why.
"""

import re
import time
from collections.abc import Sequence
from typing import Annotated, Any, Literal
from uuid import uuid4

from fastapi import FastAPI
from pydantic import AliasChoices, BaseModel, Field

from compeer.chat.api import Judging
from compeer.chat.history import SPEAKERS
from compeer.chat.schemas import LONGEST_HISTORY, Output, Reference, Usage
from compeer.dialogue import Speaker, Utterance
from compeer.io import readable
from compeer.reasoning import parse_turn
from compeer.reward.conversation import Case
from compeer.reward.score import Score
from compeer.web.errors import Refusal

MOST_PAIRS = 256
_SPOKEN = re.compile(r"^(seeker|supporter|user|assistant)[ \t]*[:：][ \t]*", re.IGNORECASE | re.MULTILINE)
_SPEAKERS: dict[str, Speaker] = {"seeker": "seeker", "supporter": "supporter", **SPEAKERS}
NOT_COUNTED = Usage(prompt_tokens=0, completion_tokens=0, total_tokens=0)
History = Annotated[str, Field(min_length=1, max_length=LONGEST_HISTORY)]
Outputs = Annotated[list[Output], Field(min_length=1, max_length=MOST_PAIRS)]


class ScoreRequest(BaseModel):
    """Histories and the outputs that answer them."""

    model: str | None = Field(None, description="ignored: a server has one judge")
    text_1: History | Annotated[list[History], Field(min_length=1, max_length=MOST_PAIRS)] = Field(
        validation_alias=AliasChoices("text_1", "queries", "data_1"), description="one history, or one for each output"
    )
    text_2: Output | Outputs = Field(
        validation_alias=AliasChoices("text_2", "documents", "data_2"), description="an output, or several"
    )
    references: Annotated[list[Reference], Field(max_length=MOST_PAIRS)] | None = Field(
        None, description="ours: a response to compare with for each output; without them only steps are judged"
    )


class RerankRequest(BaseModel):
    """A history and the outputs to choose from."""

    model: str | None = Field(None, description="ignored: a server has one judge")
    query: History = Field(description="the history")
    documents: Outputs = Field(description="the outputs")
    top_n: int = Field(0, ge=0, description="so many of the best; 0: all")


class PairScore(BaseModel):
    """The score of one pair."""

    index: int
    object: Literal["score"] = "score"
    score: float | None = Field(description="UnifiReward's total; none: the judge failed")
    parts: dict[str, int | None] = Field(description="ours: the five parts of the total")
    unscored: str | None = Field(None, description="ours: why there is no score")


class ScoreList(BaseModel):
    """The scores in the order of the pairs."""

    id: str
    object: Literal["list"] = "list"
    created: int
    model: str
    data: list[PairScore]
    usage: Usage = Field(NOT_COUNTED, description="a judge does not count tokens")


class RankedOutput(BaseModel):
    """An output and its score."""

    index: int
    document: dict[Literal["text"], str]
    relevance_score: float | None = Field(description="UnifiReward's total; none: the judge failed")


class RerankAnswer(BaseModel):
    """The outputs, the best first; those without a score are last."""

    id: str
    model: str
    usage: Usage = Field(NOT_COUNTED, description="a judge does not count tokens")
    results: list[RankedOutput]


def register_scoring(app: FastAPI, judging: Judging, refused: dict[int | str, dict[str, Any]]) -> None:
    """Adds the two routes, with the descriptions of how they can be `refused`."""

    @app.post("/v1/score", responses=refused, tags=["judge"])
    async def score_pairs(body: ScoreRequest) -> ScoreList:
        """Scores of outputs in their histories, as vLLM answers for reward models."""
        outputs = [body.text_2] if isinstance(body.text_2, str) else body.text_2
        given = [body.text_1] if isinstance(body.text_1, str) else body.text_1
        histories = given * len(outputs) if len(given) == 1 else given
        if len(histories) != len(outputs):
            what = "Give one history, or as many as there are outputs."
            raise Refusal(400, what, field="text_1", code="lengths_differ")
        if body.references is not None and len(body.references) != len(outputs):
            raise Refusal(400, "Give a reference for each output.", field="references", code="lengths_differ")
        found = await _scores(judging, histories, outputs, body.references)
        data = [
            PairScore(index=index, score=one.total, parts=one.parts(), unscored=one.unscored)
            for index, one in enumerate(found)
        ]
        return ScoreList(id=f"score-{uuid4().hex}", created=int(time.time()), model=judging.present.name, data=data)

    @app.post("/v1/rerank", responses=refused, tags=["judge"])
    async def rerank(body: RerankRequest) -> RerankAnswer:
        """The outputs for one history, the best first, as vLLM and Cohere answer."""
        found = await _scores(judging, [body.query] * len(body.documents), body.documents, None)
        totals = [one.total for one in found]
        order = sorted(range(len(found)), key=lambda index: (totals[index] is None, -(totals[index] or 0)))
        results = [
            RankedOutput(index=index, document={"text": readable(body.documents[index])}, relevance_score=totals[index])
            for index in order[: body.top_n or None]
        ]
        return RerankAnswer(id=f"rerank-{uuid4().hex}", model=judging.present.name, results=results)


async def _scores(
    judging: Judging, histories: Sequence[str], outputs: Sequence[str], references: Sequence[str] | None
) -> list[Score]:
    compared = [readable(one) for one in references] if references else [None] * len(outputs)
    cases = [
        Case(utterances(readable(history)), parse_turn(readable(output)), reference)
        for history, output, reference in zip(histories, outputs, compared, strict=True)
    ]
    return [result for _, result in await judging.judge(cases)]


def utterances(history: str) -> tuple[Utterance, ...]:
    """The utterances of a transcript; the last one must be the seeker's."""
    first, *rest = _SPOKEN.split(history)
    lines = [("seeker", first), *zip((name.lower() for name in rest[::2]), rest[1::2], strict=True)]
    found = tuple(Utterance(speaker=_SPEAKERS[name], text=text.strip()) for name, text in lines if text.strip())
    if not found or found[-1].speaker != "seeker":
        what = "A history must end with words of the seeker."
        raise Refusal(400, what, field="text_1", code="not_the_seekers_turn")
    return found
