"""Ends that the claimer writes itself, together with the claim of the next job of their key.

    handler ends ──> offer ──few, and the claimer takes them──> claimer: end and next claim, one transaction
                       │                                          │ not taken in time, not written
                       └───────────all others────────────────> completer

A key with a limit of 1 has nothing else to do until its job has ended: written by the completer and claimed by the claimer,
that is two transactions and a wake between them for each job. With many ends at once the two of them are quicker, each on a
connection of its own.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any

import psycopg

from leasequeue.db.arrays import numbers, texts
from leasequeue.errors import OutcomeUnknown
from leasequeue.worker.gate import Followed, Gate
from leasequeue.worker.hand import Ended, Outcome

if TYPE_CHECKING:
    from leasequeue.db.connect import Link

log = logging.getLogger("leasequeue.worker")

FEW = 8
"""Ends that wait for the claimer at most."""

FEW_PER_SECOND = 1000.0
"""Handlers that end per second, above which it takes none."""

LONG_SECONDS = 0.25
"""What has waited so long goes to the completer: a statement of the claimer hangs."""


class Relay:
    """What waits for the claimer. Thread-safe.

    Args:
        finish: the completer's intake.
        keeps: whether a queue keeps a history.

    ``wake`` is called, from the handler's thread, when something was put here.
    """

    def __init__(self, finish: Callable[[Ended], None], keeps: Callable[[str], bool]) -> None:
        self.wake: Callable[[], None] = lambda: None
        self._finish = finish
        self._keeps = keeps
        self._lock = threading.Lock()
        self._waiting: list[Ended] = []
        self._since = 0.0  # when the first of them came
        self._open: Collection[str] = ()
        self._ended = False

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def offer(self, ended: Ended) -> None:
        """A job that passed a gate, or is part of a workflow, has ended: its end goes to whoever is to write it."""
        if ended.outcome is Outcome.SUCCEEDED and not ended.job.joined and self._takes(ended):
            self.wake()
        else:
            self._finish(ended)

    def _takes(self, ended: Ended) -> bool:
        with self._lock:
            if ended.job.queue not in self._open or len(self._waiting) >= FEW:
                return False
            if not self._waiting:
                self._since = time.monotonic()
            self._waiting.append(ended)
            return True

    def open(self, queues: Collection[str]) -> None:
        """Of which queues ends are taken from now on; what waits goes on waiting. For the claimer."""
        with self._lock:
            self._open = () if self._ended else queues

    def close(self) -> None:
        """Take none any more; what waits goes to the completer. Any thread."""
        self.open(())
        for ended in self._take():
            self._finish(ended)

    def look(self, now: float) -> None:
        """Close where something has waited too long, until the claimer opens it again. Any thread, from time to time."""
        if self._waiting and now - self._since > LONG_SECONDS:
            self.close()

    def end(self) -> None:
        """Close for good: the completer ends soon, and the claimer may hang for longer. Any thread."""
        with self._lock:
            self._ended = True
        self.close()

    def write(self, link: Link, gate: Gate, holder: uuid.UUID, room: Mapping[str, int], now: float) -> Followed:
        """Write what waits, and claim what comes after it. For the claimer.

        Whatever is not written by this goes to the completer, which finds out why.

        Args:
            room: how many may follow in each queue.

        Raises:
            DatabaseUnavailable, OutcomeUnknown: as the connection's.
        """
        ends, followed = [], Followed([], {}, set())
        for ended in self._take():
            if ended.job.holder == holder:
                ends.append(ended)
            else:
                self._finish(ended)  # claimed on a connection before this one
        if not ends:
            return followed
        params: dict[str, Any] = {
            "ids": numbers(ended.job.id for ended in ends),
            "terms": numbers(ended.job.term for ended in ends),
            "results": texts(ended.result for ended in ends),
            "kept": numbers(self._keeps(ended.job.queue) for ended in ends),
        }
        try:
            followed = gate.follow(link, params, holder, room, now)
        except OutcomeUnknown:
            for ended in ends:
                ended.job.unknown = True
            raise
        except psycopg.Error as error:
            # One row's data, most likely: the completer tries them one by one, and says which. The details would quote it.
            why = error.diag.message_primary or type(error).__name__
            log.warning("the ends of %d jobs go to the completer: the database refused them: %s", len(ends), why)
        finally:
            for ended in ends:
                self._finish(Ended(ended.job, Outcome.WRITTEN) if ended.job.id in followed.done else ended)
        return followed

    def _take(self) -> list[Ended]:
        with self._lock:
            taken, self._waiting = self._waiting, []
        return taken
