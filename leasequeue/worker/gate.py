"""Claims of jobs under limits, for the claimer: the transaction of ``db/gates.py``, and where its scans begin.

A look at the wakes of all queues comes first, one statement; only a queue that has one that is due costs a transaction. While
ready jobs fill every claim that look comes every 100 ms at most, otherwise with each turn of the claimer.
"""

from __future__ import annotations

import time
import uuid
from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

from leasequeue.db.gates import GateStatements
from leasequeue.errors import DoesNotBind
from leasequeue.limit import OF_QUEUE, OF_TASK, Limit, Rules
from leasequeue.worker.admission import DUE, Above, Admission, Turn, Wanted
from leasequeue.worker.attempt import decode, describe
from leasequeue.worker.floor import Ladder, Lane
from leasequeue.worker.hand import Ended, Outcome
from leasequeue.worker.hotkeys import HotKeys

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from leasequeue.db.connect import Execute, Link
    from leasequeue.worker.hand import Claimed

LOOK_EVERY_SECONDS = 0.1
"""While ready jobs keep every slot busy: at most this long does a job under a limit wait for a look at its wake."""

SCAN_MAX = 2000
"""Wakes that one transaction takes at most. Many of one key count as one; more are read when they turn out so."""

GATE_MAX = 500
"""Jobs that one transaction claims at most."""

SPARE_MIN = 4
"""Keys that are taken beyond one for each job that is wanted. A key that is not needed costs as much as one that gives a job;
where so many give too few, as at the end of a backlog, twice as many are taken the next time, up to SPARE_MAX."""

SPARE_MAX = 512

SUSPECT_TRIES = 10
"""Suspects that are looked at in one round, the oldest first, where those before them do not fit."""


class Followed(NamedTuple):
    """What became of ends that were written with the claim of the next jobs.

    Attributes:
        done: the ids that were written.
        rows: of the claim, by queue.
        woken: keys that were left a wake instead.
    """

    done: list[int]
    rows: dict[str, list[tuple[Any, ...]]]
    woken: set[str]


class Gate:
    """The gates of all queues, as one claimer passes them. For one thread.

    Args:
        queues: the names of the queues.
        gated: whether any task of the application passes a gate.
        ttl_seconds: of the leases.
    """

    def __init__(self, sql: GateStatements, queues: Iterable[str], gated: bool, ttl_seconds: float) -> None:
        self._sql = sql
        self._gated = gated
        self._admission = Admission(sql, ttl_seconds)
        now = time.monotonic()
        self._lanes = {name: Lane(name, 0, Ladder(now)) for name in queues}
        self._scan = dict.fromkeys(self._lanes, 0)
        self._spare = dict.fromkeys(self._lanes, SPARE_MIN)
        self._keys = HotKeys()
        self._looked = float("-inf")
        self._due: set[str] = set()
        self._used: set[str] = set()
        self._filled = False
        self._rules = Rules()

    def connected(self) -> None:
        """There is a new connection. After a failover terms may come that are smaller than those seen before."""
        self._keys.clear()
        self._filled = False

    def read_rules(self, link: Link) -> None:
        """Read the limits that stand beside the jobs; a change of one is seen with the next call."""
        if not self._filled:
            link.run(self._sql.fill_buckets)
            self._filled = True
        self._rules = Rules(link.run(self._sql.rules))

    def rescan(self) -> None:
        """Look for wakes from the beginning once. Any thread."""
        for lane in list(self._lanes.values()):
            lane.rescan()

    def look_from(self, queues: Iterable[str], now: float) -> list[tuple[Lane, tuple[float, int]]]:
        """The wakes of some queues, and where a look at each begins."""
        return [(lane, lane.start(now)) for lane in map(self._lanes.__getitem__, queues)]

    def due(self, run: Execute, queues: list[str], now: float, database_now: float, hurried: bool) -> set[str]:
        """Which of the queues have a wake that is due.

        Args:
            run: runs a statement on the claimer's connection.
            now: of ``time.monotonic``.
            database_now: a time by the database's clock from before this call, in seconds.
            hurried: ready jobs fill every claim, so that a look now and then is enough.
        """
        if not queues or (hurried and now - self._looked < LOOK_EVERY_SECONDS):
            return self._due
        self._looked = now
        lanes = [self._lanes[name] for name in queues]
        starts = [lane.start(now) for lane in lanes]
        params = {"queues": queues, "floors": [s[0] for s in starts], "floor_ids": [s[1] for s in starts]}
        self._due = self._due.difference(queues) | {row[0] for row in run(self._sql.peek_wakes, params)}
        for lane, start in zip(lanes, starts, strict=True):
            if lane.queue not in self._due:
                lane.scanned(now, start)
                lane.missed(start, database_now)
        return self._due

    def used(self, queues: list[str]) -> set[str]:
        """Those of the queues whose gate has let something through here."""
        return self._used.intersection(queues)

    def follows(self, queue: str) -> bool:
        """Whether the next job of a key may take the place of one that has ended: as far as is known no other key of the queue
        waits for its turn, and there is nothing else to be asked."""
        return not (queue in self._due or self._admission.ranks(queue) or self._rules.above(queue))

    def claim(
        self, link: Link, queue: str, k: int, holder: uuid.UUID, now: float, free: int | None = None
    ) -> list[tuple[Any, ...]]:
        """Claim up to ``k`` jobs of a queue, as rows of the claim.

        Args:
            free: slots that are free now. No more than those (and always one) are claimed where a rate may count each claim:
                what is fetched ahead and goes back unstarted would have used it for nothing. None: as many as ``k``.
        """
        rows, looked = self._claim(link, queue, k, holder, now, free)
        # The end of a job wakes its own key. Where nothing waits under that any more, one that is parked at the limit above was
        # let go: without a second look its turn would come with the next poll.
        return rows if rows or not looked else self._claim(link, queue, k, holder, now, free)[0]

    def _claim(
        self, link: Link, queue: str, k: int, holder: uuid.UUID, now: float, free: int | None
    ) -> tuple[list[tuple[Any, ...]], bool]:
        """One transaction; also whether it has looked at limits above the keys."""
        lane = self._lanes[queue]
        start = lane.start(now)
        most = k + self._spare[queue]
        scan = max(most, self._scan[queue])
        above = self._rules.above(queue)
        seen: list[tuple[Any, ...]] = []
        wanted: list[Wanted] = []

        def steps(execute: Execute) -> list[tuple[Any, ...]]:
            taken = execute(
                self._sql.take_wakes_under if above else self._sql.take_wakes,
                {
                    "queue": queue, "floor_at": start[0], "floor_id": start[1], "scan": scan, "most": most, "above": above,
                },
            )  # fmt: skip
            seen[:] = [row for row in taken if row[1] is not None]
            if not seen:
                return []
            if any(row[1] for row in seen):
                # A changed limit leaves such wakes, and counts from their commit on: taken under the one that was in mind they
                # would be gone for nothing.
                self._rules = Rules(execute(self._sql.rules))
            held = {row[0] for row in taken if row[1] is None}
            wanted[:] = self._wanted(queue, k, seen, now)
            turn = Turn(queue, holder, k, k if free is None else free, self._keys.term)
            limits = [Above(name, self._rules.of(name), name in held) for name in above]
            return self._admission.admit(execute, turn, wanted, limits)

        rows = link.transact(steps)
        lane.scanned(now, start)
        if not seen:
            # Taken by others, or their buckets are: those have a wake again in a moment.
            self._due.discard(queue)
            return [], False
        count, first_at, first_id, last_at = seen[0][3:7]
        lane.took(start, (first_at, first_id), (last_at, 0), count >= scan)
        # Where there was more to read and too few jobs came of it: it was of few keys, or others have their buckets just now.
        too_few = count >= scan and len(rows) < k
        if len(rows) >= k:
            self._spare[queue] = SPARE_MIN
        elif too_few or len(seen) >= most:
            self._spare[queue] = min(2 * self._spare[queue], SPARE_MAX)
        self._scan[queue] = min(SCAN_MAX, scan * 4) if too_few and len(seen) < most else max(0, scan // 2)
        if count < scan and len(rows) < k:
            self._due.discard(queue)
        self._used.add(queue)
        self._keys.learn(queue, [(one.key, one.quota) for one in wanted], rows, now)
        return rows, bool(above)

    def follow(
        self, link: Link, ends: Mapping[str, object], holder: uuid.UUID, room: Mapping[str, int], now: float
    ) -> Followed:
        """Write that some jobs have succeeded, and claim the next ones of their keys, in one transaction.

        Args:
            ends: ``ids``, ``terms``, ``results`` and ``kept`` of them; all are held by ``holder``, none is part of a workflow.
            room: how many may follow in each queue; a key of another one, or beyond that, is left a wake.
        """
        followed = Followed([], {}, set())
        wanted: list[tuple[str, Wanted]] = []

        def steps(execute: Execute) -> None:
            left = dict(room)
            freed: Counter[tuple[str, str]] = Counter()
            for id, queue, key, free in execute(self._sql.succeed_before_next, {**ends, "me": holder}):
                followed.done.append(id)
                if free:
                    freed[queue, key] += 1
                elif key is not None:
                    followed.woken.add(key)
            for (queue, key), count in freed.items():
                k = min(count, left.get(queue, 0))
                if k <= 0 or self._rules.above(queue):
                    self._admission.leave(execute, queue, key, DUE)
                    followed.woken.add(key)
                    continue
                left[queue] -= k
                (one,) = self._wanted(queue, k, [(key, False, 0)], now)
                wanted.append((queue, one))
                rows = self._admission.follow(execute, Turn(queue, holder, k, k, self._keys.term), one)
                followed.rows.setdefault(queue, []).extend(rows)

        link.transact(steps)
        for queue, one in wanted:
            of_key = [row for row in followed.rows[queue] if row[14] == one.key]
            self._keys.learn(queue, [(one.key, one.quota)], of_key, now)
        return followed

    def _wanted(self, queue: str, k: int, seen: list[tuple[Any, ...]], now: float) -> list[Wanted]:
        """The keys whose wakes were taken. All keys of one look have the same share, however many wait under each.

        No more than its limit, where that comes with its rows: the statement sees it only in rows that it has locked.
        """
        share = max(1, -(-k // len(seen)))
        wanted = []
        for key, whole, others, *_ in seen:
            one, limit = self._keys.note(queue, key, now, whole), self._rules.of(key)
            quota = share if one.limit is None or limit.running is not None else max(1, min(share, one.limit))
            wanted.append(Wanted(key, others, limit, quota, one.priority, one.start, one.term))
        return wanted

    # What is claimed as ready although a limit is on it

    def divert(self, jobs: list[Claimed], put: Callable[[str, Ended], None]) -> list[Claimed]:
        """Send those of the claimed jobs to a gate that must pass one and did not; returns the others.

        Plain SQL and schedules write jobs without a key, and a limit on a task or a queue may be newer than its jobs.

        Args:
            put: called with the queue and the end of each that is not returned.
        """
        if not self._rules and not self._gated:
            return jobs
        free = []
        for job in jobs:
            ended = self._diverted(job)
            if ended is None:
                free.append(job)
            else:
                put(job.queue, ended)
        return free

    def _diverted(self, job: Claimed) -> Ended | None:
        task = job.task
        if task is not None and task.gate is not None:
            try:
                arguments = task.signature.arguments((), decode(task, job.text)) if task.gate.needs_arguments else {}
                key = task.gate.key(arguments)
            except DoesNotBind:
                key = None  # it is for another release, and put back; the limits above are looked at all the same
            except Exception as error:  # noqa: BLE001  # the function of the key is the application's
                return Ended(job, Outcome.FAILED_FOR_GOOD, failure=describe(error))
            if key is not None:
                return Ended(job, Outcome.DIVERTED, gate=(key, task.gate.limit))
        above = self._rules.above(job.queue)
        for name in (OF_TASK + job.task_name, OF_QUEUE + job.queue):
            if name in above:
                return Ended(job, Outcome.DIVERTED, gate=(name, Limit()))
        return None


def claim_suspect(link: Link, sql: GateStatements, params: dict[str, Any]) -> tuple[list[tuple[Any, ...]], bool]:
    """Claim one suspect that is under a limit, if one fits: it counts like any other job of its key.

    Args:
        params: ``me``, ``ttl`` and ``queues``.

    Returns:
        Its row as the claim returns it, none where there is no suspect or none that fits now; and whether there is one.
    """
    tried: list[int] = []

    def steps(execute: Execute) -> list[tuple[Any, ...]] | None:
        found = execute(sql.take_suspect, params | {"tried": tried})
        if not found:
            return None
        id, queue, task, key, running, rate, seconds, held = found[0]
        tried.append(id)
        if not held:
            return []
        rules = Rules(execute(sql.rules))
        limits = {name: rules.of(name) for name in (OF_TASK + task, OF_QUEUE + queue)}
        limits[key] = rules.of(key).over(Limit(running, rate, seconds))
        listed = {
            "names": list(limits), "running": [one.running for one in limits.values()],
            "rates": [one.rate for one in limits.values()], "seconds": [one.rate_seconds for one in limits.values()],
        }  # fmt: skip
        return execute(sql.admit_suspect, params | listed | {"id": id, "key": key})

    for _ in range(SUSPECT_TRIES):
        rows = link.transact(steps)
        if rows:
            return rows, True
        if rows is None:
            break
    return [], bool(tried)
