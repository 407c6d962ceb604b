"""MESC: therapy sessions of a television series, with an emotion and a strategy for each utterance and a clip to it.

The CSV has a row an utterance, in any order, and is read whole; the JSON files have a dialogue an item, and no clips.
What has no place with us (the therapist's own emotion, times, problems in other words) stays in `extra`.

The clip of a row is named by season, episode and the two times, `S01E02_00-07-25.500_00-07-31.250.mp4`, in the folder
that `media` names; `start` and `end` are the seconds in the episode.
"""

import csv
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, Field

from compeer.corpora.items import Item, Text, first_bytes
from compeer.corpora.labels import EMOTIONS, PROBLEM_TYPES, SPEAKERS, STRATEGIES, normal
from compeer.dialogue import Dialogue, Media, Utterance
from compeer.errors import InputError

_COLUMNS = ("Utterance", "Speaker", "Dialogue_ID", "Utterance_ID")
_TIME = re.compile(r"(?:(?:([0-9]{1,4}):)?([0-9]{1,4}):)?([0-9]{1,8}(?:[.,][0-9]{0,9})?)")

_Number = Annotated[int | None, Field(ge=0, le=9999), BeforeValidator(lambda given: None if given == "" else given)]


def _column(name: str) -> str:
    return "Utterance" if name == "text" else name[0].upper() + name[1:]


class _MescTurn(BaseModel, extra="allow"):
    text: Text
    speaker: str
    emotion: str = ""
    strategy: str = ""


class _Row(_MescTurn, alias_generator=_column):
    Utterance_ID: int
    Season: _Number = None
    Episode: _Number = None
    StartTime: str = ""
    EndTime: str = ""


class _MescDialogue(BaseModel, extra="allow"):
    problem_type: str | None = None
    situation: str | None = None
    dialog: list[_MescTurn] = Field(min_length=1)


def is_csv(path: Path) -> bool:
    """Whether the file opens with the header of a table of utterances."""
    header = first_bytes(path).partition(b"\n")[0]
    return b"Dialogue_ID" in header and not header.startswith((b"{", b"["))


def csv_items(path: Path) -> Iterator[Item | InputError]:
    """An item a dialogue, whose value is a tuple of its rows; the error of a row instead if it left a hole there."""
    sessions: dict[str, list[Item]] = {}
    holes: dict[str, InputError] = {}
    last, broken = None, None
    for row in _lines(path):
        if isinstance(row, InputError):  # it may belong to the dialogue of the row before it, or of the one after it
            broken = row
            if last is not None:
                holes.setdefault(last, broken)
            continue
        last = row.value["Dialogue_ID"].strip()
        sessions.setdefault(last, []).append(row)
        if broken:
            holes.setdefault(last, broken)
            broken = None
    if broken and not sessions:
        yield broken
    for position, (own, rows) in enumerate(sessions.items(), 1):
        yield holes.get(own) or Item(tuple(rows), path, position, rows[0].line)


def _lines(path: Path) -> Iterator[Item | InputError]:
    """The rows, each with the line it begins on."""
    with path.open("rb") as file:
        rows = csv.reader(_decoded(path, file))
        try:
            header = [name.strip() for name in next(rows, [])]
            if missing := [name for name in _COLUMNS if name not in header]:
                what = f"this column is missing: {missing[0]}"
                raise InputError(what, file=path, line=1, field=missing[0], do="A MESC file has it in its first line.")
            begin = rows.line_num + 1
            for cells in rows:
                line, begin = begin, rows.line_num + 1
                if not any(cell.strip() for cell in cells):
                    continue
                if len(cells) == len(header):
                    yield Item(dict(zip(header, cells, strict=True)), path, 0, line)
                else:
                    what = "the row has more or fewer cells than the header"
                    yield InputError(what, file=path, line=line, do="Mend the row; texts with commas need quotes.")
        except csv.Error as error:
            raise InputError(f"this is not CSV: {error}", file=path, line=rows.line_num, do="Mend the row.") from None


def _decoded(path: Path, lines: Iterable[bytes]) -> Iterator[str]:
    for number, line in enumerate(lines, 1):
        try:
            yield line.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            what = f"this is not UTF-8 text: {error.reason}"
            raise InputError(what, file=path, line=number, do="Save the file as UTF-8.") from None


def mesc_dialogue(item: Item) -> Dialogue:
    """A dialogue of MESC, from its CSV or its JSON."""
    if isinstance(item.value, tuple):  # the rows of a CSV
        return _from_rows(item, item.value)
    raw = item.check(_MescDialogue)
    theirs, extra = raw.problem_type or "", dict(raw.model_extra or {})
    problem = PROBLEM_TYPES["mesc"].get(normal(theirs))
    if theirs and problem != theirs:
        extra["problem_type"] = theirs
    return Dialogue(
        id=item.id("mesc"),
        language="en",
        source="mesc",
        situation=(raw.situation or "").strip() or None,
        problem=problem,
        utterances=tuple(
            Utterance(**_labels(item, turn, f"dialog.{index}.{{}}".format), text=turn.text)
            for index, turn in enumerate(raw.dialog)
        ),
        extra=extra,
    )


def _from_rows(item: Item, rows: Sequence[Item]) -> Dialogue:
    if not (own := rows[0].value["Dialogue_ID"].strip()):
        raise item.bad("this is empty", "Dialogue_ID")
    ordered: dict[int, tuple[Item, _Row]] = {}
    for line in rows:
        row = line.check(_Row)
        if row.Utterance_ID in ordered:
            raise line.bad("this number is used twice in the dialogue", "Utterance_ID")
        ordered[row.Utterance_ID] = (line, row)
    return Dialogue(
        id=item.id("mesc", own),
        language="en",
        source="mesc",
        utterances=tuple(
            Utterance(**_labels(line, row, _column), text=row.text, media=_clip(line, row, item.media))
            for _, (line, row) in sorted(ordered.items())
        ),
    )


def _labels(item: Item, turn: _MescTurn, field_of: Callable[[str], str]) -> dict[str, Any]:
    """Speaker, emotion, strategy and extra of an utterance."""
    speaker = item.label(SPEAKERS["mesc"], turn.speaker, "speaker", field_of("speaker"))
    extra: dict[str, Any] = {key: value for key, value in (turn.model_extra or {}).items() if value != ""}
    if isinstance(turn, _Row):
        clip = turn.model_dump(include={"Season", "Episode", "StartTime", "EndTime"})
        extra |= {key: value for key, value in clip.items() if value not in (None, "")}
        extra.pop("Dialogue_ID", None)
    found: dict[str, Any] = {"speaker": speaker, "extra": extra}
    if turn.emotion:
        emotion = item.label(EMOTIONS["mesc"], turn.emotion, "emotion", field_of("emotion"))
        if speaker == "seeker":
            found["emotion"] = emotion
        else:
            extra["emotion"] = turn.emotion
    if turn.strategy:
        strategy = item.label(STRATEGIES["mesc"], turn.strategy, "strategy", field_of("strategy"))
        if speaker == "supporter":
            found["strategy"] = strategy
        if turn.strategy != found.get("strategy") and normal(turn.strategy) != "undefined":
            extra["strategy"] = turn.strategy
    return found


def _clip(item: Item, row: _Row, folder: str) -> tuple[Media, ...]:
    if row.Season is None or row.Episode is None or not row.StartTime.strip() or not row.EndTime.strip():
        return ()
    start, end = (_seconds(item, getattr(row, name), name) for name in ("StartTime", "EndTime"))
    if end < start:
        raise item.bad("the clip ends before it starts", "EndTime")
    path = PurePosixPath(folder) / clip_name(row.Season, row.Episode, start, end)
    return (Media(kind="video", path=str(path), start=start, end=end),)


def clip_name(season: int, episode: int, start: float, end: float) -> str:
    """The name of a clip: season, episode and both times as hours-minutes-seconds."""
    return f"S{season:02d}E{episode:02d}_{_clock(start)}_{_clock(end)}.mp4"


def _clock(seconds: float) -> str:
    thousandths = round(seconds * 1000)
    minutes, rest = divmod(thousandths, 60_000)
    return f"{minutes // 60:02d}-{minutes % 60:02d}-{rest // 1000:02d}.{rest % 1000:03d}"


def _seconds(item: Item, text: str, field: str) -> float:
    """Seconds of `1:02:03,456`, `02:03.4` or `123.4`."""
    match = _TIME.fullmatch(text.strip())
    if not match:
        raise item.bad(f"no time: '{text[:60]}'", field, do="Write it as 00:07:25,500 or as seconds.")
    hours, minutes, seconds = match.groups()
    return int(hours or 0) * 3600 + int(minutes or 0) * 60 + float(seconds.replace(",", "."))
