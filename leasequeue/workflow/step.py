"""What a running step knows of its workflow: ``current_job().workflow``."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from leasequeue import naming
from leasequeue.codec import decode_result
from leasequeue.db.program import arun, run
from leasequeue.db.workflows import Late, add_steps, ask
from leasequeue.errors import JobCancelled, JobExpired, JobFailed, WorkflowRefused
from leasequeue.workflow.build import After, Node, check_call, edges_of

if TYPE_CHECKING:
    from leasequeue.db.kinds import AsyncConn, SyncConn
    from leasequeue.queue import LeaseQueue
    from leasequeue.task import Call


class Step:
    """A step while it runs. Reads take a connection of the LeaseQueue for one statement each; thread-safe.

    Attributes:
        id: the workflow's id.
        name: the workflow's name, or None.
        step: the name of this step.
        job_id: this job.
    """

    def __init__(self, lq: LeaseQueue, job_id: int, id: int, name: str | None, step: str) -> None:
        self._lq = lq
        self.job_id = job_id
        self.id = id
        self.name = name
        self.step = step

    @classmethod
    def of(cls, lq: LeaseQueue, job_id: int, text: str) -> Step:
        """From what the claim returned."""
        found = json.loads(text)
        return cls(lq, job_id, found["id"], found["name"], found["step"] or "")

    # Results

    def results(self) -> dict[str, Any]:
        """The results of the steps that this one comes after and that have succeeded, by name, in their order.

        A result is rebuilt by the return annotation of its task, where that is registered here. One that has failed is left
        out: ask :meth:`result` for it.

        Raises:
            WorkflowRefused: the history of one of them is gone, so that nobody knows. It is kept as long as the workflow is;
                somebody has deleted it.
        """
        rows = run(self._lq, ask, self._lq.schema, "parents", {"id": self.job_id}, self._lq.checked)
        return _results(self._lq, self.id, rows)

    async def aresults(self) -> dict[str, Any]:
        """The async twin of :meth:`results`."""
        rows = await arun(self._lq, ask, self._lq.schema, "parents", {"id": self.job_id}, self._lq.checked)
        return _results(self._lq, self.id, rows)

    def result(self, step: str | Node) -> Any:
        """The result of any step of the workflow that has succeeded, by name.

        Raises:
            JobFailed, JobCancelled, JobExpired: it ended otherwise; the message says how.
            WorkflowRefused: there is no such step, it has not ended, or its history is gone.
        """
        name = step.name if isinstance(step, Node) else step
        params = {"workflow": self.id, "name": name}
        rows = run(self._lq, ask, self._lq.schema, "result", params, self._lq.checked)
        return result_of(self._lq, self.id, name, rows)

    async def aresult(self, step: str | Node) -> Any:
        """The async twin of :meth:`result`."""
        name = step.name if isinstance(step, Node) else step
        params = {"workflow": self.id, "name": name}
        rows = await arun(self._lq, ask, self._lq.schema, "result", params, self._lq.checked)
        return result_of(self._lq, self.id, name, rows)

    # Adding

    def add(
        self, name: str, call: Call[Any], *, conn: SyncConn | None = None, after: After = (), exist_ok: bool = False
    ) -> Node:
        """Add a step to the workflow while it runs.

        Args:
            name, call, after: as for ``Workflow.add``; ``after`` names steps that are there, this one among them, if you
                like. One that has ended counts for what it ended as.
            conn: a transaction of the caller's; with ``complete(conn)`` in the same one, the step exists if and only if this
                attempt counts. None: a transaction of its own.
            exist_ok: True leaves a step of that name as it is: an earlier attempt may have added it.

        The steps of ``after`` that live are locked in the order of their ids until the transaction ends: none of them can
        end meanwhile, so keep it short.

        Raises:
            WorkflowRefused: no such step to come after, or the name is taken; nothing was written.
            ConfigurationError: see ``Workflow.add``; or ``conn`` is in autocommit mode.
        """
        late = [self._late(name, call, after)]
        lq = self._lq
        run(lq if conn is None else conn, add_steps, lq.schema, self.id, late, lq.checked, exist_ok)
        return Node(name)

    async def aadd(
        self, name: str, call: Call[Any], *, conn: AsyncConn | None = None, after: After = (), exist_ok: bool = False
    ) -> Node:
        """The async twin of :meth:`add`."""
        late = [self._late(name, call, after)]
        lq = self._lq
        await arun(lq if conn is None else conn, add_steps, lq.schema, self.id, late, lq.checked, exist_ok)
        return Node(name)

    def add_many(
        self,
        prefix: str,
        calls: Iterable[Call[Any]],
        *,
        conn: SyncConn | None = None,
        after: After = (),
        exist_ok: bool = False,
    ) -> list[Node]:
        """Add a fan of steps ``prefix-0``, ``prefix-1`` ... as :meth:`add` adds one."""
        late = [self._late(f"{prefix}-{place}", call, after) for place, call in enumerate(calls)]
        lq = self._lq
        if late:
            run(lq if conn is None else conn, add_steps, lq.schema, self.id, late, lq.checked, exist_ok)
        return [Node(each.name) for each in late]

    async def aadd_many(
        self,
        prefix: str,
        calls: Iterable[Call[Any]],
        *,
        conn: AsyncConn | None = None,
        after: After = (),
        exist_ok: bool = False,
    ) -> list[Node]:
        """The async twin of :meth:`add_many`."""
        late = [self._late(f"{prefix}-{place}", call, after) for place, call in enumerate(calls)]
        lq = self._lq
        if late:
            await arun(lq if conn is None else conn, add_steps, lq.schema, self.id, late, lq.checked, exist_ok)
        return [Node(each.name) for each in late]

    def _late(self, name: str, call: Call[Any], after: After) -> Late:
        naming.check("a step's name", name)
        check_call(self._lq, name, call)
        return Late(name, call.job, edges_of(name, after))

    def __repr__(self) -> str:
        return f"<Step {self.step!r} of workflow {self.id} {self.name or ''}>"


def _results(lq: LeaseQueue, workflow: int, rows: Iterable[tuple[Any, ...]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, task, outcome, result, gone, job_id in rows:
        if gone:
            raise WorkflowRefused(_gone(name, workflow, job_id))
        if outcome == "succeeded":
            found[name] = rebuilt(lq, task, result)
    return found


def _gone(step: str, workflow: int, job_id: int) -> str:
    return (
        f"step {step!r} of workflow {workflow} (job {job_id}) has no result: its history is gone from leasequeue_finished. "
        f"It is kept as long as the workflow is, so somebody has deleted it; run the workflow again from there"
    )


def rebuilt(lq: LeaseQueue, task: str, text: str | None) -> Any:
    """A result by its task's return annotation; as plain JSON where the task is not registered here."""
    known = lq.registry.get(task)
    return decode_result(text, Any if known is None else known.signature.returns)


def result_of(lq: LeaseQueue, workflow: int, name: str, rows: list[tuple[Any, ...]]) -> Any:
    """The value, or the error that says why there is none."""
    if not rows:
        raise WorkflowRefused(f"workflow {workflow} has no step {name!r}")
    job_id, task, state, text, error, attempts = rows[0]
    if state == "succeeded":
        return rebuilt(lq, task, text)
    if state in ("cancelled", "skipped"):
        raise JobCancelled(job_id, task, error)
    if state == "expired":
        raise JobExpired(job_id, task, error)
    if state == "failed":
        raise JobFailed(job_id, task, error, None, attempts)
    if state == "gone":
        raise WorkflowRefused(_gone(name, workflow, job_id))
    raise WorkflowRefused(f"step {name!r} of workflow {workflow} (job {job_id}) has no result: it is {state}")
