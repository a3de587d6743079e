"""Every error that leasequeue raises, in one tree.

    LeaseQueueError
    ├── ConfigurationError         the LeaseQueue, a task or a connection is set up in a way that cannot work
    │   ├── DuplicateTask          two functions claim one task name
    │   ├── DuplicateSchedule      two schedules claim one name
    │   └── UnknownTask            a name that no registered task carries
    ├── InvalidArguments           the arguments of a call do not fit the task, or cannot be carried
    ├── Undecodable                a stored row cannot be turned back into arguments
    ├── DoesNotBind                stored arguments do not fit the signature here; another release may take them
    ├── ResultNotStorable          what a task returned cannot be carried as JSON
    ├── SchemaMismatch             the tables are missing, or of a version that this code cannot use
    ├── DatabaseUnavailable        the database cannot be reached, or did not answer in time
    │   └── OutcomeUnknown         a statement was sent and its answer never came: it may have committed
    ├── DuplicateJob               another job has the unique key
    ├── ActionRefused              what an operator asked for a job changed nothing; the row says why
    │   └── JobNotFound            there is no job with that id, or no more
    ├── ScheduleRefused            what was asked for a schedule changed nothing; the message says why
    ├── WorkflowRefused            what was asked for a workflow changed nothing; the message says why
    │   └── WorkflowChanged        a step was added at the moment of this completion: run the transaction again
    ├── LeaseRefused               somebody else holds the lease
    ├── LeaseNotTaken              an operator could not take a lease from its holder
    ├── LeaseLost                  this process no longer holds the row in its term
    ├── ProcessDied                the process that ran a job's attempt died
    └── NoResult                   a job has no result to give
        ├── JobFailed              it has failed for good
        ├── JobCancelled           it was cancelled
        ├── JobExpired             it was not started in time
        ├── ResultTimeout          it has not ended in the time that was given (a TimeoutError, too)
        └── ResultUnavailable      nobody can see it: not committed yet, or kept no more

Each message says what happened, what was found and what to do next; what a program needs is in attributes.
"""

from __future__ import annotations

import shlex
import signal


class LeaseQueueError(Exception):
    """The root of all errors of this package."""


class ConfigurationError(LeaseQueueError):
    """The LeaseQueue, a task or a connection is set up in a way that cannot work."""


class DuplicateTask(ConfigurationError):
    """Two functions claim the same task name (or alias).

    Args:
        name: the name both claim.
        first: where the first stands, as ``module.qualname``.
        second: where the second stands.
    """

    def __init__(self, name: str, first: str, second: str) -> None:
        super().__init__(
            f"two tasks are named {name!r}: {first} and {second}; "
            f'give one of them another name with @lq.task(name="...")'
        )
        self.name = name
        self.first = first
        self.second = second


class DuplicateSchedule(ConfigurationError):
    """Two schedules claim the same name.

    Args:
        name: the name both claim.
        found: what has it already.
    """

    def __init__(self, name: str, found: str) -> None:
        super().__init__(f"there is a schedule {name!r} already ({found}): give this one another name (name=...)")
        self.name = name
        self.found = found


class UnknownTask(ConfigurationError):
    """A name that no registered task carries, here and now; another release may well know it."""

    def __init__(self, name: str, known: tuple[str, ...] = ()) -> None:
        listed = ", ".join(sorted(known)) or "none"
        super().__init__(
            f"no task named {name!r} is registered here (registered: {listed}); "
            f"check the name, or add its module to LeaseQueue(imports=[...])"
        )
        self.name = name


class InvalidArguments(LeaseQueueError, TypeError):
    """The arguments of a call do not fit the task's signature, or a value cannot be carried as JSON.

    Raised before anything is written.

    Args:
        task: the task's name.
        argument: the parameter at fault, or None where no single one is.
        reason: a sentence that says what was found and what to do.
    """

    def __init__(self, task: str, argument: str | None, reason: str) -> None:
        where = f"{task}({argument}=...)" if argument else f"{task}(...)"
        super().__init__(f"{where}: {reason}")
        self.task = task
        self.argument = argument
        self.reason = reason


class Undecodable(LeaseQueueError):
    """What stands in a job's row cannot be turned back into the task's arguments."""


class DoesNotBind(LeaseQueueError):
    """Stored arguments do not fit the function's parameters here; another release of the application may take them.

    Args:
        missing: parameters without a default for which nothing is stored.
        unknown: stored names that the function does not have.
    """

    def __init__(self, missing: tuple[str, ...] = (), unknown: tuple[str, ...] = ()) -> None:
        parts = []
        if missing:
            parts.append(f"nothing is stored for {_listed(missing)}")
        if unknown:
            parts.append(f"the function has no {_listed(unknown)}")
        super().__init__("; ".join(parts) or "the stored arguments do not fit")
        self.missing = missing
        self.unknown = unknown


def _listed(names: tuple[str, ...]) -> str:
    # Any SQL may have written the names, megabytes of them.
    short = [name if len(name) <= 80 else f"{name[:80]}..." for name in names[:10]]
    return ", ".join(short) + (f" and {len(names) - 10} more" if len(names) > 10 else "")


class ResultNotStorable(LeaseQueueError):
    """What a task returned cannot be carried as JSON."""


class SchemaMismatch(LeaseQueueError):
    """The tables of leasequeue are missing, or of a version that this code cannot use.

    Args:
        schema: the schema that was looked at.
        found: the version found there, or None where there are no tables.
        wanted: the version this code was written for (it also accepts the next one).
    """

    def __init__(self, schema: str, found: int | None, wanted: int) -> None:
        if found is None:
            what = f"schema {schema!r} has no leasequeue tables"
        else:
            what = f"schema {schema!r} has leasequeue tables of version {found}, this code needs {wanted}"
        if found is None or found < wanted:
            cure = (
                f"run `leasequeue migrate --schema {shlex.quote(schema)}`, or put\n"
                f"    leasequeue.schema.upgrade(op, since={found or 0}, to={wanted}, schema={schema!r})\n"
                f"into the upgrade() of a new revision of your own Alembic history and apply it"
            )
        else:
            cure = "upgrade the leasequeue package in this environment to the release that matches the tables"
        super().__init__(f"{what}: {cure}")
        self.schema = schema
        self.found = found
        self.wanted = wanted


class DatabaseUnavailable(LeaseQueueError):
    """The database cannot be reached, or did not answer in time. Nothing is known to be wrong with the data."""


class OutcomeUnknown(DatabaseUnavailable):
    """A statement was sent and its answer never came: the server may still commit it.

    Settle it by reading the rows back by holder and term; never count it as done, nor as refused.
    """


class DuplicateJob(LeaseQueueError):
    """Another job has the unique key. Raised by ``on_conflict="raise"``; the transaction is as it was before.

    Of ``enqueue_many`` other calls may be written by then: let the transaction roll back.

    Args:
        key: the unique key.
        job_id: the id of the job that has it.
        held: it may have taken the key for a period (``unique_for``), and have ended since.
    """

    def __init__(self, key: str, job_id: int, held: bool = False) -> None:
        cure = "wait until its period (unique_for) is over" if held else "wait for it or cancel it"
        super().__init__(f"job {job_id} already has the unique key {key!r}; {cure}, or enqueue under another key")
        self.key = key
        self.job_id = job_id


class ActionRefused(LeaseQueueError):
    """What an operator asked for a job has changed nothing.

    Args:
        job_id: the job.
        action: ``retry`` or ``cancel``.
        state: what state or outcome the row says now, or None where there is no row.
        reason: a clause that says why not.
    """

    def __init__(self, job_id: int, action: str, state: str | None, reason: str) -> None:
        super().__init__(f"cannot {action} job {job_id}: {reason}")
        self.job_id = job_id
        self.action = action
        self.state = state
        self.reason = reason


class JobNotFound(ActionRefused):
    """There is no job with that id: it never was, its transaction has not committed, or its history is gone."""

    def __init__(self, job_id: int) -> None:
        super().__init__(
            job_id,
            "find",
            None,
            "no live job and no finished one has that id; its history may have passed its retention, "
            "or its queue keeps none (keep=0)",
        )


class ScheduleRefused(LeaseQueueError):
    """What was asked for a schedule has changed nothing.

    Args:
        name: the schedule.
        reason: a clause that says why not, and what to do.
    """

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"schedule {name!r}: {reason}")
        self.name = name
        self.reason = reason


class WorkflowRefused(LeaseQueueError):
    """What was asked for a workflow, or of it, has changed nothing."""


class WorkflowChanged(WorkflowRefused):
    """A step was added, at that very moment, behind a step that the end of this job would cancel.

    Args:
        job_id: the job that was to be completed, or cancelled.
    """

    def __init__(self, job_id: int, end: str = "completed") -> None:
        super().__init__(
            f"job {job_id} was not {end}: a step was added behind it while its transaction ran, which its snapshot does "
            f"not show; let the transaction roll back and run it again, in READ COMMITTED"
        )
        self.job_id = job_id


class LeaseRefused(LeaseQueueError):
    """Somebody else holds the lease; the message says who, in which term, since when and until when.

    Args:
        refusal: the ``Refused``.
    """

    def __init__(self, refusal: object) -> None:
        super().__init__(f"{refusal}; ask again later, or wait for it (wait=...)")
        self.refusal = refusal


class LeaseNotTaken(LeaseQueueError):
    """An operator asked to take a lease from its holder, and that was not done, or not for all of its slots.

    Args:
        name: the lease.
        reason: a clause that says why not.
        taken: how many slots were taken all the same.
    """

    def __init__(self, name: str, reason: str, taken: int) -> None:
        done = f"{taken} slots were taken, and" if taken else "nothing was changed:"
        super().__init__(f"the lease {name!r}: {done} {reason}")
        self.name = name
        self.reason = reason
        self.taken = taken


class LeaseLost(LeaseQueueError):
    """This process no longer holds the row in its term: nothing that it writes under it may count.

    Args:
        name: what was held (``job 17``, or the name of a lease).
        term: the term in which it was held.
        found: what the row says now.
    """

    def __init__(self, name: str, term: int, found: str = "") -> None:
        tail = f" ({found})" if found else ""
        super().__init__(
            f"the lease on {name} in term {term} is lost{tail}: "
            f"stop this work and let its transaction roll back; whoever holds it next does it"
        )
        self.name = name
        self.term = term
        self.found = found


class ProcessDied(LeaseQueueError):
    """The child process that ran a job (``executor="process"``) died: that attempt has failed.

    Args:
        job_id: the job.
        status: its exit status; negative: the number of the signal that killed it; None: it is not known.
        reason: why this worker killed it, as a clause; empty where it did not.
    """

    def __init__(self, job_id: int, status: int | None, reason: str = "") -> None:
        if reason:
            how = f"was killed: {reason}"
        elif status is None or status > 255:
            how = "is gone, nobody knows how"
        elif status >= 0:
            how = f"ended by itself with status {status}, before its handler did"
        else:
            how = f"was killed by {_signal_name(-status)}"
            if status == -signal.SIGKILL:
                how += " (the out-of-memory killer does that; see the kernel's log)"
        super().__init__(f"the process that ran job {job_id} {how}")
        self.job_id = job_id
        self.status = status


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


class NoResult(LeaseQueueError):
    """A job has no result to give.

    Args:
        job_id: the job.
        task: the name in its row; empty where no row of it can be seen.
        error: what its history says of its end, or None.
        retried_as: the id of the job that repeats it, where an operator had it enqueued again, or None.
    """

    def __init__(self, job_id: int, task: str, what: str, error: str | None, retried_as: int | None) -> None:
        again = f"; it was enqueued again as job {retried_as}, ask that one" if retried_as is not None else ""
        of = f" ({task})" if task else ""
        super().__init__(f"job {job_id}{of} {what}{again}; see `leasequeue jobs show {job_id}`")
        self.job_id = job_id
        self.task = task
        self.error = error
        self.retried_as = retried_as


class JobFailed(NoResult):
    """The job has failed for good.

    Attributes:
        error_type: the name of the exception's class, as it was raised in the worker.
        error_message: its text.
        traceback: its traceback as text; None where that is not kept any more.
        attempts: how many there were.
    """

    def __init__(
        self,
        job_id: int,
        task: str,
        error: str | None,
        retried_as: int | None = None,
        attempts: int = 0,
        traceback: str | None = None,
    ) -> None:
        super().__init__(job_id, task, f"has failed after {attempts} attempt(s): {error}", error, retried_as)
        self.error_type, _, self.error_message = (error or "").partition(": ")
        self.attempts = attempts
        self.traceback = traceback


class JobCancelled(NoResult):
    """The job was cancelled."""

    def __init__(self, job_id: int, task: str, error: str | None, retried_as: int | None = None) -> None:
        super().__init__(job_id, task, f"was cancelled ({error})", error, retried_as)


class JobExpired(NoResult):
    """The job was not started in time (``expires=``)."""

    def __init__(self, job_id: int, task: str, error: str | None, retried_as: int | None = None) -> None:
        super().__init__(job_id, task, f"was not run ({error})", error, retried_as)


class ResultTimeout(NoResult, TimeoutError):
    """The job has not ended in the time that was given. It goes on; ask again.

    Attributes:
        state: where it stands: ``ready``, ``scheduled``, ``leased``, ``suspect`` or ``waiting``.
    """

    def __init__(self, job_id: int, task: str, state: str, seconds: float) -> None:
        super().__init__(job_id, task, f"has not ended within {seconds:g} s, it is {state}", None, None)
        self.state = state


class ResultUnavailable(NoResult):
    """Nobody but the transaction that enqueued it can see the job, or there is nothing left to see."""

    def __init__(self, job_id: int) -> None:
        super().__init__(
            job_id,
            "",
            "is neither live nor in the history: the transaction that enqueued it has not committed yet (commit first, then "
            "wait), or was rolled back; or it has ended and its queue keeps no history (keep=0), or no more of it",
            None,
            None,
        )
