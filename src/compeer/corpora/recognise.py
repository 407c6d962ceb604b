"""Which format a file has, from its first bytes and the keys of its first objects.

Names say little (`train.jsonl`, `val.json`), so only one thing is taken from them: that ESConv's failed dialogues are
in a file called so. A file that holds something else is no corpus, and that is no guess either way: None.
"""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any

from compeer.corpora.labels import normal
from compeer.corpora.reading import first_bytes, json_items
from compeer.errors import InputError

_LOOK_AT = 50
"""Objects; the first may be broken, and whoever counts bad dialogues still wants the others."""


def is_csv(path: Path) -> bool:
    """Whether the file opens with the header of a table of utterances."""
    header = first_bytes(path).partition(b"\n")[0]
    return b"Dialogue_ID" in header and not header.startswith((b"{", b"["))


def recognise(path: Path) -> str | None:
    """The name of the file's format, or None. A JSON array that is broken where it begins is an error."""
    if is_csv(path):
        return "mesc"
    for item in islice(json_items(path), _LOOK_AT):
        if not isinstance(item, InputError) and (name := _format_of(item.value)):
            return "failed-esconv" if name == "esconv" and "failed" in path.name.casefold() else name
    return None


def _format_of(value: Any) -> str | None:
    if not isinstance(value, dict):
        return None
    if "utterances" in value:
        return "compeer"
    if "turns" in value and "conversation_id" in value:
        return "avamerg"
    if "messages" in value:
        return "soulchat"
    dialog = value.get("dialog")
    turns = [turn for turn in dialog if isinstance(turn, dict)] if isinstance(dialog, list) else []
    if any("role" in turn for turn in turns):
        return "smile"
    speakers = {normal(turn["speaker"]) for turn in turns if isinstance(turn.get("speaker"), str)}
    if speakers & {"speaker", "listener"}:
        return "failed-esconv"
    if "emotion_type" in value:
        return "esconv"
    if "user" in speakers or any("emotion" in turn for turn in turns):
        return "mesc"
    return "esconv" if speakers & {"usr", "sys", "seeker", "supporter"} else None
