"""The application of the tests about retries, timeouts, cancellation and child processes."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import datetime as dt
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tenacity import RetryCallState, retry_if_exception_message, retry_if_exception_type, wait_fixed

from leasequeue import Cancel, Fail, JobContext, JobInterrupted, JobTimeout, LeaseQueue, Retry, Snooze, current_job


def resources(_: LeaseQueue) -> Iterator[dict[str, int]]:
    yield {"pid": os.getpid()}


lq = LeaseQueue(lifespan=resources, process_jobs=5, process_memory_mib=400)


@lq.middleware
def mark(ctx: JobContext, call_next: Callable[[], Any]) -> Any:
    """Its mark is in the results of ``look`` only."""
    result = call_next()
    return result | {"middleware": os.getpid()} if isinstance(result, dict) else result


def word(what: str) -> None:
    """What a handler says of its job."""
    match what:
        case "retry":
            raise Retry(dt.timedelta(hours=1), "the other side rests")
        case "retry_now":
            raise Retry(0)
        case "snooze":
            raise Snooze(3600)
        case "snooze_until":
            raise Snooze(dt.datetime.now(dt.UTC) + dt.timedelta(hours=2))
        case "cancel":
            raise Cancel("nobody wants it")
        case "fail":
            raise Fail("it cannot work")
        case "long":
            raise ValueError("x" * 100_000)


@lq.task(name="say", max_attempts=2)
def say(what: str) -> None:
    word(what)


@lq.task(name="asay", max_attempts=2)
async def asay(what: str) -> None:
    if what == "group":
        async with asyncio.TaskGroup() as group:
            group.create_task(asay.function("cancel"))
    word(what)


@lq.task(name="psay", max_attempts=2, executor="process")
def psay(what: str) -> None:
    word(what)


def _kept(state: RetryCallState) -> float:
    return 1800 + state.attempt_number


@lq.task(
    name="strategic", wait=_kept, retry=retry_if_exception_type(OSError) | retry_if_exception_message(match="soon")
)
def strategic(kind: str) -> None:
    raise {"os": OSError, "soon": ValueError, "other": KeyError}[kind]("soon" if kind == "soon" else "no")


@lq.task(name="pstrategic", wait=wait_fixed(900), retry=retry_if_exception_type(OSError), executor="process")
def pstrategic(kind: str) -> None:
    raise {"os": OSError, "other": KeyError}[kind]("no")


# Threads


@lq.task(name="spin", timeout=dt.timedelta(seconds=0.5))
def spin(marks: str) -> None:
    """Pure Python without an end; says how it was stopped."""
    try:
        while True:
            time.sleep(0.01)
    except JobTimeout:
        (Path(marks) / f"{current_job().id}.timeout").touch()
        raise
    except JobInterrupted:
        (Path(marks) / f"{current_job().id}.interrupted").touch()
        raise


@lq.task(name="swallow_exception", timeout=dt.timedelta(seconds=0.5))
def swallow_exception() -> None:
    """The usual loop."""
    while True:
        try:
            time.sleep(0.01)
        except Exception:  # noqa: BLE001, S112  # the fault that is tested
            continue


@lq.task(name="work")
def work(seconds: float = 60.0, marks: str = "") -> str:
    """Works in small pieces and looks at nothing."""
    if marks:
        (Path(marks) / str(current_job().id)).touch()
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        time.sleep(0.005)
    return "done"


@lq.task(name="awork")
async def awork(seconds: float = 60.0, marks: str = "") -> str:
    if marks:
        (Path(marks) / str(current_job().id)).touch()
    await asyncio.sleep(seconds)
    return "done"


@lq.task(name="shielded")
def shielded(seconds: float, marks: str) -> str:
    """Goes on when it is told to stop, and returns."""
    (Path(marks) / str(current_job().id)).touch()
    with contextlib.suppress(JobInterrupted):
        time.sleep(seconds)
    return "done"


@lq.task(name="zombie", timeout=dt.timedelta(seconds=0.3), max_attempts=1)
def zombie(flag: str) -> None:
    """Ignores whatever is raised in it, until the flag file is there."""
    while not Path(flag).exists():
        with contextlib.suppress(BaseException):
            time.sleep(0.01)


def soft(ctx: JobContext) -> None:
    assert current_job() is ctx
    Path(os.environ["SOFT_MARKS"], f"{ctx.task}.{os.getpid()}").touch()


@lq.task(name="slow", soft_timeout=dt.timedelta(seconds=0.2), on_soft_timeout=soft)
def slow(seconds: float) -> None:
    time.sleep(seconds)


@lq.task(name="aslow", soft_timeout=dt.timedelta(seconds=0.2), on_soft_timeout=soft)
async def aslow(seconds: float) -> None:
    await asyncio.sleep(seconds)


@lq.task(name="pslow", soft_timeout=dt.timedelta(seconds=0.2), on_soft_timeout=soft, executor="process")
def pslow(seconds: float) -> None:
    time.sleep(seconds)


@lq.task(name="quiet", soft_timeout=dt.timedelta(seconds=0.2))
def quiet(seconds: float) -> None:
    time.sleep(seconds)


# Child processes


@lq.task(name="look", executor="process")
def look(n: int = 0) -> dict[str, Any]:
    ctx = current_job()
    print(f"printed by {ctx.id}")
    print(f"printed by {ctx.id} to stderr", file=sys.stderr)
    return {
        "pid": os.getpid(), "parent": os.getppid(), "state": ctx.state, "id": ctx.id, "attempt": ctx.attempt, "n": n,
        "task": ctx.task,
    }  # fmt: skip


@lq.task(name="pcomplete", executor="process")
def pcomplete(then: str = "") -> None:
    ctx = current_job()
    with lq.begin() as conn:
        # As in tests/process/app.py, without SQLAlchemy's text().
        conn.exec_driver_sql(
            "INSERT INTO effect (job, attempt, pid) VALUES (%(j)s, %(a)s, %(p)s)",
            {"j": ctx.id, "a": ctx.attempt, "p": os.getpid()},
        )
        ctx.complete(conn, "by itself")
    if then == "die":
        os._exit(4)


@lq.task(name="crash", max_attempts=1, executor="process")
def crash(how: str) -> None:
    current_job().progress(1, 4, how)
    match how:
        case "segfault":
            ctypes.string_at(0)
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "exit":
            os._exit(3)
        case "memory":
            held = []
            while True:
                held.append(bytearray(8 << 20))
                time.sleep(0.02)


@lq.task(name="bloat", executor="process")
def bloat(mib: int) -> int:
    """Leaves a thread behind that grows, once the job has ended."""
    left: list[bytes] = []
    if mib:
        threading.Timer(0.5, lambda: left.append(b"x" * (mib << 20))).start()
        globals()["_left"] = left
    return os.getpid()


@lq.task(name="psleep", max_attempts=1, timeout=dt.timedelta(seconds=0.5), executor="process")
def psleep(seconds: float) -> None:
    """A C function that keeps the interpreter to itself: no exception, and no order, is heard."""
    ctypes.PyDLL(None).usleep(int(seconds * 1_000_000))


@lq.task(name="pwork", executor="process")
def pwork(marks: str, cooperate: bool = False) -> str:
    ctx = current_job()
    (Path(marks) / str(ctx.id)).write_text(str(os.getpid()))
    if cooperate:
        ctx.cancelled.wait(60)
        return "stopped"
    while True:
        time.sleep(0.01)


@lq.task(name="pspawn", executor="process")
def pspawn(marks: str) -> None:
    """Starts a program, and hangs in C."""
    program = os.posix_spawn("/bin/sleep", ["sleep", "600"], os.environ)
    (Path(marks) / "pids").write_text(f"{os.getpid()} {program}")
    ctypes.PyDLL(None).usleep(600_000_000)
