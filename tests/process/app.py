"""The application that the process tests run."""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import sys
import time
from pathlib import Path

from leasequeue import JobInterrupted, LeaseQueue, current_job

lq = LeaseQueue()

CREATE = (
    "CREATE TABLE IF NOT EXISTS effect (job bigint, attempt int, pid int, at timestamptz DEFAULT clock_timestamp())"
)
# As the driver takes it, without SQLAlchemy's text(): the tests start hundreds of workers, and most never need SQLAlchemy.
_EFFECT = "INSERT INTO effect (job, attempt, pid) VALUES (%(j)s, %(a)s, %(p)s)"


@lq.task(name="noop")
def noop(i: int = 0) -> None:
    """Nothing."""


@lq.task(name="loaded")
def loaded() -> list[str]:
    """What of these its process has imported."""
    return sorted({"alembic", "click", "cronsim", "rich", "sqlalchemy"} & set(sys.modules))


@lq.task(name="loaded_apart", executor="process")
def loaded_apart() -> list[str]:
    """The same of a child process."""
    return loaded()


@lq.task(name="anoop")
async def anoop(i: int = 0) -> None:
    """Nothing, on the loop."""


@lq.task(name="nap")
def nap(seconds: float, marks: str = "") -> None:
    """Works for a while, and looks whether it should stop. Makes a file in ``marks`` when it begins."""
    if marks:
        (Path(marks) / str(current_job().id)).touch()
    current_job().cancelled.wait(seconds)


@lq.task(name="stubborn")
def stubborn(seconds: float) -> None:
    """Works for a while and looks at nothing."""
    time.sleep(seconds)


@lq.task(name="anap")
async def anap(seconds: float) -> None:
    await asyncio.sleep(seconds)


@lq.task(name="block_loop")
async def block_loop(seconds: float) -> None:
    """What no coroutine should do."""
    time.sleep(seconds)  # the fault that is tested


@lq.task(name="hold_gil")
def hold_gil(seconds: float) -> None:
    """A C function that keeps the interpreter to itself."""
    ctypes.PyDLL(None).usleep(int(seconds * 1_000_000))


@lq.task(name="die")
def die() -> None:
    os._exit(1)


@lq.task(name="fail", max_attempts=2)
def fail(message: str = "as asked") -> None:
    raise ValueError(message)


@lq.task(name="give")
def give(value: object) -> object:
    return value


@lq.task(name="surrogate")
def surrogate() -> None:
    raise ValueError("a lone surrogate: \ud800, and a NUL: \0")


@lq.task(name="give_surrogate")
def give_surrogate() -> str:
    return "a lone surrogate: \ud800, and a NUL: \0"


@lq.task(name="effect")
def effect() -> None:
    """Writes its effect and completes in one transaction."""
    ctx = current_job()
    with lq.begin() as conn:
        conn.exec_driver_sql(_EFFECT, _who())
        ctx.complete(conn)


@lq.task(name="hold_complete")
def hold_complete(flag: str, seconds: float = 30.0) -> None:
    """Completes, says so, and keeps the transaction open until the flag file is there."""
    ctx = current_job()
    with lq.begin() as conn:
        conn.exec_driver_sql(_EFFECT, _who())
        ctx.complete(conn)
        Path(flag + ".held").touch()
        until = time.monotonic() + seconds
        while not Path(flag).exists() and time.monotonic() < until:
            time.sleep(0.01)


@lq.task(name="stop_in_complete")
def stop_in_complete() -> None:
    """Stops its own process with the row locked."""
    ctx = current_job()
    with lq.begin() as conn:
        conn.exec_driver_sql(_EFFECT, _who())
        ctx.complete(conn)
        if ctx.attempt == 1:
            os.kill(os.getpid(), signal.SIGSTOP)
            time.sleep(0.5)  # the stop arrives a moment later


@lq.task(name="late_effect")
def late_effect(flag: str) -> None:
    """Waits for the flag, then writes; whether it is refused is for the server to say. Swallows the refusal."""
    try:
        _late_effect(flag)
    except JobInterrupted:
        _late_effect(flag)  # told that its lease is lost; it goes on, and what it writes must be refused all the same


def _late_effect(flag: str) -> None:
    ctx = current_job()
    if ctx.attempt == 1:
        Path(flag + ".running").touch()
        while not Path(flag).exists():
            time.sleep(0.01)
    with lq.begin() as conn:
        conn.exec_driver_sql(_EFFECT, _who())
        try:
            ctx.complete(conn)
        except Exception as error:
            if ctx.attempt > 1:
                raise
            Path(flag + ".swallowed").write_text(f"{type(error).__name__}: {error}")


def _who() -> dict[str, int]:
    ctx = current_job()
    return {"j": ctx.id, "a": ctx.attempt, "p": os.getpid()}
