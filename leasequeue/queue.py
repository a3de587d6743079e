"""LeaseQueue: what an application holds."""

from __future__ import annotations

import datetime as dt
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar, overload

from leasequeue import loading, naming
from leasequeue.cancel import Cancels
from leasequeue.conduct import Executor, OnSoftTimeout
from leasequeue.config import Config
from leasequeue.control import Controlled
from leasequeue.db.engines import Engines
from leasequeue.db.enqueue import enqueue_many
from leasequeue.db.kinds import AsyncConn, Opens, SyncConn
from leasequeue.db.program import Checked, arun, run
from leasequeue.db.urls import Settings
from leasequeue.errors import ConfigurationError
from leasequeue.job import Job, NewJob
from leasequeue.keys import KeyLike
from leasequeue.lease.offers import Leases
from leasequeue.limit import RateLike
from leasequeue.middleware import Chain, Handler
from leasequeue.result import Answers
from leasequeue.schedule import Scheduled
from leasequeue.task import AsyncTask, Call, P, R, Registry, Task, Upgrade, all_made
from leasequeue.unique import OnConflict, Options, Until

if TYPE_CHECKING:
    from sqlalchemy import Connection, Engine
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

    from leasequeue.retry import RetryIf, Wait
    from leasequeue.workflow import Workflow, WorkflowHandle

M = TypeVar("M", bound=Callable[..., Any])


class Lent(NamedTuple):
    """A test's own connection, given out by :meth:`LeaseQueue.begin` while ``leasequeue.testing`` drains."""

    lq: LeaseQueue
    sync: Callable[[], Connection] | None
    asynchronous: Callable[[], Awaitable[AsyncConnection]] | None


_lent: ContextVar[Lent | None] = ContextVar("leasequeue_lent", default=None)


class Decorator(Protocol):
    """What ``@lq.task()`` gives: a function goes in, its task comes out, with its arguments and result."""

    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> AsyncTask[P, R]: ...

    @overload
    def __call__(self, function: Callable[P, R], /) -> Task[P, R]: ...


class LeaseQueue(Scheduled, Leases, Controlled, Cancels, Opens):
    """The queue as an application holds it: its tasks, its settings, its own engines.

    Making one reads nothing and connects to nothing; settings are resolved at first use, in this order:
    :meth:`configure`, then ``LEASEQUEUE_URL``, then the file named by ``LEASEQUEUE_URL_FILE``, then
    ``DATABASE_URL``. Thread-safe. Engines belong to the process: do not use them across a fork.

    Args:
        imports: modules to import before a worker starts, so that their tasks are registered: dotted names in
            which ``*`` matches within a part (``"app.tasks.*"``: the modules directly in that package).
        schema: where the tables are. None means ``LEASEQUEUE_SCHEMA``, else ``public``.
        tz: the time zone of schedules that name none.
        lifespan: called with this object once in each worker process; a function that returns a sync or async
            context manager, or a generator function of either sort. What it enters with is ``ctx.state``.
        process_jobs: after so many jobs a child process of ``executor="process"`` is replaced by a new one.
        process_memory_mib: resident memory of such a child, in MiB. Above it a child that has ended its job is replaced;
            one that still runs it is killed, which fails that attempt. None means no bound.
    """

    def __init__(
        self,
        *,
        imports: Iterable[str] = (),
        schema: str | None = None,
        tz: str = "UTC",
        lifespan: Callable[[LeaseQueue], Any] | None = None,
        process_jobs: int = 1000,
        process_memory_mib: float | None = None,
    ) -> None:
        if process_jobs < 1 or (process_memory_mib is not None and not process_memory_mib > 0):
            raise ConfigurationError("process_jobs is at least 1, and process_memory_mib is more than 0 or None")
        self.process_jobs = process_jobs
        self.process_memory_mib = process_memory_mib
        self.imports = (imports,) if isinstance(imports, str) else tuple(imports)
        self.tz = tz
        self.registry = Registry()
        self.answers = Answers(self)
        self.checked = Checked()
        """The databases in which the tables were found to be of a version that this code can use."""
        self._config = Config(schema)
        self._engines = Engines(self._config)
        self._chain = Chain()
        self._lifespan = loading.Lifespan(lifespan)
        self._keep, self._ageing, self._declared = {}, {}, {}

    # Settings

    def configure(
        self,
        *,
        url: str | Callable[[], str] | None = None,
        engine: Engine | AsyncEngine | Callable[[], Engine | AsyncEngine] | None = None,
        schema: str | Callable[[], str] | None = None,
    ) -> None:
        """Say where the database is. Values, or callables that are called once, at first use.

        Args:
            url: a PostgreSQL URL of any driver, or a libpq connection string.
            engine: used as it is by :meth:`begin` (``Engine``) or :meth:`abegin` (``AsyncEngine``); the other
                one, and a worker's own connections, are made from its URL unless ``url`` is given too.
            schema: where the tables are.

        Raises:
            ConfigurationError: it was configured differently before, or used before; the same call twice is
                nothing.
        """
        self._config.configure(url, engine, schema)

    @property
    def schema(self) -> str:
        """The schema of the tables, unquoted."""
        return self._config.schema

    def settings(self) -> Settings:
        """How to reach the database.

        Raises:
            ConfigurationError: nothing was configured; the message says the three ways.
        """
        return self._config.settings()

    @property
    def engine(self) -> Engine:
        """The engine of :meth:`begin`: the configured one, or one of our own, made at first use."""
        return self._engines.sync()

    @property
    def async_engine(self) -> AsyncEngine:
        """The engine of :meth:`abegin`; one of our own belongs to the running event loop."""
        return self._engines.asynchronous()

    @contextmanager
    def begin(self) -> Iterator[Connection]:
        """A connection of :attr:`engine` in a READ COMMITTED transaction: committed at the end, rolled back
        on an exception.
        """
        lent = _lent.get()
        if lent is not None and lent.lq is self:
            if lent.sync is None:
                raise ConfigurationError("an async task under adrain() must use lq.abegin(), not lq.begin()")
            conn = lent.sync()
            with conn.begin_nested():
                yield conn
            return
        with self.engine.connect() as conn:
            # Per transaction and explicitly: whatever default the database or the engine has.
            conn = conn.execution_options(isolation_level="READ COMMITTED")
            with conn.begin():
                yield conn

    @asynccontextmanager
    async def abegin(self) -> AsyncIterator[AsyncConnection]:
        """The async twin of :meth:`begin`."""
        lent = _lent.get()
        if lent is not None and lent.lq is self:
            if lent.asynchronous is None:
                raise ConfigurationError("a plain task in a draining test must use lq.begin(), not lq.abegin()")
            conn = await lent.asynchronous()
            async with conn.begin_nested():
                yield conn
            return
        async with self.async_engine.connect() as conn:
            conn = await conn.execution_options(isolation_level="READ COMMITTED")
            async with conn.begin():
                yield conn

    @property
    def lends(self) -> bool:
        """Whether :meth:`begin` gives the connection of a test that is being drained."""
        lent = _lent.get()
        return lent is not None and lent.lq is self

    def dispose(self) -> None:
        """Close what is open: our own synchronous engine (a given one is left alone), and what holds leases; those that are
        held are released.
        """
        self.dispose_leases()
        self._engines.dispose()

    async def adispose(self) -> None:
        """Close the connections of our own asynchronous engine of this event loop."""
        await self._engines.adispose()

    # Tasks

    def task(
        self,
        bare: None = None,
        /,
        *,
        queue: str = "default",
        name: str | None = None,
        aliases: Iterable[str] = (),
        max_attempts: int = 8,
        timeout: dt.timedelta | None = None,
        upgrade: Upgrade | None = None,
        limit: int | None = None,
        rate: RateLike | None = None,
        limit_key: KeyLike | None = None,
        fair_key: KeyLike | None = None,
        unique_key: KeyLike | None = None,
        unique: Until | None = None,
        unique_for: dt.timedelta | None = None,
        on_conflict: OnConflict | None = None,
        expires: dt.timedelta | dt.datetime | None = None,
        wait: Wait | None = None,
        retry: RetryIf | None = None,
        soft_timeout: dt.timedelta | None = None,
        on_soft_timeout: OnSoftTimeout | None = None,
        executor: Executor = "thread",
    ) -> Decorator:
        """Make a function a task: ``@lq.task()`` above a ``def`` or an ``async def``.

        Args:
            queue: where its jobs go.
            name: what their rows say; None means ``module.qualname``. It must stay the same as long as jobs
                of it
                are live: a function that moves keeps its old name here, or among the ``aliases``.
            aliases: further names that are run by this function.
            max_attempts: the last attempt's number, at least 1.
            timeout: stops an attempt that runs longer: a coroutine is cancelled, in a thread ``JobTimeout`` is raised, a
                process is killed. None means no bound.
            upgrade: called on the worker with the stored arguments (raw JSON values by name) when they do not
                bind to the function; returns those that do.
            limit: jobs that run at once, over all workers: of each key where there is a ``limit_key``, else of this
                task. 1 makes each key serial: in the order of priority, due time and id. None: no bound of this kind.
            rate: jobs that start in any span of time, counted likewise: ``"100/10s"``, or ``(100, timedelta)``. The
                window slides. None: no bound of this kind.
            limit_key: a text, or a function of some of the task's parameters, by name, that gives one (None: the call is
                not limited). Keys belong to the schema: two tasks that give the same key share its limit.
            fair_key: the same, for keys (tenants, say) that share the workers in turn however many jobs each has.
            unique_key: a text, or a function of some of the task's parameters, by name, that gives one (None: the call is
                not unique). At most 512 bytes. While a job has the key no other is created with it. Keys belong to the
                schema: two tasks that give the same key keep each other out.
            unique: how long a job has its key: ``"until_finished"``, or ``"until_started"`` (by its first attempt; a
                retry does not take it again). None: until it has finished, unless there is a ``unique_for``.
            unique_for: that long after its creation, by the database's clock, whatever has become of it. With ``unique``
                both hold.
            on_conflict: what a call does whose key is taken. ``"existing"``: it gives that job, ``created`` False.
                ``"replace"``: that job, while it waits, gets this call's arguments and options, so that the last call
                is the one that runs (``replaced`` True); one that has started stays as it is. ``"raise"``:
                ``DuplicateJob``. None: ``"existing"``.
            expires: an attempt that has not begun by then does not begin: the job ends as ``expired``. A timedelta
                after it is due, or a timezone-aware time. Retries, too, must begin by then. None: it may begin at
                any time.
            wait: how long a failed job waits: a wait strategy of tenacity (``wait_fixed(5) + wait_random(0, 2)``), or a
                function of its RetryCallState. None: exponential, from seconds to an hour, with full jitter.
            retry: which errors are tried again: a retry strategy of tenacity (``retry_if_exception_type(OSError)``), or
                such a function. Where it says no, the job has failed for good. None: all of them.
            soft_timeout: after so long, and before ``timeout``, ``on_soft_timeout`` is called once. None: never.
            on_soft_timeout: called with the job's context, in a thread beside the handler. None: a line in the log.
            executor: ``"process"`` runs a plain function in a child process of the worker, which can be killed: for code
                that computes for long, that is written in C, or that may not end. See ``LeaseQueue(process_jobs=...)``.

        Raises:
            DuplicateTask: another function has the name, or one of the aliases.
            ConfigurationError: the function has ``*args``, ``**kwargs`` or positional-only parameters, or an
                option is out of its range.
        """
        if bare is not None:
            raise ConfigurationError("write @lq.task() with its parentheses")
        names = (aliases,) if isinstance(aliases, str) else tuple(aliases)

        def decorate(function: Callable[..., Any], /) -> Any:
            _check_function(function)
            kind = AsyncTask if inspect.iscoroutinefunction(function) else Task
            made: Task[..., Any] = kind(
                self,
                function,
                name=naming.default(function) if name is None else name,
                aliases=names,
                queue=queue,
                max_attempts=max_attempts,
                timeout=timeout,
                upgrade=upgrade,
                limit=limit,
                rate=rate,
                limit_key=limit_key,
                fair_key=fair_key,
                unique=Options(unique_key, unique, unique_for, on_conflict),
                expires=expires,
                wait=wait,
                retry=retry,
                soft_timeout=soft_timeout,
                on_soft_timeout=on_soft_timeout,
                executor=executor,
            )
            self.registry.add(made)
            return made

        return decorate

    def enqueue_many(self, conn: SyncConn, calls: Iterable[Call[Any]], /) -> list[Job[Any]]:
        """Enqueue many jobs, of any tasks, in the caller's transaction.

        Any number: 500 and more are sent by COPY where the driver and the role's rights allow it (psycopg, psycopg2), others
        in statements of some thousand rows. All calls are gathered before the first
        is written. Calls with a ``unique_key`` are inserted in the order of their keys; two transactions that
        insert common keys in several steps of their own may still deadlock, and the server ends one of them.
        Each answer is true of its own call: of those with one key at most one is ``created``. On a connection
        in autocommit mode each statement is a transaction of its own.

        Args:
            conn: as for ``Task.enqueue``.
            calls: ``task.call(...)``, or ``task.options(...).call(...)``.

        Returns:
            A job for each call, in the order of the calls; without unique keys their ids ascend.

        Raises:
            ConfigurationError: something else than calls is among them (nothing was written), or ``conn`` is
            not
                accepted.
            DuplicateJob: the key of a call with ``on_conflict="raise"`` is taken. Others may be written by then:
                let the transaction roll back.
            SchemaMismatch: the tables are missing or of another version.
        """
        jobs = _jobs(calls)
        found = run(conn, enqueue_many, self.schema, jobs, self.checked) if jobs else []
        return all_made(found, jobs, self)

    async def aenqueue_many(self, conn: AsyncConn, calls: Iterable[Call[Any]], /) -> list[Job[Any]]:
        """The async twin of :meth:`enqueue_many`."""
        jobs = _jobs(calls)
        found = await arun(conn, enqueue_many, self.schema, jobs, self.checked) if jobs else []
        return all_made(found, jobs, self)

    # Workflows

    def workflow(self, name: str | None = None) -> Workflow:
        """A workflow to be put together: ``add`` steps, then ``enqueue`` it as a whole.

        Args:
            name: shown in lists; need not be unique.
        """
        from leasequeue.workflow import Workflow

        return Workflow(self, name)

    def workflow_of(self, id: int) -> WorkflowHandle:
        """The handle of a workflow that was enqueued before, by its id. Asks nothing yet."""
        from leasequeue.workflow import WorkflowHandle

        return WorkflowHandle(self, naming.check_id("a workflow's id", id))

    # Single jobs

    @overload
    def job(self, id: int, task: Task[..., R]) -> Job[R]: ...

    @overload
    def job(self, id: int) -> Job[Any]: ...

    def job(self, id: int, task: Task[..., Any] | None = None) -> Job[Any]:
        """A job whose id is known, to ask for its result or progress. Asks nothing by itself.

        Args:
            task: its task, which gives the type of the result. The value is rebuilt by the task whose name the job
                carries, if that is registered here; otherwise it is the plain JSON value.
        """
        known = naming.check_id("a job's id", id)
        return Job(known, False, task.name if task else "", task.queue if task else "", asked=self.answers)

    # What a worker process uses

    def middleware(self, function: M) -> M:
        """Run a function around each job: ``@lq.middleware`` above ``def with_app(ctx, call_next)``.

        It is called with the :class:`JobContext` and returns what ``call_next()`` returns. A plain function
        wraps the tasks that are plain functions, an ``async def`` (``await call_next()``) those that are
        ``async def``; :meth:`check` says which tasks run without it for that reason. The first one added is
        the outermost.
        """
        self._chain.add(function)
        return function

    def handler(self, task: Task[..., Any]) -> Handler:
        """The task's function inside its middleware: called with the context and the decoded arguments.

        Built once per task. For an ``async def`` it returns an awaitable. The middleware must be complete:
        one added later wraps only tasks whose handler was not asked for yet.
        """
        return self._chain.handler(task.name, task.function, task.is_async)

    def check(self) -> list[str]:
        """What is worth a line when a worker starts: one sentence for each problem, none is an error."""
        return self._chain.check([(task.name, task.is_async) for task in self.registry])

    def load_imports(self) -> list[str]:
        """Import the modules of ``imports``, so that their tasks are registered.

        Returns:
            The names of the modules, in the order of their import.

        Raises:
            ConfigurationError: a pattern matches nothing, or an import fails; it says which and why.
        """
        return loading.load(self.imports)

    def enter_lifespan(self) -> Any:
        """Enter the lifespan of this process.

        Returns:
            Its value; for an async lifespan a coroutine that gives it, to be awaited on the loop that will
            also await :meth:`exit_lifespan`. None where there is no lifespan.
        """
        return self._lifespan.enter(self)

    def exit_lifespan(self) -> Any:
        """Leave it: None, or for an async lifespan a coroutine. Nothing when it was not entered."""
        return self._lifespan.exit()

    @property
    def lifespan_is_async(self) -> bool | None:
        """Whether the entered lifespan is an async one; None when none is entered."""
        return self._lifespan.is_async

    def __repr__(self) -> str:
        return f"<LeaseQueue with {len(self.registry)} tasks>"


def _check_function(function: Any) -> None:
    if not callable(function) or isinstance(function, Task):
        raise ConfigurationError(f"@lq.task() goes above a function, not {function!r}")


def _jobs(calls: Iterable[Any]) -> list[NewJob]:
    listed = list(calls)
    for index, call in enumerate(listed):
        if not isinstance(call, Call):
            hint = " (add .call(...))" if isinstance(call, Task) else ""
            raise ConfigurationError(f"enqueue_many takes task.call(...); number {index} is {call!r}{hint}")
    return [call.job for call in listed]
