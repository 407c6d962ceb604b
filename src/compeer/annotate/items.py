"""The items of a project, and the files they come from.

Items come from SER records (`steps`), from several models' responses to the same histories (`compare`; of more than two
models every pair becomes an item), or from whole conversations (`rating`), one JSON object a line. An item is *real*,
*training* (its answers are known and told afterwards; everyone does these first) or *gold* (its answers are known and
nobody is told that it is one). Histories in which a seeker seems to be in danger are marked, so that they can be
declined.
"""

from __future__ import annotations

import itertools
import json
import secrets
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from sqlalchemy import select

from compeer.annotate.people import Person, require
from compeer.annotate.projects import Project
from compeer.annotate.schema import ITEMS
from compeer.annotate.store import Refused, Store, canonical
from compeer.annotate.tasks import QUESTIONS, RESPONSES, TaskKind, kept_answers
from compeer.dialogue import Utterance
from compeer.errors import InputError, from_validation
from compeer.io import read_json_lines
from compeer.reasoning import STEPS
from compeer.ser.record import SerRecord

ItemKind = Literal["real", "training", "gold"]
ITEM_KINDS: tuple[ItemKind, ...] = get_args(ItemKind)
InDanger = Callable[[Sequence[str]], bool]
"""Whether a seeker's messages, in order, show danger."""
AT_ONCE = 500
"""Items that one event adds."""
LONGEST_ID = 400
LONGEST_AUTHOR = 200


class _Given(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str = Field(min_length=1, max_length=LONGEST_ID)
    dialogue: str | None = Field(default=None, max_length=LONGEST_ID, description="none: the id is the dialogue's")
    language: str = Field(min_length=2, max_length=20)
    history: tuple[Utterance, ...] = Field(min_length=1)


class Outputs(_Given):
    """Several models' responses to one history; `better` is the known answer of a training or gold item."""

    responses: dict[str, str] = Field(min_length=2)
    better: str | None = Field(default=None, description="a model's name, 'both' or 'neither'")


class Conversation(_Given):
    """A whole conversation with one model, to be rated; `ratings` are known answers."""

    model: str = Field(min_length=1, max_length=200)
    ratings: dict[str, int] | None = None


@dataclass(frozen=True)
class NewItem:
    """An item before it is added: what is kept of it, and what the queue needs to know."""

    content: Mapping[str, Any]
    language: str
    author: str
    answers: Mapping[str, Any] | None
    seeker: tuple[str, ...]


def import_items(
    store: Store,
    project: Project,
    path: Path,
    kind: ItemKind = "real",
    priority: int = 0,
    actor: Person | None = None,
    in_danger: InDanger | None = None,
) -> Counter[str]:
    """Adds the items of a file; those already there are left out. Counts what was added, left out and marked.

    A file that is wrong somewhere adds nothing. `in_danger` tells whether a seeker's messages show danger; without it
    the rules and phrases of `compeer.safety` do.
    """
    require(actor, "admin")
    if kind not in ITEM_KINDS:
        raise Refused("invalid", f"there is no kind of item '{kind}'.", do=f"Known: {', '.join(ITEM_KINDS)}")
    items = list(read_items(path, project.task, known=kind != "real"))
    return add_items(store, project, items, kind, priority, actor, in_danger)


def add_items(
    store: Store,
    project: Project,
    items: Sequence[NewItem],
    kind: ItemKind = "real",
    priority: int = 0,
    actor: Person | None = None,
    in_danger: InDanger | None = None,
) -> Counter[str]:
    """Adds items in one go; those whose id is there already are left out."""
    require(actor, "admin")
    tell = in_danger or _rules_and_phrases()
    marked = [bool(tell(item.seeker)) for item in items]
    counts: Counter[str] = Counter()
    with store.write(actor.id if actor else None) as writing:
        known = set(writing.connection.execute(select(ITEMS.c.record).where(ITEMS.c.project == project.id)).scalars())
        fresh = []
        for item, crisis in zip(items, marked, strict=True):
            if item.content["id"] in known:
                counts["already there"] += 1
                continue
            known.add(item.content["id"])
            fresh.append((item, crisis))
        for start in range(0, len(fresh), AT_ONCE):
            chosen = fresh[start : start + AT_ONCE]
            # Drawn at random: a number tells nothing of what an item is. Nor does the order: the queue goes by the ids
            # of the contents, which are random too and shown to nobody (by numbers, a gold item would stand out).
            numbers = [secrets.randbits(52) for _ in chosen]
            texts = writing.keep_all(
                [(canonical(item.content), number, None) for (item, _), number in zip(chosen, numbers, strict=True)]
            )
            rows: list[dict[str, Any]] = [
                {"id": number, "kind": kind, "language": item.language, "crisis": crisis, "priority": priority}
                | {"author": item.author, "content": text, "answers": item.answers if kind != "real" else None}
                for (item, crisis), number, text in zip(chosen, numbers, texts, strict=True)
            ]
            writing.record("items_added", {"project": project.id, "items": rows})
            counts["added"] += len(rows)
            counts["marked as crisis"] += sum(crisis for _, crisis in chosen)
    return counts


def read_items(path: Path, task: TaskKind, known: bool = False) -> Iterator[NewItem]:
    """The items of a file of JSON lines; with `known` each must carry its answers. Errors name line and field."""
    if not path.is_file():
        raise InputError("there is no such file.", file=path)
    form: dict[str, type[BaseModel]] = {"steps": SerRecord, "compare": Outputs, "rating": Conversation}
    for number, value in read_json_lines(path):
        try:
            given = form[task].model_validate(value)
        except ValidationError as error:
            raise from_validation(error, file=path, line=number) from None
        try:
            items = list(_items(given))
        except ValueError as error:  # nested too deeply to be written
            raise InputError(f"this cannot be kept: {error}", file=path, line=number) from None
        for item in items:
            if fault := _fault(item):
                raise InputError(fault[1], file=path, line=number, field=fault[0])
            if known and item.answers is None:
                what = "a training or gold item needs its known answers."
                raise InputError(what, file=path, line=number, do=f"Give {_ANSWERS_IN[task]}.")
            yield item


def checked_content(content: Mapping[str, Any], task: TaskKind) -> NewItem:
    """An item from what is kept of one, as another tool gives it back; a ValueError says what does not fit."""
    json.dumps(content, ensure_ascii=False).encode()  # half a surrogate pair could be kept, but never shown
    item = _again(content, task)
    if fault := _fault(item):
        raise ValueError(": ".join(fault))
    return item


def _again(content: Mapping[str, Any], task: TaskKind) -> NewItem:
    if task == "steps":
        return _of_record(SerRecord.model_validate(content))
    if task == "rating":
        return next(iter(_items(Conversation.model_validate(content))))
    one, other = content["models"]
    responses = dict(zip((one, other), content["responses"], strict=True))
    given = {name: value for name, value in content.items() if name != "models"}
    given |= {"id": str(content["id"]).removesuffix(f"/{one}/{other}"), "responses": responses}
    return next(_of_outputs(Outputs.model_validate(given)))


_ANSWERS_IN = {"steps": "labels and a preference", "compare": "'better'", "rating": "'ratings', all seven"}


def _fault(item: NewItem) -> tuple[str, str] | None:
    """What the columns of a database cannot hold: the field, and what is wrong."""
    told = {"id": item.content["id"], "dialogue": item.content.get("dialogue") or "", "language": item.language}
    for field, value in (told | {"author": item.author}).items():
        longest = {"language": 20, "author": LONGEST_AUTHOR}.get(field, LONGEST_ID)
        if len(str(value)) > longest:
            return field, f"longer than {longest} characters."
        if "\0" in str(value):
            return field, "holds a NUL, which cannot be kept."
    return None


def _items(given: BaseModel) -> Iterable[NewItem]:
    if isinstance(given, SerRecord):
        yield _of_record(given)
    elif isinstance(given, Outputs):
        yield from _of_outputs(given)
    elif isinstance(given, Conversation):
        content = given.model_dump(mode="json", exclude={"ratings"}, exclude_defaults=True)
        answers = given.ratings
        if answers is not None:
            kept_answers("rating", answers, (), [question.name for question in QUESTIONS["rating"]])
        yield _new(given, content, given.model, answers)


def _of_record(record: SerRecord) -> NewItem:
    answers: dict[str, Any] | None = None
    if record.labels is not None and record.preference is not None:
        answers = {step: getattr(record.labels, step).value for step in STEPS}
        answers["preference"] = record.preference.value
    # What was judged before must not be seen, and is not needed: the labels of this project take its place.
    content = record.model_dump(mode="json", exclude={"labels", "preference"}, exclude_defaults=True)
    return NewItem(content, record.language, record.author, answers, _seeker(record.history))


def _of_outputs(given: Outputs) -> Iterator[NewItem]:
    for pair in itertools.combinations(given.responses, 2):
        names = dict(zip(pair, RESPONSES["compare"], strict=True)) | {"both": "both", "neither": "neither"}
        better = names.get(given.better) if given.better is not None else None
        content = given.model_dump(mode="json", exclude={"responses", "better"}, exclude_defaults=True)
        content |= {"id": "/".join((given.id, *pair)), "models": list(pair)}
        content |= {"responses": [given.responses[name] for name in pair], "dialogue": given.dialogue or given.id}
        yield _new(given, content, " / ".join(pair), {"preference": better} if better else None)


def _new(given: _Given, content: dict[str, Any], author: str, answers: Mapping[str, Any] | None) -> NewItem:
    content.setdefault("dialogue", given.id)
    return NewItem(content, given.language, author[:LONGEST_AUTHOR], answers, _seeker(given.history))


def _seeker(history: Sequence[Utterance]) -> tuple[str, ...]:
    return tuple(said.text for said in history if said.speaker == "seeker")


def _rules_and_phrases() -> InDanger:
    from compeer.safety import Detector

    detector = Detector(classifier=None)
    return lambda messages: detector.detect(messages).level == "crisis"
