"""Bring the tables of one schema to the version of this code: what ``leasequeue migrate`` does.

For applications without an Alembic history of their own; the others call :mod:`leasequeue.schema` in a revision. The
comment on the table of jobs is the truth about the version; Alembic's version table follows it. Everything happens in
one transaction, so that a pooler may carry it and a run that dies leaves nothing.
"""

from __future__ import annotations

import io
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
from alembic import command
from alembic.config import Config
from psycopg import errors
from sqlalchemy import Connection, NullPool, create_engine
from sqlalchemy.exc import DBAPIError

import leasequeue
from leasequeue.db import migration
from leasequeue.db.urls import Settings
from leasequeue.db.version import VERSION, check
from leasequeue.errors import ConfigurationError, DatabaseUnavailable

WAIT_SECONDS = 30.0
"""How long a run waits for another one that migrates the same schema."""

_CONNECT_SECONDS = 10
_RACES = 5
_alembic = threading.Lock()
"""Alembic keeps the environment that it runs in module globals."""
# CREATE TABLE IF NOT EXISTS looks first and creates then; who loses a race between the two gets one of these.
_LOST_RACE = (errors.UniqueViolation, errors.DuplicateTable, errors.DuplicateObject)


def migrate(settings: Settings, schema: str, say: Callable[[str], None], *, wait_seconds: float = WAIT_SECONDS) -> None:
    """Create or upgrade the tables, or find that there is nothing to do, and say which.

    Safe to run from several places at once. One READ COMMITTED transaction on a connection of its own; locks the version
    table, then what the DDL creates. Where a host's own revision has made the tables, nothing is written at all.

    Args:
        settings: the database.
        schema: an existing schema; the unquoted name.
        say: is given each line for people, without a line's end.
        wait_seconds: the longest wait for a lock; a run that does not get it changes nothing.

    Raises:
        ConfigurationError: there is no such schema, this user may not create tables in it, or it holds relations with
            our names and no version; the message says what to run.
        SchemaMismatch: the tables are of a later version than this code can use.
        DatabaseUnavailable: not reached, read-only, or another run (or an open transaction) kept the lock for too long.
    """
    where = f"schema {schema!r} of {settings.masked}"

    def connect() -> psycopg.Connection[tuple[object, ...]]:
        params: dict[str, Any] = {"connect_timeout": _CONNECT_SECONDS, "application_name": "leasequeue migrate"}
        params |= settings.params()
        # No server-side prepared statements: a pooler in transaction mode would lose them.
        return psycopg.connect(**params, prepare_threshold=None)

    engine = create_engine(
        "postgresql+psycopg://", creator=connect, poolclass=NullPool, isolation_level="READ COMMITTED"
    )
    lost = ""
    try:
        for _ in range(_RACES):
            try:
                with engine.begin() as conn:
                    done = _migrate(conn, schema, wait_seconds)
            except DBAPIError as error:
                if not isinstance(error.orig, _LOST_RACE):
                    raise
                lost = settings.hide(str(error.orig)).strip()
            else:
                say(f"{where}: {done}")
                return
        # A race is lost once or twice; what fails every time has stood there before.
        raise ConfigurationError(f"{where}: {lost}: {migration.not_marked(schema)}")
    except DBAPIError as error:
        raise _explained(error, settings, schema, where, wait_seconds) from error
    finally:
        engine.dispose()


def _migrate(conn: Connection, schema: str, wait_seconds: float) -> str:
    if not migration.schema_exists(conn, schema):
        raise ConfigurationError(migration.missing_schema(schema))
    migration.bound_wait(conn, wait_seconds)
    found = migration.found_version(conn, schema)
    if found is not None and found >= VERSION:
        check(found, schema)
        return f"the tables have version {found} already, nothing to do"
    migration.lock(conn, schema)
    # READ COMMITTED: this statement sees what another run committed while we waited for the lock.
    found = migration.found_version(conn, schema)
    if found is not None and found >= VERSION:
        check(found, schema)
        return f"another run has just brought the tables to version {found}, nothing left to do"
    migration.stamp(conn, schema, found)
    config = _config(schema)
    config.attributes["connection"] = conn
    with _alembic:
        command.upgrade(config, "head")
    return f"created the tables, version {VERSION}" if found is None else f"upgraded from version {found} to {VERSION}"


def offline_sql(schema: str) -> str:
    """The script of a whole migration of a schema without tables, for ``psql``: one transaction, no connection needed.

    Args:
        schema: an existing schema; the unquoted name.
    """
    written = io.StringIO()
    config = _config(schema)
    config.output_buffer = written
    with _alembic:
        command.upgrade(config, "head", sql=True)
    return written.getvalue()


def _config(schema: str) -> Config:
    config = Config()
    # ConfigParser reads % as the beginning of a reference.
    config.set_main_option("script_location", str(_scripts()).replace("%", "%%"))
    config.attributes["schema"] = schema
    config.attributes["version_table"] = migration.VERSION_TABLE
    return config


def _scripts() -> Path:
    package = Path(leasequeue.__file__).resolve().parent
    for place in (package / "_migrations", package.parent / "migrations"):
        if (place / "env.py").is_file():
            return place
    raise ConfigurationError(f"this installation of leasequeue has no migrations in {package}: install it again")


def _explained(error: DBAPIError, settings: Settings, schema: str, where: str, wait_seconds: float) -> Exception:
    cause = error.orig
    said = settings.hide(str(cause)).strip()
    if isinstance(cause, errors.LockNotAvailable):
        return DatabaseUnavailable(
            f"{where}: another migration, or an open transaction that changed these tables, held its lock for "
            f"{wait_seconds:g} s; nothing was changed, try again when it has ended"
        )
    if isinstance(cause, errors.InsufficientPrivilege):
        return ConfigurationError(migration.not_allowed(schema, settings.user, said))
    if isinstance(cause, errors.ReadOnlySqlTransaction):
        return DatabaseUnavailable(f"{where}: the server is read-only (a standby?): migrate on the primary")
    if isinstance(cause, psycopg.OperationalError):
        return DatabaseUnavailable(f"{where}: {said}")
    return error
