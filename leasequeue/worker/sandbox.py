"""A child process of a worker process: it runs the handlers of ``executor="process"``, one job at a time.

    python -m leasequeue.worker.sandbox PID      (the socket to the worker process PID is its standard input)

It has the application, its own lifespan and middleware. Handlers run in its main thread; a second thread reads what the worker
says. It ends when it is told to, and at once when the worker is gone, whatever it does.
"""

from __future__ import annotations

import asyncio
import ctypes
import faulthandler
import json
import logging
import os
import signal
import socket
import sys
import threading
import time
import uuid
from collections.abc import Callable
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from leasequeue.context import JobContext, Said, _current
from leasequeue.errors import LeaseQueueError
from leasequeue.job import Held
from leasequeue.raising import JobInterrupted, JobTimeout
from leasequeue.worker import logs
from leasequeue.worker.app import application
from leasequeue.worker.attempt import Tries, decode, raised, returned
from leasequeue.worker.execute import due_time
from leasequeue.worker.options import WorkerOptions
from leasequeue.worker.warden import soften
from leasequeue.worker.window import Window

if TYPE_CHECKING:
    from leasequeue.db.kinds import AsyncConn, SyncConn
    from leasequeue.queue import LeaseQueue

log = logging.getLogger("leasequeue.job")

_PR_SET_PDEATHSIG = 1
REPORT_SECONDS = 0.25


class _Line:
    """The socket to the worker process: a JSON object a line, both ways. Sending is thread-safe."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._reader = connection.makefile("rb")
        self._sending = threading.Lock()

    def tell(self, message: dict[str, Any]) -> None:
        data = json.dumps(message).encode() + b"\n"
        with self._sending:
            self._connection.sendall(data)

    def hear(self) -> dict[str, Any]:
        """The next order. Ends this process at once where the worker process is gone."""
        try:
            line = self._reader.readline()
        except OSError:
            line = b""
        if not line:
            os._exit(1)
        order: dict[str, Any] = json.loads(line)
        return order


class _Context(JobContext):
    """The context of a job in a child: the worker process must know when the job's row is about to go."""

    __slots__ = ("line",)
    line: _Line

    def complete(self, conn: SyncConn, /, result: object = None) -> None:
        super().complete(conn, result)
        self.line.tell({"completed": True})

    async def acomplete(self, conn: AsyncConn, /, result: object = None) -> None:
        await super().acomplete(conn, result)
        self.line.tell({"completed": True})


class Child:
    """The handlers' side. :meth:`serve` is for the main thread."""

    def __init__(self, lq: LeaseQueue, line: _Line, state: Any) -> None:
        self._lq = lq
        self._line = line
        self._state = state
        self._window = Window()
        self._orders: SimpleQueue[dict[str, Any] | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._job: list[int] | None = None
        self._ctx: _Context | None = None
        self._told: str | None = None

    def serve(self) -> None:
        """Run jobs until told to end."""
        threading.Thread(target=self._listen, name="leasequeue-orders", daemon=True).start()
        while (order := self._orders.get()) is not None:
            said = self._run(order)
            sys.stdout.flush()
            sys.stderr.flush()
            self._line.tell({"ended": said})

    def _listen(self) -> None:
        while True:
            order = self._line.hear()
            if "end" in order:
                self._orders.put(None)
            elif "run" in order:
                with self._lock:
                    # Before the main thread takes it: an order to stop it may come next.
                    self._job, self._told, self._ctx = order["run"][:2], None, None
                self._orders.put(order)
            else:
                self._disturb(order)

    def _disturb(self, order: dict[str, Any]) -> None:
        with self._lock:
            if self._job != order["job"]:
                return  # it has ended meanwhile
            ctx = self._ctx
            if "stop" in order:
                self._told = str(order["stop"])
        if ctx is None:
            return
        if "soft" in order:
            task = self._lq.registry.get(ctx.task)
            if task is not None:
                soften(task, ctx)
            return
        cooperates = ctx.looked
        ctx.stop()
        if cooperates:
            self._line.tell({"cooperates": True})
        elif not ctx.completed:
            self._window.interrupt(ctx, JobTimeout if self._told == "timeout" else JobInterrupted)

    def _run(self, order: dict[str, Any]) -> dict[str, Any]:
        began = time.monotonic()
        id, term, holder = order["run"]
        queue, tries = order["queue"], Tries(*order["tries"])
        ctx = _Context(
            Held(id, term, uuid.UUID(holder)), order["task"], queue, order["attempt"], order["max_attempts"],
            self._state, self._lq.schema, self._lq.keeps(queue), due_time(order["tick"]),
            order["linked"], order["workflow"], self._lq,
        )  # fmt: skip
        ctx.line = self._line
        ctx._report = self._reporter()
        task = self._lq.registry.get(order["task"])

        def call() -> Any:
            with self._lock:
                self._ctx = ctx
                told = self._told
            if told is not None:  # before there was anything to interrupt
                raise JobInterrupted
            # A deploy may have put another release here since the worker process has loaded its own.
            known = self._lq.registry[order["task"]]
            return self._lq.handler(known)(ctx, decode(known, order["args"]))

        token = _current.set(ctx)
        value, error = self._window.run(ctx, call)
        _current.reset(token)
        with self._lock:
            self._job = self._ctx = None
        seconds = time.monotonic() - began
        if error is None and task is not None:
            verdict = returned(task, tries, value, seconds)
        else:
            verdict = raised(task, tries, error or JobInterrupted(), seconds)
        return {
            "outcome": verdict.outcome.name,
            "result": verdict.result,
            "failure": verdict.failure,
            "delay": verdict.delay_seconds,
            "until": verdict.until.isoformat() if verdict.until is not None else None,
            "raised": error is not None,
            "early": ctx.stopped_early,
            "completed": ctx.completed,
            "progress": ctx.reported,
        }

    def _reporter(self) -> Callable[[Said], None]:
        """Hands on what the handler says of its progress, a few times a second; the last word comes with the end."""
        due = 0.0

        def report(said: Said) -> None:
            nonlocal due
            now = time.monotonic()
            if now >= due:
                due = now + REPORT_SECONDS
                self._line.tell({"progress": said})

        return report


def _die_with(parent: int) -> None:
    """Have the kernel kill this process when its worker process ends, where the kernel can (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)  # it ended before it was asked


def main() -> None:
    parent = int(sys.argv[1])
    _die_with(parent)
    # Handlers, not SIG_IGN, which the programs that a job starts would inherit. The worker process decides when this ends.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: None)
    line = _Line(socket.socket(fileno=os.dup(0)))
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    faulthandler.enable(all_threads=False)
    options = WorkerOptions.from_json(line.hear()["be"])
    logs.configure(options.log_format, options.log_level)
    loop = asyncio.new_event_loop()
    try:
        lq, _ = application(options, quiet=True)
        entered = lq.enter_lifespan()
        state = loop.run_until_complete(entered) if asyncio.iscoroutine(entered) else entered
    except LeaseQueueError as error:
        line.tell({"refused": str(error)})
        sys.exit(1)
    except Exception as error:  # it is the application's own code
        log.exception("the application's lifespan cannot be entered")
        line.tell({"refused": f"{type(error).__name__}: {error}"})
        sys.exit(1)
    child = Child(lq, line, state)
    line.tell({"ready": True})
    child.serve()
    left = lq.exit_lifespan()
    if asyncio.iscoroutine(left):
        loop.run_until_complete(left)
    loop.close()
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # threads that handlers have left behind must not keep it


if __name__ == "__main__":
    main()
