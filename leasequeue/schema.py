"""The tables of leasequeue as versions, for a host application's own Alembic history and for test suites.

In a revision of the host::

    import leasequeue.schema

    def upgrade() -> None:
        leasequeue.schema.upgrade(op, since=0, to=1, schema="public")

    def downgrade() -> None:
        leasequeue.schema.downgrade(op, since=1, to=0, schema="public")

and in its ``env.py``, so that ``alembic revision --autogenerate`` and ``alembic check`` leave the tables alone::

    context.configure(..., include_name=leasequeue.schema.include_name)

The statements of a released version never change: a revision that names its numbers does the same for ever. Without an
Alembic history of your own, run ``leasequeue migrate``. Use one of the two for a schema, not both.

Pure except :func:`install`; safe to call from any thread.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Protocol

import psycopg
from psycopg.rows import tuple_row
from sqlalchemy import text

from leasequeue.db import migration
from leasequeue.db.literal import Script, literal
from leasequeue.db.tables import tables
from leasequeue.db.version import LINK_PROBE, PROBE, VERSION, check, parse
from leasequeue.errors import ConfigurationError

if TYPE_CHECKING:
    from sqlalchemy import Connection
    from sqlalchemy.orm import Session

__all__ = ["VERSION", "downgrade", "include_name", "install", "statements", "upgrade"]


class Op(Protocol):
    """What is used of Alembic's ``op``."""

    def get_context(self) -> Any: ...
    def execute(self, sqltext: Any) -> None: ...


def upgrade(op: Op, *, since: int, to: int, schema: str) -> None:
    """Bring the tables from one version to a later one, inside a revision of the host; offline (``--sql``) too.

    One statement per ``op.execute``, in the transaction that Alembic opened. New tables lock nothing that is in use.

    Args:
        op: Alembic's ``op``.
        since: the version that the schema has now; 0 where there are no tables.
        to: the version to reach.
        schema: an existing schema; the unquoted name.

    Raises:
        ConfigurationError: the numbers are not of known versions, or do not go upwards.
    """
    if since > to:
        raise ConfigurationError(f"upgrade(since={since}, to={to}) goes downwards: call leasequeue.schema.downgrade")
    _execute(op, statements(since, to, schema))


def downgrade(op: Op, *, since: int, to: int, schema: str) -> None:
    """Bring the tables back to an earlier version; to 0 drops them with all that is in them and leaves no trace.

    Takes ACCESS EXCLUSIVE locks on the tables that it drops: stop workers first.

    Args:
        op: Alembic's ``op``.
        since: the version that the schema has now.
        to: the version to reach; 0 for no tables.
        schema: the unquoted name.

    Raises:
        ConfigurationError: the numbers are not of known versions, or do not go downwards.
    """
    if since < to:
        raise ConfigurationError(f"downgrade(since={since}, to={to}) goes upwards: call leasequeue.schema.upgrade")
    _execute(op, statements(since, to, schema))


def _execute(op: Op, texts: list[str]) -> None:
    form = Script if op.get_context().as_sql else literal
    for each in texts:
        op.execute(form(each))


def statements(since: int, to: int, schema: str) -> list[str]:
    """The statements from one version to another, one each and without a final semicolon, for tools other than Alembic.

    Args:
        since: the version that the schema has now; 0 where there are no tables.
        to: the version to reach; below ``since`` for the way back.
        schema: the unquoted name; the statements name it, quoted.

    Raises:
        ConfigurationError: a number is not of a known version, or the name cannot be one of a schema.
    """
    for number in (since, to):
        if type(number) is not int or not 0 <= number <= VERSION:
            raise ConfigurationError(
                f"leasequeue has no schema version {number!r} (known: 0, which is no tables, to {VERSION}); "
                f"a later one needs a later release of the package"
            )
    if not schema or "\0" in schema:
        raise ConfigurationError(f'the schema is named {schema!r}: give the name of an existing one, such as "public"')
    return migration.ddl(since, to, schema)


def install(conn: Connection | Session | psycopg.Connection[Any], schema: str = "public") -> None:
    """Create the tables where they are missing, for suites that make theirs with ``metadata.create_all``.

    Idempotent, one run at a time. Runs in the caller's transaction and does not commit it; a psycopg connection in
    autocommit gets a transaction for it. In production use a migration instead.

    Args:
        conn: a SQLAlchemy Connection or Session, or a psycopg connection.
        schema: an existing schema.

    Raises:
        SchemaMismatch: there are tables of a version that this code cannot use.
    """
    if isinstance(conn, psycopg.Connection):
        # Our own row factory: that of the connection is the caller's.
        with conn.transaction() if conn.autocommit else nullcontext(), conn.cursor(row_factory=tuple_row) as cursor:
            row = cursor.execute(LINK_PROBE, {"schema": schema}).fetchone()
            for each in _missing(parse(row[0] if row else None), schema):
                cursor.execute(each.encode())
        return
    found = parse(conn.execute(text(PROBE), {"schema": schema}).scalar_one())
    for each in _missing(found, schema):
        conn.execute(literal(each))


def _missing(found: int | None, schema: str) -> list[str]:
    if found is not None and found >= VERSION:
        check(found, schema)
        return []
    return statements(found or 0, VERSION, schema)


def include_name(name: str | None, type_: str, parent_names: Mapping[str, str | None]) -> bool:
    """Alembic's ``include_name`` hook: False for what is ours, True for all else.

    Exact names only: a host's own ``leasequeue_report`` is seen as ever. Combine it with a rule of your own by ``and``.

    Args:
        name: the name found in the database; None for the default schema.
        type_: what it names: ``schema``, ``table``, ``column``, ``index``, ``unique_constraint``, ``sequence`` ...
        parent_names: where it stands, as Alembic gives it.
    """
    if type_ == "schema":
        return True
    if type_ in ("table", "sequence"):
        return name not in _OURS
    return parent_names.get("table_name") not in _OURS and not (type_ == "index" and name in _INDEXES)


_TABLES = tables("public").metadata.tables.values()
_OURS = frozenset(
    [table.name for table in _TABLES]
    + [migration.VERSION_TABLE, "leasequeue_term", "leasequeue_job_id_seq", "leasequeue_lease_event_id_seq"]
)
_INDEXES = frozenset(str(index.name) for table in _TABLES for index in table.indexes)
