"""A label can be corrected for a while, and then freezes; those that were there before are frozen."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Adds when a label freezes."""
    op.add_column("labels", sa.Column("until", sa.BigInteger(), nullable=True))
    op.create_index(op.f("ix_labels_until"), "labels", ["until"], unique=False)


def downgrade() -> None:
    """Takes that away."""
    op.drop_index(op.f("ix_labels_until"), "labels")
    op.drop_column("labels", "until")
