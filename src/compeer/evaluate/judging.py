"""Asking judges to score conversations: every one of them, every conversation, every dimension.

A judge whose answer cannot be read is asked again, with the reason, a bounded number of times; scores that an earlier
answer gave are kept, and what is still missing after the last try is unscored. A judge that could not be reached gives
rows that say so, which differ from those that it wrote something unreadable for. Blocks of conversations are the unit
of work, composed by their order alone: the same conversations and seed ask the same questions in the same batches.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from compeer.errors import InputError
from compeer.evaluate.answers import DIMENSIONS, HIGHEST, Dimension, read_score, read_scores, rubric, rubric_texts
from compeer.evaluate.players import Talk
from compeer.evaluate.runner import RunSettings
from compeer.io import Frozen, json_line, read_lines
from compeer.models.base import Failure, Generation, Request, Sampling, TextModel
from compeer.pipeline import Done, Stage, ask_through, in_blocks
from compeer.ser.asking import Answer, AnswerFault, Unread, ask_until_read, ask_user


def judge_request(talk: Talk, dimensions: Sequence[Dimension], judge: str = "", seed: int = 0) -> Request:
    """The question to a judge: about the one dimension given, or about several at once."""
    wording = rubric(talk.conversation.language)
    transcript = _transcript(talk, wording)

    def filled(form: str, key: Dimension) -> str:
        name, question, levels = (wording[key][part] for part in ("name", "question", "levels"))
        listed = "\n".join(f"{score}: {text}" for score, text in enumerate(levels))
        return str(wording[form].format(conversation=transcript, key=key, name=name, question=question, levels=listed))

    content = filled("one", dimensions[0])
    if len(dimensions) > 1:
        described = "\n\n".join(filled("dimension", key) for key in dimensions)
        keys = ", ".join(f'"{key}": ...' for key in dimensions)
        content = wording["all"].format(conversation=transcript, dimensions=described, keys=keys)
    names = ("esc-eval", judge, talk.scenario, str(talk.repeat), *dimensions)
    grammar, system = answer_grammar(dimensions), wording["system"].strip()
    return ask_user(content.strip(), seed, *names, grammar=grammar, system=system)


def answer_grammar(dimensions: Sequence[Dimension]) -> str:
    """A Lark grammar of the answer to `judge_request`, for models that can decode under one."""
    keys = ["score"] if len(dimensions) == 1 else list(dimensions)
    scores = " ".join(rf'", \"{key}\": " SCORE' for key in keys)
    # the closing quote belongs to the reason: a lexer is greedy, and would only stop at the greatest length
    reason = rf'[A-Za-z\p{{Han}}][^"\\\x00-\x1f]{{3,{MAX_REASON}}}"'
    return rf'start: "{{\"reason\": \"" REASON {scores} "}}"' + f"\nREASON: /{reason}/\nSCORE: /[0-{HIGHEST}]/"


def _transcript(talk: Talk, wording: dict[str, Any]) -> str:
    """A line a message. What somebody wrote cannot end the conversation's block or begin a line of its own."""
    messages = [(wording[turn.speaker], " ".join(turn.text.split())) for turn in talk.conversation.turns]
    lines = "\n".join(f"{name}{wording['colon']}{text}" for name, text in messages)
    return lines.replace("conversation>", "conversation >")


MAX_REASON = 240  # characters of a judge's reason, where a model can be held to it
JUDGING_TEMPERATURE = 0.0  # judges take the most probable token
Scores = dict[Dimension, int]
Unscored = Literal["unreadable", "refused", "failed", "nothing said"]


class ScoreRow(Frozen):
    """What one judge gave one conversation in one dimension, or why there is no score."""

    conversation: str = Field(description="the scenario's id")
    repeat: int = Field(default=1, ge=1, description="which conversation of the scenario")
    language: str
    judge: str
    dimension: Dimension
    score: int | None = Field(default=None, ge=0, le=HIGHEST)
    unscored: Unscored | None = Field(
        default=None,
        description="unreadable: what the judge wrote; refused: the question cannot be answered as it is, being too "
        "long, say; failed: the judge could not be reached; nothing said: there is no supporter's message",
    )
    reason: str | None = Field(default=None, description="more on why it is unscored")
    answer: str | None = Field(default=None, description="the judge's answer as it was")
    tries: int = Field(default=0, ge=0, description="how often the judge answered")

    @model_validator(mode="after")
    def _scored_or_not(self) -> Self:
        if (self.score is None) == (self.unscored is None):
            raise ValueError("a row has a score, or says why it has none")
        return self


class EscEvalSettings(RunSettings):
    """What a run of ESC-Eval settles."""

    one_call: bool = Field(default=False, description="ask a judge for all seven dimensions in one call")
    judge_tokens: int = Field(default=400, ge=16, description="a judge's longest answer")

    @property
    def questions(self) -> list[tuple[Dimension, ...]]:
        """The dimensions that each question to a judge is about."""
        return [DIMENSIONS] if self.one_call else [(dimension,) for dimension in DIMENSIONS]


async def judge_conversations(
    talks: Sequence[Talk], judges: Sequence[TextModel], settings: EscEvalSettings, seed: int = 0
) -> list[ScoreRow]:
    """The rows of all judges, in the order of conversations, judges and dimensions."""
    parts = await asyncio.gather(*map(_work(judges, settings, seed), _blocks(talks, judges, settings)))
    return [row for rows in parts for row in rows]


async def score_stage(
    talks: Sequence[Talk],
    inputs: Mapping[str, Path | str],
    out: Path,
    judges: Sequence[TextModel],
    settings: EscEvalSettings,
    seed: int = 0,
    advance: Callable[[int], None] = lambda _: None,
) -> dict[str, Any]:
    """Writes the rows of conversations read from `inputs` as they come, going on after a stop; gives the manifest."""
    work, blocks = _work(judges, settings, seed), _blocks(talks, judges, settings)
    wanted = {
        "calls": "conversation" if settings.one_call else "dimension",
        "retries": settings.retries,
        "temperature": JUDGING_TEMPERATURE,
        "max_tokens": settings.judge_tokens,
        "judges": [judge.name for judge in judges],
        "seed": seed,
        "rubric": rubric_texts(),
    }
    stage = Stage(out, wanted, inputs)
    if found := stage.finished():
        return found

    async def block_done(block: list[Talk]) -> Done:
        rows = await work(block)
        advance(len(block))
        counts = {
            "scores": Counter("scored" if row.unscored is None else row.unscored for row in rows),
            "failed": Counter(row.judge for row in rows if row.unscored == "failed"),
        }
        return Done(list(map(json_line, rows)), counts=counts)

    with stage:
        advance(sum(map(len, blocks[: stage.units])))
        await ask_through(stage, blocks, block_done, max(judge.at_once for judge in judges))
        return stage.finish(failed=sum(stage.counts.get("failed", {}).values()))


def read_rows(path: Path) -> list[ScoreRow]:
    """The rows of a file that `score_stage` wrote; an error names the file, line and field."""
    return list(read_lines(path, ScoreRow, "file of scores", "Make it with: compeer evaluate esc-eval"))


def _blocks(talks: Sequence[Talk], judges: Sequence[TextModel], settings: EscEvalSettings) -> list[list[Talk]]:
    """The conversations in blocks that fill the largest batch a judge likes; an error if two of anything are alike."""
    if not judges or len({judge.name for judge in judges}) < len(judges):
        raise InputError("the judges need a name each, and there must be one at least.", field="judges")
    for (name, repeat), count in Counter((one.scenario, one.repeat) for one in talks).most_common(1):
        if count > 1:
            what = f"there are {count} conversations '{name}' with repeat {repeat}."
            raise InputError(what, field="repeat", do="Count the repeats of a scenario from 1.")
    return list(in_blocks(talks, max(1, max(judge.batch_size for judge in judges) // len(settings.questions))))


def _work(
    judges: Sequence[TextModel], settings: EscEvalSettings, seed: int
) -> Callable[[list[Talk]], Awaitable[list[ScoreRow]]]:
    """What is done with a block: all judges at once, each as often at the same time as it likes."""
    gates = {judge.name: asyncio.Semaphore(judge.at_once) for judge in judges}

    async def ask(judge: TextModel, block: Sequence[Talk]) -> list[list[ScoreRow]]:
        async with gates[judge.name]:
            return await _judged(judge, block, settings, seed)

    async def work(block: list[Talk]) -> list[ScoreRow]:
        by_judge = await asyncio.gather(*(ask(judge, block) for judge in judges))
        return [row for of_one in zip(*by_judge, strict=True) for rows in of_one for row in rows]

    return work


async def _judged(
    judge: TextModel, block: Sequence[Talk], settings: EscEvalSettings, seed: int
) -> list[list[ScoreRow]]:
    """The judge's rows for each conversation of a block, a row a dimension."""
    calls = [[_Call(talk, dimensions) for dimensions in settings.questions] for talk in block]
    asked = [call for own in calls for call in own if call.has_reply]

    def read(index: int, answer: Generation) -> Scores | AnswerFault:
        return asked[index].read(answer)

    sampling = Sampling(temperature=JUDGING_TEMPERATURE, max_tokens=settings.judge_tokens)
    requests = [judge_request(call.talk, call.dimensions, judge.name, seed) for call in asked]
    answers = await ask_until_read(judge, requests, read, sampling, settings.retries) if requests else []
    for call, answer in zip(asked, answers, strict=True):
        call.final = answer
    return [[call.row(judge.name, dimension) for call in own for dimension in call.dimensions] for own in calls]


@dataclass
class _Call:
    """One question to a judge, and what its answers have given so far."""

    talk: Talk
    dimensions: tuple[Dimension, ...]
    scores: Scores = field(default_factory=dict)
    answer: str | None = None
    tries: int = 0
    final: Answer[Scores] | None = None

    @property
    def has_reply(self) -> bool:
        return any(turn.speaker == "supporter" and turn.text.strip() for turn in self.talk.conversation.turns)

    def read(self, answer: Generation) -> Scores | AnswerFault:
        """All the scores, or which are missing. What an earlier answer gave stays as it was."""
        self.answer, self.tries = answer.text, self.tries + 1
        if answer.cut_off:
            return AnswerFault("it was cut off before it ended; be brief")
        if len(self.dimensions) > 1:
            self.scores = {**read_scores(answer.text), **self.scores}
        elif (score := read_score(answer.text, self.dimensions[0])) is not None:
            self.scores = {self.dimensions[0]: score}
        if missing := [dimension for dimension in self.dimensions if dimension not in self.scores]:
            return AnswerFault(f"no whole score from 0 to {HIGHEST} can be read for {', '.join(missing)}")
        return self.scores

    def row(self, judge: str, dimension: Dimension) -> ScoreRow:
        """What the judge gave in a dimension, or why there is no score."""
        why: dict[str, Any] = {"unscored": "nothing said"}
        if dimension in self.scores:
            why = {"score": self.scores[dimension]}
        elif isinstance(self.final, Failure):
            kind: Unscored = "refused" if self.final.kind == "refused" else "failed"
            why = {"unscored": kind, "reason": f"{self.final.kind}: {self.final.reason}"}
        elif self.final:
            why = {"unscored": "unreadable", "reason": self.final.complaint if isinstance(self.final, Unread) else None}
        about = {"conversation": self.talk.scenario, "repeat": self.talk.repeat}
        about |= {"language": self.talk.conversation.language, "judge": judge, "dimension": dimension}
        return ScoreRow(**about, **why, answer=self.answer, tries=self.tries)
