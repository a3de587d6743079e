"""How the queue does as a whole: workers, queues, recent failures, and what somebody should look at."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from leasequeue.errors import OutcomeUnknown
from leasequeue.ops import attention
from leasequeue.ops.asking import Desk, moment
from leasequeue.ops.attention import Attention, Stuck
from leasequeue.ops.json_text import from_json
from leasequeue.ops.timetable import ScheduleRow, list_schedules, problems

T = TypeVar("T")

COUNT_CAP = 100_000
"""The most rows that are counted for one number."""
COUNT_BUDGET = 300_000
"""The most rows that are counted in one statement, shared by the queues."""
COUNT_FLOOR = 1_000
QUEUES_MAX = 200
WORKERS_MAX = 200
FAILURES_CAP = attention.EXPIRED_CAP
FAILURES_SECONDS = 3600.0
SECTION_SECONDS = 3.0
"""How long each statement may take before its part of the answer is given up."""


@dataclass(frozen=True, slots=True)
class Worker:
    """One worker process, by its row.

    Attributes:
        live: it has renewed its row in time, by the database's clock.
        age_seconds, silent_seconds: since its start, and since it last renewed its row.
        queues: slots by queue; ``reserved``: how many of them are for jobs of a priority above 0 alone.
        unknown: how many jobs it put back, by task, since it knows no such task or other arguments.
        refused: ends of jobs that were refused since another held them by then.
        wake: by which means it learns of new jobs.
        lost_slots, overstaying: slots held by handlers that were told to stop and go on, and how many, by task.
    """

    id: str
    host: str
    pid: int
    version: str
    release: str | None
    live: bool
    started_at: dt.datetime | None
    renewed_at: dt.datetime | None
    expires_at: dt.datetime | None
    age_seconds: float
    silent_seconds: float
    queues: dict[str, int]
    tasks: tuple[str, ...]
    held: int = 0
    running: int = 0
    completed: int = 0
    failed: int = 0
    refused: int = 0
    lost: int = 0
    lost_slots: int = 0
    overstaying: dict[str, int] = field(default_factory=dict)
    unknown: dict[str, int] = field(default_factory=dict)
    wake: str = ""
    reserved: dict[str, int] = field(default_factory=dict)

    @property
    def slots(self) -> int:
        return sum(self.queues.values())


@dataclass(frozen=True, slots=True)
class Queue:
    """One queue.

    Attributes:
        oldest_ready_seconds: how long the job that is due for longest has waited; None where none is ready.
        leased, expired: jobs under a lease, and those of them whose lease is over.
        waiting: jobs that wait at a limit.
        blocked: jobs that wait for other jobs, among the oldest and the newest that live.
        resume_at: when a paused queue is resumed by itself; None: not by itself.
        capped: which of the numbers are only "at least".
        workers: live processes that serve it; ``slots`` are theirs together.
    """

    name: str
    ready: int = 0
    oldest_ready_seconds: float | None = None
    scheduled: int = 0
    leased: int = 0
    expired: int = 0
    suspect: int = 0
    waiting: int = 0
    blocked: int = 0
    capped: tuple[str, ...] = ()
    workers: int = 0
    slots: int = 0
    paused_at: dt.datetime | None = None
    resume_at: dt.datetime | None = None


@dataclass(frozen=True, slots=True)
class TaskFailures:
    """The failed attempts of one task within the last hour."""

    task: str
    failures: int
    jobs: int
    last_at: dt.datetime | None
    last_type: str
    last_message: str


@dataclass(frozen=True, slots=True)
class Status:
    """The answer. ``not_read`` names the parts that the database did not give in time.

    Attributes:
        database: its URL, with the password hidden.
        at: the database's clock.
        queues_capped, workers_capped, failures_capped: there are more than are shown, or were counted.
        refused: completions refused within the last hour, by task.
    """

    database: str
    schema: str
    schema_version: int
    at: dt.datetime | None
    workers: tuple[Worker, ...]
    workers_capped: bool
    queues: tuple[Queue, ...]
    queues_capped: bool
    failures: tuple[TaskFailures, ...]
    refused: tuple[TaskFailures, ...]
    failures_capped: bool
    not_read: tuple[str, ...]
    warnings: tuple[Attention, ...]


_Paused = dict[str, tuple[dt.datetime | None, dt.datetime | None]]
_Failures = tuple[tuple[TaskFailures, ...], tuple[TaskFailures, ...], bool]
_NO_FAILURES: _Failures = ((), (), False)


def status(desk: Desk, *, section_seconds: float = SECTION_SECONDS) -> Status:
    """Read it: some twelve statements, each bounded in rows and in time. Locks nothing, writes nothing.

    The parts are read one after another, each in a snapshot of its own, so a job may move between them.

    Raises:
        DatabaseUnavailable: the database went away. A part that only took too long is left out instead.
    """
    not_read: list[str] = []

    def part(name: str, read: Callable[[], T], otherwise: T) -> T:
        try:
            return read()
        except OutcomeUnknown:
            # The bound was passed and the connection is shut; only reads were sent, so nothing is at stake.
            not_read.append(name)
            desk.link.connect()
            return otherwise

    at = moment(desk.ask("now", bound_seconds=section_seconds)[0][0])
    workers: list[Worker] = part("workers", lambda: _workers(desk, section_seconds), [])
    names: list[str] = part("queues", lambda: _queue_names(desk, section_seconds), [])
    counts: dict[str, dict[str, Any]] = part(
        "ready and scheduled", lambda: _counts(desk, _all(names, workers), section_seconds), {}
    )
    held: dict[str, dict[str, Any]] = part("leased", lambda: _held(desk, section_seconds), {})
    paused: _Paused = part("paused", lambda: _paused(desk, section_seconds), {})
    blocked: dict[str, dict[str, Any]] = part("blocked", lambda: _blocked(desk, section_seconds), {})
    stuck = Stuck(
        part("limits of 0", lambda: attention.read_held(desk, section_seconds), []),
        part("orphans", lambda: attention.read_orphans(desk, section_seconds), []) if blocked else [],
        part("wakes", lambda: attention.read_wakes(desk, workers, paused, section_seconds), []),
    )
    failures: _Failures = part("failures", lambda: _failures(desk, section_seconds), _NO_FAILURES)
    expired: list[tuple[str, int]] = part("expired jobs", lambda: _expired(desk, section_seconds), [])
    schedules: tuple[ScheduleRow, ...] = part(
        "schedules", lambda: list_schedules(desk, bound_seconds=section_seconds), ()
    )

    shown = workers[:WORKERS_MAX]
    queues = [
        _queue(
            name,
            shown,
            (counts.get(name, {}), held.get(name, {}), blocked.get(name, {})),
            paused.get(name, (None, None)),
        )
        for name in _all(_all(names, shown), [], extra=[*held, *paused, *blocked])
    ]
    return Status(
        database=desk.link.settings.masked,
        schema=desk.schema,
        schema_version=desk.version,
        at=at,
        workers=tuple(shown),
        workers_capped=len(workers) > WORKERS_MAX,
        queues=tuple(queues),
        queues_capped=len(names) > QUEUES_MAX,
        failures=failures[0],
        refused=failures[1],
        failures_capped=failures[2],
        not_read=tuple(not_read),
        warnings=tuple(
            attention.warnings(
                shown,
                queues,
                failures[1],
                expired,
                problems(schedules),
                stuck,
                not_read,
            )
        ),
    )


def _all(names: list[str], workers: list[Worker], extra: Iterable[str] = ()) -> list[str]:
    served = (name for worker in workers if worker.live for name in worker.queues)
    return sorted({*names[:QUEUES_MAX], *served, *extra})


def _workers(desk: Desk, seconds: float) -> list[Worker]:
    return [worker_of(row) for row in desk.ask("workers", {"limit": WORKERS_MAX + 1}, bound_seconds=seconds)]


def worker_of(row: tuple[Any, ...]) -> Worker:
    """From a row of the statement ``workers``."""
    queues, tasks, counters = (from_json(text) for text in row[5:8])
    counters = counters if isinstance(counters, dict) else {}
    started, renewed, now = row[8], row[9], row[12]
    return Worker(
        id=row[0],
        host=row[1],
        pid=row[2],
        version=row[3],
        release=row[4],
        live=row[11],
        started_at=moment(started),
        renewed_at=moment(renewed),
        expires_at=moment(row[10]),
        age_seconds=max(0.0, now - started),
        silent_seconds=max(0.0, now - renewed),
        queues={str(k): _int(v) for k, v in queues.items()} if isinstance(queues, dict) else {},
        tasks=tuple(map(str, tasks)) if isinstance(tasks, list) else (),
        unknown={str(k): _int(v) for k, v in _dict(counters.get("unknown")).items()},
        overstaying={str(k): _int(v) for k, v in _dict(counters.get("overstaying")).items()},
        lost_slots=_int(counters.get("lost_slots")),
        wake=str(counters.get("wake", "")),
        reserved={str(k): _int(v) for k, v in _dict(counters.get("reserved")).items()},
        **{name: _int(counters.get(name)) for name in ("held", "running", "completed", "failed", "refused", "lost")},
    )


def _int(value: object) -> int:
    return value if isinstance(value, int) else 0


def _dict(value: object) -> dict[Any, Any]:
    return value if isinstance(value, dict) else {}


def _queue_names(desk: Desk, seconds: float) -> list[str]:
    return queue_names(desk, QUEUES_MAX + 1, seconds)


def queue_names(desk: Desk, limit: int, seconds: float | None = None) -> list[str]:
    """The queues that have ready or scheduled jobs, in alphabetical order of the database, at most ``limit``."""
    return [name for (name,) in desk.ask("queues", {"limit": limit}, bound_seconds=seconds)]


def _counts(desk: Desk, names: list[str], seconds: float) -> dict[str, dict[str, Any]]:
    if not names:
        return {}
    cap = max(COUNT_FLOOR, min(COUNT_CAP, COUNT_BUDGET // len(names)))
    rows = desk.ask("queue_counts", {"queues": names, "cap": cap}, bound_seconds=seconds)
    return {
        name: {
            "ready": min(ready, cap),
            "oldest_ready_seconds": None if oldest is None else max(0.0, oldest),
            "scheduled": min(scheduled, cap),
            "capped": tuple(what for what, n in (("ready", ready), ("scheduled", scheduled)) if n > cap),
        }
        for name, ready, oldest, scheduled in rows
    }


def _held(desk: Desk, seconds: float) -> dict[str, dict[str, Any]]:
    rows = desk.ask("held", {"cap": COUNT_CAP}, bound_seconds=seconds)
    found: dict[str, dict[str, Any]] = {}
    for state, what in (("l", "leased"), ("q", "suspect"), ("g", "waiting")):
        mine = [row for row in rows if row[0] == state]
        # The rows were cut off in the order of their ids, so any of the queues may be short.
        capped = sum(row[2] for row in mine) > COUNT_CAP
        for _, queue, count, expired in mine:
            counts = found.setdefault(queue, {"capped": ()})
            counts[what] = count
            if what == "leased":
                counts["expired"] = expired
            if capped:
                counts["capped"] += (what,)
    return found


def _blocked(desk: Desk, seconds: float) -> dict[str, dict[str, Any]]:
    window = attention.BLOCKED_WINDOW
    rows = desk.ask("blocked", {"window": window}, bound_seconds=seconds)
    return {row[0]: {"blocked": row[1], "capped": ("blocked",) if row[2] >= 2 * window else ()} for row in rows}


def _paused(desk: Desk, seconds: float) -> _Paused:
    return {
        row[0]: (moment(row[1]), moment(row[2]))
        for row in desk.ask("paused", {"limit": QUEUES_MAX}, bound_seconds=seconds)
    }


def _failures(desk: Desk, seconds: float) -> _Failures:
    params = {"seconds": FAILURES_SECONDS, "cap": FAILURES_CAP}
    rows = desk.ask("failures", params, bound_seconds=seconds)
    made = [(row[1], TaskFailures(row[0], row[2], row[3], moment(row[4]), row[5], row[6])) for row in rows]
    return (
        tuple(each for refused, each in made if not refused),
        tuple(each for refused, each in made if refused),
        sum(row[2] for row in rows) > FAILURES_CAP,
    )


def _expired(desk: Desk, seconds: float) -> list[tuple[str, int]]:
    params = {"seconds": FAILURES_SECONDS, "cap": FAILURES_CAP}
    return [(row[0], row[1]) for row in desk.ask("expired", params, bound_seconds=seconds)]


def _queue(
    name: str,
    workers: list[Worker],
    counts: tuple[dict[str, Any], ...],
    paused: tuple[dt.datetime | None, dt.datetime | None],
) -> Queue:
    serving = [worker for worker in workers if worker.live and name in worker.queues]
    merged = {key: value for each in counts for key, value in each.items()}
    merged["capped"] = tuple(what for each in counts for what in each.get("capped", ()))
    return Queue(
        name=name,
        workers=len(serving),
        slots=sum(worker.queues[name] for worker in serving),
        paused_at=paused[0],
        resume_at=paused[1],
        **merged,
    )
