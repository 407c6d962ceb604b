"""SAGE end to end: sentient seekers talk with the supporter, and the emotion they are left with is the score."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field

from compeer.corpora.items import line_items
from compeer.errors import InputError
from compeer.evaluate.players import Talk
from compeer.evaluate.runner import TEMPERATURE, Evaluation, RunSettings, repeat_deviation, scored_metric
from compeer.models.base import Sampling, TextModel
from compeer.simulate.emotion import HIGHEST, LOWEST, SAGE, EmotionRules, outcome_of
from compeer.simulate.emotion import update as update  # the rule of the protocol is a part of this module
from compeer.simulate.sentient import PROMPTS, SentientSeeker, emotions
from compeer.statistics import Estimate, group_weights, mean

# --- the run ----------------------------------------------------------------------------------------------------------


class SageSettings(RunSettings):
    """What a run of SAGE settles; its rounds are the rules' turns."""

    message_tokens: int = Field(default=512, ge=1, description="a seeker's longest message; its reasons may be longer")
    rules: EmotionRules = Field(default=SAGE, description="how emotion moves and when a conversation ends")


class Sage(Evaluation):
    """A run of SAGE; its scenarios are profiles."""

    protocol = "sage"
    settings: SageSettings

    def seeker(self, model: TextModel) -> SentientSeeker:
        sampling = Sampling(temperature=TEMPERATURE, max_tokens=self.settings.seeker_tokens)
        messages = sampling.model_copy(update={"max_tokens": self.settings.message_tokens})
        return SentientSeeker(model, self.settings.rules, sampling, messages)

    def prompts(self) -> dict[str, str]:
        folder = files("compeer.simulate").joinpath("prompts")
        return {name: folder.joinpath(name).read_text(encoding="utf-8") for name in PROMPTS}

    def scores(self, talks: Sequence[Talk], folder: Path) -> list[dict[str, Any]]:
        return [_score_line(talk, self.settings.rules) for talk in talks]

    def metrics(self, lines: Sequence[Mapping[str, Any]], folder: Path) -> dict[str, Any]:
        return {
            "figures": measure_sage(lines, self.seed),
            "coverage": {"final": {"scored": sum(line["final"] is not None for line in lines), "of": len(lines)}},
            "unread": {},
            "unreached": {},
        }


def _score_line(talk: Talk, rules: EmotionRules) -> dict[str, Any]:
    """The emotion turn by turn, and where it ended if the conversation came to an end."""
    felt = emotions(talk.conversation, rules)
    if talk.failed:
        return {"emotions": felt, "end": None, "final": None}
    return {"emotions": felt, "end": outcome_of(felt[-1], rules), "final": felt[-1]}


def measure_sage(lines: Sequence[Mapping[str, Any]], seed: int = 0, draws: int = 1000) -> dict[str, Any]:
    """Mean final emotion, shares of successes and failures, scored replies: by the lines of `scores.jsonl`.

    The intervals draw scenarios anew, each with all its repeats. Conversations that failed are left out and counted.
    In `unmoved` conversations no reply changed anything: where that is all of them, the seeker says nothing.
    """
    known = [line for line in lines if line["final"] is not None]
    place = {scenario: number for number, scenario in enumerate(sorted({line["scenario"] for line in known}))}
    groups = [place[line["scenario"]] for line in known]
    weights = group_weights(len(place), draws, seed)

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


# --- transcripts that somebody else made ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Rescored:
    """What a file of transcripts comes to.

    `repeated` counts the dialogues whose id was there before; `unread` says why a line could not be scored, by number.
    """

    emotion: float
    dialogues: int
    successes: int
    failures: int
    repeated: int
    unread: dict[int, str]


def rescore(path: Path, rules: EmotionRules = SAGE) -> Rescored:
    """The mean final emotion of the dialogues that can be read, the outcomes, and the lines that cannot."""
    if not path.is_file():
        raise InputError("there is no such file.", file=path, do="Give a file of transcripts, one JSON object a line.")
    emotions: list[float] = []
    ids: Counter[str] = Counter()
    unread: dict[int, str] = {}
    for item in line_items(path):
        emotion = item.what if isinstance(item, InputError) else final_emotion(item.value)
        if isinstance(item, InputError) or isinstance(emotion, str):
            unread[item.line or 0] = str(emotion)
            continue
        emotions.append(emotion)
        if isinstance(item.value.get("id"), str | int):
            ids[str(item.value["id"])] += 1
    score = mean(emotions)
    if score is None:
        first = next((f" Line {line}: {why}" for line, why in unread.items()), "")
        do = "Give a file with one JSON object a line, each with the number 'emo_point'."
        raise InputError(f"it holds no dialogue with a final emotion.{first}", file=path, do=do)
    outcomes = Counter(outcome_of(emotion, rules) for emotion in emotions)
    return Rescored(
        emotion=score,
        dialogues=len(emotions),
        successes=outcomes["success"],
        failures=outcomes["failure"],
        repeated=sum(count - 1 for count in ids.values()),
        unread=unread,
    )


def final_emotion(value: Any) -> float | str:
    """The final emotion of one transcript, or why there is none."""
    if not isinstance(value, dict):
        return "this is not a JSON object."
    if "emo_point" not in value:
        return "field 'emo_point': it is missing."
    emotion = value["emo_point"]
    if isinstance(emotion, bool) or not isinstance(emotion, int | float):
        return "field 'emo_point': it is not a number."
    if not LOWEST <= emotion <= HIGHEST:
        return f"field 'emo_point': it does not lie between {LOWEST} and {HIGHEST}."
    return emotion


def rescore_command(path: str | Path) -> str:
    """What `research/seeker/rescore.py` prints."""
    found = rescore(Path(path))
    lines = [
        f"Mean final emotion  {found.emotion:.2f}",
        f"Successes           {found.successes}",
        f"Failures            {found.failures}",
        f"Dialogues           {found.dialogues}",
        f"Not read            {len(found.unread)}",
        *(f"  line {line}: {why}" for line, why in found.unread.items()),
    ]
    if found.repeated:
        lines.append(f"Same id as before   {found.repeated} (counted like the others)")
    return "\n".join(lines)
