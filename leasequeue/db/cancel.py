"""The program behind ``lq.cancel(conn, id)``: the statements of an operator's cancel, in an application's transaction.

Locks: the job's row, until that transaction ends, always with SKIP LOCKED. A row that somebody else has locked, which is being
claimed, renewed or ended right now, is looked at again a few times; what is locked for longer is being completed in a
transaction of its handler's own. Of a job that others wait for then the rows behind it, which are waited for: see
``db/ends.py``.
"""

from __future__ import annotations

import functools
import time
from typing import Literal, TypeAlias

from leasequeue.db import admin
from leasequeue.db.ends import end_statements
from leasequeue.db.names import CANCEL, channel
from leasequeue.db.program import sqlstate
from leasequeue.db.statement import Program, Statement, Target
from leasequeue.errors import WorkflowChanged

LOCKED_SECONDS = 1.0
_DIVISION_BY_ZERO = "22012"

Cancellation: TypeAlias = Literal["cancelled", "asked to stop", "had finished", "not found", "locked"]


@functools.cache
def _statements(schema: str) -> dict[str, Statement]:
    wanted = ("cancel_waiting", "request_cancel", "cancel_state", "lock_joined", "cancel_within", "rest")
    texts = admin.statements(schema) | {"cancel_within": end_statements(schema).cancel_within}
    return {name: Statement(texts[name]) for name in wanted}


def cancel_one(target: Target, schema: str, id: int, by: str) -> Program[Cancellation]:
    """Cancel one job; says what was done.

    Raises:
        WorkflowChanged: a step was added, at that very moment, behind one that falls with it.
    """
    sql = _statements(schema)
    until = time.monotonic() + LOCKED_SECONDS
    # Not in a two-phase transaction, which can notify nobody; its wish is found with the next renewal.
    notify = target.may_notify(channel(schema), f"{CANCEL}{id}")
    while True:
        if (yield sql["cancel_waiting"], {"id": id, "reason": f"cancelled by {by}"}):
            return "cancelled"
        if (yield sql["request_cancel"], {"id": id, "by": by, "notify": notify}):
            return "asked to stop"
        found = yield sql["cancel_state"], {"id": id}
        if not found:
            return "not found"
        state, asked, has_children = found[0]
        if state == "f":
            return "had finished"
        if state == "l" and asked:
            return "asked to stop"
        # Locked first, so that the next statement's snapshot (in READ COMMITTED) has every child that was added before.
        if has_children and state != "l" and (yield sql["lock_joined"], {"id": id}):
            try:
                yield sql["cancel_within"], {"id": id, "reason": f"cancelled by {by}"}
            except Exception as error:
                if sqlstate(error) == _DIVISION_BY_ZERO:
                    target.doom()
                    raise WorkflowChanged(id, "cancelled") from error
                raise
            return "cancelled"
        if time.monotonic() > until:
            return "locked"
        yield sql["rest"], {}
