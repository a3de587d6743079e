"""The tables as SQLAlchemy Core objects, for the statements that are built from them.

They say the same as the migrations (``leasequeue/db/ddl``), word for word: a test creates both and compares what the
server's catalog then holds. Nothing in production calls ``create_all``; the migrations make the tables.

Storage parameters and replica identities are set by an ``ALTER TABLE`` after creation: SQLAlchemy 2.0 cannot say the
former in the ``CREATE``, PostgreSQL not the latter.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Double,
    Identity,
    Index,
    MetaData,
    PrimaryKeyConstraint,
    Sequence,
    SmallInteger,
    Table,
    quoted_name,
    text,
)
from sqlalchemy.dialects.postgresql import UUID

from leasequeue.db import control_tables as control
from leasequeue.db.columns import (
    EMPTY,
    GROWING,
    HOT,
    RATE,
    SMALL,
    Char,
    json_,
    key_length,
    number,
    priority_range,
    stored,
    text_,
    time_,
    without_key,
)
from leasequeue.db.version import VERSION, comment


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
        control.app(metadata),
        control.limit(metadata),
        control.wake(metadata),
        control.bucket(metadata),
        control.admission(metadata),
        control.hold(metadata),
        control.workflow(metadata),
        control.step(metadata),
        control.edge(metadata),
    )


def _job(metadata: MetaData) -> Table:
    name = "leasequeue_job"
    job = Table(
        name,
        metadata,
        Column("id", BigInteger, Identity(always=False), nullable=False),
        text_("queue", default="'default'"),
        text_("task"),
        json_("args", default=EMPTY),
        number("priority", SmallInteger, default="0"),
        time_("available_at", null=False, now=True),
        Column("state", Char(), nullable=False, server_default=text("'r'")),
        Column("holder", UUID),
        number("term", BigInteger, null=True),
        time_("expires_at"),
        number("attempt", default="0"),
        number("abandoned", default="0"),
        number("max_attempts", null=True),
        text_("unique_key", null=True),
        text_("limit_key", null=True),
        time_("created_at", null=False, now=True),
        time_("claimed_at"),
        time_("cancel_requested_at"),
        json_("meta", null=True),
        time_("start_by"),
        Column("unique_until", Char()),
        number("limit_max", null=True),
        number("rate_max", null=True),
        number("rate_seconds", Double, null=True),
        number("pending", null=True),
        number("children", null=True),
        number("workflow", BigInteger, null=True),
        json_("progress", null=True),
        PrimaryKeyConstraint("id", name=f"{name}_pkey"),
        *(key_length(name, column) for column in ("queue", "task", "unique_key", "limit_key")),
        priority_range(name),
        CheckConstraint(
            "available_at > '1970-01-01 00:00:00+00' AND available_at < 'infinity'", name=f"{name}_available_at_check"
        ),
        CheckConstraint("state IN ('r', 'l', 'q', 'g', 'b')", name=f"{name}_state_check"),
        CheckConstraint(
            "(state = 'l') = (holder IS NOT NULL) AND CASE state WHEN 'l' THEN term IS NOT NULL AND expires_at IS NOT NULL "
            "WHEN 'r' THEN limit_key IS NULL WHEN 'g' THEN limit_key IS NOT NULL WHEN 'b' THEN pending > 0 ELSE true END",
            name=f"{name}_held_check",
        ),
        CheckConstraint(f"limit_max > 0 AND {RATE}", name=f"{name}_limit_check"),
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
    waiting = text("state = 'g'")
    Index(f"{name}_gate", c.limit_key, c.queue, c.priority.desc(), c.available_at, c.id, postgresql_where=waiting)
    Index(f"{name}_gate_key", c.limit_key, c.term, postgresql_where=text(under))
    Index(f"{name}_start_by", c.start_by, postgresql_where=text("start_by IS NOT NULL AND state <> 'l'"))
    asked = text("cancel_requested_at IS NOT NULL AND state <> 'l'")
    Index(f"{name}_asked", c.cancel_requested_at, postgresql_where=asked)
    Index(f"{name}_unique", c.unique_key, unique=True, postgresql_where=text("unique_key IS NOT NULL"))
    return stored(job, HOT)


def _finished(metadata: MetaData) -> Table:
    name = "leasequeue_finished"
    finished = Table(
        name,
        metadata,
        number("id", BigInteger),
        text_("queue"),
        text_("task"),
        json_("args"),
        text_("outcome"),
        number("attempt"),
        number("abandoned"),
        time_("enqueued_at", null=False),
        time_("started_at"),
        time_("finished_at", null=False, now=True),
        json_("result", null=True),
        text_("error", null=True),
        json_("meta", null=True),
        json_("options", null=True),
        PrimaryKeyConstraint("id", name=f"{name}_pkey"),
        CheckConstraint("outcome IN ('succeeded', 'failed', 'cancelled', 'expired')", name=f"{name}_outcome_check"),
    )
    c = finished.c
    Index(f"{name}_age", c.finished_at)
    Index(f"{name}_unhappy", c.outcome, c.finished_at, postgresql_where=text("outcome <> 'succeeded'"))
    return stored(finished, GROWING)


def _failure(metadata: MetaData) -> Table:
    name = "leasequeue_failure"
    failure = Table(
        name,
        metadata,
        number("job_id", BigInteger),
        number("attempt"),
        text_("queue"),
        text_("task"),
        text_("error_type"),
        text_("message"),
        text_("traceback", null=True),
        text_("worker", null=True),
        number("term", BigInteger, null=True),
        time_("started_at"),
        time_("failed_at", null=False, now=True),
        time_("retry_at"),
    )
    Index(f"{name}_job", failure.c.job_id)
    Index(f"{name}_age", failure.c.failed_at)
    return without_key(failure)


def _lease(metadata: MetaData) -> Table:
    name = "leasequeue_lease"
    lease = Table(
        name,
        metadata,
        text_("name"),
        number("slot", SmallInteger, default="0"),
        Column("holder", UUID),
        number("term", BigInteger),
        text_("owner", null=True),
        time_("acquired_at"),
        time_("renewed_at"),
        time_("expires_at"),
        number("slots", SmallInteger, default="1"),
        json_("meta", null=True),
        PrimaryKeyConstraint("name", "slot", name=f"{name}_pkey"),
        key_length(name, "name"),
        CheckConstraint("slot >= 0 AND slots >= 1", name=f"{name}_slots_check"),
    )
    return stored(lease, SMALL)


def _lease_event(metadata: MetaData) -> Table:
    name = "leasequeue_lease_event"
    lease_event = Table(
        name,
        metadata,
        Column("id", BigInteger, Identity(always=True), nullable=False),
        text_("name"),
        number("slot", SmallInteger),
        text_("event"),
        Column("holder", UUID),
        number("term", BigInteger, null=True),
        text_("owner", null=True),
        time_("at", null=False, now=True),
        number("count", default="1"),
        text_("reason", null=True),
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
        text_("name"),
        text_("task"),
        json_("args", default=EMPTY),
        text_("queue", default="'default'"),
        number("priority", SmallInteger, default="0"),
        json_("spec"),
        text_("catch_up", default="'latest'"),
        number("catch_up_seconds", Double, null=True),
        text_("overlap", default="'queue'"),
        number("jitter_seconds", Double, default="0"),
        number("version", BigInteger, default="1"),
        Column("decorated", Boolean, nullable=False, server_default=text("false")),
        text_("release", null=True),
        time_("deployed_at"),
        time_("next_at"),
        time_("fired_at"),
        number("job_id", BigInteger, null=True),
        time_("paused_at"),
        time_("created_at", null=False, now=True),
        time_("updated_at", null=False, now=True),
        json_("meta", null=True),
        PrimaryKeyConstraint("name", name=f"{name}_pkey"),
        *(key_length(name, column) for column in ("name", "task", "queue")),
        priority_range(name),
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
    return stored(schedule, SMALL)


def _tick(metadata: MetaData) -> Table:
    name = "leasequeue_tick"
    tick = Table(
        name,
        metadata,
        text_("schedule"),
        time_("due_at", null=False),
        text_("outcome"),
        number("job_id", BigInteger, null=True),
        text_("reason", null=True),
        time_("decided_at", null=False, now=True),
        text_("decided_by", null=True),
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
        text_("host"),
        number("pid"),
        text_("version"),
        text_("release", null=True),
        json_("queues"),
        json_("tasks"),
        json_("schedules", default="'[]'"),
        time_("started_at", null=False, now=True),
        time_("renewed_at", null=False, now=True),
        time_("expires_at", null=False),
        json_("counters", default=EMPTY),
        PrimaryKeyConstraint("id", name=f"{name}_pkey"),
    )
    return stored(worker, SMALL)


def _queue(metadata: MetaData) -> Table:
    name = "leasequeue_queue"
    queue = Table(
        name,
        metadata,
        text_("name"),
        time_("paused_at"),
        time_("resume_at"),
        text_("updated_by", null=True),
        PrimaryKeyConstraint("name", name=f"{name}_pkey"),
        key_length(name, "name"),
    )
    return stored(queue, SMALL)


def _lane(metadata: MetaData) -> Table:
    name = "leasequeue_lane"
    # No key on purpose: an enqueue that notes a new priority must wait for nobody. Doubles are harmless.
    lane = Table(name, metadata, text_("queue"), number("priority", SmallInteger))
    Index(f"{name}_queue", lane.c.queue, lane.c.priority)
    return without_key(lane)


def _stat(metadata: MetaData) -> Table:
    name = "leasequeue_stat"
    stat = Table(
        name,
        metadata,
        Column("worker", UUID, nullable=False),
        time_("minute", null=False),
        json_("counts"),
        PrimaryKeyConstraint("worker", "minute", name=f"{name}_pkey"),
    )
    Index(f"{name}_age", stat.c.minute)
    return stat
