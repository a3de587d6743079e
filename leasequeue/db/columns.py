"""What the tables are made of: columns, checks and storage parameters that more than one of them has."""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    Connection,
    DateTime,
    Identity,
    Integer,
    Table,
    Text,
    event,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.types import UserDefinedType

from leasequeue.db.literal import literal
from leasequeue.db.names import qualify


class Char(UserDefinedType[str]):
    """PostgreSQL's one-byte ``"char"``, which is another type than ``char``."""

    cache_ok = True

    def get_col_spec(self, **kw: Any) -> str:
        return '"char"'


HOT = (
    "fillfactor = 85, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000, "
    "autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 20000, autovacuum_vacuum_cost_delay = 0, "
    "autovacuum_vacuum_insert_scale_factor = 0, autovacuum_vacuum_insert_threshold = 50000"
)
SMALL = (
    "fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 200, "
    "autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 500, autovacuum_vacuum_cost_delay = 0"
)
GROWING = (
    "autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 50000, autovacuum_vacuum_insert_scale_factor = 0.2, "
    "autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 200000"
)

WAKES = (
    "autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0, "
    "autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 20000, "
    "autovacuum_vacuum_insert_scale_factor = 0, autovacuum_vacuum_insert_threshold = 100000"
)
LOCKED = (
    "autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000, "
    "autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 20000"
)

EMPTY = "'{}'"


def time_(name: str, *, null: bool = True, now: bool = False) -> Column[Any]:
    return Column(name, DateTime(timezone=True), nullable=null, server_default=text("now()") if now else None)


def text_(name: str, *, null: bool = False, default: str | None = None) -> Column[Any]:
    return Column(name, Text, nullable=null, server_default=None if default is None else text(default))


def json_(name: str, *, null: bool = False, default: str | None = None) -> Column[Any]:
    return Column(name, JSONB, nullable=null, server_default=None if default is None else text(default))


def number(name: str, type_: Any = Integer, *, null: bool = False, default: str | None = None) -> Column[Any]:
    # autoincrement=False: a key that we number ourselves must not become a serial.
    server_default = None if default is None else text(default)
    return Column(name, type_, nullable=null, server_default=server_default, autoincrement=False)


RATE = "rate_max > 0 AND rate_seconds > 0 AND (rate_max IS NULL) = (rate_seconds IS NULL)"


def key_length(table: str, column: str) -> CheckConstraint:
    return CheckConstraint(f"octet_length({column}) BETWEEN 1 AND 512", name=f"{table}_{column}_check")


def priority_range(table: str) -> CheckConstraint:
    return CheckConstraint("priority BETWEEN -100 AND 100", name=f"{table}_priority_check")


def stored(table: Table, parameters: str) -> Table:
    return _altered(table, f"SET ({parameters})")


def without_key(table: Table) -> Table:
    return _altered(table, "REPLICA IDENTITY FULL")


def _altered(table: Table, change: str) -> Table:
    alter = literal(f"ALTER TABLE {qualify(str(table.schema))}.{table.name} {change}")

    def execute(target: Table, connection: Connection, **kw: Any) -> None:
        connection.execute(alter)

    event.listen(table, "after_create", execute)
    return table


def identity() -> Column[Any]:
    return Column("id", BigInteger, Identity(always=True), nullable=False)
