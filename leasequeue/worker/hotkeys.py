"""The keys that a process scans again and again: where their rows begin, so that dead index entries before them cost nothing.

Under a held snapshot every job that has run leaves an entry in the index of its key. A hot key has a floor for its rows, on the
ladder of ``worker/floor.py``, and one for the terms that are counted under it.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from leasequeue.worker.floor import BEGINNING, Ladder, Lane

if TYPE_CHECKING:
    from collections.abc import Iterable

HOT_AFTER = 64
"""Scans of a key by this process after which it gets floors of its own."""

HOT_MAX = 4096
"""Keys whose scans are counted; the one not seen for longest is forgotten."""

HOT_SECONDS = 2.0
"""A hot key that was not scanned for so long begins anew: its floors are only worth something while it is hot."""


@dataclass(slots=True)
class Key:
    """A key of a queue, as often as this process has scanned it.

    Attributes:
        lane: where its rows begin, those of the one priority that was taken last; None: it is not hot.
        term: where the count of what runs begins.
        limit: what its rows brought along last: more of them than that are not worth being locked.
        start: where the scan of this turn begins.
    """

    scans: int
    seen: float
    lane: Lane | None = None
    term: int = 0
    limit: int | None = None
    start: tuple[float, int] = BEGINNING

    @property
    def priority(self) -> int:
        return self.lane.priority if self.lane is not None else 0


class HotKeys:
    """Those of one claimer. For one thread.

    ``term`` is the largest that was seen: a sequence that is behind it is another database's.
    """

    def __init__(self) -> None:
        self._keys: OrderedDict[tuple[str, str], Key] = OrderedDict()
        self.term = 0

    def clear(self) -> None:
        self._keys.clear()
        self.term = 0

    def note(self, queue: str, key: str, now: float, whole: bool) -> Key:
        """It is about to be scanned; ``whole``: from its beginning."""
        one = self._keys.get((queue, key))
        if one is None or now - one.seen > HOT_SECONDS:
            one = self._keys[queue, key] = Key(0, now)
            if len(self._keys) > HOT_MAX:
                self._keys.popitem(last=False)
        self._keys.move_to_end((queue, key))
        one.scans += 1
        one.seen = now
        if one.lane is not None:
            if whole:
                one.lane.rescan()
            one.start = one.lane.start(now)
        return one

    def learn(self, queue: str, scanned: Iterable[tuple[str, int]], rows: list[tuple[Any, ...]], now: float) -> None:
        """Move the floors of hot keys to the first row that was taken now.

        Args:
            scanned: the keys, and how many rows each was to give.
            rows: of the claim.
        """
        by_key: dict[str, list[tuple[Any, ...]]] = {}
        for row in rows:
            self.term = max(self.term, row[1])
            by_key.setdefault(row[14], []).append(row)
        for key, quota in scanned:
            one, taken = self._keys.get((queue, key)), by_key.get(key)
            if one is None:
                continue
            if taken:
                one.limit = taken[0][15]
            if one.scans >= HOT_AFTER:
                self._move(one, queue, taken, quota, now)

    def _move(self, one: Key, queue: str, taken: list[tuple[Any, ...]] | None, quota: int, now: float) -> None:
        lane, start = one.lane, one.start
        if lane is not None:
            lane.scanned(now, start)
        if not taken:
            if lane is not None:
                # It goes on from no place that it has found empty, or what comes back below that is never looked at.
                lane.missed(start, float("-inf"))
            return
        taken.sort(key=lambda row: (row[7], row[0]))
        head, last = taken[0], taken[-1]
        # While the bucket was held no job could run under the key in a smaller term than these, nor can one later.
        one.term = head[1] if head[18] is None else min(head[1], head[18])
        priorities = {row[8] for row in taken}
        if lane is None or priorities != {lane.priority}:
            # Rows of another priority stand elsewhere in the index: the key begins anew with the lowest of these.
            one.lane = Lane(queue, min(priorities), Ladder(now))
            one.start = BEGINNING
        else:
            lane.took(start, (head[7], head[0]), (last[7], last[0]), len(taken) >= quota)
