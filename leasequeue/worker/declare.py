"""Writes the limits of the code when a worker process begins, before it claims anything."""

from __future__ import annotations

import logging
import os
import socket
from typing import TYPE_CHECKING

from leasequeue.db.program import Params, Rows, Statement, Target, drive
from leasequeue.ops.limits import declare
from leasequeue.ops.schedules import Release
from leasequeue.schedule import deployed_at

if TYPE_CHECKING:
    from leasequeue.db.connect import Link
    from leasequeue.queue import LeaseQueue

log = logging.getLogger("leasequeue.worker")


def declare_limits(link: Link, lq: LeaseQueue, app: str) -> None:
    """No job of this release runs without its limits. One look where there are none, and never were.

    Raises:
        DatabaseUnavailable: see ``Link.run``; the limits are written by the next start.
        ConfigurationError: ``LEASEQUEUE_DEPLOYED_AT`` cannot be read, or others kept changing the limits.
    """

    def execute(statement: Statement, params: Params) -> Rows:
        return link.run(statement.text, params)

    by = f"{socket.gethostname()}:{os.getpid()}"
    release = Release(os.environ.get("LEASEQUEUE_RELEASE"), deployed_at())
    wrote = drive(declare(Target("ours", None), lq.schema, app, lq.declared_limits(), release, by), execute)
    if wrote.message:
        log.log(logging.WARNING if wrote.warning else logging.INFO, "%s", wrote.message)
