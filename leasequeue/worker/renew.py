"""The renewer: keeps what this process holds, on a thread and a connection of its own, until the last handler has ended.

Neither a blocked event loop nor a long handler can delay it; it begins before the first claim and ends after the last
completion. A tick comes every sixth of the ttl and renews what would be older than a third of it before the next. A
row that a renewal does not return is lost only if a plain read misses it too: it may just be locked by the application's
own ``complete(conn)``.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING

from leasequeue.db.jobs import JobStatements
from leasequeue.loop import Loop, Outage
from leasequeue.worker.hand import Claimed, Hand

if TYPE_CHECKING:
    from leasequeue.db.connect import Link
    from leasequeue.worker.execute import Executor
    from leasequeue.worker.page import Page

log = logging.getLogger("leasequeue.worker")

BATCH_MAX = 1000
LOOK_SECONDS = 0.1


class Renewer(Loop):
    """One thread that renews, and does the process's chores between renewals.

    Args:
        chores: called with this loop's connection after each round of renewals, in this order; each decides by itself
            whether anything is due, and must be quick.
        farewell: called with the connection as the last thing.
        hurrying: look for cancellations by itself, as after :meth:`hurry`: no notification comes here.
    """

    def __init__(
        self,
        link: Link,
        outage: Outage,
        sql: JobStatements,
        page: Page,
        hand: Hand,
        executor: Executor,
        ttl_seconds: float,
        chores: list[Callable[[Link], None]],
        farewell: Callable[[Link], None],
        hurrying: bool = False,
    ) -> None:
        super().__init__("renewer", link, outage)
        self._sql = sql
        self._page = page
        self._hand = hand
        self._executor = executor
        self._ttl_seconds = ttl_seconds
        self._tick_seconds = min(1.0, ttl_seconds / 6)
        self._hurrying = hurrying
        self._asked: set[int] = set()
        self._asking = threading.Lock()
        self._chores = chores
        self._farewell = farewell
        self.lost = 0

    def asked(self, id: int) -> None:
        """A notification says that a job is to be cancelled: look at once, not with its next renewal. Any thread."""
        with self._asking:
            self._asked.add(id)
        self.wake()

    def hurry(self) -> None:
        """From now on nobody listens for notifications: look by itself, every 100 ms. Any thread."""
        self._hurrying = True
        self.wake()

    def turn(self) -> None:
        self._page.stamp("renew_turn")
        now = time.monotonic()
        # An old renewal is due when it would be older than a third of the ttl before the next tick.
        oldest = now + self._tick_seconds - self._ttl_seconds / 3
        by_holder: dict[uuid.UUID, list[Claimed]] = {}
        for job in self._hand.jobs():
            if job.renewed <= oldest and job.stop_reason != "lost" and not job.given_up:
                by_holder.setdefault(job.holder, []).append(job)
        for holder, jobs in by_holder.items():
            for start in range(0, len(jobs), BATCH_MAX):
                self._renew(holder, jobs[start : start + BATCH_MAX])
        if self._asked or self._hurrying:
            self._look_for_cancels()
        for chore in self._chores:
            chore(self.link)
        self._page.stamp("renew_ok")
        self._page.rest("renew_turn")
        tick = min(LOOK_SECONDS, self._tick_seconds) if self._hurrying else self._tick_seconds
        self.pause(max(0.0, now + tick - time.monotonic()))

    def interrupted(self) -> None:
        # The turn is over: a database that is away for long must not look like a loop that hangs.
        self._page.rest("renew_turn")

    def _renew(self, holder: uuid.UUID, jobs: list[Claimed]) -> None:
        sent = time.monotonic()
        params = {"ids": [j.id for j in jobs], "terms": [j.term for j in jobs], "me": holder}
        rows = dict(self.link.run(self._sql.renew, params | {"ttl": self._ttl_seconds}))
        missing = []
        for job in jobs:
            cancel = rows.get(job.id)
            if cancel is None:
                missing.append(job)
                continue
            # From before the request was sent: the reply's own clock would trust the lease for longer than the row does.
            job.renewed = sent
            if cancel:
                self._executor.stop_job(job, "cancelled")
        if missing:
            self._judge(holder, missing)

    def _look_for_cancels(self) -> None:
        """Read the wish to cancel of those that it may be about. A plain read: it waits for nobody's lock."""
        with self._asking:
            asked, self._asked = self._asked, set()
        by_holder: dict[uuid.UUID, list[Claimed]] = {}
        for job in self._hand.jobs():
            if job.stop_reason is None and not job.ended and (self._hurrying or job.id in asked):
                by_holder.setdefault(job.holder, []).append(job)
        for holder, jobs in by_holder.items():
            params = {"ids": [j.id for j in jobs], "terms": [j.term for j in jobs], "me": holder}
            cancelled = {row[0] for row in self.link.run(self._sql.read_cancelled, params)}
            for job in jobs:
                if job.id in cancelled:
                    self._executor.stop_job(job, "cancelled")

    def _judge(self, holder: uuid.UUID, missing: list[Claimed]) -> None:
        params = {"ids": [j.id for j in missing], "terms": [j.term for j in missing], "me": holder}
        held = {row[0] for row in self.link.run(self._sql.read_held, params)}
        for job in missing:
            # One that has not started is judged when it would start, by its age. One that has ended may have been written
            # by the completer between our two statements; its end says by itself whether it was refused.
            if job.id in held or job.ctx is None or job.ended or job.ctx.completed:
                continue
            self.lost += 1
            log.error(
                "the lease on job %s (%s) in term %s is lost while it runs: it is told to stop, and its end will be refused",
                job.id, job.task_name, job.term,
            )  # fmt: skip
            self._executor.stop_job(job, "lost")

    def ended(self) -> None:
        if self.link.connected:
            self._guarded(lambda: self._farewell(self.link))
