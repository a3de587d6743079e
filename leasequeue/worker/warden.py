"""Minds the jobs that have a timeout, and those that were told to stop: whether they do.

    running ──soft timeout──> its callback is called, once
            ──timeout, cancelled, lost, shutdown──> told: ``cancelled`` is set; coroutine, thread or child is interrupted
    told    ──it had looked at ``cancelled``, and goes on──> its thread is interrupted all the same
            ──it goes on still──> overstays: its slot is lost and that is said, every minute, until it ends
                                  after a timeout: this attempt is ended as failed (through the fence), so that somebody
                                  else may run the job; what the handler does later is refused

Looked after by the process's main thread, some times a second. A job with no timeout that nobody stops never comes here.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from leasequeue.context import _current
from leasequeue.worker.attempt import overdue
from leasequeue.worker.hand import Claimed, Ended

if TYPE_CHECKING:
    from leasequeue.context import JobContext
    from leasequeue.task import Task

log = logging.getLogger("leasequeue.worker")

GRACE_SECONDS = 5.0
"""How long one that was told to stop may take for it; less where its timeout is shorter."""
GRACE_MIN_SECONDS = 1.0
CHILD_GRACE_SECONDS = 15.0
"""A child process is killed, by those that wait for it; only one that even the kernel cannot end comes to this."""
SAY_EVERY_SECONDS = 60.0


class Warden:
    """Thread-safe.

    Args:
        stop: tells a job to stop, for a reason.
        interrupt: raises the exception in the job's thread, where it has one.
        finish: the completer's intake, for attempts that are given up.
    """

    def __init__(
        self,
        stop: Callable[[Claimed, str], None],
        interrupt: Callable[[Claimed], None],
        finish: Callable[[Ended], None],
    ) -> None:
        self._stop = stop
        self._interrupt = interrupt
        self._finish = finish
        self._jobs: set[Claimed] = set()
        self._overstaying: dict[Claimed, float] = {}
        self._lock = threading.Lock()

    def mind(self, job: Claimed) -> None:
        """It has a timeout, or was told to stop."""
        with self._lock:
            if not job.ended:
                self._jobs.add(job)

    def over(self, job: Claimed) -> bool:
        """Its handler has ended, and ``ended`` is set. True: its attempt was given up before, and its end does not count."""
        with self._lock:
            job.ended = True
            self._jobs.discard(job)
            if self._overstaying.pop(job, None) is not None and job.slots is not None:
                job.slots.lost -= 1
        if job.given_up:
            log.warning("job %s (%s) has ended at last; its slot is free again", job.id, job.task_name)
        return job.given_up

    def overstaying(self) -> dict[str, int]:
        """How many handlers go on though they were told to stop, by task."""
        with self._lock:
            found: dict[str, int] = {}
            for job in self._overstaying:
                found[job.task_name] = found.get(job.task_name, 0) + 1
            return found

    def given_up(self) -> int:
        """How many handlers go on whose attempts were ended: nobody waits for them."""
        with self._lock:
            return sum(job.given_up for job in self._overstaying)

    def look(self, now: float) -> None:
        """See to all of them. For one thread."""
        if not self._jobs:
            return
        with self._lock:
            jobs = list(self._jobs)
        for job in jobs:
            if job.ended:  # it ended while it was told to stop
                self.over(job)
                continue
            if job.soft_at and job.soft_at <= now and job.stop_reason is None:
                job.soft_at = 0.0
                self._soften(job)
            if job.deadline and job.deadline <= now and job.stop_reason is None:
                log.error("job %s (%s) runs past its timeout; it is told to stop", job.id, job.task_name)
                self._stop(job, "timeout")
            if job.told_at and job.stop_reason != "shutdown" and now - job.told_at >= _grace(job):
                self._interrupt(job)
                if now - job.told_at >= 2 * _grace(job) or not _cooperates(job):
                    self._outstayed(job, now)

    def _soften(self, job: Claimed) -> None:
        if job.child is not None:
            job.child.soften(job)
        elif job.task is not None and job.ctx is not None:
            soften(job.task, job.ctx)

    def _outstayed(self, job: Claimed, now: float) -> None:
        with self._lock:
            if job.ended:
                return
            said = self._overstaying.get(job)
            if said is not None and now - said < SAY_EVERY_SECONDS:
                return
            self._overstaying[job] = now
            if said is None and job.slots is not None:
                job.slots.lost += 1
            completed = job.ctx is not None and job.ctx.completed
            # One whose lease is lost has an end already, and one that was cancelled may still come to its own.
            gives_up = said is None and job.stop_reason == "timeout" and not completed
            job.given_up = job.given_up or gives_up
        log.error(
            "job %s (%s) was told to stop %.0f s ago (%s) and goes on: its slot is lost until it ends or this process is "
            'restarted; code that cannot be stopped belongs into executor="process"',
            job.id, job.task_name, now - job.told_at, job.stop_reason,
        )  # fmt: skip
        if gives_up:
            where = "coroutine" if job.task is not None and job.task.is_async else "thread"
            verdict = overdue(job, how=f", and its {where} did not stop when told to")
            self._finish(Ended(job, *verdict))


def _grace(job: Claimed) -> float:
    if job.child is not None:
        return CHILD_GRACE_SECONDS
    timeout = job.task.timeout if job.task is not None else None
    if timeout is None:
        return GRACE_SECONDS
    return min(GRACE_SECONDS, max(GRACE_MIN_SECONDS, timeout.total_seconds()))


def _cooperates(job: Claimed) -> bool:
    return job.ctx is not None and job.ctx.looked


def soften(task: Task[..., object], ctx: JobContext) -> None:
    """Call what is to be called at the soft timeout, in a thread of its own: it may take its time. Any thread."""
    callback = task.conduct.on_soft_timeout
    soft = task.conduct.soft_timeout
    seconds = soft.total_seconds() if soft is not None else 0.0
    if callback is None:
        log.warning("job %s (%s) runs past its soft timeout of %g s", ctx.id, ctx.task, seconds)
        return

    def call() -> None:
        _current.set(ctx)
        try:
            callback(ctx)
        except BaseException as error:  # it is the application's own code
            log.error("job %s (%s): its on_soft_timeout failed", ctx.id, ctx.task, exc_info=error)

    try:
        threading.Thread(target=call, name=f"soft-timeout-{ctx.id}", daemon=True).start()
    except RuntimeError as error:
        log.error("job %s (%s): no thread for its on_soft_timeout: %s", ctx.id, ctx.task, error)
