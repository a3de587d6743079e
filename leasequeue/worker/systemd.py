"""What systemd is told, where it asks (``Type=notify``, ``WatchdogSec=``): one datagram to ``NOTIFY_SOCKET``."""

from __future__ import annotations

import logging
import os
import socket
import time

log = logging.getLogger("leasequeue.supervisor")

_last = 0.0


def notify(message: str) -> None:
    """Send one message; nothing where systemd does not listen."""
    path = os.environ.get("NOTIFY_SOCKET")
    if not path:
        return
    address = "\0" + path[1:] if path.startswith("@") else path
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
            sock.connect(address)
            sock.sendall(message.encode())
    except OSError as error:
        log.warning("systemd could not be told %r: %s", message, error)


def watchdog() -> None:
    """Say that we live, at most four times in the interval that systemd gave."""
    global _last
    usec = os.environ.get("WATCHDOG_USEC")
    if not usec:
        return
    now = time.monotonic()
    if now - _last >= int(usec) / 4_000_000:
        _last = now
        notify("WATCHDOG=1")
