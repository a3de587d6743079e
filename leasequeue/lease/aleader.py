"""The async face of a candidate: its callbacks run on the event loop that it was entered on."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any

from leasequeue.lease.leader import Leader

if TYPE_CHECKING:
    from leasequeue.db.kinds import AsyncConn
    from leasequeue.lease.handle import Lease


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
        """Wait until it leads; False when the time is over (None: for ever), or it stands no more."""
        leader, loop, changed = self.leader, asyncio.get_running_loop(), asyncio.Event()

        def hook() -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed by now
                loop.call_soon_threadsafe(changed.set)

        leader.tell(hook)
        try:
            async with asyncio.timeout(timeout_seconds):
                while True:
                    changed.clear()  # before the look, or a change between the two would be missed
                    if leader.is_leader or leader.stopping:
                        return leader.is_leader
                    await changed.wait()
        except TimeoutError:
            return leader.is_leader
        finally:
            leader.tell_no_more(hook)

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

        def bridge(*given: Leader) -> Any:
            # The callbacks get this object; eligible gets nothing.
            words = (self,) if given else ()
            return asyncio.run_coroutine_threadsafe(on_loop(words), loop).result()

        return bridge
