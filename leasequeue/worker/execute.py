"""Handlers: threads for plain functions, one event loop for ``async def``, child processes where a task asks for them.

What happens to one job::

    start_by is past ───────> EXPIRED
    decode ──does not bind──> UNBOUND (put back)          an entry on the page stands from just before the handler
      │    └─undecodable────> FAILED_FOR_GOOD             starts until the completer has the end acknowledged
      v
    handler ──returns, raises, is told to stop──> see ``attempt``

Where a handler runs is in ``threads``, ``coroutines`` and ``pool``; here is what they share: what comes before a handler,
how it is told to stop, and that each job has an end.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import logging
import threading
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from leasequeue.context import JobContext
from leasequeue.errors import DoesNotBind, Undecodable
from leasequeue.job import Held
from leasequeue.raising import JobInterrupted, JobTimeout
from leasequeue.worker.attempt import Tries, decode, describe, raised, unstarted
from leasequeue.worker.coroutines import Coroutines
from leasequeue.worker.hand import Claimed, Ended, Outcome, Slots
from leasequeue.worker.pool import Pool
from leasequeue.worker.threads import Threads
from leasequeue.worker.warden import Warden

if TYPE_CHECKING:
    from leasequeue.middleware import Handler
    from leasequeue.queue import LeaseQueue
    from leasequeue.task import Task
    from leasequeue.worker.page import Page

log = logging.getLogger("leasequeue.job")


class Executor:
    """Runs claimed jobs on the slots of their queues, and hands each end to ``finish``.

    Args:
        lq: the application's LeaseQueue, its imports loaded.
        slots: by queue name.
        page: where started jobs are noted.
        finish: called once for each job, from the thread that ran it (twice for one that was given up).
        relay: called instead for a job that passed a gate or is part of a workflow.
        trust_seconds: how long after ``Claimed.renewed`` the lease is still trusted to begin work.
        pool: the child processes.
    """

    def __init__(
        self,
        lq: LeaseQueue,
        slots: Iterable[Slots],
        page: Page,
        finish: Callable[[Ended], None],
        relay: Callable[[Ended], None],
        trust_seconds: float,
        pool: Pool,
    ) -> None:
        self._lq = lq
        self._schema = lq.schema
        self._slots = list(slots)
        self._page = page
        self._trust_seconds = trust_seconds
        self._state: Any = None
        self._pool = pool
        self._threads = Threads(self, pool)
        self._coroutines = Coroutines(self)
        self._stopping = threading.Lock()
        self.finish = finish
        self.relay = relay
        self.handler: Callable[[Task[..., Any]], Handler] = lq.handler
        self.warden = Warden(self.stop_job, self._interrupt, finish)
        self.on_loop = self._coroutines.on_loop
        self.loop = self._coroutines.loop

    # Start and stop

    def start(self) -> None:
        """Start the event loop, enter the lifespan on it or here, start the handler threads."""
        self._coroutines.start_loop()
        entered = self._lq.enter_lifespan()
        self._state = self.on_loop(entered) if asyncio.iscoroutine(entered) else entered
        for slots in self._slots:
            self._threads.start(slots)
        self._coroutines.start(self._slots)

    def finish_serving(self) -> None:
        """Tell the threads to end when they have nothing left; returns at once."""
        for slots in self._slots:
            slots.ready.close()

    def leave_lifespan(self) -> None:
        left = self._lq.exit_lifespan()
        if asyncio.iscoroutine(left):
            self.on_loop(left, 5.0)

    # Handing in

    def submit(self, slots: Slots, jobs: list[Claimed]) -> None:
        """Hand claimed jobs to the slots of their queue. For the claimer's thread."""
        if not slots.waiting():
            # What comes now waits from now on, whenever the last handler began.
            slots.last_start = time.monotonic()
        plain: list[Claimed] = []
        arrived = 0
        for job in jobs:
            task = job.task
            if task is None:
                slots.claimed -= 1
                self.finish(Ended(job, Outcome.UNBOUND))
            elif task.is_async:
                slots.has_async = True
                slots.aready.append(job)
                arrived += 1
            else:
                slots.has_sync = True
                plain.append(job)
        if plain:
            slots.ready.put(plain)
        if arrived:
            self._coroutines.submit(slots, arrived)

    # Stopping a job

    def stop_job(self, job: Claimed, reason: str) -> None:
        """Tell a running job to stop: its ``cancelled`` event, its coroutine, thread or child process. Any thread.

        Args:
            reason: ``cancelled``, ``shutdown``, ``lost`` or ``timeout``. The first reason stays.
        """
        with self._stopping:
            if job.stop_reason is not None:
                return
            job.told_at = time.monotonic()
            job.stop_reason = reason
        ctx, consumer, child = job.ctx, job.consumer, job.child
        cooperates = ctx is not None and ctx.looked
        if ctx is not None:
            ctx.stop()
            self.warden.mind(job)
        if consumer is not None:
            self._coroutines.cancel(job, consumer)
        if child is not None:
            child.stop(job)
        if not cooperates:
            self._interrupt(job)

    def _interrupt(self, job: Claimed) -> None:
        """Raise the exception in the job's thread, where it runs in one of ours; once at most for each job."""
        window, ctx = job.window, job.ctx
        # One that has completed in its own transaction is about to commit: there is nothing to win any more.
        if window is not None and ctx is not None and not ctx.completed:
            window.interrupt(job, JobTimeout if job.stop_reason == "timeout" else JobInterrupted)

    # Around a handler

    def prepare(self, job: Claimed, now: float) -> tuple[JobContext, dict[str, Any]] | Ended:
        """Everything between the claim and the handler; an end where it comes to none."""
        task = job.task
        assert task is not None
        if job.stop_reason is not None:
            return unstarted(job)
        if job.start_by is not None and now > job.start_by:
            return Ended(job, Outcome.EXPIRED)
        if now > job.renewed + self._trust_seconds:
            # The process was stopped or starved: somebody else may hold the row by now. Nothing was done yet.
            return Ended(job, Outcome.UNSTARTED)
        try:
            arguments = decode(task, job.text)
        except DoesNotBind:
            return Ended(job, Outcome.UNBOUND)
        except Undecodable as error:
            return Ended(job, Outcome.FAILED_FOR_GOOD, failure=describe(error))
        except Exception as error:  # noqa: BLE001  # an `upgrade` of the application may raise anything
            return Ended(job, *raised(task, Tries.of(job), error, 0.0))
        ctx = JobContext(
            tuple.__new__(Held, (job.id, job.term, job.holder)),  # in a third of the time of naming its fields
            job.task_name,
            job.queue,
            job.attempt,
            job.max_attempts or task.max_attempts,
            self._state,
            self._schema,
            self._lq.keeps(job.queue),
            due_time(job.tick),
            job.linked,
            job.workflow,
            self._lq,
        )
        job.ctx = ctx
        if job.is_told:  # since the first look, by somebody who may not have seen the context yet
            job.ended = True
            return unstarted(job)
        soft = task.conduct.soft_timeout
        if task.timeout is not None or soft is not None:
            job.deadline = now + task.timeout.total_seconds() if task.timeout is not None else 0.0
            job.soft_at = now + soft.total_seconds() if soft is not None else 0.0
            self.warden.mind(job)
        job.entry = self._page.enter(job.id, job.term, job.deadline)
        if time.monotonic() > job.renewed + self._trust_seconds:
            # It waited for a full page, as while the database is away; nothing was done yet.
            self.over(job)
            return Ended(job, Outcome.UNSTARTED)
        return ctx, arguments

    def over(self, job: Claimed) -> bool:
        """The handler has ended. True: its attempt was given up before, so its end counts no more."""
        if job.soft_at or job.deadline or job.told_at:
            return self.warden.over(job)
        job.ended = True
        return False

    def broke(self, job: Claimed, error: BaseException) -> None:
        """What is around the handler failed. Without an end the job would be renewed for ever and never run."""
        log.error("job %s (%s): its end could not be told", job.id, job.task_name, exc_info=error)
        self.over(job)
        tries = Tries.of(job)
        final = Outcome.FAILED_FOR_GOOD if tries.spent >= tries.allowed else Outcome.FAILED
        self.finish(Ended(job, final, failure=describe(error)))


def due_time(text: str | None) -> dt.datetime | None:
    """The due time of the schedule that fired the job; None too where plain SQL wrote something else there."""
    if text is None:
        return None
    try:
        found = dt.datetime.fromisoformat(text)
    except ValueError:
        return None
    return found if found.utcoffset() is not None else None
