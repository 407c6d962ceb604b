"""The conversation in which a judge is asked: four rounds, each seeing the verdicts before it.

One builder serves training and judging: training takes the whole chat with its verdicts, judging feeds the same text
piece by piece and reads the verdicts off.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from compeer.dialogue import Utterance, transcript
from compeer.reasoning import STEPS, ParsedTurn, Part, parse_turn, render_step, render_turn
from compeer.ser.record import Preferred, SerRecord

STEP_WORDS = ("True", "False")
RESPONSE_WORDS = ("A", "B", "Both", "Neither")


def _prompt(name: str) -> str:
    return files("compeer.reward").joinpath("prompts", f"{name}.txt").read_text(encoding="utf-8").rstrip("\n")


@dataclass(frozen=True)
class Case:
    """An output to be judged in its history, against a reference response or (None) without one."""

    history: tuple[Utterance, ...]
    output: ParsedTurn
    reference: str | None
    candidate_first: bool = True


@dataclass(frozen=True)
class Question:
    """One round: what the judge is asked about which part, and the words it may answer with."""

    part: Part
    text: str
    words: tuple[str, ...]
    asked: bool = True
    """Whether the judge is needed: a step that is missing is False without asking."""


def system_message() -> dict[str, str]:
    """The message that opens every chat with a judge."""
    return {"role": "system", "content": _prompt("system")}


def questions(case: Case, last: int | None = None) -> list[Question]:
    """The rounds for a case; `last` limits the history to that many utterances."""
    rounds: list[Question] = []
    for part in STEPS:
        step = case.output.parts.get(part)
        shown = "(missing)" if step is None or isinstance(step, str) else render_step(part, step)
        text = _prompt("next_step").format(step=shown)
        if not rounds:
            text = _prompt("first_step").format(history=transcript(case.history, last), step=shown)
        rounds.append(Question(part, text, STEP_WORDS, asked=step is not None))
    response = case.output.parts.get("response")
    if case.reference is not None and isinstance(response, str):
        pair = (response, case.reference) if case.candidate_first else (case.reference, response)
        shown_pair = [" ".join(text.split()) for text in pair]
        text = _prompt("responses").format(first=shown_pair[0], second=shown_pair[1])
        rounds.append(Question("response", text, RESPONSE_WORDS))
    return rounds


def chat(case: Case, verdicts: Sequence[str], last: int | None = None) -> list[dict[str, Any]]:
    """The whole chat with the judge's verdicts, as a model is trained on it."""
    messages: list[dict[str, Any]] = [system_message()]
    for question, verdict in zip(questions(case, last), verdicts, strict=True):
        messages.append({"role": "user", "content": question.text})
        messages.append({"role": "assistant", "content": verdict})
    return messages


def record_case(record: SerRecord) -> Case:
    """A record as a case to be judged; without a preference there is no reference to compare with."""
    return Case(
        history=record.history,
        output=parse_turn(render_turn(record.candidate)),
        reference=record.reference if record.preference else None,
        candidate_first=record.candidate_first,
    )


def record_verdicts(record: SerRecord) -> list[str]:
    """The answers that a record's labels ask for."""
    words = ["True" if getattr(record.labels, part).value else "False" for part in STEPS]
    if record.preference:
        words.append(response_word(record.preference.value, record.candidate_first))
    return words


def response_word(preferred: Preferred, candidate_first: bool) -> str:
    """The word for a preference, given which response was shown first."""
    if preferred in ("both", "neither"):
        return preferred.capitalize()
    return "A" if (preferred == "candidate") == candidate_first else "B"


def preferred(word: str, candidate_first: bool) -> Preferred:
    """The preference that a word means, given which response was shown first."""
    if word == "Both":
        return "both"
    if word == "Neither":
        return "neither"
    return "candidate" if (word == "A") == candidate_first else "reference"
