"""What becomes of the due times of a schedule that are over: which run, which do not, and why. Pure.

Each ends in the ledger, once:

    fired       it runs, on time: at most a minute late
    caught_up   it runs, late
    coalesced   it does not run: the run of a later one stands for it
    missed      it does not run: ``catch_up`` says so
    paused      it does not run: the schedule was paused
    overlapped  it does not run: the job of an earlier one still lives, and ``overlap`` is ``skip`` (the database finds that)

``catch_up`` decides about those that nobody fired in time: ``latest``: the last one runs; ``all``: each runs; ``none``: none
runs but one that is on time. A bound, where there is one, takes from all of them what is later than that.
"""

from __future__ import annotations

import datetime as dt
import random
from dataclasses import dataclass

from leasequeue.cron import Spec

ON_TIME = dt.timedelta(seconds=60)
"""A due time that is handled within this is on time."""

BATCH = 500
"""How many due times are settled by one statement."""

CATCH_UP = ("latest", "all", "none")
OVERLAP = ("queue", "skip")


@dataclass(frozen=True, slots=True)
class Policy:
    """What a schedule's row says besides its times.

    Attributes:
        catch_up: ``latest``, ``all`` or ``none``.
        catch_up_seconds: what is later than this does not run; None: no bound (with ``none``: a minute).
        jitter_seconds: its job is available up to this long after the due time: how long is drawn by name and due time.
    """

    catch_up: str = "latest"
    catch_up_seconds: float | None = None
    jitter_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Due:
    """A due time, and what becomes of it."""

    at: dt.datetime
    outcome: str
    runs: bool
    reason: str | None = None
    delay_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Settled:
    """The due times that one statement settles, and the next one after them.

    Attributes:
        next_at: None where there is none any more.
        more: ``next_at`` is over as well.
    """

    dues: tuple[Due, ...]
    next_at: dt.datetime | None
    more: bool


def settle(
    name: str,
    spec: Spec,
    policy: Policy,
    next_at: dt.datetime,
    now: dt.datetime,
    *,
    paused: bool = False,
    batch: int = BATCH,
) -> Settled:
    """Settle what is due from ``next_at``, which is over, up to ``now``; at most ``batch`` due times, the oldest first."""
    times = [next_at, *spec.between(next_at, now, batch - 1)]
    after = spec.after(times[-1])
    more = after is not None and after <= now
    newest = not more  # the last of these is the last that is due
    bound = policy.catch_up_seconds
    if bound is None and policy.catch_up == "none":
        bound = ON_TIME.total_seconds()

    def late(at: dt.datetime) -> float:
        return max(0.0, (now - at).total_seconds())

    def runs(place: int, at: dt.datetime) -> bool:
        last = newest and place == len(times) - 1
        return (last or policy.catch_up == "all") and (bound is None or late(at) <= bound)

    dues = []
    last_runs = more or runs(len(times) - 1, times[-1])
    for place, at in enumerate(times):
        said = f"{late(at):.0f} s late"
        if paused:
            due = Due(at, "paused", False, "the schedule was paused")
        elif runs(place, at):
            on_time = late(at) <= ON_TIME.total_seconds()
            reason = None if on_time else f"{said}: nobody fired it in time"
            due = Due(at, "fired" if on_time else "caught_up", True, reason, _delay(name, at, policy.jitter_seconds))
        elif policy.catch_up == "latest" and last_runs:
            due = Due(at, "coalesced", False, f"{said}: a later due time stands for it")
        else:
            limit = "" if bound is None or policy.catch_up == "none" else f" within {bound:g} s"
            due = Due(at, "missed", False, f"{said}, and catch_up is {policy.catch_up!r}{limit}")
        dues.append(due)
    return Settled(tuple(dues), after, more)


def _delay(name: str, at: dt.datetime, jitter_seconds: float) -> float:
    # The same whoever fires it.
    return random.Random(f"{name} {at.timestamp()}").uniform(0.0, jitter_seconds) if jitter_seconds else 0.0  # noqa: S311
