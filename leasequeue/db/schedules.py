"""Schedules: their rows, their ledger, and the one statement that fires them.

    (no row) ──insert──> next_at ──fire──> next_at ... ──no time is left──> next_at IS NULL
                            │ pause, resume, redefine: each a version of its own

A due time is settled by whoever is first, in one statement: the ledger's rows, the jobs, and the next due time. Its
condition is what it saw (``next_at`` and ``version``), so a second one finds nothing to do; and the ledger's key says once
more that a due time is settled once. It takes the row with SKIP LOCKED, and its jobs carry no unique key: it waits for
nothing, whatever an application's transaction holds.

Locks: the schedule's row, one for each statement; nothing else that was there before.

Each parameter is cast, since asyncpg wants its type. Nothing here imports SQLAlchemy: the supervisor does without it.
"""

from __future__ import annotations

import datetime as dt
import functools
import json
from dataclasses import dataclass
from typing import Any

from leasequeue.db.names import channel, qualify
from leasequeue.db.statement import Program, Statement
from leasequeue.tick import Settled

_NAME = "CAST(%(name)s AS text)"
_VERSION = "version = CAST(%(version)s AS bigint)"
_PAUSED = "CAST(%(paused)s AS boolean)"

# A schedule of the code runs where a live worker registers it; one that was added at run time, where one knows its task.
_SERVED = """EXISTS (
    SELECT FROM {s}.leasequeue_worker AS worker WHERE worker.expires_at > clock_timestamp()
    AND CASE WHEN schedule.decorated THEN jsonb_exists(worker.schedules, schedule.name)
        ELSE jsonb_exists(worker.tasks, schedule.task) END)"""

_COLUMNS = (
    "name, task, CAST(args AS text), queue, priority, CAST(spec AS text), catch_up, catch_up_seconds, overlap, "
    "jitter_seconds, version, decorated, release, CAST(extract(epoch FROM deployed_at) AS float8), "
    "CAST(extract(epoch FROM next_at) AS float8), CAST(extract(epoch FROM paused_at) AS float8), CAST(meta AS text)"
)

# Soon due, and those that have no due time yet because plain SQL wrote them. Those that nobody serves come last: their due
# times are long over, and any number of them must not hide the others.
_UPCOMING = f"""SELECT name, CAST(spec AS text), version, next_at, paused_at IS NOT NULL, task, catch_up, catch_up_seconds,
    jitter_seconds, decorated, {_SERVED}, clock_timestamp()
FROM {{s}}.leasequeue_schedule AS schedule
WHERE (next_at IS NULL AND meta ->> 'ended' IS DISTINCT FROM CAST(version AS text))
    OR next_at <= clock_timestamp() + CAST(%(within)s AS float8) * interval '1 s'
ORDER BY CASE WHEN next_at IS NULL THEN 1 WHEN paused_at IS NOT NULL OR {_SERVED} THEN 0 ELSE 2 END, next_at LIMIT 2000"""

# One that has no due time any more is looked at no more, until it becomes another version.
_ENDED = """meta = CASE WHEN CAST(%(next_at)s AS timestamptz) IS NULL
        THEN coalesce(meta, '{{}}') || jsonb_build_object('ended', version) ELSE meta END"""

# What the task or ``options()`` says of its jobs beside, from the row's meta. Too late is counted from the due time.
_OPTIONS = "max_attempts, start_by, state, limit_key, limit_max, rate_max, rate_seconds"
_OPTION_VALUES = """\
CAST(options ->> 'max_attempts' AS integer),
        coalesce(CAST(options ->> 'start_by' AS timestamptz),
            {due} + CAST(options ->> 'expires_seconds' AS float8) * interval '1 second'),
        CAST(CASE WHEN options ->> 'limit_key' IS NULL THEN 'r' ELSE 'g' END AS "char"), options ->> 'limit_key',
        CAST(options ->> 'limit_max' AS integer), CAST(options ->> 'rate_max' AS integer),
        CAST(options ->> 'rate_seconds' AS float8)"""
_WAKE = """w AS (
    INSERT INTO {s}.leasequeue_wake (queue, key, due_at)
    SELECT queue, limit_key, available_at FROM j WHERE limit_key IS NOT NULL
)"""
_LANE = """lane AS (
    INSERT INTO {s}.leasequeue_lane (queue, priority)
    SELECT queue, priority FROM s WHERE priority <> 0 AND NOT EXISTS (
        SELECT FROM {s}.leasequeue_lane AS known WHERE known.queue = s.queue AND known.priority = s.priority)
)"""

_FIRE = f"""WITH s AS MATERIALIZED (
    SELECT name, task, args, queue, priority, overlap, job_id, meta -> 'options' AS options
    FROM {{s}}.leasequeue_schedule AS schedule
    WHERE name = {_NAME} AND next_at = CAST(%(seen)s AS timestamptz) AND {_VERSION}
      AND (paused_at IS NOT NULL) = {_PAUSED} AND CAST(%(newest)s AS timestamptz) <= clock_timestamp()
      AND ({_PAUSED} OR {_SERVED})
    FOR UPDATE SKIP LOCKED
), due AS MATERIALIZED (
    SELECT s.*, due.due_at, due.outcome, due.reason, due.tick, due.delay,
        due.runs AND NOT (s.overlap = 'skip' AND live.id IS NOT NULL) AS runs,
        due.runs AND s.overlap = 'skip' AND live.id IS NOT NULL AS overlaps
    FROM s CROSS JOIN unnest(CAST(%(due_at)s AS timestamptz[]), CAST(%(outcome)s AS text[]), CAST(%(reason)s AS text[]),
        CAST(%(tick)s AS text[]), CAST(%(runs)s AS boolean[]), CAST(%(delay)s AS float8[]))
        AS due (due_at, outcome, reason, tick, runs, delay)
    LEFT JOIN {{s}}.leasequeue_job AS live ON live.id = s.job_id
    WHERE NOT EXISTS (
        SELECT FROM {{s}}.leasequeue_tick AS settled WHERE settled.schedule = s.name AND settled.due_at = due.due_at)
), j AS (
    INSERT INTO {{s}}.leasequeue_job (queue, task, args, priority, available_at, meta, {_OPTIONS})
    SELECT queue, task, args, priority, greatest(clock_timestamp(), due_at + delay * interval '1 second'),
        jsonb_build_object('schedule', name, 'tick', tick),
        {_OPTION_VALUES.format(due="due_at + delay * interval '1 second'")}
    FROM due WHERE runs ORDER BY due_at
    RETURNING id, meta ->> 'tick' AS tick, pg_notify(CAST(%(channel)s AS text), queue) AS notified,
        queue, limit_key, available_at
), {_WAKE}, {_LANE}, t AS (
    INSERT INTO {{s}}.leasequeue_tick (schedule, due_at, outcome, job_id, reason, decided_at, decided_by)
    SELECT due.name, due.due_at, CASE WHEN due.overlaps THEN 'overlapped' ELSE due.outcome END, j.id,
        CASE WHEN due.overlaps THEN 'job ' || due.job_id || ' of an earlier due time still lives' ELSE due.reason END,
        clock_timestamp(), CAST(%(by)s AS text)
    FROM due LEFT JOIN j ON j.tick = due.tick
    RETURNING due_at, outcome, job_id
), u AS (
    UPDATE {{s}}.leasequeue_schedule AS schedule
    SET next_at = CAST(%(next_at)s AS timestamptz), {_ENDED},
        fired_at = coalesce((SELECT max(due_at) FROM due WHERE runs), fired_at),
        job_id = coalesce((SELECT max(id) FROM j), schedule.job_id)
    FROM s WHERE schedule.name = s.name
    RETURNING schedule.name
)
SELECT t.due_at, t.outcome, t.job_id FROM u LEFT JOIN t ON true"""

# A row without a due time gets its first one.
_BEGIN = f"""UPDATE {{s}}.leasequeue_schedule SET next_at = CAST(%(next_at)s AS timestamptz), {_ENDED}
WHERE name = ANY(ARRAY(SELECT name FROM {{s}}.leasequeue_schedule
    WHERE name = {_NAME} AND next_at IS NULL AND {_VERSION} FOR UPDATE SKIP LOCKED)) RETURNING name"""

_READ = f"SELECT {_COLUMNS}, clock_timestamp() FROM {{s}}.leasequeue_schedule WHERE name = {_NAME}"
_NOW = "SELECT clock_timestamp()"


def _noted(changed: str, what: str) -> str:
    """A CTE that writes each change into the ledger, at its own time, with who did it."""
    return f"""t AS (
    INSERT INTO {{s}}.leasequeue_tick (schedule, due_at, outcome, reason, decided_at, decided_by)
    SELECT name, clock_timestamp(), 'redefined', {what}, clock_timestamp(), CAST(%(by)s AS text)
    FROM {changed} WHERE {what} IS NOT NULL ON CONFLICT DO NOTHING
)"""


_VALUES = """\
CAST(%(task)s AS text), CAST(CAST(%(args)s AS text) AS jsonb), CAST(%(queue)s AS text), CAST(%(priority)s AS integer),
    CAST(CAST(%(spec)s AS text) AS jsonb), CAST(%(catch_up)s AS text), CAST(%(catch_up_seconds)s AS float8),
    CAST(%(overlap)s AS text), CAST(%(jitter_seconds)s AS float8), CAST(%(decorated)s AS boolean), CAST(%(release)s AS text),
    CAST(%(deployed_at)s AS timestamptz), CAST(%(next_at)s AS timestamptz), CAST(CAST(%(meta)s AS text) AS jsonb)"""
_WRITTEN = (
    "task, args, queue, priority, spec, catch_up, catch_up_seconds, overlap, jitter_seconds, decorated, release, "
    "deployed_at, next_at, meta"
)

_INSERT = f"""WITH i AS (
    INSERT INTO {{s}}.leasequeue_schedule (name, {_WRITTEN})
    VALUES ({_NAME}, {_VALUES}) ON CONFLICT DO NOTHING RETURNING name, version
), {_noted("i", "'added'")}
SELECT version FROM i"""

# `changed` is empty where nothing but the stamp changes.
_UPDATE = f"""WITH u AS (
    UPDATE {{s}}.leasequeue_schedule SET ({_WRITTEN}) = ROW ({_VALUES}),
        version = version + 1, updated_at = clock_timestamp()
    WHERE name = ANY(ARRAY(SELECT name FROM {{s}}.leasequeue_schedule
        WHERE name = {_NAME} AND {_VERSION} FOR UPDATE SKIP LOCKED))
    RETURNING name, version
), {_noted("u", "CAST(%(changed)s AS text)")}
SELECT version FROM u"""

_PAUSE = f"""WITH u AS (
    UPDATE {{s}}.leasequeue_schedule
    SET paused_at = CASE WHEN {_PAUSED} THEN coalesce(paused_at, clock_timestamp()) END, version = version + 1,
        updated_at = clock_timestamp()
    WHERE name = {_NAME} AND (paused_at IS NOT NULL) <> {_PAUSED} RETURNING name, version
), {_noted("u", f"CASE WHEN {_PAUSED} THEN 'paused' ELSE 'resumed' END")}
SELECT version FROM u"""

_REMOVE = f"""WITH d AS (
    DELETE FROM {{s}}.leasequeue_schedule WHERE name = {_NAME} RETURNING name, version
), {_noted("d", "'removed'")}
SELECT version FROM d"""

_RUN_NOW = f"""WITH s AS MATERIALIZED (
    SELECT name, task, args, queue, priority, clock_timestamp() AS due_at, meta -> 'options' AS options
    FROM {{s}}.leasequeue_schedule
    WHERE name = {_NAME} FOR UPDATE
), j AS (
    INSERT INTO {{s}}.leasequeue_job (queue, task, args, priority, available_at, meta, {_OPTIONS})
    SELECT queue, task, args, priority, due_at, jsonb_build_object('schedule', name, 'tick',
        to_char(due_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"+00:00"')),
        {_OPTION_VALUES.format(due="due_at")}
    FROM s RETURNING id, pg_notify(CAST(%(channel)s AS text), queue) AS notified, queue, limit_key, available_at
), {_WAKE}, {_LANE}, t AS (
    INSERT INTO {{s}}.leasequeue_tick (schedule, due_at, outcome, job_id, reason, decided_at, decided_by)
    SELECT s.name, s.due_at, 'fired', j.id, 'run by hand', clock_timestamp(), CAST(%(by)s AS text) FROM s, j
)
UPDATE {{s}}.leasequeue_schedule AS schedule SET fired_at = s.due_at,
    job_id = CASE WHEN EXISTS (SELECT FROM {{s}}.leasequeue_job AS live WHERE live.id = schedule.job_id)
        THEN schedule.job_id ELSE j.id END
FROM s, j WHERE schedule.name = s.name RETURNING j.id"""


@dataclass(frozen=True, slots=True)
class ScheduleStatements:
    """The statements for one schema."""

    upcoming: Statement
    fire: Statement
    begin: Statement
    read: Statement
    now: Statement
    insert: Statement
    update: Statement
    pause: Statement
    remove: Statement
    run_now: Statement


@functools.cache
def schedule_statements(schema: str) -> ScheduleStatements:
    """The statements with the quoted schema name filled in; cached."""
    quoted = qualify(schema).replace("%", "%%")
    names = ScheduleStatements.__slots__
    return ScheduleStatements(**{n: Statement(globals()[f"_{n.upper()}"].format(s=quoted)) for n in names})


@dataclass(frozen=True, slots=True)
class Definition:
    """What a schedule is, but for its state.

    Attributes:
        args: JSON text of an object.
        spec: JSON text of a ``cron.Spec``.
        decorated: it stands in the code, and runs where a live worker registers it.
        options: JSON text of an object, what else its jobs are given (``OPTIONS``); kept in the row's ``meta``.
    """

    name: str
    task: str
    args: str
    queue: str
    priority: int
    spec: str
    catch_up: str = "latest"
    catch_up_seconds: float | None = None
    overlap: str = "queue"
    jitter_seconds: float = 0.0
    decorated: bool = False
    options: str = "{}"


OPTIONS = ("expires_seconds", "start_by", "max_attempts", "limit_key", "limit_max", "rate_max", "rate_seconds")
"""Fields of a ``NewJob`` that a schedule hands on to its jobs, each where it has a value."""


@dataclass(frozen=True, slots=True)
class Row:
    """A schedule's row as it was read.

    Attributes:
        next_at, deployed_at, paused_at: seconds since 1970.
        meta: but for the definition's options.
        now: the database's clock at that time.
    """

    definition: Definition
    version: int
    release: str | None
    deployed_at: float | None
    next_at: float | None
    paused_at: float | None
    meta: dict[str, Any]
    now: dt.datetime


def read(schema: str, name: str) -> Program[Row | None]:
    """The row of a schedule, or None."""
    rows = yield schedule_statements(schema).read, {"name": name}
    return _row(rows[0]) if rows else None


def canonical(text: str) -> str:
    """JSON text in one form: jsonb has an order and a spelling of its own. Text that Python refuses stays as it is."""
    try:
        return json.dumps(json.loads(text), sort_keys=True)
    except (ValueError, RecursionError):
        return text


def _row(row: tuple[Any, ...]) -> Row:
    name, task, args, queue, priority, spec, catch_up, within, overlap, jitter = row[:10]
    meta = json.loads(row[16]) if row[16] else {}
    options = json.dumps(meta.pop("options", {}), sort_keys=True)
    definition = Definition(
        name, task, canonical(args), queue, priority, canonical(spec), catch_up, within, overlap, jitter, row[11], options
    )  # fmt: skip
    return Row(definition, row[10], row[12], row[13], row[14], row[15], meta, row[17])


def params(
    definition: Definition,
    *,
    next_at: dt.datetime | None,
    release: str | None = None,
    deployed_at: dt.datetime | None = None,
    meta: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """The parameters of ``insert``; ``update`` wants ``version``, ``changed`` and ``by`` as well."""
    options = json.loads(definition.options)
    written = (meta or {}) | ({"options": options} if options else {})
    return {
        "name": definition.name,
        "task": definition.task,
        "args": definition.args,
        "queue": definition.queue,
        "priority": definition.priority,
        "spec": definition.spec,
        "catch_up": definition.catch_up,
        "catch_up_seconds": definition.catch_up_seconds,
        "overlap": definition.overlap,
        "jitter_seconds": definition.jitter_seconds,
        "decorated": definition.decorated,
        "release": release,
        "deployed_at": deployed_at,
        "next_at": next_at,
        "meta": json.dumps(written) if written else None,
    }


def fire_params(
    schema: str, name: str, version: int, seen: dt.datetime, settled: Settled, *, paused: bool, by: str
) -> dict[str, Any]:
    """The parameters of ``fire``: what was seen in the row, and what is to become of its due times."""
    dues = settled.dues
    return {
        "name": name,
        "seen": seen,
        "version": version,
        "paused": paused,
        "newest": dues[-1].at,
        "due_at": [due.at for due in dues],
        "outcome": [due.outcome for due in dues],
        "reason": [due.reason for due in dues],
        "tick": [due.at.isoformat(timespec="microseconds") for due in dues],
        "runs": [due.runs for due in dues],
        "delay": [due.delay_seconds for due in dues],
        "channel": channel(schema),
        "by": by,
        "next_at": settled.next_at,
    }


def run_now(schema: str, name: str, by: str) -> Program[int | None]:
    """Enqueue a schedule's job now; its id, or None where there is no such schedule."""
    words = {"name": name, "by": by, "channel": channel(schema)}
    rows = yield schedule_statements(schema).run_now, words
    return int(rows[0][0]) if rows else None


def statements(schema: str) -> dict[str, str]:
    """Name and text of each statement, for the golden files."""
    known = schedule_statements(schema)
    return {name: getattr(known, name).text for name in ScheduleStatements.__slots__}
