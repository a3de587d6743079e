"""The application's own Alembic environment; what it does for leasequeue is marked."""

from __future__ import annotations

import os
from collections.abc import Mapping

from alembic import context
from models import Base
from sqlalchemy import NullPool, create_engine, make_url

import leasequeue.schema

LEASEQUEUE_SCHEMA = os.environ.get("LEASEQUEUE_SCHEMA", "public")
url = make_url(os.environ["DATABASE_URL"]).set(drivername="postgresql+psycopg")


def include_name(name: str | None, type_: str, parent_names: Mapping[str, str | None]) -> bool:
    if type_ == "schema":
        # None is the default schema. The other one is named here only to show that its tables are left alone, too.
        return name in (None, LEASEQUEUE_SCHEMA)
    return leasequeue.schema.include_name(name, type_, parent_names)  # leasequeue: never proposes to drop its tables


options = {"target_metadata": Base.metadata, "include_schemas": True, "include_name": include_name}
if context.is_offline_mode():
    context.configure(url=url, literal_binds=True, **options)
    with context.begin_transaction():
        context.run_migrations()
else:
    with create_engine(url, poolclass=NullPool).connect() as connection:
        context.configure(connection=connection, **options)
        with context.begin_transaction():
            context.run_migrations()
