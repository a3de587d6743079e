"""The fence of a lease: a proof in a caller's own transaction that the lease is held, and keeps takers out until its end.

Locks: the row of the lease, ``FOR KEY SHARE``, until the caller's transaction ends: taking it waits for no fence and skips
the row; the holder's own renewals and its release pass (see ``db/leases.py``).
"""

from __future__ import annotations

import functools

from leasequeue.db.leases import CLOCK
from leasequeue.db.names import fill
from leasequeue.db.program import sqlstate
from leasequeue.db.statement import Program, Statement, Target
from leasequeue.errors import ConfigurationError, LeaseLost

_DIVISION_BY_ZERO = "22012"
# now() is the start of the transaction: two statements of one transaction agree on it.
_BEGAN = "CAST(extract(epoch FROM now()) * 1000000 AS bigint)"
_ISOLATION = Statement(f"SELECT current_setting('transaction_isolation'), {_BEGAN}")


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
    params = {"name": name, "slot": slot, "term": term, "holder": holder}
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


# The clock after the lock: judged outside of the statement's locking part, which may have waited. 1/0 where it is not held:
# the error aborts the transaction in the server, whatever the caller does with it.
_FENCE = f"""WITH k AS MATERIALIZED (
    SELECT expires_at FROM {{s}}.leasequeue_lease
    WHERE name = %(name)s::text AND slot = %(slot)s::smallint AND term = %(term)s::bigint
        AND holder = %(holder)s::text::uuid
    FOR KEY SHARE
), d AS MATERIALIZED (
    SELECT set_config('{_IDLE}', least({_REST}, nullif({_OWN}, 0))::bigint::text, true) AS idle
    FROM k WHERE k.expires_at > {{clock}}
)
SELECT 1 / count(idle) AS held, {_BEGAN} AS began FROM d"""


@functools.cache
def _fence(schema: str) -> Statement:
    return Statement(statements(schema)["fence"])


def statements(schema: str, clock: str = CLOCK) -> dict[str, str]:
    """Name and text of each statement, for the golden files; with another clock in tests."""
    return fill(schema, {"fence": _FENCE.replace("{clock}", clock)})
