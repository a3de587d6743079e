"""Questions about limits: what is set and declared, what is in force for a name, and what runs and waits under it."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass

from leasequeue.db.limits import scope
from leasequeue.limit import Limit
from leasequeue.ops.asking import Desk, moment
from leasequeue.ops.limits import NO_BOUND

LIMITS_MAX = 2_000
COUNT_CAP = 100_000


@dataclass(frozen=True, slots=True)
class LimitRow:
    """A limit as it is written.

    Attributes:
        declared: by the code of ``app``; otherwise an operator set it.
        in_force: nothing of the same name stands before it. Of a value that is None nothing is said.
    """

    name: str
    declared: bool
    running: int | None
    rate: int | None
    rate_seconds: float | None
    app: str | None
    deployed_at: dt.datetime | None
    updated_at: dt.datetime | None
    updated_by: str | None
    in_force: bool = True

    @property
    def limit(self) -> Limit:
        return Limit(self.running, self.rate, self.rate_seconds)

    @property
    def source(self) -> str:
        """Where it comes from, in words."""
        return f"the code of {self.app}" if self.declared else f"an operator ({self.updated_by or 'not named'})"


@dataclass(frozen=True, slots=True)
class Rule:
    """What is in force for a name, and which row says so; None: no row says anything."""

    limit: Limit
    running_from: LimitRow | None
    rate_from: LimitRow | None

    @property
    def is_none(self) -> bool:
        return self.running_from is None and self.rate_from is None


@dataclass(frozen=True, slots=True)
class LimitDetail:
    """One name.

    Attributes:
        about: ``key``, ``prefix``, ``task`` or ``queue``.
        rows: what is written for the name, and for the first part of it.
        running, waiting: jobs that run, and that wait, under a gate that the name is about.
        capped: which of the two numbers are only "at least".
        started: starts within the window of the rate; None where there is no rate. Of a prefix there is no such number.
        jobs_own: the limit that the job at the head of the key, or one that runs, brought along; of an exact key alone.
    """

    name: str
    about: str
    rule: Rule
    rows: tuple[LimitRow, ...]
    running: int
    waiting: int
    capped: tuple[str, ...]
    started: int | None
    jobs_own: Limit | None
    at: dt.datetime | None


def read_limits(desk: Desk, names: Sequence[str] | None = None) -> tuple[LimitRow, ...]:
    """All limits that are set or declared, by name, at most ``LIMITS_MAX``; or those of some names."""
    rows = desk.ask("limits", {"names": None if names is None else list(names), "limit": LIMITS_MAX})
    found = [
        LimitRow(row[0], row[1], row[2], row[3], row[4], row[5], moment(row[6]), moment(row[7]), row[8], row[9])
        for row in rows
    ]
    return tuple(sorted(found, key=lambda row: (row.name, row.declared)))


def in_force(rows: Sequence[LimitRow], name: str) -> Rule:
    """What these rows say for a name, as the gate reads them: see :mod:`leasequeue.ops.limits`. The jobs' own is not in it."""
    ranked = sorted(
        (row for row in rows if row.name in (name, name.partition(":")[0])),
        key=lambda row: (-len(row.name), row.declared),
    )
    running = next((row for row in ranked if row.running is not None), None)
    rate = next((row for row in ranked if row.rate is not None), None)
    return Rule(
        Limit(
            running.running if running else None, rate.rate if rate else None, rate.rate_seconds if rate else None
        ),
        running,
        rate,
    )  # fmt: skip


def show_limit(desk: Desk, name: str) -> LimitDetail:
    """What is in force for a name, and what runs and waits under it. A name that nothing limits is answered too."""
    about, word = scope(name)
    rows = read_limits(desk, [name, name.partition(":")[0]])
    rule = in_force(rows, name)
    exact = name if about == "key" else None
    words = {"exact": exact, "name": name, "about": about, "word": word, "cap": COUNT_CAP}
    counts = {state: (count, looked) for state, count, looked in desk.ask("limit_counts", words)}
    own = None
    if about in ("key", "task", "queue"):
        own = next((Limit(*row) for row in desk.ask("limit_own", {"key": name})), None)
    rate_seconds = rule.limit.rate_seconds or (own.rate_seconds if own else None)
    spent = None
    if rate_seconds is not None and about != "prefix":
        spent = desk.ask("limit_spent", {"name": name, "seconds": rate_seconds})[0][0]
    (running, looked), (waiting, looked_waiting) = counts.get("l", (0, 0)), counts.get("g", (0, 0))
    capped = [what for what, n in (("running", looked), ("waiting", looked_waiting)) if n > COUNT_CAP]
    at = moment(desk.ask("now")[0][0])
    return LimitDetail(name, about, rule, rows, running, waiting, tuple(capped), spent, own, at)


def say_limit(limit: Limit) -> str:
    """In words, as the command line shows it."""
    parts = []
    if limit.running is not None:
        parts.append({0: "none runs", NO_BOUND: "any number at once"}.get(limit.running, f"{limit.running:,} at once"))
    if limit.rate is not None:
        parts.append(f"{limit.rate:,} in any {limit.rate_seconds:g} s")
    return ", ".join(parts) or "no limit"
