"""The pages' own files, from the package: read once, found by their exact names only, so that no path leads out."""

from __future__ import annotations

import mimetypes
from importlib.resources import files
from importlib.resources.abc import Traversable

from starlette.responses import Response

from compeer.web.errors import Refusal


class Files:
    """All files of the pages by name: the shared ones, and below a folder's name those of another package."""

    def __init__(self, **packages: str) -> None:
        self._found = dict(_below(files("compeer.web").joinpath("pages"), ""))
        for folder, package in packages.items():
            self._found |= _below(files(package).joinpath("pages"), f"{folder}/")

    def text(self, name: str) -> str:
        """A file of the package as text."""
        return self._found[name].decode()

    def response(self, name: str) -> Response:
        """A file as an answer; browsers ask anew each time, so that page and server always fit."""
        if name not in self._found:
            raise Refusal(404, "There is no such file.")
        kind = mimetypes.guess_type(name)[0] or "application/octet-stream"
        return Response(self._found[name], media_type=kind, headers={"Cache-Control": "no-cache"})


def _below(folder: Traversable, before: str) -> list[tuple[str, bytes]]:
    found = []
    for one in folder.iterdir():
        found += _below(one, f"{before}{one.name}/") if one.is_dir() else [(before + one.name, one.read_bytes())]
    return found
