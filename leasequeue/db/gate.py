"""The statements by which a foreign scheduler keeps the ledger: ``leasequeue.contrib`` runs them in fenced transactions.

A due time is settled by whoever inserts its row: the key is (schedule, due_at), and a second insert is nothing. Each
transaction begins with the fence of the leader's lease, so no row of an earlier term can follow one of a later.

Locks: none but those of the inserted rows; the fence's lock comes first, and ``bound`` before it.
"""

from __future__ import annotations

import datetime as dt
import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from leasequeue.db.names import fill
from leasequeue.db.statement import Program, Statement, Target

_NAME = "CAST(%(name)s AS text)"

_RECORD = f"""INSERT INTO {{s}}.leasequeue_tick (schedule, due_at, outcome, reason, decided_at, decided_by)
SELECT {_NAME}, due.due_at, due.outcome, due.reason, clock_timestamp(), CAST(%(by)s AS text)
FROM unnest(CAST(%(due_at)s AS timestamptz[]), CAST(%(outcome)s AS text[]), CAST(%(reason)s AS text[]))
    AS due (due_at, outcome, reason)
ON CONFLICT DO NOTHING RETURNING due_at"""

# Local to the transaction, and never above a smaller value of the application's. Postgres disarms it before it commits, so it
# does not cut short a COMMIT that waits for its standby, whose row would then count and could be lost.
_BOUND = """SELECT set_config('statement_timeout', CAST(least(
    CAST(%(milliseconds)s AS bigint),
    nullif(CAST(extract(epoch FROM CAST(current_setting('statement_timeout') AS interval)) * 1000 AS bigint), 0)
) AS text), true) AS bound"""

_ONE = f"""SELECT outcome, decided_by FROM {{s}}.leasequeue_tick
WHERE schedule = {_NAME} AND due_at = CAST(%(due_at)s AS timestamptz)"""

_LAST = f"""SELECT due_at FROM {{s}}.leasequeue_tick
WHERE schedule = {_NAME} AND outcome <> 'redefined' ORDER BY due_at DESC LIMIT CAST(%(limit)s AS integer)"""

# Walks the key backwards; once for each job of a leader that begins.
_DEFINED = f"""SELECT due_at, reason FROM {{s}}.leasequeue_tick
WHERE schedule = {_NAME} AND outcome = 'redefined' ORDER BY due_at DESC LIMIT 1"""


class GateStatements(NamedTuple):
    """The statements for one schema."""

    record: Statement
    bound: Statement
    one: Statement
    last: Statement
    defined: Statement


@functools.cache
def gate_statements(schema: str) -> GateStatements:
    """The statements with the quoted schema name filled in; cached."""
    texts = fill(schema, {name: globals()[f"_{name.upper()}"] for name in GateStatements._fields})
    return GateStatements(*map(Statement, texts.values()))


@dataclass(frozen=True, slots=True)
class Tick:
    """A row of the ledger to be written: ``outcome`` is one of those of ``leasequeue.tick``, or ``redefined``."""

    due_at: dt.datetime
    outcome: str
    reason: str | None = None


class Known(NamedTuple):
    """What the ledger knows of a job.

    Attributes:
        due_at: its last due times that are settled, ascending.
        defined_at, definition: the last event of its definition, and what that said; None where there is none.
    """

    due_at: list[dt.datetime]
    defined_at: dt.datetime | None
    definition: str | None


def bound(target: Target, schema: str, seconds: float) -> Program[None]:
    """Let no later statement of this transaction, which is one of our own, take longer than ``seconds``."""
    yield gate_statements(schema).bound, {"milliseconds": max(1, int(seconds * 1000))}


def record(target: Target, schema: str, name: str, ticks: Sequence[Tick], by: str) -> Program[set[dt.datetime]]:
    """Settle due times. Returns those that were not settled before."""
    rows = yield (
        gate_statements(schema).record,
        {
            "name": name,
            "by": by,
            "due_at": [tick.due_at for tick in ticks],
            "outcome": [tick.outcome for tick in ticks],
            "reason": [tick.reason for tick in ticks],
        },
    )
    return {due_at for (due_at,) in rows}


def claim(target: Target, schema: str, name: str, tick: Tick, by: str) -> Program[bool]:
    """Settle one due time; whether it is settled by ``by``, which nobody else may use for it.

    So a claim whose answer was lost with the connection may be made again.
    """
    if (yield from record(target, schema, name, [tick], by)):
        return True
    rows = yield gate_statements(schema).one, {"name": name, "due_at": tick.due_at}
    return [tuple(row) for row in rows] == [(tick.outcome, by)]


def known(target: Target, schema: str, name: str, limit: int) -> Program[Known]:
    """What the ledger knows of a job: at most ``limit`` due times, the last ones."""
    statements = gate_statements(schema)
    rows = yield statements.last, {"name": name, "limit": limit}
    defined = yield statements.defined, {"name": name}
    at, reason = defined[0] if defined else (None, None)
    return Known(sorted(due_at.astimezone(dt.UTC) for (due_at,) in rows), at, reason)


def statements(schema: str) -> dict[str, str]:
    """Name and text of each statement, for the golden files."""
    return {name: each.text for name, each in gate_statements(schema)._asdict().items()}
