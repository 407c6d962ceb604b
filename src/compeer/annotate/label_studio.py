"""Label Studio: tasks and labels out of the store and back into it.

A task carries the whole item under `data.item`, beside the fields that Label Studio shows, so that what comes back can
be taken in again: as new items of a project, with the labels that annotators gave there. The first two of an item count
as first labels; a third settles what they differ on; more are left out, and counted. Annotators get pseudonyms.
"""

from __future__ import annotations

import json
import secrets
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from xml.sax.saxutils import quoteattr

from sqlalchemy import select

from compeer.annotate.consensus import disputed
from compeer.annotate.gather import labelled_items, with_contents
from compeer.annotate.items import NewItem, add_items, checked_content
from compeer.annotate.labels import LONGEST_SECONDS
from compeer.annotate.people import Person, add_person, people, require
from compeer.annotate.private import make_private_file
from compeer.annotate.projects import Project
from compeer.annotate.schema import ITEMS, LABELS
from compeer.annotate.store import Store
from compeer.annotate.tasks import PREFERENCE, QUESTIONS, RESPONSES, Answer, TaskKind, kept_answers, shown_answers, view
from compeer.errors import InputError
from compeer.reasoning import STEPS

_Told = tuple[str, int, dict[str, Answer]]
"""A label from there: whose, in how many seconds, and what."""


def label_config(task: TaskKind) -> str:
    """The labelling interface for Label Studio, as its XML."""
    lines = ['  <Paragraphs name="history" value="$history" layout="dialogue" nameKey="author" textKey="text"/>']
    if task == "steps":
        lines += [f'  <Text name="step_{step}" value="$step_{step}"/>' for step in STEPS]
    if RESPONSES[task]:
        lines += ['  <Text name="first" value="$first"/>', '  <Text name="second" value="$second"/>']
    for question in QUESTIONS[task]:
        values = ("first", "second", "both", "neither") if question.name == PREFERENCE else question.values
        choices = "".join(f"<Choice value={quoteattr(str(value))}/>" for value in values)
        name = quoteattr(question.name if question.name != "history" else "history_step")
        lines.append(f"  <Header value={quoteattr(question.name)}/>")
        lines.append(
            f'  <Choices name={name} toName="history" choice="single-radio" required="true">{choices}</Choices>'
        )
    return "\n".join(["<View>", *lines, "</View>"]) + "\n"


def export_tasks(store: Store, project: Project, path: Path, actor: Person | None = None) -> int:
    """Writes the real items of a project as Label Studio's tasks, with their labels, and says how many."""
    require(actor, "admin")
    if path.exists():
        raise InputError("this is there already.", file=path, do="Give another name.")
    shown = RESPONSES[project.task]
    tasks = []
    with store.read() as connection:
        real = [item for item in labelled_items(connection, project.id) if item.kind == "real"]
        for item, content, _ in with_contents(connection, real):
            annotations = [
                {"completed_by": {"email": label.pseudonym}, "lead_time": label.seconds}
                | {"result": [_result(name, value) for name, value in shown_answers(label.answers, shown).items()]}
                for label in item.labels
            ]
            tasks.append({"data": _data(project.task, content), "annotations": annotations})
    make_private_file(path)
    path.write_text(json.dumps(tasks, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    with store.write(actor.id if actor else None) as writing:
        writing.record("exported", {"project": project.id, "counts": {"tasks": len(tasks)}})
    return len(tasks)


def import_tasks(store: Store, project: Project, path: Path, actor: Person | None = None) -> Counter[str]:
    """Takes in tasks that were exported for Label Studio, with the labels given there."""
    require(actor, "admin")
    try:
        tasks = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"this cannot be read: {error}", file=path) from None
    if not isinstance(tasks, list):
        raise InputError("this is no list of tasks.", file=path, do="Export them from Label Studio as JSON.")
    items: list[NewItem] = []
    given: dict[str, list[_Told]] = {}
    for number, task in enumerate(tasks, 1):
        try:
            item = checked_content(task["data"]["item"], project.task)
            labels = [_label(annotation, project.task) for annotation in task.get("annotations", ())]
        except (AttributeError, LookupError, TypeError, ValueError, OverflowError, InputError) as error:
            do = "Take in only what was exported here for Label Studio, labelled there and exported as JSON."
            raise InputError(f"task {number} cannot be used: {error}", file=path, do=do) from None
        items.append(item)
        given[str(item.content["id"])] = labels
    counts = add_items(store, project, items, actor=actor)
    annotators = _annotators(store, [label for labels in given.values() for label in labels], items, actor)
    return counts + _add_labels(store, project, given, annotators)


def _data(task: TaskKind, content: Mapping[str, Any]) -> dict[str, Any]:
    """What Label Studio shows, and the item itself."""
    shown = view(task, content, RESPONSES[task])
    data: dict[str, Any] = {
        "item": dict(content),
        "history": [{"author": said["speaker"], "text": said["text"]} for said in shown["history"]],
    }
    for step, told in shown.get("steps", {}).items():
        decided = ", ".join(str(value) for key, value in told.items() if key != "text")
        data[f"step_{step}"] = f"{told['text']} [{decided}]"
    return data | dict(zip(("first", "second"), shown.get("responses", ()), strict=False))


def _result(name: str, value: Answer) -> dict[str, Any]:
    asked = "history_step" if name == "history" else name
    return {"from_name": asked, "to_name": "history", "type": "choices", "value": {"choices": [str(value)]}}


def _label(annotation: Mapping[str, Any], task: TaskKind) -> _Told:
    """Who gave a label, in how many seconds, and the answers."""
    by = annotation.get("completed_by", "unknown")
    who = str(by.get("email") or by.get("id")) if isinstance(by, Mapping) else str(by)
    values = {question.name: {str(value): value for value in question.values} for question in QUESTIONS[task]}
    answers: dict[str, Any] = {}
    for result in annotation["result"]:
        name = "history" if result["from_name"] == "history_step" else result["from_name"]
        choice = result["value"]["choices"][0]
        answers[name] = values.get(name, {}).get(choice, choice)
    seconds = min(max(round(annotation.get("lead_time") or 0), 0), LONGEST_SECONDS)
    return who, seconds, kept_answers(task, answers, RESPONSES[task])


def _annotators(
    store: Store, labels: Sequence[_Told], items: Sequence[NewItem], actor: Person | None
) -> dict[str, Person]:
    """A person for everyone who labelled there; one who came with an earlier file is the same person."""
    known = {person.name: person for person in people(store) if person.name}
    languages = sorted({item.language.lower().partition("-")[0] for item in items})
    found = {}
    for who in dict.fromkeys(label[0] for label in labels):
        name = f"Label Studio: {who}"[:100]
        found[who] = known.get(name) or add_person(
            store, name, secrets.token_urlsafe(24), ["annotator"], languages, actor=actor
        )
    return found


def _add_labels(
    store: Store,
    project: Project,
    given: Mapping[str, Sequence[_Told]],
    annotators: Mapping[str, Person],
) -> Counter[str]:
    counts: Counter[str] = Counter()
    wanted = {question.name for question in QUESTIONS[project.task]}
    for record, labels in given.items():
        for who, seconds, answers in labels:
            person = annotators[who]
            with store.write(person.id) as writing:
                chosen = (ITEMS.c.project == project.id, ITEMS.c.record == record)
                item = writing.connection.execute(select(ITEMS.c.id, ITEMS.c.stage).where(*chosen)).one()
                before = writing.connection.execute(select(LABELS).where(LABELS.c.item == item.id)).all()
                role, kept = "first", dict(answers)
                if len(before) == 2 and item.stage == "adjudicate":
                    differ = disputed(*(json.loads(label.answers) for label in before))
                    role, kept = "adjudication", {name: answers[name] for name in differ if name in answers}
                    whole = kept.keys() == set(differ)
                else:
                    whole = item.stage in ("fresh", "half") and kept.keys() == wanted
                if not whole or any(label.person == person.id for label in before):
                    counts["labels left out"] += 1
                    continue
                body = {"project": project.id, "role": role, "source": person.source, "answers": kept, "guideline": 1}
                writing.record(
                    "labelled", body | {"shown": list(RESPONSES[project.task]), "seconds": seconds}, item=item.id
                )
                counts["labels"] += 1
    return counts
