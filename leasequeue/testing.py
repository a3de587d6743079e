"""For an application's tests: run the jobs that a test enqueued, in its own transaction, which is then rolled back.

    with engine.connect() as connection, connection.begin() as transaction:
        session = Session(bind=connection, join_transaction_mode="create_savepoint")
        sign_up(session, "ada@example.org")                       # enqueues welcome
        assert_enqueued(session, welcome.call("ada@example.org"))
        drain(session, lq=lq)                                     # runs it, here and now
        transaction.rollback()

Nothing here commits, and no worker is needed. A connection is used by one thread at a time, as ever.
"""

from __future__ import annotations

import datetime as dt
import json
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from sqlalchemy import Connection, NestedTransaction
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session, SessionTransaction, scoped_session

from leasequeue.codec import encode_result
from leasequeue.context import JobContext, _current
from leasequeue.db import drain as sql
from leasequeue.db.core import WRITE
from leasequeue.errors import ConfigurationError, DoesNotBind, LeaseLost, Undecodable
from leasequeue.job import Held
from leasequeue.queue import LeaseQueue, Lent, _lent
from leasequeue.retry import delay_seconds
from leasequeue.task import Call, Task
from leasequeue.worker.attempt import Tries, Verdict, control_of, raised
from leasequeue.worker.hand import Failure
from leasequeue.worker.hand import Outcome as Ending

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session

    SyncTest: TypeAlias = Session | scoped_session[Any] | Connection
    AsyncTest: TypeAlias = AsyncSession | async_scoped_session[Any] | AsyncConnection

_Guard: TypeAlias = NestedTransaction | SessionTransaction
Outcome: TypeAlias = Literal["succeeded", "retried", "failed", "snoozed", "cancelled", "expired"]
_LISTED = 20
"""Jobs shown in a failed assertion."""

__all__ = ["Drained", "FakeJob", "MovableClock", "Ran", "aassert_enqueued", "adrain", "assert_enqueued", "drain",
           "fake_job"]  # fmt: skip


class MovableClock:
    """A time for ``drain(now=clock)`` that stands still until it is moved.

    Args:
        start: timezone-aware. None means the database's ``now()`` (the start of the test's transaction), to which
            the moves are added: the choice where delays are tested, since those count from that ``now()`` as well.
    """

    def __init__(self, start: dt.datetime | None = None) -> None:
        self._start = None if start is None else _aware(start)
        self._moved = dt.timedelta(0)

    def move(self, by: dt.timedelta) -> None:
        """Move it on (or back, by a negative one)."""
        self._moved += by

    @property
    def params(self) -> dict[str, Any]:
        start = self._start
        return {"now": None if start is None else start + self._moved, "shift": self._moved.total_seconds()}


@dataclass(frozen=True, slots=True)
class Ran:
    """One attempt that was run: ``result`` is what the handler returned, ``error`` what it raised, or None.

    One that was to begin by an earlier time than ``now`` was not run: ``outcome`` is ``expired``.
    """

    id: int
    task: str
    queue: str
    attempt: int
    outcome: Outcome
    result: Any = None
    error: Exception | None = None


@dataclass(frozen=True, slots=True)
class Drained:
    """What was run, in order."""

    jobs: tuple[Ran, ...]

    def __len__(self) -> int:
        return len(self.jobs)

    def of(self, outcome: Outcome) -> list[Ran]:
        """The attempts that ended so."""
        return [ran for ran in self.jobs if ran.outcome == outcome]


def drain(
    session: SyncTest,
    *,
    lq: LeaseQueue,
    queues: Iterable[str] | None = None,
    now: dt.datetime | MovableClock | None = None,
    limit: int = 1000,
    raise_errors: bool = True,
    state: Any = None,
) -> Drained:
    """Run every job that is ready, on the test's own connection and in its transaction, until none is left.

    Handlers run here, one after the other, best priority first, with their middleware; what they enqueue in the
    same transaction is run too. While one runs, ``lq.begin()`` gives the same connection inside a SAVEPOINT, so it
    sees the test's rows. A Session is flushed before and, unless made with ``expire_on_commit=False``, expired after.
    Other connections (a handler's own engine, threads that it starts) do not see the test's rows. Timeouts are not
    enforced, paused queues are not looked at, the lifespan is not entered.

    Args:
        session: a SQLAlchemy ``Session``, ``scoped_session`` or ``Connection``, within the test's transaction.
        lq: the LeaseQueue whose tasks are run.
        queues: only these; None means all.
        now: which jobs are due: an aware time or a :class:`MovableClock`; None means the database's ``now()``.
            A retry waits from there. A delay that a handler gives counts from the database's ``now()`` all the same.
        limit: the number of attempts after which a job that is still ready is an error, in jobs.
        raise_errors: True raises what a handler raises at once, with a note that names the job, whose row stays
            leased; False writes it as a worker would (a retry with its delay, or the failed row). ``Retry``, ``Snooze``,
            ``Cancel`` and ``Fail`` are a handler's word, no errors: they are done as a worker does them, either way.
        state: what handlers find as ``ctx.state``.

    Raises:
        AssertionError: ``limit`` jobs ran and more were ready.
        ConfigurationError: not a SQLAlchemy connection; an async task (use :func:`adrain`).
        UnknownTask, DoesNotBind: a job fits no task here; whatever ``raise_errors`` says.
    """
    own = session() if isinstance(session, scoped_session) else session
    if not isinstance(own, Session | Connection):
        raise ConfigurationError(f"drain() takes a SQLAlchemy Session or Connection, not {own!r}; else await adrain()")
    draining = _Draining(lq, queues, now, limit, raise_errors, state)
    while (job := draining.take(own)) is not None:
        if job.task.is_async:
            raise ConfigurationError(f"{job.ctx.task} is an async task: await adrain(async_session, lq=lq) instead")
        draining.run(own, job)
    return Drained(tuple(draining.ran))


async def adrain(
    session: AsyncTest,
    *,
    lq: LeaseQueue,
    queues: Iterable[str] | None = None,
    now: dt.datetime | MovableClock | None = None,
    limit: int = 1000,
    raise_errors: bool = True,
    state: Any = None,
) -> Drained:
    """The async twin of :func:`drain`: runs async tasks, whose ``lq.abegin()`` gives the test's connection, and plain
    ones, whose ``lq.begin()`` does.
    """
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session

    own = session() if isinstance(session, async_scoped_session) else session
    if not isinstance(own, AsyncSession | AsyncConnection):
        raise ConfigurationError(f"adrain() takes an AsyncSession or AsyncConnection, not {own!r}; else call drain()")

    async def lend() -> AsyncConnection:
        if isinstance(own, AsyncConnection):
            return own
        await own.flush()
        return await own.connection(bind_arguments={"clause": WRITE})

    draining = _Draining(lq, queues, now, limit, raise_errors, state)
    while (job := await own.run_sync(draining.take)) is not None:
        if not job.task.is_async:
            await own.run_sync(draining.run, job)
            continue
        value, error = None, None
        guard = await own.run_sync(draining.guard)
        with _running(job.ctx, Lent(lq, None, lend)):
            try:
                value = await lq.handler(job.task)(job.ctx, job.arguments())
            except Exception as raised:  # noqa: BLE001  # whatever a handler raises ends its attempt
                error = raised
        await own.run_sync(draining.end, job, guard, value, error)
    return Drained(tuple(draining.ran))


@dataclass(slots=True)
class _Taken:
    ctx: JobContext
    task: Task[..., Any]
    text: str
    spent: int
    shift_seconds: float

    def arguments(self) -> dict[str, Any]:
        try:
            return self.task.signature.decode(self.text)
        except DoesNotBind:
            if self.task.upgrade is None:
                raise
            return self.task.signature.decode(json.dumps(self.task.upgrade(json.loads(self.text))))


class _Draining:
    """One drain. Its methods are synchronous; ``run_sync`` carries them for adrain."""

    def __init__(
        self, lq: LeaseQueue, queues: Iterable[str] | None, now: Any, limit: int, raise_errors: bool, state: Any
    ) -> None:
        self._lq = lq
        self._queues = None if queues is None else [queues] if isinstance(queues, str) else list(queues)
        self._clock = now if isinstance(now, MovableClock) else MovableClock(now)
        self._limit = limit
        self._raise_errors = raise_errors
        self._state = state
        self._me = uuid.uuid4()
        self.ran: list[Ran] = []

    def take(self, conn: Session | Connection) -> _Taken | None:
        sql.connection_of(conn)  # flushes
        rows = sql.execute(conn, self._lq.schema, "take_ready", me=self._me, queues=self._queues, **self._clock.params)
        if not rows:
            return None
        id, term, queue, name, text, attempt, abandoned, most, shift, is_late, step = rows[0]
        if len(self.ran) >= self._limit:
            raise AssertionError(
                f"{self._limit} jobs ran and {name} (job {id}) is ready still: does it enqueue itself?"
            )
        held = Held(id, term, self._me)
        if is_late:
            expire = "expire" if step is None else "expire_within"
            sql.execute(conn, self._lq.schema, expire, ids=[id], terms=[term], me=self._me)
            self.ran.append(Ran(id, name, queue, attempt - 1, "expired"))
            return self.take(conn)
        task = self._lq.registry[name]
        ctx = JobContext(
            held, name, queue, attempt, most or task.max_attempts, self._state, self._lq.schema, self._lq.keeps(queue),
            linked=step is not None, step=step or None, home=self._lq,
        )  # fmt: skip
        return _Taken(ctx, task, text, attempt - abandoned, shift)

    def run(self, conn: Session | Connection, job: _Taken) -> None:
        value, error, guard = None, None, self.guard(conn)
        with _running(job.ctx, Lent(self._lq, lambda: sql.connection_of(conn), None)):
            try:
                value = self._lq.handler(job.task)(job.ctx, job.arguments())
            except Exception as raised:  # noqa: BLE001  # whatever a handler raises ends its attempt
                error = raised
        self.end(conn, job, guard, value, error)

    def guard(self, conn: Session | Connection) -> _Guard | None:
        """A savepoint around the handler, so that a failure can be written where its statement failed."""
        return None if self._raise_errors else conn.begin_nested()

    def _leave(self, conn: Session | Connection, ctx: JobContext, guard: _Guard) -> Exception | None:
        if conn.get_nested_transaction() is not guard:
            return None  # the handler committed or rolled back the Session: it is gone
        try:
            # Asked first whether the server has aborted: a savepoint whose release failed is not rolled back any more.
            sql.connection_of(conn)
            self._is_held(conn, ctx)
        except SQLAlchemyError as error:
            guard.rollback()
            return error
        guard.commit()  # as with a worker: what a handler had committed before it raised stays
        return None

    def end(
        self, conn: Session | Connection, job: _Taken, guard: _Guard | None, value: Any, error: Exception | None
    ) -> None:
        if guard is not None:
            refused = self._leave(conn, job.ctx, guard)
            error = error or refused
        ctx, result = job.ctx, None
        if error is None and not ctx.completed and value is not None:
            try:
                result = encode_result(value)
            except Exception as raised:  # noqa: BLE001  # an encoder of the application may raise anything
                error = raised
        if error is None and ctx.completed and self._is_held(conn, ctx):
            error = RuntimeError("the handler called complete(conn) and returned, but that was rolled back")
        said = error is not None and control_of(error) is not None
        if error is not None and not said and (self._raise_errors or isinstance(error, DoesNotBind)):
            error.add_note(f"raised by job {ctx.id}: {ctx} {job.text[:500]}")
            raise error
        outcome: Outcome = "succeeded"
        if error is not None and not (ctx.completed and not self._is_held(conn, ctx)):
            outcome = self._write_failure(conn, job, error)
        elif not ctx.completed:
            self._write_success(conn, ctx, result)
        if isinstance(conn, Session) and conn.expire_on_commit:
            conn.expire_all()  # as after the commit by which a test would see what a worker did
        self.ran.append(Ran(ctx.id, ctx.task, ctx.queue, ctx.attempt, outcome, value, error))

    def _write_success(self, conn: Session | Connection, ctx: JobContext, result: str | None) -> None:
        if ctx.linked:
            self._write(conn, ctx, "succeed_within", results=[result], kept=[ctx.keep])
        elif not ctx.keep:
            self._write(conn, ctx, "complete_unkept")
        elif result is None:
            self._write(conn, ctx, "complete")
        else:
            self._write(conn, ctx, "complete_with_results", results=[result])

    def _write_failure(self, conn: Session | Connection, job: _Taken, error: Exception) -> Outcome:
        ctx = job.ctx
        verdict = raised(job.task, Tries(job.spent, ctx.max_attempts), error, 0.0)
        if isinstance(error, Undecodable):
            verdict = Verdict(Ending.FAILED_FOR_GOOD, None, verdict.failure)
        failure = verdict.failure or Failure(type(error).__name__, str(error), None)
        delay = verdict.delay_seconds if verdict.delay_seconds is not None else delay_seconds(max(1, job.spent))
        # The statement counts from the server's clock; the shift makes that the test's.
        delays = [job.shift_seconds + delay]
        if verdict.outcome is Ending.SNOOZED:
            self._write(conn, ctx, "snooze", delays=delays, untils=[verdict.until])
            return "snoozed"
        params: dict[str, Any] = {
            "types": [failure.type],
            "messages": [failure.message],
            "tracebacks": [failure.traceback],
            "worker": "leasequeue.testing",
        }
        if verdict.outcome is Ending.FAILED:
            self._write(conn, ctx, "retry", delays=delays, **params)
            return "retried"
        outcome: Outcome = "cancelled" if verdict.outcome is Ending.CANCELLED else "failed"
        if ctx.linked:
            self._write(conn, ctx, "fail_within", outcome=outcome, **params)
        else:
            self._write(conn, ctx, "fail", outcome=outcome, delays=delays, **params)
        return outcome

    def _write(self, conn: Session | Connection, ctx: JobContext, statement: str, **params: Any) -> None:
        if not sql.execute(conn, self._lq.schema, statement, **_fence(ctx), **params):
            raise LeaseLost(f"job {ctx.id}", ctx.held.term, "its row was changed or deleted while its handler ran")

    def _is_held(self, conn: Session | Connection, ctx: JobContext) -> bool:
        return bool(sql.execute(conn, self._lq.schema, "read_held", **_fence(ctx)))


def _fence(ctx: JobContext) -> dict[str, Any]:
    return {"ids": [ctx.id], "terms": [ctx.held.term], "me": ctx.held.holder}


@contextmanager
def _running(ctx: JobContext, lent: Lent) -> Iterator[None]:
    current, lending = _current.set(ctx), _lent.set(lent)
    try:
        yield
    finally:
        _lent.reset(lending)
        _current.reset(current)


def assert_enqueued(
    session: SyncTest, call: Call[Any], *, lq: LeaseQueue | None = None, queue: str | None = None, count: int = 1
) -> None:
    """Assert that exactly ``count`` live jobs of the call's task carry just its arguments.

    Only what was given counts as an argument: a default that one call spells out and the other leaves makes two
    different jobs. Live are jobs that are not finished, also those that are delayed or wait for a retry.

    Args:
        session: where they were enqueued.
        call: ``task.call(...)``; its options are not compared.
        lq: names the schema; None means the task's own.
        queue: only jobs of this queue; None means any.
        count: how many; 0 asserts that there is none.

    Raises:
        AssertionError: more or fewer are there; the message lists the live jobs.
    """
    if not isinstance(call, Call):
        raise ConfigurationError(f"assert_enqueued() takes task.call(...), not {call!r}")
    own = session() if isinstance(session, scoped_session) else session
    schema = (lq or call.task.home).schema
    names = [call.task.name, *call.task.aliases]
    rows = sql.execute(own, schema, "list_live", tasks=names, args=call.job.args, queue=queue)
    found = sum(bool(row[-1]) for row in rows)
    if found != count:
        where = "" if queue is None else f" in queue {queue!r}"
        lines = [
            f"  {id} {task} {args} in {name!r}, state {state}, due {due}"
            for id, name, task, args, state, due, _ in rows
        ]
        more = [f"  and {len(lines) - _LISTED} more"] if len(lines) > _LISTED else []
        listed = "\n".join(lines[:_LISTED] + more) or "  none"
        raise AssertionError(
            f"{count} expected of {call.task.name} {call.job.args}{where}, found {found}. Live jobs:\n{listed}"
        )


async def aassert_enqueued(
    session: AsyncTest, call: Call[Any], *, lq: LeaseQueue | None = None, queue: str | None = None, count: int = 1
) -> None:
    """The async twin of :func:`assert_enqueued`."""
    from sqlalchemy.ext.asyncio import async_scoped_session

    own = session() if isinstance(session, async_scoped_session) else session
    await own.run_sync(lambda conn: assert_enqueued(conn, call, lq=lq, queue=queue, count=count))


class FakeJob(JobContext):
    """What :func:`fake_job` gives: a context whose ``complete`` touches no database.

    Attributes:
        result: what ``complete`` was given last, or None.
    """

    __slots__ = ("result",)
    result: object

    def complete(self, conn: object, /, result: object = None) -> None:
        """Note that it was called, and with what; refuses a result that could not be stored."""
        self._encode(result)
        self.result, self.completed = result, True

    async def acomplete(self, conn: object, /, result: object = None) -> None:
        """The async twin of :meth:`complete`."""
        self.complete(conn, result)


@contextmanager
def fake_job(
    *,
    id: int = 1,
    task: str = "fake",
    queue: str = "default",
    attempt: int = 1,
    max_attempts: int = 8,
    state: Any = None,
    tick: dt.datetime | None = None,
) -> Iterator[FakeJob]:
    """A job that seems to run here: ``current_job()`` gives it, in this thread or asyncio task, until the end."""
    job = FakeJob(Held(id, 1, uuid.uuid4()), task, queue, attempt, max_attempts, state, tick=tick)
    job.result = None
    token = _current.set(job)
    try:
        yield job
    finally:
        _current.reset(token)


def _aware(now: dt.datetime) -> dt.datetime:
    given: object = now  # an application without a type checker gets a sentence, not the driver's error
    if not isinstance(given, dt.datetime) or given.utcoffset() is None:
        raise ConfigurationError(f"now is a timezone-aware datetime or a MovableClock, not {now!r}")
    return now
