"""The statements that write limits, and wake the jobs that may run under the new ones.

A limit has up to two rows: one that an operator set, one that the code declares. Those of the code are written by whichever
worker starts, as one set: the row of its application says which release wrote them last, and has a version, so that of two who
start at once one reads again.

A change **wakes** the keys that may run under it, in the same transaction: without that, jobs that were held by a limit of 0
would wait for a completion that never comes. To wake a key for nothing costs one look at it. A claimer keeps the limits in
mind for a second: these wakes are for the whole key (``whole``), and who takes such a one reads the limits again first. It was
committed with the change, so what is read then knows of it, however long the transaction of the change took.

Locks: the row of an application with SKIP LOCKED; the row of a limit: another transaction that has just written the same one
is waited for. Each parameter is cast, since asyncpg wants its type.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from leasequeue.db.names import fill
from leasequeue.db.statement import Program, Statement
from leasequeue.limit import OF_QUEUE, OF_TASK, Limit

PIECE = 2_000
"""Pairs of a queue and a key that one statement looks at."""

LOOK = 100
"""Jobs of a key that are looked at for their task; a key that has more is woken in any case."""

_NAME = "CAST(%(name)s AS text)"
_APP = "CAST(%(app)s AS text)"
_VALUES = "CAST(%(running)s AS integer), CAST(%(rate)s AS integer), CAST(%(rate_seconds)s AS float8)"

_SET = f"""INSERT INTO {{s}}.leasequeue_limit (name, declared, max_running, rate_max, rate_seconds, updated_by)
VALUES ({_NAME}, false, {_VALUES}, CAST(%(by)s AS text))
ON CONFLICT (name, declared) DO UPDATE SET max_running = excluded.max_running, rate_max = excluded.rate_max,
    rate_seconds = excluded.rate_seconds, updated_at = clock_timestamp(), updated_by = excluded.updated_by
RETURNING name"""

_UNSET = f"DELETE FROM {{s}}.leasequeue_limit WHERE name = {_NAME} AND NOT declared RETURNING name"

# One exact key, in each queue in which it waits.
_WAKE_KEY = f"""WITH RECURSIVE found AS (
    (SELECT queue FROM {{s}}.leasequeue_job WHERE state = 'g' AND limit_key = {_NAME} ORDER BY queue LIMIT 1)
    UNION ALL
    SELECT (SELECT queue FROM {{s}}.leasequeue_job WHERE state = 'g' AND limit_key = {_NAME} AND queue > found.queue
            ORDER BY queue LIMIT 1)
    FROM found WHERE found.queue IS NOT NULL
)
INSERT INTO {{s}}.leasequeue_wake (queue, key, due_at, whole)
SELECT queue, {_NAME}, clock_timestamp(), true FROM found WHERE queue IS NOT NULL RETURNING queue"""

# Steps from one waiting key to the next different one, so that a key with 100,000 jobs costs one step. All keys are walked:
# the order of the index is that of a locale, in which those of one first part need not stand together.
_WAKE_MANY = f"""WITH RECURSIVE pair AS (
    (SELECT limit_key, queue, 1 AS place FROM {{s}}.leasequeue_job
     WHERE state = 'g' AND (limit_key, queue) > (CAST(%(after_key)s AS text), CAST(%(after_queue)s AS text))
     ORDER BY limit_key, queue LIMIT 1)
    UNION ALL
    SELECT next.limit_key, next.queue, pair.place + 1 FROM pair CROSS JOIN LATERAL (
        SELECT limit_key, queue FROM {{s}}.leasequeue_job
        WHERE state = 'g' AND (limit_key, queue) > (pair.limit_key, pair.queue)
        ORDER BY limit_key, queue LIMIT 1
    ) AS next WHERE pair.place < CAST(%(piece)s AS integer)
), looked AS MATERIALIZED (
    SELECT limit_key, queue, place FROM pair
), w AS (
    INSERT INTO {{s}}.leasequeue_wake (queue, key, due_at, whole)
    SELECT queue, limit_key, clock_timestamp(), true FROM looked
    WHERE limit_key = {_NAME} OR CASE CAST(%(kind)s AS text)
        WHEN 'prefix' THEN starts_with(limit_key, {_NAME} || ':')
        WHEN 'queue' THEN queue = CAST(%(word)s AS text)
        ELSE (SELECT bool_or(first.task = CAST(%(word)s AS text)) OR count(*) = CAST(%(look)s AS integer) FROM (
            SELECT job.task FROM {{s}}.leasequeue_job AS job
            WHERE job.state = 'g' AND job.limit_key = looked.limit_key AND job.queue = looked.queue
            LIMIT CAST(%(look)s AS integer)) AS first) END
    RETURNING key
)
SELECT last.limit_key, last.queue, last.place, (SELECT CAST(count(*) AS integer) FROM w)
FROM looked AS last ORDER BY last.place DESC LIMIT 1"""

_READ_APP = f"""SELECT version, release, CAST(extract(epoch FROM deployed_at) AS float8), CAST(releases AS text)
FROM {{s}}.leasequeue_app WHERE name = {_APP}"""

_READ_DECLARED = f"""SELECT name, max_running, rate_max, rate_seconds, app = {_APP}, app FROM {{s}}.leasequeue_limit
WHERE declared AND (app = {_APP} OR name = ANY(CAST(%(names)s AS text[]))) ORDER BY name"""

_NOW = "SELECT CAST(extract(epoch FROM clock_timestamp()) AS float8)"

_ADD_APP = f"INSERT INTO {{s}}.leasequeue_app (name) VALUES ({_APP}) ON CONFLICT DO NOTHING RETURNING name"

# What the code declares now, and nothing else of this application. What another application declares is left to it.
_DECLARE = f"""WITH a AS MATERIALIZED (
    SELECT name FROM {{s}}.leasequeue_app WHERE name = {_APP} AND version = CAST(%(version)s AS bigint) FOR UPDATE SKIP LOCKED
), u AS (
    UPDATE {{s}}.leasequeue_app AS app SET version = app.version + 1, release = CAST(%(release)s AS text),
        deployed_at = to_timestamp(CAST(%(deployed_at)s AS float8)), releases = CAST(CAST(%(releases)s AS text) AS jsonb)
    FROM a WHERE app.name = a.name RETURNING app.name
), gone AS (
    DELETE FROM {{s}}.leasequeue_limit WHERE declared AND app = {_APP} AND EXISTS (SELECT FROM a)
        AND name <> ALL (CAST(%(names)s AS text[])) RETURNING name
), put AS (
    INSERT INTO {{s}}.leasequeue_limit AS l
        (name, declared, max_running, rate_max, rate_seconds, app, deployed_at, updated_by)
    SELECT d.name, true, d.running, d.rate, d.seconds, {_APP}, to_timestamp(CAST(%(deployed_at)s AS float8)),
        CAST(%(by)s AS text)
    FROM a CROSS JOIN unnest(CAST(%(names)s AS text[]), CAST(%(running)s AS integer[]), CAST(%(rates)s AS integer[]),
        CAST(%(seconds)s AS float8[])) AS d (name, running, rate, seconds)
    ON CONFLICT (name, declared) DO UPDATE SET max_running = excluded.max_running, rate_max = excluded.rate_max,
        rate_seconds = excluded.rate_seconds, deployed_at = excluded.deployed_at, updated_at = clock_timestamp(),
        updated_by = excluded.updated_by
    WHERE l.app = excluded.app AND (l.max_running, l.rate_max, l.rate_seconds)
        IS DISTINCT FROM (excluded.max_running, excluded.rate_max, excluded.rate_seconds)
    RETURNING l.name
)
SELECT 'app', name FROM u UNION ALL SELECT 'gone', name FROM gone UNION ALL SELECT 'put', name FROM put"""


class LimitStatements(NamedTuple):
    """The statements for one schema."""

    set: Statement
    unset: Statement
    wake_key: Statement
    wake_many: Statement
    read_app: Statement
    read_declared: Statement
    now: Statement
    add_app: Statement
    declare: Statement


@functools.cache
def limit_statements(schema: str) -> LimitStatements:
    """The statements with the quoted schema name filled in; cached."""
    texts = fill(schema, {name: globals()[f"_{name.upper()}"] for name in LimitStatements._fields})
    return LimitStatements(*map(Statement, texts.values()))


def scope(name: str) -> tuple[str, str]:
    """What a limit's name is about: ``task``, ``queue``, ``key`` (one exact key) or ``prefix`` (a first part of keys, and the
    key that is just that), with the task's or queue's name, or the name itself."""
    if name.startswith(OF_TASK):
        return "task", name.removeprefix(OF_TASK)
    if name.startswith(OF_QUEUE):
        return "queue", name.removeprefix(OF_QUEUE)
    return ("key" if ":" in name else "prefix"), name


def wake(schema: str, name: str) -> Program[int]:
    """Wake the keys that a limit of this name is about, where jobs wait under them; how many, at least."""
    known = limit_statements(schema)
    kind, word = scope(name)
    if kind == "key":
        return len({queue for (queue,) in (yield known.wake_key, {"name": name})})
    woken, after = 0, ("", "")
    while True:
        rows = yield (
            known.wake_many,
            {
                "name": name,
                "kind": kind,
                "word": word,
                "after_key": after[0],
                "after_queue": after[1],
                "piece": PIECE,
                "look": LOOK,
            },
        )
        if not rows:
            return woken
        key, queue, place, count = rows[0]
        woken += int(count)
        if int(place) < PIECE:
            return woken
        after = (str(key), str(queue))


def values(name: str, limit: Limit, by: str) -> dict[str, Any]:
    """The parameters of ``set``."""
    return {"name": name, "running": limit.running, "rate": limit.rate, "rate_seconds": limit.rate_seconds, "by": by}


def declared(
    app: str,
    version: int,
    limits: Sequence[tuple[str, Limit]],
    *,
    release: str | None,
    deployed_at: float,
    releases: dict[str, float],
    by: str,
) -> dict[str, Any]:
    """The parameters of ``declare``."""
    return {
        "app": app,
        "version": version,
        "release": release,
        "deployed_at": deployed_at,
        "releases": json.dumps(releases),
        "names": [name for name, _ in limits],
        "running": [limit.running for _, limit in limits],
        "rates": [limit.rate for _, limit in limits],
        "seconds": [limit.rate_seconds for _, limit in limits],
        "by": by,
    }


def statements(schema: str) -> dict[str, str]:
    """Name and text of each statement, for the golden files."""
    return {name: each.text for name, each in limit_statements(schema)._asdict().items()}
