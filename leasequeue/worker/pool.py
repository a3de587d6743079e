"""The child processes of ``executor="process"``, as the worker process sees them. See ``sandbox`` for their own side.

A slot's thread takes a child, hands it a job and waits for the end: a line of JSON each way, over one socket. While it waits it
looks at the child's memory, and kills it when its job was told to stop and goes on. A child that dies (a segmentation
fault, the out-of-memory killer) fails the attempt that it ran, nobody else's: the worker process lives.

    take: an idle child, or a new one: starting ──ready──> idle
    run:  idle ──run──> busy ──ended──> idle ──process_jobs, process_memory_mib──> retired (told to end, then killed)
                         └──died, killed──> gone

No child outlives its worker process. Its end closes the socket; and the kernel is asked to kill the child then, for one
that runs C code and reads nothing. The kernel goes by the *thread* that made the child, so all of them are made by one
thread that ends with the process.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import logging
import os
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, NamedTuple

from leasequeue.context import Said
from leasequeue.errors import ProcessDied
from leasequeue.worker.attempt import Tries, Verdict, raised
from leasequeue.worker.hand import Claimed, Failure, Outcome

if TYPE_CHECKING:
    from leasequeue.context import JobContext
    from leasequeue.worker.options import WorkerOptions

log = logging.getLogger("leasequeue.worker")

LOOK_SECONDS = 0.25
START_SECONDS = 60.0
"""The longest that a child may take to import the application."""
FAILED_START_SECONDS = 1.0
KILL_SECONDS = 2.0
"""How long a job that was told to stop may go on before its process is killed."""
COOPERATIVE_SECONDS = 5.0
"""The same for one that looks at ``cancelled``."""
END_SECONDS = 5.0
SEND_SECONDS = 5.0
"""How long a child may take to read what it is sent: a thread of its own reads, but a handler may keep the interpreter."""


class End(NamedTuple):
    """How the handler in a child ended."""

    verdict: Verdict
    has_raised: bool
    stopped_early: bool
    completed: bool
    killed: bool = False


class Sandbox:
    """One child process. Used by one thread at a time, but for :meth:`stop` and :meth:`soften`."""

    def __init__(self, options: WorkerOptions, memory_mib: float | None) -> None:
        """Start it. In a thread that lives as long as the process."""
        self._memory_mib = memory_mib
        self._rest = b""
        self._closed = False
        self._sending = threading.Lock()
        self._job: Claimed | None = None
        self._told = False
        self._kill_at = 0.0
        self._status: int | None = None
        self.jobs = 0
        ours, theirs = socket.socketpair()
        try:
            # A group of its own: what a job starts is killed with it, and no signal to the worker's group comes here. The
            # socket becomes its standard input, which no other child can inherit meanwhile.
            self.pid = os.posix_spawn(
                sys.executable,
                [sys.executable, "-m", "leasequeue.worker.sandbox", str(os.getpid())],
                os.environ,
                file_actions=[(os.POSIX_SPAWN_DUP2, theirs.fileno(), 0)],
                setpgroup=0,
                setsigmask=[],
            )
        except OSError:
            ours.close()
            raise
        finally:
            theirs.close()
        ours.settimeout(SEND_SECONDS)
        self._socket = ours
        self._send({"be": options.to_json()})

    # The two directions

    def _send(self, message: dict[str, Any]) -> None:
        with self._sending:
            self._send_locked(message)

    def _send_locked(self, message: dict[str, Any]) -> None:
        try:
            self._socket.sendall(json.dumps(message).encode() + b"\n")
        except OSError:
            self._closed = True  # it is dead, or does not read: half a message was sent, perhaps

    def _hear(self, seconds: float) -> list[dict[str, Any]]:
        """What it said, after at most so long; nothing when it is gone, which :attr:`_closed` says."""
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        if not poll.poll(max(0, int(seconds * 1000))):
            # Something that the job started may hold its end of the socket open.
            if self._reaped():
                self._closed = True
            return []
        try:
            piece = self._socket.recv(1 << 16)
        except OSError:
            piece = b""
        if not piece:
            self._closed = True
            return []
        *lines, self._rest = (self._rest + piece).split(b"\n")
        return [json.loads(line) for line in lines if line]

    # Its life

    def wait_ready(self, stopped: Callable[[], bool]) -> bool:
        """Wait until it has its application. False: it has not, and is gone."""
        until = time.monotonic() + START_SECONDS
        while not self._closed and not stopped():
            for message in self._hear(LOOK_SECONDS):
                if "ready" in message:
                    return True
                log.error("a child process cannot load the application: %s", message.get("refused"))
            if time.monotonic() > until:
                log.error("child process %d has not loaded the application within %g s", self.pid, START_SECONDS)
                break
        self.kill()
        return False

    def run(self, job: Claimed, ctx: JobContext) -> End:
        """Have it run a job, and wait for the end of it or of the child. For the slot's thread."""
        assert job.task is not None
        self.jobs += 1
        tries = Tries.of(job)
        began = time.monotonic()
        tick = ctx.tick.isoformat() if ctx.tick is not None else None
        self._begin(
            job,
            {
                "run": [job.id, job.term, str(job.holder)], "task": job.task_name, "queue": job.queue, "args": job.text,
                "attempt": job.attempt, "max_attempts": ctx.max_attempts, "tries": tries, "tick": tick,
                "linked": job.linked, "workflow": job.workflow,
            },
        )  # fmt: skip
        reason = ""
        while True:
            for message in self._hear(LOOK_SECONDS if not self._kill_at else 0.05):
                if "ended" in message:
                    if message["ended"]["progress"] is not None:
                        ctx.report(Said(*message["ended"]["progress"]))
                    with self._sending:
                        self._job = None  # who comes to stop it now must not have the next one killed
                    return _end(message["ended"])
                if "progress" in message:
                    ctx.report(Said(*message["progress"]))
                elif "completed" in message:
                    ctx.completed = True
                elif "cooperates" in message and self._kill_at:
                    self._kill_at += COOPERATIVE_SECONDS - KILL_SECONDS
            if self._closed:
                break
            if job.stop_reason is not None and not self._told:
                self.stop(job)
            if self._kill_at and time.monotonic() > self._kill_at:
                reason = "it was told to stop and did not"
                break
            used = self.memory_mib()
            if self._memory_mib is not None and used > self._memory_mib:
                reason = f"it used {used:.0f} MiB of memory, above process_memory_mib={self._memory_mib:g}"
                break
        self.kill()
        error = ProcessDied(job.id, self._status, reason)
        verdict = raised(job.task, tries, error, time.monotonic() - began)
        verdict = verdict._replace(failure=Failure("ProcessDied", str(error), None))
        # It may have completed the job in its own transaction without telling: the row knows.
        return End(verdict, True, False, job.stop_reason != "lost" or ctx.completed, job.stop_reason is not None)

    def _begin(self, job: Claimed, message: dict[str, Any]) -> None:
        with self._sending:
            self._job, self._told, self._kill_at = job, False, 0.0
            self._send_locked(message)

    def stop(self, job: Claimed) -> None:
        """Tell it that its job is to stop; it is killed when that goes on. Any thread."""
        ctx = job.ctx
        if ctx is not None and ctx.completed and job.stop_reason != "timeout":
            return
        if not self._sending.acquire(blocking=False):
            return  # the slot's thread is sending the job itself; it looks again when it has
        try:
            if self._job is job and not self._told:
                self._told = True
                self._kill_at = time.monotonic() + KILL_SECONDS
                self._send_locked({"stop": job.stop_reason, "job": [job.id, job.term]})
        finally:
            self._sending.release()

    def soften(self, job: Claimed) -> None:
        """Its job's soft timeout is over. Any thread."""
        self._send({"soft": True, "job": [job.id, job.term]})

    def memory_mib(self) -> float:
        """Its resident memory; 0.0 where the system does not say it in the way of Linux."""
        if self._memory_mib is None:
            return 0.0
        try:
            pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        except (OSError, IndexError, ValueError):
            return 0.0
        return pages * _PAGE / (1 << 20)

    def is_worn(self, jobs_max: int) -> bool:
        """Whether another is to take its place."""
        return self.jobs >= jobs_max or (self._memory_mib is not None and self.memory_mib() > self._memory_mib)

    def is_gone(self) -> bool:
        return self._closed or self._reaped()

    def retire(self) -> None:
        """Tell it to end in good order; see :meth:`is_gone`."""
        self._send({"end": True})

    def kill(self) -> None:
        """SIGKILL, for it and for what its job has started; waits for its end."""
        if not self._reaped():
            with contextlib.suppress(OSError):
                os.killpg(self.pid, signal.SIGKILL)
            with contextlib.suppress(OSError):
                os.kill(self.pid, signal.SIGKILL)  # the group is not made yet, in its first moment
            until = time.monotonic() + END_SECONDS
            while not self._reaped() and time.monotonic() < until:
                time.sleep(0.002)
        self.close()

    def close(self) -> None:
        self._closed = True
        self._socket.close()

    def _reaped(self) -> bool:
        if self._status is None:
            try:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
            except ChildProcessError:
                self._status = _UNKNOWN  # somebody else in this process has waited for it
            else:
                if pid:
                    self._status = os.waitstatus_to_exitcode(status)
        return self._status is not None


_UNKNOWN = 1 << 16
_PAGE = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096


def _end(said: dict[str, Any]) -> End:
    failure = Failure(*said["failure"]) if said["failure"] else None
    until = dt.datetime.fromisoformat(said["until"]) if said["until"] else None
    verdict = Verdict(Outcome[said["outcome"]], said["result"], failure, said["delay"], until)
    return End(verdict, said["raised"], said["early"], said["completed"])


class Pool:
    """The children of one worker process: made on demand, one for each job that runs in one at the same time. Thread-safe.

    Args:
        jobs_max: a child is replaced after so many.
        memory_mib: see ``LeaseQueue``.
    """

    def __init__(self, options: WorkerOptions, jobs_max: int, memory_mib: float | None) -> None:
        self._options = options
        self._jobs_max = jobs_max
        self._memory_mib = memory_mib
        self._lock = threading.Lock()
        self._idle: list[Sandbox] = []
        self._all: set[Sandbox] = set()
        self._wanted: SimpleQueue[Future[Sandbox] | Sandbox] = SimpleQueue()
        self._keeper: threading.Thread | None = None
        self._closing = False

    def take(self, stopped: Callable[[], bool]) -> Sandbox | None:
        """A child that is ready, after the start of a new one where none is idle.

        Args:
            stopped: whether the child is not wanted any more.

        Returns:
            None when it is not wanted, or could not be started, which is said.
        """
        while True:
            with self._lock:
                child = self._idle.pop() if self._idle else None
            if child is None:
                break
            if child.is_gone():
                self._drop(child)
            elif child.is_worn(self._jobs_max):  # it has grown since its job ended
                child.retire()
                self._wanted.put(child)
            else:
                return child
        if self._closing or stopped():
            return None
        try:
            child = self._start()
        except (OSError, RuntimeError) as error:
            log.error("a child process cannot be started: %s", error)
            time.sleep(FAILED_START_SECONDS)
            return None
        if child.wait_ready(stopped):
            return child
        self._drop(child)
        if not stopped():
            time.sleep(FAILED_START_SECONDS)  # one that cannot start will hardly do better at once
        return None

    def give_back(self, child: Sandbox) -> None:
        """Its job has ended, or it has."""
        if child.is_gone():
            self._drop(child)
        elif self._closing or child.is_worn(self._jobs_max):
            child.retire()
            self._wanted.put(child)
        else:
            with self._lock:
                self._idle.append(child)

    def close(self) -> None:
        """End all of them: the idle ones in good order, within some seconds, the others at once."""
        self._closing = True
        with self._lock:
            idle, self._idle = self._idle, []
            busy = self._all - set(idle)
        for child in idle:
            child.retire()
        until = time.monotonic() + END_SECONDS / 2
        while not all(child.is_gone() for child in idle) and time.monotonic() < until:
            time.sleep(0.005)
        for child in (*idle, *busy):
            with contextlib.suppress(OSError):
                os.killpg(child.pid, signal.SIGKILL)

    def __len__(self) -> int:
        return len(self._all)

    def _drop(self, child: Sandbox) -> None:
        child.kill()
        with self._lock:
            self._all.discard(child)

    def _start(self) -> Sandbox:
        with self._lock:
            if self._keeper is None:
                self._keeper = threading.Thread(target=self._keep, name="leasequeue-pool", daemon=True)
                self._keeper.start()
        wanted: Future[Sandbox] = Future()
        self._wanted.put(wanted)
        return wanted.result()

    def _keep(self) -> None:
        """Make children, and see retired ones to their end. The one thread that makes them; see the top of this file."""
        retired: dict[Sandbox, float] = {}
        while True:
            try:
                wanted = self._wanted.get(timeout=0.05 if retired else None)
            except Empty:
                wanted = None
            if isinstance(wanted, Sandbox):
                retired[wanted] = time.monotonic() + END_SECONDS
            elif wanted is not None:
                try:
                    child = Sandbox(self._options, self._memory_mib)
                except OSError as error:
                    wanted.set_exception(error)
                else:
                    with self._lock:
                        self._all.add(child)
                    wanted.set_result(child)
            now = time.monotonic()
            for child in [each for each, until in retired.items() if each.is_gone() or now > until]:
                del retired[child]
                self._drop(child)
