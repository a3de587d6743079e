"""What stands before an executor of APScheduler, so that each run begins with its row in the ledger.

APScheduler calls ``submit_job(job, run_times)`` once for each round in which a job is due, after ``coalesce`` and before
``max_instances``; the real executor then calls the job's function for each of the times that ``misfire_grace_time`` lets pass.
So the row is written where the function is called: in the thread or task of the run, and as late as can be.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from apscheduler.executors.base import BaseExecutor

from leasequeue.contrib.apscheduler.accounting import after
from leasequeue.contrib.apscheduler.ledger import Ledger, now
from leasequeue.contrib.apscheduler.runs import Run, gated
from leasequeue.db.gate import Tick
from leasequeue.errors import ConfigurationError

if TYPE_CHECKING:
    from leasequeue.lease import Lease


_RANDOM_ID = re.compile(r"[0-9a-f]{32}")


def check(job: Any) -> None:
    """Refuse a job of which another process cannot know the same due times.

    Raises:
        ConfigurationError: it is such a job.
    """
    if _has_jitter(job.trigger):
        raise ConfigurationError(
            f"the trigger of job {job.id!r} has jitter, so each process has due times of its own and none is known to "
            f"another: leave it out, or sleep in the job"
        )
    if _RANDOM_ID.fullmatch(job.id):
        raise ConfigurationError(
            f"the job {job.name!r} has an id that was drawn by chance, so no other process knows it: "
            f'add_job(..., id="{job.name}")'
        )


def _has_jitter(trigger: Any) -> bool:
    # An AndTrigger or OrTrigger has others in it.
    return bool(getattr(trigger, "jitter", None)) or any(map(_has_jitter, getattr(trigger, "triggers", ())))


class Gate(Protocol):
    """A LeaderGate as its executors see it."""

    @property
    def lease(self) -> Lease | None: ...

    @property
    def ledger(self) -> Ledger: ...

    def note(self, job_id: str, ticks: Sequence[Tick]) -> None: ...


class Gated(BaseExecutor):  # type: ignore[misc]  # APScheduler has no types
    """Stands before an executor: each run begins with its row."""

    def __init__(self, gate: Gate, inner: Any) -> None:
        super().__init__()
        self._gate = gate
        self._inner = inner

    def start(self, scheduler: Any, alias: str) -> None:
        super().start(scheduler, alias)
        self._inner.start(scheduler, alias)

    def shutdown(self, wait: bool = True) -> None:
        self._inner.shutdown(wait)

    def submit_job(self, job: Any, run_times: list[dt.datetime]) -> None:
        lease = self._gate.lease
        if lease is None:
            return  # lost in the middle of the scheduler's round: the next leader finds them without rows
        check(job)  # a shared job store may have got it from another process, which this one does not hear of
        skipped, at, clock = [], job.next_run_time, now()
        while at is not None and at < run_times[0]:
            skipped.append(Tick(at, "coalesced", "the run of a later due time stands for it"))
            at = after(job.trigger, at, clock)
        self._gate.note(job.id, skipped)
        self.run(lease, job, run_times, "fired")

    def run(self, lease: Lease, job: Any, run_times: list[dt.datetime], outcome: str) -> None:
        """Give it to the real executor, as one instance that runs for each of the due times in turn."""
        times = Times(run_times)

        def make_run() -> Run:
            return Run(self._gate.ledger, lease, job.id, times.current.astimezone(dt.UTC), outcome)

        def note(tick: Tick) -> None:
            self._gate.note(job.id, [tick])

        self._inner.submit_job(_copy(job, gated(job.func, make_run, note), outcome), times)

    def _do_submit_job(self, job: Any, run_times: list[dt.datetime]) -> None:
        raise NotImplementedError("submit_job stands for it")


class Times:
    """Due times that know which of them is being run: APScheduler does not tell a job for which one it is called."""

    def __init__(self, times: list[dt.datetime]) -> None:
        self._times = times
        self.current = times[0]

    def __iter__(self) -> Iterator[dt.datetime]:
        for each in self._times:
            self.current = each
            yield each


def _copy(job: Any, function: Callable[..., Any], outcome: str) -> Any:
    """The job as it is run. By its slots: copying it through its state wants a function that can be imported."""
    made = object.__new__(type(job))
    for name in type(job).__slots__:
        if name != "__weakref__" and hasattr(job, name):
            setattr(made, name, getattr(job, name))
    made.func = function
    if outcome == "caught_up":
        made.misfire_grace_time = None  # that it is late was decided upon
    return made
