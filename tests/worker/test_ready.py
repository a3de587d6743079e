"""The queue from the claimer to the threads: each job is taken, by a thread of its own where it may take long, and no wake-up
is lost.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest

from leasequeue.worker.hand import Claimed, Slots
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


def test_brief_jobs_stay_with_the_thread_that_is_awake() -> None:
    with serving(8, lambda _: None) as threads:
        threads.ready.put(jobs("brief"))
        until(lambda: len(threads.taken) == 1, 5)
        before = len(threads.taken)
        for _ in range(20):
            threads.ready.put(jobs(*["brief"] * 500))
            until(lambda: len(threads.ready) == 0, 5)
    names = [name for name, _ in threads.taken[before:]]
    busiest = max(names.count(name) for name in set(names))
    assert busiest > len(names) * 0.5, "the jobs went round between the threads"


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

    assert [at(10), at(150), at(400), at(4000)] == [10, 10, 26, 170]
    assert at(20_000) == slots.CLAIM_MAX
    slots.claimed = 4010  # all that is wanted is in hand
    assert slots.room() == 0
    assert 0.001 <= slots.seconds_to_room() <= 0.05
    slots.claimed = 3500
    assert slots.room() == 0  # not worth a statement yet


def test_the_rate_is_that_of_the_last_tenth_of_a_second() -> None:
    slots = Slots("default", 2)
    start = time.monotonic()
    for n in range(1, 11):
        slots.ended[0] += 100
        slots.measure(start + n * 0.05)
    assert slots.rate == pytest.approx(2000, rel=0.01)
    slots.measure(start + 10.5 * 0.05 - 0.02)
    assert slots.rate == pytest.approx(2000, rel=0.01)  # too soon to say
    slots.measure(start + 2)
    assert slots.rate == 0
