"""One worker process: where its parts are put together, and the order in which they begin and end.

Started by the supervisor with three inherited descriptors: orders come in on the first, events go out on the second (a
JSON object a line), the third is the shared page. Its main thread obeys the orders and gives the beat.

    begin: lifespan, handlers, completer, renewer, claimer          (nothing is held before it can be renewed)
    end:   claimer, unstarted jobs back, handlers, completer, renewer          (renewed until the last end is written)
"""

from __future__ import annotations

import gc
import json
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from leasequeue.db import peek
from leasequeue.db.connect import Link, Watchdog
from leasequeue.db.ends import end_statements
from leasequeue.db.gates import gate_statements
from leasequeue.db.jobs import job_statements
from leasequeue.db.urls import Settings
from leasequeue.db.version import LINK_PROBE, check, parse
from leasequeue.db.workers import worker_statements
from leasequeue.errors import LeaseQueueError, SchemaMismatch
from leasequeue.loop import Loop, Outage
from leasequeue.schedule import deployed_at, to_json
from leasequeue.worker import logs
from leasequeue.worker.app import application
from leasequeue.worker.chores import Presence, for_all
from leasequeue.worker.claim import Claimer
from leasequeue.worker.complete import Completer
from leasequeue.worker.declare import declare_limits
from leasequeue.worker.execute import Executor
from leasequeue.worker.gate import Gate
from leasequeue.worker.hand import Claimed, Ended, Hand, Holder, Outcome, Slots, holder_range
from leasequeue.worker.options import WorkerOptions
from leasequeue.worker.page import Page
from leasequeue.worker.pipe import Pipe
from leasequeue.worker.pool import Pool
from leasequeue.worker.progress import ProgressWriter
from leasequeue.worker.relay import Relay
from leasequeue.worker.renew import Renewer
from leasequeue.worker.strays import Strays
from leasequeue.worker.suspects import SuspectClaimer
from leasequeue.worker.wake import WakeMode

if TYPE_CHECKING:
    from leasequeue.queue import LeaseQueue

log = logging.getLogger("leasequeue.worker")

EXIT_CLEAN = 0
EXIT_OVERDUE = 3
"""Handlers were still running at the end of the shutdown timeout; the supervisor puts their jobs back."""
EXIT_CONFIGURATION = 78

BEAT_SECONDS = 0.25
REST_BEAT_SECONDS = 0.6
"""While nothing is in hand, and for a second nothing was: less than the supervisor takes for silence."""

SPARE_BEAT_SECONDS = 2.0
STATEMENT_BOUND_SECONDS = 5.0
DEFAULT_SLOTS = 10
GC_THRESHOLD = 5000
"""New objects after which the youngest are looked through. One batch of jobs has thousands, and none of them is a cycle."""


class Process:
    """The parts of one worker process.

    Args:
        alone: run suspects, one at a time, until there are none; otherwise serve the queues.
    """

    def __init__(
        self,
        lq: LeaseQueue,
        options: WorkerOptions,
        settings: Settings,
        page: Page,
        prefix: bytes,
        alone: bool,
    ) -> None:
        self._lq = lq
        self._options = options
        self._page = page
        self._alone = alone
        schema = lq.schema
        sql = job_statements(schema)
        ends = end_statements(schema)
        control = Settings.parse(options.control_url) if options.control_url else settings
        watchdog = Watchdog()
        # A statement must not outlast the lease that it is about.
        bound = min(STATEMENT_BOUND_SECONDS, options.ttl_seconds / 3)

        def link(part: str, where: Settings = settings) -> Link:
            return Link(where, application_name=f"leasequeue {part}", watchdog=watchdog, bound_seconds=bound)

        self.hand = Hand()
        self._rested = 0
        outage = Outage()
        queues = queues_of(lq, options)
        # Suspects come from any queue, one at a time: one slot serves them all.
        reserved = dict(options.reserved)
        self.slots = [
            Slots(name, size, reserved.get(name, 0), lq.ageing_seconds(name))
            for name, size in ([("suspects", 1)] if alone else queues)
        ]
        name = f"{socket.gethostname()}:{os.getpid()}"
        back = "q" if alone else "r"
        self.completer = Completer(link("completer"), outage, sql, page, self.hand, lq.keeps, name, back, ends)
        margin = max(min(1.0, options.ttl_seconds / 2), options.ttl_seconds / 5)
        self._pool = Pool(options, lq.process_jobs, lq.process_memory_mib)
        self._relay = relay = Relay(self.completer.finish, lq.keeps)
        self.executor = Executor(
            lq, self.slots, page, self.completer.finish, relay.offer, options.ttl_seconds - margin, self._pool
        )
        self.wake_mode = WakeMode(settings, schema, options.poll_only)
        holder = Holder(prefix)
        self._strays = strays = Strays(sql, self.hand, STATEMENT_BOUND_SECONDS)
        if alone:
            self.claimer: Claimer | SuspectClaimer = SuspectClaimer(
                link("suspects"), outage, sql, gate_statements(schema), self.hand, holder, self.slots[0], self.executor,
                lq.registry.get, strays, [queue for queue, _ in queues], options.ttl_seconds,
            )  # fmt: skip
        else:
            self.claimer = Claimer(
                link("claimer"), outage, sql, page, self.hand, holder, self.slots, self.executor,
                lq.registry.get, self.completer.finish, strays, self.wake_mode, self._gate(queues), relay,
                peek.statements(schema)["idle"], options.ttl_seconds,
            )  # fmt: skip
            self.completer.freed = self.claimer.freed
            self.completer.released = self.claimer.released
        strays.found = self.claimer.rescan
        self._presence = Presence(
            worker_statements(schema),
            {
                "id": holder_range(prefix)[0],
                "host": socket.gethostname(),
                "pid": os.getpid(),
                "version": version("leasequeue"),
                "release": os.environ.get("LEASEQUEUE_RELEASE"),
                "queues": json.dumps(dict(queues)),
                "tasks": json.dumps(sorted(lq.registry.names)),
                "schedules": json.dumps(sorted(definition.name for definition in lq.definitions())),
            },
            self.counters,
            options.ttl_seconds,
        )
        self.completer.progress = progress = ProgressWriter(schema, self.hand)
        chores: list[Callable[[Link], None]] = [strays.release, self.wake_mode.prove, self._presence, progress]
        if not alone:
            chores += for_all(schema, self.claimer.rescan, options.max_abandoned, lq.retentions())
        self.renewer = Renewer(
            link("renewer", control), outage, sql, page, self.hand, self.executor, options.ttl_seconds,
            chores, self._presence.leave, hurrying=alone,
        )  # fmt: skip
        self.wake_mode.on_cancel = self.renewer.asked

    def _gate(self, queues: list[tuple[str, int]]) -> Gate:
        gated = any(task.gate is not None for task in self._lq.registry)
        return Gate(gate_statements(self._lq.schema), [name for name, _ in queues], gated, self._options.ttl_seconds)

    def counters(self) -> dict[str, Any]:
        """What the worker's row shows."""
        return {
            "held": len(self.hand),
            "running": sum(1 for job in self.hand.jobs() if job.ctx is not None and not job.ended),
            "completed": self.completer.completed,
            "failed": self.completer.failed,
            "refused": self.completer.refused,
            "lost": self.renewer.lost,
            "claims": self.claimer.claims,
            "claim_ms": round(self.claimer.claim_seconds * 1000),
            "unknown": dict(self.completer.put_back),
            "lost_slots": sum(slots.lost for slots in self.slots),
            "overstaying": self.executor.warden.overstaying(),
            "wake": self.wake_mode.describe(),
            "reserved": {slots.name: slots.high for slots in self.slots if slots.high},
        }

    def begin(self, keep_waiting: Callable[[float], bool]) -> bool:
        """Check the tables, then start everything. Waits for the database as long as it takes.

        Args:
            keep_waiting: waits a little, between two attempts; False when this process is to end.

        Returns:
            False when it was told to end before the database answered; nothing is started then.

        Raises:
            SchemaMismatch: the tables are missing or of another version.
        """
        link = self.claimer.link

        def sleep(seconds: float) -> None:
            if not keep_waiting(seconds):
                self.claimer.stop()

        self.claimer.connect(sleep)
        if not link.connected:
            return False
        schema = self._lq.schema
        found = parse(link.run(LINK_PROBE, {"schema": schema})[0][0])
        check(found, schema)
        declare_limits(link, self._lq, self._options.app)
        self.executor.start()
        self.completer.start()
        self.renewer.start()
        self.claimer.start()
        queues = ", ".join(map(str, self.slots))
        names = sorted(self._lq.registry.names)
        log.info(
            "started: database %s, schema %s version %s, wake-up by %s, queues %s, %d tasks (%s)",
            link.settings.masked, schema, found, self.wake_mode.describe(), queues,
            len(names), ", ".join(names[:8]) + (", ..." if len(names) > 8 else ""),
        )  # fmt: skip
        return True

    def running(self) -> list[Claimed]:
        return [job for job in self.hand.jobs() if job.ctx is not None and not job.ended]

    def busy(self) -> bool:
        """Whether a handler runs, or a claimed job waits for one."""
        # Not one that goes on though its attempt was given up: there is no end of it to wait for.
        return sum(slots.in_hand() for slots in self.slots) > self.executor.warden.given_up()

    def beat(self) -> None:
        """The interpreter runs: the supervisor sees it on the page."""
        self._page.stamp("beat")
        now = time.monotonic()
        self.executor.warden.look(now)
        self._relay.look(now)
        for slots in self.slots:
            slots.ready.nudge(now)

    def seconds_to_beat(self, wake: Callable[[], None]) -> float:
        """Until the next beat.

        Args:
            wake: called when something comes into the hand in a long pause: its timeout, too, is looked after here.
        """
        self.hand.filled = wake  # before the look: what comes in afterwards wakes
        self._rested = 0 if len(self.hand) else self._rested + 1
        if self._rested * BEAT_SECONDS >= 1.0:
            return REST_BEAT_SECONDS
        self.hand.filled = None
        return BEAT_SECONDS

    def end(self, timeout_seconds: float, keep_beating: Callable[[float], bool], orphaned: Callable[[], bool]) -> int:
        """End in good order.

        Args:
            timeout_seconds: how long handlers may go on.
            keep_beating: waits a little, beating; False when everything must end now.
            orphaned: whether the supervisor is gone, so that nobody will put back what still runs.

        Returns:
            The exit status.
        """
        deadline = time.monotonic() + timeout_seconds
        self.claimer.stop()
        self._relay.end()
        self._wait_for(self.claimer)
        self.renewer.hurry()  # with the claimer its notifications end, and a job can be cancelled still
        self.executor.finish_serving()
        while self.busy() and time.monotonic() < deadline and keep_beating(0.02):
            pass
        if self.busy():
            late = self.running()
            log.warning(
                "the shutdown timeout is over: %d jobs are told to stop (%s)",
                len(late), ", ".join(f"{job.id} {job.task_name}" for job in late[:5]),
            )  # fmt: skip
            for job in late:
                self.executor.stop_job(job, "shutdown")
            grace = time.monotonic() + 1.0
            while self.busy() and time.monotonic() < grace:
                keep_beating(0.02)
        left = self.running()
        if left and orphaned():
            for job in left:
                self.completer.finish(Ended(job, Outcome.UNSTARTED))
        self.completer.stop()
        written = self._wait_for(self.completer)
        self._pool.close()
        if not left:
            try:
                self.executor.leave_lifespan()
            except Exception:  # it is the application's own code
                log.exception("the application's lifespan did not end in good order")
        self.renewer.stop()
        self._wait_for(self.renewer)
        if not written:
            log.error("the database did not take the last %d ends", len(self.hand))
        # Whatever is or may still be held is for the supervisor to put back: a claim that came back after the completer's
        # end, or one whose connection broke, so that nobody knows what it took.
        unsure = self.claimer.broken or self._strays.pending()
        return EXIT_OVERDUE if left or not written or len(self.hand) or unsure else EXIT_CLEAN

    def _wait_for(self, loop: Loop) -> bool:
        """Wait one statement bound for the end of a loop, beating: a silent process looks stuck and may be killed."""
        until = time.monotonic() + STATEMENT_BOUND_SECONDS
        while not loop.join(0.05):
            if time.monotonic() > until:
                return False
            self.beat()
        return True


def queues_of(lq: LeaseQueue, options: WorkerOptions) -> list[tuple[str, int]]:
    """The queues to serve and their slots: those asked for, or every queue that a task of the application names."""
    if options.queues:
        return list(options.queues)
    names = {task.queue for task in lq.registry} | {"default"}
    return [(name, DEFAULT_SLOTS) for name in sorted(names)]


def run(pipe: Pipe, page: Page) -> int:
    """The life of a worker process; returns its exit status."""
    birth = pipe.first()
    options = WorkerOptions.from_json(birth["options"])
    logs.configure(options.log_format, options.log_level)
    try:
        lq, settings = application(options)
        deployed = deployed_at()
    except LeaseQueueError as error:
        pipe.tell({"event": "refused", "message": str(error)})
        return EXIT_CONFIGURATION
    control = Settings.parse(options.control_url) if options.control_url else settings
    queues = [name for name, _ in queues_of(lq, options)]
    # What the application has loaded stays: the collector need not walk it again for each few thousand jobs.
    gc.collect()
    gc.freeze()
    gc.set_threshold(GC_THRESHOLD, *gc.get_threshold()[1:])
    pipe.tell(
        {
            "event": "loaded",
            "settings": control.to_json(),
            "schema": lq.schema,
            "queues": queues,
            "schedules": to_json(lq.definitions()),
            "release": os.environ.get("LEASEQUEUE_RELEASE"),
            "deployed_at": deployed.isoformat() if deployed else None,
        }
    )
    page.stamp("beat")
    alone = bool(birth["alone"])
    while alone:  # a spare: everything is imported, nothing is connected, until it is needed
        page.stamp("beat")
        orders = {order["order"] for order in pipe.orders(SPARE_BEAT_SECONDS)}
        if pipe.closed or orders & {"stop", "now"}:
            return EXIT_CLEAN
        if "suspects" in orders:
            break
    process = Process(lq, options, settings, page, bytes.fromhex(birth["prefix"]), alone)

    def keep_waiting(seconds: float) -> bool:
        page.stamp("beat")
        return not pipe.closed and not {order["order"] for order in pipe.orders(seconds)} & {"stop", "now"}

    try:
        if not process.begin(keep_waiting):
            return EXIT_CLEAN
    except SchemaMismatch as error:
        pipe.tell({"event": "refused", "message": str(error)})
        return EXIT_CONFIGURATION
    pipe.tell({"event": "ready"})
    return _obey(process, pipe, options)


def _obey(process: Process, pipe: Pipe, options: WorkerOptions) -> int:
    now = False

    def keep_beating(seconds: float) -> bool:
        nonlocal now
        process.beat()
        for order in pipe.orders(seconds):
            if order["order"] == "now":
                now = True
        return not now

    while True:
        process.beat()
        for order in pipe.orders(process.seconds_to_beat(pipe.wake)):
            kind = order["order"]
            if kind == "stop":
                return process.end(float(order["timeout_seconds"]), keep_beating, lambda: pipe.closed)
            if kind == "now":
                return process.end(0.0, keep_beating, lambda: pipe.closed)
            if kind == "rescan":
                process.claimer.rescan()
        if pipe.closed:
            log.error("the supervisor is gone: finishing what runs, then ending")
            return process.end(options.shutdown_timeout_seconds, keep_beating, lambda: True)
        if process.claimer.join(0.0):
            return process.end(options.shutdown_timeout_seconds, keep_beating, lambda: pipe.closed)


def main() -> None:
    # The supervisor alone decides about signals: systemd and a terminal send them to the whole group. Handlers, not
    # SIG_IGN, which the programs that a job starts would inherit.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: None)
    signal.pthread_sigmask(signal.SIG_SETMASK, set())
    orders_fd, events_fd, page_fd = (int(word) for word in sys.argv[1:4])
    for fd in (orders_fd, events_fd, page_fd):
        os.set_inheritable(fd, False)
    pipe = Pipe(orders_fd, events_fd)
    try:
        status = run(pipe, Page(page_fd))
    except Exception:
        log.exception("the worker process failed")
        status = 1
    pipe.tell({"event": "bye"})
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    if status == EXIT_CLEAN:
        sys.exit(status)
    os._exit(status)  # handlers that would not stop are still running in threads


if __name__ == "__main__":
    main()
