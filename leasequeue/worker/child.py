"""One worker process as its supervisor sees it: two pipes, the shared page, an exit status. No application code."""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from leasequeue.worker.hand import holder_prefix
from leasequeue.worker.options import WorkerOptions
from leasequeue.worker.page import Page, create_file

log = logging.getLogger("leasequeue.supervisor")


class Child:
    """A started worker process.

    Args:
        alone: a spare that runs suspects when told to, not a server of queues.

    Raises:
        OSError: the system starts no process now.

    ``state`` goes starting -> loaded (its application is imported) -> ready (it serves) -> gone.
    """

    def __init__(self, number: int, options: WorkerOptions, alone: bool) -> None:
        self.number = number
        self.alone = alone
        self.prefix = holder_prefix()
        self.state = "starting"
        self.started = time.monotonic()
        self.stopped_by_us = False
        self.summoned = False
        self.refusal: str | None = None
        self._rest = b""
        page_fd = create_file()
        self.page = Page(page_fd)
        orders_read, self._orders = os.pipe()
        self.events, events_write = os.pipe()
        os.set_blocking(self.events, False)
        os.set_blocking(self._orders, False)
        inherited = (orders_read, events_write, page_fd)
        for fd in inherited:
            os.set_inheritable(fd, True)
        arguments = [sys.executable, "-m", "leasequeue.worker.process", *map(str, inherited)]
        try:
            # Signals stay blocked in the child until it has handlers of its own: a signal to the whole group that comes
            # between exec and then must not kill it.
            self.pid = os.posix_spawn(
                sys.executable,
                arguments,
                os.environ,
                setsigmask=[signal.SIGTERM, signal.SIGINT, signal.SIGHUP],
            )
        except OSError:
            self.close()
            raise
        finally:
            for fd in inherited:
                os.close(fd)
        self.order("be", options=options.to_json(), alone=alone, prefix=self.prefix.hex())

    def order(self, order: str, **words: Any) -> None:
        """Send an order; a child that is dead or does not read is found by other means."""
        try:
            os.write(self._orders, json.dumps({"order": order, **words}).encode() + b"\n")
        except (BrokenPipeError, BlockingIOError):
            log.debug("worker process %d does not take the order %r", self.pid, order)

    def heard(self) -> list[dict[str, Any]]:
        """The events that came since."""
        try:
            piece = os.read(self.events, 65536)
        except BlockingIOError:
            return []
        if not piece:
            return []
        *lines, self._rest = (self._rest + piece).split(b"\n")
        return [json.loads(line) for line in lines if line]

    def kill(self) -> None:
        """SIGKILL."""
        try:
            os.kill(self.pid, signal.SIGKILL)
        except ProcessLookupError:
            log.debug("worker process %d is gone already", self.pid)

    def is_stopped(self) -> bool:
        """Whether the process is stopped (SIGSTOP, a debugger), as opposed to busy. False where that cannot be told."""
        try:
            stat = Path(f"/proc/{self.pid}/stat").read_text()
        except OSError:
            return False
        return stat.rpartition(")")[2].split()[0] in ("T", "t")

    def silent_seconds(self) -> float:
        """How long its interpreter has not answered; 0.0 before its first beat."""
        beat = self.page.read("beat")
        return time.monotonic() - beat if beat else 0.0

    def close(self) -> None:
        """Let go of the pipes, after it is gone. The page goes with the last who reads it (a health check may just do)."""
        os.close(self._orders)
        os.close(self.events)
