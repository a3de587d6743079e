"""Runs suspects: jobs that were running when their process died. One at a time, in a process that does nothing else.

If one of them kills this process too, it takes nobody with it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from leasequeue.db.gates import GateStatements
from leasequeue.db.jobs import JobStatements
from leasequeue.loop import Loop, Outage
from leasequeue.worker.gate import claim_suspect
from leasequeue.worker.hand import Claimed, Hand, Holder, Slots

if TYPE_CHECKING:
    from leasequeue.db.connect import Link
    from leasequeue.worker.execute import Executor
    from leasequeue.worker.strays import Strays

POLL_SECONDS = 0.05
IDLE_SECONDS = 1.0
"""Without a suspect for this long the process ends; the supervisor keeps another one ready."""


class SuspectClaimer(Loop):
    """Claims one suspect when the slot is free; ends by itself when there are none."""

    def __init__(
        self,
        link: Link,
        outage: Outage,
        sql: JobStatements,
        gates: GateStatements,
        hand: Hand,
        holder: Holder,
        slots: Slots,
        executor: Executor,
        task_of: Callable[[str], Any],
        strays: Strays,
        queues: list[str],
        ttl_seconds: float,
    ) -> None:
        super().__init__("suspects", link, outage)
        self._sql = sql
        self._gates = gates
        self._hand = hand
        self._holder = holder
        self._slots = slots
        self._executor = executor
        self._task_of = task_of
        self._strays = strays
        self._queues = queues
        self._ttl_seconds = ttl_seconds
        self._idle_since = time.monotonic()
        self.claims = 0
        self.claim_seconds = 0.0

    def connected(self) -> None:
        if self.link.generation > 1:
            self._strays.suspect(self._holder.renew())

    def rescan(self) -> None:
        """Suspects are always read from the beginning."""

    def turn(self) -> None:
        if self._slots.in_hand() > 0:
            self._idle_since = time.monotonic()
            self.pause(0.005)
            return
        now = time.monotonic()
        me = self._holder.current
        params = {"me": me, "ttl": self._ttl_seconds, "queues": self._queues}
        rows, waiting = self.link.run(self._sql.claim_suspect, params), False
        if not rows:
            rows, waiting = claim_suspect(self.link, self._gates, params)
        self.claims += 1
        self.claim_seconds += time.monotonic() - now
        if not rows:
            if waiting:
                self._idle_since = now  # for a slot of its limit: another process would only wait, too
            if now - self._idle_since > IDLE_SECONDS:
                self.stop()
            self.pause(POLL_SECONDS)
            return
        row = rows[0]
        job = Claimed(row, me, row[9], self._task_of(row[2]), now)
        self._hand.add([job])
        self._slots.claimed += 1
        self._executor.submit(self._slots, [job])
