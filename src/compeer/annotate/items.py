"""The items of a project, the files they come from, and what an annotator gets of them.

Items come from SER records (`steps`), from several models' responses to the same histories (`compare`; of more than two
models every pair becomes an item), or from whole conversations (`rating`), one JSON object a line. An item is *real*,
*training* (its answers are known and revealed afterwards; everyone does these first) or *gold* (its answers are known,
and nobody can tell that it is one). Histories in which a seeker seems to be in danger are marked and can be declined.
"""

import itertools
import json
import random
import secrets
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, ValidationError
from sqlalchemy import Connection, Row, select

from compeer.annotate.people import Actor, admin_writes
from compeer.annotate.projects import Project
from compeer.annotate.questions import QUESTIONS, RESPONSES, LabelQuestion, TaskKind, by_position, kept_answers
from compeer.annotate.schema import ITEMS, LABELS, TEXTS, all_rows
from compeer.annotate.store import Refused, Store, canonical, needed_row, text_of
from compeer.dialogue import Utterance
from compeer.errors import InputError, from_validation
from compeer.io import Frozen, read_json_lines
from compeer.pipeline import in_blocks
from compeer.reasoning import STEPS
from compeer.safety import Detector
from compeer.ser.record import SerRecord

ItemKind = Literal["real", "training", "gold"]
AT_ONCE = 500  # items that one event adds
LONGEST_ID = 400
LONGEST_AUTHOR = 200
_DETECTOR = Detector(classifier=None)


def _storable(text: str) -> str:
    if "\0" in text or any("\ud800" <= sign <= "\udfff" for sign in text):
        raise ValueError("holds a character that cannot be kept")
    return text


Text = Annotated[str, AfterValidator(_storable)]


class _Columns(Frozen):
    """What a database's columns take of an item."""

    id: Text = Field(max_length=LONGEST_ID)
    dialogue: Text | None = Field(max_length=LONGEST_ID)
    language: Text = Field(max_length=20)
    author: Text = Field(max_length=LONGEST_AUTHOR)


class _Source(Frozen):
    id: str = Field(min_length=1)
    dialogue: str | None = Field(default=None, description="none: the id is the dialogue's")
    language: str = Field(min_length=2)
    history: tuple[Utterance, ...] = Field(min_length=1)


class Outputs(_Source):
    """Several models' responses to one history; `better` is the known answer of a training or gold item."""

    responses: dict[str, str] = Field(min_length=2)
    better: str | None = Field(default=None, description="a model's name, 'both' or 'neither'")


class RatedConversation(_Source):
    """A whole conversation with one model, to be rated; `ratings` are known answers."""

    model: str = Field(min_length=1)
    ratings: dict[str, int] | None = None


_SOURCES: dict[TaskKind, type[SerRecord | Outputs | RatedConversation]]
_SOURCES = {"steps": SerRecord, "compare": Outputs, "rating": RatedConversation}
_KNOWN_IN = {"steps": "labels and a preference", "compare": "'better'", "rating": "'ratings', all seven"}


@dataclass(frozen=True)
class NewItem:
    """An item before it is added: what is kept of it, the known answers, and what the queue needs to know."""

    content: Mapping[str, Any]
    language: str
    author: str
    answers: Mapping[str, Any] | None = None
    crisis: bool = False


def add_items(
    store: Store,
    project: Project,
    items: Iterable[NewItem],
    kind: ItemKind = "real",
    priority: int = 0,
    actor: Actor = None,
) -> Counter[str]:
    """Adds items; those whose id is there already are left out. Counts what was added, left out and marked."""
    counts: Counter[str] = Counter()
    items = list(items)  # read before others have to wait: a file that is wrong somewhere adds nothing
    with admin_writes(store, actor) as writing:
        known = set(writing.connection.execute(select(ITEMS.c.record).where(ITEMS.c.project == project.id)).scalars())
        fresh = []
        for item in items:
            if item.content["id"] in known:
                counts["already there"] += 1
                continue
            known.add(item.content["id"])
            # Random: a number reveals nothing of what an item is. Nor does the order, which goes by the ids of the
            # contents; those are random too and sent to nobody (by numbers, a gold item would stand out).
            fresh.append((item, secrets.randbits(52)))
        for part in in_blocks(fresh, AT_ONCE):
            texts = writing.keep_all([(canonical(item.content), number, None) for item, number in part])
            shared = {"kind": kind, "priority": priority} | ({"answers": None} if kind == "real" else {})
            added = zip(part, texts, strict=True)
            rows = [vars(item) | shared | {"id": number, "content": text} for (item, number), text in added]
            writing.record("items_added", {"project": project.id, "items": rows})
            counts["added"] += len(rows)
            counts["marked as crisis"] += sum(item.crisis for item, _ in part)
    return counts


def delete_dialogue(store: Store, dialogue: str, actor: Actor = None) -> int:
    """Deletes all items of a dialogue in all projects, with labels and remarks, and returns how many they were.

    Backups and exports from before still have them, and PostgreSQL's files keep deleted rows until it has vacuumed.
    """
    with admin_writes(store, actor) as writing:
        items = [row.id for row in all_rows(writing.connection, ITEMS, dialogue=dialogue)]
        if not items:
            raise Refused("missing", "there is no such dialogue in this store.", do="Give the id its records have.")
        erased = [text.id for item in items for text in all_rows(writing.connection, TEXTS, item=item)]
        writing.record("deleted", {"items": sorted(items)}, erased=erased)
    store.after_erasing()
    return len(items)


def read_items(path: Path, task: TaskKind, known: bool = False) -> Iterator[NewItem]:
    """The items of a file of JSON lines; with `known` each must carry its answers. Errors name line and field."""
    for number, value in read_json_lines(path):
        try:
            items = list(_items(_SOURCES[task].model_validate(value)))
            for item in items:
                ids = {"id": item.content["id"], "dialogue": item.content.get("dialogue")}
                _Columns(**ids, language=item.language, author=item.author)
        except ValidationError as error:
            raise from_validation(error, file=path, line=number) from None
        except ValueError as error:  # nested too deeply to be written
            raise InputError(f"this cannot be kept: {error}", file=path, line=number) from None
        for item in items:
            if known and item.answers is None:
                what = "a training or gold item needs its known answers."
                raise InputError(what, file=path, line=number, do=f"Give {_KNOWN_IN[task]}.")
            yield item


def _items(source: SerRecord | Outputs | RatedConversation) -> Iterator[NewItem]:
    """The items of one line. What was judged before is left out: the labels of this project take its place."""
    crisis = _DETECTOR.detect([one.text for one in source.history if one.speaker == "seeker"]).level == "crisis"
    dump = source.model_dump(mode="json", exclude={"labels", "preference", "better", "ratings"}, exclude_defaults=True)
    if isinstance(source, SerRecord):
        answers: dict[str, Any] | None = None
        if source.labels is not None and source.preference is not None:
            answers = {step: getattr(source.labels, step).value for step in STEPS}
            answers["preference"] = source.preference.value
        yield NewItem(dump, source.language, source.author, answers, crisis)
    elif isinstance(source, Outputs):
        for pair in itertools.combinations(source.responses, 2):
            names = dict(zip(pair, RESPONSES["compare"], strict=True)) | {"both": "both", "neither": "neither"}
            better = names.get(source.better) if source.better is not None else None
            content = dump | {"id": "/".join((source.id, *pair)), "models": list(pair)}
            content["responses"] = [source.responses[name] for name in pair]
            content["dialogue"] = source.dialogue or source.id
            known = {"preference": better} if better else None
            yield NewItem(content, source.language, " / ".join(pair)[:LONGEST_AUTHOR], known, crisis)
    else:
        if source.ratings is not None:
            kept_answers("rating", source.ratings, (), [question.name for question in QUESTIONS["rating"]])
        content = {"dialogue": source.id} | dump
        yield NewItem(content, source.language, source.model, source.ratings, crisis)


class MediaLink(Frozen):
    """A picture, clip or recording."""

    kind: Literal["image", "video", "audio"]
    url: str


class TaskMessage(Frozen):
    """A message of the history."""

    speaker: Literal["seeker", "supporter"]
    text: str
    media: list[MediaLink]


class TaskStep(Frozen):
    """A step of the supporter's reasoning with its decisions."""

    name: str
    text: str
    decisions: dict[str, Any]


class OtherLabel(Frozen):
    """What one of two annotators answered, for the one who adjudicates."""

    answers: dict[str, Any]
    note: str | None


class OwnAnswers(OtherLabel):
    """One person's share in an item, whether they still hold it or have labelled it."""

    item: int
    project: int
    kind: Literal["first", "adjudication", "training"]
    guidelines: int = Field(description="the newest version, or the one that a label was given by")
    changeable: bool = Field(description="whether the label may still be corrected: for a while after it was given")


class Task(OwnAnswers):
    """An item in front of one person. A gold item has the form of any other."""

    task: TaskKind
    language: str
    crisis: bool = Field(description="the seeker seems to be in danger; the item may be declined")
    expires: int = Field(description="until when it is kept for this person; 0 once it is labelled")
    history: list[TaskMessage]
    steps: list[TaskStep]
    responses: list[str] = Field(description="in the random order of this person")
    questions: list[LabelQuestion]
    others: list[OtherLabel] = Field(description="for an adjudicator: the two labels, in random order")
    labelled: bool


def own_answers(connection: Connection, seat: Row[Any], now: int) -> dict[str, Any]:
    """What a person has answered; `seat` is their lease or label, which has the order of the responses."""
    held = "draft" in seat._fields
    return {
        "item": seat.item,
        "project": seat.project,
        "kind": "first" if seat.role == "gold" else seat.role,
        "answers": by_position((seat.draft or {}) if held else seat.answers, seat.shown),
        "note": None if held else text_of(connection, seat.remark),
        "changeable": held or now < (seat.until or 0),  # anything but time would reveal what others have answered
    }


def task_of(connection: Connection, project: Project, seat: Row[Any], now: int) -> Task:
    """An item for the person who has this lease or label."""
    row = needed_row(connection, ITEMS, "item", id=seat.item)
    content = json.loads(text_of(connection, row.content) or "{}")
    others = [
        OtherLabel(answers=by_position(label.answers, seat.shown), note=text_of(connection, label.remark))
        for label in (_first_labels(connection, seat.item) if seat.role == "adjudication" else ())
    ]
    random.Random(f"{seat.item}/{seat.person}").shuffle(others)
    return Task(
        **own_answers(connection, seat, now),
        task=project.task,
        language=row.language,
        crisis=row.crisis,
        expires=seat._mapping.get("expires", 0),
        guidelines=project.guideline,
        questions=[question.asked() for question in questions_of(connection, project.task, seat.item, seat.role)],
        others=others,
        labelled="draft" not in seat._fields,
        **view(project.task, seat.item, content, seat.shown),
    )


def questions_of(connection: Connection, task: TaskKind, item: int, role: str) -> tuple[LabelQuestion, ...]:
    """What somebody in this role is asked about an item; who adjudicates, only what the first labels differ on."""
    if role != "adjudication":
        return QUESTIONS[task]
    one, other = (label.answers for label in _first_labels(connection, item))
    return tuple(question for question in QUESTIONS[task] if one.get(question.name) != other.get(question.name))


def _first_labels(connection: Connection, item: int) -> Sequence[Row[Any]]:
    labels = all_rows(connection, LABELS, item=item, role="first")
    return sorted(labels, key=lambda label: (label.at, label.person))


def view(task: TaskKind, item: int, content: Mapping[str, Any], order: Sequence[str]) -> dict[str, Any]:
    """History, steps and responses as an annotator gets them: nothing reveals who wrote them, nor does a path."""
    history, steps, texts = [], [], dict[str, str]()
    for index, one in enumerate(content["history"]):
        media = [
            MediaLink(kind=media["kind"], url=f"/api/media/{item}/{index}/{number}{_fragment(media)}")
            for number, media in enumerate(one.get("media", ()))
        ]
        history.append(TaskMessage(speaker=one["speaker"], text=one["text"], media=media))
    if task == "compare":
        texts = dict(zip(RESPONSES["compare"], content["responses"], strict=True))
    elif task == "steps":
        turn = content["candidate"]
        texts = {"candidate": turn["response"], "reference": content["reference"]}
        for name in STEPS:
            decisions = {key: value for key, value in turn[name].items() if key != "text"}
            steps.append(TaskStep(name=name, text=turn[name]["text"], decisions=decisions))
    return {"history": history, "steps": steps, "responses": [texts[name] for name in order]}


def _fragment(media: Mapping[str, Any]) -> str:
    """The part of a clip that belongs to the message, as browsers understand it."""
    start, end = media.get("start"), media.get("end")
    if start is None and end is None:
        return ""
    return f"#t={start or 0:g}" + (f",{end:g}" if end is not None else "")
