"""Ends that others wait for: written so that one that is held up delays no other.

A job with children is ended under its children's row locks (``db/ends.py``). Such a lock is waited for, briefly; where it
does not come, whoever holds it (an application's transaction that has completed a sibling, most likely) may keep it for as
long as its lease lasts. Then the members of the group whose children are held are set aside, and tried again after a pause
that grows; a look that waits for nobody tells them from the others, which are written at once. While somebody is set aside,
each group is looked at before it is written.

    write ──> written            ┌──> set aside ──pause, doubled each time──> due, among the next ends
      │ a child was added late: again, with a new snapshot; a group that is unlucky several times is halved
      └ a lock did not come: look ──> held up ──┘
                                └──> free: again
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

import psycopg

if TYPE_CHECKING:
    from leasequeue.db.connect import Link
    from leasequeue.db.ends import EndStatements
    from leasequeue.worker.hand import Ended

log = logging.getLogger("leasequeue.job")

PAUSE_MIN_SECONDS = 0.05
PAUSE_MAX_SECONDS = 2.0
TRIES = 4

Write: TypeAlias = "Callable[[list[Ended]], set[int]]"


class Joins:
    """The ends that were set aside. For the completer's thread."""

    def __init__(self, sql: EndStatements) -> None:
        self._sql = sql
        self._aside: list[tuple[float, Ended]] = []
        self._pauses: dict[int, float] = {}

    def __len__(self) -> int:
        return len(self._aside)

    def __contains__(self, job: object) -> bool:
        return any(ended.job is job for _, ended in self._aside)

    def wait_seconds(self, most: float) -> float:
        """How long until the first of them is due; ``most`` where none is before."""
        now = time.monotonic()
        return min((max(0.0, due - now) for due, _ in self._aside), default=most) if self._aside else most

    def due(self) -> list[Ended]:
        """Those whose pause is over; they are no longer set aside."""
        if not self._aside:
            return []
        now = time.monotonic()
        found = [ended for due, ended in self._aside if due <= now]
        self._aside = [(due, ended) for due, ended in self._aside if due > now]
        return found

    def write(self, link: Link, members: list[Ended], write: Write, *, deep: bool) -> tuple[list[Ended], set[int]]:
        """Write the ends of a group.

        Args:
            write: runs the statement for some of the members, and returns the ids that it ended.
            deep: whether what waits for their children may fall with them.

        Returns:
            The members that were not set aside, and which of them were ended.

        Raises:
            psycopg.Error, DatabaseUnavailable: what else the statement raised.
        """
        if self._pauses:
            members = self._free(link, members, deep=deep)
        done: set[int] = set()
        tried: list[Ended] = []
        groups = [members] if members else []
        while groups:
            group = groups.pop()
            written = self._try(link, group, write, deep=deep)
            if written is None:
                half = len(group) // 2
                groups += [group[:half], group[half:]]
                continue
            tried += written[0]
            done |= written[1]
        for ended in tried:
            self._pauses.pop(ended.job.id, None)
        return tried, done

    def _try(self, link: Link, group: list[Ended], write: Write, *, deep: bool) -> tuple[list[Ended], set[int]] | None:
        """None where the group should be halved."""
        error: Exception | None = None
        for _ in range(TRIES):
            if not group:
                return [], set()
            try:
                return group, write(group)
            except psycopg.errors.DivisionByZero as raised:
                error = raised  # a child was added since the snapshot
            except (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected) as raised:
                error = raised
                group = self._free(link, group, deep=deep)
        if len(group) > 1:
            return None
        self._set_aside(group, str(error))
        return [], set()

    def _free(self, link: Link, group: list[Ended], *, deep: bool) -> list[Ended]:
        """Set aside those whose children are locked by somebody else; returns the others."""
        blocked = {row[0] for row in link.run(self._sql.blocked, {"ids": [e.job.id for e in group], "deep": deep})}
        if blocked:
            self._set_aside([e for e in group if e.job.id in blocked], "a transaction holds the row of a child")
        return [e for e in group if e.job.id not in blocked]

    def _set_aside(self, members: list[Ended], why: str) -> None:
        now = time.monotonic()
        for ended in members:
            job = ended.job
            pause = self._pauses.get(job.id, PAUSE_MIN_SECONDS)
            self._pauses[job.id] = min(PAUSE_MAX_SECONDS, pause * 2)
            self._aside.append((now + pause, ended))
            if pause == PAUSE_MAX_SECONDS:
                log.warning("the end of job %s (%s) cannot be written yet: %s", job.id, job.task_name, why.strip())
