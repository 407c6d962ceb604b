"""How Alembic reaches the store: by the connection that `create_store` hands over."""

from alembic import context

from compeer.annotate.schema import METADATA

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=METADATA,
    render_as_batch=True,  # SQLite cannot alter a table in place
)
with context.begin_transaction():
    context.run_migrations()
