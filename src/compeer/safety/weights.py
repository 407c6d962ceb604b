"""Files of learnt weights: arrays under a name, compressed, with a hash that is checked before anything is used."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path

import numpy as np
import numpy.typing as npt

from compeer.errors import InputError

Arrays = dict[str, npt.NDArray[np.generic]]


def read_weights(name: str, folder: Path | None = None) -> Arrays:
    """The arrays of a packaged file, or of one in the folder given."""
    place = folder if folder is not None else files("compeer.safety").joinpath("weights")
    try:
        data = place.joinpath(f"{name}.npz").read_bytes()
        told = place.joinpath(f"{name}.sha256").read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"the weights cannot be read: {error}", file=name, do="Install the package again.") from None
    if hashlib.sha256(data).hexdigest() != told:
        raise InputError(
            "these are not the weights we know: their hash differs.", file=name, do="Install the package again."
        )
    with np.load(io.BytesIO(data), allow_pickle=False) as stored:
        return {key: stored[key] for key in stored.files}


def write_weights(name: str, arrays: Mapping[str, npt.NDArray[np.generic]], folder: Path) -> int:
    """Writes the arrays and their hash; answers with the file's size. The same arrays give the same bytes."""
    buffer = io.BytesIO()
    np.savez_compressed(buffer, allow_pickle=False, **{key: np.asarray(arrays[key]) for key in sorted(arrays)})
    (folder / f"{name}.npz").write_bytes(buffer.getvalue())
    (folder / f"{name}.sha256").write_text(hashlib.sha256(buffer.getvalue()).hexdigest() + "\n", "utf-8")
    return len(buffer.getvalue())
