"""Items in and labels out, as files over HTTP."""

from __future__ import annotations

import shutil
import tempfile
import zipfile
from pathlib import Path
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Body, Query
from starlette.background import BackgroundTask
from starlette.responses import FileResponse, Response

from compeer.annotate.exchange import export_project
from compeer.annotate.items import ItemKind, import_items
from compeer.annotate.label_studio import export_tasks, import_tasks, label_config
from compeer.annotate.projects import project_by_number
from compeer.web.description import refusals
from compeer.web.errors import Refusal
from compeer.web.workbench.access import Admin, StoreHere
from compeer.web.workbench.answers import Counts
from compeer.web.workbench.forms import ProjectNumber, WhichProject

router = APIRouter(prefix="/api", tags=["transfer"])
_FILE: dict[str, dict[str, Any]] = {"application/zip": {}, "application/json": {}, "application/x-ndjson": {}}


@router.post("/projects/{project}/items", responses=refusals(400, 401, 403, 404, 408, 409, 413))
def take_in(
    project: ProjectNumber,
    store: StoreHere,
    me: Admin,
    kind: ItemKind = "real",
    priority: Annotated[int, Query(ge=-1000, le=1000, description="items with a higher number come first")] = 0,
    format: Literal["ours", "label-studio"] = "ours",
    file: Annotated[
        bytes, Body(media_type="application/octet-stream", description="JSON lines (docs/annotate.md)")
    ] = b"",
) -> Counts:
    """Adds the items of a file, or nothing of it where it is wrong somewhere; items that are there are left out."""
    if not file:
        raise Refusal(400, "The body is empty: send the file's bytes.", code="invalid_body")
    chosen = project_by_number(store, project)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "items.jsonl"
        path.write_bytes(file)
        if format == "label-studio":
            return Counts(counts=dict(import_tasks(store, chosen, path, me)))
        return Counts(counts=dict(import_items(store, chosen, path, kind, priority, me)))


@router.get(
    "/export",
    response_class=Response,
    responses={200: {"content": _FILE, "description": "A file"}} | refusals(400, 401, 403, 404),  # type: ignore[operator]
)
def take_out(
    project: WhichProject,
    store: StoreHere,
    me: Admin,
    format: Annotated[
        Literal["ours", "records", "label-studio"],
        Query(
            description="ours: a zip of all; records: SER records alone, with the consensus; label-studio: its tasks"
        ),
    ] = "ours",
) -> Response:
    """A project's labels as a file: records with the consensus, every label by itself, the agreement."""
    chosen = project_by_number(store, project)
    if format == "records" and chosen.task != "steps":
        raise Refusal(400, "Only the task 'steps' makes records. Ask for format=ours.", field="format")
    folder = Path(tempfile.mkdtemp(prefix="compeer-export-"))
    try:
        if format == "label-studio":
            made, kind = folder / f"project-{project}-label-studio.zip", "application/zip"
            export_tasks(store, chosen, folder / "tasks.json", me)
            (folder / "interface.xml").write_text(label_config(chosen.task), encoding="utf-8")
            _zip(made, [folder / "tasks.json", folder / "interface.xml"])
        else:
            export_project(store, chosen, folder / "out", me)
            made, kind = folder / f"project-{project}.zip", "application/zip"
            if format == "records":
                made, kind = folder / "out" / "records.jsonl", "application/x-ndjson"
            else:
                _zip(made, sorted((folder / "out").iterdir()))
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    name = made.name if format != "records" else f"project-{project}-records.jsonl"
    return FileResponse(
        made, media_type=kind, filename=name, background=BackgroundTask(shutil.rmtree, folder, ignore_errors=True)
    )


def _zip(path: Path, files: list[Path]) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in files:
            archive.write(file, file.name)
