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
"""

from __future__ import annotations

import functools
from typing import NamedTuple

from sqlalchemy import BigInteger, ColumnElement, SmallInteger, Text, bindparam, cast, literal_column, select
from sqlalchemy.dialects.postgresql import UUID

from leasequeue.db.names import qualify
from leasequeue.db.program import sqlstate
from leasequeue.db.statement import Program, Statement, Target
from leasequeue.db.tables import tables
from leasequeue.errors import ConfigurationError, LeaseLost

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


# The fence, in a caller's own transaction.

_DIVISION_BY_ZERO = "22012"
# now() is the start of the transaction: two statements of one transaction agree on it.
_BEGAN = "CAST(extract(epoch FROM now()) * 1000000 AS bigint)"
_ISOLATION = Statement(select(literal_column("current_setting('transaction_isolation')"), literal_column(_BEGAN)))


def fence_held(target: Target, schema: str, name: str, slot: int, term: int, holder: str) -> Program[None]:
    """Prove in the caller's transaction that the lease is held, and keep takers out until that transaction ends.

    Raises:
        LeaseLost: it is not held any more; the transaction is aborted in the server.
        ConfigurationError: the transaction is not READ COMMITTED, or there is none; nothing was locked.
    """
    rows = yield _ISOLATION, {}
    isolation, began = rows[0]
    if isolation not in ("read committed", "read uncommitted"):
        raise ConfigurationError(
            f"the transaction is {isolation.upper()}, in which a snapshot hides who holds the lease {name!r} now: fence() "
            f"wants READ COMMITTED (lq.begin() opens one)"
        )
    params = {"p_name": name, "p_slot": slot, "p_term": term, "p_holder": holder}
    try:
        rows = yield _fence(schema), params
    except Exception as error:
        if sqlstate(error) == _DIVISION_BY_ZERO:
            target.doom()
            raise LeaseLost(name, term, "the fence was refused by the server") from error
        raise
    if rows[0][1] != began:
        raise ConfigurationError(
            f"fence() was called outside of a transaction (a connection in autocommit mode), where it protects nothing: begin "
            f"one, and write in it what the lease {name!r} is to protect"
        )


# An idle transaction of a machine that was cut off must end before long: it keeps every taker out. It may idle as long as
# the lease lasts, and the caller's own setting where that is less. There is no bound on its whole length: renewals go on
# beside it, so it may be longer than one ttl (see docs/decisions/0005).
_REST = "greatest(1000, ceil(extract(epoch FROM k.expires_at - {clock}) * 1000))"
_IDLE = "idle_in_transaction_session_timeout"
_OWN = f"extract(epoch FROM nullif(current_setting('{_IDLE}', true), '')::interval) * 1000"


@functools.cache
def _fence(schema: str, clock: str = CLOCK) -> Statement:
    lease = tables(schema).lease
    k = (
        select(lease.c.expires_at)
        .where(
            lease.c.name == bindparam("p_name", type_=Text),
            lease.c.slot == cast(bindparam("p_slot", type_=SmallInteger), SmallInteger),
            lease.c.term == bindparam("p_term", type_=BigInteger),
            lease.c.holder == cast(bindparam("p_holder", type_=Text), UUID),
        )
        .with_for_update(read=True, key_share=True)
        .cte("k")
        .prefix_with("MATERIALIZED")
    )
    # The clock after the lock: judged outside of the statement's locking part, which may have waited.
    rest = _REST.format(clock=clock)
    bounded: ColumnElement[str] = literal_column(
        f"set_config('{_IDLE}', least({rest}, nullif({_OWN}, 0))::bigint::text, true)"
    )
    d = select(bounded.label("idle")).where(k.c.expires_at > literal_column(clock)).cte("d").prefix_with("MATERIALIZED")
    # 1/0 where it is not held: the error aborts the transaction in the server, whatever the caller does with it.
    proof: ColumnElement[int] = literal_column("1 / count(idle)").label("held")
    return Statement(select(proof, literal_column(_BEGAN).label("began")).select_from(d))


def statements(schema: str) -> dict[str, str]:
    """Name and text of each statement, for the golden files."""
    return lease_statements(schema)._asdict() | {"fence": _fence(schema).text}
