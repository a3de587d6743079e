"""The tables as SQLAlchemy Core objects, for the statements that are built from them.

They say the same as the migrations (``leasequeue/db/ddl``), word for word: a test creates both and compares what the
server's catalog then holds. Nothing in production calls ``create_all``; the migrations make the tables.

Storage parameters and replica identities are set by an ``ALTER TABLE`` after creation: SQLAlchemy 2.0 cannot say the
former in the ``CREATE``, PostgreSQL not the latter.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Connection,
    DateTime,
    Double,
    Identity,
    Index,
    Integer,
    MetaData,
    PrimaryKeyConstraint,
    Sequence,
    SmallInteger,
    Table,
    Text,
    event,
    quoted_name,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB, UUID
from sqlalchemy.types import UserDefinedType

from leasequeue.db.literal import literal
from leasequeue.db.names import qualify
from leasequeue.db.version import VERSION, comment


class Char(UserDefinedType[str]):
    """PostgreSQL's one-byte ``"char"``, which is another type than ``char``."""

    cache_ok = True

    def get_col_spec(self, **kw: Any) -> str:
        return '"char"'


class Tables(NamedTuple):
    """The tables of one schema. Shared by all callers: read them, never change them."""

    metadata: MetaData
    term: Sequence
    job: Table
    finished: Table
    failure: Table
    lease: Table
    lease_event: Table
    schedule: Table
    tick: Table
    worker: Table
    queue: Table
    lane: Table
    stat: Table
    app: Table
    limit: Table
    wake: Table
    bucket: Table
    admission: Table
    hold: Table
    workflow: Table
    step: Table
    edge: Table


@cache
def tables(schema: str) -> Tables:
    """The tables in a schema, built once for each name. Pure: no database is asked.

    Args:
        schema: the unquoted name; every statement built from the tables names it, quoted.
    """
    metadata = MetaData(schema=quoted_name(schema, True))
    return Tables(
        metadata,
        Sequence("leasequeue_term", data_type=BigInteger(), metadata=metadata, schema=metadata.schema),
        _job(metadata),
        _finished(metadata),
        _failure(metadata),
        _lease(metadata),
        _lease_event(metadata),
        _schedule(metadata),
        _tick(metadata),
        _worker(metadata),
        _queue(metadata),
        _lane(metadata),
        _stat(metadata),
        _app(metadata),
        _limit(metadata),
        _wake(metadata),
        _bucket(metadata),
        _admission(metadata),
        _hold(metadata),
        _workflow(metadata),
        _step(metadata),
        _edge(metadata),
    )


_HOT = (
    "fillfactor = 85, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000, "
    "autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 20000, autovacuum_vacuum_cost_delay = 0, "
    "autovacuum_vacuum_insert_scale_factor = 0, autovacuum_vacuum_insert_threshold = 50000"
)
_SMALL = (
    "fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 200, "
    "autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 500, autovacuum_vacuum_cost_delay = 0"
)
_GROWING = (
    "autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 50000, autovacuum_vacuum_insert_scale_factor = 0.2, "
    "autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 200000"
)

_WAKES = (
    "autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0, "
    "autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 20000, "
    "autovacuum_vacuum_insert_scale_factor = 0, autovacuum_vacuum_insert_threshold = 100000"
)
_LOCKED = (
    "autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000, "
    "autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 20000"
)

BUCKETS = 16_384
"""Rows of ``leasequeue_bucket``; a key's is the hash of its text, modulo this."""

_EMPTY = "'{}'"


def _time(name: str, *, null: bool = True, now: bool = False) -> Column[Any]:
    return Column(name, DateTime(timezone=True), nullable=null, server_default=text("now()") if now else None)


def _text(name: str, *, null: bool = False, default: str | None = None) -> Column[Any]:
    return Column(name, Text, nullable=null, server_default=None if default is None else text(default))


def _json(name: str, *, null: bool = False, default: str | None = None) -> Column[Any]:
    return Column(name, JSONB, nullable=null, server_default=None if default is None else text(default))


def _number(name: str, type_: Any = Integer, *, null: bool = False, default: str | None = None) -> Column[Any]:
    # autoincrement=False: a key that we number ourselves must not become a serial.
    server_default = None if default is None else text(default)
    return Column(name, type_, nullable=null, server_default=server_default, autoincrement=False)


_RATE = "rate_max > 0 AND rate_seconds > 0 AND (rate_max IS NULL) = (rate_seconds IS NULL)"


def _key_length(table: str, column: str) -> CheckConstraint:
    return CheckConstraint(f"octet_length({column}) BETWEEN 1 AND 512", name=f"{table}_{column}_check")


def _priority_range(table: str) -> CheckConstraint:
    return CheckConstraint("priority BETWEEN -100 AND 100", name=f"{table}_priority_check")


def _stored(table: Table, parameters: str) -> Table:
    return _altered(table, f"SET ({parameters})")


def _without_key(table: Table) -> Table:
    return _altered(table, "REPLICA IDENTITY FULL")


def _altered(table: Table, change: str) -> Table:
    alter = literal(f"ALTER TABLE {qualify(str(table.schema))}.{table.name} {change}")

    def execute(target: Table, connection: Connection, **kw: Any) -> None:
        connection.execute(alter)

    event.listen(table, "after_create", execute)
    return table


def _job(metadata: MetaData) -> Table:
    name = "leasequeue_job"
    job = Table(
        name,
        metadata,
        Column("id", BigInteger, Identity(always=False), nullable=False),
        _text("queue", default="'default'"),
        _text("task"),
        _json("args", default=_EMPTY),
        _number("priority", SmallInteger, default="0"),
        _time("available_at", null=False, now=True),
        Column("state", Char(), nullable=False, server_default=text("'r'")),
        Column("holder", UUID),
        _number("term", BigInteger, null=True),
        _time("expires_at"),
        _number("attempt", default="0"),
        _number("abandoned", default="0"),
        _number("max_attempts", null=True),
        _text("unique_key", null=True),
        _text("limit_key", null=True),
        _time("created_at", null=False, now=True),
        _time("claimed_at"),
        _time("cancel_requested_at"),
        _json("meta", null=True),
        _time("start_by"),
        Column("unique_until", Char()),
        _number("limit_max", null=True),
        _number("rate_max", null=True),
        _number("rate_seconds", Double, null=True),
        _number("pending", null=True),
        _number("children", null=True),
        _number("workflow", BigInteger, null=True),
        _json("progress", null=True),
        PrimaryKeyConstraint("id", name=f"{name}_pkey"),
        *(_key_length(name, column) for column in ("queue", "task", "unique_key", "limit_key")),
        _priority_range(name),
        CheckConstraint(
            "available_at > '1970-01-01 00:00:00+00' AND available_at < 'infinity'", name=f"{name}_available_at_check"
        ),
        CheckConstraint("state IN ('r', 'l', 'q', 'g', 'b')", name=f"{name}_state_check"),
        CheckConstraint(
            "(state = 'l') = (holder IS NOT NULL) AND CASE state WHEN 'l' THEN term IS NOT NULL AND expires_at IS NOT NULL "
            "WHEN 'r' THEN limit_key IS NULL WHEN 'g' THEN limit_key IS NOT NULL WHEN 'b' THEN pending > 0 ELSE true END",
            name=f"{name}_held_check",
        ),
        CheckConstraint(f"limit_max > 0 AND {_RATE}", name=f"{name}_limit_check"),
        CheckConstraint("max_attempts > 0", name=f"{name}_max_attempts_check"),
        CheckConstraint("jsonb_typeof(meta) = 'object'", name=f"{name}_meta_check"),
        comment=comment(VERSION),
    )
    c = job.c
    ready = text("state = 'r'")
    Index(f"{name}_ready", c.queue, c.priority.desc(), c.available_at, c.id, postgresql_where=ready)
    Index(f"{name}_leased", c.id, postgresql_where=text("state = 'l'"))
    Index(f"{name}_suspect", c.id, postgresql_where=text("state = 'q'"))
    under = "holder IS NOT NULL AND limit_key IS NOT NULL"
    by_task, by_queue = text(f"{under} AND claimed_at IS NOT NULL"), text(f"{under} AND attempt > 0")
    waiting = text("state = 'g'")
    Index(f"{name}_gate", c.limit_key, c.queue, c.priority.desc(), c.available_at, c.id, postgresql_where=waiting)
    Index(f"{name}_gate_key", c.limit_key, c.term, postgresql_where=text(under))
    Index(f"{name}_gate_task", c.task, postgresql_where=by_task)
    Index(f"{name}_gate_queue", c.queue, postgresql_where=by_queue)
    Index(f"{name}_start_by", c.start_by, postgresql_where=text("start_by IS NOT NULL AND state <> 'l'"))
    Index(f"{name}_unique", c.unique_key, unique=True, postgresql_where=text("unique_key IS NOT NULL"))
    return _stored(job, _HOT)


def _finished(metadata: MetaData) -> Table:
    name = "leasequeue_finished"
    finished = Table(
        name,
        metadata,
        _number("id", BigInteger),
        _text("queue"),
        _text("task"),
        _json("args"),
        _text("outcome"),
        _number("attempt"),
        _number("abandoned"),
        _time("enqueued_at", null=False),
        _time("started_at"),
        _time("finished_at", null=False, now=True),
        _json("result", null=True),
        _text("error", null=True),
        _json("meta", null=True),
        _json("options", null=True),
        PrimaryKeyConstraint("id", name=f"{name}_pkey"),
        CheckConstraint("outcome IN ('succeeded', 'failed', 'cancelled', 'expired')", name=f"{name}_outcome_check"),
    )
    c = finished.c
    Index(f"{name}_age", c.finished_at)
    Index(f"{name}_unhappy", c.outcome, c.finished_at, postgresql_where=text("outcome <> 'succeeded'"))
    return _stored(finished, _GROWING)


def _failure(metadata: MetaData) -> Table:
    name = "leasequeue_failure"
    failure = Table(
        name,
        metadata,
        _number("job_id", BigInteger),
        _number("attempt"),
        _text("queue"),
        _text("task"),
        _text("error_type"),
        _text("message"),
        _text("traceback", null=True),
        _text("worker", null=True),
        _number("term", BigInteger, null=True),
        _time("started_at"),
        _time("failed_at", null=False, now=True),
        _time("retry_at"),
    )
    Index(f"{name}_job", failure.c.job_id)
    Index(f"{name}_age", failure.c.failed_at)
    return _without_key(failure)


def _lease(metadata: MetaData) -> Table:
    name = "leasequeue_lease"
    lease = Table(
        name,
        metadata,
        _text("name"),
        _number("slot", SmallInteger, default="0"),
        Column("holder", UUID),
        _number("term", BigInteger),
        _text("owner", null=True),
        _time("acquired_at"),
        _time("renewed_at"),
        _time("expires_at"),
        _number("slots", SmallInteger, default="1"),
        _json("meta", null=True),
        PrimaryKeyConstraint("name", "slot", name=f"{name}_pkey"),
        _key_length(name, "name"),
        CheckConstraint("slot >= 0 AND slots >= 1", name=f"{name}_slots_check"),
    )
    return _stored(lease, _SMALL)


def _lease_event(metadata: MetaData) -> Table:
    name = "leasequeue_lease_event"
    lease_event = Table(
        name,
        metadata,
        Column("id", BigInteger, Identity(always=True), nullable=False),
        _text("name"),
        _number("slot", SmallInteger),
        _text("event"),
        Column("holder", UUID),
        _number("term", BigInteger, null=True),
        _text("owner", null=True),
        _time("at", null=False, now=True),
        _number("count", default="1"),
        _text("reason", null=True),
        PrimaryKeyConstraint("id", name=f"{name}_pkey"),
        CheckConstraint(
            "event IN ('acquired', 'released', 'taken over', 'lost', 'refused')", name=f"{name}_event_check"
        ),
        CheckConstraint(
            "event <> 'refused' OR (octet_length(name) <= 512 AND octet_length(owner) BETWEEN 1 AND 512 "
            "AND octet_length(reason) BETWEEN 1 AND 512)",
            name=f"{name}_refused_check",
        ),
    )
    c = lease_event.c
    minute = text("date_trunc('minute', at AT TIME ZONE 'UTC')")
    refused = text("event = 'refused'")
    Index(f"{name}_refused", c.name, c.owner, c.reason, minute, unique=True, postgresql_where=refused)
    Index(f"{name}_name", lease_event.c.name, lease_event.c.id)
    Index(f"{name}_age", lease_event.c.at)
    return lease_event


def _schedule(metadata: MetaData) -> Table:
    name = "leasequeue_schedule"
    schedule = Table(
        name,
        metadata,
        _text("name"),
        _text("task"),
        _json("args", default=_EMPTY),
        _text("queue", default="'default'"),
        _number("priority", SmallInteger, default="0"),
        _json("spec"),
        _text("catch_up", default="'latest'"),
        _number("catch_up_seconds", Double, null=True),
        _text("overlap", default="'queue'"),
        _number("jitter_seconds", Double, default="0"),
        _number("version", BigInteger, default="1"),
        Column("decorated", Boolean, nullable=False, server_default=text("false")),
        _text("release", null=True),
        _time("deployed_at"),
        _time("next_at"),
        _time("fired_at"),
        _number("job_id", BigInteger, null=True),
        _time("paused_at"),
        _time("created_at", null=False, now=True),
        _time("updated_at", null=False, now=True),
        _json("meta", null=True),
        PrimaryKeyConstraint("name", name=f"{name}_pkey"),
        *(_key_length(name, column) for column in ("name", "task", "queue")),
        _priority_range(name),
        CheckConstraint("next_at > '1970-01-01 00:00:00+00' AND next_at < 'infinity'", name=f"{name}_next_at_check"),
        CheckConstraint("catch_up <> 'all' OR overlap <> 'skip'", name=f"{name}_both_check"),
        CheckConstraint("jsonb_typeof(args) = 'object'", name=f"{name}_args_check"),
        CheckConstraint(
            "catch_up IN ('latest', 'all', 'none') AND catch_up_seconds >= 0", name=f"{name}_catch_up_check"
        ),
        CheckConstraint("overlap IN ('queue', 'skip')", name=f"{name}_overlap_check"),
        CheckConstraint("jitter_seconds BETWEEN 0 AND 86400", name=f"{name}_jitter_check"),
        CheckConstraint("jsonb_typeof(meta) = 'object'", name=f"{name}_meta_check"),
    )
    return _stored(schedule, _SMALL)


def _tick(metadata: MetaData) -> Table:
    name = "leasequeue_tick"
    tick = Table(
        name,
        metadata,
        _text("schedule"),
        _time("due_at", null=False),
        _text("outcome"),
        _number("job_id", BigInteger, null=True),
        _text("reason", null=True),
        _time("decided_at", null=False, now=True),
        _text("decided_by", null=True),
        PrimaryKeyConstraint("schedule", "due_at", name=f"{name}_pkey"),
        CheckConstraint(
            "outcome IN ('fired', 'caught_up', 'coalesced', 'missed', 'overlapped', 'paused', 'redefined')",
            name=f"{name}_outcome_check",
        ),
    )
    Index(f"{name}_age", tick.c.decided_at)
    return tick


def _worker(metadata: MetaData) -> Table:
    name = "leasequeue_worker"
    worker = Table(
        name,
        metadata,
        Column("id", UUID, nullable=False),
        _text("host"),
        _number("pid"),
        _text("version"),
        _text("release", null=True),
        _json("queues"),
        _json("tasks"),
        _json("schedules", default="'[]'"),
        _time("started_at", null=False, now=True),
        _time("renewed_at", null=False, now=True),
        _time("expires_at", null=False),
        _json("counters", default=_EMPTY),
        PrimaryKeyConstraint("id", name=f"{name}_pkey"),
    )
    return _stored(worker, _SMALL)


def _queue(metadata: MetaData) -> Table:
    name = "leasequeue_queue"
    queue = Table(
        name,
        metadata,
        _text("name"),
        _time("paused_at"),
        _time("resume_at"),
        _text("updated_by", null=True),
        PrimaryKeyConstraint("name", name=f"{name}_pkey"),
        _key_length(name, "name"),
    )
    return _stored(queue, _SMALL)


def _lane(metadata: MetaData) -> Table:
    name = "leasequeue_lane"
    # No key on purpose: an enqueue that notes a new priority must wait for nobody. Doubles are harmless.
    lane = Table(name, metadata, _text("queue"), _number("priority", SmallInteger))
    Index(f"{name}_queue", lane.c.queue, lane.c.priority)
    return _without_key(lane)


def _stat(metadata: MetaData) -> Table:
    name = "leasequeue_stat"
    stat = Table(
        name,
        metadata,
        Column("worker", UUID, nullable=False),
        _time("minute", null=False),
        _json("counts"),
        PrimaryKeyConstraint("worker", "minute", name=f"{name}_pkey"),
    )
    Index(f"{name}_age", stat.c.minute)
    return stat


def _identity() -> Column[Any]:
    return Column("id", BigInteger, Identity(always=True), nullable=False)


def _app(metadata: MetaData) -> Table:
    name = "leasequeue_app"
    app = Table(
        name,
        metadata,
        _text("name"),
        _number("version", BigInteger, default="1"),
        _text("release", null=True),
        _time("deployed_at"),
        _json("releases", default=_EMPTY),
        PrimaryKeyConstraint("name", name=f"{name}_pkey"),
        _key_length(name, "name"),
    )
    return _stored(app, _SMALL)


def _limit(metadata: MetaData) -> Table:
    name = "leasequeue_limit"
    limit = Table(
        name,
        metadata,
        _text("name"),
        Column("declared", Boolean, nullable=False),
        _number("max_running", null=True),
        _number("rate_max", null=True),
        _number("rate_seconds", Double, null=True),
        _text("app", null=True),
        _time("deployed_at"),
        _time("updated_at", null=False, now=True),
        _text("updated_by", null=True),
        PrimaryKeyConstraint("name", "declared", name=f"{name}_pkey"),
        _key_length(name, "name"),
        CheckConstraint(f"max_running >= 0 AND {_RATE}", name=f"{name}_values_check"),
    )
    return _stored(limit, _SMALL)


def _wake(metadata: MetaData) -> Table:
    name = "leasequeue_wake"
    wake = Table(
        name,
        metadata,
        _identity(),
        _text("queue"),
        _time("due_at", null=False, now=True),
        _text("key"),
        _text("parked", null=True),
        Column("whole", Boolean, nullable=False, server_default=text("false")),
        Column("given", Boolean, nullable=False, server_default=text("false")),
        PrimaryKeyConstraint("id", name=f"{name}_pkey"),
    )
    c = wake.c
    Index(f"{name}_due", c.queue, c.due_at, c.id)
    Index(f"{name}_parked", c.parked, c.id, postgresql_where=text("parked IS NOT NULL"))
    return _stored(wake, _WAKES)


def _bucket(metadata: MetaData) -> Table:
    name = "leasequeue_bucket"
    bucket = Table(name, metadata, _number("id"), PrimaryKeyConstraint("id", name=f"{name}_pkey"))
    return _stored(bucket, _LOCKED)


def _admission(metadata: MetaData) -> Table:
    name = "leasequeue_admission"
    admission = Table(
        name,
        metadata,
        _identity(),
        _text("name"),
        _time("at", null=False),
        _number("count"),
        PrimaryKeyConstraint("id", name=f"{name}_pkey"),
    )
    Index(f"{name}_name", admission.c.name, admission.c.at)
    Index(f"{name}_age", admission.c.at)
    return _stored(admission, _WAKES)


def _hold(metadata: MetaData) -> Table:
    name = "leasequeue_hold"
    hold = Table(
        name,
        metadata,
        _text("unique_key"),
        _number("job_id", BigInteger),
        _time("expires_at", null=False),
        PrimaryKeyConstraint("unique_key", name=f"{name}_pkey"),
        _key_length(name, "unique_key"),
    )
    Index(f"{name}_age", hold.c.expires_at)
    return hold


def _workflow(metadata: MetaData) -> Table:
    name = "leasequeue_workflow"
    workflow = Table(
        name,
        metadata,
        _identity(),
        _text("name", null=True),
        _time("created_at", null=False, now=True),
        _json("meta", null=True),
        PrimaryKeyConstraint("id", name=f"{name}_pkey"),
    )
    Index(f"{name}_age", workflow.c.created_at)
    return workflow


def _step(metadata: MetaData) -> Table:
    name = "leasequeue_step"
    step = Table(
        name,
        metadata,
        _number("workflow", BigInteger),
        _text("name"),
        _number("job_id", BigInteger),
        PrimaryKeyConstraint("workflow", "name", name=f"{name}_pkey"),
        _key_length(name, "name"),
    )
    Index(f"{name}_job", step.c.job_id)
    return step


def _edge(metadata: MetaData) -> Table:
    name = "leasequeue_edge"
    edge = Table(
        name,
        metadata,
        _number("parent_id", BigInteger),
        _number("child_id", BigInteger),
        Column("on_failure", Char(), nullable=False, server_default=text("'x'")),
        PrimaryKeyConstraint("parent_id", "child_id", name=f"{name}_pkey"),
        CheckConstraint("on_failure IN ('x', 'c', 'f')", name=f"{name}_on_failure_check"),
    )
    Index(f"{name}_child", edge.c.child_id)
    return _stored(edge, _WAKES)
