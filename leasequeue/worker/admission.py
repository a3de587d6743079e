"""The second statement of a gate's transaction: which jobs of the keys taken may start, and what wakes are left."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any, NamedTuple

from leasequeue.db.arrays import numbers, texts
from leasequeue.limit import Limit
from leasequeue.worker.floor import BEGINNING

if TYPE_CHECKING:
    from leasequeue.db.connect import Execute
    from leasequeue.db.gates import GateStatements

_BOUNDLESS = 2**31 - 1


class Wanted(NamedTuple):
    """A key whose bucket is held, and what is wanted of it.

    Attributes:
        others: other queues that wait for it.
        limit: what the rules say of it; what its rows bring along counts where they say nothing.
        quota: jobs that it may give at most.
        start: where its rows of ``priority`` are read from.
        term: where the count of what runs begins.
    """

    key: str
    others: int
    limit: Limit
    quota: int
    priority: int
    start: tuple[float, int]
    term: int


class Above(NamedTuple):
    """A limit of the queue or of a task; ``held``: its bucket is."""

    name: str
    limit: Limit
    held: bool


class Turn(NamedTuple):
    """One claim at the gate of a queue.

    Attributes:
        free: of the ``k`` jobs, those that have a slot already.
        term: the largest that was seen.
    """

    queue: str
    holder: uuid.UUID
    k: int
    free: int
    term: int


class Admission:
    """Admits by the statement that does for what there is. For one thread.

    Args:
        ttl_seconds: of the leases.
    """

    def __init__(self, sql: GateStatements, ttl_seconds: float) -> None:
        self._sql = sql
        self._ttl_seconds = ttl_seconds
        self._ranked: set[str] = set()

    def ranks(self, queue: str) -> bool:
        """Whether a queue is known to have priorities."""
        return queue in self._ranked

    def admit(self, execute: Execute, turn: Turn, wanted: list[Wanted], above: list[Above]) -> list[tuple[Any, ...]]:
        """The rows that were leased."""
        rows: list[tuple[Any, ...]] = []
        if not above and not any(one.others or one.limit.rate for one in wanted):
            rows, rated = self._plainly(execute, turn, wanted)
            if not rated:
                return rows
            wanted = [one for one in wanted if one.key in rated]
        # Nothing is fetched ahead here, where a rate may count each claim. Also where nothing more is wanted it is run: it
        # leaves the wakes of these keys.
        more = turn._replace(k=min(turn.k - len(rows), max(1, turn.free)))
        params = self._params(more, wanted) | {
            "above": [one.name for one in above],
            "held": [one.held for one in above],
            "above_running": [one.limit.running for one in above],
            "above_rates": [one.limit.rate for one in above],
            "above_seconds": [one.limit.rate_seconds for one in above],
        }
        return rows + execute(self._sql.admit_under, params)

    def follow(self, execute: Execute, turn: Turn, one: Wanted) -> list[tuple[Any, ...]]:
        """The rows that come after one that has ended, in the transaction of its end; what it cannot tell has a wake then."""
        found = None
        if not one.limit.rate and turn.queue not in self._ranked:
            found = self._one(execute, turn, one)
            if found is None:
                self._ranked.add(turn.queue)
        rows, rated = found or ([], {one.key})
        if rated:
            self.leave(execute, turn.queue, one.key, DUE)
        return rows

    def leave(self, execute: Execute, queue: str, key: str, left: Left) -> None:
        """Leave a key a wake."""
        execute(self._sql.leave_wake, left._asdict() | {"queue": queue, "key": key})

    def _plainly(self, execute: Execute, turn: Turn, wanted: list[Wanted]) -> tuple[list[tuple[Any, ...]], set[str]]:
        """Without rates, limits above or other queues; also the keys whose rows bring a rate, which are left as they are."""
        if len(wanted) == 1 and turn.queue not in self._ranked:
            found = self._one(execute, turn, wanted[0])
            if found is not None:
                return found
            self._ranked.add(turn.queue)
        rows = execute(self._sql.admit, self._params(turn, wanted))
        return [row for row in rows if row[0] is not None], {row[14] for row in rows if row[0] is None}

    def _one(self, execute: Execute, turn: Turn, one: Wanted) -> tuple[list[tuple[Any, ...]], set[str]] | None:
        """The same for one key by a shorter statement; None where the queue has priorities, which that does not know."""
        params = {
            "queue": turn.queue, "me": turn.holder, "ttl": self._ttl_seconds, "term": turn.term,
            "key": one.key, "running": one.limit.running, "quota": one.quota, "key_term": one.term,
            "floor_at": one.start[0], "floor_id": one.start[1],
        }  # fmt: skip
        if one.quota == 1:
            found = execute(self._sql.admit_next, params)
            if found:
                used, elsewhere = found[0][19:]
                self._leave_rest(execute, turn.queue, one, found[0][15], used, elsewhere, locked=1, taken=1)
                return [found[0][:19]], set()
        found = execute(self._sql.admit_one, params)
        ranked, used, elsewhere, locked, limit_max, rated = found[0][19:]
        if ranked:
            return None
        rows = [row[:19] for row in found if row[0] is not None]
        if rated:
            return rows, {one.key}
        self._leave_rest(execute, turn.queue, one, limit_max, used, elsewhere, locked=locked, taken=len(rows))
        return rows, set()

    def _leave_rest(
        self,
        execute: Execute,
        queue: str,
        one: Wanted,
        limit_max: int | None,
        used: int,
        elsewhere: int,
        *,
        locked: int,
        taken: int,
    ) -> None:
        """Leave the key a wake where one is needed after this."""
        limit = limit_max if one.limit.running is None else one.limit.running
        left = left_to_do(
            fits=_BOUNDLESS if limit is None else limit - used, found=locked, taken=taken, quota=one.quota,
            runs=used > 0, elsewhere=elsewhere > 0, from_floor=one.start > BEGINNING,
        )  # fmt: skip
        if left is not None:
            self.leave(execute, queue, one.key, left)

    def _params(self, turn: Turn, wanted: list[Wanted]) -> dict[str, Any]:
        return {
            "queue": turn.queue, "me": turn.holder, "ttl": self._ttl_seconds, "k": turn.k, "term": turn.term,
            "keys": texts([one.key for one in wanted]), "others": numbers([one.others for one in wanted]),
            "running": numbers([one.limit.running for one in wanted]), "rates": numbers([one.limit.rate for one in wanted]),
            "seconds": numbers([one.limit.rate_seconds for one in wanted]), "quotas": numbers([one.quota for one in wanted]),
            "priorities": numbers([one.priority for one in wanted]), "terms": numbers([one.term for one in wanted]),
            "floors": numbers([one.start[0] for one in wanted]), "floor_ids": numbers([one.start[1] for one in wanted]),
        }  # fmt: skip


class Left(NamedTuple):
    """The wake that a key is left.

    Attributes:
        seconds: when it is due, from now.
        whole: for the whole key, not from its floor.
        parked: under the key's own name.
        seen: only where a row is seen that waits.
    """

    seconds: float
    whole: bool
    parked: bool
    seen: bool


DUE = Left(0.0, whole=False, parked=False, seen=False)
"""Due now."""


def left_to_do(
    fits: int, found: int, taken: int, quota: int, *, runs: bool, elsewhere: bool, from_floor: bool
) -> Left | None:
    """Which wake a key is left after an admission, as the fuller statements say it in SQL; None: none.

    Args:
        fits: jobs that there was room for; ``found`` of them were locked, and ``taken`` of these leased.
        quota: how many were wanted.
        runs: whether jobs of the key ran before; ``elsewhere``: in other queues.
        from_floor: the key was not read from its beginning.
    """
    room = fits > taken
    whole = found < quota and room and from_floor
    if taken < min(fits, found) or (taken == quota and room):
        return Left(0.0, whole, not room, seen=False)
    if room:
        return Left(1.0, whole, parked=False, seen=False) if from_floor else Left(0.1, whole, parked=False, seen=True)
    if fits <= 0 and not runs:
        return Left(30.0, whole, parked=True, seen=True)
    return Left(5.0, whole, parked=True, seen=True) if elsewhere else None
