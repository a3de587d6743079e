"""What a job is to the code that enqueues it and to the code that runs it. Pure: no database, no threads."""

from __future__ import annotations

import datetime as dt
import uuid
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

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


@dataclass(frozen=True, slots=True)
class Held:
    """A leased row as its holder knows it: whoever writes to it proves all three."""

    id: int
    term: int
    holder: uuid.UUID


class Job(Generic[R_co]):
    """What ``enqueue`` returns; ``R`` is the type of the task's result. Immutable in spirit, safe to share.

    Attributes:
        id: the job's id. It exists for others only once the enqueuing transaction has committed.
        created: False where another job had the ``unique_key``; ``id`` is then that job's.
        replaced: True where that job waits still and runs with this call's arguments and options in place of its own
            (``on_conflict="replace"``); False where it is new, or was left as it is.
        task: the name under which it was enqueued.
        queue: the queue that was asked for (a job that was there before may stand in another one).
    """

    __slots__ = ("created", "id", "queue", "replaced", "task")

    def __init__(self, id: int, created: bool, task: str, queue: str, replaced: bool = False) -> None:
        self.id = id
        self.created = created
        self.replaced = replaced
        self.task = task
        self.queue = queue

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Job) and self.id == other.id and self.created == other.created

    def __hash__(self) -> int:
        return hash(self.id)

    def __repr__(self) -> str:
        found = "" if self.created else " (replaced)" if self.replaced else " (was there already)"
        return f"<Job {self.id} {self.task} on {self.queue}{found}>"
