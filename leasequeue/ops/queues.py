"""Queues: pausing and resuming them, and what each of them holds."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from typing import Any

from leasequeue import naming
from leasequeue.db.queues import queue_statements
from leasequeue.db.statement import Program, Target
from leasequeue.errors import ConfigurationError
from leasequeue.moment import moment, say
from leasequeue.ops.asking import Desk
from leasequeue.ops.attention import Attention
from leasequeue.ops.bounds import LimitRow, in_force, read_limits, say_limit
from leasequeue.ops.status import Queue, status

_SHOWN = ("unserved", "expired_leases", "orphans", "wakes", "not_read")


@dataclass(frozen=True, slots=True)
class QueueRow:
    """A queue with the limit on all of its jobs; None: there is none."""

    queue: Queue
    limit: str | None


@dataclass(frozen=True, slots=True)
class Queues:
    """The answer, with what somebody should look at.

    Attributes:
        capped: there are more queues than are shown.
        at: the database's clock.
    """

    rows: tuple[QueueRow, ...]
    capped: bool
    at: dt.datetime | None
    warnings: tuple[Attention, ...]


def list_queues(desk: Desk) -> Queues:
    """Every queue that has live jobs, is served, paused or limited. Bounded as :func:`leasequeue.ops.status.status` is."""
    found = status(desk)
    rows = read_limits(desk)
    there = {queue.name: queue for queue in found.queues}
    named = {row.name.removeprefix("queue:") for row in rows if row.name.startswith("queue:")}
    queues = [there.get(name) or Queue(name) for name in sorted({*there, *named})]
    return Queues(
        tuple(QueueRow(queue, _limit(rows, queue.name)) for queue in queues),
        found.queues_capped,
        found.at,
        tuple(each for each in found.warnings if each.kind in _SHOWN),
    )


def _limit(rows: tuple[LimitRow, ...], queue: str) -> str | None:
    rule = in_force(rows, f"queue:{queue}")
    return None if rule.is_none else say_limit(rule.limit)


def pause(
    target: Target,
    schema: str,
    name: str,
    by: str,
    *,
    resume_at: Any = None,
    seconds: float | None = None,
) -> Program[tuple[bool, dt.datetime | None]]:
    """Pause a queue until a time, for some seconds by the database's clock, or (both None) until it is resumed.

    Returns:
        Whether it ran until now, and when it is resumed by itself.

    Raises:
        ConfigurationError: the time has no zone or is over already, or the name cannot be one.
    """
    naming.check("a queue's name", name)
    if resume_at is not None and (not isinstance(resume_at, dt.datetime) or resume_at.utcoffset() is None):
        raise ConfigurationError(
            f"queue {name!r}: resume_at is a timezone-aware datetime, not {resume_at!r}; "
            f"e.g. datetime.now(timezone.utc) + timedelta(hours=1)"
        )
    words = {"name": name, "by": by, "resume_at": resume_at, "seconds": seconds}
    rows = yield queue_statements(schema).pause, words
    if not rows:
        raise ConfigurationError(
            f"queue {name!r} is not paused: {say(resume_at)} is over already by the database's clock"
        )
    return bool(rows[0][0]), moment(rows[0][1])


def resume(target: Target, schema: str, name: str, by: str) -> Program[bool]:
    """Resume a queue; False where it was not paused."""
    rows = yield queue_statements(schema).resume, {"name": name, "by": by}
    return bool(rows and rows[0][0])
