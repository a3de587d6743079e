"""The jobs that a worker process holds, and how each of them ended."""

from __future__ import annotations

import contextlib
import enum
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from leasequeue.worker.ready import Ready

if TYPE_CHECKING:
    import asyncio
    import datetime as dt

    from leasequeue.context import JobContext
    from leasequeue.limit import Limit
    from leasequeue.task import Task
    from leasequeue.worker.pool import Sandbox
    from leasequeue.worker.window import Window


class Outcome(enum.Enum):
    """How a job left its handler, or why it never came to one."""

    SUCCEEDED = "succeeded"
    COMPLETED_BY_CALLER = "completed by the handler's own transaction"
    FAILED = "failed"
    FAILED_FOR_GOOD = "failed for good"
    SNOOZED = "comes again later"
    CANCELLED = "cancelled"
    EXPIRED = "not started in time"
    UNSTARTED = "unstarted"
    UNBOUND = "its task or arguments are unknown here"
    DIVERTED = "it is under a limit, and goes to its gate"
    LOST = "lease lost"
    WRITTEN = "succeeded, and written by the claimer"


class Failure(NamedTuple):
    """What is written of a failed attempt."""

    type: str
    message: str
    traceback: str | None


class Claimed:
    """One claimed row in this process.

    ``renewed`` is the ``time.monotonic`` from before the claim or renewal was sent; the lease is trusted from there.
    ``start_by`` is the ``time.monotonic`` after which it may not start; None where it may always. ``linked``: it passed a gate
    or is part of a workflow, so that its end is written by other statements. ``joined``: others may wait for it, so that its
    end is written under their locks; ``whole``: somebody waits for its failure. ``workflow``: JSON of which workflow, and
    which step.
    ``ended`` is set once its handler has ended, before anything of that end is written; ``acknowledged`` once nothing of it
    is left to write. ``soft_at``, ``deadline`` and ``told_at`` are of ``time.monotonic``; 0.0: there is none. ``consumer``,
    ``window`` or ``child``: by what it can be interrupted. ``given_up``: its attempt was ended while its handler went on.
    """

    __slots__ = (
        "abandoned",
        "acknowledged",
        "attempt",
        "child",
        "consumer",
        "ctx",
        "deadline",
        "ended",
        "entry",
        "given_up",
        "holder",
        "id",
        "joined",
        "linked",
        "max_attempts",
        "priority",
        "queue",
        "renewed",
        "slots",
        "soft_at",
        "start_by",
        "stop_reason",
        "task",
        "task_name",
        "term",
        "text",
        "tick",
        "told_at",
        "unknown",
        "whole",
        "window",
        "workflow",
    )

    def __init__(
        self, row: tuple[Any, ...], holder: uuid.UUID, queue: str, task: Task[..., Any] | None, renewed: float
    ) -> None:
        """Args: row: as the claim returns it."""
        self.id: int = row[0]
        self.term: int = row[1]
        self.holder = holder
        self.queue = queue
        self.task_name: str = row[2]
        self.task = task
        self.text: str = row[3]
        self.attempt: int = row[4]
        self.abandoned: int = row[5]
        self.max_attempts: int | None = row[6]
        self.priority: int = row[8]
        self.renewed = renewed
        self.entry = 0
        self.ctx: JobContext | None = None
        self.consumer: asyncio.Task[None] | None = None
        self.window: Window | None = None
        self.child: Sandbox | None = None
        self.slots: Slots | None = None
        self.soft_at = 0.0
        self.deadline = 0.0
        self.told_at = 0.0
        # Asked for while it was held before: it must not run again.
        self.stop_reason: str | None = "cancelled" if row[10] else None
        self.tick: str | None = row[11]
        # From before the claim was sent, so that it is never later than the row says.
        self.start_by: float | None = None if row[12] is None else renewed + row[12]
        self.linked = row[13] is not None
        self.workflow: str | None = row[13] or None
        self.joined = self.workflow is not None
        self.whole = False
        self.unknown = False
        self.ended = False
        self.given_up = False
        self.acknowledged = False

    @property
    def is_told(self) -> bool:
        """Whether it was told to stop. Any thread may do that at any moment."""
        return self.stop_reason is not None

    @property
    def is_last_attempt(self) -> bool:
        """Whether a failure now is final. Attempts that ended with their process are not the job's own fault."""
        allowed = self.max_attempts or (self.task.max_attempts if self.task is not None else 1)
        return self.attempt - self.abandoned >= allowed


class Ended(NamedTuple):
    """What the completer is told of a job.

    ``delay_seconds``, ``until``: when it comes again, where it does; both None: after the default wait. ``otherwise``: what
    the outcome is where a transaction that was to complete the job has not committed; None: a failure.
    """

    job: Claimed
    outcome: Outcome
    result: str | None = None
    failure: Failure | None = None
    delay_seconds: float | None = None
    until: dt.datetime | None = None
    otherwise: Outcome | None = None
    gate: tuple[str, Limit] | None = None
    """The key and the limit of a DIVERTED one."""


def succeeded(job: Claimed) -> Ended:
    """The end of most jobs; made in half the time that naming its fields takes."""
    return tuple.__new__(Ended, (job, Outcome.SUCCEEDED, None, None, None, None, None, None))


class Holder:
    """The holder ids of one process: one prefix, and a number that grows with each reconnect of the claimer.

    After a failover or a crash of the database terms may come again, so what is claimed on a new connection is held under
    a new id; what is held under an old one keeps it. The shared prefix lets the supervisor name them all by a range.
    """

    def __init__(self, prefix: bytes) -> None:
        self._prefix = prefix
        self._number = 0
        self.current = self._make(0)

    def renew(self) -> uuid.UUID:
        """Take a new id; returns the old one."""
        old = self.current
        self._number += 1
        self.current = self._make(self._number)
        return old

    def _make(self, number: int) -> uuid.UUID:
        return uuid.UUID(bytes=self._prefix + number.to_bytes(4, "big"))


def holder_prefix() -> bytes:
    """96 random bits for one worker process."""
    return uuid.uuid4().bytes[:12]


def holder_range(prefix: bytes) -> tuple[uuid.UUID, uuid.UUID]:
    """The first and the last holder id of a process."""
    return uuid.UUID(bytes=prefix + b"\0\0\0\0"), uuid.UUID(bytes=prefix + b"\xff\xff\xff\xff")


class Hand:
    """All jobs that this process holds: claimed, and not yet acknowledged as ended. Thread-safe.

    ``filled`` is called once, when the next jobs come in; None: nobody waits for that.
    """

    def __init__(self) -> None:
        self._jobs: set[Claimed] = set()
        self._lock = threading.Lock()
        self.filled: Callable[[], None] | None = None

    def add(self, jobs: list[Claimed]) -> None:
        with self._lock:
            self._jobs.update(jobs)
            filled, self.filled = self.filled, None
        if filled is not None:
            filled()

    def drop(self, jobs: list[Claimed]) -> None:
        with self._lock:
            self._jobs.difference_update(jobs)

    def jobs(self) -> list[Claimed]:
        with self._lock:
            return list(self._jobs)

    def __len__(self) -> int:
        return len(self._jobs)


class Slots:
    """One queue as this process serves it: how many jobs at once, what waits for a slot, how long handlers take.

    ``ended`` counts per slot, each by its own thread (an increment of a shared number is not atomic). ``lost`` slots are
    held by handlers that were told to stop and go on.

    Args:
        high: so many of the slots are for jobs of a priority above 0 alone. Such a queue fetches nothing ahead, since what was
            fetched takes whichever slot is free.
        ageing_seconds: a job that waits counts as one priority higher for each such span; None: never.
    """

    PREFETCH_SECONDS = 0.04
    BRIEF_RATE = 5000.0
    BRIEF_PREFETCH_SECONDS = 0.2
    """Where so many handlers end per second, that it is the claims that they wait for."""
    RATE_SECONDS = 0.2
    """Over which the rate is measured: longer than the time between two claims, in which handlers come and go in waves."""

    PREFETCH_MAX = 4000
    CLAIM_MAX = 2000
    """Most jobs of one claim: while the next ones are being claimed, the handlers have these."""

    def __init__(self, name: str, size: int, high: int = 0, ageing_seconds: float | None = None) -> None:
        self.name = name
        self.size = size
        self.high = high
        self.ageing_seconds = ageing_seconds
        self.ready = Ready()
        self.aready: deque[Claimed] = deque()
        self.idle: list[asyncio.Future[None]] = []
        self.claimed = 0
        self.lost = 0
        self.ended = [0] * (2 * size)
        self.rate = 0.0
        """Handlers ended per second, lately. Kept by the claimer."""
        self.last_start = time.monotonic()
        self._rated = (self.last_start, 0)
        self.has_sync = False
        self.has_async = False

    def __str__(self) -> str:
        """As on the command line."""
        return f"{self.name}={self.size}" + (f":high={self.high}" if self.high else "")

    def in_hand(self) -> int:
        """Jobs that are claimed and whose handler has not ended."""
        return self.claimed - sum(self.ended)

    def room(self) -> int:
        """How many jobs to claim now; 0 when it is not worth a statement.

        As many as there are free slots; and where handlers are over in a moment, as many more as will have started well
        before the time after which an unstarted job goes back. A queue that runs plain and async handlers side by side
        shares its slots between them and fetches nothing ahead.
        """
        room, least, most = self._room()
        return min(room, most) if room >= least else 0

    def _room(self) -> tuple[int, int, int]:
        """How many could be claimed, how many it must be to be worth a statement, and how many one statement may take.

        That is half of what may be in hand: while it is on its way, the handlers have the other half.
        """
        size = self.size - self.lost
        if size <= 0:
            return 0, 1, 0
        in_hand = self.in_hand() - self.lost
        ahead = 0
        if not ((self.has_sync and self.has_async) or self.high):
            seconds = self.PREFETCH_SECONDS if self.rate < self.BRIEF_RATE else self.BRIEF_PREFETCH_SECONDS
            ahead = min(self.PREFETCH_MAX, int(self.rate * seconds))
        if ahead < size:
            return size - in_hand, 1, size
        wanted = size + ahead
        most = min(wanted // 2, self.CLAIM_MAX)
        return wanted - in_hand, most // 2, most

    def seconds_to_room(self) -> float:
        """How long until there is likely to be room, where there is none; 1 ms to 50 ms."""
        room, least, _ = self._room()
        return min(0.05, max(0.001, (least - room) / max(self.rate, 1.0)))

    def measure(self, now: float) -> None:
        """Keep the rate; for the claimer, from time to time.

        Not the time that each handler takes: where many threads share one interpreter, that is for the most part the time
        that it waited for the others.
        """
        since, before = self._rated
        if now - since < 0.01:
            return
        ended = sum(self.ended)
        seconds = now - since
        self.rate += ((ended - before) / seconds - self.rate) * min(1.0, seconds / self.RATE_SECONDS)
        self._rated = now, ended

    def waiting(self) -> int:
        """Jobs that wait for a slot."""
        return len(self.ready) + len(self.aready)

    def take_unstarted(self) -> list[Claimed]:
        """Everything that waits for a slot, out of the way of the handlers. Any thread.

        It asks nothing of the event loop: a coroutine that blocks it must not keep the other queues waiting.
        """
        taken = self.ready.take_all()
        with contextlib.suppress(IndexError):
            while True:
                taken.append(self.aready.popleft())
        return taken
