"""Taking labels out of the store.

`records.jsonl` holds SER records as a judge is trained on, with one label a question: what two annotators agree on. An
item without a consensus on some question is left out, and counted. `annotations.jsonl` holds every label by itself, for
all tasks, with annotators by pseudonym; `agreement.json` the metrics of the day. Only their owner can read them.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from compeer.annotate.metrics import LabelledItem, labelled_items, project_metrics, texts_of
from compeer.annotate.people import Person, admin_writes, require
from compeer.annotate.projects import RESPONSES, Answer, Project, TaskKind
from compeer.annotate.queue import freeze_all
from compeer.annotate.schema import ITEMS
from compeer.annotate.store import Store, make_private_folder
from compeer.errors import InputError
from compeer.io import write_json, write_lines
from compeer.reasoning import STEPS
from compeer.ser.record import PreferenceLabel, SerRecord, StepLabel, StepLabels, write_records


def export_project(store: Store, project: Project, folder: Path, actor: Person | None = None) -> Counter[str]:
    """Writes a project's labels into a folder and counts what was written and what was left out, and why."""
    require(actor, "admin")
    freeze_all(store)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError("this is there already.", file=folder, do="Remove it, or give another name.")
    if not folder.parent.is_dir():
        raise InputError("there is no such folder.", file=folder.parent, do="Make it first, or give another name.")
    make_private_folder(folder)
    counts: Counter[str] = Counter()
    annotations: list[dict[str, Any]] = []
    records: list[SerRecord] = []
    with store.read() as connection:
        items = labelled_items(connection, ITEMS.c.project == project.id)
        texts = texts_of(connection, ITEMS.c.project == project.id)
    for item in [one for one in items if one.row.content in texts]:
        content, found = json.loads(texts[item.row.content]), item.consensus(project.task)
        if item.labels:
            annotations.append(_annotation(item, content, texts, project.task))
            counts["annotated items"] += 1
        if item.row.kind != "real":
            continue
        if item.row.stage != "closed":
            counts["left out: not closed"] += 1
        elif missing := [question for question, value in found.items() if value is None]:
            counts["left out: no consensus"] += 1
            counts.update(f"no consensus on {question}" for question in missing)
        else:
            counts["with consensus"] += 1
            if project.task == "steps":
                records.append(_record(content, item, found))
    write_lines(folder / "annotations.jsonl", annotations)
    if project.task == "steps":
        write_records(folder / "records.jsonl", records)
    write_json(folder / "agreement.json", project_metrics(project, items, store.now()))
    make_private_folder(folder)
    with admin_writes(store, actor) as writing:
        writing.record("exported", {"project": project.id, "counts": counts})
    return counts


def _record(content: Mapping[str, Any], item: LabelledItem, found: Mapping[str, Answer | None]) -> SerRecord:
    """The record that an item was made of, with the labels that its annotators agree on."""
    labels = {step: StepLabel(value=found[step] is True, **_origin(item, step, found[step])) for step in STEPS}
    preference = {"value": found["preference"], **_origin(item, "preference", found["preference"])}
    both = {"labels": StepLabels(**labels), "preference": PreferenceLabel.model_validate(preference)}
    return SerRecord.model_validate(content).model_copy(update=both)


def _origin(item: LabelledItem, question: str, value: Answer | None) -> dict[str, Any]:
    """Where a consensus comes from. It is people's only if nobody who shares it is a program."""
    counted = [label for label in item.labels if label.role in ("first", "adjudication") and question in label.answers]
    sharing = [label for label in counted if label.answers[question] == value]
    others = [label.pseudonym for label in counted if label.answers[question] != value]
    how = f"{' and '.join(label.pseudonym for label in sharing)} agree"
    how += f", {others[0]} differs" if others else ""
    versions = ", ".join(str(version) for version in sorted({label.guideline for label in counted}))
    source = "human" if all(label.source == "human" for label in sharing) else "llm"
    return {"source": source, "how": f"{how}; guidelines {versions}"}


def _annotation(
    item: LabelledItem, content: Mapping[str, Any], texts: Mapping[str | None, str], task: TaskKind
) -> dict[str, Any]:
    """All labels of an item, without names."""
    row: dict[str, Any] = {"id": content["id"], "dialogue": content.get("dialogue"), "kind": item.row.kind}
    row |= {"author": item.row.author, "language": item.row.language, "stage": item.row.stage, "task": task}
    if task == "compare":
        row["models"] = dict(zip(RESPONSES[task], content["models"], strict=True))
    row["labels"] = [
        {"annotator": label.pseudonym, "source": label.source, "role": label.role, "answers": label.answers}
        | {"guidelines": label.guideline, "shown": label.shown, "seconds": label.seconds, "at": label.at}
        | {"remark": texts.get(label.remark)}
        for label in item.labels
    ]
    return row | {"consensus": item.consensus(task) if item.row.kind == "real" else item.row.answers}
