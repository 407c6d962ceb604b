"""A label can be corrected for a while and then freezes; those from before are frozen.

Items wait in the order of their contents' ids, which nobody sees, and no longer in that of their numbers.
"""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Adds when a label freezes, and orders the queue."""
    if any(column["name"] == "until" for column in sa.inspect(op.get_bind()).get_columns("labels")):
        return  # a new store
    op.add_column("labels", sa.Column("until", sa.BigInteger(), nullable=True))
    op.create_index(op.f("ix_labels_until"), "labels", ["until"], unique=False)
    _order_by("content")


def downgrade() -> None:
    """Takes that away."""
    _order_by("id")
    op.drop_index(op.f("ix_labels_until"), "labels")
    op.drop_column("labels", "until")


def _order_by(column: str) -> None:
    op.drop_index("items_waiting", "items")
    op.create_index("items_waiting", "items", ["lane", sa.literal_column("priority DESC"), column], unique=False)
