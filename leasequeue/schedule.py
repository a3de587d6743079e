"""Schedules as an application says them: above a task, or in rows at run time."""

from __future__ import annotations

import datetime as dt
import json
import os
import socket
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, TypeVar

from leasequeue import naming
from leasequeue.db.enqueue import check_version
from leasequeue.db.program import Checked, arun, run
from leasequeue.db.statement import Program, Target
from leasequeue.errors import ConfigurationError, DuplicateSchedule
from leasequeue.task import Call, Task

if TYPE_CHECKING:
    from leasequeue.cron import Spec
    from leasequeue.db.kinds import AsyncConn, SyncConn
    from leasequeue.db.schedules import Definition

T = TypeVar("T", bound=Task[..., Any])
When = str | dt.timedelta


class Scheduled:
    """The part of a LeaseQueue that knows schedules."""

    tz: str
    _definitions: dict[str, Definition] | None = None

    if TYPE_CHECKING:
        checked: Checked

        @property
        def schema(self) -> str: ...

    def schedule(
        self,
        when: str | None = None,
        *,
        every: dt.timedelta | None = None,
        name: str | None = None,
        tz: str | None = None,
        arguments: Mapping[str, Any] | None = None,
        catch_up: str = "latest",
        catch_up_within: dt.timedelta | None = None,
        overlap: str = "queue",
        start: dt.datetime | None = None,
        end: dt.datetime | None = None,
        jitter: dt.timedelta = dt.timedelta(0),
    ) -> Callable[[T], T]:
        """Run a task again and again: ``@lq.schedule("0 21 * * *", tz="Europe/Kyiv")`` above ``@lq.task()``.

        Written into its row when a worker starts; the newest release decides. Each due time makes one job, and ends in the
        ledger with what became of it. Several may stand above one task, under names of their own.

        Args:
            when: a cron of five fields, or six with seconds first, or ``@hourly`` and its like.
            every: instead of it, elapsed time: at least a second, counted from ``start``, else from 1970.
            name: of the schedule; None: the task's name.
            tz: the zone of the cron's local times, an IANA name; None: that of the LeaseQueue. The rule for a change of
                the clocks stands in ``leasequeue.cron``.
            arguments: of the task, by name.
            catch_up: what of the due times runs that nobody fired in time (no worker, a suspended machine): ``latest``:
                the last one, ``all``: each, ``none``: nothing.
            catch_up_within: what is later than this does not run; None: no bound.
            overlap: ``skip``: none while the job of an earlier due time still lives; ``queue``: in any case.
            start, end: nothing is due before, or after; timezone-aware.
            jitter: its job is available up to this long after the due time.

        Its jobs have the task's ``expires`` (counted from the due time), ``max_attempts``, ``limit``, ``rate`` and
        ``limit_key`` or ``fair_key``. Each due time makes one job, so a task whose calls have a unique key is refused:
        ``overlap="skip"`` says that none is to run beside the last one.

        Raises:
            ConfigurationError: any of these cannot be; the message says what to write.
            InvalidArguments: the arguments do not fit the task.
            DuplicateSchedule: another schedule has the name.
        """
        spec = _spec(_when(when, every), self.tz if tz is None else tz, start, end)

        def decorate(task: T) -> T:
            if not isinstance(task, Task):
                raise ConfigurationError(f"@lq.schedule() goes above @lq.task(), not above {task!r}")
            definition = _definition(
                task.name if name is None else name, spec, task.call(**dict(arguments or {})),
                catch_up, catch_up_within, overlap, jitter, decorated=True,
            )  # fmt: skip
            if self._definitions is None:
                self._definitions = {}
            if definition.name in self._definitions:
                raise DuplicateSchedule(definition.name, "in this application")
            self._definitions[definition.name] = definition
            return task

        return decorate

    @property
    def schedules(self) -> Schedules:
        """The schedules in rows: ``lq.schedules.add(...)``."""
        return Schedules(self)

    def definitions(self) -> list[Definition]:
        """The schedules of the code."""
        return list((self._definitions or {}).values())


class Schedules:
    """Schedules in rows, added and changed at run time, in the caller's transaction. Thread-safe.

    What changes a row locks it until that transaction ends, and nobody fires the schedule meanwhile: keep it short. Any
    isolation level; from REPEATABLE READ on, a row that somebody changes at the same time is the server's serialization
    failure. Each change is a row of the ledger, with who did it.

    ``conn`` is as for ``Task.enqueue``: any accepted connection, or the LeaseQueue for a transaction of its own. Each has
    an async twin. Raises ``ScheduleRefused`` where there is no such schedule, or it stands in the code.
    """

    def __init__(self, home: Scheduled) -> None:
        self._home = home

    def add(
        self,
        conn: SyncConn,
        name: str,
        when: str | None,
        call: Call[Any],
        /,
        *,
        every: dt.timedelta | None = None,
        tz: str | None = None,
        catch_up: str = "latest",
        catch_up_within: dt.timedelta | None = None,
        overlap: str = "queue",
        start: dt.datetime | None = None,
        end: dt.datetime | None = None,
        jitter: dt.timedelta = dt.timedelta(0),
    ) -> None:
        """Add a schedule that runs ``call`` (``task.call(...)``, of any options); the words are those of ``lq.schedule``.

        Raises:
            DuplicateSchedule: there is one of that name.
            ConfigurationError: see ``lq.schedule``.
        """
        spec = _spec(_when(when, every), self._home.tz if tz is None else tz, start, end)
        made = _definition(name, spec, call, catch_up, catch_up_within, overlap, jitter)
        run(conn, _checked, self._home, "add", made, _by())

    async def aadd(
        self,
        conn: AsyncConn,
        name: str,
        when: str | None,
        call: Call[Any],
        /,
        *,
        every: dt.timedelta | None = None,
        tz: str | None = None,
        catch_up: str = "latest",
        catch_up_within: dt.timedelta | None = None,
        overlap: str = "queue",
        start: dt.datetime | None = None,
        end: dt.datetime | None = None,
        jitter: dt.timedelta = dt.timedelta(0),
    ) -> None:
        """The async twin of :meth:`add`."""
        spec = _spec(_when(when, every), self._home.tz if tz is None else tz, start, end)
        made = _definition(name, spec, call, catch_up, catch_up_within, overlap, jitter)
        await arun(conn, _checked, self._home, "add", made, _by())

    def update(self, conn: SyncConn, name: str, /, **changes: Any) -> None:
        """Change what is named, and leave the rest: ``when`` or ``every``, ``tz``, ``start``, ``end`` (None: no limit),
        ``call``, ``catch_up``, ``catch_up_within``, ``overlap``, ``jitter``.
        """
        run(conn, _checked, self._home, "change", name, *self._changes(name, changes), _by())

    async def aupdate(self, conn: AsyncConn, name: str, /, **changes: Any) -> None:
        """The async twin of :meth:`update`."""
        await arun(conn, _checked, self._home, "change", name, *self._changes(name, changes), _by())

    def remove(self, conn: SyncConn, name: str, /) -> None:
        """Remove it; its ledger stays."""
        run(conn, _checked, self._home, "remove", name, _by(), live=self._is_ours(name))

    async def aremove(self, conn: AsyncConn, name: str, /) -> None:
        """The async twin of :meth:`remove`."""
        await arun(conn, _checked, self._home, "remove", name, _by(), live=self._is_ours(name))

    def pause(self, conn: SyncConn, name: str, /) -> bool:
        """Run nothing until it is resumed; its due times end as ``paused``. False where it was paused already."""
        return bool(run(conn, _checked, self._home, "set_paused", name, True, _by()))

    async def apause(self, conn: AsyncConn, name: str, /) -> bool:
        """The async twin of :meth:`pause`."""
        return bool(await arun(conn, _checked, self._home, "set_paused", name, True, _by()))

    def resume(self, conn: SyncConn, name: str, /) -> bool:
        """Run again from the next due time on. False where it was not paused."""
        return bool(run(conn, _checked, self._home, "set_paused", name, False, _by()))

    async def aresume(self, conn: AsyncConn, name: str, /) -> bool:
        """The async twin of :meth:`resume`."""
        return bool(await arun(conn, _checked, self._home, "set_paused", name, False, _by()))

    def run_now(self, conn: SyncConn, name: str, /) -> int:
        """Enqueue its job now, beside its due times, paused or not; the job's id."""
        return int(run(conn, _checked, self._home, "fire_now", name, _by()))

    async def arun_now(self, conn: AsyncConn, name: str, /) -> int:
        """The async twin of :meth:`run_now`."""
        return int(await arun(conn, _checked, self._home, "fire_now", name, _by()))

    def _is_ours(self, name: str) -> bool:
        return any(definition.name == name for definition in self._home.definitions())

    def _changes(self, name: str, given: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        words = dict(given)
        changes: dict[str, Any] = {}
        times: dict[str, Any] = {}
        if words.keys() & {"when", "every"}:
            when = _when(words.pop("when", None), words.pop("every", None))
            spec = _spec(when, "UTC")
            times = {"cron": spec.cron} if spec.cron is not None else {"every": spec.every_seconds}
        for key in ("tz", "start", "end"):
            if key in words:
                value = words.pop(key)
                times[key] = value.isoformat() if isinstance(value, dt.datetime) else value
        if "call" in words:
            call = words.pop("call")
            from leasequeue.db.schedules import canonical

            job = _job_of(call)
            changes |= {"task": job.task, "args": canonical(job.args), "queue": job.queue, "priority": job.priority}
            changes["options"] = _options(name, job)
        policy: dict[str, Any] = {
            key: words.pop(key) for key in ("catch_up", "catch_up_within", "overlap", "jitter") if key in words
        }
        if words:
            raise ConfigurationError(f"a schedule has no {', '.join(sorted(words))} to change")
        return changes | _policy(policy), times


def _checked(target: Target, home: Scheduled, program: str, *args: Any, **words: Any) -> Program[Any]:
    """A program of ``ops.schedules`` after a look at the tables' version, once per database."""
    from leasequeue.ops import schedules as ops

    if target.database not in home.checked:
        yield from check_version(target, home.schema, home.checked)
    return (yield from getattr(ops, program)(target, home.schema, *args, **words))


def deployed_at() -> dt.datetime | None:
    """``LEASEQUEUE_DEPLOYED_AT``: when this release was deployed, in ISO 8601 with an offset, or None.

    Raises:
        ConfigurationError: it is something else.
    """
    text = os.environ.get("LEASEQUEUE_DEPLOYED_AT", "").strip()
    if not text:
        return None
    try:
        found = dt.datetime.fromisoformat(text)
    except ValueError:
        found = None
    if found is None or found.utcoffset() is None:
        raise ConfigurationError(
            f"LEASEQUEUE_DEPLOYED_AT={text!r} is no time: write it as 2026-11-30T21:00:00+00:00 (date -Iseconds)"
        )
    return found


def to_json(definitions: list[Definition]) -> list[dict[str, Any]]:
    """For the supervisor, which writes them and has no application code."""
    return [asdict(definition) for definition in definitions]


def _definition(
    name: str,
    spec: Spec,
    call: Call[Any],
    catch_up: str,
    catch_up_within: dt.timedelta | None,
    overlap: str,
    jitter: dt.timedelta,
    *,
    decorated: bool = False,
) -> Definition:
    from leasequeue.db.schedules import Definition, canonical

    job = _job_of(call)
    made = _policy({"catch_up": catch_up, "catch_up_within": catch_up_within, "overlap": overlap, "jitter": jitter})
    return Definition(
        name=naming.check("a schedule's name", name),
        task=job.task,
        args=canonical(job.args),
        queue=job.queue,
        priority=job.priority,
        options=_options(name, job),
        spec=canonical(json.dumps(spec.to_json())),
        decorated=decorated,
        **made,
    )


def _options(name: str, job: Any) -> str:
    """What the jobs of a schedule are given beside: see ``db.schedules.OPTIONS``.

    Raises:
        ConfigurationError: the call says what a schedule cannot hand on.
    """
    from leasequeue.db.schedules import OPTIONS

    if job.unique_key is not None or job.hold_key is not None:
        raise ConfigurationError(
            f"schedule {name!r}: task {job.task} has a unique key ({job.unique_key or job.hold_key!r}), and a schedule makes "
            f"one job for each due time, whoever has that key: say overlap='skip' for none beside the last one, and give the "
            f"schedule a task without unique_key (it may enqueue this one), or a key that is None for these arguments"
        )
    if job.run_at is not None or job.delay_seconds:
        raise ConfigurationError(
            f"schedule {name!r}: the schedule says when its jobs are due: leave delay and run_at out of the task's options"
        )
    said = {field: getattr(job, field) for field in OPTIONS}
    if job.start_by is not None:
        said["start_by"] = job.start_by.isoformat()
    return json.dumps({field: value for field, value in said.items() if value is not None}, sort_keys=True)


def _job_of(call: object) -> Any:
    if not isinstance(call, Call):
        hint = ": add .call(...)" if isinstance(call, Task) else ""
        raise ConfigurationError(f"a schedule runs task.call(...), not {call!r}{hint}")
    return call.job


def _when(when: str | None, every: dt.timedelta | None) -> When:
    if (when is None) == (every is None):
        found = "neither" if when is None else "both"
        raise ConfigurationError(f'a schedule has a cron ("0 21 * * *") or every=timedelta(...), and {found} was given')
    return when if when is not None else every  # type: ignore[return-value]  # one of the two is there


def _spec(when: When, tz: str, start: dt.datetime | None = None, end: dt.datetime | None = None) -> Spec:
    from leasequeue.cron import Spec  # here, as all below it: an application that has no schedule starts without it

    return Spec.make(when, tz, start, end)


def _policy(given: dict[str, Any]) -> dict[str, Any]:
    from leasequeue.tick import CATCH_UP, OVERLAP

    made: dict[str, Any] = {}
    for key, allowed in (("catch_up", CATCH_UP), ("overlap", OVERLAP)):
        if key in given:
            if given[key] not in allowed:
                raise ConfigurationError(f"{key} is one of {', '.join(map(repr, allowed))}, not {given[key]!r}")
            made[key] = given[key]
    if given.get("catch_up") == "all" and given.get("overlap") == "skip":
        raise ConfigurationError(
            "catch_up='all' wants a run for each due time and overlap='skip' none beside another: choose one of the two"
        )
    for key, field in (("catch_up_within", "catch_up_seconds"), ("jitter", "jitter_seconds")):
        if key in given:
            value = given[key]
            if value is None and key == "catch_up_within":
                made[field] = None
                continue
            if not isinstance(value, dt.timedelta) or not dt.timedelta(0) <= value:
                raise ConfigurationError(f"{key} is a timedelta of 0 or more, not {value!r}")
            if key == "jitter" and value > dt.timedelta(days=1):
                raise ConfigurationError(f"jitter is at most a day, not {value}")
            made[field] = value.total_seconds()
    return made


def _by() -> str:
    return f"{socket.gethostname()}:{os.getpid()}"
