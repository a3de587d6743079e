"""``LeaderGate``: see the package."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import logging
import queue
import threading
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

from apscheduler import events
from apscheduler.executors.base import MaxInstancesReachedError
from apscheduler.executors.pool import ProcessPoolExecutor
from apscheduler.jobstores.base import JobLookupError
from apscheduler.schedulers import SchedulerNotRunningError
from apscheduler.schedulers.asyncio import AsyncIOScheduler
from apscheduler.schedulers.background import BackgroundScheduler

from leasequeue.contrib.apscheduler.accounting import after, judge, owed
from leasequeue.contrib.apscheduler.executor import Gated, check
from leasequeue.contrib.apscheduler.ledger import Ledger, now
from leasequeue.db.gate import Tick
from leasequeue.errors import ConfigurationError, LeaseLost
from leasequeue.tick import CATCH_UP

if TYPE_CHECKING:
    from leasequeue.lease import Leader, Lease
    from leasequeue.queue import LeaseQueue

log = logging.getLogger("leasequeue.gate")

FLUSH_SECONDS = 5.0
_A_MOMENT = dt.timedelta(microseconds=1)
_HEARD = (
    events.EVENT_JOB_MISSED
    | events.EVENT_JOB_MAX_INSTANCES
    | events.EVENT_JOB_ADDED
    | events.EVENT_JOB_MODIFIED
    | events.EVENT_EXECUTOR_ADDED
    | events.EVENT_JOBSTORE_ADDED
)


class LeaderGate:
    """Keeps a scheduler of which only the leader fires. Thread-safe; used once.

    It starts the scheduler, paused, and ends it. Jobs are added by the application as ever, in each process the same ones,
    with ids of their own and triggers without jitter; one that is added later and is not like that is removed again, and an
    error is logged. APScheduler says EVENT_JOB_EXECUTED also of a run that the ledger refused; what
    ran is what the ledger says. A change of a job's trigger is an event of the ledger, and begins its times anew.

    Args:
        scheduler: a ``BackgroundScheduler`` or ``AsyncIOScheduler`` that is not started; the latter is started and stopped
            within its event loop, by ``async with gate``.
        lq: where the ledger is, and through whose engine it is written.
        name: of the lease.
        ttl: what a leader that was killed costs; see ``lq.lease``.
        catch_up: what runs of the due times that nobody settled: ``latest``: the last one, ``all``: each, ``none``: what the
            job's own ``misfire_grace_time`` and ``coalesce`` would have let through.
        owner, eligible: see ``lq.leader``.

    Raises:
        ConfigurationError: any of these cannot be.
    """

    def __init__(
        self,
        scheduler: Any,
        lq: LeaseQueue,
        name: str = "scheduler",
        *,
        ttl: dt.timedelta = dt.timedelta(seconds=30),
        catch_up: str = "latest",
        owner: str | None = None,
        eligible: Callable[[], bool] | None = None,
    ) -> None:
        if not isinstance(scheduler, BackgroundScheduler | AsyncIOScheduler):
            raise ConfigurationError(
                f"a LeaderGate keeps a BackgroundScheduler or an AsyncIOScheduler of APScheduler 3.11, not {scheduler!r}"
            )
        if catch_up not in CATCH_UP:
            raise ConfigurationError(f"catch_up is one of {', '.join(map(repr, CATCH_UP))}, not {catch_up!r}")
        self.scheduler = scheduler
        self.leader = lq.leader(
            name, ttl=ttl, owner=owner, eligible=eligible, on_elected=self._elected, on_lost=self._lost
        )
        self.lq = lq
        self.ledger = Ledger(lq)
        self._catch_up = catch_up
        self._lock = threading.Lock()
        self._rising: Lease | None = None
        self._lease: Lease | None = None
        self._since: dt.datetime | None = None
        self._clerk = Clerk()

    # What the application asks

    @property
    def is_leader(self) -> bool:
        """Whether this process fires: by its own clock, without asking anybody."""
        lease = self._lease
        return lease is not None and lease.is_held

    @property
    def term(self) -> int | None:
        """The term in which it fires; None when it does not."""
        lease = self._lease
        return lease.term if lease is not None and lease.is_held else None

    @property
    def since(self) -> dt.datetime | None:
        """Since when it fires; None when it does not."""
        return self._since if self.is_leader else None

    @property
    def lease(self) -> Lease | None:
        """The lease under which it fires, or None."""
        return self._lease

    def start(self) -> None:
        """Start the scheduler, paused, and stand for leadership. Nothing is asked of the database before.

        Raises:
            ConfigurationError: the scheduler is started already, or a job of it cannot be kept; nothing was started.
        """
        if self.scheduler.running:
            raise ConfigurationError("the scheduler is started already: leave that to the gate, which starts it paused")
        for job in self.scheduler.get_jobs():
            check(job)
        executors = dict(self.scheduler._executors)
        executors.setdefault("default", self.scheduler._create_default_executor())
        for alias, inner in executors.items():
            self._wrap(alias, inner)
        self.scheduler.add_listener(self._heard, _HEARD)
        self.scheduler.start(paused=True)
        self._clerk.start()
        self.leader.start()

    def stop(self, wait: bool = True) -> None:
        """Fire no more, give the leadership back, then end the scheduler.

        Args:
            wait: until the runs that began have ended (a ``BackgroundScheduler`` only). Another leads meanwhile.
        """
        self._resign()
        if self.scheduler.running:
            self.scheduler.shutdown(wait=wait)

    def _resign(self) -> None:
        self._pause()
        self._clerk.stop(FLUSH_SECONDS)
        self.leader.stop()

    def __enter__(self) -> LeaderGate:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    async def __aenter__(self) -> LeaderGate:
        self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self._resign)
        if self.scheduler.running:
            self.scheduler.shutdown()

    # Leadership

    def _elected(self, me: Leader) -> None:
        with self._lock:
            lease = self._rising = me.lease
        jobs = [job for job in self.scheduler.get_jobs() if self._keeps(job, job._jobstore_alias)]
        runs = [each for job in jobs if (each := self._account(lease, job)) is not None]
        with self._lock:
            if self._rising is not lease:
                return  # lost meanwhile, and on_lost was called
            lease.check()
            self._lease, self._since = lease, now()
            for job, times in runs:
                self._submit(lease, job, times)
            self.scheduler.resume()

    def _lost(self, me: Leader) -> None:
        with self._lock:
            self._rising = self._lease = None
        self._pause()

    def _pause(self) -> None:
        try:
            self.scheduler.pause()
        except SchedulerNotRunningError:
            log.debug("the scheduler was stopped before its gate")

    # What nobody settled

    def _account(self, lease: Lease, job: Any) -> tuple[Any, list[dt.datetime]] | None:
        """Settle what nobody settled of a job, and set it to its next due time. What of it is to run is returned."""
        clock = now()
        first, settled = self._begins(lease, job, clock)
        paused = job.next_run_time is None
        found = owed(job.trigger, first, settled, clock)
        verdict = judge(
            found, clock, self._catch_up, paused=paused, grace_seconds=job.misfire_grace_time, coalesce=job.coalesce
        )
        ticks = list(verdict.ticks)
        if found.beyond is not None:
            ticks.append(Tick(clock, "redefined", _definition(job)))  # the next walk begins here
        self.ledger.write(lease, job.id, ticks)
        if found.times:
            many = len(found.times)
            log.info("job %r: %d due times had nobody who led; %d of them run now", job.id, many, len(verdict.runs))
        if not paused:
            try:
                if found.next_at is None:
                    self.scheduler.remove_job(job.id, job._jobstore_alias)  # as APScheduler does where a trigger ends
                else:
                    self.scheduler.modify_job(job.id, job._jobstore_alias, next_run_time=found.next_at)
            except JobLookupError:
                return None  # the application removed it meanwhile
        return (job, list(verdict.runs)) if verdict.runs else None

    def _begins(self, lease: Lease, job: Any, clock: dt.datetime) -> tuple[dt.datetime | None, list[dt.datetime]]:
        """Where the walk begins, and what is settled from there on."""
        definition = _definition(job)
        known = self.ledger.known(lease, job.id)
        settled = known.due_at
        if known.definition == definition and known.defined_at is not None:
            settled = [at for at in settled if at > known.defined_at]
            return (settled[0] if settled else after(job.trigger, None, known.defined_at)), settled
        if known.definition is None and settled:
            # Older than the retention of the ledger, or never written: its rows are taken for those of this trigger.
            self.ledger.write(lease, job.id, [Tick(settled[0] - _A_MOMENT, "redefined", definition)])
            return settled[0], settled
        first: dt.datetime | None = job.next_run_time
        if known.definition is not None and first is not None:
            first = after(
                job.trigger, None, clock
            )  # until now another definition was in force, whose times were others
        begun = clock if first is None else min(clock, first - _A_MOMENT)
        self.ledger.write(lease, job.id, [Tick(begun, "redefined", definition)])
        return first, []

    def note(self, job_id: str, ticks: Sequence[Tick]) -> None:
        """Settle due times that do not run, a moment later. Where this process does not lead, the next leader does that."""
        lease = self._lease
        if lease is not None and ticks:
            self._clerk.put(lambda: self.ledger.write(lease, job_id, ticks))

    def _heard(self, event: Any) -> None:
        """From APScheduler, in whichever thread."""
        if event.code == events.EVENT_EXECUTOR_ADDED:
            inner = self.scheduler._executors.get(event.alias)
            if inner is not None and not isinstance(inner, Gated):
                self._add(event.alias, inner)
        elif event.code == events.EVENT_JOBSTORE_ADDED:
            for job in self.scheduler.get_jobs(event.alias):
                self._keeps(job, event.alias)
        elif event.code == events.EVENT_JOB_MISSED:
            reason = "it would have begun later than its misfire_grace_time allows"
            self.note(event.job_id, [Tick(event.scheduled_run_time, "missed", reason)])
        elif event.code == events.EVENT_JOB_MAX_INSTANCES:
            self.note(event.job_id, _overlapped(event.scheduled_run_times))
        else:
            self._changed(event)

    def _changed(self, event: Any) -> None:
        # In the call that added or changed it, so before it is due; of one that was added, also before it can be seen.
        job = self.scheduler.get_job(event.job_id, event.jobstore)
        if job is not None and self._keeps(job, event.jobstore) and (lease := self._lease) is not None:
            self._clerk.put(lambda: self._defined(lease, event.job_id, event.jobstore))

    def _keeps(self, job: Any, store: str | None) -> bool:
        """Whether it can be kept. One that cannot is removed, since it would run in each process at times of its own."""
        try:
            check(job)
        except ConfigurationError as error:
            log.error("job %r was removed and does not run: %s", job.id, error)
            with contextlib.suppress(JobLookupError):  # by another thread, for the same reason
                self.scheduler.remove_job(job.id, store)
            return False
        return True

    def _add(self, alias: str, inner: Any) -> None:
        """Stand before an executor that was added later. One that cannot be kept is removed, and with it its jobs' runs."""
        try:
            self._wrap(alias, inner)
        except ConfigurationError as error:  # to be raised by start(); here APScheduler would swallow it
            log.error("the executor was removed, and APScheduler removes the jobs that name it: %s", error)
            self.scheduler.remove_executor(alias)

    def _defined(self, lease: Lease, job_id: str, jobstore: str | None) -> None:
        job = self.scheduler.get_job(job_id, jobstore)
        if job is not None:
            self._begins(lease, job, now())

    # Running

    def _wrap(self, alias: str, inner: Any) -> None:
        if isinstance(inner, ProcessPoolExecutor):
            raise ConfigurationError(
                f"the executor {alias!r} is a process pool, whose processes hold no lease: use threads, or lq.schedule"
            )
        if alias in self.scheduler._executors:
            self.scheduler.remove_executor(alias, shutdown=False)
        self.scheduler.add_executor(Gated(self, inner), alias)

    def _submit(self, lease: Lease, job: Any, times: list[dt.datetime]) -> None:
        executor = self.scheduler._lookup_executor(job.executor)

        def submit() -> None:
            try:
                executor.run(lease, job, times, "caught_up")
            except MaxInstancesReachedError:
                self.note(job.id, _overlapped(times))

        loop = getattr(self.scheduler, "_eventloop", None)
        if loop is not None:
            loop.call_soon_threadsafe(submit)  # its executor makes tasks there
        else:
            submit()


class Clerk:
    """A thread that writes what need not be written before anything else happens."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="leasequeue-gate-clerk", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def put(self, work: Callable[[], object]) -> None:
        self._queue.put(work)

    def stop(self, seconds: float) -> None:
        self._queue.put(None)
        if self._thread.is_alive():
            self._thread.join(seconds)

    def _run(self) -> None:
        while (work := self._queue.get()) is not None:
            try:
                work()
            except LeaseLost as error:
                log.info("rows are left to the next leader, who finds them missing: %s", error)
            except Exception:
                log.exception("rows of the ledger could not be written; the next leader finds them missing")


def _overlapped(times: Sequence[dt.datetime]) -> list[Tick]:
    return [Tick(at, "overlapped", "max_instances of the job were running") for at in times]


def _definition(job: Any) -> str:
    """What makes its due times. Not where an interval begins, which by default is when the process did."""
    zone = getattr(job.trigger, "timezone", None)
    return f"APScheduler {job.trigger}" + (f" in {zone}" if zone is not None else "")
