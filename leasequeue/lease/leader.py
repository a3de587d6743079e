"""Leader election: one candidate of many leads, and each of them knows at any moment whether it does.

    standing ──elected──> leading ──lost, resigned, not eligible──> on_lost ──> standing again
       ^                     │
       │                     └── on_elected fails ──> released, so that another may lead ──> standing again, later
       └── not eligible: does not stand, and says so once a minute in the lease's history

``on_lost`` is called while nobody else can have the row yet: trust ends a margin before it (a second, or a fifth of the ttl
where that is more). That is how long it has to stop what it began.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextvars import ContextVar
from types import TracebackType
from typing import TYPE_CHECKING

from leasequeue.errors import ConfigurationError, LeaseLost, LeaseQueueError
from leasequeue.lease.handle import POLL_SECONDS, Lease
from leasequeue.lease.health import Health
from leasequeue.lease.hold import INELIGIBLE, Bid, Hold, Refused, boottime

if TYPE_CHECKING:
    from leasequeue.db.kinds import AsyncConn, SyncConn
    from leasequeue.lease.keeper import Keeper

log = logging.getLogger("leasequeue.lease")

STOP_SECONDS = 6.0
HEALTH_SECONDS = 5.0

_SAY_EVERY_SECONDS = 60.0
_BACK_OFF_MAX_SECONDS = 30.0
_RESIGNED = "it resigned"
_bound: ContextVar[dict[int, Lease]] = ContextVar("leasequeue_terms", default={})  # noqa: B039  # never changed in place
_FAILED = "on_elected failed"


class Leader:
    """A candidate for leadership, standing for as long as the ``with`` block lasts. Thread-safe.

    Args:
        keeper: the keeper of this process, asked for anew for each term.
        bid: makes the bid for a term.
        on_elected: called with this object in a thread of its own when it has become the leader. There, ``is_leader``,
            ``term``, ``lease`` and ``fence`` are those of this term, also when a later one has begun. What it raises ends
            the term: the lease is released, so that another may lead. While it runs, no other term is stood for.
        on_lost: called with this object when it is the leader no more, for whatever reason; before another can be. The
            lease is not renewed any more then: one that hangs keeps nobody from leading.
        eligible: asked before it stands and, while it leads, every third of the trusted time; False, an exception, or no
            answer within that time: it does not lead.
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
        self._health = Health(eligible)
        self._lease: Lease | None = None
        self._changed = threading.Condition()
        self._hooks: list[Callable[[], None]] = []
        self._woken = threading.Event()
        self._stopping = False
        self._failures = 0
        self._reasons: list[str] = []
        self._said = float("-inf")
        self._thread: threading.Thread | None = None
        self._duties: threading.Thread | None = None

    # What the application asks

    @property
    def is_leader(self) -> bool:
        """Whether it leads now: by its own clock, without asking anybody."""
        lease = self._present()
        return lease is not None and lease.is_held

    @property
    def term(self) -> int | None:
        """The term in which it leads; None when it does not."""
        lease = self._present()
        return lease.term if lease is not None and lease.is_held else None

    @property
    def lease(self) -> Lease:
        """The lease of the present term. Work that may outlast a term takes it once and keeps to it.

        Raises:
            LeaseLost: it does not lead.
        """
        lease = self._present()
        if lease is None:
            raise NotLeader
        lease.check()
        return lease

    def _present(self) -> Lease | None:
        """In ``on_elected``, the lease of the term that it was called for: duties of an old term must not pass as those of a
        later one, which this candidate may well have won by then.
        """
        return _bound.get().get(id(self), self._lease)

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
        """Wait until it leads; False when the time is over (None: for ever), or it stands no more."""
        with self._changed:
            self._changed.wait_for(lambda: self.is_leader or self._stopping, timeout_seconds)
            return self.is_leader

    def resign(self) -> None:
        """Give up the present term, if any, and stand again a second later."""
        self._reasons.append(_RESIGNED)
        self._woken.set()

    def __enter__(self) -> Leader:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Stand. Nothing is asked before.

        Raises:
            ConfigurationError: it stands already.
        """
        if self._thread is not None and self._thread.is_alive():
            raise ConfigurationError("this candidate stands already: make another one for another block")
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="leasequeue-leader", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stand no more: ``on_lost`` where it leads, then the release.

        Waits for ``on_lost`` until the lease has expired for certain, and no longer.
        """
        self._stopping = True
        self._woken.set()
        self._tell()
        thread, lease = self._thread, self._lease
        if thread is None or thread is threading.current_thread():
            return
        thread.join(STOP_SECONDS + (lease.hold.ttl_seconds if lease is not None else 0.0))
        if thread.is_alive():
            log.error(
                "a candidate does not end: its on_lost, or a question to the database, hangs; its lease expires by itself"
            )

    def wake(self) -> None:
        """Something has happened to its lease."""
        self._woken.set()

    @property
    def stopping(self) -> bool:
        """Whether it stands no more."""
        return self._stopping

    def tell(self, hook: Callable[[], None]) -> None:
        """Call ``hook``, from another thread, whenever it begins or ceases to lead, or to stand."""
        with self._changed:
            self._hooks.append(hook)

    def tell_no_more(self, hook: Callable[[], None]) -> None:
        with self._changed:
            self._hooks.remove(hook)

    def _tell(self) -> None:
        with self._changed:
            self._changed.notify_all()
            hooks = list(self._hooks)
        for hook in hooks:
            hook()

    # The thread

    def _run(self) -> None:
        bid: Bid | None = None
        while not self._stopping:
            try:
                keeper = self._make_keeper()
                bid = bid or self._make_bid()
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
        self._tell()

    def _stand(self, keeper: Keeper, bid: Bid) -> Hold | None:
        """Ask until it is granted; None when it stands no more, or the keeper was closed."""
        refused: Refused | None = None
        while not (self._stopping or keeper.closed):
            if not self._duties_are_over(bid.name) or not self._health.is_good(bid.name, HEALTH_SECONDS):
                refused = Refused(bid.name, INELIGIBLE, slots=bid.slots)
                keeper.refused(bid, refused)
            else:
                answer = keeper.ask(bid)
                if isinstance(answer, Hold):
                    return answer
                refused = answer
            self._pause(POLL_SECONDS)
        if refused is not None and not keeper.closed:
            keeper.refused(bid, refused, last=True)
        return None

    def _lead(self, keeper: Keeper, hold: Hold) -> None:
        """One term, from the election to the release, whatever happens on the way."""
        reasons = self._reasons = []
        lease = _TermLease(keeper, hold, self)
        began = time.monotonic()
        try:
            log.info("elected: %r leads in term %s", hold.name, hold.term)
            self._lease = lease
            self._tell()
            self._duties = threading.Thread(
                target=self._begin, args=(lease, reasons), name="leasequeue-leader-duties", daemon=True
            )
            self._duties.start()
            self._stay(lease, reasons)
        except Exception as error:
            log.exception("leading %r in term %s failed: it gives the lease back", hold.name, hold.term)
            reasons.append(f"{_FAILED}: {type(error).__name__}")
        finally:
            if not lease.is_held:
                keeper.lost(lease, "it was not renewed in time, so it is not trusted any more", known=False)
            keeper.drop(lease)  # no renewal any more: an on_lost that hangs must not keep others from leading
            self._lease = None
            self._tell()
            self._end(lease)
            lease.give_back(reasons[0] if reasons else None)
        if not reasons:
            return
        lasted = time.monotonic() - began
        failed = any(reason.startswith(_FAILED) for reason in reasons)
        self._failures = self._failures + 1 if failed and lasted < _BACK_OFF_MAX_SECONDS else int(failed)
        self._pause(min(_BACK_OFF_MAX_SECONDS, 0.5 * 2 ** min(self._failures, 6)) if failed else 1.0, whole=True)

    def _stay(self, lease: Lease, reasons: list[str]) -> None:
        """Until it is lost, or there is a reason to give it back."""
        third = (lease.hold.ttl_seconds - lease.hold.margin_seconds) / 3
        asked = time.monotonic()
        while not (self._stopping or reasons) and lease.is_held:
            self._pause(min(third, max(0.0, lease.remaining.total_seconds())))
            if time.monotonic() - asked >= third * 0.9:
                asked = time.monotonic()
                if not self._health.is_good(lease.name, min(HEALTH_SECONDS, third)):
                    reasons.append("not eligible any more")

    def _begin(self, lease: Lease, reasons: list[str]) -> None:
        if self._on_elected is None:
            return
        _bound.set({**_bound.get(), id(self): lease})
        try:
            self._on_elected(self)
        except Exception as error:
            # A leader that cannot do its duties and stays leader is nobody's leader.
            log.exception("on_elected of %r failed in term %s: it gives the lease back", lease.name, lease.term)
            reasons.append(f"{_FAILED}: {type(error).__name__}")
            self._woken.set()

    def _duties_are_over(self, name: str) -> bool:
        """Not two of them side by side: one that goes on after its term keeps this candidate from standing."""
        if self._duties is None or not self._duties.is_alive():
            return True
        if time.monotonic() - self._said > _SAY_EVERY_SECONDS:
            self._said = time.monotonic()
            log.warning("the candidate for %r does not stand: on_elected of its last term still runs", name)
        return False

    def end_term(self, reason: str, until: threading.Event) -> None:
        """Give the present term up, and wait until its lease is given back, or has expired. Not from ``on_lost``."""
        self._reasons.append(reason)
        self._woken.set()
        lease = self._lease
        if threading.current_thread() is not self._thread and lease is not None:
            until.wait(lease.hold.ttl_seconds)

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

    def _pause(self, seconds: float, *, whole: bool = False) -> None:
        until = time.monotonic() + seconds
        while not self._stopping:
            woken = self._woken.wait(max(0.0, until - time.monotonic()))
            self._woken.clear()
            if not (woken and whole) or time.monotonic() >= until:
                return


class _TermLease(Lease):
    """A leader's lease: whoever releases it ends the term, so that ``on_lost`` comes before another can lead."""

    def __init__(self, keeper: Keeper, hold: Hold, leader: Leader) -> None:
        self._leader = leader
        self._ended = threading.Event()
        super().__init__(keeper, hold, lambda _: leader.wake())

    def release(self, reason: str | None = None) -> None:
        if self.is_held:
            self._leader.end_term(reason or "released by the application", self._ended)

    def give_back(self, reason: str | None) -> None:
        super().release(reason)
        self._ended.set()


class NotLeader(LeaseLost):
    """A candidate that does not lead was asked for what a leader has."""

    def __init__(self) -> None:
        super().__init__("leadership", 0)
        self.args = ("this candidate does not lead: look at is_leader, or wait()",)
