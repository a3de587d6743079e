"""Plain functions: the threads of the slots. Each runs a handler itself, or sees to it in a child process of the pool."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

from leasequeue.context import _current
from leasequeue.worker.attempt import Tries, raised, returned, settle, unstarted
from leasequeue.worker.hand import Claimed, Ended, Outcome, Slots, succeeded
from leasequeue.worker.window import Window

if TYPE_CHECKING:
    from leasequeue.context import JobContext
    from leasequeue.middleware import Handler
    from leasequeue.worker.execute import Executor
    from leasequeue.worker.pool import Pool


_UNTOUCHED = object()


class Threads:
    """The threads of all slots.

    Args:
        pool: the child processes of ``executor="process"``.
    """

    def __init__(self, executor: Executor, pool: Pool) -> None:
        self._executor = executor
        self._pool = pool
        self._threads: list[threading.Thread] = []

    def start(self, slots: Slots) -> None:
        for number in range(slots.size):
            name = f"{slots.name}-{number}"
            thread = threading.Thread(target=self._serve, args=(slots, number), name=name, daemon=True)
            thread.start()
            self._threads.append(thread)

    def _serve(self, slots: Slots, number: int) -> None:
        ready = slots.ready
        bed = threading.Lock()
        bed.acquire()
        window = Window()
        executor = self._executor
        while True:
            job = ready.get(bed)
            if job is None:
                return
            job.slots = slots
            run = self._run if job.task is None or job.task.conduct.executor == "thread" else self._run_apart
            try:
                ended = run(job, slots, window)
                executor.relay(ended) if job.linked else executor.finish(ended)
            except BaseException as error:  # noqa: BLE001  # a slot must not be lost with its thread
                executor.broke(job, error)
            slots.ended[number] += 1

    def _run(self, job: Claimed, slots: Slots, window: Window) -> Ended:
        executor = self._executor
        started = time.monotonic()
        slots.last_start = slots.ready.last_start = started
        prepared = executor.prepare(job, started)
        if isinstance(prepared, Ended):
            return prepared
        ctx, arguments = prepared
        task = job.task
        assert task is not None
        handler = executor.handler(task)
        job.window = window

        token = _current.set(ctx)
        value, error = window.run(job, _call, job, handler, ctx, arguments)
        job.window = None
        _current.reset(token)
        seconds = time.monotonic() - started
        slots.ready.note(job.task_name, seconds)
        given_up = executor.over(job)
        if given_up:
            return Ended(job, Outcome.LOST)
        if value is None and error is None and job.stop_reason is None and not ctx.completed:
            return succeeded(job)  # most of all ends; the same as by the way below
        if value is _UNTOUCHED and error is None:
            return unstarted(job)
        if error is not None:
            verdict = raised(task, Tries.of(job), error, seconds)
        else:
            verdict = returned(task, Tries.of(job), value, seconds)
        return settle(
            job, verdict, has_raised=error is not None, stopped_early=ctx.stopped_early, completed=ctx.completed
        )

    def _run_apart(self, job: Claimed, slots: Slots, _: Window) -> Ended:
        """In a child process. Its start is not the job's time."""
        executor = self._executor
        slots.last_start = slots.ready.last_start = time.monotonic()
        child = self._pool.take(lambda: job.stop_reason is not None)
        if child is None:
            return unstarted(job) if job.stop_reason is not None else Ended(job, Outcome.UNSTARTED)
        started = time.monotonic()
        try:
            prepared = executor.prepare(job, started)
            if isinstance(prepared, Ended):
                return prepared
            ctx, _arguments = prepared
            assert job.task is not None
            job.child = child
            end = child.run(job, ctx)
            if executor.over(job):
                return Ended(job, Outcome.LOST)
            ctx.completed = end.completed
            return settle(
                job, end.verdict, has_raised=end.has_raised, stopped_early=end.stopped_early, completed=end.completed,
                killed=end.killed,
            )  # fmt: skip
        finally:
            job.child = None
            self._pool.give_back(child)


def _call(job: Claimed, handler: Handler, ctx: JobContext, arguments: dict[str, Any]) -> Any:
    # After the window is open: whoever told it to stop before then has found nothing to interrupt.
    return handler(ctx, arguments) if job.stop_reason is None else _UNTOUCHED
