"""The conversation in which a judge is asked. One builder serves training and judging.

UnifiReward is asked in one chat of four rounds, each seeing the verdicts before it. A process judge is asked about each
step in a chat of its own, and an outcome judge about the responses alone; such chats are the *branches* of a case, and
all begin with the same history. Training takes whole chats with their verdicts; judging feeds the same text piece by
piece and reads the verdicts off. Who has just read three right steps is soon ready to call the response right too: a
UnifiReward that looks at the responses `alone` as well has a second branch, in which it compares them as the outcome
judge does, and then names the strategy of the candidate's, not knowing which one step 3 asks for.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from typing import Any, Literal

from compeer.dialogue import Utterance, transcript
from compeer.reasoning import (
    MAX_RESPONSE,
    MAX_STEP,
    STEPS,
    STRATEGIES,
    ParsedTurn,
    Part,
    StrategyStep,
    parse_turn,
    render_step,
    render_turn,
)
from compeer.reward.form import Form
from compeer.reward.guards import gains_nothing, own_sentences, quoted, says_nothing, speaks_to_the_judge, visible
from compeer.ser.record import Preferred, SerRecord
from compeer.statistics import generator, words

STEP_WORDS = ("True", "False")
RESPONSE_WORDS = ("A", "B", "Both", "Neither")
BEFORE_VERDICT = "\nVerdict:"
"""Stands between a reason and its verdict."""
MAX_REASON = 200
"""Characters of a reason that a judge is taught."""
MISSING = "(missing)"
NOT_SHOWN = "(not shown)"
_BY_PLACE = {"first", "second", "former", "latter", "candidate", "reference", "human", "original"}
"""Words by which annotators name one of two responses: they mean nothing once the order is another."""


@cache
def _prompt(name: str) -> str:
    return files("compeer.reward").joinpath("prompts", f"{name}.txt").read_text(encoding="utf-8").rstrip("\n")


@cache
def _wordings() -> dict[str, list[str]]:
    return tomllib.loads(files("compeer.reward").joinpath("prompts", "reasons.toml").read_text(encoding="utf-8"))


@dataclass(frozen=True)
class Case:
    """An output to be judged in its history, against a reference response or (None) without one."""

    history: tuple[Utterance, ...]
    output: ParsedTurn
    reference: str | None
    candidate_first: bool = True


@dataclass(frozen=True)
class Question:
    """One round: what the judge is asked about which part, and the words it may answer with.

    `kind` is no part: it asks for the strategy of the candidate's response.
    """

    part: Part | Literal["kind"]
    text: str
    words: tuple[str, ...]
    asked: bool = True
    """Whether the judge is needed: a step that is missing is False without asking."""
    images: tuple[str, ...] = ()
    """Pictures that go with the history, by path or address, for judges that see."""
    history: str = ""
    """The history that a chat opens with, as it is shown; what follows it in the same message is the question."""

    @property
    def content(self) -> str | list[dict[str, Any]]:
        """The round as the content of a message: text, or pictures and then text."""
        if not self.images:
            return self.text
        pictures = [{"type": "image", "url" if "://" in image else "path": image} for image in self.images]
        return [*pictures, {"type": "text", "text": self.text}]


def system_message(form: Form) -> dict[str, Any]:
    """The message that opens every chat with a judge."""
    return {"role": "system", "content": _prompt("system_reasons" if form.reasons else "system")}


def branches(case: Case, form: Form, images: bool = False) -> list[list[Question]]:
    """The chats in which a case is judged, each a list of rounds that see each other.

    With `images` the pictures of the utterances that are shown go with the history; a judge that reads text only is
    told nothing of them.
    """
    response = _shown_response(case, form)
    compared = _response_round(case, response, with_notes=form.kind == "unified" and form.marked)
    if form.kind == "process":
        found = [[_step_round(case.output, part, earlier=STEPS[:number])] for number, part in enumerate(STEPS)]
    elif form.kind == "outcome":
        found = [compared] if compared else []
    else:
        first, *others = STEPS
        rounds = [_step_round(case.output, first), *(_step_round(case.output, part, "next_step") for part in others)]
        found = [[*rounds, *compared]]
        if form.alone and compared:
            found.append(
                _response_round(case, response, with_notes=False) + ([] if form.reasons else [_kind_round(case)])
            )
    shown = () if form.blind else case.history[-form.history :] if form.history else case.history
    history = NOT_SHOWN if form.blind else visible(transcript(shown))
    pictures = tuple(media.path for u in shown for media in u.media if media.kind == "image") if images else ()
    return [[_opening(branch[0], history, pictures), *branch[1:]] for branch in found]


def _opening(question: Question, history: str, pictures: tuple[str, ...]) -> Question:
    text = _prompt("opening").format(history=history, question=question.text)
    return replace(question, text=text, images=pictures, history=history)


def _step_round(output: ParsedTurn, part: Part, prompt: str = "first_step", earlier: Sequence[Part] = ()) -> Question:
    """The round about a step; `earlier` steps are quoted before it, without verdicts."""
    shown = _shown_step(output, part)
    before = "".join(f"Earlier note: {_shown_step(output, other) or MISSING}\n" for other in earlier)
    text = before + _prompt(prompt).format(step=shown or MISSING)
    return Question(part, text, STEP_WORDS, asked=shown is not None)


def _shown_step(output: ParsedTurn, part: Part) -> str | None:
    """A step as the judge reads it, or None if there is no language to be seen in it, or it speaks to the judge."""
    step = output.parts.get(part)
    if step is None or isinstance(step, str) or not (text := quoted(step.text, MAX_STEP)):
        return None
    if says_nothing(step.text) or speaks_to_the_judge(step.text):
        return None
    return render_step(part, step if step.text == text else step.model_copy(update={"text": text}))


def _response_round(case: Case, response: str | None, with_notes: bool) -> list[Question]:
    """The round that compares the response, as it is shown, with the reference; none where there are not two.

    Where the notes were shown (`with_notes`), it is said which of the two was written after them, and as what kind of
    help it was meant: a verdict on the steps says nothing about a response that may be anyone's.
    """
    if case.reference is None or response is None:
        return []
    replies = [quoted(text, MAX_RESPONSE) or MISSING for text in (response, case.reference)]
    plan = case.output.parts.get("strategy")
    meant = f" (after these notes, meant as {plan.strategy})" if with_notes and isinstance(plan, StrategyStep) else ""
    marked = [f"{meant}: {replies[0]}", f": {replies[1]}"]
    first, second = marked if case.candidate_first else marked[::-1]
    return [Question("response", _prompt("responses").format(first=first, second=second), RESPONSE_WORDS)]


def _shown_response(case: Case, form: Form) -> str | None:
    """The response as the judge reads it, before it is quoted, or None if there is none."""
    response = case.output.parts.get("response")
    return own_sentences(response, _steps_told(case, form)) if isinstance(response, str) else None


def void_response(case: Case, form: Form) -> str | None:
    """Why the response of a case counts for nothing whatever such a judge says of it, or None."""
    response = case.output.parts.get("response")
    if not isinstance(response, str) or form.kind == "process":
        return None
    said = [utterance.text for utterance in case.history]
    return gains_nothing(response, case.reference, said, _steps_told(case, form))


def _steps_told(case: Case, form: Form) -> list[str]:
    """What the steps say, for a judge that is to see whether a response fits them."""
    return (
        [step.text for step in case.output.parts.values() if not isinstance(step, str)]
        if form.kind == "unified"
        else []
    )


def _kind_round(case: Case) -> Question:
    return Question("kind", _prompt("kind").format(name="A" if case.candidate_first else "B"), STRATEGIES)


def chat(
    case: Case, answers: Sequence[str], form: Form | None = None, branch: int = 0, images: bool = False
) -> list[dict[str, Any]]:
    """The whole chat of one branch with the judge's answers, as a model is trained on it; `images` if it sees.

    Where nobody knows the kind of the response, it is not asked for.
    """
    form = form or Form()
    messages: list[dict[str, Any]] = [system_message(form)]
    rounds = branches(case, form, images)[branch]
    if rounds[-1].part == "kind" and len(answers) == len(rounds) - 1:
        rounds = rounds[:-1]
    for question, answer in zip(rounds, answers, strict=True):
        messages.append({"role": "user", "content": question.content})
        messages.append({"role": "assistant", "content": answer})
    return messages


def chats(
    record: SerRecord, form: Form, candidate_first: bool | None = None, images: bool = False
) -> list[list[dict[str, Any]]]:
    """The chats that teach a judge a record's labels, one a branch; the order of the responses is the recorded one
    unless another is given. A judge that sees is given the `images` too."""
    first = record.candidate_first if candidate_first is None else candidate_first
    case = replace(record_case(record), candidate_first=first)
    found = []
    for number, rounds in enumerate(branches(case, form)):
        answers = [_answer(record, question.part, form, first) for question in rounds if question.part != "kind"]
        if len(answers) < len(rounds) and record.response_strategy:  # the last round asks for it
            answers.append(record.response_strategy)
        found.append(chat(case, answers, form, number, images))
    return found


def _answer(record: SerRecord, part: Part, form: Form, candidate_first: bool) -> str:
    verdict = _verdict(record, part, candidate_first)
    return f"{_reason(record, part, verdict)}{BEFORE_VERDICT} {verdict}" if form.reasons else verdict


def _verdict(record: SerRecord, part: Part, candidate_first: bool) -> str:
    if part == "response":
        assert record.preference is not None, "a case without a preference has no such round"
        return response_word(record.preference.value, candidate_first)
    return "True" if getattr(record.labels, part).value else "False"


def _reason(record: SerRecord, part: Part, verdict: str) -> str:
    """The annotator's own reason, or else a sentence by rule from the label."""
    label: Any = record.preference if part == "response" else getattr(record.labels, part)
    given = quoted(label.reason or "", MAX_REASON)
    if given and not (part == "response" and _BY_PLACE & set(words(given))):
        return given
    kind = getattr(label, "kind", None)
    names = {"True": "true", "False": "false_kind" if kind else "false", "A": "better", "B": "better"}
    wordings = _wordings()[names.get(verdict, verdict.lower())]
    wording = wordings[int(generator(0, "reason", record.id, part).integers(len(wordings)))]
    return wording.format(kind=kind, better=verdict, worse="B" if verdict == "A" else "A")


def record_case(record: SerRecord) -> Case:
    """A record as a case to be judged; without a preference there is no reference to compare with."""
    return Case(
        history=record.history,
        output=parse_turn(render_turn(record.candidate)),
        reference=record.reference if record.preference else None,
        candidate_first=record.candidate_first,
    )


def carried_out(case: Case, kinds: Sequence[Mapping[str, float]]) -> float | None:
    """The probability that the response carries out step 3, given how likely each strategy was found, if it was."""
    plan = case.output.parts.get("strategy")
    if not kinds or not isinstance(plan, StrategyStep):
        return None
    return sum(kind[plan.strategy] for kind in kinds) / len(kinds)


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
