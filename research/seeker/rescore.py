"""Mean final emotion, successes and failures of SAGE transcripts that somebody else made.

python research/seeker/rescore.py transcripts.jsonl
"""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from research.command import run_command

from compeer.corpora.items import line_items
from compeer.errors import InputError
from compeer.simulate.emotion import HIGHEST, LOWEST, SAGE, EmotionRules, outcome_of
from compeer.statistics import mean


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
    """What is printed of a file."""
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


def main(transcripts: Annotated[Path, typer.Argument(help="Transcripts of the released kind, one a line.")]) -> None:
    """Score transcripts again by their final emotions."""
    typer.echo(rescore_command(transcripts))


if __name__ == "__main__":
    run_command(main)
