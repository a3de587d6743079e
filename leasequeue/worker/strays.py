"""Rows that a claim may have taken without our ever hearing of it.

When the connection breaks after a claim was sent, the server may still commit it. Such rows stand under a holder id that
nobody uses any more (the claimer takes a new one with each break), so they are told apart from all that is known, and go
back unstarted. The server may commit late: the search goes on for one statement bound.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING

from leasequeue.db.jobs import JobStatements
from leasequeue.worker.hand import Hand
from leasequeue.worker.unstarted import give_back

if TYPE_CHECKING:
    from leasequeue.db.connect import Link

log = logging.getLogger("leasequeue.worker")


class Strays:
    """The holder ids whose last claim has an unknown outcome. Thread-safe.

    ``found`` is called when rows went back: they may lie below this process's floors.
    """

    def __init__(self, sql: JobStatements, hand: Hand, bound_seconds: float) -> None:
        self.found: Callable[[], None] = lambda: None
        self._sql = sql
        self._hand = hand
        self._bound_seconds = bound_seconds
        self._lock = threading.Lock()
        self._until: dict[uuid.UUID, float | None] = {}

    def suspect(self, holder: uuid.UUID) -> None:
        """The claimer's connection broke while it claimed as this holder."""
        with self._lock:
            self._until[holder] = None

    def pending(self) -> bool:
        """Whether a holder is still looked after."""
        with self._lock:
            return bool(self._until)

    def release(self, link: Link) -> None:
        """Put back what is found; for the renewer's turn."""
        with self._lock:
            holders = list(self._until.items())
        for holder, until in holders:
            known = [job.id for job in self._hand.jobs() if job.holder == holder]
            rows = give_back(link, self._sql.release_strays, {"holder": holder, "known": known})
            if rows:
                log.warning(
                    "put back %d jobs that a claim had taken when its connection broke: %s",
                    len(rows), ", ".join(str(row[0]) for row in rows[:10]),
                )  # fmt: skip
                self.found()
            now = time.monotonic()
            with self._lock:
                if until is None:
                    # The bound counts from the first look: only then is the database known to answer again.
                    self._until[holder] = now + self._bound_seconds
                elif now > until:
                    del self._until[holder]
