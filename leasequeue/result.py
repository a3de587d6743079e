"""Waiting for a job: its result, and how far it is. What ``Job.result`` and ``Job.progress`` ask.

It asks again and again over the LeaseQueue's own engine, each time in a short transaction, so it works through any pooler
and holds no connection while it waits.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import json
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Protocol, cast

from leasequeue.codec import decode_result
from leasequeue.db.kinds import Opens
from leasequeue.db.program import Checked, arun, run
from leasequeue.db.results import Seen, read_job
from leasequeue.errors import (
    ConfigurationError,
    JobCancelled,
    JobExpired,
    JobFailed,
    ResultTimeout,
    ResultUnavailable,
)
from leasequeue.job import Progress

if TYPE_CHECKING:
    from leasequeue.codec import Signature
    from leasequeue.task import Registry

FIRST_PAUSE_SECONDS = 0.01
LAST_PAUSE_SECONDS = 0.25


class Home(Protocol):
    """What is needed of the LeaseQueue; it opens its own transactions, too."""

    registry: Registry

    @property
    def schema(self) -> str: ...

    @property
    def checked(self) -> Checked: ...

    @property
    def lends(self) -> bool: ...


class Answers:
    """Answers the questions of the jobs of one LeaseQueue. Thread-safe."""

    def __init__(self, home: Home) -> None:
        self._home = home

    def result(self, id: int, timeout: dt.timedelta | None) -> Any:
        """See ``Job.result``."""
        seconds = _seconds(timeout)
        waiting = self._waiting(id, seconds)
        while True:
            seen = run(self._own(), read_job, self._home.schema, id, self._home.checked)
            if seen is not None and seen.ended:
                return self._end(id, seen)
            time.sleep(self._pause(id, seen, seconds, waiting))

    async def aresult(self, id: int, timeout: dt.timedelta | None) -> Any:
        """See ``Job.aresult``."""
        seconds = _seconds(timeout)
        waiting = self._waiting(id, seconds)
        while True:
            seen = await arun(self._own(), read_job, self._home.schema, id, self._home.checked)
            if seen is not None and seen.ended:
                return self._end(id, seen)
            await asyncio.sleep(self._pause(id, seen, seconds, waiting))

    def progress(self, id: int) -> Progress | None:
        """See ``Job.progress``."""
        return _progress(id, run(self._own(), read_job, self._home.schema, id, self._home.checked))

    async def aprogress(self, id: int) -> Progress | None:
        """See ``Job.aprogress``."""
        return _progress(id, await arun(self._own(), read_job, self._home.schema, id, self._home.checked))

    def _own(self) -> Opens:
        return cast(Opens, self._home)

    def _waiting(self, id: int, seconds: float | None) -> Iterator[float | None]:
        """The pauses between two questions; None once the time is over."""
        deadline = None if seconds is None else time.monotonic() + seconds
        pause = FIRST_PAUSE_SECONDS
        while True:
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                yield None
            yield pause if left is None else min(pause, left)
            pause = min(pause * 1.5, LAST_PAUSE_SECONDS)

    def _pause(self, id: int, seen: Seen | None, seconds: float | None, waiting: Iterator[float | None]) -> float:
        if seen is None:
            raise ResultUnavailable(id)
        if self._home.lends:
            # Nothing runs beside a drained test: it would wait for ever.
            raise ResultTimeout(id, seen.task, seen.state, 0.0)
        pause = next(waiting)
        if pause is None:
            raise ResultTimeout(id, seen.task, seen.state, seconds or 0.0)
        return pause

    def _end(self, id: int, seen: Seen) -> Any:
        if seen.state == "succeeded":
            return decode_result(seen.result, self._returns(seen.task))
        if seen.state == "cancelled":
            raise JobCancelled(id, seen.task, seen.error, seen.retried_as)
        if seen.state == "expired":
            raise JobExpired(id, seen.task, seen.error, seen.retried_as)
        raise JobFailed(id, seen.task, seen.error, seen.retried_as, seen.attempt, seen.traceback)

    def _returns(self, task: str) -> Any:
        # By the task that stands in the row: a unique key may have found a job of another one.
        known = self._home.registry.get(task)
        signature: Signature | None = None if known is None else known.signature
        return Any if signature is None else signature.returns


def _progress(id: int, seen: Seen | None) -> Progress | None:
    if seen is None:
        raise ResultUnavailable(id)
    return None if seen.progress is None else Progress.of(json.loads(seen.progress))


def _seconds(timeout: Any) -> float | None:
    if timeout is None:
        return None
    if not isinstance(timeout, dt.timedelta):
        raise ConfigurationError(f"timeout is a timedelta or None, not {timeout!r}")
    return timeout.total_seconds()
