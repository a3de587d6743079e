"""A command that runs while this process holds a lease for it.

The command is a process group of its own, so that all that it starts can be ended; on a terminal it stays in the
terminal's group, where Ctrl-C and job control reach it. Where the system can, it dies with this process.
"""

from __future__ import annotations

import ctypes
import datetime as dt
import os
import shlex
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

if TYPE_CHECKING:
    from leasequeue.lease import Lease
    from leasequeue.queue import LeaseQueue

EXIT_REFUSED = 75
EXIT_LOST = 76
_EXIT_NOT_EXECUTABLE = 126
_EXIT_NOT_FOUND = 127

_FORWARDED = tuple(
    getattr(signal, name) for name in ("SIGTERM", "SIGHUP", "SIGINT", "SIGUSR1", "SIGUSR2") if hasattr(signal, name)
)
_PR_SET_PDEATHSIG = 1
_POLL_SECONDS = 0.02


def run_as_holder(
    lq: LeaseQueue, name: str, ttl: dt.timedelta, wait: dt.timedelta, slots: int, command: list[str], who: str
) -> int:
    """Hold the lease, run the command, give the lease back; returns the exit status.

    Raises:
        DatabaseUnavailable: the database cannot be asked; the command was not started.
    """
    # No pid in it: a thousand calls by cron are one who was refused.
    owner = f"{who} ({Path(command[0]).name})".encode()[:NAME_BYTES_MAX].decode("utf-8", "ignore")
    lease = lq.lease(name, ttl=ttl, wait=wait, slots=slots, owner=owner).get()
    if not lease:
        click.echo(f"leasequeue: {lease}; {shlex.join(command)} was not run", err=True)
        return EXIT_REFUSED
    try:
        return _run(lease, command)
    finally:
        lease.release()


def _run(lease: Lease, command: list[str]) -> int:
    # LeaseLost here: it took so long to be started that nothing may begin any more.
    try:
        lease.check()
    except LeaseLost as error:
        click.echo(f"leasequeue: {error}", err=True)
        return EXIT_LOST
    environment = {**os.environ, "LEASEQUEUE_LEASE": lease.name, "LEASEQUEUE_TERM": str(lease.term)}
    own_group = not sys.stdin.isatty()
    early: list[int] = []
    # Before the command is started: a signal that comes in between must reach it.
    before = {number: signal.signal(number, lambda number, _: early.append(number)) for number in _FORWARDED}
    try:
        child = subprocess.Popen(
            command, env=environment, process_group=0 if own_group else None, preexec_fn=_die_with_parent()
        )  # fmt: skip
    except OSError as error:
        click.echo(f"leasequeue: {command[0]} cannot be run: {error.strerror}", err=True)
        return _EXIT_NOT_FOUND if isinstance(error, FileNotFoundError) else _EXIT_NOT_EXECUTABLE
    else:
        return _watch(lease, child, early, own_group)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _watch(lease: Lease, child: subprocess.Popen[bytes], signals: list[int], own_group: bool) -> int:
    def send(number: int) -> None:
        try:
            os.killpg(child.pid, number) if own_group else child.send_signal(number)
        except ProcessLookupError:
            return

    told = False
    kill_at = float("inf")
    while child.poll() is None:
        while signals:
            number = signals.pop(0)
            # A terminal sends it to the command as well.
            if own_group or number != signal.SIGINT:
                send(number)
        if not told and lease.lost.is_set():
            told = True
            click.echo(
                f"leasequeue: the lease {lease.name!r} in term {lease.term} is lost: the command is told to stop",
                err=True,
            )
            send(signal.SIGTERM)
            # Four fifths of the margin: the rest is for the system to do it.
            kill_at = lease.hold.trusted_until + lease.hold.margin_seconds * 0.8
        if boottime() >= kill_at:
            kill_at = float("inf")
            click.echo("leasequeue: the command did not stop in time: it is killed", err=True)
            send(signal.SIGKILL)
        time.sleep(_POLL_SECONDS)
    status = child.returncode
    if status < 0:
        status = 128 - status
    return EXIT_LOST if lease.lost.is_set() and status == 0 else status


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
