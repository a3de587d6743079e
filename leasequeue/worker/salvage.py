"""What a supervisor does in the database for its processes: it lets go of what the dead held, renews for those that cannot
answer, and looks for suspects. A thread and a connection of its own, so that a database that is away delays no signal.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from leasequeue.db.ends import EndStatements
from leasequeue.db.jobs import JobStatements
from leasequeue.loop import Loop, Outage
from leasequeue.worker.bury import bury
from leasequeue.worker.hand import holder_range
from leasequeue.worker.page import Started
from leasequeue.worker.unstarted import give_back

if TYPE_CHECKING:
    from leasequeue.db.connect import Link

log = logging.getLogger("leasequeue.supervisor")

AGAIN_SECONDS = 0.1
FOR_SECONDS = 5.0
"""How long the dead's rows are looked for again: one statement bound. A claim that was on its way may commit that late."""

OVERDUE_SECONDS = 1.0
"""The same for one that ended in order but for its handlers: no claim was on its way, only the application's own
transactions have to break off."""

SUSPECTS_EVERY_SECONDS = 2.0


@dataclass(slots=True)
class Dead:
    """A process that is gone, and what its page said.

    ``suspect``: it crashed, so what had started is suspect; otherwise we ended it, and its jobs go back as they were.
    ``alone``: it ran suspects, so what it had not started is still one.
    ``for_seconds``: how long its rows are looked for again.
    """

    prefix: bytes
    started: list[Started]
    reason: str
    suspect: bool
    alone: bool
    for_seconds: float = FOR_SECONDS
    until: float | None = None


class Salvage(Loop):
    """The supervisor's one thread that talks to the database.

    Args:
        on_ready: called with the number of suspects that wait, or when rows became ready below the floors of others.
    """

    def __init__(
        self,
        link: Link,
        outage: Outage,
        sql: JobStatements,
        ends: EndStatements,
        unregister: str,
        queues: list[str],
        ttl_seconds: float,
        max_abandoned: int,
        on_suspects: Callable[[int], None],
        on_ready: Callable[[], None],
    ) -> None:
        super().__init__("salvage", link, outage)
        self._sql = sql
        self._ends = ends
        self._unregister = unregister
        self._queues = queues
        self._ttl_seconds = ttl_seconds
        self._max_abandoned = max_abandoned
        self._on_suspects = on_suspects
        self._on_ready = on_ready
        self._lock = threading.Lock()
        self._dead: list[Dead] = []
        self._renewals: list[tuple[bytes, list[Started], str]] = []
        self._suspects_due = 0.0
        self._worker = f"{socket.gethostname()}:{os.getpid()}"

    def release(self, dead: Dead) -> None:
        """Let go of what a dead process held, now and for a while. Any thread."""
        with self._lock:
            self._dead.append(dead)
        self.wake()

    def renew_for(self, prefix: bytes, started: list[Started], who: str) -> None:
        """Renew the started jobs of a process that cannot do it itself. Any thread."""
        with self._lock:
            self._renewals.append((prefix, started, who))
        self.wake()

    def idle(self) -> bool:
        """Whether no dead process is being looked after. Any thread."""
        with self._lock:
            return not self._dead

    def done(self) -> bool:
        return self.stopping and self.idle()

    def turn(self) -> None:
        now = time.monotonic()
        with self._lock:
            dead = list(self._dead)
            renewals, self._renewals = self._renewals, []
        for one in dead:
            self._release(one)
        for prefix, started, who in renewals:
            self._renew_for(prefix, started, who)
        if now >= self._suspects_due and not self.stopping:
            self._suspects_due = now + SUSPECTS_EVERY_SECONDS
            self._look_for_suspects()
        self.pause(AGAIN_SECONDS if dead else max(0.0, self._suspects_due - time.monotonic()))

    def _release(self, dead: Dead) -> None:
        first, last = holder_range(dead.prefix)
        rows = give_back(
            self.link,
            self._sql.release_dead,
            {
                "first": first,
                "last": last,
                "ids": [entry.id for entry in dead.started],
                "terms": [entry.term for entry in dead.started],
                "suspect": dead.suspect,
                "back": "q" if dead.alone else "r",
                "reason": dead.reason,
                "worker": self._worker,
            },
        )
        if rows:
            started = [row for row in rows if row[1]]
            log.warning(
                "%s: %d jobs that were running are %s, %d that had not started are ready again",
                dead.reason, len(started), "to be run alone" if dead.suspect else "ready again", len(rows) - len(started),
            )  # fmt: skip
            self._bury()
            self._on_ready()
            if started and dead.suspect:
                self._look_for_suspects()
        now = time.monotonic()
        if dead.until is None:
            self.link.run(self._unregister, {"id": first})
            dead.until = now + dead.for_seconds
        elif now > dead.until:
            with self._lock:
                self._dead.remove(dead)

    def _bury(self) -> None:
        bury(self.link, self._sql, self._ends, self._max_abandoned)

    def _look_for_suspects(self) -> None:
        count = self.link.run(self._sql.count_suspects, {"queues": self._queues})[0][0]
        if count:
            self._on_suspects(count)

    def _renew_for(self, prefix: bytes, started: list[Started], who: str) -> None:
        first, last = holder_range(prefix)
        rows = self.link.run(
            self._sql.renew_for,
            {
                "first": first,
                "last": last,
                "ids": [entry.id for entry in started],
                "terms": [entry.term for entry in started],
                "ttl": self._ttl_seconds,
            },
        )
        if rows:
            log.warning(
                "%s does not answer (a handler keeps the interpreter to itself); its leases are renewed for it: %s",
                who, ", ".join(f"{task} (job {id})" for id, task in rows[:5]),
            )  # fmt: skip
