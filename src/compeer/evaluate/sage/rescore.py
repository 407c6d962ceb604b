"""Scores transcripts that were made elsewhere: a file of the kind that SAGE released, one dialogue a line.

Of a line only `emo_point`, the emotion at the end, and `id` are needed. The score of a file is the mean of the final
emotions; successes and failures are told by the rules from the same number. A line without a final emotion on the scale
is named with its number and left out: it is neither a zero nor a failure.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from compeer.corpora.reading import line_items
from compeer.errors import InputError
from compeer.simulate.sentient.rules import HIGHEST, LOWEST, SAGE, Rules, outcome_of
from compeer.statistics import mean


@dataclass(frozen=True)
class UnreadLine:
    """A line that could not be scored, and why."""

    line: int
    why: str


@dataclass(frozen=True)
class Rescored:
    """What a file of transcripts comes to; `repeated` counts the dialogues whose id was there before."""

    emotion: float
    dialogues: int
    successes: int
    failures: int
    repeated: int
    unread: tuple[UnreadLine, ...]


def rescore(path: Path, rules: Rules = SAGE) -> Rescored:
    """The mean final emotion of the dialogues that can be read, the outcomes, and the lines that cannot."""
    if not path.is_file():
        raise InputError("there is no such file.", file=path, do="Give a file of transcripts, one JSON object a line.")
    emotions: list[float] = []
    ids: Counter[str] = Counter()
    unread: list[UnreadLine] = []
    for item in line_items(path):
        if isinstance(item, InputError):
            unread.append(UnreadLine(item.line or 0, item.what))
            continue
        emotion = final_emotion(item.value)
        if isinstance(emotion, str):
            unread.append(UnreadLine(item.line or 0, emotion))
            continue
        emotions.append(emotion)
        if isinstance(item.value.get("id"), str | int):
            ids[str(item.value["id"])] += 1
    score = mean(emotions)
    if score is None:
        first = f" Line {unread[0].line}: {unread[0].why}" if unread else ""
        raise InputError(
            f"it holds no dialogue with a final emotion.{first}",
            file=path,
            do="Give a file with one JSON object a line, each with the number 'emo_point'.",
        )
    outcomes = Counter(outcome_of(emotion, rules) for emotion in emotions)
    return Rescored(
        emotion=score,
        dialogues=len(emotions),
        successes=outcomes["success"],
        failures=outcomes["failure"],
        repeated=sum(count - 1 for count in ids.values()),
        unread=tuple(unread),
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
    """What `compeer evaluate sage rescore FILE` prints."""
    found = rescore(Path(path))
    lines = [
        f"Mean final emotion  {found.emotion:.2f}",
        f"Successes           {found.successes}",
        f"Failures            {found.failures}",
        f"Dialogues           {found.dialogues}",
        f"Not read            {len(found.unread)}",
        *(f"  line {one.line}: {one.why}" for one in found.unread),
    ]
    if found.repeated:
        lines.append(f"Same id as before   {found.repeated} (counted like the others)")
    return "\n".join(lines)
