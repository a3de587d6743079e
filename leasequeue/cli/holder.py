"""A command that runs while this process holds a lease for it.

The command is a process group of its own, so that all that it starts can be ended; on a terminal it stays in the
terminal's group, where Ctrl-C and job control reach it. Where the system can, it dies with this process.
"""

from __future__ import annotations

import ctypes
import datetime as dt
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from leasequeue.errors import LeaseLost
from leasequeue.job import NAME_BYTES_MAX
from leasequeue.lease.hold import boottime
from leasequeue.lease.offers import Leases

if TYPE_CHECKING:
    from leasequeue.db.urls import Settings
    from leasequeue.lease import Lease

EXIT_REFUSED = 75
EXIT_LOST = 76
_EXIT_NOT_EXECUTABLE = 126
_EXIT_NOT_FOUND = 127

_FORWARDED = tuple(
    getattr(signal, name) for name in ("SIGTERM", "SIGHUP", "SIGINT", "SIGUSR1", "SIGUSR2") if hasattr(signal, name)
)
_PR_SET_PDEATHSIG = 1
_POLL_SECONDS = 0.02


class Here(Leases):
    """What offers leases, without the rest of a queue: cron calls this command every minute, and it starts in half the
    time."""

    def __init__(self, settings: Settings, schema: str) -> None:
        self._settings = settings
        self._schema = schema

    @property
    def schema(self) -> str:
        return self._schema

    def settings(self) -> Settings:
        return self._settings


def run_as_holder(
    here: Leases, name: str, ttl: dt.timedelta, wait: dt.timedelta, slots: int, command: list[str], who: str
) -> int:
    """Hold the lease, run the command, give the lease back; returns the exit status.

    Raises:
        DatabaseUnavailable: the database cannot be asked; the command was not started.
    """
    # What is said of the lease is said below, once.
    logging.getLogger("leasequeue").addHandler(logging.NullHandler())
    # No pid in it: a thousand calls by cron are one who was refused.
    owner = f"{who} ({Path(command[0]).name})".encode("utf-8", "replace")[:NAME_BYTES_MAX].decode("utf-8", "ignore")
    lease = here.lease(name, ttl=ttl, wait=wait, slots=slots, owner=owner).get()
    if not lease:
        # Without its arguments: there may be a secret among them, and this goes into logs and mails.
        _say(f"{lease}; {command[0]} was not run")
        return EXIT_REFUSED
    signals: list[int] = []
    # Before the command is started: a signal that comes in between must reach it. Until after the release: one that comes
    # during it must not leave the others waiting for the ttl.
    # What is ignored (nohup) stays so, for the command as well.
    before = {
        number: signal.signal(number, lambda number, _: signals.append(number))
        for number in _FORWARDED
        if signal.getsignal(number) is not signal.SIG_IGN
    }
    try:
        return _run(lease, command, signals)
    finally:
        lease.release()
        for number, handler in before.items():
            signal.signal(number, handler)


def _say(text: str) -> None:
    # One line without escapes, whatever others have written into the row.
    line = "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text)
    click.echo(f"leasequeue: {line}", err=True)


def _run(lease: Lease, command: list[str], signals: list[int]) -> int:
    # LeaseLost here: it took so long to be started that nothing may begin any more.
    try:
        lease.check()
    except LeaseLost as error:
        _say(str(error))
        return EXIT_LOST
    environment = {**os.environ, "LEASEQUEUE_LEASE": lease.name, "LEASEQUEUE_TERM": str(lease.term)}
    own_group = not _on_a_terminal()
    try:
        child = subprocess.Popen(
            command, env=environment, process_group=0 if own_group else None, preexec_fn=_die_with_parent()
        )  # fmt: skip
    except OSError as error:
        _say(f"{command[0]} cannot be run: {error.strerror}")
        return _EXIT_NOT_FOUND if isinstance(error, FileNotFoundError) else _EXIT_NOT_EXECUTABLE
    return _watch(lease, child, signals, own_group)


def _on_a_terminal() -> bool:
    # None: it was closed (<&-), as some daemons start their children.
    return sys.stdin is not None and sys.stdin.isatty()


def _watch(lease: Lease, child: subprocess.Popen[bytes], signals: list[int], own_group: bool) -> int:
    def send(number: int) -> None:
        try:
            os.killpg(child.pid, number) if own_group else child.send_signal(number)
        except ProcessLookupError:
            return

    def anybody() -> bool:
        """Whether the command lives, or after a loss anything that it has started."""
        if child.poll() is None:
            return True
        if not (told and own_group) or killed:
            return False
        try:
            os.killpg(child.pid, 0)
        except OSError:
            return False
        return True

    told = killed = False
    kill_at = float("inf")
    while anybody():
        while signals:
            number = signals.pop(0)
            # A terminal sends it to the command as well.
            if own_group or number != signal.SIGINT:
                send(number)
        if not told and not lease.is_held:
            told = True
            send(signal.SIGTERM)
            _say(f"the lease {lease.name!r} in term {lease.term} is lost: the command is told to stop")
            # Four fifths of the margin: the rest is for the system to do it.
            kill_at = lease.hold.trusted_until + lease.hold.margin_seconds * 0.8
        if boottime() >= kill_at and not killed:
            killed = True
            send(signal.SIGKILL)
            _say("the command did not stop in time: it is killed")
        time.sleep(_POLL_SECONDS)
    status = child.returncode
    if status < 0:
        status = 128 - status
    return EXIT_LOST if status == 0 and not lease.is_held else status


def _die_with_parent() -> Callable[[], None] | None:
    """What the new process does before it becomes the command: on Linux, it asks to be killed when its parent is."""
    if not sys.platform.startswith("linux"):
        return None
    libc = ctypes.CDLL(None)
    parent = os.getpid()

    def ask() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
        if os.getppid() != parent:
            os._exit(1)  # it is dead already

    return ask
