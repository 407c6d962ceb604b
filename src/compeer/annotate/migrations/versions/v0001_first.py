"""The first schema of the store."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Makes all tables."""
    op.create_table(
        "days",
        sa.Column("person", sa.Integer(), nullable=False),
        sa.Column("day", sa.String(length=10), nullable=False),
        sa.Column("labels", sa.Integer(), nullable=False),
        sa.Column("seconds", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("person", "day"),
    )
    op.create_table(
        "events",
        sa.Column("seq", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.Column("actor", sa.Integer(), nullable=True),
        sa.Column("kind", sa.String(length=40), nullable=False),
        sa.Column("item", sa.BigInteger(), nullable=True),
        sa.Column("body", sa.Text(), nullable=False),
        sa.Column("hash", sa.String(length=64), nullable=False),
        sa.PrimaryKeyConstraint("seq"),
    )
    op.create_index("events_item", "events", ["item", "seq"], unique=False)
    op.create_table(
        "guidelines",
        sa.Column("project", sa.Integer(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("text", sa.String(length=32), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("project", "version"),
    )
    op.create_table(
        "head",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("seq", sa.BigInteger(), nullable=False),
        sa.Column("hash", sa.String(length=64), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_table(
        "invitations",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("secret", sa.String(length=32), nullable=True),
        sa.Column("roles", sa.Text(), nullable=False),
        sa.Column("languages", sa.Text(), nullable=False),
        sa.Column("program", sa.Boolean(), nullable=False),
        sa.Column("expires", sa.BigInteger(), nullable=False),
        sa.Column("person", sa.Integer(), nullable=True),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_table(
        "items",
        sa.Column("id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("project", sa.Integer(), nullable=False),
        sa.Column("kind", sa.String(length=10), nullable=False),
        sa.Column("language", sa.String(length=20), nullable=False),
        sa.Column("crisis", sa.Boolean(), nullable=False),
        sa.Column("priority", sa.Integer(), nullable=False),
        sa.Column("author", sa.String(length=200), nullable=False),
        sa.Column("record", sa.String(length=500), nullable=True),
        sa.Column("dialogue", sa.String(length=500), nullable=True),
        sa.Column("content", sa.String(length=32), nullable=True),
        sa.Column("answers", sa.Text(), nullable=True),
        sa.Column("held", sa.String(length=10), nullable=True),
        sa.Column("stage", sa.String(length=12), nullable=False),
        sa.Column("lane", sa.String(length=300), nullable=True),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("project", "record"),
    )
    op.create_index("items_stage", "items", ["project", "stage"], unique=False)
    op.create_index("items_waiting", "items", ["lane", sa.literal_column("priority DESC"), "id"], unique=False)
    op.create_index(op.f("ix_items_dialogue"), "items", ["dialogue"], unique=False)
    op.create_table(
        "labels",
        sa.Column("item", sa.BigInteger(), nullable=False),
        sa.Column("person", sa.Integer(), nullable=False),
        sa.Column("project", sa.Integer(), nullable=False),
        sa.Column("role", sa.String(length=12), nullable=False),
        sa.Column("source", sa.String(length=10), nullable=False),
        sa.Column("answers", sa.Text(), nullable=False),
        sa.Column("remark", sa.String(length=32), nullable=True),
        sa.Column("guideline", sa.Integer(), nullable=False),
        sa.Column("shown", sa.Text(), nullable=False),
        sa.Column("seconds", sa.Integer(), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("item", "person"),
    )
    op.create_index("labels_of_person", "labels", ["person", "project", "role", "at"], unique=False)
    op.create_table(
        "lanes",
        sa.Column("key", sa.String(length=300), nullable=False),
        sa.Column("project", sa.Integer(), nullable=False),
        sa.Column("stage", sa.String(length=12), nullable=False),
        sa.Column("language", sa.String(length=20), nullable=False),
        sa.Column("crisis", sa.Boolean(), nullable=False),
        sa.Column("occupants", sa.String(length=60), nullable=False),
        sa.Column("waiting", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("key"),
    )
    op.create_index(op.f("ix_lanes_project"), "lanes", ["project"], unique=False)
    op.create_table(
        "leases",
        sa.Column("item", sa.BigInteger(), nullable=False),
        sa.Column("person", sa.Integer(), nullable=False),
        sa.Column("project", sa.Integer(), nullable=False),
        sa.Column("role", sa.String(length=12), nullable=False),
        sa.Column("expires", sa.BigInteger(), nullable=False),
        sa.Column("shown", sa.Text(), nullable=False),
        sa.Column("draft", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("item", "person"),
        sa.UniqueConstraint("person", "project"),
    )
    op.create_index(op.f("ix_leases_expires"), "leases", ["expires"], unique=False)
    op.create_table(
        "pairs",
        sa.Column("project", sa.Integer(), nullable=False),
        sa.Column("one", sa.Integer(), nullable=False),
        sa.Column("other", sa.Integer(), nullable=False),
        sa.Column("shared", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("project", "one", "other"),
    )
    op.create_table(
        "passes",
        sa.Column("person", sa.Integer(), nullable=False),
        sa.Column("item", sa.BigInteger(), nullable=False),
        sa.Column("why", sa.String(length=10), nullable=False),
        sa.Column("remark", sa.String(length=32), nullable=True),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("person", "item"),
    )
    op.create_index("passes_item", "passes", ["item"], unique=False)
    op.create_table(
        "people",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("pseudonym", sa.String(length=20), nullable=False),
        sa.Column("name", sa.String(length=200), nullable=True),
        sa.Column("secret", sa.String(length=32), nullable=True),
        sa.Column("roles", sa.Text(), nullable=False),
        sa.Column("languages", sa.Text(), nullable=False),
        sa.Column("program", sa.Boolean(), nullable=False),
        sa.Column("daily_cap", sa.Integer(), nullable=True),
        sa.Column("declines_crisis", sa.Boolean(), nullable=False),
        sa.Column("active", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("name"),
        sa.UniqueConstraint("pseudonym"),
    )
    op.create_table(
        "projects",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("task", sa.String(length=20), nullable=False),
        sa.Column("settings", sa.Text(), nullable=False),
        sa.Column("guideline", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("name"),
    )
    op.create_table(
        "sessions",
        sa.Column("token", sa.String(length=64), nullable=False),
        sa.Column("person", sa.Integer(), nullable=False),
        sa.Column("expires", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("token"),
    )
    op.create_index(op.f("ix_sessions_person"), "sessions", ["person"], unique=False)
    op.create_table(
        "texts",
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("item", sa.BigInteger(), nullable=True),
        sa.Column("person", sa.Integer(), nullable=True),
        sa.Column("salt", sa.String(length=32), nullable=False),
        sa.Column("value", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index(op.f("ix_texts_item"), "texts", ["item"], unique=False)
    op.create_index(op.f("ix_texts_person"), "texts", ["person"], unique=False)


def downgrade() -> None:
    """Takes all tables away."""
    for table in (
        "days",
        "events",
        "guidelines",
        "head",
        "invitations",
        "items",
        "labels",
        "lanes",
        "leases",
        "pairs",
        "passes",
        "people",
        "projects",
        "sessions",
        "texts",
    ):
        op.drop_table(table)
