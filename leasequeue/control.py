"""What an application says of its queues and limits: in its code, and in rows at run time."""

from __future__ import annotations

import datetime as dt
import os
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from leasequeue import naming
from leasequeue.db.enqueue import check_version
from leasequeue.db.program import Checked, arun, run
from leasequeue.db.statement import Program, Target
from leasequeue.errors import ConfigurationError
from leasequeue.limit import OF_QUEUE, Limit, RateLike, parse

if TYPE_CHECKING:
    from leasequeue.db.kinds import AsyncConn, SyncConn


class Controlled:
    """The part of a LeaseQueue that knows how its queues are kept and what is limited."""

    _keep: dict[str, dt.timedelta | None]
    _ageing: dict[str, float]
    _declared: dict[str, Limit]

    if TYPE_CHECKING:
        checked: Checked

        @property
        def schema(self) -> str: ...

    # In the code

    def queue(
        self,
        name: str,
        *,
        keep: dt.timedelta | int | None = None,
        limit: int | None = None,
        rate: RateLike | None = None,
        ageing: dt.timedelta | None = None,
    ) -> None:
        """Say how a queue is kept. Said again of the same queue, it takes the place of what was said before.

        Args:
            name: the queue's name.
            keep: how long finished jobs stay in the history; 0 writes none at all (for a queue of high
                volume); None means the default retention.
            limit, rate: how many of its jobs run at once, over all workers, and how many start in a span, as for
                ``@lq.task``. As :meth:`limit` of ``queue:NAME``. None: no bound of that kind.
            ageing: a job that waits counts as one priority higher for each such span since it was due, so that nothing
                starves: no job that becomes due later than n times this after it goes before it, where n is by how much
                that one's priority is higher. Jobs that wait at a limit do not age. None: a lower priority waits for as
                long as there are higher ones.

        Raises:
            ConfigurationError: any of these cannot be.
        """
        naming.check("a queue's name", name)
        if keep is not None and not isinstance(keep, dt.timedelta):
            if keep != 0 or isinstance(keep, bool):
                raise ConfigurationError(f"queue {name!r}: keep is a timedelta, 0 or None, not {keep!r}")
            keep = dt.timedelta(0)
        if keep is not None and keep < dt.timedelta(0):
            raise ConfigurationError(f"queue {name!r}: keep is not negative")
        _check_ageing(name, ageing)
        limits = parse(f"queue {name!r}", limit, rate)
        self._keep[name] = keep
        self._ageing.pop(name, None)
        if ageing is not None:
            self._ageing[name] = ageing.total_seconds()
        self._declared.pop(OF_QUEUE + name, None)
        if limits != Limit():
            self._declared[naming.check("a limited queue's name", OF_QUEUE + name)] = limits

    def limit(self, name: str, limit: int | None = None, rate: RateLike | None = None) -> None:
        """Declare a limit by its name. Said again of the same name, it takes the place of what was said before.

        It is written when a worker starts, before that claims anything; the newest release decides, also that there is no
        limit of that name any more. One that an operator sets (``leasequeue limits set``) goes before it.

        Args:
            name: an exact key (``user:7``), the first part of keys (``user``: of each key ``user:...`` that has no limit of
                its own), ``task:NAME``, ``queue:NAME``, or ``fair:NAME`` (a ``fair_key``).
            limit: jobs that run at once, over all workers.
            rate: jobs that start in any span, as in ``"100/10s"``.

        Raises:
            ConfigurationError: any of these cannot be, or neither bound is given.
        """
        from leasequeue.ops.limits import check_name

        check_name(name)
        limits = parse(f"limit {name!r}", limit, rate)
        if limits == Limit():
            raise ConfigurationError(f"limit {name!r}: give limit, rate, or both")
        self._declared[name] = limits

    def declared_limits(self) -> list[tuple[str, Limit]]:
        """The limits of the code, by name."""
        return sorted(self._declared.items())

    def keeps(self, queue: str) -> bool:
        """Whether finished jobs of the queue are written to the history."""
        keep = self._keep.get(queue)
        return keep is None or bool(keep)

    def retentions(self) -> dict[str, float]:
        """Seconds for which the history of a queue is kept, where it has a retention of its own."""
        return {queue: keep.total_seconds() for queue, keep in self._keep.items() if keep}

    def ageing_seconds(self, queue: str) -> float | None:
        """The ageing of the queue; None: its jobs do not age."""
        return self._ageing.get(queue)

    # At run time

    def pause_queue(
        self, conn: SyncConn, name: str, /, resume_at: dt.datetime | None = None, *, by: str | None = None
    ) -> bool:
        """Let no worker claim from a queue, from the caller's commit on; what runs goes on.

        A worker learns it within about a second. Jobs are enqueued as ever. Takes the lock of the queue's row: another
        transaction that has just paused or resumed the same queue is waited for.

        Args:
            conn: as for ``Task.enqueue``.
            name: of the queue.
            resume_at: when it is resumed by itself, by the database's clock; timezone-aware. None: by :meth:`resume_queue`.
                For a queue that is paused already it is the new time.
            by: who, for ``leasequeue queues``; None: this host and process.

        Returns:
            Whether it ran until now.

        Raises:
            ConfigurationError: ``resume_at`` has no time zone, or is over.
            SchemaMismatch: the tables are missing or of another version.
        """
        found: tuple[bool, dt.datetime | None] = run(
            conn, _checked, self, _pause, name, by or _us(), resume_at=resume_at
        )
        return found[0]

    async def apause_queue(
        self, conn: AsyncConn, name: str, /, resume_at: dt.datetime | None = None, *, by: str | None = None
    ) -> bool:
        """The async twin of :meth:`pause_queue`."""
        return bool((await arun(conn, _checked, self, _pause, name, by or _us(), resume_at=resume_at))[0])

    def resume_queue(self, conn: SyncConn, name: str, /, *, by: str | None = None) -> bool:
        """Let workers claim from a queue again; they learn it within about a second. False where it was not paused.

        Locks, args and errors as for :meth:`pause_queue`.
        """
        return bool(run(conn, _checked, self, _resume, name, by or _us()))

    async def aresume_queue(self, conn: AsyncConn, name: str, /, *, by: str | None = None) -> bool:
        """The async twin of :meth:`resume_queue`."""
        return bool(await arun(conn, _checked, self, _resume, name, by or _us()))

    def set_limit(
        self,
        conn: SyncConn,
        name: str,
        /,
        *,
        limit: int | None = None,
        rate: RateLike | None = None,
        by: str | None = None,
    ) -> None:
        """Set a limit as an operator does: in place of one that was set before, and before what the code declares.

        All workers know it within about a second of the caller's commit; what runs goes on, also above a lowered limit.
        Keys that may now run are woken in the same transaction: one row for each that waits, some seconds of work where
        there are 100,000. Takes the lock of the limit's row: another transaction that has just set the same one is waited
        for.

        Args:
            conn: as for ``Task.enqueue``.
            name: as for :meth:`limit`.
            limit: jobs that run at once, over all workers; 0 holds all of them. None: the code's bound stays.
            rate: jobs that start in any span. None: the code's bound stays.
            by: who, for ``leasequeue limits``; None: this host and process.

        Raises:
            ConfigurationError: any of these cannot be, or neither bound is given.
            SchemaMismatch: the tables are missing or of another version.
        """
        run(conn, _checked, self, _set_limit, name, parse(f"limit {name!r}", limit, rate, least=0), by or _us())

    async def aset_limit(
        self,
        conn: AsyncConn,
        name: str,
        /,
        *,
        limit: int | None = None,
        rate: RateLike | None = None,
        by: str | None = None,
    ) -> None:
        """The async twin of :meth:`set_limit`."""
        limits = parse(f"limit {name!r}", limit, rate, least=0)
        await arun(conn, _checked, self, _set_limit, name, limits, by or _us())

    def unset_limit(self, conn: SyncConn, name: str, /) -> bool:
        """Take a limit away that was set; what the code declares is in force again. False where none was set.

        Locks, args and errors as for :meth:`set_limit`.
        """
        return bool(run(conn, _checked, self, _unset_limit, name))

    async def aunset_limit(self, conn: AsyncConn, name: str, /) -> bool:
        """The async twin of :meth:`unset_limit`."""
        return bool(await arun(conn, _checked, self, _unset_limit, name))


def _checked(
    target: Target, home: Controlled, program: Callable[..., Program[Any]], *args: Any, **words: Any
) -> Program[Any]:
    """A program after a look at the tables' version, once per database."""
    if target.database not in home.checked:
        yield from check_version(target, home.schema, home.checked)
    return (yield from program(target, home.schema, *args, **words))


# Imported when called: an application that never asks starts without them.


def _pause(*args: Any, **words: Any) -> Program[tuple[bool, dt.datetime | None]]:
    from leasequeue.ops.queues import pause

    return pause(*args, **words)


def _resume(*args: Any) -> Program[bool]:
    from leasequeue.ops.queues import resume

    return resume(*args)


def _set_limit(*args: Any) -> Program[int]:
    from leasequeue.ops.limits import set_limit

    return set_limit(*args)


def _unset_limit(*args: Any) -> Program[bool]:
    from leasequeue.ops.limits import unset_limit

    return unset_limit(*args)


def _check_ageing(queue: str, ageing: Any) -> None:
    if ageing is not None and not (isinstance(ageing, dt.timedelta) and ageing > dt.timedelta(0)):
        raise ConfigurationError(f"queue {queue!r}: ageing is a positive timedelta or None, not {ageing!r}")


def _us() -> str:
    return f"{socket.gethostname()}:{os.getpid()}"
