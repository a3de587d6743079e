"""What an application holds of a workflow that was enqueued: how it stands, its results, and what can be done with it."""

from __future__ import annotations

import asyncio
import datetime as dt
import time
from typing import TYPE_CHECKING, Any

from leasequeue.db.ends import CONTENDED_STATES
from leasequeue.db.program import arun, run, sqlstate
from leasequeue.db.rerun import rerun
from leasequeue.db.workflows import ask, cancel_workflow
from leasequeue.errors import WorkflowRefused
from leasequeue.steps import StepRow, WorkflowStatus, state_of, step_rows

if TYPE_CHECKING:
    from leasequeue.queue import LeaseQueue
    from leasequeue.workflow.build import Node

STEPS_MAX = 100_000
_AGAIN_SECONDS = 10.0
_PAUSE_SECONDS = 0.05
_NOT_THERE = (
    "its transaction has not committed (commit first, then ask) or was rolled back, or its retention has passed"
)


class WorkflowHandle:
    """A workflow by its id. Each call takes a connection of the LeaseQueue; thread-safe.

    Asked within the transaction that enqueues it, it knows of nothing yet.

    Attributes:
        id: of the workflow.
        name: given at its enqueue, or None; None too where the handle was made from the id alone.
        jobs: the ids of the jobs by the names of the steps, as they were enqueued; empty where made from the id alone.
    """

    def __init__(self, lq: LeaseQueue, id: int, name: str | None = None, jobs: dict[str, int] | None = None) -> None:
        self._lq = lq
        self.id = id
        self.name = name
        self.jobs = jobs or {}

    def status(self) -> WorkflowStatus:
        """Counts of its steps by state, and the state of the whole.

        Raises:
            WorkflowRefused: there is no such workflow, or no more.
        """
        return self._status(self._ask("count", {}))

    async def astatus(self) -> WorkflowStatus:
        """The async twin of :meth:`status`."""
        return self._status(await self._aask("count", {}))

    def steps(self) -> list[StepRow]:
        """All steps in the order of their jobs (at most 100,000)."""
        limit = {"limit": STEPS_MAX}
        return step_rows(self._ask("list_steps", limit), self._ask("list_edges", {"limit": 10 * STEPS_MAX}))

    async def asteps(self) -> list[StepRow]:
        """The async twin of :meth:`steps`."""
        rows = await self._aask("list_steps", {"limit": STEPS_MAX})
        return step_rows(rows, await self._aask("list_edges", {"limit": 10 * STEPS_MAX}))

    def result(self, step: str | Node, timeout: dt.timedelta | None = None) -> Any:
        """The result of a step, waited for; rebuilt by its task's return annotation. As ``Job.result`` of its job.

        Args:
            timeout: how long to wait for its end; None waits for as long as it takes.

        Raises:
            JobFailed, JobCancelled, JobExpired: it ended otherwise.
            ResultTimeout: it has not ended in that time.
            WorkflowRefused: there is no such step.
        """
        return self._lq.answers.result(self._job_of(step, self._ask("result", _named(step))), timeout)

    async def aresult(self, step: str | Node, timeout: dt.timedelta | None = None) -> Any:
        """The async twin of :meth:`result`."""
        return await self._lq.answers.aresult(self._job_of(step, await self._aask("result", _named(step))), timeout)

    def cancel(self, reason: str = "its workflow was cancelled", *, by: str = "the application") -> None:
        """End all that waits, callbacks too, and ask what runs to stop: as ``lq.cancel`` does for a single job.

        Args:
            reason: for the history of what waited.
            by: who, for the history of what ran.

        Raises:
            WorkflowRefused: there is no such workflow, or no more; or rows of it stayed locked by somebody for 10 s, and what
                could be cancelled is.
        """
        until = time.monotonic() + _AGAIN_SECONDS
        while True:
            try:
                done = run(self._lq, cancel_workflow, self._lq.schema, self.id, reason, by, self._lq.checked)
                if not any(done):
                    self.status()  # nothing was left to do, or there is no such workflow, which it says
                if not done[2]:
                    return
            except Exception as error:  # noqa: BLE001  # raised again, unless it is worth another try
                self._again(error, until)
            if time.monotonic() > until:
                raise WorkflowRefused(self._locked("cancelled"))
            time.sleep(_PAUSE_SECONDS)

    async def acancel(self, reason: str = "its workflow was cancelled", *, by: str = "the application") -> None:
        """The async twin of :meth:`cancel`."""
        until = time.monotonic() + _AGAIN_SECONDS
        while True:
            try:
                done = await arun(self._lq, cancel_workflow, self._lq.schema, self.id, reason, by, self._lq.checked)
                if not any(done):
                    await self.astatus()
                if not done[2]:
                    return
            except Exception as error:  # noqa: BLE001  # raised again, unless it is worth another try
                self._again(error, until)
            if time.monotonic() > until:
                raise WorkflowRefused(self._locked("cancelled"))
            await asyncio.sleep(_PAUSE_SECONDS)

    def retry(self, from_step: str | Node | None = None) -> dict[str, int]:
        """Run steps again: each as a new job, with its arguments and edges, in one transaction.

        Args:
            from_step: this step and everything behind it, however it ended. None: every step that failed, was cancelled or
                has expired. Steps that were to fire on the failure of one of them are armed anew. A step that would come
                after one that has failed and is not run again stays as it is.

        Returns:
            The ids of the new jobs by the names of the steps.

        Raises:
            WorkflowRefused: nothing is to be run again; the step, or one behind it that was released, has not ended; one
                that is to run again comes after one that was asked to stop and has not ended; the history of one is gone;
                or rows of it stayed locked for 10 s. Nothing was changed.
        """
        name = from_step if from_step is None or isinstance(from_step, str) else from_step.name
        until = time.monotonic() + _AGAIN_SECONDS
        while True:
            try:
                return run(self._lq, rerun, self._lq.schema, self.id, name, self._lq.checked)
            except Exception as error:  # noqa: BLE001  # raised again, unless it is worth another try
                self._again(error, until)
            time.sleep(_PAUSE_SECONDS)

    async def aretry(self, from_step: str | Node | None = None) -> dict[str, int]:
        """The async twin of :meth:`retry`."""
        name = from_step if from_step is None or isinstance(from_step, str) else from_step.name
        until = time.monotonic() + _AGAIN_SECONDS
        while True:
            try:
                return await arun(self._lq, rerun, self._lq.schema, self.id, name, self._lq.checked)
            except Exception as error:  # noqa: BLE001  # raised again, unless it is worth another try
                self._again(error, until)
            await asyncio.sleep(_PAUSE_SECONDS)

    # What they have in common

    def _again(self, error: Exception, until: float) -> None:
        """Return where it is to be tried again."""
        if sqlstate(error) not in CONTENDED_STATES:
            raise error
        if time.monotonic() > until:
            raise WorkflowRefused(self._locked("changed")) from error

    def _locked(self, what: str) -> str:
        return (
            f"workflow {self.id} could not be {what}, or not all of it: rows of it have been locked by another transaction for "
            f"{_AGAIN_SECONDS:g} s (a handler that completes a step in a long transaction of its own; see pg_stat_activity)"
        )

    def _job_of(self, step: str | Node, rows: list[tuple[Any, ...]]) -> int:
        if not rows:
            raise WorkflowRefused(
                f"workflow {self.id} has no step {_named(step)['name']!r}, or is not there: {_NOT_THERE}"
            )
        return int(rows[0][0])

    def _status(self, rows: list[tuple[Any, ...]]) -> WorkflowStatus:
        if not rows:
            raise WorkflowRefused(f"there is no workflow {self.id}: {_NOT_THERE}")
        counts = {state: int(count) for state, count in sorted(rows)}
        return WorkflowStatus(state_of(counts), counts)

    def _ask(self, name: str, params: dict[str, Any]) -> list[tuple[Any, ...]]:
        return run(self._lq, ask, self._lq.schema, name, {"workflow": self.id, **params}, self._lq.checked)

    async def _aask(self, name: str, params: dict[str, Any]) -> list[tuple[Any, ...]]:
        return await arun(self._lq, ask, self._lq.schema, name, {"workflow": self.id, **params}, self._lq.checked)

    def __repr__(self) -> str:
        return f"<WorkflowHandle {self.id} {self.name or ''}>"


def _named(step: str | Node) -> dict[str, str]:
    return {"name": step if isinstance(step, str) else step.name}
