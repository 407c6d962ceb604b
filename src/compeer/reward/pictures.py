"""The pictures of a history as a model is sent them.

A server gets them in the message itself (OpenAI's `image_url`, a file as a data URL); one whose model sees none refuses
the request, which is then told. A model in this process reads files, and says itself whether it sees.
"""

from __future__ import annotations

import base64
import mimetypes
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from compeer.models.base import TextModel
from compeer.models.cache import CachedModel


class Unseen(Exception):
    """A picture cannot be shown, and why."""


def picture_blocks(paths: Sequence[str], model: TextModel, media: str | Path = "") -> list[dict[str, Any]]:
    """The parts of a message that show the pictures; paths that are not absolute count from the folder `media`."""
    if not paths:
        return []
    sees: bool | None = getattr(model, "sees", None)
    if sees is False or isinstance(model, CachedModel):  # what keeps answers does not look at the files they are about
        raise Unseen("the history has pictures, and the judge's model cannot be shown any")
    if sees:
        return [{"type": "image", "path": path if "://" in path else str(Path(media) / path)} for path in paths]
    return [{"type": "image_url", "image_url": {"url": _address(path, Path(media))}} for path in paths]


def _address(path: str, media: Path) -> str:
    """An address as it is, and a file as a data URL."""
    if "://" in path or path.startswith("data:"):
        return path
    file = media / path
    try:
        data = base64.b64encode(file.read_bytes()).decode()
    except OSError as error:
        raise Unseen(f"the picture {file} cannot be read: {error.strerror}") from None
    return f"data:{mimetypes.guess_type(file.name)[0] or 'image/png'};base64,{data}"
