"""What a worker process does beside its jobs, on the renewer's connection, between renewals."""

from __future__ import annotations

import json
import logging
import random
import time
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from leasequeue.db.deadlines import cancel_asked, expire_waiting
from leasequeue.db.ends import EndStatements, end_statements
from leasequeue.db.gates import gate_statements
from leasequeue.db.jobs import JobStatements, job_statements
from leasequeue.db.workers import PurgeStatement, WorkerStatements, purge_queue, purges
from leasequeue.worker.bury import bury, end_joined

if TYPE_CHECKING:
    from leasequeue.db.connect import Link

log = logging.getLogger("leasequeue.worker")

SWEEP_MIN_SECONDS = 0.5
SWEEP_SHARE = 20.0
"""A sweep rests twenty times as long as it took: where a held snapshot makes it slow, it costs no more than its share."""

SWEEP_FAILED_SECONDS = 5.0
SWEEP_GRACE_SECONDS = 3.0
"""How long a process that was cut off waits with its sweep: more than twice what another needs to connect and renew."""

EXPIRY_MIN_SECONDS = 2.0
EXPIRY_BOUND_SECONDS = 2.0

UNWOKEN_EVERY_SECONDS = 60.0
UNWOKEN_AFTER_SECONDS = 10.0
UNWOKEN_SOON_SECONDS = 60.0
"""A wake within this time is waited for: the gate itself puts none off for longer, but for a rate."""

UNWOKEN_LOOK = 2000
"""Keys that are looked at in one go; where there are more the next go comes ten times as soon, after a rest of UNWOKEN_SHARE
times what it took."""

UNWOKEN_SHARE = 100.0
UNWOKEN_CHANCE = 0.05
"""How many of those are woken in each go that most likely have to wait: for what runs under their key, or for their rate."""

PURGE_EVERY_SECONDS = 60.0
PURGE_BOUND_SECONDS = 2.0
PURGE_LOOK = 5
"""At so many times more rows of the history than may go at a time: those of live workflows stay."""


class Sweep:
    """Makes expired leases ready again, from every process, so that a lost machine costs one ttl.

    Args:
        found: called when rows became ready that lie below this process's floors.
        max_abandoned: a suspect that was abandoned this often is buried.
    """

    def __init__(self, sql: JobStatements, ends: EndStatements, found: Callable[[], None], max_abandoned: int) -> None:
        self._sql = sql
        self._ends = ends
        self._found = found
        self._max_abandoned = max_abandoned
        self._due = 0.0
        self._generation = 0

    def __call__(self, link: Link) -> None:
        started = time.monotonic()
        if started < self._due:
            return
        # Set before, too: one that runs into its bound shuts the renewer's connection, and must not do so at every turn.
        self._due = started + SWEEP_FAILED_SECONDS
        if link.generation != self._generation:
            again, self._generation = self._generation > 0, link.generation
            if again:
                # After an outage everybody's leases may have expired, and others need a moment to be back and renew theirs.
                self._due = started + SWEEP_GRACE_SECONDS
                return
        found = link.run(self._sql.sweep, {"max_abandoned": self._max_abandoned})
        rows = [row for row in found if row[0] is not None]
        if rows:
            for id, task, queue, abandoned, state in rows:
                log.warning(
                    "the lease on job %s (%s, queue %s) has expired: %s (abandoned %d times)",
                    id, task, queue, "to be run alone" if state == "q" else "ready again", abandoned,
                )  # fmt: skip
            self._found()
        if len(rows) < len(found) or any(row[4] == "q" for row in rows):
            bury(link, self._sql, self._ends, self._max_abandoned)
        took = time.monotonic() - started
        # Not all processes at the same moment.
        self._due = started + max(SWEEP_MIN_SECONDS * random.uniform(0.7, 1.0), SWEEP_SHARE * took)  # noqa: S311


class Expiry:
    """Ends the waiting jobs that were not started in time, or were asked to stop; each process does, so it needs no leader.

    Where many expire at once, or a held snapshot makes it slow, it costs its share of the time, as the sweep does.
    """

    def __init__(self, schema: str, ends: EndStatements) -> None:
        # Its statement, the one for what others wait for, and what is said.
        self._steps = (
            (expire_waiting(schema), ends.expire, "were not started in time: expired"),
            (cancel_asked(schema), ends.cancel_asked, "were asked to stop before, and do not run: cancelled"),
        )
        self._due = 0.0

    def __call__(self, link: Link) -> None:
        started = time.monotonic()
        if started < self._due:
            return
        self._due = started + SWEEP_FAILED_SECONDS  # before, as in the sweep
        for sql, joined, said in self._steps:
            rows = link.run(sql, {}, bound_seconds=EXPIRY_BOUND_SECONDS)
            if rows and rows[-1][0] is None:
                rows = rows[:-1] + end_joined(link, joined, EXPIRY_BOUND_SECONDS)
            for task, count in Counter(task for _, task, _ in rows).items():
                log.warning("%d job(s) of task %s %s", count, task, said)
        took = time.monotonic() - started
        self._due = started + max(EXPIRY_MIN_SECONDS * random.uniform(0.7, 1.0), SWEEP_SHARE * took)  # noqa: S311


class Unwoken:
    """Wakes keys whose jobs wait although nothing will wake them.

    No statement of ours leaves one so. It takes a row that somebody has written or moved by hand, a clock that went back, or a
    fault of ours, and without this such a key would be silent for long, or for ever.
    """

    def __init__(self, text: str) -> None:
        self._text = text
        self._behind: tuple[str, str] = ("", "")
        self._look = UNWOKEN_LOOK
        self._due = time.monotonic() + random.uniform(0.1, 1.0) * UNWOKEN_EVERY_SECONDS  # noqa: S311

    def __call__(self, link: Link) -> None:
        now = time.monotonic()
        if now < self._due:
            return
        # Before, as in the sweep: one that runs into its bound is tried with less.
        self._due = now + UNWOKEN_EVERY_SECONDS
        look, self._look = self._look, max(1, self._look // 2)
        params = {
            "key": self._behind[0], "queue": self._behind[1], "look": look, "seconds": UNWOKEN_AFTER_SECONDS,
            "soon": UNWOKEN_SOON_SECONDS, "chance": UNWOKEN_CHANCE,
        }  # fmt: skip
        (key, queue), *found = link.run(self._text, params, bound_seconds=PURGE_BOUND_SECONDS)
        self._look = min(UNWOKEN_LOOK, 2 * look)
        self._behind = ("", "") if key is None else (key, queue)
        every = UNWOKEN_EVERY_SECONDS if key is None else UNWOKEN_EVERY_SECONDS / 10
        self._due = now + max(every, UNWOKEN_SHARE * (time.monotonic() - now))
        if found:
            log.warning(
                "%d limit key(s) had jobs that were due and nothing that would have started them; they are woken now: %s",
                len(found), ", ".join(f"{key!r} in queue {queue}" for key, queue in found[:5]),
            )  # fmt: skip


class Presence:
    """This process's row in ``leasequeue_worker``, and its line of statistics for each minute.

    Args:
        row: id, host, pid, version, release, queues, tasks and schedules as the statement wants them.
        counters: gives the counters of now.
    """

    def __init__(
        self,
        sql: WorkerStatements,
        row: dict[str, Any],
        counters: Callable[[], dict[str, Any]],
        ttl_seconds: float,
    ) -> None:
        self._sql = sql
        self._row = row
        self._counters = counters
        self._ttl_seconds = ttl_seconds
        self._due = 0.0
        self._minute_due = time.monotonic() + 60.0
        self._before: dict[str, Any] = {}

    def __call__(self, link: Link) -> None:
        now = time.monotonic()
        if now < self._due:
            return
        self._due = now + self._ttl_seconds / 3
        counters = self._counters()
        link.run(self._sql.register, self._row | {"ttl": self._ttl_seconds, "counters": json.dumps(counters)})
        if now >= self._minute_due:
            self._minute_due = now + 60.0
            counts = {k: v - self._before.get(k, 0) for k, v in counters.items() if isinstance(v, int)}
            self._before = counters
            link.run(self._sql.count_minute, {"id": self._row["id"], "counts": json.dumps(counts)})

    def leave(self, link: Link) -> None:
        """The process ends in good order: its row goes."""
        link.run(self._sql.unregister, {"id": self._row["id"]})


class Purge:
    """Removes what has passed its retention, a bounded piece at a time.

    Args:
        retentions: seconds for which the history of a queue is kept, where it has a retention of its own.
    """

    def __init__(self, schema: str, retentions: dict[str, float]) -> None:
        self._purges: list[tuple[PurgeStatement, dict[str, Any]]] = [(purge, {}) for purge in purges(schema)]
        self._purges += [(purge_queue(schema, keep), {"queue": queue}) for queue, keep in sorted(retentions.items())]
        self._limits = [purge.limit for purge, _ in self._purges]
        self._after = [0.0] * len(self._purges)
        self._next = 0
        self._due = time.monotonic() + random.uniform(0.1, 1.0) * PURGE_EVERY_SECONDS  # noqa: S311

    def __call__(self, link: Link) -> None:
        now = time.monotonic()
        if now < self._due:
            return
        present = self._next
        purge, params = self._purges[present]
        limit = self._limits[present]
        # Before, as in the sweep: the others must get their turn, and one that ran into its bound is tried with less.
        self._next = (present + 1) % len(self._purges)
        self._due = now + PURGE_EVERY_SECONDS
        self._limits[present] = max(1, limit // 2)
        params = params | {"keep": purge.keep_seconds, "limit": limit}
        if purge.walks:
            params |= {"after": self._after[present], "look": limit * PURGE_LOOK}
        rows = link.run(purge.text, params, bound_seconds=PURGE_BOUND_SECONDS)
        self._limits[present] = min(purge.limit, limit * 2)
        gone = self._walk(present, limit, *rows[0]) if purge.walks else len(rows)
        if gone < limit:
            self._due = now + PURGE_EVERY_SECONDS / len(self._purges)
        else:
            self._next = present
            self._due = now + 0.5

    def _walk(self, present: int, limit: int, seen: int, gone: int, last: float | None) -> int:
        """Note from where the history is looked at the next time: behind what stays, or from its beginning again."""
        if gone < limit:
            is_end = last is None or seen < limit * PURGE_LOOK
            # A microsecond more, lest very many of one time hold it up.
            self._after[present] = 0.0 if is_end or last is None else max(last, self._after[present] + 1e-6)
        return gone


def for_all(
    schema: str, found: Callable[[], None], max_abandoned: int, retentions: dict[str, float]
) -> list[Callable[[Link], None]]:
    """What each process that serves queues does for all of them, so that nobody has to be elected for it.

    Args:
        found, max_abandoned: of :class:`Sweep`.
        retentions: of :class:`Purge`.
    """
    ends = end_statements(schema)
    return [
        Sweep(job_statements(schema), ends, found, max_abandoned),
        Expiry(schema, ends),
        Unwoken(gate_statements(schema).wake_unwoken),
        Purge(schema, retentions),
    ]
