"""Leader election: one candidate of many leads, and each of them knows at any moment whether it does.

    standing ──elected──> leading ──lost, resigned, not eligible──> on_lost ──> standing again
       ^                     │
       │                     └── on_elected fails ──> released, so that another may lead ──> standing again, later
       └── not eligible: does not stand, and says so once a minute in the lease's history

``on_lost`` is called while nobody else can have the row yet: trust ends a margin before it (a second, or a fifth of the ttl
where that is more). That is how long it has to stop what it began.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any

from leasequeue.errors import LeaseLost, LeaseQueueError
from leasequeue.lease.handle import POLL_SECONDS, Lease
from leasequeue.lease.hold import INELIGIBLE, Bid, Hold, Refused, boottime

if TYPE_CHECKING:
    from leasequeue.db.kinds import AsyncConn, SyncConn
    from leasequeue.lease.keeper import Keeper

log = logging.getLogger("leasequeue.lease")

_SAY_EVERY_SECONDS = 60.0
_BACK_OFF_MAX_SECONDS = 30.0


class Leader:
    """A candidate for leadership, standing for as long as the ``with`` block lasts. Thread-safe.

    Args:
        on_elected: called with this object in a thread of its own when it has become the leader. What it raises ends this
            term: the lease is released, so that another may lead.
        on_lost: called with this object when it is the leader no more, for whatever reason; before another can be.
        eligible: asked before it stands and, while it leads, every third of the trusted time; False or an exception: it
            does not lead.
    """

    def __init__(
        self,
        keeper: Callable[[], Keeper],
        bid: Callable[[], Bid],
        *,
        on_elected: Callable[[Leader], object] | None = None,
        on_lost: Callable[[Leader], object] | None = None,
        eligible: Callable[[], bool] | None = None,
    ) -> None:
        self._make_keeper = keeper
        self._make_bid = bid
        self._on_elected = on_elected
        self._on_lost = on_lost
        self._eligible = eligible
        self._lease: Lease | None = None
        self._elected = threading.Event()
        self._woken = threading.Event()
        self._stopping = False
        self._failures = 0
        self._reasons: list[str] = []
        self._said = float("-inf")
        self._thread: threading.Thread | None = None

    # What the application asks

    @property
    def is_leader(self) -> bool:
        """Whether it leads now: by its own clock, without asking anybody."""
        lease = self._lease
        return lease is not None and lease.is_held

    @property
    def term(self) -> int | None:
        """The term in which it leads; None when it does not."""
        lease = self._lease
        return lease.term if lease is not None and lease.is_held else None

    @property
    def lease(self) -> Lease:
        """The lease of the present term.

        Raises:
            LeaseLost: it does not lead.
        """
        lease = self._lease
        if lease is None:
            raise LeaseLost("leadership", 0, "this candidate does not lead")
        lease.check()
        return lease

    def check(self) -> None:
        """Return where it leads.

        Raises:
            LeaseLost: it does not.
        """
        _ = self.lease

    def fence(self, conn: SyncConn, /) -> None:
        """See :meth:`Lease.fence`."""
        self.lease.fence(conn)

    async def afence(self, conn: AsyncConn, /) -> None:
        """See :meth:`Lease.fence`."""
        await self.lease.afence(conn)

    def wait(self, timeout_seconds: float | None = None) -> bool:
        """Wait until it leads; False when the time is over. None: for ever."""
        until = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        while True:
            left = None if until is None else until - time.monotonic()
            if left is not None and left < 0:
                return self.is_leader
            if self._elected.wait(left) and self.is_leader:
                return True
            if self._stopping:
                return False
            self._elected.clear()

    def resign(self) -> None:
        """Give up the present term, if any, and stand again."""
        self._reasons.append("it resigned")
        self._woken.set()

    def __enter__(self) -> Leader:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Stand. Nothing is asked before."""
        self._thread = threading.Thread(target=self._run, name="leasequeue-leader", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stand no more: ``on_lost`` where it leads, then the release."""
        self._stopping = True
        self._woken.set()
        self._elected.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    # The thread

    def _run(self) -> None:
        keeper = bid = None
        while not self._stopping:
            try:
                if keeper is None or bid is None:
                    keeper, bid = self._make_keeper(), self._make_bid()
                with keeper.hints(bid.name, self._woken.set):
                    hold = self._stand(keeper, bid)
                if hold is not None:
                    bid = None
                    self._lead(keeper, hold)
            except Exception as error:
                if time.monotonic() - self._said > _SAY_EVERY_SECONDS:
                    self._said = time.monotonic()
                    expected = isinstance(error, LeaseQueueError)
                    log.error("standing for leadership failed, trying again: %s", error, exc_info=not expected)
                self._pause(POLL_SECONDS)

    def _stand(self, keeper: Keeper, bid: Bid) -> Hold | None:
        while not self._stopping:
            if not self._is_eligible(bid.name):
                keeper.refused(bid, Refused(bid.name, INELIGIBLE, slots=bid.slots))
            else:
                answer = keeper.ask(bid)
                if isinstance(answer, Hold):
                    return answer
            self._pause(POLL_SECONDS)
        return None

    def _lead(self, keeper: Keeper, hold: Hold) -> None:
        lease = Lease(keeper, hold, lambda _: self._woken.set())
        reasons = self._reasons = []
        log.info("elected: %r leads in term %s", hold.name, hold.term)
        self._lease = lease
        self._elected.set()
        duties = threading.Thread(
            target=self._begin, args=(lease, reasons), name="leasequeue-leader-duties", daemon=True
        )
        duties.start()
        third = (hold.ttl_seconds - hold.margin_seconds) / 3
        asked = time.monotonic()
        while not (self._stopping or reasons or not lease.is_held):
            self._pause(third)
            if self._eligible is not None and time.monotonic() - asked >= third * 0.9:
                asked = time.monotonic()
                if not self._is_eligible(hold.name):
                    reasons.append("not eligible any more")
        self._elected.clear()
        self._lease = None
        self._end(lease)
        lease.release(reasons[0] if reasons else None)
        if reasons:
            self._failures += 1
            self._pause(min(_BACK_OFF_MAX_SECONDS, 0.5 * 2**self._failures), whole=True)

    def _begin(self, lease: Lease, reasons: list[str]) -> None:
        if self._on_elected is None:
            return
        try:
            self._on_elected(self)
            self._failures = 0
        except Exception as error:
            # A leader that cannot do its duties and stays leader is nobody's leader.
            log.exception("on_elected of %r failed in term %s: it gives the lease back", lease.name, lease.term)
            reasons.append(f"on_elected failed: {type(error).__name__}")
            self._woken.set()

    def _end(self, lease: Lease) -> None:
        log.info("%r leads no more (term %s)", lease.name, lease.term)
        if self._on_lost is None:
            return
        try:
            self._on_lost(self)
        except Exception:
            log.exception("on_lost of %r failed in term %s", lease.name, lease.term)
        late = boottime() - (lease.hold.trusted_until + lease.hold.margin_seconds)
        if late > 0:
            log.error(
                "on_lost of %r returned %.1f s after term %s could be taken by another: make it quicker, or the ttl longer",
                lease.name, late, lease.term,
            )  # fmt: skip

    def _is_eligible(self, name: str) -> bool:
        if self._eligible is None:
            return True
        try:
            return bool(self._eligible())
        except Exception:
            log.exception("the eligibility of the candidate for %r could not be told: it does not stand", name)
            return False

    def _pause(self, seconds: float, *, whole: bool = False) -> None:
        until = time.monotonic() + seconds
        while not self._stopping:
            woken = self._woken.wait(max(0.0, until - time.monotonic()))
            self._woken.clear()
            if not (woken and whole) or time.monotonic() >= until:
                return


class AsyncLeader:
    """The async twin of :class:`Leader`: the callbacks may be ``async def`` and run on this event loop.

    An event loop that is blocked hears of nothing: ``is_leader`` is right all the same, but ``on_lost`` comes late then.
    """

    def __init__(self, make: Callable[..., Leader], on_elected: Any, on_lost: Any, eligible: Any) -> None:
        self._make = make
        self._callbacks = {"on_elected": on_elected, "on_lost": on_lost, "eligible": eligible}
        self._leader: Leader | None = None

    @property
    def leader(self) -> Leader:
        assert self._leader is not None, "use it within its `async with` block"
        return self._leader

    @property
    def is_leader(self) -> bool:
        """See :attr:`Leader.is_leader`."""
        return self.leader.is_leader

    @property
    def term(self) -> int | None:
        """See :attr:`Leader.term`."""
        return self.leader.term

    @property
    def lease(self) -> Lease:
        """See :attr:`Leader.lease`."""
        return self.leader.lease

    def check(self) -> None:
        """See :meth:`Leader.check`."""
        self.leader.check()

    async def afence(self, conn: AsyncConn, /) -> None:
        """See :meth:`Lease.fence`."""
        await self.leader.afence(conn)

    def resign(self) -> None:
        """See :meth:`Leader.resign`."""
        self.leader.resign()

    async def wait(self, timeout_seconds: float | None = None) -> bool:
        """Wait until it leads; False when the time is over. None: for ever. Cancelled, it leaves no thread."""
        until = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        while not self.is_leader:
            if until is not None and time.monotonic() >= until:
                return False
            await asyncio.sleep(0.02)
        return True

    async def __aenter__(self) -> AsyncLeader:
        loop = asyncio.get_running_loop()
        self._leader = self._make(**{name: self._bridged(loop, call) for name, call in self._callbacks.items()})
        self._leader.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.leader.stop)

    def _bridged(self, loop: asyncio.AbstractEventLoop, call: Any) -> Any:
        if call is None:
            return None

        async def on_loop(words: tuple[Any, ...]) -> Any:
            answer = call(*words)
            return await answer if inspect.isawaitable(answer) else answer

        def bridge(*_: Leader) -> Any:
            # The callbacks get this object; eligible gets nothing.
            words = (self,) if _ else ()
            return asyncio.run_coroutine_threadsafe(on_loop(words), loop).result()

        return bridge
