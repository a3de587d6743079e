"""The one way in which our threads start, stop, wake, back off and reconnect."""

from __future__ import annotations

import logging
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING

import psycopg
from tenacity import RetryCallState, Retrying, retry_if_exception_type, wait_random_exponential

from leasequeue.errors import DatabaseUnavailable

if TYPE_CHECKING:
    from leasequeue.db.connect import Link

log = logging.getLogger("leasequeue")

RECONNECT_MAX_SECONDS = 0.8
"""The longest pause between two attempts to reach the database: work goes on within a second of its return."""

IDLE_SECONDS = 60.0

_SAY_EVERY_SECONDS = 60.0


class Outage:
    """Says once a minute, for all threads of a process together, that the database does not answer. Thread-safe.

    Connections that break one after another, or again within the minute, are not said one by one; they are counted, and the
    next line tells how many there were.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._since: float | None = None
        self._said: dict[bool, float] = {}
        self._told = False
        self._breaks = 0

    def note(self, error: BaseException) -> None:
        """A thread could not reach the database, or lost it."""
        now = time.monotonic()
        # One that answers but takes no writes (a standby, a demoted primary) is another matter, said for itself.
        read_only = "read-only" in str(error)
        with self._lock:
            if self._since is None:
                self._since = now
                self._breaks += 1
            if now - self._said.get(read_only, float("-inf")) < _SAY_EVERY_SECONDS:
                return
            self._said[read_only] = now
            self._told = True
            lasting = now - self._since
            breaks, self._breaks = self._breaks, 0
        times = f", {breaks} times since this was last said" if breaks > 1 else ""
        log.warning("the database does not answer (for %.0f s now%s): %s; trying again", lasting, times, error)

    def over(self) -> None:
        """A thread is connected again."""
        with self._lock:
            since, self._since = self._since, None
            told, self._told = self._told, False
        if since is not None and told:
            log.info("the database answers again, after %.1f s", time.monotonic() - since)


class Loop(ABC):
    """A thread that takes turns until it is told to stop, on a connection of its own.

    A subclass writes :meth:`turn`. Whatever a turn raises is told and survived: a loop ends by :meth:`stop` only.
    """

    def __init__(self, name: str, link: Link, outage: Outage) -> None:
        self.name = name
        self.link = link
        self.outage = outage
        self._stopping = threading.Event()
        self._woken = threading.Event()
        self._broken = False
        self._thread = threading.Thread(target=self._run, name=f"leasequeue-{name}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Ask the loop to end after its present turn. Any thread, any number of times."""
        self._stopping.set()
        self.wake()

    def join(self, timeout_seconds: float | None = None) -> bool:
        """Wait for the end; True when it has come."""
        self._thread.join(timeout_seconds)
        return not self._thread.is_alive()

    def wake(self) -> None:
        """End a :meth:`pause` early. Any thread."""
        self._woken.set()

    @property
    def broken(self) -> bool:
        """Whether its connection broke and was not made again: what its last statement did may be unknown."""
        return self._broken

    @property
    def stopping(self) -> bool:
        return self._stopping.is_set()

    def pause(self, seconds: float) -> None:
        """Wait, or less when woken."""
        self._woken.wait(seconds)
        self._woken.clear()

    @abstractmethod
    def turn(self) -> None:
        """One round; called again and again while connected."""

    def interrupted(self) -> None:  # noqa: B027  # most loops have nothing to do then
        """The connection broke in a turn; called before it is made again."""

    def connected(self) -> None:  # noqa: B027  # most loops have nothing to do then
        """A new connection is there; called before the next turn."""

    def ended(self) -> None:  # noqa: B027  # most loops have nothing to do then
        """The last thing that the thread does."""

    def dormant(self) -> bool:
        """Whether there is nothing to do until it is woken, and no connection is wanted; asked before each turn."""
        return False

    def done(self) -> bool:
        """Whether the loop may end; asked before each turn."""
        return self.stopping

    def _run(self) -> None:
        try:
            while not self.done():
                self._guarded(self._connected_turn)
        finally:
            self.ended()
            self.link.close()

    def _connected_turn(self) -> None:
        if self.dormant():
            self.link.close()
            self.pause(IDLE_SECONDS)
            return
        if not self.link.connected:
            self.connect()
            if not self.link.connected:
                return
        self.turn()

    def _guarded(self, step: Callable[[], None]) -> None:
        try:
            step()
        except DatabaseUnavailable as error:
            self.outage.note(error)
            self._broken = True
            self.interrupted()
        except psycopg.Error as error:
            # A statement that the server refused (a deadlock, a full disk, a lock timeout): the next turn tries again.
            log.warning("%s: the database refused a statement: %s", self.name, error, exc_info=error)
            Loop.pause(self, 0.2)  # a pause of the claimer listens, and may find that the connection is lost
        except Exception:
            log.exception("%s: a turn failed; going on with the next", self.name)
            Loop.pause(self, 0.2)

    def connect(self, sleep: Callable[[float], None] | None = None) -> None:
        """Connect, for as long as it takes or until the loop may end.

        Args:
            sleep: waits between two attempts, instead of :meth:`pause`.
        """
        retrying = Retrying(
            wait=wait_random_exponential(multiplier=0.05, max=RECONNECT_MAX_SECONDS),
            retry=retry_if_exception_type(DatabaseUnavailable),
            stop=lambda _: self.done(),
            sleep=sleep or self.pause,
            before_sleep=self._note_attempt,
            retry_error_callback=lambda _: None,
        )
        retrying(self.link.connect)
        if self.link.connected:
            self.outage.over()
            self.connected()
            self._broken = False

    def _note_attempt(self, state: RetryCallState) -> None:
        error = state.outcome.exception() if state.outcome else None
        if error is not None:
            self.outage.note(error)
