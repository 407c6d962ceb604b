"""All labels of a project, gathered by item, for figures and for export."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Row, select

from compeer.annotate.consensus import consensus
from compeer.annotate.schema import ITEMS, LABELS, PEOPLE, TEXTS
from compeer.annotate.tasks import QUESTIONS, Answer, Answers, TaskKind

AT_ONCE = 500
"""Texts that are read together."""


@dataclass(frozen=True)
class Given:
    """One label: by whom, in which role, what, when."""

    person: int
    pseudonym: str
    source: str
    role: str
    answers: Answers
    guideline: int
    shown: tuple[str, ...]
    seconds: int
    at: int
    remark: str | None
    """The id of the text."""


@dataclass(frozen=True)
class LabelledItem:
    """An item and its labels, the earliest first. `known` are the answers of a training or gold item."""

    id: int
    kind: str
    stage: str
    language: str
    author: str
    dialogue: str | None
    content: str | None
    known: Answers | None
    labels: tuple[Given, ...]

    @property
    def firsts(self) -> tuple[Given, ...]:
        """The labels of those who judged without seeing another's."""
        return tuple(label for label in self.labels if label.role == "first")

    @property
    def is_doubled(self) -> bool:
        """Whether two people have judged it, and neither can correct their label any more."""
        return len(self.firsts) == 2 and self.stage != "full"


def labelled_items(connection: Connection, project: int) -> list[LabelledItem]:
    """Every item of a project that is not deleted, in the order of their numbers, with all its labels."""
    labels: defaultdict[int, list[Given]] = defaultdict(list)
    for row in connection.execute(_LABELS.where(LABELS.c.project == project)):
        labels[row.item].append(_given(row))
    items = select(ITEMS).where(ITEMS.c.project == project, ITEMS.c.stage != "deleted").order_by(ITEMS.c.id)
    return [_labelled(row, labels[row.id]) for row in connection.execute(items)]


def labelled_item(connection: Connection, row: Row[Any]) -> LabelledItem:
    """One item, given by its row, with all its labels."""
    return _labelled(row, [_given(label) for label in connection.execute(_LABELS.where(LABELS.c.item == row.id))])


_LABELS = (
    select(LABELS, PEOPLE.c.pseudonym)
    .select_from(LABELS.join(PEOPLE, PEOPLE.c.id == LABELS.c.person))
    .order_by(LABELS.c.at, LABELS.c.person)
)


def _given(row: Row[Any]) -> Given:
    return Given(
        person=row.person,
        pseudonym=row.pseudonym,
        source=row.source,
        role=row.role,
        answers=json.loads(row.answers),
        guideline=row.guideline,
        shown=tuple(json.loads(row.shown)),
        seconds=row.seconds,
        at=row.at,
        remark=row.remark,
    )


def _labelled(row: Row[Any], labels: Sequence[Given]) -> LabelledItem:
    return LabelledItem(
        id=row.id,
        kind=row.kind,
        stage=row.stage,
        language=row.language,
        author=row.author,
        dialogue=row.dialogue,
        content=row.content,
        known=json.loads(row.answers) if row.answers else None,
        labels=tuple(labels),
    )


def agreed(item: LabelledItem, task: TaskKind) -> dict[str, Answer | None]:
    """For each question what two of the item's annotators said, or None."""
    counted = [label.answers for label in item.labels if label.role in ("first", "adjudication")]
    return consensus(counted, [question.name for question in QUESTIONS[task]])


def with_contents(
    connection: Connection, items: Sequence[LabelledItem]
) -> Iterator[tuple[LabelledItem, dict[str, Any], dict[str, str]]]:
    """Each item with what is kept of it and the remarks made on it by the ids of their texts."""
    for start in range(0, len(items), AT_ONCE):
        chosen = items[start : start + AT_ONCE]
        ids = {item.content for item in chosen} | {label.remark for item in chosen for label in item.labels}
        wanted = select(TEXTS.c.id, TEXTS.c.value).where(TEXTS.c.id.in_(ids - {None}))
        texts = dict(connection.execute(wanted).tuples().all())
        for item in chosen:
            if item.content in texts:
                made = [label.remark for label in item.labels if label.remark is not None]
                remarks = {remark: texts[remark] for remark in made if remark in texts}
                yield item, json.loads(texts[item.content]), remarks
