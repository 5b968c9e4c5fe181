"""The environment in which alembic runs migrations; `darksight_service.store.migrate` passes the connection."""

from __future__ import annotations

from alembic import context
from darksight_service.store.migrate import is_compared
from darksight_service.store.tables import metadata
from sqlalchemy import Connection


def migrate(connection: Connection) -> None:
    """Run the revisions asked for."""
    is_postgresql = connection.dialect.name == "postgresql"
    context.configure(
        connection=connection,
        target_metadata=metadata,
        include_name=is_compared,
        compare_type=True,
        render_as_batch=not is_postgresql,
        transactional_ddl=True,
        transaction_per_migration=is_postgresql,
    )
    # On SQLite the caller has begun an exclusive transaction, and this is part of it.
    with context.begin_transaction():
        context.run_migrations()


migrate(context.config.attributes["connection"])
