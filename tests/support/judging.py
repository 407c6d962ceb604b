"""Cases, records and recorded judges that several tests need."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from compeer.dialogue import Utterance
from compeer.engine.answers import TorchReading
from compeer.models import Request
from compeer.reasoning import STEPS, EmotionStep, HistoryStep, Part, StrategyStep, SupportTurn, parse_turn, render_turn
from compeer.reward import Case, JudgeForm, Judgment, LocalJudge
from compeer.reward.conversation import RESPONSE_WORDS, STEP_WORDS
from compeer.reward.score import Unscored
from compeer.ser.record import PreferenceLabel, Preferred, SerRecord, StepLabel, StepLabels

CPU = torch.device("cpu")


class CaseJudge:
    """A judge by a rule for single cases (`one`), which keeps what it was asked."""

    name = "by rule"

    def __init__(self) -> None:
        self.cases: list[Case] = []

    def judge(self, cases: Sequence[Case]) -> list[Judgment | Unscored]:
        self.cases += cases
        return [self.one(case) for case in cases]

    async def ajudge(self, cases: Sequence[Case]) -> list[Judgment | Unscored]:
        return self.judge(cases)

    def one(self, case: Case) -> Judgment | Unscored:
        raise NotImplementedError


FORMS = [
    *(
        JudgeForm(kind=kind, reasons=reasons)  # type: ignore[arg-type]
        for kind in ("unified", "process", "outcome")
        for reasons in (False, True)
    ),
    JudgeForm(alone=True),
]
IDS = [f"{form.kind}-{'reasons' if form.reasons else 'verdicts'}{'-alone' if form.alone else ''}" for form in FORMS]
HISTORY = (
    Utterance(speaker="seeker", text="they let me go on Friday, after eleven years in the same office"),
    Utterance(speaker="supporter", text="I am sorry."),
    Utterance(speaker="seeker", text="rent is due"),
)
REFERENCE = "Eleven years is a long time. What did they say to you on Friday?"


def turn(response: str = "That is a lot at once.", text: str = "Lost a job.") -> SupportTurn:
    return SupportTurn(
        history=HistoryStep(text=text, stage="comforting"),
        emotion=EmotionStep(text="Afraid for the rent.", sentiment="negative", emotion="fear", intensity=4),
        strategy=StrategyStep(text="Stay with the fear.", strategy="Reflection of feelings"),
        response=response,
    )


def case(response: str = "That is a lot at once.", first: bool = True, reference: str | None = REFERENCE) -> Case:
    return Case(HISTORY, parse_turn(render_turn(turn(response))), reference, candidate_first=first)


def record(
    number: int = 0,
    preference: Preferred | None = "candidate",
    source: str = "silver",
    kind: str | None = None,
    reason: str | None = None,
    wrong: Sequence[Part] = (),
) -> SerRecord:
    labels = {
        part: StepLabel(value=part not in wrong, source=source, how="test", kind=kind, reason=reason)  # type: ignore[arg-type]
        for part in STEPS
    }
    return SerRecord(
        id=f"r{number}",
        dialogue=f"d{number // 2}",
        round=2,
        language="en",
        source="test",
        split="reward",
        history=HISTORY,
        candidate=turn(text="Lost a dog." if wrong else "Lost a job."),
        author="test",
        reference=REFERENCE,
        labels=StepLabels(**labels),
        preference=PreferenceLabel(value=preference, source=source, how="test", reason=reason)  # type: ignore[arg-type]
        if preference
        else None,
        candidate_first=number % 2 == 0,
    )


RECORDS = [record(number, wrong=["history"] if number % 4 > 1 else []) for number in range(16)]


def scripted(judge: LocalJudge, monkeypatch: pytest.MonkeyPatch, reason: str) -> list[list[int]]:
    """Makes the judge give this reason each time; returns what is fed, piece by piece, for a batch of one row."""
    tokenizer = judge._tokenizer
    script = [*tokenizer(reason, add_special_tokens=False)["input_ids"], tokenizer("\n")["input_ids"][0]]
    fed = recorded(monkeypatch)
    feed, place = TorchReading._feed, 0

    def follows(self: TorchReading, pieces: Any, *pictures: Any) -> torch.Tensor:
        nonlocal place
        logits = feed(self, pieces, *pictures)
        place = place + 1 if pieces[0] == script[place : place + 1] else 0
        logits[:, script[place]] = 1e4
        return logits

    monkeypatch.setattr(TorchReading, "_feed", follows)
    return fed


def recorded(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """What is fed, piece by piece, for a batch of one row."""
    fed: list[list[int]] = []
    padded = TorchReading._padded

    def follows(self: TorchReading, pieces: Any, left: bool) -> Any:
        fed.extend([list(piece) for piece in pieces])
        return padded(self, pieces, left)

    monkeypatch.setattr(TorchReading, "_padded", follows)
    return fed


def likeliest(found: Judgment, part: Part, first: bool) -> str:
    if part != "response":
        return str(found.steps[part] >= 0.5)
    value = found.preferred()
    assert value is not None
    return value.capitalize() if value in ("both", "neither") else "AB"[(value == "candidate") != first]


def words_of(request: Request) -> tuple[str, ...]:
    """The words that the last question allows."""
    return RESPONSE_WORDS if "Reply A" in str(request.messages[-1]["content"]) else STEP_WORDS
