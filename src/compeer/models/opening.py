"""A model by what a person calls it on the command line, with its cache.

supporter                         the packaged supporter, trained, in this process
embedded                          the packaged model as it is, in this process
qwen-1.5b                         a base of the catalogue, once `compeer models get` has put it there, in this process
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
from compeer.models.endpoint import CallSettings, EndpointModel, EndpointSettings
from compeer.models.shipped import packaged_mark


class ModelSettings(CallSettings):
    """How a model is asked; for one in this process only `batch` matters."""

    batch: int = Field(default=16, ge=1, description="requests that a model in this process works on together")


def open_model(name: str, *, settings: ModelSettings | None = None, cache: Path | None = None) -> TextModel:
    """The model that a name means: a packaged one, a folder, or `NAME@URL`; its answers go to `cache`, if given."""
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
    if packaged_mark(name) is None and not (Path(name) / "config.json").is_file():
        raise InputError(
            f"there is no model '{name}': no such folder with a config.json in it.",
            field="model",
            do="Give 'supporter', 'embedded', a base's name (compeer models list), a model's folder, or "
            "NAME@http://host:8000/v1 for one behind a server.",
        )
    from compeer.models.local import LocalModel  # torch is heavy

    local = LocalModel(name, batch_size=settings.batch)
    if cache is None:
        return local
    return CachedModel(local, AnswerCache(cache), packaged_mark(name) or folder_mark(Path(name)))


def folder_mark(folder: Path) -> str:
    """Changes when the files of a model's folder do: by their names, sizes and times, not by reading gigabytes."""
    files = sorted(path for path in folder.iterdir() if path.is_file())
    told = [(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in files]
    return hashlib.sha256(repr(told).encode()).hexdigest()
