"""The bound of every statement of our own: a thread that shuts the socket of one that takes too long.

Nothing else bounds a statement whose server is stopped or cut off: ``statement_timeout`` is the server's, a cancel
request needs the server, and libpq waits for as long as the kernel does. After a hit the outcome is *unknown*.

    idle ──arm──> armed ──disarm──> idle
                    └──deadline──> hit (socket shut; the statement's own thread sees the end of file)
"""

from __future__ import annotations

import contextlib
import math
import os
import socket
import threading
import time
import weakref

_LINGER_SECONDS = 1.0


class Watch:
    """One connection under watch. Only :class:`Watchdog` touches it, under its lock."""

    __slots__ = ("deadline", "hit", "socket")

    def __init__(self, fd: int) -> None:
        # A descriptor of our own: libpq may close its own at any moment, and the number may be somebody else's then.
        self.socket = socket.socket(fileno=os.dup(fd))
        self.deadline = math.inf
        self.hit = False


class Watchdog:
    """Shuts the sockets of overdue statements. Thread-safe; one thread, which runs only while something is watched.

    :meth:`arm` and :meth:`disarm` cost about a microsecond together: the thread is woken only by a deadline that
    is nearer than the one it already waits for.
    """

    def __init__(self) -> None:
        self._reset()
        _all.add(self)

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._watches: set[Watch] = set()
        self._next = -math.inf  # when the thread looks next; nothing need wake it for later deadlines
        self._armed = 0
        self._thread: threading.Thread | None = None

    def watch(self, fd: int) -> Watch:
        """Begin to watch a connected socket, not armed yet."""
        watch = Watch(fd)
        with self._lock:
            self._watches.add(watch)
            if self._thread is None:
                self._next = -math.inf
                self._thread = threading.Thread(target=self._run, name="leasequeue-watchdog", daemon=True)
                self._thread.start()
        return watch

    def arm(self, watch: Watch, seconds: float) -> None:
        """From now on the socket is shut after that many seconds, unless disarmed."""
        deadline = time.monotonic() + seconds
        with self._lock:
            watch.deadline = deadline
            self._armed += 1
            if deadline < self._next:
                self._next = deadline
                self._changed.notify()

    def disarm(self, watch: Watch) -> bool:
        """End the bound; True when it had been passed and the socket is shut."""
        with self._lock:
            watch.deadline = math.inf
            return watch.hit

    def forget(self, watch: Watch) -> None:
        """Stop watching. To be called before libpq closes its side, or another's socket might be shut."""
        with self._lock:
            self._watches.discard(watch)
            watch.deadline = math.inf
            watch.socket.close()

    def _run(self) -> None:
        seen = -1
        with self._lock:
            while True:
                now = time.monotonic()
                nearest = math.inf
                for watch in self._watches:
                    if watch.deadline <= now:
                        watch.hit, watch.deadline = True, math.inf
                        with contextlib.suppress(OSError):  # the other side may have been faster
                            watch.socket.shutdown(socket.SHUT_RDWR)
                    nearest = min(nearest, watch.deadline)
                if nearest == math.inf and seen == self._armed:
                    # Nothing was armed for a while: sleep until something is.
                    if not self._watches:
                        self._thread = None
                        return
                    self._next = math.inf
                    self._changed.wait()
                else:
                    # Linger: a process that runs statements all the time wakes this thread once a second, not each time.
                    self._next = min(nearest, now + _LINGER_SECONDS)
                    seen = self._armed
                    self._changed.wait(self._next - now)

    def _after_fork(self) -> None:
        # The thread is the parent's, and the lock may have been held by it.
        watches = self._watches
        self._reset()
        for watch in watches:
            watch.socket.close()


_all: weakref.WeakSet[Watchdog] = weakref.WeakSet()


def _after_fork() -> None:
    for watchdog in list(_all):
        watchdog._after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)

shared = Watchdog()
"""The one of this process, for those who bring none of their own."""
