"""The tables of an annotation store.

`events` is what happened, in order, each line chained to the one before it by a hash; nothing in it is ever changed.
`texts` holds what people may ask to have removed (dialogues, names, remarks, hashed passwords): an event only names a
text and its salted hash, so that a text can go and the chain still holds. `head` says where the chain ends, and whoever
writes holds its one row. `sessions` are logins, which may be lost. All other tables are the state that the events lead
to, written only by `apply.py`, and can be made again from them.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Index,
    Integer,
    MetaData,
    PrimaryKeyConstraint,
    String,
    Table,
    Text,
    UniqueConstraint,
)

METADATA = MetaData()

EVENTS = Table(
    "events",
    METADATA,
    Column("seq", BigInteger, primary_key=True, autoincrement=False),
    Column("at", BigInteger, nullable=False),  # milliseconds since 1970, as everywhere below
    Column("actor", Integer),
    Column("kind", String(40), nullable=False),
    Column("item", BigInteger),
    Column("body", Text, nullable=False),
    Column("hash", String(64), nullable=False),
)
Index("events_item", EVENTS.c.item, EVENTS.c.seq)
HEAD = Table(
    "head",
    METADATA,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("seq", BigInteger, nullable=False),
    Column("hash", String(64), nullable=False),
)
TEXTS = Table(
    "texts",
    METADATA,
    Column("id", String(32), primary_key=True),
    Column("item", BigInteger, index=True),
    Column("person", Integer, index=True),
    Column("salt", String(32), nullable=False),
    Column("value", Text, nullable=False),
)
SESSIONS = Table(
    "sessions",
    METADATA,
    Column("token", String(64), primary_key=True),
    Column("person", Integer, nullable=False, index=True),
    Column("expires", BigInteger, nullable=False),
)

PROJECTS = Table(
    "projects",
    METADATA,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("name", String(200), nullable=False, unique=True),
    Column("task", String(20), nullable=False),
    Column("settings", Text, nullable=False),
    Column("guideline", Integer, nullable=False),
)
GUIDELINES = Table(
    "guidelines",
    METADATA,
    Column("project", Integer, nullable=False),
    Column("version", Integer, nullable=False),
    Column("text", String(32), nullable=False),
    Column("at", BigInteger, nullable=False),
    PrimaryKeyConstraint("project", "version"),
)
PEOPLE = Table(
    "people",
    METADATA,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("pseudonym", String(20), nullable=False, unique=True),
    Column("name", String(200), unique=True),
    Column("secret", String(32)),
    Column("roles", Text, nullable=False),
    Column("languages", Text, nullable=False),
    Column("program", Boolean, nullable=False),
    Column("daily_cap", Integer),
    Column("declines_crisis", Boolean, nullable=False),
    Column("active", Boolean, nullable=False),
)
INVITATIONS = Table(
    "invitations",
    METADATA,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("secret", String(32)),
    Column("roles", Text, nullable=False),
    Column("languages", Text, nullable=False),
    Column("program", Boolean, nullable=False),
    Column("expires", BigInteger, nullable=False),
    Column("person", Integer),
)
ITEMS = Table(
    "items",
    METADATA,
    Column("id", BigInteger, primary_key=True, autoincrement=False),
    Column("project", Integer, nullable=False),
    Column("kind", String(10), nullable=False),
    Column("language", String(20), nullable=False),
    Column("crisis", Boolean, nullable=False),
    Column("priority", Integer, nullable=False),
    Column("author", String(200), nullable=False),
    Column("record", String(500)),
    Column("dialogue", String(500), index=True),
    Column("content", String(32)),
    Column("answers", Text),
    Column("held", String(10)),
    Column("stage", String(12), nullable=False),
    Column("lane", String(300)),
    UniqueConstraint("project", "record"),
)
Index("items_waiting", ITEMS.c.lane, ITEMS.c.priority.desc(), ITEMS.c.content)
Index("items_stage", ITEMS.c.project, ITEMS.c.stage)
LANES = Table(
    "lanes",
    METADATA,
    Column("key", String(300), primary_key=True),
    Column("project", Integer, nullable=False, index=True),
    Column("stage", String(12), nullable=False),
    Column("language", String(20), nullable=False),
    Column("crisis", Boolean, nullable=False),
    Column("occupants", String(60), nullable=False),
    Column("waiting", Integer, nullable=False),
)
LEASES = Table(
    "leases",
    METADATA,
    Column("item", BigInteger, nullable=False),
    Column("person", Integer, nullable=False),
    Column("project", Integer, nullable=False),
    Column("role", String(12), nullable=False),
    Column("expires", BigInteger, nullable=False, index=True),
    Column("shown", Text, nullable=False),
    Column("draft", Text),
    PrimaryKeyConstraint("item", "person"),
    UniqueConstraint("person", "project"),
)
LABELS = Table(
    "labels",
    METADATA,
    Column("item", BigInteger, nullable=False),
    Column("person", Integer, nullable=False),
    Column("project", Integer, nullable=False),
    Column("role", String(12), nullable=False),
    Column("source", String(10), nullable=False),
    Column("answers", Text, nullable=False),
    Column("remark", String(32)),
    Column("guideline", Integer, nullable=False),
    Column("shown", Text, nullable=False),
    Column("seconds", Integer, nullable=False),
    Column("at", BigInteger, nullable=False),
    Column("until", BigInteger, index=True),  # when its giver can no longer correct it; none: it is frozen
    PrimaryKeyConstraint("item", "person"),
)
Index("labels_of_person", LABELS.c.person, LABELS.c.project, LABELS.c.role, LABELS.c.at)
PASSES = Table(
    "passes",
    METADATA,
    Column("person", Integer, nullable=False),
    Column("item", BigInteger, nullable=False),
    Column("why", String(10), nullable=False),
    Column("remark", String(32)),
    Column("at", BigInteger, nullable=False),
    PrimaryKeyConstraint("person", "item"),
)
Index("passes_item", PASSES.c.item)
PAIRS = Table(
    "pairs",
    METADATA,
    Column("project", Integer, nullable=False),
    Column("one", Integer, nullable=False),
    Column("other", Integer, nullable=False),
    Column("shared", Integer, nullable=False),
    PrimaryKeyConstraint("project", "one", "other"),
)
DAYS = Table(
    "days",
    METADATA,
    Column("person", Integer, nullable=False),
    Column("day", String(10), nullable=False),
    Column("labels", Integer, nullable=False),
    Column("seconds", Integer, nullable=False),
    PrimaryKeyConstraint("person", "day"),
)

STATE = (PROJECTS, GUIDELINES, PEOPLE, INVITATIONS, ITEMS, LANES, LEASES, LABELS, PASSES, PAIRS, DAYS)
"""The tables that the events lead to."""
KEPT = (EVENTS, HEAD, TEXTS)
"""The tables that cannot be made again."""
