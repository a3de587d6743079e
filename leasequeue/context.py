"""What a running job knows of itself: ``current_job()``."""

from __future__ import annotations

import threading
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, NamedTuple

from leasequeue.codec import encode_result, safe_text
from leasequeue.db.complete import complete_held
from leasequeue.db.program import arun, run
from leasequeue.errors import ConfigurationError
from leasequeue.job import Held

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Callable

    from leasequeue.db.kinds import AsyncConn, SyncConn
    from leasequeue.workflow import Step

_current: ContextVar[JobContext] = ContextVar("leasequeue_current_job")
_making = threading.Lock()

_NUMBER_MAX = 1e15
_NOTE_CHARS = 500


class Said(NamedTuple):
    """What a handler said of its progress."""

    done: float
    total: float | None
    note: str | None


class JobContext:
    """One attempt of one job, in the process that runs it.

    Attributes:
        id: the job's id.
        task: the name under which it was enqueued (an alias, perhaps).
        queue: the queue that it was claimed from.
        attempt: 1 for the first attempt.
        max_attempts: the number of the last attempt.
        tick: the due time of the schedule that fired it; None where it was enqueued ad hoc.
        state: the value of ``LeaseQueue(lifespan=...)`` in this process, or None.
        held: the row that this attempt holds: id, term, holder.
        reported: what :meth:`progress` was told last, or None.
        completed: True once :meth:`complete` has been accepted by the server. Whether it counts is decided by
            the commit of that transaction.

    ``schema``, ``keep`` (whether the queue keeps a history) and ``linked`` (whether others may wait for it, or for its place)
    are what :meth:`complete` writes by; ``stored`` is what of ``reported`` stands in the row.
    Thread-safe: the handler may hand it to threads of its own.
    """

    __slots__ = (
        "_cancelled",
        "_home",
        "_looked",
        "_report",
        "_step",
        "attempt",
        "completed",
        "held",
        "id",
        "keep",
        "linked",
        "max_attempts",
        "queue",
        "reported",
        "schema",
        "state",
        "stored",
        "task",
        "tick",
    )

    def __init__(
        self,
        held: Held,
        task: str,
        queue: str,
        attempt: int,
        max_attempts: int,
        state: Any = None,
        schema: str = "public",
        keep: bool = True,
        tick: dt.datetime | None = None,
        linked: bool = False,
        step: str | None = None,
        home: Any = None,
    ) -> None:
        self.held = held
        self.id = held.id
        self.task = task
        self.queue = queue
        self.attempt = attempt
        self.max_attempts = max_attempts
        self.state = state
        self.schema = schema
        self.keep = keep
        self.tick = tick
        self.linked = linked
        self._step = step
        self._home = home
        self.completed = False
        self._cancelled: threading.Event | None = None
        self._looked = False
        self.reported: Said | None = None
        self.stored: Said | None = None
        self._report: Callable[[Said], None] | None = None

    @property
    def cancelled(self) -> threading.Event:
        """Set when this attempt should stop: cancelled by an operator, past its timeout, or its lease is
        lost, or the worker's shutdown timeout is over.

        A handler that has asked for it and returns after it was set counts as stopped, not as done; one that
        never asks counts as done when it returns. A plain handler in a thread that has asked for it is given
        some seconds to stop by itself; in one that has not, ``JobInterrupted`` is raised at once.
        """
        self._looked = True
        return self._event()

    @property
    def workflow(self) -> Step | None:
        """The workflow of which this job is a step: its id and name, the results of the steps before it, and a way to add
        steps behind those that have not ended. None where it is part of none.
        """
        if self._step is None:
            return None
        from leasequeue.workflow import Step

        return Step.of(self._home, self.id, self._step)

    @property
    def stopped_early(self) -> bool:
        """Whether the handler looked at :attr:`cancelled` and it is set."""
        return self._looked and self._cancelled is not None and self._cancelled.is_set()

    @property
    def looked(self) -> bool:
        """Whether the handler has asked for :attr:`cancelled`: it means to stop by itself."""
        return self._looked

    def stop(self) -> None:
        """Set :attr:`cancelled`. For the worker; any thread."""
        self._event().set()

    def _event(self) -> threading.Event:
        event = self._cancelled
        if event is None:
            # Most jobs never ask, so the event is made late; under a lock, because the renewal thread may set
            # it while the handler's thread asks for the first time.
            with _making:
                event = self._cancelled
                if event is None:
                    event = self._cancelled = threading.Event()
        return event

    def progress(self, done: float, total: float | None = None, note: str | None = None) -> None:
        """Say how far this attempt is; ``lq.job(id).progress()`` and ``leasequeue jobs show`` tell it.

        It only sets a value, from any thread or coroutine, as often as wanted: the worker writes the newest one about
        once a second. A retry begins without; the last value of a job that fails for good stays in its history.

        Args:
            done: how much is done, in any unit.
            total: how much there is; None where that is not known.
            note: a few words; more than 500 characters are cut.

        Raises:
            ConfigurationError: ``done`` or ``total`` is no finite number, or ``note`` no text.
        """
        self.report(Said(_number("done", done), None if total is None else _number("total", total), _note(note)))

    def report(self, said: Said) -> None:
        """What :meth:`progress` was told. For the worker: where the handler runs in a process of its own, that one's context
        hands it on (``_report``), and the worker's takes it here.
        """
        self.reported = said
        if self._report is not None:
            self._report(said)

    def complete(self, conn: SyncConn, /, result: object = None) -> None:
        """Complete this job in the caller's transaction, so that its effects and its end are one commit.

        One statement: it locks the job's row (``FOR UPDATE``), proves that this attempt still holds it,
        deletes it and writes the ``leasequeue_finished`` row. Until the caller's transaction ends, the server
        bounds it by the rest of the lease (``idle_in_transaction_session_timeout``, and
        ``transaction_timeout`` from PostgreSQL 17 on, both local to the transaction and never above a smaller
        value of the caller).

        Where the row is no longer held, the statement fails *in the server*: the transaction is aborted and
        cannot commit, even if the error is swallowed. Inside a savepoint the abort reaches only as far as the
        savepoint: SQLAlchemy's connection is therefore invalidated then, which ends the outer transaction as
        well; on a bare driver connection, and in a nested ``atomic()`` of Django, do not call it.

        A job that others wait for releases them in the same transaction: their rows stay locked until it ends, and the
        completions of its siblings (jobs for which the same ones wait) wait as long, nobody else's. So keep it short.

        Any isolation level; under REPEATABLE READ and SERIALIZABLE a row that somebody else took may also
        show as the server's serialization failure. On a connection in autocommit mode it is final at once.

        Args:
            conn: a synchronous connection of any accepted kind, in the transaction that holds the effects.
            result: the job's result, any value that the codec carries; None stores no result.

        Raises:
            LeaseLost: another holder has, or had, the row; let the transaction roll back.
            WorkflowChanged: a step was added behind one that this end cancels, at that moment; likewise, and run it again.
            ResultNotStorable: the result cannot be carried as JSON; nothing was written.
            ConfigurationError: ``conn`` is not an accepted kind, or is an asynchronous one.
        """
        run(conn, complete_held, self.schema, self.held, self._encode(result), self.keep, self.linked)
        self.completed = True

    async def acomplete(self, conn: AsyncConn, /, result: object = None) -> None:
        """The async twin of :meth:`complete`."""
        await arun(conn, complete_held, self.schema, self.held, self._encode(result), self.keep, self.linked)
        self.completed = True

    @staticmethod
    def _encode(result: object) -> str | None:
        return None if result is None else encode_result(result)

    def __repr__(self) -> str:
        return f"<JobContext {self.id} {self.task} attempt {self.attempt}/{self.max_attempts} on {self.queue}>"


def _number(name: str, value: Any) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool) and -_NUMBER_MAX <= value <= _NUMBER_MAX:
        return value
    raise ConfigurationError(f"progress: {name} is a number of at most {_NUMBER_MAX:g}, not {value!r:.100}")


def _note(note: Any) -> str | None:
    if note is None or isinstance(note, str):
        return None if note is None else safe_text(note, _NOTE_CHARS)
    raise ConfigurationError(f"progress: note is text or None, not {note!r:.100}")


def current_job() -> JobContext:
    """The job that runs here.

    Known in the handler, its middleware and whatever they call in the same thread or asyncio task; a thread
    that the handler starts itself knows it only when started with ``contextvars.copy_context().run``.

    Raises:
        ConfigurationError: no job runs here.
    """
    try:
        return _current.get()
    except LookupError:
        raise ConfigurationError(
            "current_job() was called where no job runs; in a test, wrap the call in leasequeue.testing.fake_job()"
        ) from None
