"""What a job is to the code that enqueues it and to the code that runs it. Pure: no database, no threads."""

from __future__ import annotations

import datetime as dt
import uuid
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, Protocol, TypeAlias, TypeGuard, TypeVar

from leasequeue.errors import ConfigurationError

R_co = TypeVar("R_co", covariant=True)

EXISTING, REPLACE, RAISE = "existing", "replace", "raise"

PRIORITY_MIN = -100
PRIORITY_MAX = 100
NAME_BYTES_MAX = 512
"""The longest name or key in bytes of UTF-8; a longer one would not fit into a btree entry."""


@dataclass(frozen=True, slots=True)
class NewJob:
    """A job that is about to be enqueued; everything in it has been checked.

    Attributes:
        args: JSON text, an object of only the arguments that were given.
        delay_seconds: added to the database's clock; 0.0 means now. Ignored where ``run_at`` is given.
        run_at: timezone-aware; a time in the past counts as now. None means now (plus the delay).
        max_attempts: None means the task's own default at the time when it runs.
        unique_key: at most one live job carries it; None means that any number may live.
        hold_key, hold_seconds: no other job is created with this key for so long; None means that any number may be.
        on_conflict: what becomes of a call whose key is taken: ``existing``, ``replace`` or ``raise``.
        meta: JSON text of an object, or None.
        expires_seconds: not started this long after it was due, it ends as expired; None means never.
        start_by: the same as a time of its own, timezone-aware; None where there is none.
        unique_until: ``s`` where the key is free again once the job has started, None where only once it has ended.
        limit_key: the gate at which it waits; None means that it passes none.
        limit_max, rate_max, rate_seconds: the limit that the job brings along for its key, where no other is set for it.
    """

    task: str
    queue: str
    args: str
    priority: int = 0
    delay_seconds: float = 0.0
    run_at: dt.datetime | None = None
    max_attempts: int | None = None
    unique_key: str | None = None
    meta: str | None = None
    expires_seconds: float | None = None
    start_by: dt.datetime | None = None
    unique_until: str | None = None
    limit_key: str | None = None
    limit_max: int | None = None
    rate_max: int | None = None
    rate_seconds: float | None = None
    hold_key: str | None = None
    hold_seconds: float | None = None
    on_conflict: str = "existing"


class Enqueued(NamedTuple):
    """What became of a call: the id of its job, or of the one that had its key.

    Attributes:
        created: the job is new.
        replaced: it is not, it waits still, and runs with this call's arguments and options.
    """

    id: int
    created: bool
    replaced: bool = False


class Held(NamedTuple):
    """A leased row as its holder knows it: whoever writes to it proves all three."""

    id: int
    term: int
    holder: uuid.UUID


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a job was when it last said so: ``ctx.progress(done, total, note)``.

    Attributes:
        total: None where it is not known.
        at: when that was written, by the database's clock.
    """

    done: float
    total: float | None = None
    note: str | None = None
    at: dt.datetime | None = None

    @property
    def fraction(self) -> float | None:
        """0.0 to 1.0, or None where the total is not known."""
        return None if not self.total or self.total < 0 else min(1.0, max(0.0, self.done / self.total))

    @classmethod
    def of(cls, value: object) -> Progress | None:
        """From the JSON value of a row; None where it is something else, which any SQL may have written."""
        if not isinstance(value, dict):
            return None
        done, total, note, at = (value.get(name) for name in ("done", "total", "note", "at"))
        if not _is_number(done) or not (total is None or _is_number(total)):
            return None
        try:
            when = dt.datetime.fromisoformat(at) if isinstance(at, str) else None
        except ValueError:
            when = None
        return cls(done, total, note if isinstance(note, str) else None, when)


def _is_number(value: object) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


Became: TypeAlias = "Enqueued | int"
"""What became of one of very many calls; an int is the id of a new job."""


class Asked(Protocol):
    """What answers the questions of a job."""

    def result(self, id: int, timeout: dt.timedelta | None) -> Any: ...
    async def aresult(self, id: int, timeout: dt.timedelta | None) -> Any: ...
    def progress(self, id: int) -> Progress | None: ...
    async def aprogress(self, id: int) -> Progress | None: ...


class Job(Generic[R_co]):
    """What ``enqueue`` returns; ``R`` is the type of the task's result. Immutable in spirit, safe to share.

    Attributes:
        id: the job's id. It exists for others only once the enqueuing transaction has committed.
        created: False where another job had the ``unique_key``; ``id`` is then that job's.
        replaced: True where that job waits still and runs with this call's arguments and options in place of its own
            (``on_conflict="replace"``); False where it is new, or was left as it is.
        task: the name under which it was enqueued; empty where ``lq.job`` was given none.
        queue: the queue that was asked for (a job that was there before may stand in another one).
    """

    __slots__ = ("_asked", "created", "id", "queue", "replaced", "task")

    def __init__(
        self, id: int, created: bool, task: str, queue: str, replaced: bool = False, asked: Asked | None = None
    ) -> None:
        self._asked = asked
        self.id = id
        self.created = created
        self.replaced = replaced
        self.task = task
        self.queue = queue

    def result(self, timeout: dt.timedelta | None = None) -> R_co:
        """Wait until the job has ended, and give what its function returned.

        Asks the database over the LeaseQueue's own engine, never over the connection on which it was enqueued: commit
        first. Each question is a short transaction; 10 ms after the first, later every 250 ms. In a handler it keeps a
        slot of the worker occupied: with all slots waiting for jobs behind them, none of those will ever run.

        A job that an operator had enqueued again is another job: this one stays as it ended, and the error names it.

        Args:
            timeout: how long to wait; zero asks once. None waits as long as it takes.

        Raises:
            JobFailed, JobCancelled, JobExpired: it ended so.
            ResultTimeout: it has not ended in that time; under ``leasequeue.testing.drain`` at once.
            ResultUnavailable: at once: it is not committed, or its history is not kept (any more).
            Undecodable: what is stored does not fit the annotation of the task's result.
        """
        found: R_co = self._answers().result(self.id, timeout)
        return found

    async def aresult(self, timeout: dt.timedelta | None = None) -> R_co:
        """The async twin of :meth:`result`."""
        found: R_co = await self._answers().aresult(self.id, timeout)
        return found

    def progress(self) -> Progress | None:
        """How far its present attempt is, or was when it failed for good; None where it did not say.

        Raises:
            ResultUnavailable: it is not committed, or its history is not kept (any more).
        """
        return self._answers().progress(self.id)

    async def aprogress(self) -> Progress | None:
        """The async twin of :meth:`progress`."""
        return await self._answers().aprogress(self.id)

    def _answers(self) -> Asked:
        if self._asked is None:
            raise ConfigurationError(f"{self!r} knows no LeaseQueue to ask: use lq.job({self.id})")
        return self._asked

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Job) and self.id == other.id and self.created == other.created

    def __hash__(self) -> int:
        return hash(self.id)

    def __repr__(self) -> str:
        found = "" if self.created else " (replaced)" if self.replaced else " (was there already)"
        return f"<Job {self.id} {self.task} on {self.queue}{found}>"
