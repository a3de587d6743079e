"""Tasks: functions that can be enqueued, and the registry that knows them by name."""

from __future__ import annotations

import copy
import datetime as dt
import inspect
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, Protocol, Self, TypeVar

from leasequeue import naming, result
from leasequeue.codec import Signature
from leasequeue.conduct import Executor, OnSoftTimeout, conduct
from leasequeue.db.enqueue import enqueue_one
from leasequeue.db.kinds import AsyncConn, SyncConn
from leasequeue.db.program import arun, run
from leasequeue.errors import ConfigurationError, DuplicateTask, UnknownTask
from leasequeue.gate import gate
from leasequeue.job import PRIORITY_MAX, PRIORITY_MIN, Became, Enqueued, Job, NewJob
from leasequeue.keys import KeyLike
from leasequeue.limit import RateLike
from leasequeue.unique import OnConflict, Options, Until
from leasequeue.unique import unique as make_unique

if TYPE_CHECKING:
    from leasequeue.retry import RetryIf, Wait

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)

NOT_UNIQUE = Options()

Upgrade = Callable[[dict[str, Any]], Mapping[str, Any]]


class Home(result.Home, Protocol):
    """What a task needs of the LeaseQueue that it belongs to."""

    @property
    def answers(self) -> result.Answers: ...


class Call(Generic[R_co]):
    """A task with its arguments, checked and encoded: a job that is not enqueued yet. Safe to share."""

    __slots__ = ("job", "task")

    def __init__(self, task: Task[..., R_co], job: NewJob) -> None:
        self.task = task
        self.job = job

    def __repr__(self) -> str:
        return f"<Call {self.job.task} {self.job.args[:80]}>"


class Task(Generic[P, R]):
    """A function that can be enqueued. Made by ``@lq.task()``; calling it runs the function, here and now.

    Attributes:
        name: what a job's row says; stable as long as jobs of it are live.
        aliases: other names under which older releases enqueued it.
        function: the function itself.
        is_async: whether it is an ``async def``.
        queue: where its jobs go unless ``options(queue=...)`` says otherwise.
        max_attempts: for jobs that carry no number of their own.
        timeout: an attempt that runs longer is cancelled; None means no bound.
        upgrade: turns the stored arguments of an older release, a dict of raw JSON values, into those of this
            one; called on the worker when they do not bind. None where there is none.
        signature: how arguments are checked, encoded and decoded.
        gate: the limit that its jobs wait at; None: they pass none.
        unique: how long one of its jobs keeps others of its key from being created; None: they are not unique.
        conduct: how its attempts are run: ``wait``, ``retry``, ``soft_timeout``, ``executor``.
    """

    def __init__(
        self,
        home: Home,
        function: Callable[..., Any],
        *,
        name: str,
        aliases: tuple[str, ...] = (),
        queue: str = "default",
        max_attempts: int = 8,
        timeout: dt.timedelta | None = None,
        upgrade: Upgrade | None = None,
        limit: int | None = None,
        rate: RateLike | None = None,
        limit_key: KeyLike | None = None,
        fair_key: KeyLike | None = None,
        unique: Options = NOT_UNIQUE,
        expires: dt.timedelta | dt.datetime | None = None,
        wait: Wait | None = None,
        retry: RetryIf | None = None,
        soft_timeout: dt.timedelta | None = None,
        on_soft_timeout: OnSoftTimeout | None = None,
        executor: Executor = "thread",
    ) -> None:
        for text in (name, *aliases):
            naming.check("a task's name", text)
        naming.check("a queue's name", queue)
        _check_attempts(max_attempts)
        _check_timeout(name, timeout)
        self.home = home
        self.function = function
        self.name = name
        self.aliases = aliases
        self.queue = queue
        self.max_attempts = max_attempts
        self.timeout = timeout
        self.upgrade = upgrade
        self.is_async = inspect.iscoroutinefunction(function)
        self.conduct = conduct(
            name, self.is_async, wait=wait, retry=retry, timeout=timeout, soft_timeout=soft_timeout,
            on_soft_timeout=on_soft_timeout, executor=executor,
        )  # fmt: skip
        self.signature = Signature.of(function)
        self.gate = gate(name, self.signature, limit=limit, rate=rate, limit_key=limit_key, fair_key=fair_key)
        self.unique = make_unique(name, self.signature, unique)
        self._unique_options = unique
        # The look of the function, so that a documentation tool or a debugger shows it; not __wrapped__, by
        # which inspect would take the task for the function itself.
        self.__name__ = getattr(function, "__name__", name)
        self.__qualname__ = getattr(function, "__qualname__", name)
        self.__module__ = function.__module__
        self.__doc__ = function.__doc__
        # What options() changes; a plain NewJob of these is what enqueue makes.
        self._priority = 0
        self._delay_seconds = 0.0
        self._run_at: dt.datetime | None = None
        self._attempts: int | None = None
        self._expires_seconds, self._start_by = _deadline(name, expires)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run the function itself, as if it were not decorated: nothing is enqueued, no middleware runs."""
        return self.function(*args, **kwargs)  # type: ignore[no-any-return]  # R is what the function returns

    def enqueue(self, conn: SyncConn, /, *args: P.args, **kwargs: P.kwargs) -> Job[R]:
        """Enqueue a job in the caller's transaction: it exists if and when that transaction commits.

        One round trip; takes no lock that another enqueue waits for, save on an equal ``unique_key``: there
        it waits until the transaction that holds the key has ended (docs/uniqueness.md says what that means for
        transactions that take several). Any isolation level. Jobs of one transaction get ascending ids.

        Args:
            conn: a SQLAlchemy ``Connection``, ``Session`` or ``scoped_session``, a psycopg or psycopg2
                connection, Django's ``connection``; or the ``LeaseQueue``, for a transaction of its own (READ
                COMMITTED, committed on return).
            args, kwargs: those of the function. Only what is given is stored; defaults apply when it runs.

        Raises:
            InvalidArguments: they do not fit the signature or cannot be carried; nothing was written.
            DuplicateJob: another job has the unique key, and ``on_conflict="raise"``; nothing was written.
            ConfigurationError: ``conn`` is none of these, or is asynchronous.
            SchemaMismatch: the tables are missing or of another version.
        """
        job = self._job(args, kwargs)
        found = run(conn, enqueue_one, self.home.schema, job, self.home.checked)
        return made(found, job, self.home)

    async def aenqueue(self, conn: AsyncConn, /, *args: P.args, **kwargs: P.kwargs) -> Job[R]:
        """The async twin of :meth:`enqueue`.

        Args:
            conn: a SQLAlchemy ``AsyncConnection``, ``AsyncSession`` or ``async_scoped_session`` (of the
                psycopg or asyncpg driver), a ``psycopg.AsyncConnection``; or the ``LeaseQueue``.
            args, kwargs: those of the function.
        """
        job = self._job(args, kwargs)
        found = await arun(conn, enqueue_one, self.home.schema, job, self.home.checked)
        return made(found, job, self.home)

    def call(self, *args: P.args, **kwargs: P.kwargs) -> Call[R]:
        """The task with these arguments, to be handed to ``enqueue_many``; checked and encoded at once.

        Raises:
            InvalidArguments: they do not fit the signature, or cannot be carried.
        """
        return Call(self, self._job(args, kwargs))

    def options(
        self,
        *,
        delay: dt.timedelta | None = None,
        run_at: dt.datetime | None = None,
        priority: int | None = None,
        queue: str | None = None,
        max_attempts: int | None = None,
        unique_key: KeyLike | None = None,
        unique: Until | None = None,
        unique_for: dt.timedelta | None = None,
        on_conflict: OnConflict | None = None,
        expires: dt.timedelta | dt.datetime | None = None,
        limit: int | None = None,
        rate: RateLike | None = None,
        limit_key: str | None = None,
        fair_key: str | None = None,
    ) -> Self:
        """A copy of this task that enqueues with these options; this task stays as it is.

        None leaves what was set before (by the decorator or an earlier ``options``).

        Args:
            delay: not before this long after now, by the database's clock: the start of the enqueuing
                transaction. Not negative.
            run_at: not before this time; timezone-aware. A time in the past means now.
            priority: -100 to 100, higher first; 0 unless set.
            queue: the queue to go to.
            max_attempts: the number of the last attempt, at least 1.
            unique_key, unique, unique_for, on_conflict, expires: as for ``@lq.task``; each replaces that one.
            limit, rate, limit_key, fair_key: as for ``@lq.task``, in place of what that says about limits: all four are
                replaced when one is given.

        Raises:
            ConfigurationError: a value out of its range, or ``delay`` together with ``run_at``.
        """
        if delay is not None and run_at is not None:
            raise ConfigurationError(f"{self.name}: give delay or run_at, not both")
        copied = copy.copy(self)
        if delay is not None:
            copied._delay_seconds, copied._run_at = _delay_seconds(self.name, delay), None
        if run_at is not None:
            copied._run_at, copied._delay_seconds = _aware(self.name, run_at), 0.0
        if priority is not None:
            copied._priority = _in_range(self.name, priority)
        if queue is not None:
            copied.queue = naming.check("a queue's name", queue)
        if max_attempts is not None:
            _check_attempts(max_attempts)
            copied._attempts = max_attempts
        if expires is not None:
            copied._expires_seconds, copied._start_by = _deadline(self.name, expires)
        uniqueness = Options(unique_key, unique, unique_for, on_conflict).over(self._unique_options)
        if uniqueness != self._unique_options:
            copied.unique, copied._unique_options = make_unique(self.name, self.signature, uniqueness), uniqueness
        copied.gate = (
            gate(self.name, self.signature, limit=limit, rate=rate, limit_key=limit_key, fair_key=fair_key) or self.gate
        )
        return copied

    def _job(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> NewJob:
        text = self.signature.bind(self.name, args, kwargs)
        controls: dict[str, Any] = {}
        arguments: dict[str, Any] = {}
        gate, unique = self.gate, self.unique
        if (gate is not None and gate.needs_arguments) or (unique is not None and unique.needs_arguments):
            arguments = self.signature.arguments(args, kwargs)
        if unique is not None:
            controls = unique.fields(arguments)
        if self._expires_seconds is not None or self._start_by is not None:
            controls |= {"expires_seconds": self._expires_seconds, "start_by": self._start_by}
        if gate is not None:
            key = gate.key(arguments)
            if key is not None:
                bounds = gate.limit
                controls |= {"limit_key": key, "limit_max": bounds.running}
                controls |= {"rate_max": bounds.rate, "rate_seconds": bounds.rate_seconds}
        return NewJob(
            self.name,
            self.queue,
            text,
            self._priority,
            self._delay_seconds,
            self._run_at,
            self._attempts,
            **controls,
        )

    def __repr__(self) -> str:
        return f"<Task {self.name}>"


class AsyncTask(Task[P, R]):
    """A task made of an ``async def``; ``R`` is what awaiting it gives."""

    def __call__(  # type: ignore[override]  # the one difference: a direct call is awaited
        self, *args: P.args, **kwargs: P.kwargs
    ) -> Coroutine[Any, Any, R]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """The function's coroutine, as if it were not decorated: nothing is enqueued, no middleware runs."""
        return self.function(*args, **kwargs)  # type: ignore[no-any-return]  # as in Task


def made(found: Enqueued, job: NewJob, home: Home) -> Job[Any]:
    """What a caller gets of a call that is enqueued."""
    return Job(found.id, found.created, job.task, job.queue, found.replaced, home.answers)


def all_made(found: Iterable[Became], jobs: Iterable[NewJob], home: Home) -> list[Job[Any]]:
    """The same of many calls."""
    answers = home.answers
    return [
        Job(each, True, job.task, job.queue, False, answers)
        if isinstance(each, int)
        else Job(each.id, each.created, job.task, job.queue, each.replaced, answers)
        for each, job in zip(found, jobs, strict=True)
    ]


class Registry:
    """The tasks of one LeaseQueue by name and alias. Thread-safe: reads see a dict that only ever grows."""

    def __init__(self) -> None:
        self._by_name: dict[str, Task[..., Any]] = {}
        self._tasks: list[Task[..., Any]] = []
        self._adding = threading.Lock()

    def add(self, task: Task[..., Any]) -> None:
        """Register a task under its name and its aliases; all of them or none.

        Raises:
            DuplicateTask: another function has one of the names.
        """
        with self._adding:
            for name in (task.name, *task.aliases):
                taken = self._by_name.get(name)
                if taken is not None:
                    raise DuplicateTask(name, naming.whereabouts(taken.function), naming.whereabouts(task.function))
            for name in (task.name, *task.aliases):
                self._by_name[name] = task
            self._tasks.append(task)

    def get(self, name: str) -> Task[..., Any] | None:
        """The task of this name or alias, or None."""
        return self._by_name.get(name)

    def __getitem__(self, name: str) -> Task[..., Any]:
        task = self._by_name.get(name)
        if task is None:
            raise UnknownTask(name, self.names)
        return task

    def __contains__(self, name: object) -> bool:
        return name in self._by_name

    def __iter__(self) -> Iterator[Task[..., Any]]:
        return iter(tuple(self._tasks))

    def __len__(self) -> int:
        return len(self._tasks)

    @property
    def names(self) -> tuple[str, ...]:
        """Every name and alias, sorted."""
        return tuple(sorted(self._by_name))


# These take any object: an application without a type checker gets a sentence, not a driver's error.


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _in_range(task: str, priority: Any) -> int:
    if not _is_int(priority) or not PRIORITY_MIN <= priority <= PRIORITY_MAX:
        raise ConfigurationError(
            f"{task}: priority is a whole number from {PRIORITY_MIN} to {PRIORITY_MAX}, not {priority!r}"
        )
    return int(priority)


def _delay_seconds(task: str, delay: Any) -> float:
    if not isinstance(delay, dt.timedelta) or delay < dt.timedelta(0):
        raise ConfigurationError(f"{task}: delay is a timedelta of 0 or more, not {delay!r}")
    return delay.total_seconds()


def _aware(task: str, run_at: Any) -> dt.datetime:
    if not isinstance(run_at, dt.datetime) or run_at.utcoffset() is None:
        raise ConfigurationError(
            f"{task}: run_at is a timezone-aware datetime, not {run_at!r}; "
            f"e.g. datetime.now(timezone.utc) + timedelta(hours=1)"
        )
    return run_at


def _deadline(task: str, expires: Any) -> tuple[float | None, dt.datetime | None]:
    """Seconds after it is due, or a time; both None where there is none."""
    if expires is None:
        return None, None
    if isinstance(expires, dt.datetime) and expires.utcoffset() is not None:
        return None, expires
    if isinstance(expires, dt.timedelta) and dt.timedelta(0) < expires <= dt.timedelta(days=36_500):
        return expires.total_seconds(), None
    raise ConfigurationError(
        f"{task}: expires is a positive timedelta of at most 100 years, counted from when the job is due, "
        f"or a timezone-aware datetime, not {expires!r}"
    )


def _check_timeout(task: str, timeout: Any) -> None:
    if timeout is not None and not (isinstance(timeout, dt.timedelta) and timeout > dt.timedelta(0)):
        raise ConfigurationError(f"{task}: timeout is a positive timedelta or None, not {timeout!r}")


def _check_attempts(value: Any) -> None:
    if not _is_int(value) or not 1 <= value <= 2**31 - 1:
        raise ConfigurationError(f"max_attempts is a whole number of at least 1, not {value!r}")
