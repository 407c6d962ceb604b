"""ESC-Eval end to end: seekers that play role cards talk with the supporter, and judges score the conversations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import Field

from compeer.dialogue import Speaker
from compeer.evaluate.esc_eval.figures import ScoreRow, esc_eval_figures
from compeer.evaluate.esc_eval.rubric import DIMENSIONS, judge_messages, rubric_texts
from compeer.evaluate.esc_eval.scoring import JudgeSettings, read_rows, score_stage
from compeer.evaluate.folder import CONVERSATIONS
from compeer.evaluate.running import TEMPERATURE, Evaluation, RunSettings, Talk
from compeer.models.base import Request, Sampling, TextModel
from compeer.models.costs import prompt_tokens, text_tokens
from compeer.simulate.seekers import CardSeeker, seeker_prompts

JUDGED = "judged.jsonl"


class EscEvalSettings(RunSettings):
    """What a run of ESC-Eval settles."""

    one_call: bool = Field(default=False, description="ask a judge for all seven dimensions in one call")
    judge_tokens: int = Field(default=400, ge=16, description="a judge's longest answer")


@dataclass(frozen=True)
class Judged:
    """A talk as judges see it."""

    talk: Talk

    @property
    def id(self) -> str:
        return self.talk.scenario

    @property
    def repeat(self) -> int:
        return self.talk.repeat

    @property
    def language(self) -> str:
        return self.talk.conversation.language

    @property
    def said(self) -> list[tuple[Speaker, str]]:
        return [(turn.speaker, turn.text) for turn in self.talk.conversation.turns]


class EscEval(Evaluation):
    """A run of ESC-Eval; its scenarios are role cards."""

    protocol = "esc-eval"
    settings: EscEvalSettings

    def seeker(self, model: TextModel) -> CardSeeker:
        return CardSeeker(model, Sampling(temperature=TEMPERATURE, max_tokens=self.settings.seeker_tokens))

    def prompts(self) -> dict[str, str]:
        rubrics = {f"rubric {language}.toml": text for language, text in rubric_texts().items()}
        return {**seeker_prompts(), **rubrics}

    @property
    def judging(self) -> JudgeSettings:
        """How judges are asked."""
        return JudgeSettings(
            calls="conversation" if self.settings.one_call else "dimension",
            retries=self.settings.retries,
            max_tokens=self.settings.judge_tokens,
        )

    async def judge(
        self, talks: Sequence[Talk], judges: Sequence[TextModel], folder: Path, advance: Callable[[int], None]
    ) -> None:
        inputs = {"conversations": folder / CONVERSATIONS}
        judged = [Judged(talk) for talk in talks]
        await score_stage(judged, inputs, folder / JUDGED, judges, self.judging, self.seed, advance)

    def scores(self, talks: Sequence[Talk], folder: Path) -> list[dict[str, Any]]:
        by_talk: dict[tuple[str, int], list[ScoreRow]] = {}
        for row in read_rows(folder / JUDGED):
            by_talk.setdefault((row.conversation, row.repeat), []).append(row)
        return [_score_line(by_talk.get((talk.scenario, talk.repeat), [])) for talk in talks]

    def figures(self, lines: Sequence[Mapping[str, Any]], folder: Path) -> dict[str, Any]:
        rows = read_rows(folder / JUDGED)
        found = esc_eval_figures(rows, seed=self.seed)
        kinds = Counter((row.unscored, f"{row.judge}: {row.unscored}") for row in rows if row.unscored)
        return {
            "figures": found.model_dump(mode="json"),
            "coverage": {name: {"scored": one.scored, "of": len(lines)} for name, one in found.dimensions.items()},
            "unread": {name: count for (kind, name), count in kinds.items() if kind != "failed"},
            "unreached": {name: count for (kind, name), count in kinds.items() if kind == "failed"},
        }

    def judges_took(self, talks: Sequence[Talk], folder: Path) -> dict[str, dict[str, int]]:
        """By the rows, in the tokens that the questions and the last answers have by our own count."""
        by_key = {(talk.scenario, talk.repeat): Judged(talk) for talk in talks}
        role_of = {player.name: role for role, player in self.players.by_role.items() if role.startswith("judge")}
        took = {role: {"calls": 0, "prompt_tokens": 0, "tokens": 0} for role in role_of.values()}
        for row in read_rows(folder / JUDGED):
            if self.settings.one_call and row.dimension != DIMENSIONS[0]:
                continue  # the seven rows of a conversation came from the same answers
            asked = DIMENSIONS if self.settings.one_call else (row.dimension,)
            question = judge_messages(by_key[row.conversation, row.repeat], asked)
            told = took[role_of[row.judge]]
            told["calls"] += row.tries
            told["prompt_tokens"] += row.tries * prompt_tokens(Request(question))
            told["tokens"] += row.tries * text_tokens(row.answer or "")
        return took


def _score_line(rows: Sequence[ScoreRow]) -> dict[str, Any]:
    """What the judges gave one conversation, and why they gave nothing."""
    judges: dict[str, dict[str, int | None]] = {}
    unscored: dict[str, dict[str, str]] = {}
    for row in rows:
        judges.setdefault(row.judge, {})[row.dimension] = row.score
        if row.unscored:
            unscored.setdefault(row.judge, {})[row.dimension] = row.unscored
    return {"judges": judges, "unscored": unscored}
