"""Questions about schedules: what is due when, what ran, and what somebody should look at. Plain data comes out."""

from __future__ import annotations

import datetime as dt
import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from leasequeue.cron import Spec
from leasequeue.errors import ConfigurationError, ScheduleRefused
from leasequeue.ops.asking import Desk, moment
from leasequeue.ops.json_text import from_json

LIMIT = 5000
TICKS_SHOWN = 20
OVERDUE_SECONDS = 10.0
AHEAD_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class ScheduleRow:
    """A schedule, by its row and its ledger.

    Attributes:
        when: the spec in words; what stands there where it cannot be read.
        state: ``live``, ``paused``, ``ended`` (no due time is left), ``overdue``, ``vanished`` (no live worker registers it or
            knows its task) or ``broken`` (its spec cannot be read).
        problem: a sentence, where somebody should look at it.
        last_fired_at: the last due time that ran; ``last_started_at`` and ``last_succeeded_at`` are those of its jobs.
        late_seconds: the greatest lateness of the last runs, from the due time to the job.
        missed: due times of the last day that did not run.
        decorated: it stands in the code.
        served: a live worker registers it, or knows its task where it was added at run time.
    """

    name: str
    state: str
    when: str
    task: str
    queue: str
    next_at: dt.datetime | None
    last_fired_at: dt.datetime | None
    last_started_at: dt.datetime | None
    last_succeeded_at: dt.datetime | None
    late_seconds: float | None
    missed: int
    catch_up: str
    overlap: str
    version: int
    decorated: bool
    release: str | None
    deployed_at: dt.datetime | None
    paused_at: dt.datetime | None
    args: Any
    priority: int
    job_id: int | None
    served: bool
    at: dt.datetime | None
    problem: str | None


@dataclass(frozen=True, slots=True)
class Tick:
    """A row of the ledger.

    Attributes:
        job: what the job's row says: a state, or how it ended; None where there is no row (any more).
        late_seconds: from the due time to the decision.
    """

    due_at: dt.datetime | None
    outcome: str
    job_id: int | None
    job: str | None
    reason: str | None
    decided_at: dt.datetime | None
    decided_by: str | None
    late_seconds: float


@dataclass(frozen=True, slots=True)
class ScheduleDetail:
    """One schedule; ``ticks`` newest first."""

    row: ScheduleRow
    ticks: tuple[Tick, ...]


def list_schedules(
    desk: Desk, name: str | None = None, *, bound_seconds: float | None = None
) -> tuple[ScheduleRow, ...]:
    """All schedules by name, at most ``LIMIT``; the overdue ones are never among those that are left out."""
    rows = desk.ask("schedules", {"name": name, "limit": LIMIT}, bound_seconds=bound_seconds)
    return tuple(sorted(map(_row, rows), key=lambda row: row.name))


def show_schedule(desk: Desk, name: str, limit: int = TICKS_SHOWN) -> ScheduleDetail:
    """One schedule, with the last rows of its ledger.

    Raises:
        ScheduleRefused: there is none of that name.
    """
    rows = list_schedules(desk, name)
    if not rows:
        raise ScheduleRefused(name, "there is none of that name; `leasequeue schedules` lists them")
    return ScheduleDetail(rows[0], tuple(_tick(row) for row in desk.ask("ticks", {"name": name, "limit": limit})))


_STATES = {"r": "ready", "l": "leased", "q": "suspect", "g": "waiting", "b": "waiting"}


def _tick(row: tuple[Any, ...]) -> Tick:
    due, outcome, job_id, reason, decided, by, ended, state = row
    job = ended or (_STATES.get(state, state) if state else None)
    return Tick(moment(due), outcome, job_id, job, reason, moment(decided), by, decided - due)


def _row(row: tuple[Any, ...]) -> ScheduleRow:
    (name, task, queue, text, catch_up, overlap, version, decorated, release, deployed, next_at, fired, paused, started,
     succeeded, late, missed, served, now, args, priority, job_id) = row  # fmt: skip
    when, broken, expected = text[:80], None, None
    here = moment(now)
    assert here is not None
    try:
        spec = Spec.from_json(from_json(text))
        when = spec.describe()
        expected = spec.after(here)
    except ConfigurationError as error:
        broken = str(error)
    state, problem = "live", None
    overdue = next_at is not None and now - next_at > OVERDUE_SECONDS
    if broken is not None:
        state, problem = "broken", f"its times cannot be read, so it does not run: {broken}"
    elif paused is not None:
        state = "paused"
    elif not served and (next_at is not None or expected is not None):
        what = "registers it" if decorated else f"knows its task {task!r}"
        state = "vanished"
        problem = (
            f"no live worker {what}, so it does not run: bring it back, or `leasequeue schedules remove {word(name)}`"
        )
    elif next_at is None and expected is None:
        state = "ended"
    elif overdue:
        state = "overdue"
        problem = (
            f"it is due since {now - next_at:,.0f} s and was not fired: no supervisor is running, or its row is locked by "
            f"another transaction"
        )
    elif next_at is not None and expected is not None and next_at - expected.timestamp() > AHEAD_SECONDS:
        problem = (
            f"it is next due {next_at - expected.timestamp():,.0f} s later than its times say: the database's clock was set "
            f"back, and what was due in between has run already; `leasequeue schedules run {word(name)}` runs it now"
        )
    return ScheduleRow(
        name, state, when, task, queue, moment(next_at), moment(fired), moment(started), moment(succeeded), late, missed,
        catch_up, overlap, version, decorated, release, moment(deployed), moment(paused), from_json(args), priority, job_id,
        served, here, problem,
    )  # fmt: skip


def word(name: str) -> str:
    """A name as a shell and our commands take it for one, whatever it is made of."""
    return ("-- " if name.startswith("-") else "") + shlex.quote(name)


def problems(rows: Iterable[ScheduleRow]) -> list[tuple[str, str]]:
    """Name and sentence of each schedule that somebody should look at."""
    return [(row.name, f"schedule {row.name!r}: {row.problem}") for row in rows if row.problem]
