"""``Lease``: what the holder of a named lease has in hand, and the ways to get one."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import logging
import os
import random
import threading
import time
from collections.abc import Callable, Generator, Iterator
from types import TracebackType
from typing import TYPE_CHECKING

import psycopg

from leasequeue.db.fence import fence_held
from leasequeue.db.leases import clip
from leasequeue.db.program import arun, run
from leasequeue.errors import DatabaseUnavailable, LeaseLost, LeaseQueueError, LeaseRefused
from leasequeue.lease.hold import Bid, Hold, Refused, boottime

if TYPE_CHECKING:
    from leasequeue.db.kinds import AsyncConn, SyncConn
    from leasequeue.lease.keeper import Keeper

log = logging.getLogger("leasequeue.lease")

POLL_SECONDS = 0.4
"""The longest pause between two questions for a lease that is held, where no notification comes."""

OnLost = Callable[["Lease"], object]


class Lease:
    """A named lease that this process holds, renewed in the background until it is released or lost.

    It is a context manager, sync and async: leaving it releases the lease, and raises ``LeaseLost`` where the block ended
    well and the lease was lost on the way. Thread-safe.

    Attributes:
        name: of the lease.
        slot: which of its slots, from 0.
        term: grows with every change of hands, also over restarts and promoted standbys: the token by which an outside
            system can refuse a holder of the past.
        owner: the readable name that others are shown.
        ttl: how long the row lasts without a renewal.
        lost: set when the lease is lost. Wait on it, or look at it.
    """

    def __init__(self, keeper: Keeper, hold: Hold, on_lost: OnLost | None = None) -> None:
        self.name = hold.name
        self.slot = hold.slot
        self.term = hold.term
        self.owner = hold.owner
        self.ttl = dt.timedelta(seconds=hold.ttl_seconds)
        self.hold = hold
        self.lost = threading.Event()
        self._keeper = keeper
        self._on_lost = on_lost
        self._why = ""
        self._released = False
        self._ending = threading.Lock()
        keeper.keep(self)

    @property
    def is_held(self) -> bool:
        """Whether it may be acted upon now. False some time before the row can be taken by another, never after."""
        return not self._why_not()

    @property
    def remaining(self) -> dt.timedelta:
        """How long it may be acted upon if no renewal succeeds any more; zero when it is not held."""
        left = self.hold.trusted_until - boottime() if self.is_held else 0.0
        return dt.timedelta(seconds=max(0.0, left))

    def check(self) -> None:
        """Return where the lease is held, by this process's clock alone; asks nobody.

        Raises:
            LeaseLost: it is not: stop the work.
        """
        why = self._why_not()
        if why:
            raise LeaseLost(self.name, self.term, why)

    def _why_not(self) -> str:
        if self.lost.is_set():
            return self._why
        if self._released:
            return "it was released"
        if os.getpid() != self._keeper.pid:
            return "it is held by the process that this one was forked from"
        if boottime() >= self.hold.trusted_until:
            return "it was not renewed in time, so it is not trusted any more"
        return ""

    def fence(self, conn: SyncConn, /) -> None:
        """Prove in the caller's transaction that the lease is held, and keep it from being taken until that ends.

        Two statements. The second locks the lease's row ``FOR KEY SHARE`` and compares name, slot, term, holder and the
        expiry to the database's clock. Renewals go on beside it, so the transaction may last longer than the ttl; what
        may not is a pause in which it is idle, which the server ends it for (``idle_in_transaction_session_timeout``,
        local to the transaction, and never above a smaller value of the caller).

        Where the lease is not held, the statement fails *in the server*: the transaction cannot commit, even if the error
        is swallowed (inside a savepoint as for ``JobContext.complete``).

        Args:
            conn: a synchronous connection of any accepted kind, in a READ COMMITTED transaction.

        Raises:
            LeaseLost: it is not held; let the transaction roll back. The lease counts as lost from then on.
            ConfigurationError: the transaction is REPEATABLE READ or SERIALIZABLE, there is none (autocommit), or ``conn`` is
                not accepted.
        """
        self.check()
        try:
            run(conn, fence_held, self._keeper.schema, self.name, self.slot, self.term, str(self.hold.holder))
        except LeaseLost as error:
            self._keeper.lost(self, error.found, known=True)
            raise

    async def afence(self, conn: AsyncConn, /) -> None:
        """The async twin of :meth:`fence`."""
        self.check()
        try:
            await arun(conn, fence_held, self._keeper.schema, self.name, self.slot, self.term, str(self.hold.holder))
        except LeaseLost as error:
            self._keeper.lost(self, error.found, known=True)
            raise

    def release(self, reason: str | None = None) -> None:
        """Give it back; may be called again. Who waits for it is told at once.

        What cannot be said to the database is logged, and the row expires by itself: the lease is not held in either case.

        Args:
            reason: written into the lease's history.
        """
        if os.getpid() != self._keeper.pid:
            return  # first of all: a fork may have copied the lock below while it was held
        with self._ending:
            if self._released or self.lost.is_set():
                return
            self._released = True
        self._keeper.drop(self)
        if reason is not None:
            reason = clip(reason)
        try:
            why_not = self._keeper.release(self.hold, reason)
            if why_not is not None:
                log.warning("the lease %r in term %s was not released: %s", self.name, self.term, why_not)
        except (LeaseQueueError, psycopg.Error) as error:
            log.warning("the lease %r could not be released, and expires by itself: %s", self.name, error)

    async def arelease(self, reason: str | None = None) -> None:
        """The async twin of :meth:`release`."""
        await asyncio.to_thread(self.release, reason)

    def lose(self, why: str) -> None:
        """For the keeper: it is not to be trusted any more."""
        with self._ending:
            if self._released or self.lost.is_set():
                return
            self._why = why
            self.lost.set()
        if self._on_lost is not None:
            # In a thread of its own: a callback that hangs must not keep the loss of another lease from being seen.
            try:
                threading.Thread(target=self._tell, name="leasequeue-lease-lost", daemon=True).start()
            except RuntimeError:  # the system starts no thread now
                self._tell()

    def _tell(self) -> None:
        assert self._on_lost is not None
        try:
            self._on_lost(self)
        except Exception:
            log.exception("on_lost of the lease %r failed", self.name)

    def __enter__(self) -> Lease:
        self.check()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        why = self._why_not() if error is None and not self._released else ""
        self.release()
        if why:
            raise LeaseLost(self.name, self.term, why)

    async def __aenter__(self) -> Lease:
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.__exit__, kind, error, trace)

    def __repr__(self) -> str:
        state = self._why_not() or "held"
        return f"<Lease {self.name!r} slot {self.slot} term {self.term}: {state}>"


class Wish:
    """A lease that is asked for: once by ``try_lease``, at the beginning of a ``with`` block by ``lease``.

    Args:
        wait_seconds: how long to ask again where it is held; 0.0: not at all; None: for ever.
    """

    def __init__(
        self,
        keeper: Callable[[], Keeper],
        bid: Callable[[], Bid],
        wait_seconds: float | None,
        on_lost: OnLost | None,
    ) -> None:
        self._keeper = keeper
        self._bid = bid
        self._wait_seconds = wait_seconds
        self._on_lost = on_lost
        self._lease: Lease | None = None

    def get(self) -> Lease | Refused:
        """Ask, and wait as long as was said."""
        keeper, bid = self._keeper(), self._bid()
        woken = threading.Event()
        steps = self._steps(keeper, bid)
        with self._hints(keeper, bid, woken.set):
            try:
                pause = next(steps)
                while True:
                    if pause is None:
                        pause = steps.send(_attempt(keeper, bid))
                    else:
                        woken.wait(pause)
                        woken.clear()
                        pause = next(steps)
            except StopIteration as stop:
                return self._made(keeper, stop.value)

    async def aget(self) -> Lease | Refused:
        """The async twin of :meth:`get`."""
        keeper, bid = self._keeper(), self._bid()
        loop = asyncio.get_running_loop()
        woken = asyncio.Event()
        steps = self._steps(keeper, bid)
        with self._hints(keeper, bid, lambda: _wake(loop, woken)):
            try:
                pause = next(steps)
                while True:
                    if pause is None:
                        pause = steps.send(await _uncut(keeper, bid))
                    else:
                        with contextlib.suppress(TimeoutError):
                            await asyncio.wait_for(woken.wait(), pause)
                        woken.clear()
                        pause = next(steps)
            except StopIteration as stop:
                return self._made(keeper, stop.value)

    @contextlib.contextmanager
    def _hints(self, keeper: Keeper, bid: Bid, hint: Callable[[], None]) -> Iterator[None]:
        if self._wait_seconds == 0.0:
            yield  # nothing to wait for, so no connection that listens
            return
        with keeper.hints(bid.name, hint):
            yield

    def _steps(
        self, keeper: Keeper, bid: Bid
    ) -> Generator[float | None, Hold | Refused | DatabaseUnavailable | None, Hold | Refused]:
        """Yields None to ask and is sent the answer, or a pause in seconds. Holds the logic once for sync and async."""
        until = None if self._wait_seconds is None else time.monotonic() + self._wait_seconds
        while True:
            answer = yield None
            assert answer is not None
            if isinstance(answer, Hold):
                return answer
            left = float("inf") if until is None else until - time.monotonic()
            if left <= 0:
                if isinstance(answer, DatabaseUnavailable):
                    raise answer
                keeper.refused(bid, answer, last=True)
                return answer
            yield min(left, POLL_SECONDS * random.uniform(0.6, 1.0))  # noqa: S311

    def _made(self, keeper: Keeper, answer: Hold | Refused) -> Lease | Refused:
        return answer if isinstance(answer, Refused) else Lease(keeper, answer, self._on_lost)

    def __enter__(self) -> Lease:
        return self._entered(self.get())

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._lease is not None:
            self._lease.__exit__(kind, error, trace)

    async def __aenter__(self) -> Lease:
        return self._entered(await self.aget())

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._lease is not None:
            await self._lease.__aexit__(kind, error, trace)

    def _entered(self, answer: Lease | Refused) -> Lease:
        """A wish is for one block at a time; each has its own lease."""
        if isinstance(answer, Refused):
            raise LeaseRefused(answer)
        self._lease = answer
        return answer


def _attempt(keeper: Keeper, bid: Bid) -> Hold | Refused | DatabaseUnavailable:
    try:
        return keeper.ask(bid)
    except DatabaseUnavailable as error:
        return error  # who waits rides it out


async def _uncut(keeper: Keeper, bid: Bid) -> Hold | Refused | DatabaseUnavailable:
    """Ask in a thread. A task that is cancelled meanwhile leaves no lease behind that nobody holds."""
    asking = asyncio.get_running_loop().run_in_executor(None, _attempt, keeper, bid)
    try:
        return await asyncio.shield(asking)
    except asyncio.CancelledError:
        asking.add_done_callback(lambda done: _give_back(keeper, done))
        raise


def _give_back(keeper: Keeper, done: asyncio.Future[Hold | Refused | DatabaseUnavailable]) -> None:
    if done.cancelled() or done.exception() is not None or not isinstance(done.result(), Hold):
        return

    def give_back() -> None:
        hold = done.result()
        assert isinstance(hold, Hold)
        with contextlib.suppress(LeaseQueueError):  # it expires by itself
            keeper.release(hold, "its task was cancelled")

    threading.Thread(target=give_back, name="leasequeue-lease-back", daemon=True).start()


def _wake(loop: asyncio.AbstractEventLoop, event: asyncio.Event) -> None:
    with contextlib.suppress(RuntimeError):  # the loop is closed by now
        loop.call_soon_threadsafe(event.set)
