"""The queue from the claimer to the threads: each job is taken, by a thread of its own where it may take long, and no wake-up
is lost.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pytest

from leasequeue import LeaseQueue
from leasequeue.worker.execute import Executor
from leasequeue.worker.hand import Claimed, Ended, Slots
from leasequeue.worker.page import Page, create_file
from leasequeue.worker.ready import NUDGE_SECONDS, Ready
from tests.support.waiting import until


def jobs(*names: str) -> list[Claimed]:
    return [cast("Claimed", SimpleNamespace(task_name=name)) for name in names]


class Threads:
    """Some threads that take jobs and run ``handle``; ``awake`` are those that took one."""

    def __init__(self, ready: Ready, count: int, handle: Callable[[str], None]) -> None:
        self.ready = ready
        self.handle = handle
        self.taken: list[tuple[str, str]] = []
        self.threads = [threading.Thread(target=self._serve, daemon=True) for _ in range(count)]
        for thread in self.threads:
            thread.start()

    def _serve(self) -> None:
        bed = threading.Lock()
        bed.acquire()
        while (job := self.ready.get(bed)) is not None:
            self.ready.last_start = began = time.monotonic()
            self.taken.append((threading.current_thread().name, job.task_name))
            self.handle(job.task_name)
            self.ready.note(job.task_name, time.monotonic() - began)

    def end(self) -> None:
        self.ready.close()
        for thread in self.threads:
            thread.join(5)
            assert not thread.is_alive()


@contextmanager
def serving(count: int, handle: Callable[[str], None], kind: type[Ready] = Ready) -> Iterator[Threads]:
    threads = Threads(kind(), count, handle)
    try:
        yield threads
    finally:
        threads.end()


def test_jobs_that_wait_for_each_other_all_start() -> None:
    meet = threading.Barrier(5)
    with serving(5, lambda _: cast("None", meet.wait(5))) as threads:
        for _ in range(20):
            threads.ready.put(jobs(*["meet"] * 5))  # one wake-up for five: each thread wakes the next
            until(lambda: len(threads.ready) == 0 and meet.n_waiting == 0, 5)
    assert len(threads.taken) == 100


class Counting(Ready):
    """Counts the threads that it wakes."""

    woken = 0

    def _wake_one(self) -> bool:
        found = super()._wake_one()
        self.woken += found
        return found


class Unlearned(Counting):
    """Does not learn which tasks are brief."""

    def note(self, task_name: str, seconds: float) -> None: ...


def woken_by(kind: type[Counting]) -> int:
    """How many threads of eight are woken for twenty batches of jobs that are over in a moment."""
    with serving(8, lambda _: None, kind) as threads:
        ready = cast("Counting", threads.ready)
        threads.ready.put(jobs("brief"))

        def all_done(jobs: int) -> bool:
            return len(threads.taken) == jobs and len(ready._asleep) == 8

        for batch in range(21):
            until(partial(all_done, 1 + 500 * batch), 5)
            if batch == 0:
                ready.woken = 0
            if batch < 20:
                threads.ready.put(jobs(*["brief"] * 500))
        return ready.woken


def test_brief_jobs_wake_one_thread_and_not_all() -> None:
    learned, unlearned = woken_by(Counting), woken_by(Unlearned)
    assert unlearned >= 20 * 8  # each batch, all of them
    assert (
        20 <= learned < unlearned / 2
    )  # one a batch, and one where the interpreter was taken away in the middle of a job


def test_a_brief_one_that_blocks_holds_up_the_others_until_a_nudge() -> None:
    gate = threading.Event()
    blocks = [False]
    with serving(3, lambda _: cast("None", blocks[0] and gate.wait(5))) as threads:
        for _ in range(5):
            threads.ready.put(jobs("brief"))
        until(lambda: len(threads.taken) == 5, 5)
        until(lambda: threads.ready._asleep.__len__() == 3, 5)
        blocks[0] = True
        threads.ready._brief.add("brief")
        threads.ready.put(jobs("brief", "brief", "brief"))
        until(lambda: len(threads.taken) == 6, 5)
        assert len(threads.ready) == 2
        threads.ready.nudge(threads.ready.last_start + NUDGE_SECONDS / 2)
        assert len(threads.ready) == 2  # too early to tell
        threads.ready.nudge(threads.ready.last_start + NUDGE_SECONDS * 2)
        until(lambda: len(threads.taken) == 8, 5)  # the second wakes the third: the task counts as brief no more
        gate.set()


def test_coroutines_of_the_same_queue_do_not_hide_a_thread_that_blocks() -> None:
    """A real executor: plain handlers of a brief task, one of which blocks, beside coroutines that start all the time."""
    gate = threading.Event()
    lq = LeaseQueue()

    @lq.task(name="plain")
    def plain(block: bool = False) -> None:
        if block:
            gate.wait(10)

    @lq.task(name="ticks")
    async def ticks() -> None: ...

    slots, ends = Slots("default", 3), list[Ended]()
    executor = Executor(lq, [slots], Page(create_file()), ends.append, ends.append, 1e9, cast("Any", None))
    executor.start()
    ids = iter(range(1, 10_000))

    def hand_in(name: str, *texts: str) -> None:
        made = [
            Claimed((next(ids), 1, name, text, 1, 0, None, 0.0, 0, "default", False, None, None, None), uuid.uuid4(), "default",
                    lq.registry[name], time.monotonic())
            for text in texts
        ]  # fmt: skip
        slots.claimed += len(made)
        executor.submit(slots, made)

    def ended(name: str) -> int:
        return sum(one.job.task_name == name for one in ends)

    try:
        for n in range(20):
            hand_in("plain", "{}")
            until(partial(lambda wanted: ended("plain") == wanted, n + 1), 5)
        until(lambda: len(slots.ready._asleep) == 3, 5)
        slots.ready._brief.add("plain")
        hand_in("plain", '{"block": true}', "{}")
        until(lambda: len(slots.ready) == 1, 5)

        def turn() -> bool:  # as the claimer's
            before = ended("ticks")
            hand_in("ticks", "{}")
            until(lambda: ended("ticks") > before, 5, every=0.0002)
            slots.ready.nudge(time.monotonic())  # a coroutine began just now
            return ended("plain") == 21

        until(turn, 3, "the plain job behind the one that blocks", every=0.002)
        assert ended("ticks") > 0
    finally:
        gate.set()
        executor.finish_serving()
    until(lambda: ended("plain") == 22, 5)


class Careless(Ready):
    """Goes to sleep without the last look: what comes between the look before and the bed is not seen."""

    gap: Callable[[], None] = staticmethod(lambda: None)

    def _sleep(self, bed: threading.Lock) -> None:
        self.gap()
        self._asleep.append(bed)
        bed.acquire()


class Careful(Ready):
    gap: Callable[[], None] = staticmethod(lambda: None)

    def _sleep(self, bed: threading.Lock) -> None:
        self.gap()
        super()._sleep(bed)


@pytest.mark.parametrize("kind", [Careful, Careless])
def test_a_job_that_comes_while_a_thread_lies_down_is_taken(kind: Any) -> None:
    """thread: looks, nothing is there        |          lies down
    claimer:                                  brings a job, and finds nobody asleep
    """
    ready = kind()
    brought: list[int] = []

    def gap() -> None:
        if not brought:
            brought.append(1)
            ready.put(jobs("late"))

    ready.gap = gap
    threads = Threads(ready, 1, lambda _: None)
    if kind is Careful:
        until(lambda: len(threads.taken) == 1, 5)
    else:
        until(lambda: len(ready._asleep) == 1, 5)
        assert (len(ready), threads.taken) == (1, [])
    threads.end()


def test_nothing_is_lost_or_taken_twice() -> None:
    with serving(6, lambda _: None) as threads:

        def feed() -> None:
            for n in range(2000):
                threads.ready.put(jobs(*["n"] * (n % 5)))

        feeders = [threading.Thread(target=feed) for _ in range(3)]
        for feeder in feeders:
            feeder.start()
        for feeder in feeders:
            feeder.join()
    assert len(threads.taken) == 3 * sum(n % 5 for n in range(2000))


def test_the_rate_says_how_much_is_fetched_ahead() -> None:
    slots = Slots("default", 10)
    assert slots.room() == 10  # nothing is known: no more than there are slots

    def at(rate: float) -> int:
        slots.rate = rate
        return slots.room()

    assert [at(10), at(150), at(400), at(4000)] == [10, 10, 13, 85]
    assert at(20_000) == slots.CLAIM_MAX
    slots.claimed = 4010  # all that is wanted is in hand
    assert slots.room() == 0
    assert 0.001 <= slots.seconds_to_room() <= 0.05
    slots.claimed = 3500
    assert slots.room() == 0  # not worth a statement yet


def test_a_claim_takes_half_of_what_may_be_in_hand() -> None:
    """The handlers have the other half meanwhile, at any rate."""
    slots = Slots("default", 10)
    for rate in (1_000, 6_000, 20_000):
        slots.rate, slots.claimed = rate, 0
        first = slots.room()
        slots.claimed = first
        assert slots.room() >= first // 2 > 0, rate
        slots.claimed += slots.room()
        assert slots.room() == 0, rate


def test_the_rate_is_that_of_the_last_moments() -> None:
    slots = Slots("default", 2)
    start = time.monotonic()
    for n in range(1, 31):
        slots.ended[0] += 100
        slots.measure(start + n * 0.05)
    assert slots.rate == pytest.approx(2000, rel=0.01)
    slots.measure(start + 30 * 0.05 + 0.005)
    assert slots.rate == pytest.approx(2000, rel=0.01)  # too soon to say
    slots.measure(start + 2)
    assert slots.rate == 0
