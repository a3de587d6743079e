"""The lanes of the ready jobs: which priorities are in use, which of them have something, and where each claim begins."""

from __future__ import annotations

import operator
import time
from typing import TYPE_CHECKING, Any

from leasequeue.worker.floor import Ladder, Lane

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from leasequeue.db.connect import Execute
    from leasequeue.db.jobs import JobStatements

of_lane = operator.itemgetter(7, 0)
"""Where a row of a claim stands in its lane: when it became ready, and its id."""


class Lanes:
    """Those of the queues that one claimer serves. For one thread, but for :meth:`rescan` and :meth:`look`.

    ``database_now`` is the database's clock, in seconds, as it was read last; ``database_read`` the ``time.monotonic`` of that.
    """

    def __init__(self, sql: JobStatements, queues: Iterable[str]) -> None:
        self._sql = sql
        now = time.monotonic()
        self._lanes = {name: {0: Lane(name, 0, Ladder(now))} for name in queues}
        self._probe = Ladder(now)
        self._probed = False
        self.paused: set[str] = set()
        self.database_now = self.database_read = float("-inf")

    def of(self, queue: str) -> Iterable[Lane]:
        return self._lanes[queue].values()

    def rescan(self) -> None:
        """Scan from the beginning once. Any thread."""
        for lanes in list(self._lanes.values()):
            for lane in list(lanes.values()):
                lane.rescan()

    def look(self) -> None:
        """Look a little below the floors at once. Any thread."""
        for lanes in list(self._lanes.values()):
            for lane in list(lanes.values()):
                lane.look()

    def forget_probe(self) -> None:
        """Look for priorities without a window again: there is a new connection."""
        self._probed = False

    def read(self, run: Execute, now: float) -> None:
        """Which priorities are in use, which queues are paused, and what time it is there."""
        # Priorities that plain SQL wrote: the first time without a window, then along the ladder's rungs.
        depth = self._probe.depth(now) if self._probed else float("inf")
        self._probed = True
        self._probe.scanned(now, depth)
        window = None if depth == float("inf") else depth
        params = {"queues": list(self._lanes), "probes": depth > 0, "window": window}
        ((self.database_now, paused, queues, priorities),) = run(self._sql.lanes, params)
        for queue, priority in zip(queues, priorities, strict=True):
            if priority not in self._lanes[queue]:
                self._lanes[queue][priority] = Lane(queue, priority, Ladder(now))
        self.database_read = now
        self.paused = set(paused)

    def look_from(self, queues: Iterable[str], now: float) -> list[tuple[Lane, tuple[float, int]]]:
        """The lanes of some queues, and where a look at each begins."""
        return [(lane, lane.start(now)) for name in queues for lane in self._lanes[name].values()]

    def with_ready(self, run: Execute, lanes: Sequence[Lane], now: float) -> set[str]:
        """The queues of those lanes that have a ready job: one look for all."""
        starts = [lane.start(now) for lane in lanes]
        rows = run(
            self._sql.peek,
            {
                "queues": [lane.queue for lane in lanes],
                "priorities": [lane.priority for lane in lanes],
                "floors": [start[0] for start in starts],
                "floor_ids": [start[1] for start in starts],
            },
        )
        found = {row[0] for row in rows}
        for lane, start in zip(lanes, starts, strict=True):
            if lane.queue not in found:
                lane.scanned(now, start)
                lane.missed(start, self.database_now)
        return found

    def moved(
        self,
        lanes: Sequence[Lane],
        starts: Sequence[tuple[float, int]],
        rows: list[tuple[Any, ...]],
        k: int,
        now: float,
    ) -> None:
        """Move the floors after a claim of up to ``k`` rows, in the lanes' order."""
        firsts = {row[8]: row for row in reversed(rows)}
        lasts = {row[8]: row for row in rows}
        full = len(rows) >= k
        left = len(firsts)
        for lane, start in zip(lanes, starts, strict=True):
            if full and not left:
                return  # the lanes from here on were not read
            lane.scanned(now, start)
            first = firsts.get(lane.priority)
            if first is not None:
                left -= 1
                lane.took(start, of_lane(first), of_lane(lasts[lane.priority]), full)
            else:
                lane.missed(start, self.database_now)
