"""An exception that is meant for a handler hits nothing else: not the worker's own code after it, not the next job."""

from __future__ import annotations

import contextlib
import random
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from leasequeue import JobInterrupted, JobTimeout
from leasequeue.worker.window import Window, set_async
from tests.support.waiting import until


class Broken(Window):
    """Without the lock, and without taking back: what one writes first."""

    def run(self, job: object, call: Callable[..., Any], *args: Any) -> tuple[Any, BaseException | None]:
        self._sent, self._job = False, job
        try:
            return call(*args), None
        except BaseException as error:  # noqa: BLE001  # as in the right one
            return None, error
        finally:
            self._job = None

    def interrupt(self, job: object, kind: type[JobInterrupted]) -> bool:
        if self._job is not job:
            return False
        self._send(self._ident, kind)
        return True


def spin(seconds: float) -> str:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        pass
    return "done"


def interleave(kind: type[Window]) -> list[tuple[Any, BaseException | None]]:
    """The first job ends after the interrupter has asked whether it runs, and before the exception is set.

    interrupter: asks, "yes"              |  sets it
    thread:               first job ends, second begins   ... and is hit
    """
    asked, second_runs, go = threading.Event(), threading.Event(), threading.Event()
    first, second = object(), object()
    ends: list[tuple[Any, BaseException | None]] = []
    windows: list[Window] = []

    def send(ident: int, what: type[BaseException] | None) -> None:
        if what is not None:
            asked.set()
            second_runs.wait(0.5)  # in the right one it cannot begin: the lock is held
        set_async(ident, what)

    def first_job() -> str:
        go.wait(5)
        asked.wait(5)
        return "first"

    def second_job() -> str:
        second_runs.set()
        return spin(0.8)

    def serve() -> None:
        window = kind(send)
        windows.append(window)
        ends.append(window.run(first, first_job))
        ends.append(window.run(second, second_job))

    thread = threading.Thread(target=serve)
    thread.start()
    until(lambda: windows, 5)
    go.set()
    windows[0].interrupt(first, JobTimeout)
    thread.join(10)
    return ends


def test_the_next_job_is_not_hit() -> None:
    (_, first), second = interleave(Window)
    assert first is None or isinstance(first, JobTimeout)
    assert second == ("done", None)


def test_the_broken_variant_hits_the_next_job() -> None:
    _, (_, error) = interleave(Broken)
    assert isinstance(error, JobTimeout)


def test_it_is_delivered_once_and_to_its_own_job() -> None:
    results: list[tuple[Any, BaseException | None]] = []
    told: list[bool] = []
    windows: list[Window] = []
    job = object()

    def serve() -> None:
        windows.append(Window())
        results.append(windows[0].run(job, lambda: spin(20)))

    thread = threading.Thread(target=serve)
    thread.start()
    until(lambda: windows and windows[0]._job is job, 5)
    told += [windows[0].interrupt(object(), JobTimeout), windows[0].interrupt(job, JobTimeout)]
    thread.join(5)
    told.append(windows[0].interrupt(job, JobTimeout))
    assert told == [False, True, False]
    ((_, error),) = results
    assert isinstance(error, JobTimeout)


def _short() -> None:
    if random.random() < 0.5:  # noqa: S311  # not for secrets
        time.sleep(0)  # the other thread's turn


def hammer(kind: type[Window], seconds: float) -> tuple[int, int, list[str]]:
    """Short jobs, interrupted at any moment, mostly at their end. Returns jobs, interrupted ones, and what went wrong."""
    wrong: list[str] = []
    counts = [0, 0]
    current: list[Any] = [None]
    made: list[Window] = []
    stop = time.monotonic() + seconds

    def serve() -> None:
        window = kind()
        made.append(window)
        told: dict[object, bool] = {}
        while time.monotonic() < stop:
            try:
                job = object()
                current[0] = (job, told)
                _, error = window.run(job, _short)
                counts[0] += 1
                if error is not None:
                    counts[1] += 1
                    if not told.get(job):
                        wrong.append(f"a job that nobody told was hit: {error!r}")
                told.clear()
            except BaseException as error:  # noqa: BLE001  # whatever it is, it should not be here
                wrong.append(f"outside of a handler: {error!r}")

    thread = threading.Thread(target=serve)
    thread.start()
    until(lambda: made, 5)
    while thread.is_alive():
        with contextlib.suppress(TypeError):
            job, told = current[0]
            told[job] = True
            made[0].interrupt(job, JobInterrupted)
        spin(random.random() * 0.00005)  # noqa: S311  # as above
    thread.join()
    return counts[0], counts[1], wrong


def test_hammer() -> None:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        jobs, interrupted, wrong = hammer(Window, 1.0)
    finally:
        sys.setswitchinterval(before)
    print(f"{jobs} jobs, {interrupted} interrupted, {len(wrong)} hits outside")
    assert wrong == []
    assert interrupted > 10
