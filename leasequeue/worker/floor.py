"""Where a claim starts to read. Pure.

Under a held snapshot (a backup, a long report) the index entries of finished jobs cannot be removed, and they pile up
at the head of the index: a claim that starts there walks over all of them. So each worker keeps, for each *lane* (a
priority of a queue), a **floor**: the smallest ``(available_at, id)`` of its last batch. The floor stays across short
and empty batches.

What can appear below the floor are rows that were committed late, and rows that were given back. The **ladder** finds
them: rung W = 1, 2, 4 ... seconds scans the last 2W seconds below the floor once every W seconds. Each rung costs the
same small share of time, and a job that is committed d seconds after its ``available_at`` is claimed within 2d + 1 s. The first
rung comes twice as often: of a promise that is hardly longer than a second, something has to be left for the statement itself
and for what waits in front of it.
Past the last rung the whole lane is scanned, and whoever knows of old rows (a sweep, a supervisor) asks for it at once.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

RUNGS = tuple(float(2**n) for n in range(13))
"""The rungs in seconds: 1 s to a little over an hour; the whole lane is scanned once per twice the last."""

_EVERY = (0.5, *RUNGS[1:])
"""How often each is scanned, in seconds."""

BEGINNING = (float("-inf"), 0)


class Ladder:
    """When to look below a floor, and how deep. For one thread, but for :meth:`whole` and :meth:`soon`.

    The clock is ``time.monotonic``.
    """

    __slots__ = ("_asked", "_due", "_noticed", "_scanned", "_whole")

    def __init__(self, now: float) -> None:
        self._due = [now + every for every in _EVERY]
        self._whole = now + 2 * RUNGS[-1]
        # How often the whole lane was asked for, up to which of these a scan has begun, and has ended.
        self._asked = self._noticed = self._scanned = 0

    def depth(self, now: float) -> float:
        """Seconds below the floor to start at: 0.0 when no rung is due, infinity for the whole lane."""
        if now >= self._whole or self._asked != self._scanned:
            self._noticed = self._asked
            return float("inf")
        return max((2 * rung for rung, due in zip(RUNGS, self._due, strict=True) if due <= now), default=0.0)

    def scanned(self, now: float, depth: float) -> None:
        """A scan that began at ``now`` went that deep: the rungs that it covered are done."""
        if depth == float("inf"):
            self._whole = now + 2 * RUNGS[-1]
            self._scanned = self._noticed
        for i, rung in enumerate(RUNGS):
            if self._due[i] <= now and 2 * rung <= depth:
                self._due[i] = now + _EVERY[i]

    def soon(self) -> None:
        """Make the first rung due at once."""
        self._due[0] = 0.0

    def whole(self) -> None:
        """Make the whole lane due at once. One that is being scanned at this moment is scanned again."""
        self._asked += 1


@dataclass(slots=True)
class Lane:
    """One priority of one queue, as one worker process reads it. For one thread, but for :meth:`rescan` and :meth:`look`.

    ``floor`` is in seconds since 1970 by the database's clock, exact to the microsecond, with the job's id. ``head`` is a
    time before which none of the jobs that wait in it became due, as far as is known: an estimate, for :func:`aged`.
    """

    queue: str
    priority: int
    ladder: Ladder
    floor: tuple[float, int] = BEGINNING
    head: float = float("-inf")
    _detour: tuple[float, int] | None = None

    def start(self, now: float) -> tuple[float, int]:
        """Where the next claim of this lane starts."""
        if self.floor == BEGINNING:
            return BEGINNING
        if self._detour is not None:
            return self._detour
        depth = self.ladder.depth(now)
        return (self.floor[0] - depth, 0) if depth else self.floor

    def scanned(self, now: float, start: tuple[float, int]) -> None:
        """A claim that began at ``now`` read this lane from ``start`` on.

        Not so a lane behind one that filled the whole claim: its rungs stay due.
        """
        if self._detour is None and self.floor != BEGINNING and start < self.floor:
            # By where it began, not by what is due now: a rescan may have been asked for while it was on the wire.
            self.ladder.scanned(now, self.floor[0] - start[0] + 0.001)

    def took(self, start: tuple[float, int], first: tuple[float, int], last: tuple[float, int], full: bool) -> None:
        """A claim that started at ``start`` got rows, from ``first`` to ``last``; ``full`` when it got all it asked for.

        A claim from the floor moves it. One that found rows further down leaves it where it is, since it says nothing
        about the rows between; while its batches are full and end below the floor, it goes on from where it was.
        """
        self.head = last[0]
        if start == self.floor:
            self.floor = first
        else:
            self._detour = first if full and last < self.floor else None

    def missed(self, start: tuple[float, int], database_now: float) -> None:
        """A claim from ``start`` found nothing in this lane.

        Args:
            database_now: a time by the database's clock from before that claim, in seconds; what comes later is not below
                it. An empty lane has its floor there, so that it is not scanned whole at each poll.
        """
        self._detour = None
        self.head = database_now
        if start == BEGINNING and self.floor == BEGINNING:
            self.floor = (database_now, 0)

    def look(self) -> None:
        """Look below the floor, as deep as the first rung, at the next claim. Any thread."""
        self.ladder.soon()

    def rescan(self) -> None:
        """Scan from the beginning at the next claim. Any thread."""
        self.ladder.whole()


def best_first(lanes: Iterable[Lane]) -> list[Lane]:
    """In the order of their priorities."""
    return sorted(lanes, key=lambda lane: -lane.priority)


def aged(lanes: Iterable[Lane], ageing_seconds: float, database_now: float) -> list[Lane]:
    """In the order of their priorities, each raised by one for every ``ageing_seconds`` that its oldest job has waited.

    A lane of which nothing is known yet comes first, and costs one look. One that is empty counts as young once it was read.
    """
    return sorted(lanes, key=lambda lane: -(lane.priority + (database_now - lane.head) / ageing_seconds))
