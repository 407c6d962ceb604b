"""Candidate turns: for each sampled history, what one or more models would think and say next.

A model is asked for the four lines of `compeer.reasoning`, under a grammar where it can be. What cannot be read, or
repeats the task's own example, is asked for again with the complaint, and then kept unparsed: how often a model fails
belongs to what is known of it.
"""

import asyncio
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

from pydantic import Field, model_validator

from compeer import reasoning
from compeer.dialogue import Utterance, transcript
from compeer.errors import InputError
from compeer.io import Frozen, json_line
from compeer.models.base import Failure, Generation, Request, Sampling, TextModel
from compeer.pipeline import Done, Stage, in_blocks
from compeer.reasoning import LABELS, ParsedTurn, Part, SupportTurn, parse_turn, turn_grammar
from compeer.ser import asking
from compeer.ser.sampling import Context, read_contexts


class ReasonSettings(Frozen):
    """How models are asked for turns."""

    candidates: int = Field(default=1, ge=1, description="turns that each model writes for a history")
    retries: int = Field(default=2, ge=0, description="how often a turn that cannot be read is asked for again")
    history: int | None = Field(default=None, ge=1, description="utterances of the history that are shown; none: all")
    temperature: float = Field(default=0.8, ge=0, description="0 takes the most probable token")
    top_p: float = Field(default=0.95, gt=0, le=1, description="share of probability kept")
    max_tokens: int = Field(default=320, ge=16, description="longest turn, in tokens")
    images: bool = Field(default=False, description="give the history's pictures to the models, which must see")

    @model_validator(mode="after")
    def _varied(self) -> Self:
        if self.candidates > 1 and self.temperature == 0:
            raise ValueError("several candidates need a temperature above 0, or they are all the same")
        return self


class CandidateTurn(Frozen):
    """One turn that a model wrote for a context, or what it wrote instead and what is missing of it."""

    context: str = Field(min_length=1, description="the context's id")
    model: str = Field(min_length=1, description="who wrote it")
    number: int = Field(ge=1, description="which of the model's candidates")
    turn: SupportTurn | None = None
    text: str | None = Field(default=None, description="the answer as it was, where it could not be read")
    missing: dict[Part, str] = Field(default_factory=dict, description="each part that is not there, and why")
    tries: int = Field(default=1, ge=1)


async def reason_stage(
    contexts: Path, out: Path, models: Sequence[TextModel], settings: ReasonSettings, seed: int = 0
) -> dict[str, Any]:
    """Writes the turns that the models give for a file of contexts; returns the stage's manifest."""
    names = [model.name for model in models]
    if not names or len(set(names)) < len(names):
        raise InputError("the models need a name each, and there must be one at least.", field="models")
    known = {**settings.model_dump(), "models": names, "seed": seed, "prompt": _task("en"), "grammar": turn_grammar()}
    stage = Stage(out, known, {"contexts": contexts})
    gates = {model.name: asyncio.Semaphore(model.at_once) for model in models}

    async def ask(model: TextModel, block: Sequence[Context]) -> list[CandidateTurn | Failure]:
        async with gates[model.name]:
            return await candidate_turns(model, block, settings, seed)

    async def work(block: list[Context]) -> Done:
        """All models at once; what they wrote for one context stands together, in the models' order."""
        answers = await asyncio.gather(*(ask(model, block) for model in models))
        per, by_model = settings.candidates, list(zip(names, answers, strict=True))
        starts = range(0, per * len(block), per)
        return _done([(name, turn) for at in starts for name, given in by_model for turn in given[at : at + per]])

    size = max(1, max(model.batch_size for model in models) // settings.candidates)
    units = in_blocks(read_contexts(contexts), size)
    return await asking.ask_stage(stage, units, work, max(model.at_once for model in models))


async def candidate_turns(
    model: TextModel, contexts: Sequence[Context], settings: ReasonSettings, seed: int
) -> list[CandidateTurn | Failure]:
    """The model's candidates for each context, one after the other; a failure where it could not be asked."""
    asked = [(context, number) for context in contexts for number in range(1, settings.candidates + 1)]
    missing: dict[int, dict[Part, str]] = {}

    def read(index: int, answer: Generation) -> SupportTurn | asking.AnswerFault:
        parsed = parse_turn(answer.text, cut_off=answer.cut_off)
        missing[index] = {**parsed.missing, **_copied(parsed)}
        reasons = missing[index].items()
        complaint = "; ".join(f"the {LABELS[part]} line is missing or unusable ({why})" for part, why in reasons)
        return asking.AnswerFault(complaint) if parsed.turn is None or complaint else parsed.turn

    how = settings.model_dump(include={"temperature", "top_p", "max_tokens"})
    sampling = Sampling(**how, stop=("\nSeeker:", "\nSupporter:"))  # a model that plays on both sides
    requests = [_request(context, model.name, number, settings, seed) for context, number in asked]
    found: list[CandidateTurn | Failure] = []
    for index, answer in enumerate(await asking.ask_until_read(model, requests, read, sampling, settings.retries)):
        if isinstance(answer, Failure):
            found.append(answer)
            continue
        context, number = asked[index]
        written = {"turn": answer.value} if isinstance(answer, asking.Read) else {"text": answer.text}
        names = {"context": context.id, "model": model.name, "number": number}
        found.append(CandidateTurn(**names, missing=missing[index], tries=answer.tries, **written))
    return found


def _copied(parsed: ParsedTurn) -> dict[Part, str]:
    """The parts that repeat what stands in the task, as small models like to do; short ones may do so by chance."""
    task = _task("en")
    texts = {part: found if isinstance(found, str) else found.text for part, found in parsed.parts.items()}
    return {part: "copied from the task" for part, text in texts.items() if len(text) > 20 and text in task}


def _done(found: Sequence[tuple[str, CandidateTurn | Failure]]) -> Done:
    lines = []
    groups = ("reason", "parsed", "unparsed", "missing", "failed", "dropped")
    counts: dict[str, Counter[str]] = {group: Counter() for group in groups}
    for model, turn in found:
        counts["reason"]["asked"] += 1
        if isinstance(turn, Failure):
            asking.count_failure(turn, counts)
            continue
        counts["reason"]["written"] += 1
        counts["reason"]["asked again"] += turn.tries > 1
        counts["parsed" if turn.turn else "unparsed"][model] += 1
        counts["missing"].update(list(turn.missing))
        lines.append(json_line(turn))
    return Done(lines, counts=counts)


def _request(context: Context, model: str, number: int, settings: ReasonSettings, seed: int) -> Request:
    visible = context.history[-settings.history :] if settings.history else context.history
    content: str | list[dict[str, Any]] = _with_images(visible) if settings.images else transcript(visible)
    names = ("reason", context.id, model, str(number))
    return asking.ask_user(content, seed, *names, grammar=turn_grammar(), system=_task(context.language))


def _task(language: str) -> str:
    return asking.prompt("reason").format(
        stages=", ".join(reasoning.STAGES),
        sentiments=", ".join(reasoning.SENTIMENTS),
        emotions=", ".join(reasoning.EMOTIONS),
        strategies=", ".join(reasoning.STRATEGIES),
        language="" if language == "en" else f" {asking.prompt('other_language')}",
        example=asking.prompt("example"),
    )


def _with_images(history: Sequence[Utterance]) -> str | list[dict[str, Any]]:
    """The transcript with each picture after the message it came with; plain text where there is none."""
    blocks: list[dict[str, Any]] = []
    lines: list[str] = []
    for utterance in history:
        lines.append(transcript([utterance]))
        if images := [Path(media.path) for media in utterance.media if media.kind == "image"]:
            blocks.append({"type": "text", "text": "\n".join(lines)})
            blocks += [{"type": "image_url", "image_url": {"url": _data_url(path)}} for path in images]
            lines = []
    rest = "\n".join(lines)
    return [*blocks, *([{"type": "text", "text": rest}] if lines else [])] if blocks else rest


def _data_url(path: Path) -> str:
    try:
        return asking.data_url(path)
    except OSError as error:
        do = "Give the folder of the media when the corpus is read, or leave the images out."
        raise InputError(f"this picture cannot be read: {error.strerror}", file=path, do=do) from None
