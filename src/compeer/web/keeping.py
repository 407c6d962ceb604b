"""Keeping conversations, for services that asked for it: one JSON object a turn, a file a day. Off unless `--keep`.

The files can be read by their owner only. Images are not kept. All else that the model read and the seeker
saw is.
"""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime
from pathlib import Path

from compeer.errors import InputError
from compeer.talk.turn import Done, Wish


class Keeper:
    """Writes turns into a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise InputError(f"cannot be written to: {error.strerror}.", file=folder, do="Give a folder.") from None

    def keep(self, answer: str, wish: Wish, done: Done) -> None:
        """Adds a turn to the day's file."""
        now = datetime.now(UTC)
        told = {
            "at": now.isoformat(timespec="seconds"),
            "id": answer,
            "conversation": wish.conversation,
            "history": [{"speaker": one.speaker, "text": one.text} for one in wish.history],
            "control": wish.control.requested(),
            "reply": done.reply,
            "turn": done.turn.model_dump() if done.turn else None,
            "risk": done.guarded.risk.level,
            "replaced": done.guarded.replaced,
            "problems": list(done.problems),
        }
        path = self._folder / f"{now:%Y-%m-%d}.jsonl"
        line = (json.dumps(told, ensure_ascii=False) + "\n").encode("utf-8", "replace")
        with open(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600), "wb") as file:
            file.write(line)
