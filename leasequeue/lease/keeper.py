"""What keeps the leases of one process: a thread that renews them, a thread that watches the clock, two connections.

    front    a connection for bids and releases, used by the calling threads in turn, closed when it has been idle
    renewer  a thread with a connection of its own; also listens there for releases, where a notification can arrive
    guard    a thread without a connection: when trust in a lease ends it says so, whatever the renewer is waiting for

Nothing here is shared with the application's pool, so a pool that is full delays no renewal. After a fork the child has
none of it: what its parent holds is not held there.
"""

from __future__ import annotations

import contextlib
import logging
import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Protocol

import psycopg

from leasequeue.db.connect import Link, readable
from leasequeue.db.leases import LeaseStatements, lease_statements
from leasequeue.db.names import lease_channel
from leasequeue.db.version import LINK_PROBE, check, parse
from leasequeue.db.workers import BACKEND_PID, listen
from leasequeue.errors import DatabaseUnavailable, LeaseQueueError
from leasequeue.lease.hold import Bid, Hold, Refused, Renewal, Run, boottime
from leasequeue.loop import Loop, Outage

if TYPE_CHECKING:
    from leasequeue.db.urls import Settings

log = logging.getLogger("leasequeue.lease")

BOUND_SECONDS = 5.0
FRONT_IDLE_SECONDS = 10.0
RETRY_SECONDS = 0.1
"""After a renewal that found its row locked, or was not answered."""
REFUSAL_EVERY_SECONDS = 60.0
REFUSALS_MAX = 10_000
FAILED_SECONDS = 0.5
RELEASE_SECONDS = 1.0
RELEASE_AGAIN_SECONDS = 0.005


class Kept(Protocol):
    """A lease as its keeper sees it."""

    @property
    def hold(self) -> Hold: ...

    def lose(self, why: str) -> None:
        """It is not to be trusted any more. Any thread, any number of times."""

    def release(self) -> None:
        """Give it back."""


class Keeper:
    """The leases of one process under one configuration. Thread-safe. Made at the first use.

    Args:
        settings, schema: where the rows are.
    """

    def __init__(self, settings: Settings, schema: str) -> None:
        self.schema = schema
        self.sql: LeaseStatements = lease_statements(schema)
        self.channel = lease_channel(schema)
        self.pid = os.getpid()
        self._front = Link(settings, application_name="leasequeue lease", bound_seconds=BOUND_SECONDS)
        self._front_lock = threading.Lock()
        self._front_used = time.monotonic()
        self._failed_at = float("-inf")
        self._failure = ""
        self._checked = False
        self._kept: set[Kept] = set()
        self._waiters: dict[str, list[Callable[[], None]]] = {}
        self._changed = threading.Condition()
        self._refusals: dict[tuple[str, str, str], tuple[float, int]] = {}
        link = Link(settings, application_name="leasequeue lease renewer", bound_seconds=BOUND_SECONDS)
        self._renewer = _Renewer(link, self)
        self._guard = threading.Thread(target=self._watch, name="leasequeue-lease-guard", daemon=True)
        self._running = False
        self._closed = False

    # Bids and releases, on the front connection

    @property
    def closed(self) -> bool:
        """Whether it ended: whoever wants a lease asks for another keeper."""
        return self._closed

    @contextlib.contextmanager
    def _run(self) -> Iterator[Run]:
        self._start()  # first: where the system starts no thread, nothing is taken that nobody would renew
        # A database that is away must not keep the threads of a process waiting for each other, one after another.
        if not self._front_lock.acquire(timeout=BOUND_SECONDS):
            raise DatabaseUnavailable("the database has not answered another thread's question about a lease")
        try:
            if self._closed:
                raise LeaseQueueError("these leases were closed (lq.dispose()) while somebody asked for one: ask again")
            link = self._front
            if not link.connected and time.monotonic() - self._failed_at < FAILED_SECONDS:
                raise DatabaseUnavailable(f"{self._failure} (a moment ago)")
            try:
                link.connect()
            except DatabaseUnavailable as error:
                self._failed_at, self._failure = time.monotonic(), str(error)
                raise
            if not self._checked:
                check(parse(link.run(LINK_PROBE, {"schema": self.schema})[0][0]), self.schema)
                self._checked = True
            yield link.run
        finally:
            self._front_used = time.monotonic()
            self._front_lock.release()

    def ask(self, bid: Bid) -> Hold | Refused:
        """Ask once, and once more where the first question's outcome is unknown. Waits for the database, not for the lease.

        Raises:
            DatabaseUnavailable: it cannot be asked. Whether the lease is held by anybody is not known.
            SchemaMismatch, ConfigurationError: see ``Bid.ask``.
        """
        try:
            answer = self._ask(bid)
        except DatabaseUnavailable:
            answer = self._ask(bid)  # a connection that broke while idle, or a reply that was lost: settled by reading
        if isinstance(answer, Refused):
            self.refused(bid, answer)
        return answer

    def _ask(self, bid: Bid) -> Hold | Refused:
        with self._run() as run:
            return bid.ask(run)

    def release(self, hold: Hold, reason: str | None = None) -> str | None:
        """Give a lease back.

        Returns:
            None: it is given back. Otherwise why not, as a clause: it is lost, or its row stays locked.

        Raises:
            DatabaseUnavailable: it could not be said; the row expires by itself.
        """
        until = boottime() + RELEASE_SECONDS
        broken = False
        while True:
            try:
                with self._run() as run:
                    if hold.release(run, self.sql, self.channel, reason):
                        return None
                    ours = hold.is_ours(run, self.sql)
            except DatabaseUnavailable:
                if broken:
                    raise
                broken = True  # a connection that broke while idle, or a reply that was lost: the next try settles it
                continue
            if not ours:
                return None if broken else hold.found
            # Locked: by a renewal of our own that was under way, for a moment, or by somebody.
            if boottime() > until:
                return "its row is locked by another transaction, so it expires by itself"
            time.sleep(RELEASE_AGAIN_SECONDS)

    def refused(self, bid: Bid, refused: Refused, *, last: bool = False) -> None:
        """Note a refusal: the first at once, then what came together, once a minute and at the end. Never raises."""
        key = (bid.name, bid.owner, refused.reason)
        now = time.monotonic()
        with self._changed:
            flushed, count = self._refusals.get(key, (float("-inf"), 0))
            count += 0 if last else 1
            due = count and (last or now - flushed >= REFUSAL_EVERY_SECONDS)
            self._refusals.pop(key, None)
            self._refusals[key] = (now, 0) if due else (flushed, count)
            if len(self._refusals) > REFUSALS_MAX:
                del self._refusals[next(iter(self._refusals))]  # names made on the fly must not grow for ever
        if due:
            try:
                with self._run() as run:
                    bid.note_refused(run, refused, count)
            except (LeaseQueueError, psycopg.Error) as error:
                log.warning("a refusal of the lease %r could not be written down: %s", bid.name, error)

    # What is kept

    def keep(self, lease: Kept) -> None:
        """Renew it from now on, until it is dropped or lost. A keeper that was closed meanwhile loses it at once."""
        with self._changed:
            closed = self._closed
            if not closed:
                self._kept.add(lease)
                self._changed.notify_all()
        if closed:
            lease.lose("the LeaseQueue was disposed of")
            return
        self._start()
        self._renewer.wake()

    def drop(self, lease: Kept) -> None:
        """Renew it no more."""
        with self._changed:
            self._kept.discard(lease)
            self._changed.notify_all()

    def kept(self) -> list[Kept]:
        with self._changed:
            return list(self._kept)

    @contextlib.contextmanager
    def hints(self, name: str, hint: Callable[[], None]) -> Iterator[None]:
        """Call ``hint`` from another thread whenever the lease may have become free."""
        with self._changed:
            self._waiters.setdefault(name, []).append(hint)
        self._start()
        self._renewer.wake()
        try:
            yield
        finally:
            with self._changed:
                waiting = self._waiters[name]
                waiting.remove(hint)
                if not waiting:
                    del self._waiters[name]

    def close(self) -> None:
        """Release what is held and end the threads; the next use of leases makes another keeper."""
        for lease in self.kept():
            try:
                lease.release()
            except Exception:
                log.exception("the lease %r could not be released, and expires by itself", lease.hold.name)
        with self._changed:
            self._kept.clear()
            self._closed = True
            running = self._running
            self._changed.notify_all()
        self._renewer.stop()
        if not running:
            self._renewer.ended()
        for name in list(self._waiters):
            self.hint(name)  # who waits asks again, and is told
        with self._front_lock:
            self._front.close()

    def waits(self) -> bool:
        with self._changed:
            return bool(self._waiters)

    def hint(self, name: str) -> None:
        with self._changed:
            waiting = list(self._waiters.get(name, ()))
        for each in waiting:
            each()

    def _start(self) -> None:
        with self._changed:
            if self._running or self._closed:
                return
            # A lease that nobody renews, or whose end nobody sees, must not be given out: what could not be started is
            # tried again, and only that.
            if not self._guard.is_alive():
                self._guard.start()
            self._renewer.start()
            self._running = True

    def _watch(self) -> None:
        """The guard: no question to anybody, only the clock."""
        while not self._closed:
            now = boottime()
            for lease in self.kept():
                if now >= lease.hold.trusted_until:
                    try:
                        self.lost(lease, "it was not renewed in time, so it is not trusted any more", known=False)
                    except Exception:
                        log.exception("the loss of the lease %r could not be told", lease.hold.name)
            with self._changed:
                ends = [lease.hold.trusted_until for lease in self._kept]
                seconds = max(0.0, min(ends) - boottime()) if ends else FRONT_IDLE_SECONDS
                # Never long: a condition's time-out stands still while the machine is suspended.
                self._changed.wait(min(seconds, FRONT_IDLE_SECONDS, 1.0) if ends else seconds)
            self._close_when_idle()

    def _close_when_idle(self) -> None:
        if time.monotonic() - self._front_used > FRONT_IDLE_SECONDS and self._front_lock.acquire(blocking=False):
            try:
                self._front.close()
            finally:
                self._front_lock.release()

    def lost(self, lease: Kept, why: str, *, known: bool) -> None:
        """A lease is lost: for certain, or because nothing is known of it any more."""
        with self._changed:
            if lease not in self._kept:
                return
            self._kept.discard(lease)
        hold = lease.hold
        lease.lose(why)  # before anything is said: a log may block
        log.error("the lease %r in term %s is lost: %s", hold.name, hold.term, why)
        self._renewer.to_note(hold, f"{'' if known else 'in doubt: '}{why}")
        self._renewer.wake()


class _Renewer(Loop):
    """Renews in time, and listens for releases where a notification can arrive."""

    def __init__(self, link: Link, keeper: Keeper) -> None:
        super().__init__("lease-renewer", link, Outage())
        self._keeper = keeper
        self._due: dict[Kept, float] = {}
        self._notes: list[tuple[Hold, str]] = []
        self._listening = False
        self._closing = threading.Lock()
        self._ended = False
        self._wake_read, self._wake_write = os.pipe()
        for fd in (self._wake_read, self._wake_write):
            os.set_blocking(fd, False)

    def wake(self) -> None:
        super().wake()
        # A descriptor that was closed may be somebody else's by now.
        with self._closing, contextlib.suppress(BlockingIOError):  # it is full of wake-ups already
            if not self._ended:
                os.write(self._wake_write, b"w")

    def pause(self, seconds: float) -> None:
        if self._listening and self.link.connected:
            for name in self.link.notifications(seconds, self._wake_read):
                self._keeper.hint(name)
        else:
            readable([self._wake_read], seconds)
        with contextlib.suppress(BlockingIOError):
            os.read(self._wake_read, 4096)

    def dormant(self) -> bool:
        return not (self._keeper.kept() or self._keeper.waits() or self._notes)

    def ended(self) -> None:
        with self._closing:
            self._ended = True
            for fd in (self._wake_read, self._wake_write):
                os.close(fd)

    def to_note(self, hold: Hold, reason: str) -> None:
        self._notes.append((hold, reason))

    def connected(self) -> None:
        self._listening = False
        if self.link.run(BACKEND_PID)[0][0] == self.link.pid:
            self.link.run(listen(self._keeper.channel))
            self._listening = True

    def interrupted(self) -> None:
        self._listening = False

    def turn(self) -> None:
        now = boottime()
        kept = self._keeper.kept()
        self._due = {lease: self._due.get(lease, now + _third(lease.hold)) for lease in kept}
        for lease in kept:
            if self._due[lease] <= now:
                self._guarded_renew(lease)
        while self._notes:
            hold, reason = self._notes[0]
            try:
                hold.note_lost(self.link.run, self._keeper.sql, reason)
            except psycopg.Error as error:
                log.error("the loss of the lease %r could not be written down: %s", hold.name, error)
            self._notes.pop(0)
        soon = min(self._due.values(), default=now + 60.0)
        self.pause(min(max(0.0, soon - boottime()), 60.0))

    def _guarded_renew(self, lease: Kept) -> None:
        """One that the server refuses (a full disk) must not keep the others from theirs."""
        try:
            self._renew(lease)
        except psycopg.Error as error:
            log.warning("the lease %r could not be renewed, trying again: %s", lease.hold.name, error)

    def _renew(self, lease: Kept) -> None:
        hold = lease.hold
        # Before: one that is not answered is tried again at once by whoever comes after the reconnect.
        self._due[lease] = boottime() + RETRY_SECONDS * random.uniform(0.5, 1.0)  # noqa: S311
        bound = min(BOUND_SECONDS, max(0.2, (hold.ttl_seconds - hold.margin_seconds) / 2))
        answer = hold.renew(
            lambda sql, params: self.link.run(sql, params, bound_seconds=bound), self._keeper.sql, boottime
        )
        if answer is Renewal.DONE:
            self._due[lease] = boottime() + _third(hold)
        elif answer is Renewal.LOST:
            self._keeper.lost(lease, hold.found, known=True)


def _third(hold: Hold) -> float:
    return (hold.ttl_seconds - hold.margin_seconds) / 3
