"""The supervisor: starts worker processes, sees them die, ends them in good order. It imports no application code.

    start ──> N processes that serve the queues, and a spare that has everything imported and runs suspects when needed
    a process dies          its leases are released at once; another is started (with a growing pause if it keeps dying)
    a process is silent     a handler holds the interpreter: its leases are renewed for it, up to a bound; then it is killed
    SIGTERM, SIGINT         stop: no claims, handlers end, unstarted jobs go back; after the timeout what is left goes back
    again, 1 s later        now

A signal that repeats within a second is the same one: systemd and Ctrl-C send it to the whole group, a shell once more.
"""

from __future__ import annotations

import datetime as dt
import logging
import os
import select
import signal
import time
from typing import Any

from leasequeue.db.connect import Link, Watchdog
from leasequeue.db.ends import end_statements
from leasequeue.db.jobs import job_statements
from leasequeue.db.urls import Settings
from leasequeue.db.workers import worker_statements
from leasequeue.loop import Outage
from leasequeue.ops.release import Release
from leasequeue.ops.schedules import definitions_from_json
from leasequeue.worker import logs, systemd
from leasequeue.worker.child import Child
from leasequeue.worker.http import HealthServer
from leasequeue.worker.options import WorkerOptions
from leasequeue.worker.salvage import FOR_SECONDS, OVERDUE_SECONDS, Dead, Salvage
from leasequeue.worker.tick import Ticker

log = logging.getLogger("leasequeue.supervisor")

EXIT_CONFIGURATION = 78
_EXIT_OVERDUE = 3
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD)

SAME_SIGNAL_SECONDS = 1.0
SPARE_AFTER_SECONDS = 2.0
"""The first of the processes that serve the queues is ready for so long before a spare is started: their first jobs have the
cores for themselves. Suspects do not wait for it."""

LOOK_MAX_SECONDS = 1.0
"""How often it looks whether a process is silent, and twelve times in a ttl at least. Deaths, signals and what a process says
wake it at once."""

RESTART_MAX_SECONDS = 10.0
STUCK_MAX_SECONDS = 600.0
"""How long leases are renewed for a process whose interpreter does not answer, where its jobs have no timeout."""


class Supervisor:
    """One ``leasequeue worker`` command. Everything here runs in its main thread."""

    def __init__(self, options: WorkerOptions) -> None:
        self._options = options
        self._children: dict[int, Child] = {}
        self._numbers = 0
        self._salvage: Salvage | None = None
        self._salvage_runs = False
        self._ticker: Ticker | None = None
        self._suspects = 0
        self._rescan = False
        self._stop_order: str | None = None
        self._order_given: str | None = None
        self._signalled = 0.0
        self._kill_at = 0.0
        self._start_at = 0.0
        self._deaths = 0
        self._status = 0
        self._ever_ready = False
        self._spare_at = 0.0
        self._silence_said: dict[int, float] = {}
        self._wake_read, self._wake_write = os.pipe()
        for fd in (self._wake_read, self._wake_write):
            os.set_blocking(fd, False)

    def run(self) -> int:
        """Supervise until told to stop; returns the exit status."""
        before = {number: signal.getsignal(number) for number in _SIGNALS}
        old_fd = signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
        for number in _SIGNALS:
            signal.signal(number, self._signalled_by)
        health = HealthServer(self._options.http, self.health) if self._options.http else None
        try:
            while not self._over():
                self._start_missing()
                self._listen(self._until_look())
                self._reap()
                self._watch()
                self._pass_on()
            return self._end()
        finally:
            if health is not None:
                health.close()
            signal.set_wakeup_fd(old_fd)
            for number, handler in before.items():
                signal.signal(number, handler)

    # Signals

    def _signalled_by(self, number: int, _frame: object) -> None:
        if number == signal.SIGCHLD:
            return
        now = time.monotonic()
        if self._signalled and now - self._signalled < SAME_SIGNAL_SECONDS:
            return
        self._signalled = now
        self._stop_order = "stop" if self._stop_order is None else "now"

    def _pass_on(self) -> None:
        """Do what a signal asked for; not in the signal handler itself."""
        order = self._stop_order
        if order is None or order == self._order_given:
            return
        self._order_given = order
        timeout = self._options.shutdown_timeout_seconds
        if order == "stop":
            log.info("stopping: claims end, %d s for what runs (a second signal: now)", timeout)
            self._kill_at = time.monotonic() + timeout + 12.0
        else:
            log.warning("stopping now")
            self._kill_at = time.monotonic() + 2.0
        systemd.notify("STOPPING=1")
        for child in self._children.values():
            child.stopped_by_us = True
            child.order(order, timeout_seconds=timeout)

    # Processes

    def _start_missing(self) -> None:
        if self._stop_order is not None or time.monotonic() < self._start_at:
            return
        serving = [child for child in self._children.values() if not child.alone]
        spares = [child for child in self._children.values() if child.alone]
        for _ in range(self._options.processes - len(serving)):
            self._start(alone=False)
        # One spare once the application is known to load; more while more suspects wait than spares run them.
        waiting = min(self._options.processes, max(1, self._suspects))
        due = self._suspects > 0 or time.monotonic() >= self._spare_at
        if self._ever_ready and due and len(spares) < waiting:
            self._start(alone=True)
        if not self._suspects:
            return
        for child in spares:
            if child.state == "loaded" and not child.summoned:
                child.summoned = True
                child.order("suspects")
                self._suspects = 0  # they are in mind until a spare is there that can be sent

    def _start(self, alone: bool) -> None:
        self._numbers += 1
        try:
            child = Child(self._numbers, self._options, alone)
        except OSError as error:
            # No memory, or no process left for this user: those that run go on.
            log.error("a worker process cannot be started: %s; trying again in %g s", error, RESTART_MAX_SECONDS)
            self._start_at = time.monotonic() + RESTART_MAX_SECONDS
            return
        self._children[child.pid] = child

    def _until_look(self) -> float:
        """Seconds until it has to look again by itself."""
        now = time.monotonic()
        dates = [at for at in (self._start_at, self._spare_at, self._kill_at) if at > now]
        return min([LOOK_MAX_SECONDS, self._options.ttl_seconds / 12, *(at - now for at in dates)])

    def _listen(self, seconds: float) -> None:
        by_fd = {child.events: child for child in self._children.values()}
        ready, _, _ = select.select([self._wake_read, *by_fd], [], [], seconds)
        for fd in ready:
            if fd == self._wake_read:
                os.read(self._wake_read, 4096)
                continue
            for event in by_fd[fd].heard():
                self._hear(by_fd[fd], event)
            # A pipe whose writer is gone is readable for ever; the death itself is seen by _reap.

    def _hear(self, child: Child, event: dict[str, Any]) -> None:
        kind = event["event"]
        if kind == "loaded":
            child.state = "loaded"
            if child.alone:
                log.debug("worker process %d stands by to run suspects", child.pid)
            if self._salvage is None:
                self._make_salvage(event)
        elif kind == "ready":
            child.state = "ready"
            self._let_salvage_run()
            if not child.alone and not self._ever_ready:
                self._ever_ready = True
                self._spare_at = time.monotonic() + SPARE_AFTER_SECONDS
                systemd.notify("READY=1")
                if self._ticker is not None:
                    self._ticker.start()  # not before: the tables are there, and a worker knows the tasks
        elif kind == "refused":
            child.refusal = str(event["message"])

    def _make_salvage(self, event: dict[str, Any]) -> None:
        settings = Settings.from_json(event["settings"])
        link = Link(settings, application_name="leasequeue supervisor", watchdog=Watchdog())
        self._salvage = Salvage(
            link, Outage(), job_statements(event["schema"]), end_statements(event["schema"]),
            worker_statements(event["schema"]).unregister,
            list(event["queues"]), self._options.ttl_seconds, self._options.max_abandoned,
            self._note_suspects, self._note_ready,
        )  # fmt: skip
        deployed = event["deployed_at"]
        release = Release(event["release"], dt.datetime.fromisoformat(deployed) if deployed else None)
        ticking = Link(settings, application_name="leasequeue ticker", watchdog=Watchdog())
        self._ticker = Ticker(ticking, Outage(), event["schema"], definitions_from_json(event["schedules"]), release)

    def _let_salvage_run(self) -> None:
        """Not before a process serves or has died: until then the tables may be missing, which the process says best."""
        if self._salvage is not None and not self._salvage_runs:
            self._salvage_runs = True
            self._salvage.start()

    def _note_suspects(self, count: int) -> None:
        self._suspects = count
        self._wake()

    def _note_ready(self) -> None:
        self._rescan = True
        self._wake()

    def _wake(self) -> None:
        try:
            os.write(self._wake_write, b"\0")
        except BlockingIOError:
            return  # it is awake

    def _reap(self) -> None:
        """As PID 1 orphans of others come here too; all are waited for."""
        if self._rescan:
            self._rescan = False
            for child in self._children.values():
                child.order("rescan")
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid in self._children:
                child = self._children.pop(pid)
                for event in child.heard():
                    self._hear(child, event)
                self._bury(child, status)

    def _bury(self, child: Child, status: int) -> None:
        code = os.waitstatus_to_exitcode(status)
        crashed = code != 0 and code != EXIT_CONFIGURATION and not (child.stopped_by_us or code == _EXIT_OVERDUE)
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with status {code}"
        reason = f"worker process {child.pid} {how}"
        if self._salvage is not None and child.state != "starting" and code not in (0, EXIT_CONFIGURATION):
            seconds = OVERDUE_SECONDS if code == _EXIT_OVERDUE else FOR_SECONDS
            self._salvage.release(Dead(child.prefix, child.page.started(), reason, crashed, child.alone, seconds))
            self._let_salvage_run()
        child.close()
        if child.refusal is not None:
            log.error("%s", child.refusal)
        if code == EXIT_CONFIGURATION:
            if not self._ever_ready:
                self._status = EXIT_CONFIGURATION
                self._signalled_by(signal.SIGTERM, None)
                return
            log.error("%s; another is started", reason)
        elif crashed:
            log.error("%s; another is started", reason)
        elif not (child.stopped_by_us or child.alone):
            log.warning("%s without being told to; another is started", reason)
        quick = time.monotonic() - child.started < 5.0 and code != 0 and child.state != "ready"
        self._deaths = self._deaths + 1 if quick else 0
        if self._deaths:
            # One that dies before it serves will hardly do better at once: an import that fails, a database that is away.
            pause = min(RESTART_MAX_SECONDS, 0.5 * 2 ** min(self._deaths, 5))
            self._start_at = time.monotonic() + pause

    # Watching

    def _watch(self) -> None:
        now = time.monotonic()
        if self._order_given is not None and now > self._kill_at:
            for child in self._children.values():
                log.error("worker process %d does not end; it is killed", child.pid)
                child.kill()
            self._kill_at = now + 2.0
        third = self._options.ttl_seconds / 6
        for child in self._children.values():
            silent = child.silent_seconds()
            if silent < max(0.75, third) or child.is_stopped():
                # A stopped process (SIGSTOP) must lose its leases: it may be stopped for ever.
                self._silence_said.pop(child.pid, None)
                continue
            started = child.page.started()
            bounds = [entry.deadline or now - silent + STUCK_MAX_SECONDS for entry in started]
            if started and now > max(bounds) + 1.0:
                log.error("worker process %d has not answered for %.0f s; it is killed", child.pid, silent)
                child.kill()
                continue
            if started and self._salvage is not None and now - self._silence_said.get(child.pid, 0.0) > third:
                self._silence_said[child.pid] = now
                self._salvage.renew_for(child.prefix, started, f"worker process {child.pid}")
        systemd.watchdog()

    def health(self) -> tuple[bool, bool, dict[str, Any]]:
        """Alive, ready, and why: read from the pages. Called from the health server's thread."""
        now = time.monotonic()
        processes = []
        alive = ready = True
        for child in list(self._children.values()):
            if child.alone:
                continue
            turns = {name: child.page.read(f"{name}_turn") for name in ("claim", "renew", "complete")}
            answers = {name: child.page.read(f"{name}_ok") for name in ("claim", "renew", "complete")}
            stuck = [name for name, began in turns.items() if began and now - began > 30.0]
            # Claims and renewals come all the time, so an old answer is no answer.
            away = [name for name in ("claim", "renew") if not answers[name] or now - answers[name] > 15.0]
            silent = child.silent_seconds()
            alive = alive and not stuck and silent < 30.0
            ready = ready and child.state == "ready" and not away
            processes.append(
                {
                    "pid": child.pid,
                    "state": child.state,
                    "silent_seconds": round(silent, 3),
                    "stuck": stuck,
                    "turn_seconds": {name: round(now - began, 1) for name, began in turns.items() if began},
                    "without_answer": away,
                    "completed": int(child.page.read("completed")),
                    "failed": int(child.page.read("failed")),
                    "refused": int(child.page.read("refused")),
                }
            )
        ticker: dict[str, Any] | None = None
        if self._ticker is not None and self._ever_ready:
            silent = now - self._ticker.answered
            ready = ready and silent < 15.0
            ticker = {"without_answer_seconds": round(silent, 1), "unwritten": self._ticker.unwritten}
        ready = ready and bool(processes) and self._stop_order is None
        return alive, ready, {"alive": alive, "ready": ready, "processes": processes, "ticker": ticker}

    # The end

    def _over(self) -> bool:
        return self._order_given is not None and not self._children

    def _end(self) -> int:
        if self._ticker is not None and self._ever_ready:
            self._ticker.stop()
            self._ticker.join(6.0)
        if self._salvage is not None and self._salvage_runs:
            # What overdue processes held goes back before we end; not longer than one statement bound.
            self._salvage.stop()
            self._salvage.join(6.0)
        log.info("stopped")
        return self._status


def main(options: WorkerOptions) -> int:
    """Run a supervised worker in this process; returns the exit status. POSIX only."""
    logs.configure(options.log_format, options.log_level)
    return Supervisor(options).run()
