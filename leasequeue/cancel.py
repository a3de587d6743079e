"""Cancelling jobs from an application."""

from __future__ import annotations

from typing import TYPE_CHECKING

from leasequeue.db.cancel import Cancellation, cancel_one
from leasequeue.db.program import arun, run
from leasequeue.naming import check_id

if TYPE_CHECKING:
    from leasequeue.db.kinds import AsyncConn, SyncConn

__all__ = ["Cancellation", "Cancels"]


class Cancels:
    """The part of a LeaseQueue that cancels jobs."""

    if TYPE_CHECKING:

        @property
        def schema(self) -> str: ...

    def cancel(self, conn: SyncConn, job_id: int, /, *, by: str = "the application") -> Cancellation:
        """Cancel a job, in the caller's transaction: it is cancelled if and when that commits.

        One that waits ends at once; a step that others come after takes those along that want it to succeed, as its failure
        would: their rows are locked, and waited for. One that runs is asked to stop: its worker hears of that within some
        100 ms of the commit where it listens for notifications, else with its next renewal, within a third of the ttl. Then
        ``ctx.cancelled`` is set, a coroutine is cancelled, ``JobInterrupted`` is raised in a thread, and a child process is
        killed if it goes on. The history says how it ended: ``cancelled`` where it stopped, ``succeeded`` where it returned all
        the same.

        Until the caller's transaction ends the job's row is locked: keep it short, a running job cannot be renewed meanwhile.
        Any isolation level; above READ COMMITTED a row that is renewed at that moment may show as a serialization failure.

        Args:
            conn: as for ``Task.enqueue``.
            job_id: the id of the job, ``job.id``.
            by: who, for the history.

        Returns:
            ``"cancelled"``: it waited, and will not run. ``"asked to stop"``: it runs (or was asked before).
            ``"had finished"``: it had ended before. ``"not found"``: there is no such job, or no more. ``"locked"``: nothing
            was changed, since a transaction holds its row for longer than a second: its handler is about to complete it,
            most likely.

        Raises:
            WorkflowChanged: a step was added, at that moment, behind one that falls with it; let the transaction roll back, and
                ask again.
            ConfigurationError: ``conn`` is not accepted, or ``job_id`` is no number.
        """
        return run(conn, cancel_one, self.schema, check_id("a job's id", job_id), by)

    async def acancel(self, conn: AsyncConn, job_id: int, /, *, by: str = "the application") -> Cancellation:
        """The async twin of :meth:`cancel`."""
        return await arun(conn, cancel_one, self.schema, check_id("a job's id", job_id), by)
