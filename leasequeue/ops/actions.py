"""What an operator does to single jobs. Each action says what it changed, or why it changed nothing."""

from __future__ import annotations

import datetime as dt
import shlex
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from leasequeue.db import admin
from leasequeue.db.connect import Link
from leasequeue.db.ends import CONTENDED
from leasequeue.db.urls import Settings
from leasequeue.errors import ActionRefused, DatabaseUnavailable, OutcomeUnknown
from leasequeue.ops.asking import Desk, moment
from leasequeue.ops.query import JobDetail, show_job

T = TypeVar("T")

LOCKED_SECONDS = 2.0
"""How long a row that somebody else has locked is tried again. A claim or a completion locks it for some milliseconds."""
_PAUSE_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class Done:
    """What an action changed.

    Attributes:
        id: the job that was named.
        change: ``made available``, ``enqueued again``, ``cancelled`` or ``asked to stop``.
        new_id: the new job of ``enqueued again``.
        queue: where it is, or was.
        message: a sentence for people.
    """

    id: int
    change: str
    new_id: int | None
    queue: str
    message: str


def retry(desk: Desk, id: int, *, again: bool = False) -> Done:
    """Run a job (again) as soon as possible.

    One that is scheduled, also for its next attempt, becomes ready. One that has failed, was cancelled or has expired is
    enqueued anew: with a new id, all its attempts, and links both ways. Its priority, max_attempts and limits are kept; its
    unique key, which another job may hold by now, and its deadline (``expires``) are not.

    Args:
        again: also if it was retried before; otherwise that is refused.

    Raises:
        ActionRefused: nothing was changed; the message says what the row says now.
        JobNotFound: there is no such job.
        OutcomeUnknown: the answer never came; the message says how to find out.
    """

    def attempt() -> Done | None:
        for _, was_due, queue in desk.ask("make_available", {"id": id}):
            due = moment(was_due)
            return Done(id, "made available", None, queue, f"job {id} is ready now; it was due at {_say(due)}")
        for new_id, queue in desk.ask("retry_finished", {"id": id, "again": again}):
            return Done(id, "enqueued again", new_id, queue, f"job {id} is enqueued again as job {new_id}")
        return None

    return _act(desk, id, "retry", attempt, _why_no_retry)


def cancel(desk: Desk, id: int, *, by: str = "an operator") -> Done:
    """Cancel a job.

    One that waits (or whose lease has expired) ends at once, as cancelled. One that runs is asked to stop: its worker
    learns it within some 100 ms where it listens for notifications, else with its next renewal, within a third of the ttl.
    The job has then ended as cancelled if it stopped, and as succeeded if its handler returned all the same.

    Args:
        by: who; it is written into the history.

    Raises:
        ActionRefused: nothing was changed; the message says what the row says now.
        JobNotFound: there is no such job.
        OutcomeUnknown: the answer never came; the message says how to find out.
    """

    def attempt() -> Done | None:
        for _, queue in desk.ask("cancel_waiting", {"id": id, "reason": f"cancelled by {by}"}):
            return Done(id, "cancelled", None, queue, f"job {id} is cancelled; it will not run")
        try:
            for row in desk.ask("cancel_joined", {"id": id, "reason": f"cancelled by {by}"}):
                if row[3]:
                    return Done(
                        id, "cancelled", None, row[2],
                        f"job {id} is cancelled; it will not run, nor will what comes after it and wants it to succeed",
                    )  # fmt: skip
        except CONTENDED:
            return None  # a step was added behind it, or a row behind it is locked: tried again
        for _, queue, _said in desk.ask("request_cancel", {"id": id, "by": by, "notify": True}):
            return Done(
                id, "asked to stop", None, queue,
                f"job {id} is running: its worker is asked to stop it, and learns that at once, or with its next renewal",
            )  # fmt: skip
        return None

    return _act(desk, id, "cancel", attempt, _why_no_cancel)


def ensure_schema(settings: Settings, schema: str) -> None:
    """Make the schema where it is missing, in a database of our own (``leasequeue dev``).

    Raises:
        DatabaseUnavailable: see ``Link``.
    """
    link = Link(settings, application_name="leasequeue dev")
    try:
        link.connect()
        link.run(admin.statements(schema)["create_schema"], {})
    finally:
        link.close()


def _act(
    desk: Desk,
    id: int,
    action: str,
    attempt: Callable[[], Done | None],
    why_not: Callable[[JobDetail], str | None],
) -> Done:
    """Try until something was changed, or the row says why nothing can be, or it stays locked for too long."""
    deadline = time.monotonic() + LOCKED_SECONDS
    try:
        while True:
            done = attempt()
            if done is not None:
                return done
            now = show_job(desk, id)
            reason = why_not(now)
            if reason is None and time.monotonic() > deadline:
                reason = (
                    f"its row ({now.row.state}) has been locked by another transaction for {LOCKED_SECONDS:g} s: a handler "
                    f"that completes it in its own transaction, or a client that left one open (see pg_stat_activity)"
                )
            if reason is not None:
                raise ActionRefused(id, action, now.row.state, reason)
            time.sleep(_PAUSE_SECONDS)  # it was locked a moment ago: being claimed, renewed or ended
    except OutcomeUnknown as error:
        raise OutcomeUnknown(
            f"{error}; whether job {id} was changed is not known: see `leasequeue jobs show {id}`"
        ) from error
    except DatabaseUnavailable as error:
        raise DatabaseUnavailable(f"{error}; job {id} was not changed") from error


def _why_no_retry(job: JobDetail) -> str | None:
    row = job.row
    if row.state == "ready":
        return (
            f"it is ready already, since {_say(row.available_at)}; see `leasequeue status` for who serves {row.queue!r}"
        )
    if row.state == "leased":
        return (
            f"it runs, attempt {row.attempt}, on {row.worker or 'a worker without a row'} since {_say(row.started_at)}"
        )
    if row.state == "suspect":
        return "its process died while it ran; it is next to be run alone, as soon as a worker is free for it"
    if row.state == "waiting":
        return "it waits for a limit or for other jobs"
    if row.state == "succeeded":
        return f"it succeeded at {_say(row.finished_at)}; enqueue it anew where it is wanted twice"
    if job.step is not None:
        return (
            f"it is step {job.step!r} of workflow {job.workflow}, and others come after it: run "
            f"`leasequeue workflows retry {job.workflow} --from {shlex.quote(job.step)}`"
        )
    if job.retried_as is not None:
        return f"it was retried before, as job {job.retried_as}; say --again to enqueue it once more"
    return None


def _why_no_cancel(job: JobDetail) -> str | None:
    row = job.row
    if row.is_finished:
        return f"it has ended: {row.state} at {_say(row.finished_at)}"
    if row.state == "leased" and job.cancel_requested_at is not None:
        asked, until = _say(job.cancel_requested_at), _say(row.expires_at)
        return f"its worker was asked to stop at {asked}; its lease lasts until {until}"
    return None


def _say(at: dt.datetime | None) -> str:
    return "an unknown time" if at is None else at.strftime("%Y-%m-%d %H:%M:%SZ")
