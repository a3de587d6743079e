"""A worker process's ends of the two pipes to its supervisor: orders in, events out, a JSON object a line."""

from __future__ import annotations

import contextlib
import json
import os
import select
import time
from typing import Any


class Pipe:
    """The child's ends of the pipes to its supervisor."""

    def __init__(self, orders_fd: int, events_fd: int) -> None:
        self._orders_fd = orders_fd
        self._events_fd = events_fd
        self._rest = b""
        self._wake_read, self._wake_write = os.pipe()
        for fd in (self._wake_read, self._wake_write):
            os.set_blocking(fd, False)
        self._unread: list[dict[str, Any]] = []
        self.closed = False

    def tell(self, event: dict[str, Any]) -> None:
        """Send an event; a supervisor that is gone does not hear it, and that shows as the end of the orders."""
        try:
            os.write(self._events_fd, json.dumps(event).encode() + b"\n")
        except BrokenPipeError:
            self.closed = True

    def wake(self) -> None:
        """End the wait of :meth:`orders`. Any thread."""
        with contextlib.suppress(BlockingIOError):  # it is full of wake-ups already
            os.write(self._wake_write, b"w")

    def orders(self, timeout_seconds: float) -> list[dict[str, Any]]:
        """The orders that came, waiting at most so long for the first, or until :meth:`wake`."""
        if self._unread:
            unread, self._unread = self._unread, []
            return unread
        if self.closed:
            time.sleep(timeout_seconds)
            return []
        ready, _, _ = select.select([self._orders_fd, self._wake_read], [], [], timeout_seconds)
        if self._wake_read in ready:
            os.read(self._wake_read, 4096)
        if self._orders_fd not in ready:
            return []
        piece = os.read(self._orders_fd, 65536)
        if not piece:
            self.closed = True
            return []
        *lines, self._rest = (self._rest + piece).split(b"\n")
        return [json.loads(line) for line in lines if line]

    def first(self) -> dict[str, Any]:
        """The first order: what to be. Ends the process, in order, where the supervisor is gone before it gave one."""
        while not self.closed:
            orders = self.orders(1.0)
            if orders:
                # What came with it (a stop, in the first moment) is for the next to ask.
                self._unread = orders[1:]
                return orders[0]
        raise SystemExit(0)
