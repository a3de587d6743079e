"""Questions about single jobs: lists, and everything that is known of one. Plain data comes out, no words."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass, field
from typing import Any

from leasequeue.db.inspect import PREVIEW_CHARS
from leasequeue.errors import ConfigurationError, JobNotFound
from leasequeue.job import Progress
from leasequeue.ops.asking import Desk, moment
from leasequeue.ops.json_text import from_json
from leasequeue.ops.status import QUEUES_MAX, queue_names

LIVE_STATES = ("ready", "scheduled", "leased", "suspect", "waiting")
OUTCOMES = ("succeeded", "failed", "cancelled", "expired")
STATES = (*LIVE_STATES, *OUTCOMES)

LIMIT_MAX = 1_000
WINDOW = 20_000
"""How many rows are looked through where no index serves a filter."""
FAILURES_SHOWN = 20


@dataclass(frozen=True, slots=True)
class JobRow:
    """A job in a list. What does not apply to its state is None.

    Attributes:
        state: one of ``STATES``.
        args_preview: the beginning of its arguments as JSON text.
        worker: ``host:pid`` of the process that holds it, where that has a row.
        started_at: of its last attempt.
        progress: how far it said it is; of one that failed or was cancelled, how far it was.
    """

    id: int
    state: str
    queue: str
    task: str
    args_preview: str
    priority: int | None
    attempt: int
    max_attempts: int | None
    abandoned: int
    created_at: dt.datetime | None
    available_at: dt.datetime | None
    started_at: dt.datetime | None
    expires_at: dt.datetime | None
    finished_at: dt.datetime | None
    worker: str | None
    error_preview: str | None
    progress: Progress | None = None

    @property
    def is_finished(self) -> bool:
        return self.state in OUTCOMES


@dataclass(frozen=True, slots=True)
class JobList:
    """The jobs found, and whether the search saw everything that could match.

    Attributes:
        looked_at: rows looked through.
        complete: False: there may be more, beyond the limit or beyond the rows looked through.
    """

    jobs: tuple[JobRow, ...]
    looked_at: int
    complete: bool


@dataclass(frozen=True, slots=True)
class Failure:
    """One failed attempt."""

    attempt: int
    error_type: str
    message: str
    traceback: str | None
    worker: str | None
    started_at: dt.datetime | None
    failed_at: dt.datetime | None
    retry_at: dt.datetime | None


@dataclass(frozen=True, slots=True)
class JobDetail:
    """Everything that is known of one job.

    Attributes:
        at: the database's clock.
        workflow: of which it is a step; None for a job that is none, or was replaced by a retry.
        args, result, meta: the JSON value; its text where Python refuses to read it.
        put_back: how often workers that do not know its task or arguments put it back.
        retry_of, retried_as: ids of the job that this one repeats, and of the one that repeats it.
        start_by: by when it must have started, or it expires; None where it may start at any time.
        failures: the last ones, newest first.
    """

    row: JobRow
    at: dt.datetime | None
    args: Any
    meta: dict[str, Any]
    unique_key: str | None = None
    limit_key: str | None = None
    holder: str | None = None
    term: int | None = None
    cancel_requested_at: dt.datetime | None = None
    result: Any = None
    error: str | None = None
    start_by: dt.datetime | None = None
    workflow: int | None = None
    failures: tuple[Failure, ...] = field(default=())

    @property
    def put_back(self) -> int:
        return _int(self.meta.get("put_back")) or 0

    @property
    def retry_of(self) -> int | None:
        return _int(self.meta.get("retry_of"))

    @property
    def step(self) -> str | None:
        """The name of the step that it is, where it is part of a workflow."""
        found = self.meta.get("step")
        return found if isinstance(found, str) and self.workflow is not None else None

    @property
    def retried_as(self) -> int | None:
        return _int(self.meta.get("retried_as"))


def list_jobs(
    desk: Desk, *, state: str | None = None, queue: str | None = None, task: str | None = None, limit: int = 50
) -> JobList:
    """List jobs in the order of an index: ready ones as they will be claimed, scheduled ones as they come due, the others
    newest first.

    Args:
        state: one of ``STATES``; None means every live job.
        queue, task: only these; None means any.
        limit: 1 to ``LIMIT_MAX``.

    Raises:
        ConfigurationError: no such state or limit.
        DatabaseUnavailable: see ``Link.run``.
    """
    if state is not None and state not in STATES:
        raise ConfigurationError(f"there is no state {state!r}; there are {', '.join(STATES)}")
    if not 1 <= limit <= LIMIT_MAX:
        raise ConfigurationError(f"a list has 1 to {LIMIT_MAX} jobs, not {limit}")
    in_lanes = state in ("ready", "scheduled")
    has_index = state in ("ready", "scheduled", "leased", "suspect", "failed", "cancelled", "expired", None)
    filtered = task is not None or (queue is not None and not in_lanes) or not has_index
    window = max(limit, WINDOW) if filtered else limit
    params: dict[str, object] = {"queue": queue, "task": task, "limit": limit, "window": window}
    if in_lanes:
        queues = [queue] if queue is not None else queue_names(desk, QUEUES_MAX)
        window = max(limit, window // max(1, len(queues)))
        params |= {"queues": queues, "window": window}
    rows = desk.ask(_statement(state), params | {"outcome": state})
    jobs = tuple(job_row(row[1:]) for row in rows if row[1] is not None)
    looked_at = rows[0][0]
    return JobList(jobs, looked_at, looked_at < window and len(jobs) < limit)


def _statement(state: str | None) -> str:
    if state is None:
        return "list_live"
    return "list_unhappy" if state in ("failed", "cancelled", "expired") else f"list_{state}"


def show_job(desk: Desk, id: int) -> JobDetail:
    """Everything about one job, live or finished.

    Raises:
        JobNotFound: there is none with that id, or no more.
        DatabaseUnavailable: see ``Link.run``.
    """
    # In this order: a job that ends in between has left the live rows and is found among the finished ones.
    rows = desk.ask("job", {"id": id}) or desk.ask("finished_job", {"id": id})
    if not rows:
        raise JobNotFound(id)
    row = rows[0]
    args, meta, unique_key, limit_key, holder, term, cancel, result, now = row[17:26]
    steps = desk.ask("workflow_step_of_job", {"id": id})
    failures = desk.ask("job_failures", {"id": id, "limit": FAILURES_SHOWN})
    decoded = from_json(meta)
    return JobDetail(
        row=job_row(row),
        at=moment(now),
        args=from_json(args),
        meta=decoded if isinstance(decoded, dict) else {},
        unique_key=unique_key,
        limit_key=limit_key,
        holder=holder,
        term=term,
        cancel_requested_at=moment(cancel),
        result=from_json(result),
        error=row[26],
        start_by=moment(row[27]) if len(row) > 27 else None,
        workflow=steps[0][0] if steps else None,
        failures=tuple(
            Failure(f[0], f[1], f[2], f[3], f[4], moment(f[5]), moment(f[6]), moment(f[7])) for f in failures
        ),
    )


def job_row(row: tuple[Any, ...]) -> JobRow:
    """From the columns that the statements of lists and of single jobs share."""
    return JobRow(
        id=row[0],
        state=row[1],
        queue=row[2],
        task=row[3],
        args_preview=_cut(row[4]) or "",
        priority=row[5],
        attempt=row[6],
        max_attempts=row[7],
        abandoned=row[8],
        created_at=moment(row[9]),
        available_at=moment(row[10]),
        started_at=moment(row[11]),
        expires_at=moment(row[12]),
        finished_at=moment(row[13]),
        worker=row[14],
        error_preview=_cut(row[15]),
        progress=Progress.of(from_json(row[16])),
    )


def _cut(text: str | None) -> str | None:
    return text if text is None or len(text) <= PREVIEW_CHARS else text[: PREVIEW_CHARS - 3] + "..."


def _int(value: object) -> int | None:
    return value if isinstance(value, int) else None
