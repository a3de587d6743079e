"""What somebody should look at, in sentences: what does not run, who is gone, and what was not read.

Most of it follows from what ``ops/status.py`` has read; :func:`read_stuck` asks for what would wait for ever in silence.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from leasequeue.ops.asking import Desk

if TYPE_CHECKING:
    from leasequeue.ops.status import Queue, TaskFailures, Worker

EXPIRED_CAP = 20_000
SCHEDULES_NAMED = 20
"""The most schedules that are warned of one by one."""
LIMITS_NAMED = 20
ORPHANS_NAMED = 20
BLOCKED_WINDOW = 20_000
"""How many of the oldest and of the newest live jobs are looked at for blocked ones."""
HELD_WINDOW = 20_000
"""How many waiting jobs are looked at for those that a limit of 0 holds."""
WAKE_OVERDUE_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Attention:
    """What somebody should look at.

    Attributes:
        kind: ``unserved``, ``unknown_task``, ``expired_worker``, ``expired_leases``, ``refused``, ``expired_jobs``,
            ``schedule``, ``lost_slots``, ``held`` (by a limit of 0), ``orphans``, ``wakes`` or ``not_read``.
        subject: the queue, task, worker, schedule, limit or part that it is about.
    """

    kind: str
    subject: str
    message: str


class Stuck(NamedTuple):
    """What waits, and nothing will let it run.

    Attributes:
        held: limits of 0, and how many jobs wait under each, as far as was looked.
        orphans: blocked jobs none of whose parents lives: id, queue and task.
        wakes: queue, key, and for how many seconds its wake has been due.
    """

    held: list[tuple[str, int]]
    orphans: list[tuple[int, str, str]]
    wakes: list[tuple[str, str, float]]


def read_held(desk: Desk, seconds: float) -> list[tuple[str, int]]:
    """The limits of 0 under which something waits."""
    params = {"window": HELD_WINDOW, "limit": LIMITS_NAMED}
    return [(row[0], row[1]) for row in desk.ask("held_by_zero", params, bound_seconds=seconds)]


def read_orphans(desk: Desk, seconds: float) -> list[tuple[int, str, str]]:
    """Blocked jobs none of whose parents lives."""
    params = {"window": BLOCKED_WINDOW, "limit": ORPHANS_NAMED}
    return [(row[0], row[1], row[2]) for row in desk.ask("orphans", params, bound_seconds=seconds)]


def read_wakes(
    desk: Desk, workers: list[Worker], paused: Iterable[str], seconds: float
) -> list[tuple[str, str, float]]:
    """Wakes that have been due for long in queues that run: a worker with a free slot would have taken them."""
    able = {name for each in workers if each.live and each.running < each.slots for name in each.queues}
    queues = sorted(able - set(paused))
    if not queues:
        return []
    params = {"queues": queues, "seconds": WAKE_OVERDUE_SECONDS}
    return [(row[0], row[1], row[2]) for row in desk.ask("overdue_wakes", params, bound_seconds=seconds)]


def _stuck(stuck: Stuck) -> Iterable[Attention]:
    for name, count in stuck.held:
        yield Attention(
            "held",
            name,
            f"limit {name!r} is 0: {count:,}{'+' if count >= HELD_WINDOW else ''} job(s) wait for it to be raised; see "
            f"`leasequeue limits show {name}`",
        )
    for queue in sorted({queue for _, queue, _ in stuck.orphans}):
        mine = [(id, task) for id, other, task in stuck.orphans if other == queue]
        named = ", ".join(f"{id} ({task})" for id, task in mine[:5])
        more = "+" if len(stuck.orphans) == ORPHANS_NAMED else ""
        yield Attention(
            "orphans",
            queue,
            f"queue {queue!r}: {len(mine):,}{more} blocked job(s) wait for jobs none of which is there any more (their "
            f"rows were deleted): {named}; nothing will release them: `leasequeue jobs cancel ID`",
        )
    for queue, key, overdue in stuck.wakes:
        yield Attention(
            "wakes",
            queue,
            f"queue {queue!r}: limit key {key!r} was to be looked at {overdue:,.0f} s ago, and no worker did, although "
            f"slots are free: see the workers' logs, and transactions that hold rows of leasequeue_wake or "
            "leasequeue_bucket locked",
        )


def warnings(
    workers: list[Worker],
    queues: list[Queue],
    refused: tuple[TaskFailures, ...],
    expired: list[tuple[str, int]],
    schedules: list[tuple[str, str]],
    stuck: Stuck,
    not_read: list[str],
) -> Iterable[Attention]:
    """What somebody should look at, the gravest first."""
    for queue in queues:
        waiting = {
            "ready": queue.ready, "suspect": queue.suspect, "waiting at a limit": queue.waiting,
            "blocked by other jobs": queue.blocked, "scheduled": queue.scheduled,
        }  # fmt: skip
        there = ", ".join(
            f"{count:,}{'+' if what.split()[0] in queue.capped else ''} {what}"
            for what, count in waiting.items()
            if count
        )
        if there and not queue.workers and "workers" not in not_read:
            yield Attention(
                "unserved",
                queue.name,
                f"queue {queue.name!r}: {there}, and no live worker serves it: these jobs do not run; "
                f"start one with `leasequeue worker APP --queues {queue.name}=10`",
            )
        if queue.expired and not queue.workers and "workers" not in not_read:
            yield Attention(
                "expired_leases",
                queue.name,
                f"queue {queue.name!r}: {queue.expired:,} of its leased jobs have lost their worker; "
                f"the next worker that starts takes them up",
            )
    yield from _stuck(stuck)
    unknown: dict[str, int] = {}
    for worker in workers:
        for task, count in worker.unknown.items() if worker.live else ():
            unknown[task] = unknown.get(task, 0) + count
    for task, count in sorted(unknown.items()):
        yield Attention(
            "unknown_task",
            task,
            f"task {task!r}: put back {count:,} time(s) by live workers that do not know it or its arguments; during a "
            f"deploy that ends by itself, otherwise add its module to LeaseQueue(imports=[...]) or cancel its jobs",
        )
    for worker in workers:
        if not worker.live:
            yield Attention(
                "expired_worker",
                f"{worker.host}:{worker.pid}",
                f"worker {worker.host}:{worker.pid} has not renewed its row for {worker.silent_seconds:,.0f} s and did not "
                f"sign off: it was killed, or cannot reach the database; its jobs go to others",
            )
    for worker in workers:
        if worker.live and worker.lost_slots:
            tasks = ", ".join(f"{task} ({count:,})" for task, count in sorted(worker.overstaying.items()))
            yield Attention(
                "lost_slots",
                f"{worker.host}:{worker.pid}",
                f"worker {worker.host}:{worker.pid}: {worker.lost_slots:,} of {worker.slots:,} slots are lost to handlers that "
                f'were told to stop and go on: {tasks}; restart it, and give such tasks executor="process"',
            )
    for each in refused:
        yield Attention(
            "refused",
            each.task,
            f"task {each.task!r}: {each.failures:,} completion(s) refused within the last hour: the lease was lost by then "
            f"(a machine that was stopped or cut off, or a handler that held the interpreter), and others ran these jobs",
        )
    for task, count in expired:
        yield Attention(
            "expired_jobs",
            task,
            f"task {task!r}: {count:,}{'+' if count >= EXPIRED_CAP else ''} job(s) expired within the last hour: they were "
            f"not started in time (expires=); give it more workers or time; see `leasequeue jobs list --state expired`",
        )
    for name, sentence in schedules[:SCHEDULES_NAMED]:
        yield Attention("schedule", name, sentence)
    if len(schedules) > SCHEDULES_NAMED:
        more = len(schedules) - SCHEDULES_NAMED
        yield Attention("schedule", "", f"{more:,} more schedules need a look: `leasequeue schedules` names them")
    for name in not_read:
        yield Attention(
            "not_read", name, f"not read: {name}: the database did not answer in time; see its load and locks"
        )
