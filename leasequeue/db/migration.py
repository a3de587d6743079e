"""What a migration reads and writes beside the frozen DDL: is there a schema, which version, and who migrates now.

Two runs at once are kept apart by the lock on the version table alone, taken in the transaction that migrates: the
second waits for the first to commit and then finds the tables. Locks, in order: the version table (SHARE ROW EXCLUSIVE,
which excludes itself and lets readers pass), then whatever the DDL creates.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection, text

from leasequeue.db import version
from leasequeue.db.ddl import v1
from leasequeue.db.literal import literal
from leasequeue.db.names import qualify

VERSION_TABLE = "leasequeue_alembic_version"

_UPGRADES: dict[int, tuple[str, ...]] = {1: v1.UPGRADE}
_DOWNGRADES: dict[int, tuple[str, ...]] = {1: v1.DOWNGRADE}

_SCHEMA_EXISTS = "SELECT EXISTS (SELECT FROM pg_catalog.pg_namespace WHERE nspname = :schema)"
_BOUND_WAIT = "SELECT set_config('lock_timeout', :wait, true)"
# As Alembic itself would create it.
_CREATE = (
    f"CREATE TABLE IF NOT EXISTS {{s}}.{VERSION_TABLE} (version_num varchar(32) NOT NULL, "
    f"CONSTRAINT {VERSION_TABLE}_pkc PRIMARY KEY (version_num))"
)
_LOCK = f"LOCK TABLE {{s}}.{VERSION_TABLE} IN SHARE ROW EXCLUSIVE MODE"
_FORGET = f"DELETE FROM {{s}}.{VERSION_TABLE}"
_STAMP = f"INSERT INTO {{s}}.{VERSION_TABLE} (version_num) VALUES ('{{revision}}')"


def ddl(since: int, to: int, schema: str) -> list[str]:
    """The statements that lead from one version to another, up or down; both must be known."""
    s = qualify(schema)
    if since <= to:
        steps: Sequence[tuple[str, ...]] = [_UPGRADES[step] for step in range(since + 1, to + 1)]
    else:
        steps = [_DOWNGRADES[step] for step in range(since, to, -1)]
    return [statement.format(s=s) for step in steps for statement in step]


def statements(schema: str) -> dict[str, str]:
    """Name and text of each statement, for the golden files."""
    s = qualify(schema)
    return {
        "schema_exists": _SCHEMA_EXISTS,
        "bound_wait": _BOUND_WAIT,
        "create": _CREATE.format(s=s),
        "lock": _LOCK.format(s=s),
        "forget": _FORGET.format(s=s),
        "stamp": _STAMP.format(s=s, revision=revision(version.VERSION)),
    }


def missing_schema(schema: str) -> str:
    """What is said where the schema does not exist."""
    return f"there is no schema {schema!r} here: run\n    CREATE SCHEMA {qualify(schema)}\nand then this again"


def not_allowed(schema: str, user: str | None, said: str) -> str:
    """What is said where the user may not create tables."""
    role = qualify(user) if user else "..."
    return (
        f"{said}: let its owner run\n    GRANT USAGE, CREATE ON SCHEMA {qualify(schema)} TO {role}\nand then this again"
    )


def not_marked(schema: str) -> str:
    """What is said where relations with our names stand, and no comment says their version."""
    return (
        f"schema {schema!r} holds relations with names of leasequeue, but the comment on leasequeue_job that says their "
        f"version is missing (a restore without comments?): if they are the tables of version {version.VERSION}, run\n"
        f"    COMMENT ON TABLE {qualify(schema)}.leasequeue_job IS '{version.comment(version.VERSION)}'\n"
        f"and then this again; else drop or rename them"
    )


def schema_exists(conn: Connection, schema: str) -> bool:
    return bool(conn.execute(text(_SCHEMA_EXISTS), {"schema": schema}).scalar_one())


def found_version(conn: Connection, schema: str) -> int | None:
    """The version of the tables, None where there are none. No error, no lock."""
    return version.parse(conn.execute(text(version.PROBE), {"schema": schema}).scalar_one())


def bound_wait(conn: Connection, seconds: float) -> None:
    """Bound every wait for a lock in this transaction, and in this one only."""
    conn.execute(text(_BOUND_WAIT), {"wait": f"{int(seconds * 1000)}ms"})


def lock(conn: Connection, schema: str) -> None:
    """Hold off other migrations of this schema until the transaction ends; makes the version table where missing."""
    s = qualify(schema)
    conn.execute(literal(_CREATE.format(s=s)))
    conn.execute(literal(_LOCK.format(s=s)))


def stamp(conn: Connection, schema: str, found: int | None) -> None:
    """Make the version table say what the tables say, which a host's own history may have made or dropped."""
    s = qualify(schema)
    conn.execute(literal(_FORGET.format(s=s)))
    if found is not None:
        conn.execute(literal(_STAMP.format(s=s, revision=revision(found))))


def revision(number: int) -> str:
    """How the project's own Alembic history names a version."""
    return f"{number:04d}"
