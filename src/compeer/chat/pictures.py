"""Images in a request: looked at with suspicion, made small, and kept as files only as long as the turn takes.

Only data URLs are taken: nothing is fetched, so that nobody can make the server call addresses for them. An image is
decoded, shrunk and written anew: whatever else its file held, such as where it was taken, stays behind, and its name is
never looked at.
"""

from __future__ import annotations

import base64
import binascii
import re
import warnings
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path

from compeer.web.errors import Refusal

MOST_IMAGES = 4
"""Of more the newest are looked at."""
LARGEST_IMAGE = 2**22
"""Bytes of one image."""
MOST_PIXELS = 25_000_000
LONGEST_SIDE = 1024
"""Pixels; no model here looks at more."""
_FORMATS = ("PNG", "JPEG", "WEBP", "GIF")
_DATA_URL = re.compile(r"data:image/[a-z.+-]{1,20};base64,", re.IGNORECASE)


def decoded(url: str, field: str) -> bytes:
    """The bytes in a data URL."""
    head = _DATA_URL.match(url[:60])
    if head is None:
        what = "Send the image itself, as data:image/png;base64,…: addresses are not fetched."
        raise Refusal(400, what, field=field, code="image_not_inline")
    if len(url) > 2 * LARGEST_IMAGE:
        raise _too_large(field)
    try:
        found = base64.b64decode(url[head.end() :], validate=True)
    except (binascii.Error, ValueError):
        raise Refusal(400, "The image is not valid base64.", field=field, code="image_unreadable") from None
    if len(found) > LARGEST_IMAGE:
        raise _too_large(field)
    return found


def write_picture(data: bytes, path: Path, field: str) -> None:
    """Writes an image as a small PNG; refuses what is no image, or too large to be unpacked."""
    from PIL import Image, ImageOps

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(BytesIO(data), formats=_FORMATS) as image:
                if image.width * image.height > MOST_PIXELS:
                    raise _too_large(field)
                image.draft("RGB", (LONGEST_SIDE, LONGEST_SIDE))
                small = ImageOps.exif_transpose(image).convert("RGB")
                small.thumbnail((LONGEST_SIDE, LONGEST_SIDE))
        small.info.clear()
        small.save(path, "PNG")
    except Refusal:
        raise
    except (Image.DecompressionBombWarning, Image.DecompressionBombError):
        raise _too_large(field) from None
    except Exception:  # a broken file makes Pillow raise whatever its decoders do
        what = f"The image cannot be read. Send one of: {', '.join(_FORMATS)}."
        raise Refusal(400, what, field=field, code="image_unreadable") from None


def write_pictures(images: Sequence[tuple[str, bytes]], folder: Path) -> list[Path | Refusal]:
    """Writes images, each with the field it came in, into a folder; a refusal stands for one that cannot be."""
    return [_written(data, folder / f"{number}.png", field) for number, (field, data) in enumerate(images)]


def _written(data: bytes, path: Path, field: str) -> Path | Refusal:
    try:
        write_picture(data, path, field)
    except Refusal as refusal:
        return refusal
    return path


def _too_large(field: str) -> Refusal:
    what = f"The image is too large: at most {LARGEST_IMAGE:,} bytes and {MOST_PIXELS:,} pixels."
    return Refusal(400, what, field=field, code="image_too_large")
