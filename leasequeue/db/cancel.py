"""The program behind ``lq.cancel(conn, id)``: the statements of an operator's cancel, in an application's transaction.

Locks: the job's row, until that transaction ends, always with SKIP LOCKED. A row that somebody else has locked, which is being
claimed, renewed or ended right now, is looked at again a few times; what is locked for longer is being completed in a
transaction of its handler's own.
"""

from __future__ import annotations

import functools
import time
from typing import Literal, TypeAlias

from leasequeue.db import admin
from leasequeue.db.names import CANCEL, channel
from leasequeue.db.program import Program, Statement, Target, statement_of
from leasequeue.errors import ActionRefused

LOCKED_SECONDS = 1.0

Cancellation: TypeAlias = Literal["cancelled", "asked to stop", "had finished", "not found", "locked"]


@functools.cache
def _statements(schema: str) -> dict[str, Statement]:
    wanted = ("cancel_waiting", "request_cancel", "cancel_state", "rest")
    texts = admin.statements(schema)
    return {name: statement_of(texts[name]) for name in wanted}


def cancel_one(target: Target, schema: str, id: int, by: str) -> Program[Cancellation]:
    """Cancel one job; says what was done.

    Raises:
        ActionRefused: it waits as a part of a workflow, which is cancelled as a whole.
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
        if has_children and state != "l":
            raise ActionRefused(
                id, "cancel", state, "it waits as a part of a workflow, with others behind it: cancel those"
            )
        if time.monotonic() > until:
            return "locked"
        yield sql["rest"], {}
