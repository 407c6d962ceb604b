"""A model by what a person calls it on the command line, with its cache.

embedded                          the packaged model, in this process
runs/demo/sft/model               a folder that transformers loads, in this process
Qwen2.5-7B@http://host:8000/v1    a model behind an OpenAI-compatible server
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from pydantic import Field

from compeer.errors import InputError
from compeer.models.base import TextModel
from compeer.models.cache import AnswerCache, CachedModel
from compeer.models.embedded import SMOLLM2
from compeer.models.endpoint import CallSettings, EndpointModel, EndpointSettings


class ModelSettings(CallSettings):
    """How a model is asked; for one in this process only `batch` matters."""

    batch: int = Field(default=16, ge=1, description="requests that a model in this process works on together")


def open_model(name: str, *, settings: ModelSettings | None = None, cache: Path | None = None) -> TextModel:
    """The model that a name means: `embedded`, a folder, or `NAME@URL`; its answers are kept in `cache`, if given."""
    settings = settings or ModelSettings()
    model, at, url = name.partition("@http")
    if at:
        if not model:
            raise InputError("the model's name is missing.", field="model", do=f"Write it before the URL: NAME{name}")
        call = settings.model_dump(exclude={"batch"})
        endpoint = EndpointSettings(url=f"http{url}", model=model, **call)
        return EndpointModel(endpoint, AnswerCache(cache) if cache else None)
    if name.startswith(("http://", "https://")):
        raise InputError("the model's name is missing.", field="model", do=f"Write it before the URL: NAME@{name}")
    if name != "embedded" and not (Path(name) / "config.json").is_file():
        raise InputError(
            f"there is no model '{name}': no such folder with a config.json in it.",
            field="model",
            do="Give 'embedded', a model's folder, or NAME@http://host:8000/v1 for a model behind a server.",
        )
    from compeer.models.local import LocalModel  # torch is heavy

    local = LocalModel(name, batch_size=settings.batch)
    if cache is None:
        return local
    return CachedModel(local, AnswerCache(cache), SMOLLM2.sha256 if name == "embedded" else folder_mark(Path(name)))


def folder_mark(folder: Path) -> str:
    """Changes when the files of a model's folder do: by their names, sizes and times, not by reading gigabytes."""
    files = sorted(path for path in folder.iterdir() if path.is_file())
    told = [(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in files]
    return hashlib.sha256(repr(told).encode()).hexdigest()
