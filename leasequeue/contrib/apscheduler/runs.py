"""A run of a job for one due time, as the job's function sees it."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import functools
import logging
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, TypeVar

from apscheduler.util import iscoroutinefunction_partial

from leasequeue.contrib.apscheduler.ledger import Ledger, now
from leasequeue.db.gate import Tick
from leasequeue.errors import ConfigurationError, LeaseLost

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from leasequeue.lease import Lease

F = TypeVar("F", bound=Callable[..., Any])

log = logging.getLogger("leasequeue.gate")

_current: ContextVar[Run] = ContextVar("leasequeue_gate_run")


class Run:
    """The run of a job for one due time.

    Attributes:
        job_id: of APScheduler's job.
        due_at: the due time, in UTC.
        outcome: ``fired`` or ``caught_up``: what its row in the ledger says.
        term: in which the process led when it began.
        is_settled: whether :meth:`settle` wrote its row, in a transaction that may have been rolled back since.
    """

    def __init__(self, ledger: Ledger, lease: Lease, job_id: str, due_at: dt.datetime, outcome: str) -> None:
        self.job_id = job_id
        self.due_at = due_at
        self.outcome = outcome
        self.term = lease.term
        self._ledger = ledger
        self._lease = lease
        self.is_settled = False

    def check(self) -> None:
        """Return while this process leads in the same term; asks nobody.

        Raises:
            LeaseLost: it does not: another may run the next due time beside this one.
        """
        self._lease.check()

    def fence(self, conn: Connection, /) -> None:
        """See ``Lease.fence``."""
        self._lease.fence(conn)

    def settle(self, conn: Connection, /) -> None:
        """For a function under :func:`settles`: write the row of this due time in the caller's transaction.

        Once, at the transaction's beginning; locks as ``Lease.fence``.

        Raises:
            LeaseLost: this process leads no more, or the due time is settled already: let the transaction roll back.
        """
        if not self._ledger.claim_in(conn, self._lease, self.job_id, self._tick):
            raise LeaseLost(
                f"{self.job_id} of {self.due_at.isoformat()}", self.term, "that due time is settled already"
            )
        self.is_settled = True

    def begin(self, *, settles: bool) -> bool:
        """Whether its function is to be called: its row is written first, but where the function settles it.

        Raises: as :class:`Ledger`; then it is not to be called.
        """
        if settles:
            self.check()
            return True
        return self._ledger.claim(self._lease, self.job_id, self._tick)

    @property
    def _tick(self) -> Tick:
        late = max(0.0, (now() - self.due_at).total_seconds())
        reason = None if self.outcome == "fired" else f"{late:.1f} s late: nobody led when it was due"
        return Tick(self.due_at, self.outcome, reason)


def current_run() -> Run:
    """The run in which this is called: in the job's function and what it calls in the same thread or asyncio task.

    Raises:
        ConfigurationError: no run of a gated scheduler is here.
    """
    try:
        return _current.get()
    except LookupError:
        raise ConfigurationError("no job of a scheduler behind a LeaderGate runs here") from None


def settles(function: F) -> F:
    """Above a job's function that calls ``current_run().settle(conn)`` in the transaction of its effects.

    Then the row and the effects are there or are not, whatever kills the process, and the next leader runs what is missing.
    A function that raises, or returns without a call, has its due time settled as ``missed``, with the reason. One that rolls
    its transaction back must raise: where it returns, the due time is taken for settled, and left to the next leader.
    """
    function._leasequeue_settles = True  # type: ignore[attr-defined]
    return function


def gated(
    function: Callable[..., Any], make_run: Callable[[], Run], note: Callable[[Tick], None]
) -> Callable[..., Any]:
    """The function of a job, run only where the row of its due time is written by this run.

    Args:
        note: called with the row of a due time that did not begin, or that a function under ``settles`` left open.
    """
    itself = _settles_itself(function)
    if iscoroutinefunction_partial(function):

        async def on_loop(*args: Any, **kwargs: Any) -> Any:
            this = make_run()
            if not await asyncio.to_thread(_begins, this, itself, note):
                return None
            with _running(this, note if itself else None):
                return await function(*args, **kwargs)

        return on_loop

    def in_thread(*args: Any, **kwargs: Any) -> Any:
        this = make_run()
        if not _begins(this, itself, note):
            return None
        with _running(this, note if itself else None):
            return function(*args, **kwargs)

    return in_thread


def _settles_itself(function: Any) -> bool:
    while isinstance(function, functools.partial):
        function = function.func
    return getattr(function, "_leasequeue_settles", False)


def _begins(this: Run, itself: bool, note: Callable[[Tick], None]) -> bool:
    """Whether it begins. What keeps it from that is said and written, and raised where it is nobody else's to run."""
    try:
        return this.begin(settles=itself)
    except LeaseLost as error:
        log.warning("job %r of %s is left to the next leader: %s", this.job_id, this.due_at, error)
        return False
    except Exception as error:
        log.error(
            "job %r of %s does not run: its row in the ledger could not be written (%s). Where a COMMIT's answer was lost, "
            "the row says %r all the same",
            this.job_id, this.due_at, type(getattr(error, "orig", None) or error).__name__, this.outcome,
        )  # fmt: skip
        note(Tick(this.due_at, "missed", f"its row could not be written before it: {type(error).__name__}"))
        raise  # APScheduler logs it, and says EVENT_JOB_ERROR


@contextlib.contextmanager
def _running(this: Run, note: Callable[[Tick], None] | None) -> Iterator[None]:
    token = _current.set(this)
    open_because = "its function ended without current_run().settle(conn)"
    try:
        yield
        if this.is_settled:
            note = None
    except BaseException as error:
        # A commit whose answer was lost may have written its row: then this one is not written.
        open_because = f"its function failed: {type(error).__name__}"
        raise
    finally:
        _current.reset(token)
        if note is not None:
            note(Tick(this.due_at, "missed", open_because))
