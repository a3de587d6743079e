"""The application that the tests of ``leasequeue worker`` and ``leasequeue dev`` run."""

from __future__ import annotations

from leasequeue import LeaseQueue, current_job

lq = LeaseQueue()


def make() -> LeaseQueue:
    return lq


@lq.task(name="double")
def double(n: int) -> int:
    return 2 * n


@lq.task(name="nap")
def nap(seconds: float) -> None:
    if current_job().cancelled.wait(seconds):
        raise RuntimeError("stopped")


@lq.task(name="broken", max_attempts=1)
def broken() -> None:
    raise ValueError("no such user")
