"""The conversation in which a judge is asked. One builder serves training and judging.

UnifiReward is asked in one chat of four rounds: the three steps and then the responses, each round after the verdicts
before it. Its rivals are asked the same questions apart: a process judge (PRM) about each step in a chat of its own, an
outcome judge (ORM) about the responses without the reasoning. Such chats are the *branches* of a case, and all begin
with the same history. With `alone` UnifiReward has a second pass: a branch that compares the responses as the outcome
judge does and then names the strategy of the candidate's, without knowing which one step 3 asks for.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from compeer import reasoning
from compeer.dialogue import Media, Utterance, transcript
from compeer.io import Frozen
from compeer.models.base import Message
from compeer.reasoning import MAX_RESPONSE, MAX_STEP, STEPS, STRATEGIES, ParsedTurn, Part, StrategyStep
from compeer.reward.anti_gaming import own_sentences, quoted, says_nothing, speaks_to_the_judge, visible, void_reason
from compeer.ser.asking import prompt, table
from compeer.ser.record import PREFERENCES, Preferred, SerRecord
from compeer.statistics import generator, words

STEP_WORDS = ("True", "False")
RESPONSE_WORDS = ("A", "B", "Both", "Neither")
BEFORE_VERDICT = "\nVerdict:"  # stands between a reason and its verdict
MAX_REASON = 200  # characters of a reason that a judge is taught
MISSING = "(missing)"
HIDDEN = "(not shown)"
_BY_POSITION = {"first", "second", "former", "latter", "candidate", "reference", "human", "original"}
"""Words by which annotators name one of two responses: they mean nothing once the order is another."""
Chat = list[dict[str, Any]]
JudgeKind = Literal["unified", "process", "outcome"]


class JudgeForm(Frozen):
    """What a judge is asked and how it answers, as in its training; it stands in the model's card."""

    kind: JudgeKind = Field(default="unified", description="UnifiReward, or a judge of steps (PRM) or responses (ORM)")
    reasons: bool = Field(default=False, description="a short reason before each verdict, or just the verdict")
    history: int | None = Field(default=None, ge=1, description="utterances of the history the judge reads; none: all")
    blind: bool = Field(default=False, description="the blind twin: the history is hidden")
    marked: bool = Field(default=True, description="UnifiReward learns which response follows the steps, and as what")
    alone: bool = Field(default=False, description="UnifiReward: a second chat on the responses and one's strategy")


@dataclass(frozen=True)
class Case:
    """An output to be judged in its history, against a reference response or (None) without one."""

    history: tuple[Utterance, ...]
    output: ParsedTurn
    reference: str | None
    candidate_first: bool = True


@dataclass(frozen=True)
class JudgeQuestion:
    """One round: which part is asked about, and the words that may answer. `kind` asks for the response's strategy."""

    part: Part | Literal["kind"]
    text: str
    words: tuple[str, ...]
    asked: bool = True  # whether the judge is needed: a missing step is False without asking
    images: tuple[str, ...] = ()  # pictures of the history, by path or address, for multimodal judges
    history: str = ""  # the history at the start of a chat, as the judge reads it

    @property
    def content(self) -> str | list[dict[str, Any]]:
        """The content of the message: text, or pictures and then text."""
        if not self.images:
            return self.text
        pictures = [{"type": "image", "url" if "://" in image else "path": image} for image in self.images]
        return [*pictures, {"type": "text", "text": self.text}]


prompt_text = partial(prompt, room="reward")


def system_message(form: JudgeForm) -> Message:
    """The message at the start of every chat with a judge."""
    return {"role": "system", "content": prompt_text("system_reasons" if form.reasons else "system")}


def branches(case: Case, form: JudgeForm, images: bool = False) -> list[list[JudgeQuestion]]:
    """The chats in which a case is judged, each a list of rounds; with `images` the visible pictures go along."""
    given = case.output.parts.get("response")
    response = own_sentences(given, _steps_of(case, form)) if isinstance(given, str) else None
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
            kind_text = prompt_text("kind").format(name="A" if case.candidate_first else "B")
            kind = JudgeQuestion("kind", kind_text, STRATEGIES)
            found.append(_response_round(case, response, with_notes=False) + ([] if form.reasons else [kind]))
    utterances = () if form.blind else case.history[-form.history :] if form.history else case.history
    history = HIDDEN if form.blind else visible(transcript(utterances))
    pictures = tuple(pictures_of(utterances)) if images else ()

    def with_history(question: JudgeQuestion) -> JudgeQuestion:
        text = prompt_text("conversation").format(history=history, question=question.text)
        return replace(question, text=text, images=pictures, history=history)

    return [[with_history(branch[0]), *branch[1:]] for branch in found]


def _step_round(output: ParsedTurn, part: Part, how: str = "first_step", earlier: Sequence[Part] = ()) -> JudgeQuestion:
    """The round about a step; `earlier` steps are quoted before it, without verdicts."""
    step = _visible_step(output, part)
    before = "".join(f"Earlier note: {_visible_step(output, other) or MISSING}\n" for other in earlier)
    text = before + prompt_text(how).format(step=step or MISSING)
    return JudgeQuestion(part, text, STEP_WORDS, asked=step is not None)


def _visible_step(output: ParsedTurn, part: Part) -> str | None:
    """A step as the judge reads it, or None if no language is visible in it, or it speaks to the judge."""
    step = output.parts.get(part)
    if step is None or isinstance(step, str) or says_nothing(step.text) or speaks_to_the_judge(step.text):
        return None
    text = quoted(step.text, MAX_STEP)
    return reasoning.render_step(part, step if step.text == text else step.model_copy(update={"text": text}))


def _response_round(case: Case, response: str | None, with_notes: bool) -> list[JudgeQuestion]:
    """The round that compares the response with the reference; none where there are not two."""
    if case.reference is None or response is None:
        return []
    replies = [quoted(text, MAX_RESPONSE) or MISSING for text in (response, case.reference)]
    # with notes it learns whose response is whose: a verdict on the steps says nothing of one that may be anyone's
    plan = case.output.parts.get("strategy")
    meant = f" (after these notes, meant as {plan.strategy})" if with_notes and isinstance(plan, StrategyStep) else ""
    marked = [f"{meant}: {replies[0]}", f": {replies[1]}"]
    first, second = marked if case.candidate_first else marked[::-1]
    return [JudgeQuestion("response", prompt_text("responses").format(first=first, second=second), RESPONSE_WORDS)]


def void_response(case: Case, form: JudgeForm) -> str | None:
    """Why the response of a case counts for nothing whatever such a judge says of it, or None."""
    response = case.output.parts.get("response")
    if not isinstance(response, str) or form.kind == "process":
        return None
    return void_reason(response, case.reference, [one.text for one in case.history], _steps_of(case, form))


def _steps_of(case: Case, form: JudgeForm) -> list[str]:
    """The texts of the steps, for a judge that reads them before the response."""
    steps = [step.text for step in case.output.parts.values() if not isinstance(step, str)]
    return steps if form.kind == "unified" else []


def chat(
    case: Case, answers: Sequence[str], form: JudgeForm | None = None, branch: int = 0, images: bool = False
) -> Chat:
    """The whole chat of one branch with the judge's answers, to train on; an unknown kind of help is not asked for."""
    form = form or JudgeForm()
    messages: Chat = [{**system_message(form)}]
    rounds = branches(case, form, images)[branch]
    if rounds[-1].part == "kind" and len(answers) == len(rounds) - 1:
        rounds = rounds[:-1]
    for question, answer in zip(rounds, answers, strict=True):
        messages += [{"role": "user", "content": question.content}, {"role": "assistant", "content": answer}]
    return messages


def chats(record: SerRecord, form: JudgeForm, candidate_first: bool | None = None, images: bool = False) -> list[Chat]:
    """The chats that teach a judge a record's labels, one a branch, in the recorded order unless another is given."""
    first = record.candidate_first if candidate_first is None else candidate_first
    case = replace(record_case(record), candidate_first=first)
    found = []
    for number, rounds in enumerate(branches(case, form)):
        answers = [_answer(record, question.part, form, first) for question in rounds if question.part != "kind"]
        if len(answers) < len(rounds) and record.response_strategy:  # the last round asks for it
            answers.append(record.response_strategy)
        found.append(chat(case, answers, form, number, images))
    return found


def _answer(record: SerRecord, part: Part, form: JudgeForm, candidate_first: bool) -> str:
    if part == "response":
        assert record.preference is not None, "a case without a preference has no such round"
        verdict = response_word(record.preference.value, candidate_first)
    else:
        verdict = "True" if getattr(record.labels, part).value else "False"
    return f"{_reason(record, part, verdict)}{BEFORE_VERDICT} {verdict}" if form.reasons else verdict


def _reason(record: SerRecord, part: Part, verdict: str) -> str:
    """The annotator's own reason, or else a sentence by rule from the label."""
    label: Any = record.preference if part == "response" else getattr(record.labels, part)
    given = quoted(label.reason or "", MAX_REASON)
    if given and not (part == "response" and _BY_POSITION & set(words(given))):
        return given
    kind = getattr(label, "kind", None)
    names = {"True": "true", "False": "false_kind" if kind else "false", "A": "better", "B": "better"}
    wordings: list[str] = table("reward/prompts/reasons")[names.get(verdict, verdict.lower())]
    wording = wordings[int(generator(0, "reason", record.id, part).integers(len(wordings)))]
    return wording.format(kind=kind, better=verdict, worse="B" if verdict == "A" else "A")


def pictures_of(history: Sequence[Utterance]) -> list[str]:
    """The pictures of a history, by path or address, in their order."""
    return [media.path for utterance in history for media in utterance.media if media.kind == "image"]


def with_whole_paths(history: Sequence[Utterance], folder: str | Path) -> tuple[Utterance, ...]:
    """The history with paths relative to the folder made whole; addresses stay as they are."""
    whole = Path(folder).absolute()

    def placed(one: Media) -> Media:
        return one if "://" in one.path else one.model_copy(update={"path": str(whole / one.path)})

    return tuple(one.model_copy(update={"media": tuple(map(placed, one.media))}) for one in history)


def record_case(record: SerRecord) -> Case:
    """A record as a case to be judged; without a preference there is no reference to compare with."""
    output = reasoning.parse_turn(reasoning.render_turn(record.candidate))
    return Case(record.history, output, record.reference if record.preference else None, record.candidate_first)


def carried_out(case: Case, kinds: Sequence[Mapping[str, float]]) -> float | None:
    """The probability that the response carries out step 3, given that of each strategy, where it was asked for."""
    plan = case.output.parts.get("strategy")
    if not kinds or not isinstance(plan, StrategyStep):
        return None
    return sum(kind[plan.strategy] for kind in kinds) / len(kinds)


def response_word(preferred: Preferred, candidate_first: bool) -> str:
    """The word for a preference, given which response comes first."""
    if preferred in ("both", "neither"):
        return preferred.capitalize()
    return "A" if (preferred == "candidate") == candidate_first else "B"


def preferred(word: str, candidate_first: bool) -> Preferred:
    """The preference that a word means, given which response comes first."""
    return next(value for value in PREFERENCES if response_word(value, candidate_first) == word)
