"""One attempt, wherever it runs (a thread, the event loop, a child process): what goes in, and what its end means.

A *verdict* is what the end of a handler means by itself; where the job was told to stop meanwhile, :func:`settle` has the
last word::

    returned ──────────────> SUCCEEDED                 (told to stop, and it had looked: as if it had raised)
    raised   Snooze ───────> SNOOZED
             Cancel ───────> CANCELLED
             Fail ─────────> FAILED_FOR_GOOD
             Retry, others > FAILED, or FAILED_FOR_GOOD: no attempt left, or the task's ``retry`` says no
    told to stop, and raised: CANCELLED, UNSTARTED (shutdown), LOST, or a failure (timeout)
    completed by its own transaction: COMPLETED_BY_CALLER, and the verdict only if that transaction did not commit
"""

from __future__ import annotations

import datetime as dt
import json
import traceback
from typing import TYPE_CHECKING, Any, NamedTuple

from leasequeue.codec import encode_result, safe_text
from leasequeue.errors import DoesNotBind
from leasequeue.raising import Cancel, Fail, JobControl, Retry, Snooze
from leasequeue.worker.hand import Claimed, Ended, Failure, Outcome

if TYPE_CHECKING:
    from leasequeue.task import Task

TEXT_LIMIT = 20_000
"""Characters kept of a message or a traceback; what is longer is cut in the middle."""

_STOPPED = {
    "cancelled": Outcome.CANCELLED,
    "shutdown": Outcome.UNSTARTED,
    "lost": Outcome.LOST,
}


class Verdict(NamedTuple):
    """What the end of a handler means by itself.

    ``delay_seconds`` and ``until``: when it comes again; both None: after the default wait.
    """

    outcome: Outcome
    result: str | None = None
    failure: Failure | None = None
    delay_seconds: float | None = None
    until: dt.datetime | None = None


class Tries(NamedTuple):
    """The number of this attempt, those that died with their process not counted, and of the last one."""

    spent: int
    allowed: int

    @classmethod
    def of(cls, job: Claimed) -> Tries:
        allowed = job.max_attempts or (job.task.max_attempts if job.task is not None else 1)
        return cls(job.attempt - job.abandoned, allowed)


def decode(task: Task[..., Any], text: str) -> dict[str, Any]:
    """The arguments of a job, by way of the task's ``upgrade`` where they do not bind."""
    try:
        return task.signature.decode(text)
    except DoesNotBind:
        if task.upgrade is None:
            raise
        return task.signature.decode(json.dumps(task.upgrade(json.loads(text))))


# Verdicts


def returned(task: Task[..., Any], tries: Tries, value: object, seconds: float) -> Verdict:
    """The handler has returned."""
    if value is None:
        return Verdict(Outcome.SUCCEEDED)
    try:
        return Verdict(Outcome.SUCCEEDED, encode_result(value))
    except Exception as error:  # noqa: BLE001  # an encoder of the application may raise anything
        return raised(task, tries, error, seconds)


def raised(task: Task[..., Any] | None, tries: Tries, error: BaseException, seconds: float) -> Verdict:
    """The handler, or what is around it, has raised.

    Args:
        seconds: how long the attempt took; for the task's strategies.
    """
    control = control_of(error)
    if isinstance(control, Snooze):
        return Verdict(Outcome.SNOOZED, None, _said(control), control.for_seconds, control.until)
    if isinstance(control, Cancel):
        return Verdict(Outcome.CANCELLED, None, _said(control)._replace(type="Cancelled"))
    if isinstance(control, Fail):
        return Verdict(Outcome.FAILED_FOR_GOOD, None, _said(control))
    failure = describe(error) if control is None else _said(control)
    if tries.spent >= tries.allowed:
        return Verdict(Outcome.FAILED_FOR_GOOD, None, failure)
    delay = control.after_seconds if isinstance(control, Retry) else None
    if task is not None and delay is None and (task.conduct.wait is not None or task.conduct.retry is not None):
        from leasequeue import retry  # tenacity is loaded where it is used

        asked = retry.state(max(1, tries.spent), error, seconds, task.function)
        # A handler that says Retry has said more than the task's `retry` knows.
        asks = task.conduct.retry if control is None else None
        if asks is not None and not retry.wants_retry(task.name, asks, asked):
            return Verdict(Outcome.FAILED_FOR_GOOD, None, failure)
        if task.conduct.wait is not None:
            delay = retry.wait_seconds(task.name, task.conduct.wait, asked)
    return Verdict(Outcome.FAILED, None, failure, delay)


def overdue(job: Claimed, trace: str | None = None, *, how: str = "") -> Verdict:
    """The attempt has passed its timeout."""
    task = job.task
    assert task is not None
    seconds = task.timeout.total_seconds() if task.timeout is not None else 0.0
    error = TimeoutError(f"ran longer than its timeout of {seconds:g} s{how}")
    verdict = raised(task, Tries.of(job), error, seconds)
    return verdict._replace(failure=Failure("TimeoutError", str(error), trace))


def settle(
    job: Claimed, verdict: Verdict, *, has_raised: bool, stopped_early: bool, completed: bool, killed: bool = False
) -> Ended:
    """The end of a job whose handler has ended, with regard to what it was told meanwhile.

    Args:
        killed: its child process was killed, since it went on.
    """
    reason = job.stop_reason
    stopped = reason is not None and (has_raised or (stopped_early and not completed))
    if reason == "lost" and not completed:
        return Ended(job, Outcome.LOST)
    if stopped:
        assert reason is not None
        # It may have left its work undone; at least once means that it runs again.
        trace = verdict.failure.traceback if verdict.failure is not None else None
        if reason == "timeout":
            verdict = overdue(job, trace, how="; its process was killed" if killed else "")
        elif reason == "cancelled":
            how = "on request, while it ran; " + ("its process was killed" if killed else "it has stopped")
            verdict = Verdict(Outcome.CANCELLED, None, Failure("Cancelled", how, trace))
        else:
            verdict = Verdict(_STOPPED[reason], None, verdict.failure)
    if completed:
        return Ended(job, Outcome.COMPLETED_BY_CALLER, None, verdict.failure, verdict.delay_seconds, verdict.until,
                     verdict.outcome if has_raised else None)  # fmt: skip
    return Ended(job, *verdict)


def unstarted(job: Claimed) -> Ended:
    """The end of a job that was told to stop before its handler began."""
    assert job.stop_reason is not None
    if job.stop_reason == "cancelled":
        return Ended(job, Outcome.CANCELLED, None, Failure("Cancelled", "on request, before this attempt began", None))
    return Ended(job, _STOPPED.get(job.stop_reason, Outcome.UNSTARTED))


# Texts


def control_of(error: BaseException) -> JobControl | None:
    """The word of the handler about its job, also where a task group carries it as its only error."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error if isinstance(error, JobControl) else None


def _said(control: JobControl) -> Failure:
    reason = control.reason if control.reason is not None else "as the handler said, without a reason"
    return Failure(type(control).__name__, safe_text(str(reason), TEXT_LIMIT), _trace(control))


def describe(error: BaseException) -> Failure:
    """What is written of an exception, safe for the database: no NUL, no lone surrogates, long texts cut."""
    kind = type(error)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    try:
        message = str(error)
    except Exception:  # noqa: BLE001  # __str__ is the application's
        message = "(its message cannot be shown: str() of it failed)"
    return Failure(safe_text(name, 500), safe_text(message, TEXT_LIMIT), _trace(error))


def _trace(error: BaseException) -> str:
    try:
        text = "".join(traceback.format_exception(error))
    except Exception:  # noqa: BLE001  # as above
        text = "(the traceback cannot be shown)"
    return safe_text(text, TEXT_LIMIT)
