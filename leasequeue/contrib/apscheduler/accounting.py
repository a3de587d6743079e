"""What a new leader owes: the due times of a job that have no row in the ledger, and what becomes of each. Pure.

The jobs of APScheduler live in the memory of each process, so what was due is computed again from the trigger, from the
rows of the ledger on. Where the phase of a trigger follows its last run (an interval), it follows the rows.
"""

from __future__ import annotations

import datetime as dt
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from leasequeue.db.gate import Tick
from leasequeue.errors import ConfigurationError

OWED_MAX = 10_000
"""The most due times of one job that are accounted for one by one."""

_MICROSECOND = dt.timedelta(microseconds=1)


class Trigger(Protocol):
    """A trigger of APScheduler."""

    def get_next_fire_time(self, previous_fire_time: dt.datetime | None, now: dt.datetime) -> Any: ...


@dataclass(frozen=True, slots=True)
class Owed:
    """The due times that nobody settled.

    Attributes:
        times: up to now, ascending, in UTC.
        is_last: the last of them is the last due time before now: none after it is settled.
        next_at: the first one after now, as the trigger gave it; None where there is none.
        beyond: the first of those that are too many to be walked, or None.
    """

    times: tuple[dt.datetime, ...]
    is_last: bool
    next_at: dt.datetime | None
    beyond: dt.datetime | None = None


@dataclass(frozen=True, slots=True)
class Verdict:
    """What becomes of them: rows to be written now, and due times to be run, each of which writes its own row."""

    ticks: tuple[Tick, ...]
    runs: tuple[dt.datetime, ...]


def after(trigger: Trigger, previous: dt.datetime | None, now: dt.datetime) -> dt.datetime | None:
    """The due time after ``previous``, or the first one from ``now`` on.

    Raises:
        ConfigurationError: the trigger stands still.
    """
    if previous is None:
        first: dt.datetime | None = trigger.get_next_fire_time(None, now)
        return first
    # In its own zone, for triggers that count calendar days; and a clock that is behind must not make it step back.
    here = previous.astimezone(getattr(trigger, "timezone", None) or dt.UTC)
    found: dt.datetime | None = trigger.get_next_fire_time(here, max(now, here + _MICROSECOND))
    if found is not None and found <= previous:
        raise ConfigurationError(f"{trigger!r} gives {found} as the due time after {previous}: it must be a later one")
    return found


def owed(
    trigger: Trigger,
    first: dt.datetime | None,
    settled: Sequence[dt.datetime],
    now: dt.datetime,
    most: int = OWED_MAX,
) -> Owed:
    """Walk from ``first`` to ``now``, and leave out what is settled.

    Args:
        first: the due time to begin with, settled or not; None: there is none.
        settled: ascending. The walk goes on from each of them, so one that is off the trigger's phase moves the phase.
    """
    left = deque(settled)
    times: list[dt.datetime] = []
    last: dt.datetime | None = None
    at = first
    while True:
        while left and (at is None or left[0] <= at):
            last = left.popleft()
            at = after(trigger, last, now)
        if at is None or at > now:
            return Owed(tuple(times), bool(times) and (last is None or times[-1] > last), at)
        if len(times) == most:
            return Owed(tuple(times), True, after(trigger, None, now), at.astimezone(dt.UTC))
        times.append(at.astimezone(dt.UTC))
        at = after(trigger, at, now)


def judge(
    found: Owed, now: dt.datetime, catch_up: str, *, paused: bool, grace_seconds: float | None, coalesce: bool
) -> Verdict:
    """Decide about them.

    Args:
        catch_up: ``latest``, ``all`` or ``none``, as for a schedule; with ``none`` the job's own ``misfire_grace_time``
            and ``coalesce`` decide, as if this process had led all the time.
    """
    times = found.times

    def said(at: dt.datetime) -> str:
        return f"{max(0.0, (now - at).total_seconds()):.1f} s late"

    def in_grace(at: dt.datetime) -> bool:
        return grace_seconds is None or (now - at).total_seconds() <= grace_seconds

    if paused:
        runs: list[dt.datetime] = []
    elif catch_up == "all":
        runs = list(times)
    elif catch_up == "latest":
        runs = [times[-1]] if found.is_last else []
    else:
        runs = [at for at in times if in_grace(at)]
        if coalesce:
            runs = runs[-1:] if found.is_last else []
    ticks = []
    for at in times:
        if at in runs:
            continue
        if paused:
            ticks.append(Tick(at, "paused", "the job was paused in the process that leads now"))
        elif runs and at < runs[-1] and (catch_up == "latest" or in_grace(at)):
            ticks.append(Tick(at, "coalesced", f"{said(at)}: the run of a later due time stands for it"))
        elif times and catch_up == "latest":
            ticks.append(Tick(at, "coalesced", f"{said(at)}: a later due time is settled already"))
        else:
            ticks.append(Tick(at, "missed", f"{said(at)}: nobody led, and catch_up is {catch_up!r}"))
    if found.beyond is not None:
        reason = f"this and all later ones up to {now:%Y-%m-%d %H:%M:%S}Z: more than {len(times)} had nobody who led"
        ticks.append(Tick(found.beyond, "missed", reason))
    return Verdict(tuple(ticks), tuple(runs))
