"""The first schema of the store.

A new store gets the tables as they are today; later revisions then find their work done.
"""

from alembic import op

from compeer.annotate.schema import METADATA

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Creates all tables."""
    METADATA.create_all(op.get_bind())


def downgrade() -> None:
    """Drops all tables."""
    METADATA.drop_all(op.get_bind())
