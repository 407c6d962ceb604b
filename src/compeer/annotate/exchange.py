"""Taking labels out of the store, and bringing those of Label Studio in.

`records.jsonl` holds SER records as a judge is trained on, with one label a question: what two annotators agree on. An
item without a consensus on some question is left out, and counted. `annotations.jsonl` holds every label by itself, for
all tasks, with annotators by pseudonym; `agreement.json` the metrics of the day. Only their owner can read them.

A Label Studio task carries the whole item under `data.item`, beside the fields that Label Studio displays, so that it
can come back as a new item with the labels given there. The first two labels of an item count as first labels; a third
settles what they differ on; more are left out, and counted. Annotators get pseudonyms.
"""

from __future__ import annotations

import json
import secrets
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from xml.sax.saxutils import quoteattr

from compeer.annotate.items import NewItem, add_items, checked_content, questions_of, view
from compeer.annotate.labels import LONGEST_SECONDS
from compeer.annotate.metrics import LabelledItem, labelled_items, project_metrics, with_contents
from compeer.annotate.people import Person, add_person, admin_writes, people, require
from compeer.annotate.projects import (
    QUESTIONS,
    RESPONSES,
    Answer,
    Project,
    TaskKind,
    asked,
    kept_answers,
    positional_answers,
)
from compeer.annotate.queue import freeze_all
from compeer.annotate.schema import ITEMS, LABELS, one_row
from compeer.annotate.store import Store, make_private_file, make_private_folder, needed_row
from compeer.errors import InputError
from compeer.io import write_json, write_lines
from compeer.reasoning import STEPS
from compeer.ser.record import PreferenceLabel, SerRecord, StepLabel, StepLabels, write_records

_Imported = tuple[str, int, dict[str, Answer]]
"""A label from Label Studio: whose, in how many seconds, and what."""


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
        for item, content, texts in with_contents(connection, items):
            found = item.consensus(project.task)
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


# --- Label Studio -----------------------------------------------------------------------------------------------------


def label_config(task: TaskKind) -> str:
    """The labelling interface for Label Studio, as its XML."""
    lines = ['  <Paragraphs name="history" value="$history" layout="dialogue" nameKey="author" textKey="text"/>']
    texts = [f"step_{step}" for step in STEPS] if task == "steps" else []
    texts += ["first", "second"] if RESPONSES[task] else []
    lines += [f'  <Text name="{name}" value="${name}"/>' for name in texts]
    for question in QUESTIONS[task]:
        choices = "".join(f"<Choice value={quoteattr(str(value))}/>" for value in asked(question).values)
        attributes = f'name={quoteattr(_renamed(question.name))} toName="history" choice="single-radio" required="true"'
        lines += [f"  <Header value={quoteattr(question.name)}/>", f"  <Choices {attributes}>{choices}</Choices>"]
    return "\n".join(["<View>", *lines, "</View>"]) + "\n"


def _renamed(question: str) -> str:
    """A question's name there, where `history` is the conversation."""
    return "history_step" if question == "history" else question


def export_tasks(store: Store, project: Project, path: Path, actor: Person | None = None) -> int:
    """Writes the real items of a project as Label Studio's tasks, with their labels, and returns how many."""
    require(actor, "admin")
    if path.exists():
        raise InputError("this is there already.", file=path, do="Give another name.")
    order = RESPONSES[project.task]
    tasks = []
    with store.read() as connection:
        real = labelled_items(connection, (ITEMS.c.project == project.id) & (ITEMS.c.kind == "real"))
        for item, content, _ in with_contents(connection, real):
            annotations = [
                {"completed_by": {"email": label.pseudonym}, "lead_time": label.seconds}
                | {"result": [_choice(*pair) for pair in positional_answers(label.answers, order).items()]}
                for label in item.labels
            ]
            tasks.append({"data": _data(project.task, item.row.id, content), "annotations": annotations})
    make_private_file(path)
    path.write_text(json.dumps(tasks, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    with admin_writes(store, actor) as writing:
        writing.record("exported", {"project": project.id, "counts": {"tasks": len(tasks)}})
    return len(tasks)


def _data(task: TaskKind, item: int, content: Mapping[str, Any]) -> dict[str, Any]:
    """What Label Studio displays, and the item itself."""
    found = view(task, item, content, RESPONSES[task])
    history = [{"author": message.speaker, "text": message.text} for message in found["history"]]
    data: dict[str, Any] = {"item": dict(content), "history": history}
    for step in found["steps"]:
        data[f"step_{step.name}"] = f"{step.text} [{', '.join(map(str, step.decisions.values()))}]"
    return data | dict(zip(("first", "second"), found["responses"], strict=False))


def _choice(name: str, value: Answer) -> dict[str, Any]:
    return {"from_name": _renamed(name), "to_name": "history", "type": "choices", "value": {"choices": [str(value)]}}


def import_tasks(store: Store, project: Project, path: Path, actor: Person | None = None) -> Counter[str]:
    """Adds tasks that were exported for Label Studio, with the labels given there."""
    require(actor, "admin")
    try:
        tasks = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"this cannot be read: {error}", file=path) from None
    if not isinstance(tasks, list):
        raise InputError("this is no list of tasks.", file=path, do="Export them from Label Studio as JSON.")
    items: list[NewItem] = []
    labels: list[tuple[str, _Imported]] = []
    for number, task in enumerate(tasks, 1):
        try:
            item = checked_content(task["data"]["item"], project.task)
            found = [_label(annotation, project.task) for annotation in task.get("annotations", ())]
        except (AttributeError, LookupError, TypeError, ValueError, OverflowError, InputError) as error:
            do = "Import only what was exported here for Label Studio, labelled there and exported as JSON."
            raise InputError(f"task {number} cannot be used: {error}", file=path, do=do) from None
        items.append(item)
        labels += [(str(item.content["id"]), label) for label in found]
    counts = add_items(store, project, items, actor=actor)
    # A person for everyone who labelled there; one who came with an earlier file is the same person.
    known = {person.name: person for person in people(store) if person.name}
    languages = sorted({item.language.lower().partition("-")[0] for item in items})
    for record, (who, seconds, answers) in labels:
        name = f"Label Studio: {who}"[:100]
        if name not in known:
            password = secrets.token_urlsafe(24)
            known[name] = add_person(store, name, password, ["annotator"], languages, actor=actor)
        counts[
            "labels" if _add_label(store, project, record, known[name], seconds, answers) else "labels left out"
        ] += 1
    return counts


def _label(annotation: Mapping[str, Any], task: TaskKind) -> _Imported:
    by = annotation.get("completed_by", "unknown")
    who = str(by.get("email") or by.get("id")) if isinstance(by, Mapping) else str(by)
    values = {_renamed(one.name): (one.name, {str(value): value for value in one.values}) for one in QUESTIONS[task]}
    answers: dict[str, Any] = {}
    for result in annotation["result"]:
        name, known = values.get(result["from_name"], (result["from_name"], {}))
        choice = result["value"]["choices"][0]
        answers[name] = known.get(choice, choice)
    seconds = min(max(round(annotation.get("lead_time") or 0), 0), LONGEST_SECONDS)
    return who, seconds, kept_answers(task, answers, RESPONSES[task])


def _add_label(
    store: Store, project: Project, record: str, person: Person, seconds: int, answers: Mapping[str, Answer]
) -> bool:
    """Adds a label where the item has a seat for it; returns whether it did."""
    with store.write(person.id) as writing:
        connection = writing.connection
        item = needed_row(connection, ITEMS, "item", project=project.id, record=record)
        if item.stage not in ("fresh", "half", "adjudicate") or one_row(
            connection, LABELS, item=item.id, person=person.id
        ):
            return False
        role = "adjudication" if item.stage == "adjudicate" else "first"
        wanted = [question.name for question in questions_of(connection, project.task, item.id, role)]
        kept = {name: answers[name] for name in wanted if name in answers}
        if len(kept) < len(wanted) or one_row(connection, LABELS, item=item.id, person=person.id):
            return False
        body = {"project": project.id, "role": role, "source": person.source, "answers": kept, "guideline": 1}
        body |= {"shown": list(RESPONSES[project.task]), "seconds": seconds}
        writing.record("labelled", body, item=item.id)
        return True
