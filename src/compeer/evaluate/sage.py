"""SAGE end to end: sentient seekers talk with the supporter, and the emotion they are left with is the score."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from pydantic import Field

from compeer.evaluate.players import Part, Talk
from compeer.evaluate.runner import TEMPERATURE, Evaluation, RunSettings, repeat_deviation, scored_metric
from compeer.models.base import Sampling, TextModel
from compeer.simulate.agents import prompt_file
from compeer.simulate.emotion import SAGE, EmotionRules, outcome_of
from compeer.simulate.emotion import update as update  # the rule of the protocol is a part of this module
from compeer.simulate.sentient import PROMPTS, SentientSeeker, emotions
from compeer.statistics import Estimate, group_weights


class SageSettings(RunSettings):
    """What a run of SAGE settles; its rounds are the rules' turns."""

    message_tokens: int = Field(default=512, ge=1, description="a seeker's longest message; its reasons may be longer")
    rules: EmotionRules = Field(default=SAGE, description="how emotion moves and when a conversation ends")


class Sage(Evaluation):
    """A run of SAGE; its scenarios are profiles."""

    protocol, form = "sage", SageSettings
    longest: ClassVar[Mapping[str, Part]] = {"seeker_tokens": "sentient seeker", "message_tokens": "seeker"}
    settings: SageSettings

    def seeker(self, model: TextModel) -> SentientSeeker:
        sampling = Sampling(temperature=TEMPERATURE, max_tokens=self.settings.seeker_tokens)
        messages = sampling.model_copy(update={"max_tokens": self.settings.message_tokens})
        return SentientSeeker(model, self.settings.rules, sampling, messages)

    def prompts(self) -> dict[str, str]:
        return {name: prompt_file(name) for name in PROMPTS}

    def scores(self, talks: Sequence[Talk], folder: Path) -> list[dict[str, Any]]:
        """The emotion turn by turn, and where it ended if the conversation came to an end."""
        rules, found = self.settings.rules, []
        for talk in talks:
            felt = emotions(talk.conversation, rules)
            end, final = (None, None) if talk.failed else (outcome_of(felt[-1], rules), felt[-1])
            found.append({"emotions": felt, "end": end, "final": final})
        return found

    def metrics(self, lines: Sequence[Mapping[str, Any]], folder: Path) -> dict[str, Any]:
        return {
            "figures": measure_sage(lines, self.seed),
            "coverage": {"final": {"scored": sum(line["final"] is not None for line in lines), "of": len(lines)}},
            "unread": {},
            "unreached": {},
        }


def measure_sage(lines: Sequence[Mapping[str, Any]], seed: int = 0, repeats: int = 1000) -> dict[str, Any]:
    """Mean final emotion, shares of successes and failures, scored replies: by the lines of `scores.jsonl`.

    The intervals resample scenarios, each with all its repeats. Conversations that failed are left out and counted.
    In `unmoved` conversations no reply changed anything: where that is all of them, the seeker says nothing.
    """
    known = [line for line in lines if line["final"] is not None]
    index_of = {scenario: number for number, scenario in enumerate(sorted({line["scenario"] for line in known}))}
    groups = [index_of[line["scenario"]] for line in known]
    weights = group_weights(len(index_of), repeats, seed)

    def metric(value: Callable[[Mapping[str, Any]], float]) -> dict[str, Any]:
        found = Estimate.of_groups([value(line) for line in known], groups, weights, fewest=2)
        return scored_metric(found, len(known), len(lines))

    def outcome(name: str) -> dict[str, Any]:
        ended = metric(lambda line: line["end"] == name)
        return {**ended, "count": sum(line["end"] == name for line in known)}

    by_repeat = {
        str(repeat): {"average": float(np.mean([line["final"] for line in known if line["repeat"] == repeat]))}
        for repeat in sorted({line["repeat"] for line in known})
    }
    return {
        "scenarios": len({line["scenario"] for line in lines}),
        "conversations": len(lines),
        "emotion": metric(lambda line: line["final"]),
        "success": outcome("success"),
        "failure": outcome("failure"),
        "replies": metric(lambda line: len(line["emotions"]) - 1),
        "unmoved": sum(len(set(line["emotions"])) == 1 for line in known),
        "by_repeat": by_repeat,
        "repeat_deviation": repeat_deviation(by_repeat),
    }
