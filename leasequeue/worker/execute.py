"""Handlers: threads for plain functions, one event loop in a thread of its own for ``async def``.

What happens to one job::

    start_by is past ───────> EXPIRED
    decode ──does not bind──> UNBOUND (put back)          an entry on the page stands from just before the handler
      │    └─undecodable────> FAILED_FOR_GOOD             starts until the completer has the end acknowledged
      v
    handler ──returns──> SUCCEEDED, COMPLETED_BY_CALLER
            ──raises───> FAILED, or the reason for which it was told to stop (CANCELLED, UNSTARTED, LOST)
"""

from __future__ import annotations

import asyncio
import datetime as dt
import json
import logging
import threading
import time
import traceback
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from leasequeue.codec import encode_result, safe_text
from leasequeue.context import JobContext, _current
from leasequeue.errors import DoesNotBind, Undecodable
from leasequeue.job import Held
from leasequeue.worker.hand import Claimed, Ended, Failure, Outcome, Slots

if TYPE_CHECKING:
    from leasequeue.queue import LeaseQueue
    from leasequeue.worker.page import Page

log = logging.getLogger("leasequeue.job")

TEXT_LIMIT = 20_000
"""Characters kept of a message or a traceback; what is longer is cut in the middle."""

_STOPPED = {
    "cancelled": Outcome.CANCELLED,
    "shutdown": Outcome.UNSTARTED,
    "lost": Outcome.LOST,
    "timeout": Outcome.FAILED,
}


class Executor:
    """Runs claimed jobs on the slots of their queues, and hands each end to ``finish``.

    Args:
        lq: the application's LeaseQueue, its imports loaded.
        slots: by queue name.
        page: where started jobs are noted.
        finish: called once for each job, from the thread that ran it.
        trust_seconds: how long after ``Claimed.renewed`` the lease is still trusted to begin work.
    """

    def __init__(
        self,
        lq: LeaseQueue,
        slots: Iterable[Slots],
        page: Page,
        finish: Callable[[Ended], None],
        trust_seconds: float,
    ) -> None:
        self._lq = lq
        self._schema = lq.schema
        self._slots = list(slots)
        self._page = page
        self._finish = finish
        self._trust_seconds = trust_seconds
        self._state: Any = None
        self._threads: list[threading.Thread] = []
        self._consumers: list[asyncio.Task[None]] = []
        self._timed: set[Claimed] = set()
        self._timed_lock = threading.Lock()
        self.loop = asyncio.new_event_loop()
        self._loop_thread = threading.Thread(target=self._run_loop, name="leasequeue-async", daemon=True)

    # Start and stop

    def start(self) -> None:
        """Start the event loop, enter the lifespan on it or here, start the handler threads."""
        self._loop_thread.start()
        entered = self._lq.enter_lifespan()
        self._state = self.on_loop(entered) if asyncio.iscoroutine(entered) else entered
        for slots in self._slots:
            for number in range(slots.size):
                thread = threading.Thread(
                    target=self._serve, args=(slots, number), name=f"{slots.name}-{number}", daemon=True
                )
                thread.start()
                self._threads.append(thread)
        self.on_loop(self._start_consumers())

    def on_loop(self, coroutine: Any, timeout_seconds: float | None = None) -> Any:
        """Run a coroutine on the handlers' loop and wait for it, from another thread."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(timeout_seconds)

    def finish_serving(self) -> None:
        """Tell the threads to end when they have nothing left; returns at once."""
        for slots in self._slots:
            for _ in range(slots.size):
                slots.ready.put(None)

    def leave_lifespan(self) -> None:
        left = self._lq.exit_lifespan()
        if asyncio.iscoroutine(left):
            self.on_loop(left, 5.0)

    def _run_loop(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()

    # Handing in

    def submit(self, slots: Slots, jobs: list[Claimed]) -> None:
        """Hand claimed jobs to the slots of their queue. For the claimer's thread."""
        if not slots.waiting():
            # What comes now waits from now on, whenever the last handler began.
            slots.last_start = time.monotonic()
        arrived = 0
        for job in jobs:
            task = job.task
            if task is None:
                slots.claimed -= 1
                self._finish(Ended(job, Outcome.UNBOUND))
            elif task.is_async:
                slots.has_async = True
                slots.aready.append(job)
                arrived += 1
            else:
                slots.has_sync = True
                slots.ready.put(job)
        if arrived:
            self.loop.call_soon_threadsafe(self._arrive, slots, arrived)

    # Stopping a job

    def stop_job(self, job: Claimed, reason: str) -> None:
        """Tell a running job to stop: its ``cancelled`` event, and its coroutine. Any thread.

        Args:
            reason: ``cancelled``, ``shutdown``, ``lost`` or ``timeout``. The first reason stays.
        """
        if job.stop_reason is not None:
            return
        job.stop_reason = reason
        ctx, consumer = job.ctx, job.consumer
        if ctx is not None:
            ctx.stop()
        if consumer is not None:
            self.loop.call_soon_threadsafe(self._cancel_if_running, job, consumer)

    def _cancel_if_running(self, job: Claimed, consumer: asyncio.Task[None]) -> None:
        # On the loop's own thread: the consumer may have gone on to another job meanwhile.
        if job.consumer is consumer:
            consumer.cancel()

    def overdue(self, now: float) -> list[Claimed]:
        """Stop what runs past its timeout; returns those that were told now. For the control thread."""
        with self._timed_lock:
            late = [job for job in self._timed if job.deadline <= now and job.stop_reason is None]
        for job in late:
            self.stop_job(job, "timeout")
        return late

    # Plain functions

    def _serve(self, slots: Slots, number: int) -> None:
        take = slots.ready.get
        while True:
            job = take()
            if job is None:
                return
            try:
                self._finish(self._run(job, slots))
            except BaseException as error:  # noqa: BLE001  # a slot must not be lost with its thread
                self._broke(job, error)
            slots.ended[number] += 1

    def _run(self, job: Claimed, slots: Slots) -> Ended:
        started = time.monotonic()
        slots.last_start = started
        prepared = self._prepare(job, started)
        if isinstance(prepared, Ended):
            return prepared
        ctx, arguments = prepared
        assert job.task is not None
        token = _current.set(ctx)
        try:
            value = self._lq.handler(job.task)(ctx, arguments)
        except BaseException as error:  # noqa: BLE001  # whatever a handler raises ends its attempt, not this thread
            return self._raised(job, error)
        finally:
            _current.reset(token)
            slots.note_duration(time.monotonic() - started)
            self._over(job)
        return self._returned(job, ctx, value)

    # Coroutines

    async def _start_consumers(self) -> None:
        for slots in self._slots:
            for number in range(slots.size):
                self._consumers.append(asyncio.create_task(self._consume(slots, slots.size + number)))

    def _arrive(self, slots: Slots, arrived: int) -> None:
        while arrived and slots.idle:
            idle = slots.idle.pop()
            if not idle.done():
                idle.set_result(None)
                arrived -= 1

    async def _consume(self, slots: Slots, number: int) -> None:
        me = asyncio.current_task()
        assert me is not None
        ran = 0
        while True:
            try:
                job = slots.aready.popleft()
            except IndexError:  # not asked first: the claimer takes back what waits for too long
                arrival = self.loop.create_future()
                slots.idle.append(arrival)
                try:
                    await arrival
                except asyncio.CancelledError:  # by an application that cancels every task of its loop
                    me.uncancel()
                continue
            try:
                self._finish(await self._arun(job, slots, me))
            except BaseException as error:  # noqa: BLE001  # as in _serve
                self._broke(job, error)
            slots.ended[number] += 1
            ran += 1
            if ran % 64 == 0:
                # A handler that never waits must not keep the other consumers from their turn.
                await asyncio.sleep(0)

    async def _arun(self, job: Claimed, slots: Slots, me: asyncio.Task[None]) -> Ended:
        started = time.monotonic()
        slots.last_start = started
        job.consumer = me  # before _prepare asks whether it should stop: one of the two sees it
        prepared = self._prepare(job, started)
        if isinstance(prepared, Ended):
            job.consumer = None
            return prepared
        ctx, arguments = prepared
        assert job.task is not None
        token = _current.set(ctx)
        timer = None
        if job.deadline:
            timer = self.loop.call_later(job.deadline - started, self.stop_job, job, "timeout")
        try:
            value = await self._lq.handler(job.task)(ctx, arguments)
        except BaseException as error:  # noqa: BLE001  # as above; a job's cancellation is not its consumer's
            return self._raised(job, error)
        finally:
            job.consumer = None
            while me.cancelling():
                me.uncancel()
            if timer is not None:
                timer.cancel()
            _current.reset(token)
            slots.note_duration(time.monotonic() - started)
            self._over(job)
        return self._returned(job, ctx, value)

    # Both

    def _prepare(self, job: Claimed, now: float) -> tuple[JobContext, dict[str, Any]] | Ended:
        """Everything between the claim and the handler; an end where it comes to none."""
        task = job.task
        assert task is not None
        stopped = _stopped(job)
        if stopped is not None:
            return stopped
        if job.start_by is not None and now > job.start_by:
            return Ended(job, Outcome.EXPIRED)
        if now > job.renewed + self._trust_seconds:
            # The process was stopped or starved: somebody else may hold the row by now. Nothing was done yet.
            return Ended(job, Outcome.UNSTARTED)
        try:
            arguments = self._decode(job)
        except DoesNotBind:
            return Ended(job, Outcome.UNBOUND)
        except Undecodable as error:
            return Ended(job, Outcome.FAILED_FOR_GOOD, failure=describe(error))
        except Exception as error:  # noqa: BLE001  # an `upgrade` of the application may raise anything
            return _failed(job, describe(error))
        ctx = JobContext(
            Held(job.id, job.term, job.holder),
            job.task_name,
            job.queue,
            job.attempt,
            job.max_attempts or task.max_attempts,
            self._state,
            self._schema,
            self._lq.keeps(job.queue),
            _tick(job.tick),
        )
        job.ctx = ctx
        stopped = _stopped(job)
        if stopped is not None:  # since the first look, by somebody who may not have seen the context yet
            job.ended = True
            return stopped
        if task.timeout is not None:
            job.deadline = now + task.timeout.total_seconds()
            with self._timed_lock:
                self._timed.add(job)
        job.entry = self._page.enter(job.id, job.term, job.deadline)
        if time.monotonic() > job.renewed + self._trust_seconds:
            # It waited for a full page, as while the database is away; nothing was done yet.
            self._over(job)
            return Ended(job, Outcome.UNSTARTED)
        return ctx, arguments

    def _decode(self, job: Claimed) -> dict[str, Any]:
        task = job.task
        assert task is not None
        try:
            return task.signature.decode(job.text)
        except DoesNotBind:
            if task.upgrade is None:
                raise
            return task.signature.decode(json.dumps(task.upgrade(json.loads(job.text))))

    def _returned(self, job: Claimed, ctx: JobContext, value: object) -> Ended:
        if job.stop_reason == "lost":
            return Ended(job, Outcome.LOST)
        if ctx.completed:
            return Ended(job, Outcome.COMPLETED_BY_CALLER)
        if job.stop_reason is not None and ctx.stopped_early:
            # It may have left its work undone; at least once means that it runs again.
            return self._raised(job, TimeoutError("the handler was told to stop, and returned"))
        if value is None:
            return Ended(job, Outcome.SUCCEEDED)
        try:
            return Ended(job, Outcome.SUCCEEDED, result=encode_result(value))
        except Exception as error:  # noqa: BLE001  # an encoder of the application may raise anything
            return _failed(job, describe(error))

    def _raised(self, job: Claimed, error: BaseException) -> Ended:
        ctx = job.ctx
        if ctx is not None and ctx.completed:
            return Ended(job, Outcome.COMPLETED_BY_CALLER, failure=describe(error))
        reason = job.stop_reason
        if reason is None:
            return _failed(job, describe(error))
        if reason == "timeout" and job.task is not None and job.task.timeout is not None:
            seconds = job.task.timeout.total_seconds()
            failure = Failure("TimeoutError", f"ran longer than its timeout of {seconds:g} s", _trace(error))
            return _failed(job, failure)
        return Ended(job, _STOPPED[reason], failure=describe(error))

    def _broke(self, job: Claimed, error: BaseException) -> None:
        """What is around the handler failed. Without an end the job would be renewed for ever and never run."""
        log.error("job %s (%s): its end could not be told", job.id, job.task_name, exc_info=error)
        self._over(job)
        final = Outcome.FAILED_FOR_GOOD if job.is_last_attempt else Outcome.FAILED
        self._finish(Ended(job, final, failure=describe(error)))

    def _over(self, job: Claimed) -> None:
        job.ended = True
        if job.deadline:
            with self._timed_lock:
                self._timed.discard(job)


def _failed(job: Claimed, failure: Failure) -> Ended:
    return Ended(job, Outcome.FAILED_FOR_GOOD if job.is_last_attempt else Outcome.FAILED, failure=failure)


def _stopped(job: Claimed) -> Ended | None:
    return None if job.stop_reason is None else Ended(job, _STOPPED[job.stop_reason])


def describe(error: BaseException) -> Failure:
    """What is written of an exception, safe for the database: no NUL, no lone surrogates, long texts cut."""
    kind = type(error)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    try:
        message = str(error)
    except Exception:  # noqa: BLE001  # __str__ is the application's
        message = "(its message cannot be shown: str() of it failed)"
    return Failure(safe_text(name, 500), safe_text(message, TEXT_LIMIT), _trace(error))


def _trace(error: BaseException) -> str:
    try:
        text = "".join(traceback.format_exception(error))
    except Exception:  # noqa: BLE001  # as above
        text = "(the traceback cannot be shown)"
    return safe_text(text, TEXT_LIMIT)


def _tick(text: str | None) -> dt.datetime | None:
    """The due time of the schedule that fired the job; None too where plain SQL wrote something else there."""
    if text is None:
        return None
    try:
        found = dt.datetime.fromisoformat(text)
    except ValueError:
        return None
    return found if found.utcoffset() is not None else None
