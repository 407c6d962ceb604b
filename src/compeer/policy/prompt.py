"""What a supporter is asked: its task, and what was said so far. Earlier reasoning is not part of it."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files

from compeer.dialogue import Utterance, transcript
from compeer.models import Message


def supporter_prompt(history: Sequence[Utterance], last: int | None = None) -> list[Message]:
    """The messages that ask for the next supporter turn; `last` limits the history to that many utterances."""
    task = files("compeer.policy").joinpath("prompts", "supporter.txt").read_text(encoding="utf-8").strip()
    return [{"role": "system", "content": task}, {"role": "user", "content": transcript(history, last)}]
