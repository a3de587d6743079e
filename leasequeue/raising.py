"""What a handler raises to say how its job goes on, and what is raised in it when it is to stop. Pure.

    Exception
    └── JobControl             no error: the handler's own word about its job
        ├── Retry(after)       this attempt is spent; again after so long, if there is an attempt left
        ├── Snooze(until)      no attempt is spent; again then
        ├── Cancel(reason)     the job ends as cancelled
        └── Fail(reason)       the job has failed for good, whatever attempts are left
    BaseException
    └── JobInterrupted         raised by the worker in a thread whose job is cancelled, lost, or outlasts the shutdown
        └── JobTimeout         ... or has passed its timeout

The first four are no ``LeaseQueueError``: code that catches those means faults of the queue. They are ordinary exceptions
otherwise, so that ``with`` blocks roll back and ``except Exception`` in a handler sees them as it sees any other; whoever
catches everything and goes on has decided for himself.

The last two are no ``Exception``: they come at any line, out of code that did nothing wrong, and the usual ``except
Exception: log it and go on`` in a loop must not swallow them (as KeyboardInterrupt and asyncio's CancelledError).
"""

from __future__ import annotations

import datetime as dt
import math
from typing import Any

from leasequeue.errors import ConfigurationError

YEAR_SECONDS = 366 * 86_400.0
"""The longest that a job is put off by a retry, a strategy or a snooze."""


class JobControl(Exception):
    """How a job goes on, by its handler's own word.

    Args:
        reason: for people; it is kept with the attempt or in the history. None: none is given.
    """

    def __init__(self, reason: str | None = None) -> None:
        super().__init__(*([] if reason is None else [reason]))
        self.reason = reason


class Retry(JobControl):
    """Try again later: this attempt counts as failed, and ``max_attempts`` holds.

    Args:
        after: how long to wait, a timedelta or seconds, at most a year; it takes the place of the task's ``wait``. None: as
            the task's ``wait`` says.
        reason: kept with the attempt.

    Raises:
        ConfigurationError: ``after`` is negative, longer than a year, or no span of time.
    """

    def __init__(self, after: dt.timedelta | float | None = None, reason: str | None = None) -> None:
        super().__init__(reason)
        self.after_seconds = None if after is None else _seconds("Retry(after=...)", after)


class Snooze(JobControl):
    """Come again later: no attempt is spent, nothing counts as failed. ``snoozed`` in the row's ``meta`` counts them.

    Args:
        for_or_until: a timedelta or seconds from now, or a timezone-aware time (one in the past means now); at most a year.
        reason: written to the log.

    Raises:
        ConfigurationError: it is negative, more than a year away, or neither.
    """

    def __init__(self, for_or_until: dt.timedelta | float | dt.datetime, reason: str | None = None) -> None:
        super().__init__(reason)
        self.for_seconds = 0.0
        self.until: dt.datetime | None = None
        if isinstance(for_or_until, dt.datetime):
            self.until = _soon_enough(for_or_until)
        else:
            self.for_seconds = _seconds("Snooze(...)", for_or_until)


class Cancel(JobControl):
    """End this job as cancelled; it is not tried again."""


class Fail(JobControl):
    """End this job as failed, whatever attempts are left."""


class JobInterrupted(BaseException):
    """This thread's job is to stop: it was cancelled, its lease is lost, or the worker's shutdown timeout is over.

    Raised by the worker in the thread of a plain handler, at its next line of Python. Clean up and let it pass.
    """


class JobTimeout(JobInterrupted):
    """This thread's job has passed its timeout."""


def _seconds(what: str, value: Any) -> float:
    seconds = value.total_seconds() if isinstance(value, dt.timedelta) else value
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not math.isfinite(seconds) or seconds < 0:
        raise ConfigurationError(f"{what} takes a timedelta or seconds, 0 or more, not {value!r}")
    if seconds > YEAR_SECONDS:
        raise ConfigurationError(f"{what}: a job is put off by a year at most, not by {value!r}")
    return float(seconds)


def _soon_enough(until: dt.datetime) -> dt.datetime:
    if until.utcoffset() is None:
        raise ConfigurationError(
            f"Snooze(...) takes a timezone-aware time, not {until!r}; e.g. datetime.now(timezone.utc) + timedelta(hours=1)"
        )
    if (until - dt.datetime.now(dt.UTC)).total_seconds() > YEAR_SECONDS:
        raise ConfigurationError(f"Snooze(...): a job is put off by a year at most, not until {until!r}")
    return until
