"""The fence of a lease: a proof in a caller's own transaction that the lease is held, and keeps takers out until its end.

Locks: the row of the lease, ``FOR KEY SHARE``, until the caller's transaction ends: taking it waits for no fence and skips
the row; the holder's own renewals and its release pass (see ``db/leases.py``).
"""

from __future__ import annotations

import functools

from sqlalchemy import BigInteger, ColumnElement, SmallInteger, Text, bindparam, cast, literal_column, select
from sqlalchemy.dialects.postgresql import UUID

from leasequeue.db.leases import CLOCK
from leasequeue.db.program import sqlstate
from leasequeue.db.statement import Program, Statement, Target
from leasequeue.db.tables import tables
from leasequeue.errors import ConfigurationError, LeaseLost

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
    return {"fence": _fence(schema).text}
