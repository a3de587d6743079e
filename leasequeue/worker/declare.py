"""Writes the limits of the code when a worker process begins, before it claims anything."""

from __future__ import annotations

import logging
import os
import socket
from typing import TYPE_CHECKING

from leasequeue.db.statement import Params, Rows, Statement, Target, drive
from leasequeue.ops.limits import Wrote, declare
from leasequeue.ops.release import Release
from leasequeue.schedule import deployed_at

if TYPE_CHECKING:
    from leasequeue.db.connect import Execute, Link
    from leasequeue.queue import LeaseQueue

log = logging.getLogger("leasequeue.worker")

BOUND_SECONDS = 60.0
"""Of the whole: a change wakes each key that waits, and there may be 100,000."""


def declare_limits(link: Link, lq: LeaseQueue, app: str) -> None:
    """No job of this release runs without its limits. One look where there are none, and never were.

    Raises:
        DatabaseUnavailable: see ``Link.run``; the limits are written by the next start.
        ConfigurationError: ``LEASEQUEUE_DEPLOYED_AT`` cannot be read, or others kept changing the limits.
    """

    by = f"{socket.gethostname()}:{os.getpid()}"
    release = Release(os.environ.get("LEASEQUEUE_RELEASE"), deployed_at())

    def steps(execute: Execute) -> Wrote:
        def one(statement: Statement, params: Params) -> Rows:
            return execute(statement.text, params)

        return drive(declare(Target("ours"), lq.schema, app, lq.declared_limits(), release, by), one)

    wrote = link.transact(steps, bound_seconds=BOUND_SECONDS)
    if wrote.message:
        log.log(logging.WARNING if wrote.warning else logging.INFO, "%s", wrote.message)
