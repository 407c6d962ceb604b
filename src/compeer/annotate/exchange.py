"""Taking labels out of the store.

`records.jsonl` holds SER records as a judge is trained on, with one label a question: what two annotators said. An item
that lacks a consensus on any question is left out, and counted. `annotations.jsonl` holds every label by itself, for
all tasks, with annotators by pseudonym; `agreement.json` the figures of the day. Only their owner can read them.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from compeer.annotate.dashboard import figures
from compeer.annotate.gather import LabelledItem, agreed, labelled_items, with_contents
from compeer.annotate.people import Person, require
from compeer.annotate.private import make_private_folder
from compeer.annotate.projects import Project
from compeer.annotate.queue import freeze_all
from compeer.annotate.store import Store
from compeer.annotate.tasks import Answer
from compeer.errors import InputError
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
    records: list[SerRecord] = []
    unfinished = folder / "annotations.jsonl.unfinished"
    with store.read() as connection, unfinished.open("w", encoding="utf-8") as file:
        items = labelled_items(connection, project.id)
        for item, content, remarks in with_contents(connection, items):
            if item.labels:
                file.write(json.dumps(_annotation(item, content, remarks, project), ensure_ascii=False) + "\n")
                counts["annotated items"] += 1
            if item.kind != "real":
                continue
            if item.stage != "closed":
                counts["left out: not closed"] += 1
                continue
            found = agreed(item, project.task)
            if missing := [question for question, value in found.items() if value is None]:
                counts["left out: no consensus"] += 1
                counts.update(f"no consensus on {question}" for question in missing)
                continue
            counts["with consensus"] += 1
            if project.task == "steps":
                records.append(labelled_record(content, item, found))
    os.replace(unfinished, folder / "annotations.jsonl")
    if project.task == "steps":
        write_records(folder / "records.jsonl", records)
    told = json.dumps(figures(project, items, store.now()), indent=1, ensure_ascii=False)
    (folder / "agreement.json").write_text(told + "\n", encoding="utf-8")
    make_private_folder(folder)
    with store.write(actor.id if actor else None) as writing:
        writing.record("exported", {"project": project.id, "counts": counts})
    return counts


def labelled_record(content: Mapping[str, Any], item: LabelledItem, found: Mapping[str, Answer | None]) -> SerRecord:
    """The record that an item was made of, with the labels that its annotators agreed on."""
    labels = {step: StepLabel(value=found[step] is True, **_origin(item, step, found[step])) for step in STEPS}
    preference = {"value": found["preference"], **_origin(item, "preference", found["preference"])}
    return SerRecord.model_validate(content).model_copy(
        update={
            "labels": StepLabels(**labels),
            "preference": PreferenceLabel.model_validate(preference),
        }
    )


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
    item: LabelledItem, content: Mapping[str, Any], remarks: Mapping[str, str], project: Project
) -> dict[str, Any]:
    """All labels of an item, without names."""
    told: dict[str, Any] = {"id": content["id"], "dialogue": content.get("dialogue"), "kind": item.kind}
    told |= {"author": item.author, "language": item.language, "stage": item.stage, "task": project.task}
    if project.task == "compare":
        told["models"] = dict(zip(("one", "other"), content["models"], strict=True))
    labels = [
        {"annotator": label.pseudonym, "source": label.source, "role": label.role, "answers": label.answers}
        | {"guidelines": label.guideline, "shown": label.shown, "seconds": label.seconds, "at": label.at}
        | {"remark": remarks.get(label.remark) if label.remark else None}
        for label in item.labels
    ]
    return told | {"labels": labels, "consensus": agreed(item, project.task) if item.kind == "real" else item.known}
