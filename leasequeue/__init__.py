"""Background jobs for applications that already have PostgreSQL.

What is public stands in ``__all__``. Importing the package loads nothing but the errors; the rest is loaded
at the first use of a name, and never brings in alembic, rich or click.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from leasequeue.errors import (
    ActionRefused,
    ConfigurationError,
    DatabaseUnavailable,
    DoesNotBind,
    DuplicateJob,
    DuplicateSchedule,
    DuplicateTask,
    InvalidArguments,
    JobCancelled,
    JobExpired,
    JobFailed,
    JobNotFound,
    LeaseLost,
    LeaseNotTaken,
    LeaseQueueError,
    LeaseRefused,
    NoResult,
    OutcomeUnknown,
    ProcessDied,
    ResultNotStorable,
    ResultTimeout,
    ResultUnavailable,
    ScheduleRefused,
    SchemaMismatch,
    Undecodable,
    UnknownTask,
    WorkflowChanged,
    WorkflowRefused,
)

if TYPE_CHECKING:
    from leasequeue.cancel import Cancellation
    from leasequeue.context import JobContext, current_job
    from leasequeue.job import Job, Progress
    from leasequeue.lease import AsyncLeader, Leader, Lease, Occupant, Refused
    from leasequeue.queue import LeaseQueue
    from leasequeue.raising import Cancel, Fail, JobControl, JobInterrupted, JobTimeout, Retry, Snooze
    from leasequeue.steps import StepRow, WorkflowStatus
    from leasequeue.task import AsyncTask, Call, Task
    from leasequeue.workflow import (
        Batch,
        Chain,
        Edge,
        Group,
        Node,
        Step,
        Workflow,
        WorkflowHandle,
        batch,
        chain,
        continues,
        fires,
        group,
    )

_HOMES = {
    "AsyncLeader": "lease",
    "AsyncTask": "task",
    "Batch": "workflow",
    "Call": "task",
    "Cancel": "raising",
    "Cancellation": "cancel",
    "Chain": "workflow",
    "Edge": "workflow",
    "Fail": "raising",
    "Group": "workflow",
    "Job": "job",
    "JobContext": "context",
    "JobControl": "raising",
    "JobInterrupted": "raising",
    "JobTimeout": "raising",
    "Leader": "lease",
    "Lease": "lease",
    "LeaseQueue": "queue",
    "Node": "workflow",
    "Occupant": "lease",
    "Progress": "job",
    "Refused": "lease",
    "Retry": "raising",
    "Snooze": "raising",
    "Step": "workflow",
    "StepRow": "steps",
    "Task": "task",
    "Workflow": "workflow",
    "WorkflowHandle": "workflow",
    "WorkflowStatus": "steps",
    "batch": "workflow",
    "chain": "workflow",
    "continues": "workflow",
    "current_job": "context",
    "fires": "workflow",
    "group": "workflow",
}

__all__ = [
    "ActionRefused",
    "AsyncLeader",
    "AsyncTask",
    "Batch",
    "Call",
    "Cancel",
    "Cancellation",
    "Chain",
    "ConfigurationError",
    "DatabaseUnavailable",
    "DoesNotBind",
    "DuplicateJob",
    "DuplicateSchedule",
    "DuplicateTask",
    "Edge",
    "Fail",
    "Group",
    "InvalidArguments",
    "Job",
    "JobCancelled",
    "JobContext",
    "JobControl",
    "JobExpired",
    "JobFailed",
    "JobInterrupted",
    "JobNotFound",
    "JobTimeout",
    "Leader",
    "Lease",
    "LeaseLost",
    "LeaseNotTaken",
    "LeaseQueue",
    "LeaseQueueError",
    "LeaseRefused",
    "NoResult",
    "Node",
    "Occupant",
    "OutcomeUnknown",
    "ProcessDied",
    "Progress",
    "Refused",
    "ResultNotStorable",
    "ResultTimeout",
    "ResultUnavailable",
    "Retry",
    "ScheduleRefused",
    "SchemaMismatch",
    "Snooze",
    "Step",
    "StepRow",
    "Task",
    "Undecodable",
    "UnknownTask",
    "Workflow",
    "WorkflowChanged",
    "WorkflowHandle",
    "WorkflowRefused",
    "WorkflowStatus",
    "batch",
    "chain",
    "continues",
    "current_job",
    "fires",
    "group",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"{__name__}.{home}"), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
