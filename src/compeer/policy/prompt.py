"""What a supporter is asked: its task, what an operator wants of it, and what was said so far.

Earlier reasoning is not part of it: a history holds utterances alone. A supporter that sees gets the pictures of an
utterance inside its line, before the words.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from compeer.dialogue import Utterance, transcript
from compeer.models import Message
from compeer.policy.control import Control, instructions


@cache
def _task() -> str:
    return files("compeer.policy").joinpath("prompts", "supporter.txt").read_text(encoding="utf-8").strip()


def supporter_prompt(
    history: Sequence[Utterance], last: int | None = None, control: Control | None = None, *, images: bool = False
) -> list[Message]:
    """The messages that ask for the next supporter turn; `last` limits the history to that many utterances.

    What a `control` asks for stands after the task. With `images`, for models that see, the pictures of the utterances
    that are shown stand where they belong; a history without any is plain text either way.
    """
    wanted = instructions(control) if control else ""
    shown = history[-last:] if last is not None else history
    said = _with_pictures(shown) if images and pictures_of(shown) else transcript(shown)
    return [{"role": "system", "content": f"{_task()} {wanted}".strip()}, {"role": "user", "content": said}]


def _with_pictures(history: Sequence[Utterance]) -> list[dict[str, Any]]:
    """The transcript cut into blocks, with each picture behind its speaker's name."""
    blocks: list[dict[str, Any]] = []
    text = ""
    for utterance in history:
        speaker, colon, words = transcript([utterance]).partition(":")
        text += ("\n" if text or blocks else "") + speaker + colon
        for path in pictures_of([utterance]):
            if text:
                blocks.append({"type": "text", "text": text})
            blocks.append({"type": "image", "url" if "://" in path else "path": path})
            text = ""
        text += words
    return [*blocks, {"type": "text", "text": text}] if text else blocks


def pictures_of(history: Sequence[Utterance]) -> list[str]:
    """The pictures of a history, by path or address, in their order."""
    return [media.path for utterance in history for media in utterance.media if media.kind == "image"]


def with_whole_paths(history: Sequence[Utterance], folder: str | Path) -> tuple[Utterance, ...]:
    """The history with paths that count from the folder made whole; addresses stay as they are."""
    whole = Path(folder).absolute()

    def placed(utterance: Utterance) -> Utterance:
        media = tuple(
            one if "://" in one.path else one.model_copy(update={"path": str(whole / one.path)})
            for one in utterance.media
        )
        return utterance.model_copy(update={"media": media}) if media else utterance

    return tuple(placed(utterance) for utterance in history)
