"""The statements by which named leases are held: leadership, locks, the slots of a semaphore.

The states of a row::

    (no row) ──create──> held ──renew──> held
                         │  │
                         │  └──release──> free ──take──> held, in a later term
                         └──expires──────────────take──> held, in a later term

Locks: taking, renewing and releasing lock one row, with SKIP LOCKED, and wait for nobody. So none goes on with a clock from
before a wait, and none can deadlock. Taking locks ``FOR UPDATE``, which no open fence (``FOR KEY SHARE``) lets pass;
renewing and releasing lock ``FOR NO KEY UPDATE``, which the holder's own fences do let pass. Three others wait, for the
length of one statement of ours: a create for another create of the same slot, the note of a refusal for another of the same
minute, a resize for whatever has a row locked; rows are locked in the order of their slots.

What a holder writes goes through one predicate, HELD: name, slot, term and holder. Two statements are an operator's, who
holds nothing: a forced release, which leaves the expiry, and a resize, which touches no lease. Every time is the clock of the
database, ``clock_timestamp()``, judged once more on the locked row. A term is the greater of the last one plus one and the
clock in milliseconds, so it grows also over rows that were pruned, and over a promoted standby that lost the last ones.

A clean release empties ``expires_at``: the next may take the row at once. A forced one leaves it: the holder, who still
trusts its lease until shortly before then, learns of it with its next renewal, and nobody takes the row before.

The fence, which proves in a caller's own transaction that a lease is held, is in ``db/fence.py``.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

from leasequeue.db.names import qualify

HELD = "name = %(name)s AND slot = %(slot)s AND term = %(term)s AND holder = %(holder)s"

_FREE = "((holder IS NULL AND expires_at IS NULL) OR expires_at <= {clock})"
_UNTIL = "{clock} + %(ttl)s * interval '1 second'"
_MILLISECONDS = "(extract(epoch FROM {clock}) * 1000)::bigint"

# A clash of two who create the same slot: one gets nothing, and asks again.
_CREATE = f"""WITH l AS (
    INSERT INTO {{s}}.leasequeue_lease (name, slot, holder, term, owner, acquired_at, renewed_at, expires_at, slots)
    SELECT %(name)s, missing.slot, %(holder)s, {_MILLISECONDS}, %(owner)s, {{clock}}, {{clock}}, {_UNTIL}, %(slots)s
    FROM (
        SELECT each.slot FROM generate_series(0, %(slots)s - 1) AS each (slot)
        WHERE NOT EXISTS (SELECT FROM {{s}}.leasequeue_lease AS there WHERE there.name = %(name)s AND there.slot = each.slot)
        ORDER BY each.slot LIMIT 1
    ) AS missing
    WHERE NOT EXISTS (SELECT FROM {{s}}.leasequeue_lease AS there WHERE there.name = %(name)s AND there.slots <> %(slots)s)
    ON CONFLICT DO NOTHING
    RETURNING slot, term, holder, owner
), e AS (
    INSERT INTO {{s}}.leasequeue_lease_event (name, slot, event, holder, term, owner, at)
    SELECT %(name)s, slot, 'acquired', holder, term, owner, {{clock}} FROM l
)
SELECT slot, term FROM l"""

_TAKE = f"""WITH k AS MATERIALIZED (
    SELECT name, slot, holder, term, owner, expires_at FROM {{s}}.leasequeue_lease
    WHERE name = %(name)s AND slots = %(slots)s AND slot < slots AND {_FREE}
    ORDER BY slot LIMIT 1 FOR UPDATE SKIP LOCKED
), l AS (
    UPDATE {{s}}.leasequeue_lease AS lease
    SET holder = %(holder)s, owner = %(owner)s, term = greatest(k.term + 1, {_MILLISECONDS}),
        acquired_at = {{clock}}, renewed_at = {{clock}}, expires_at = {_UNTIL}
    FROM k WHERE lease.name = k.name AND lease.slot = k.slot
    RETURNING lease.slot, lease.term, lease.holder, lease.owner, k.holder AS was, k.term AS was_term, k.owner AS was_owner,
        k.expires_at AS was_until
), e AS (
    INSERT INTO {{s}}.leasequeue_lease_event (name, slot, event, holder, term, owner, at, reason)
    SELECT %(name)s, slot, CASE WHEN was IS NULL THEN 'acquired' ELSE 'taken over' END, holder, term, owner, {{clock}},
        CASE WHEN was IS NOT NULL THEN
            'from ' || coalesce(was_owner, '?') || ', whose term ' || was_term || ' expired at ' || was_until END
    FROM l
)
SELECT slot, term FROM l"""

_RENEW = f"""WITH k AS MATERIALIZED (
    SELECT name, slot, expires_at FROM {{s}}.leasequeue_lease WHERE {HELD} FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE {{s}}.leasequeue_lease AS lease SET renewed_at = {{clock}}, expires_at = {_UNTIL}
FROM k WHERE lease.name = k.name AND lease.slot = k.slot AND k.expires_at > {{clock}}
RETURNING extract(epoch FROM lease.expires_at - {{clock}})::float8"""

_RELEASE = f"""WITH k AS MATERIALIZED (
    SELECT name, slot, holder, owner FROM {{s}}.leasequeue_lease WHERE {HELD} FOR NO KEY UPDATE SKIP LOCKED
), l AS (
    UPDATE {{s}}.leasequeue_lease AS lease
    SET holder = NULL, owner = NULL, renewed_at = {{clock}}, expires_at = NULL
    FROM k WHERE lease.name = k.name AND lease.slot = k.slot
    RETURNING lease.slot, lease.term, k.holder, k.owner
), e AS (
    INSERT INTO {{s}}.leasequeue_lease_event (name, slot, event, holder, term, owner, at, reason)
    SELECT %(name)s, slot, 'released', holder, term, owner, {{clock}}, %(reason)s FROM l
)
SELECT pg_notify(%(channel)s, %(name)s) FROM l"""

# Only the text says that it was forced: who holds the row is not asked.
_FORCE = """WITH k AS MATERIALIZED (
    SELECT name, slot, holder, owner FROM {s}.leasequeue_lease
    WHERE name = %(name)s AND (%(slot)s::int IS NULL OR slot = %(slot)s::int) AND holder IS NOT NULL
    ORDER BY slot FOR NO KEY UPDATE SKIP LOCKED
), l AS (
    UPDATE {s}.leasequeue_lease AS lease SET holder = NULL, owner = NULL
    FROM k WHERE lease.name = k.name AND lease.slot = k.slot
    RETURNING lease.slot, lease.term, k.holder, k.owner, lease.expires_at
), e AS (
    INSERT INTO {s}.leasequeue_lease_event (name, slot, event, holder, term, owner, at, reason)
    SELECT %(name)s, slot, 'released', holder, term, owner, {clock}, %(reason)s FROM l
)
SELECT slot, term, owner, extract(epoch FROM expires_at)::float8, extract(epoch FROM expires_at - {clock})::float8 FROM l"""

_RESIZE = """WITH k AS MATERIALIZED (
    SELECT name, slot FROM {s}.leasequeue_lease WHERE name = %(name)s ORDER BY slot FOR NO KEY UPDATE
)
UPDATE {s}.leasequeue_lease AS lease SET slots = %(slots)s
FROM k WHERE lease.name = k.name AND lease.slot = k.slot RETURNING lease.slot"""

# What stands in the way, read without a write. `free`: it could be taken, and yet was skipped: somebody has it locked.
_READ = f"""SELECT slot, slots, holder, term, owner, extract(epoch FROM acquired_at)::float8,
    extract(epoch FROM expires_at)::float8, {_FREE}, extract(epoch FROM {{clock}})::float8
FROM {{s}}.leasequeue_lease WHERE name = %(name)s ORDER BY slot"""

_NOTE_LOST = """INSERT INTO {s}.leasequeue_lease_event (name, slot, event, holder, term, owner, at, reason)
VALUES (%(name)s, %(slot)s, 'lost', %(holder)s, %(term)s, %(owner)s, {clock}, %(reason)s) RETURNING id"""

# One row per owner, reason and minute, whoever asks how often; who held it in which term is that of the last one.
_NOTE_REFUSED = """INSERT INTO {s}.leasequeue_lease_event AS event
    (name, slot, event, holder, term, owner, at, count, reason)
VALUES (%(name)s, 0, 'refused', %(holder)s, %(term)s, %(owner)s, {clock}, %(count)s, %(reason)s)
ON CONFLICT (name, owner, reason, date_trunc('minute', at AT TIME ZONE 'UTC')) WHERE event = 'refused'
DO UPDATE SET count = event.count + excluded.count, at = excluded.at, holder = excluded.holder, term = excluded.term
RETURNING id"""


def clip(reason: str) -> str:
    """A reason as a row can hold it: short, and without what PostgreSQL's text cannot."""
    return reason.replace("\0", "\\0").encode("utf-8", "backslashreplace").decode()[:500]


class LeaseStatements(NamedTuple):
    """The statements for one schema, ready for ``Link.run``. Parameters are named in the texts above."""

    create: str
    take: str
    renew: str
    release: str
    force: str
    resize: str
    read: str
    note_lost: str
    note_refused: str


CLOCK = "clock_timestamp()"


@functools.cache
def lease_statements(schema: str, clock: str = CLOCK) -> LeaseStatements:
    """The statements with the quoted schema name filled in; cached.

    Args:
        clock: the expression of the present time. Tests move a clock of their own.
    """
    quoted = qualify(schema).replace("%", "%%")
    texts = {name: globals()[f"_{name.upper()}"].format(s=quoted, clock=clock) for name in LeaseStatements._fields}
    return LeaseStatements(**texts)


def statements(schema: str) -> dict[str, str]:
    """Name and text of each statement, for the golden files."""
    return lease_statements(schema)._asdict()
