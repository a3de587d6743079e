"""What a LeaseQueue offers of leases: ``lease``, ``try_lease``, ``leader`` and their async twins."""

from __future__ import annotations

import datetime as dt
import inspect
import os
import socket
import threading
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from leasequeue import naming
from leasequeue.errors import ConfigurationError
from leasequeue.job import NAME_BYTES_MAX

if TYPE_CHECKING:
    from leasequeue.db.urls import Settings
    from leasequeue.lease.aleader import AsyncLeader
    from leasequeue.lease.handle import Lease, OnLost, Wish
    from leasequeue.lease.hold import Bid, Refused
    from leasequeue.lease.keeper import Keeper
    from leasequeue.lease.leader import Leader

# What holds leases is imported where the first one is asked for, so that an application that only enqueues starts quickly.

TTL = dt.timedelta(seconds=30)
NOW = dt.timedelta(0)

# One for the process, made anew in the child of a fork: a thread of the parent may have held it at that moment.
_making = threading.Lock()


def _after_fork() -> None:
    global _making
    _making = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


class Leases:
    """The part of a LeaseQueue that holds leases."""

    _keeper: Keeper | None = None

    if TYPE_CHECKING:

        @property
        def schema(self) -> str: ...

        def settings(self) -> Settings: ...

    def lease(
        self,
        name: str,
        *,
        ttl: dt.timedelta = TTL,
        wait: dt.timedelta | None = NOW,
        slots: int = 1,
        owner: str | None = None,
        on_lost: OnLost | None = None,
    ) -> Wish:
        """Hold a lease for the length of a ``with`` block: ``with lq.lease("weekly-report") as lease:``.

        It is renewed in the background; the block may last as long as it likes. Uses connections of its own, at most two
        for the process, whatever the number of its leases: not the application's pool. Nothing is asked before the block.

        Args:
            name: of the lease, at most 512 bytes. Names belong to the schema.
            ttl: how long it lasts after the last renewal: what a holder that was killed costs the others. 2 s to a day.
                It is trusted for less: for ttl - max(1 s, ttl / 5) after a renewal was sent.
            wait: how long to go on asking where it is held; None: for ever.
            slots: how many may hold it at once; more than 1 makes it a semaphore. The first to ask for the name decides;
                ``leasequeue leases resize`` changes it.
            owner: the readable name that others are shown. None: host and pid.
            on_lost: called in a thread of its own with the lease when it is lost.

        Raises (from ``with``):
            LeaseRefused: somebody else holds it, with who, in which term, since when, until when.
            DatabaseUnavailable: it could not be asked. Never a refusal.
            ConfigurationError: a value out of its range; the lease has another number of slots.
            LeaseLost: at the end of the block, where the lease was lost on the way.
        """
        from leasequeue.lease.handle import Wish

        wait_seconds = None if wait is None else _seconds("wait", wait)
        return Wish(self._leases, self._bids(name, ttl, slots, owner), wait_seconds, on_lost)

    def alease(
        self,
        name: str,
        *,
        ttl: dt.timedelta = TTL,
        wait: dt.timedelta | None = NOW,
        slots: int = 1,
        owner: str | None = None,
        on_lost: OnLost | None = None,
    ) -> Wish:
        """The async twin of :meth:`lease`: ``async with lq.alease(...) as lease``. ``on_lost`` is called in a thread."""
        return self.lease(name, ttl=ttl, wait=wait, slots=slots, owner=owner, on_lost=on_lost)

    def try_lease(
        self,
        name: str,
        *,
        ttl: dt.timedelta = TTL,
        slots: int = 1,
        owner: str | None = None,
        on_lost: OnLost | None = None,
    ) -> Lease | Refused:
        """Ask once, now: ``if lease := lq.try_lease("weekly-report"): ...``. A ``Refused`` is falsy and says why.

        The lease is held until it is released: use it as a context manager, or call ``release()``.

        Raises:
            DatabaseUnavailable: it could not be asked.
            ConfigurationError: as for :meth:`lease`.
        """
        from leasequeue.lease.handle import Wish

        return Wish(self._leases, self._bids(name, ttl, slots, owner), 0.0, on_lost).get()

    async def atry_lease(
        self,
        name: str,
        *,
        ttl: dt.timedelta = TTL,
        slots: int = 1,
        owner: str | None = None,
        on_lost: OnLost | None = None,
    ) -> Lease | Refused:
        """The async twin of :meth:`try_lease`."""
        from leasequeue.lease.handle import Wish

        return await Wish(self._leases, self._bids(name, ttl, slots, owner), 0.0, on_lost).aget()

    def leader(
        self,
        name: str,
        *,
        ttl: dt.timedelta = TTL,
        owner: str | None = None,
        on_elected: Callable[[Leader], object] | None = None,
        on_lost: Callable[[Leader], object] | None = None,
        eligible: Callable[[], bool] | None = None,
    ) -> Leader:
        """Stand for leadership for the length of a ``with`` block, and lead whenever nobody else does.

        Args:
            name, ttl, owner: as for :meth:`lease`.
            on_elected: called in a thread of its own when this candidate has become the leader. What it raises gives the
                lease back, so that another may lead.
            on_lost: called when it leads no more, for whatever reason, before another can: it has a second, or a fifth
                of the ttl where that is more.
            eligible: asked before it stands and while it leads; where it says no, another leads.

        The block begins at once: ``me.wait()`` waits until this candidate leads. ``on_elected`` and ``on_lost`` are called
        with it.

        Raises:
            ConfigurationError: a value out of its range, or a callback that takes no argument.
        """
        from leasequeue.lease.leader import Leader

        _check_callbacks(on_elected=on_elected, on_lost=on_lost)

        return Leader(
            self._leases, self._bids(name, ttl, 1, owner), on_elected=on_elected, on_lost=on_lost, eligible=eligible
        )

    def aleader(
        self,
        name: str,
        *,
        ttl: dt.timedelta = TTL,
        owner: str | None = None,
        on_elected: Callable[[AsyncLeader], Any] | None = None,
        on_lost: Callable[[AsyncLeader], Any] | None = None,
        eligible: Callable[[], Any] | None = None,
    ) -> AsyncLeader:
        """The async twin of :meth:`leader`; the callbacks may be ``async def``."""
        from leasequeue.lease.aleader import AsyncLeader
        from leasequeue.lease.leader import Leader

        _check_callbacks(on_elected=on_elected, on_lost=on_lost)
        make = partial(Leader, self._leases, self._bids(name, ttl, 1, owner))
        return AsyncLeader(make, on_elected, on_lost, eligible)

    def _bids(self, name: str, ttl: dt.timedelta, slots: int, owner: str | None) -> Callable[[], Bid]:
        from leasequeue.lease.hold import SLOTS_MAX, TTL_MAX_SECONDS, TTL_MIN_SECONDS, Bid

        naming.check("a lease's name", name)
        ttl_seconds = _seconds("ttl", ttl)
        if not TTL_MIN_SECONDS <= ttl_seconds <= TTL_MAX_SECONDS:
            raise ConfigurationError(
                f"the ttl of a lease is {TTL_MIN_SECONDS:g} s to a day, not {ttl}: a second of it is kept back, so that "
                f"trust ends before the row does"
            )
        if not _is_count(slots, SLOTS_MAX):
            raise ConfigurationError(f"a lease has 1 to {SLOTS_MAX} slots, not {slots!r}")
        if owner is not None:
            naming.check("a lease's owner", owner)

        def bid() -> Bid:
            return Bid(self._leases().sql, name, slots=slots, owner=owner or default_owner(), ttl_seconds=ttl_seconds)

        return bid

    def dispose_leases(self) -> None:
        """Release what is held here, and close the connections and threads that held it. They are made anew when needed."""
        keeper, self._keeper = self._keeper, None
        if keeper is not None and keeper.pid == os.getpid():
            keeper.close()

    def _leases(self) -> Keeper:
        """The keeper of this process: not the one of the process that it was forked from."""
        keeper = self._keeper
        if keeper is None or keeper.pid != os.getpid():
            with _making:
                keeper = self._keeper
                if keeper is None or keeper.pid != os.getpid():
                    from leasequeue.lease.keeper import Keeper

                    keeper = self._keeper = Keeper(self.settings(), self.schema)
        return keeper


def default_owner() -> str:
    """Host and pid. Shown to people; never compared: the holder is a UUID of its own for each acquisition."""
    return f"{socket.gethostname()}:{os.getpid()}".encode()[:NAME_BYTES_MAX].decode("utf-8", "ignore")


def _check_callbacks(**callbacks: Callable[..., object] | None) -> None:
    """One that cannot be called with the candidate would fail at each election, over and over."""
    for name, callback in callbacks.items():
        if callback is None:
            continue
        try:
            inspect.signature(callback).bind(object())
        except TypeError:
            raise ConfigurationError(f"{name} is called with the candidate: write `def {name}(me): ...`") from None
        except ValueError:
            continue  # a builtin that does not say what it takes


def _is_count(value: object, most: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= most


def _seconds(what: str, value: object) -> float:
    # Any object: an application without a type checker gets a sentence.
    if not isinstance(value, dt.timedelta) or value < dt.timedelta(0):
        raise ConfigurationError(f"{what} is a timedelta of 0 or more, not {value!r}")
    return value.total_seconds()
