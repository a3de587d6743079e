"""The window in which a thread's handler may be interrupted: not before it begins, not after it has ended.

An exception for another thread (``PyThreadState_SetAsyncExc``) is delivered at some later line of that thread. So it could
come after the handler has ended: into the worker's own code, or into the next job's handler::

    interrupter                              thread of the handler
    job still runs there? yes
                                             handler returns; the next job begins
    set the exception                        ... and is hit, having done nothing

Both sides therefore take one lock. The interrupter asks and sets within it; the thread closes the window within it, and then
takes back what was set and not delivered::

    open ──interrupt──> sent ──delivered──> (in the handler: its end)
      │                  │ └────delivered──> (in shut() itself: shut() again, nothing more can come)
      └──shut──> closed <┴──shut: taken back

Once at most for each job: after one delivery there is nothing left that could disturb the closing.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from typing import Any

from leasequeue.raising import JobInterrupted

Send = Callable[[int, "type[BaseException] | None"], None]


def set_async(ident: int, kind: type[BaseException] | None) -> None:
    """Set, or with None take back, the exception that is to be raised in a thread."""
    target = None if kind is None else ctypes.py_object(kind)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(ident), target)


class Window:
    """The window of one thread; made in that thread.

    Args:
        send: sets the exception; another one in tests.
    """

    __slots__ = ("_ident", "_job", "_lock", "_send", "_sent")

    def __init__(self, send: Send = set_async) -> None:
        self._ident = threading.get_ident()
        self._lock = threading.Lock()
        self._job: object = None
        self._sent = False
        self._send = send

    def run(self, job: object, call: Callable[..., Any], *args: Any) -> tuple[Any, BaseException | None]:
        """Call with the window open for ``job``. In the window's own thread.

        Returns:
            What it returned and None, or None and what it raised. An interruption that comes after it has returned is
            dropped.
        """
        value: Any = None
        error: BaseException | None = None
        has_returned = False
        try:
            try:
                self._sent = False
                self._job = job  # open
                value = call(*args)
                has_returned = True
            except BaseException as caught:  # noqa: BLE001  # whatever a handler raises ends its attempt, not this thread
                error = caught
            self._shut()
        except JobInterrupted as late:
            self._shut()
            if error is None and not has_returned:
                error = late
        return value, error

    def interrupt(self, job: object, kind: type[JobInterrupted]) -> bool:
        """Raise ``kind`` in the thread, if it runs ``job`` now and was not interrupted in it before. Any thread.

        Returns:
            Whether it was set now.
        """
        with self._lock:
            if self._job is not job or self._sent:
                return False
            self._sent = True
            self._send(self._ident, kind)
            return True

    def _shut(self) -> None:
        with self._lock:
            self._job = None
            if self._sent:
                self._send(self._ident, None)
