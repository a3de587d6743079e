"""What ``leasequeue worker`` was asked for, as plain values that go through a pipe. No other imports."""

from __future__ import annotations

import dataclasses
import json


@dataclasses.dataclass(frozen=True, slots=True)
class WorkerOptions:
    """The options of one supervised worker.

    Attributes:
        app: ``module:attr`` or ``module:factory()``.
        queues: name and slots of each queue to serve; empty means every queue that a task of the application names.
        reserved: name and number of those slots of a queue that are for jobs of a priority above 0 alone; fewer than it has.
        processes: worker processes beside the spare.
        ttl_seconds: how long a lease lasts without a renewal, and so what the loss of a machine costs.
        shutdown_timeout_seconds: how long running handlers may go on after the first signal.
        http: host and port of the health server; None means none.
        schema: None means what the application says.
        url: None means what the application or the environment says.
        control_url: for renewals and the supervisor; None means the same as ``url``.
        poll_only: never LISTEN.
        max_abandoned: after so many deaths of its process a job has failed.
    """

    app: str
    queues: tuple[tuple[str, int], ...] = ()
    reserved: tuple[tuple[str, int], ...] = ()
    processes: int = 1
    ttl_seconds: float = 30.0
    shutdown_timeout_seconds: float = 25.0
    http: tuple[str, int] | None = None
    schema: str | None = None
    url: str | None = dataclasses.field(default=None, repr=False)
    control_url: str | None = dataclasses.field(default=None, repr=False)
    log_format: str = "text"
    log_level: str = "info"
    poll_only: bool = False
    max_abandoned: int = 3

    def to_json(self) -> str:
        """With the passwords: for a pipe between our own processes, nothing else."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> WorkerOptions:
        values = json.loads(text)
        for each in ("queues", "reserved"):
            values[each] = tuple((name, slots) for name, slots in values[each])
        values["http"] = tuple(values["http"]) if values["http"] else None
        return cls(**values)
