"""Jobs of plain functions that wait for one of their queue's threads, and which threads are awake for them.

A thread that takes a job wakes another one before it runs its own, while more are waiting and some threads sleep: each job is
started at once, however long those before it take. Not so where the task's handlers are over in a moment. There the threads
could only take turns with the one interpreter, and each turn is dearer than the job; one of them runs them all.

A handler of such a task may stay away for once. What waits behind it is found by :meth:`Ready.nudge`, from the loops that
come by anyway::

    thread 1                    thread 2 (asleep)          claimer, beat
    takes a brief one, wakes
    nobody; it blocks                                      nothing was started for 5 ms, and jobs wait: wake one
                                takes the next ...

A thread says that it sleeps before it looks for the last time, and who brings jobs looks for sleepers afterwards: one of the
two sees the other.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from leasequeue.worker.hand import Claimed

BRIEF_SECONDS = 50e-6
"""A handler that was over so soon has waited for nothing but the interpreter."""

NUDGE_SECONDS = 0.005


class Ready:
    """A queue from the claimer to the threads of one queue's slots. Thread-safe.

    ``last_start``: when a thread last began a job, by ``time.monotonic``. Coroutines have no part in it: that those of the
    same queue are started all the time says nothing of a thread that sleeps.
    """

    def __init__(self) -> None:
        self._jobs: deque[Claimed] = deque()
        self._asleep: list[threading.Lock] = []
        self._brief: set[str] = set()
        self._closed = False
        self.last_start = time.monotonic()

    def __len__(self) -> int:
        return len(self._jobs)

    def put(self, jobs: list[Claimed]) -> None:
        """Add jobs, and wake a thread for them."""
        if not self._jobs:
            self.last_start = time.monotonic()  # these wait from now on, whenever the last one began
        self._jobs.extend(jobs)
        self._wake_one()

    def close(self) -> None:
        """Let the threads end when nothing is left; returns at once."""
        self._closed = True
        while self._wake_one():
            pass

    def nudge(self, now: float) -> None:
        """Wake a thread if jobs wait though none was started lately. From time to time, any thread."""
        if self._jobs and now - self.last_start > NUDGE_SECONDS:
            self._brief.clear()
            self._wake_one()

    def get(self, bed: threading.Lock) -> Claimed | None:
        """The next job; waits for one. None when the queue is closed and empty.

        Args:
            bed: the calling thread's own lock, held by it.
        """
        while True:
            try:
                job = self._jobs.popleft()
            except IndexError:
                if self._closed:
                    return None
                self._sleep(bed)
                continue
            if self._jobs and job.task_name not in self._brief:
                self._wake_one()
            return job

    def note(self, task_name: str, seconds: float) -> None:
        """A handler of that task took so long."""
        if seconds < BRIEF_SECONDS:
            if task_name not in self._brief:
                self._brief.add(task_name)
        elif task_name in self._brief:
            self._brief.discard(task_name)

    def take_all(self) -> list[Claimed]:
        """Everything that waits, out of the way of the threads."""
        taken: list[Claimed] = []
        with contextlib.suppress(IndexError):
            while True:
                taken.append(self._jobs.popleft())
        return taken

    def _sleep(self, bed: threading.Lock) -> None:
        self._asleep.append(bed)
        if self._jobs or self._closed:
            try:
                self._asleep.remove(bed)
            except ValueError:
                pass  # somebody is waking it: the lock is released, or will be
            else:
                return
        bed.acquire()

    def _wake_one(self) -> bool:
        try:
            bed = self._asleep.pop()
        except IndexError:
            return False
        bed.release()
        return True
