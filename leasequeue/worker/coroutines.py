"""``async def`` handlers: one event loop in a thread of its own, and a consumer task for each slot."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import TYPE_CHECKING, Any

from leasequeue.context import _current
from leasequeue.worker.attempt import Tries, raised, returned, settle
from leasequeue.worker.hand import Claimed, Ended, Outcome, Slots

if TYPE_CHECKING:
    from leasequeue.worker.execute import Executor


class Coroutines:
    """The loop and its consumers."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._consumers: list[asyncio.Task[None]] = []
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run_loop, name="leasequeue-async", daemon=True)

    def start_loop(self) -> None:
        self._thread.start()

    def start(self, slots: list[Slots]) -> None:
        self.on_loop(self._start_consumers(slots))

    def on_loop(self, coroutine: Any, timeout_seconds: float | None = None) -> Any:
        """Run a coroutine on the loop and wait for it, from another thread."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(timeout_seconds)

    def submit(self, slots: Slots, arrived: int) -> None:
        """So many jobs were put into ``slots.aready``. Any thread."""
        self.loop.call_soon_threadsafe(self._arrive, slots, arrived)

    def cancel(self, job: Claimed, consumer: asyncio.Task[None]) -> None:
        """Cancel the coroutine of a job, if the consumer still runs it. Any thread."""
        self.loop.call_soon_threadsafe(self._cancel_if_running, job, consumer)

    def _cancel_if_running(self, job: Claimed, consumer: asyncio.Task[None]) -> None:
        # On the loop's own thread: the consumer may have gone on to another job meanwhile.
        if job.consumer is consumer:
            consumer.cancel()

    def _run_loop(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()

    async def _start_consumers(self, slots: list[Slots]) -> None:
        for each in slots:
            for number in range(each.size):
                self._consumers.append(asyncio.create_task(self._consume(each, each.size + number)))

    def _arrive(self, slots: Slots, arrived: int) -> None:
        while arrived and slots.idle:
            idle = slots.idle.pop()
            if not idle.done():
                idle.set_result(None)
                arrived -= 1

    async def _consume(self, slots: Slots, number: int) -> None:
        me = asyncio.current_task()
        assert me is not None
        executor = self._executor
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
            job.slots = slots
            try:
                ended = await self._run(job, slots, me)
                executor.relay(ended) if job.linked else executor.finish(ended)
            except BaseException as error:  # noqa: BLE001  # a slot must not be lost with its consumer
                executor.broke(job, error)
            slots.ended[number] += 1
            ran += 1
            if ran % 64 == 0:
                # A handler that never waits must not keep the other consumers from their turn.
                await asyncio.sleep(0)

    async def _run(self, job: Claimed, slots: Slots, me: asyncio.Task[None]) -> Ended:
        executor = self._executor
        started = time.monotonic()
        slots.last_start = started
        job.consumer = me  # before prepare() asks whether it should stop: one of the two sees it
        prepared = executor.prepare(job, started)
        if isinstance(prepared, Ended):
            job.consumer = None
            return prepared
        ctx, arguments = prepared
        task = job.task
        assert task is not None
        token = _current.set(ctx)
        timer = None
        if job.deadline:
            timer = self.loop.call_later(job.deadline - started, executor.stop_job, job, "timeout")
        value: Any = None
        error: BaseException | None = None
        try:
            value = await executor.handler(task)(ctx, arguments)
        except BaseException as caught:  # noqa: BLE001  # as above; a job's cancellation is not its consumer's
            error = caught
        finally:
            job.consumer = None
            while me.cancelling():
                me.uncancel()
            if timer is not None:
                timer.cancel()
            _current.reset(token)
            seconds = time.monotonic() - started
            given_up = executor.over(job)
        if given_up:
            return Ended(job, Outcome.LOST)
        tries = Tries.of(job)
        verdict = returned(task, tries, value, seconds) if error is None else raised(task, tries, error, seconds)
        return settle(
            job, verdict, has_raised=error is not None, stopped_early=ctx.stopped_early, completed=ctx.completed
        )
