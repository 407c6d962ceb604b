"""SAGE end to end: sentient seekers talk with the supporter, and the emotion they are left with is the score."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from compeer.errors import InputError, from_validation
from compeer.evaluate.running import TEMPERATURE, Evaluation, RunSettings, Talk
from compeer.io import read_json_lines
from compeer.models.base import Sampling, TextModel
from compeer.simulate.agents import Said, Turning
from compeer.simulate.conversation import View
from compeer.simulate.seekers import Language, phrases
from compeer.simulate.sentient.rules import SAGE, Rules, outcome_of
from compeer.simulate.sentient.seeker import PROMPTS, SeekerProfile, SentientSeeker, emotions
from compeer.statistics import Numbers, drawn_interval, group_weights, ratio, reweighted

# --- profiles ---------------------------------------------------------------------------------------------------------


class _OwnProfile(BaseModel):
    """A profile as our files hold it; `cards/README.md` describes the fields."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str = Field(min_length=1)
    language: Language
    who: str = Field(min_length=1)
    event: str = Field(min_length=1)
    hidden_intention: str = Field(min_length=1)
    likes: tuple[str, ...] = ()
    dislikes: tuple[str, ...] = ()
    opening: str = Field(min_length=1)
    start_emotion: int = Field(ge=0, le=100, description="not used: the rules of a run fix where emotion starts")

    def profile(self) -> SeekerProfile:
        words = phrases(self.language)
        parts = [self.hidden_intention]
        for name, told in (("likes", self.likes), ("dislikes", self.dislikes)):
            if told:
                parts.append("\n".join([words[name], *(f"- {one}" for one in told)]))
        return SeekerProfile(
            id=self.id,
            person=self.who,
            scene=self.event,
            intention="\n".join(parts),
            opening=self.opening,
            language=self.language,
        )


def own_profiles() -> Path:
    """The file of our profiles, which are English."""
    return Path(str(files("compeer.simulate").joinpath("profiles", "en.jsonl")))


def read_seekers(path: Path) -> list[SeekerProfile]:
    """The profiles of a file: ours, those of SAGE and RLVER, or any with id, person, scene and intention."""
    do = "A profile needs id, person, scene and intention, or the fields that the README beside our own cards names."
    if not path.is_file():
        raise InputError("there is no such file.", file=path, do="Give a file of profiles, one JSON object a line.")
    found: dict[str, SeekerProfile] = {}
    for line, value in read_json_lines(path):
        try:
            if isinstance(value, dict) and "hidden_intention" in value:
                profile = _OwnProfile.model_validate(value).profile()
            else:
                profile = SeekerProfile.model_validate(value)
        except ValidationError as error:
            raise from_validation(error, file=path, line=line, do=do) from None
        if profile.id in found:
            raise InputError("this id was there before.", file=path, line=line, field="id", do="Give each its own.")
        found[profile.id] = profile
    if not found:
        raise InputError("there is no profile in it.", file=path, do="Give a file of profiles, one object a line.")
    return list(found.values())


# --- the run ----------------------------------------------------------------------------------------------------------


class SageSettings(RunSettings):
    """What a run of SAGE settles; its rounds are the rules' turns."""

    message_tokens: int = Field(default=512, ge=1, description="a seeker's longest message; its reasons may be longer")
    rules: Rules = Field(default=SAGE, description="how emotion moves and when a conversation ends")


class _BriefSeeker(SentientSeeker):
    """A sentient seeker whose messages may be shorter than its reasons: what is said is in every later prompt."""

    def __init__(self, model: TextModel, rules: Rules, sampling: Sampling, messages: Sampling) -> None:
        super().__init__(model, rules, sampling)
        self._messages = messages

    @property
    def described(self) -> dict[str, Any]:
        return {**super().described, "messages": self._messages.model_dump()}

    def turn(self, view: View) -> Turning:
        turning = super().turn(view)
        value = None
        while True:
            try:
                ask = turning.send(value)
            except StopIteration as done:
                said: Said = done.value
                return said
            value = yield ask if ask.grammar else replace(ask, sampling=self._messages)


class Sage(Evaluation):
    """A run of SAGE; its scenarios are profiles."""

    protocol = "sage"
    settings: SageSettings

    def seeker(self, model: TextModel) -> SentientSeeker:
        sampling = Sampling(temperature=TEMPERATURE, max_tokens=self.settings.seeker_tokens)
        messages = sampling.model_copy(update={"max_tokens": self.settings.message_tokens})
        return _BriefSeeker(model, self.settings.rules, sampling, messages)

    def prompts(self) -> dict[str, str]:
        folder = files("compeer.simulate.sentient").joinpath("prompts")
        return {name: folder.joinpath(name).read_text(encoding="utf-8") for name in PROMPTS}

    async def judge(
        self, talks: Sequence[Talk], judges: Sequence[TextModel], folder: Path, advance: Callable[[int], None]
    ) -> None:
        """SAGE has no judges: its seekers say themselves what a reply did to them."""

    def scores(self, talks: Sequence[Talk], folder: Path) -> list[dict[str, Any]]:
        return [_score_line(talk, self.settings.rules) for talk in talks]

    def figures(self, lines: Sequence[Mapping[str, Any]], folder: Path) -> dict[str, Any]:
        return {
            "figures": sage_figures(lines, self.seed),
            "coverage": {"final": {"scored": sum(line["final"] is not None for line in lines), "of": len(lines)}},
            "unread": {},
            "unreached": {},
        }

    def judges_took(self, talks: Sequence[Talk], folder: Path) -> dict[str, dict[str, int]]:
        return {}


def _score_line(talk: Talk, rules: Rules) -> dict[str, Any]:
    """The emotion turn by turn, and where it ended if the conversation came to an end."""
    felt = emotions(talk.conversation, rules)
    if talk.failed:
        return {"emotions": felt, "end": None, "final": None}
    return {"emotions": felt, "end": outcome_of(felt[-1], rules), "final": felt[-1]}


def sage_figures(lines: Sequence[Mapping[str, Any]], seed: int = 0, draws: int = 1000) -> dict[str, Any]:
    """Mean final emotion, shares of successes and failures, scored replies: by the lines of `scores.jsonl`.

    The intervals draw scenarios anew, each with all its repeats. Conversations that failed are left out and counted.
    In `unmoved` conversations no reply changed anything: where that is all of them, the seeker says nothing.
    """
    known = [line for line in lines if line["final"] is not None]
    scenarios = sorted({line["scenario"] for line in known})
    place = {scenario: number for number, scenario in enumerate(scenarios)}
    weights = group_weights(len(scenarios), draws, seed)
    counts = np.zeros(len(scenarios))
    for line in known:
        counts[place[line["scenario"]]] += 1

    def figure(value: Callable[[Mapping[str, Any]], float]) -> dict[str, Any]:
        sums = np.zeros(len(scenarios))
        for line in known:
            sums[place[line["scenario"]]] += value(line)
        drawn: Numbers = ratio(reweighted(weights, sums), reweighted(weights, counts))
        low, high = (drawn_interval(drawn[1:]) if len(scenarios) > 1 else None) or (None, None)
        score = float(drawn[0]) if known else None
        return {"score": score, "low": low, "high": high, "scored": len(known), "items": len(lines)}

    by_repeat = {
        str(repeat): {"average": float(np.mean([line["final"] for line in known if line["repeat"] == repeat]))}
        for repeat in sorted({line["repeat"] for line in known})
    }
    averages = [found["average"] for found in by_repeat.values()]
    return {
        "scenarios": len({line["scenario"] for line in lines}),
        "conversations": len(lines),
        "emotion": figure(lambda line: line["final"]),
        "success": {**figure(lambda line: line["end"] == "success"), "count": _count(known, "success")},
        "failure": {**figure(lambda line: line["end"] == "failure"), "count": _count(known, "failure")},
        "replies": figure(lambda line: len(line["emotions"]) - 1),
        "unmoved": sum(len(set(line["emotions"])) == 1 for line in known),
        "by_repeat": by_repeat,
        "repeat_deviation": float(np.std(averages, ddof=1)) if len(averages) > 1 else None,
    }


def _count(lines: Sequence[Mapping[str, Any]], end: str) -> int:
    return sum(line["end"] == end for line in lines)
