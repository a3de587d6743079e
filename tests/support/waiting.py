"""Waiting for something to become true, with a deadline: the tests' only way to wait."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

QUESTION_SECONDS = 2.0
"""The most that one question counts: what it takes longer, the machine stood still, or nearly."""


def until(predicate: Callable[[], T], seconds: float = 10.0, what: str = "", *, every: float = 0.01) -> T:
    """Ask ``predicate`` again and again until it answers something true, and return that.

    Args:
        predicate: an exception that it raises is a "not yet"; the last one is shown if time runs out.
        seconds: the deadline, from now; a machine that stalls moves it, by the time for which nothing could be asked.
        what: what is waited for, in words, for the failure's message.
        every: seconds between two questions.

    Raises:
        AssertionError: at the deadline, with the last answer or error.
    """
    waited, at = 0.0, time.monotonic()
    while True:
        error: Exception | None = None
        answer: T | None = None
        try:
            answer = predicate()
        except Exception as caught:  # noqa: BLE001 - "not yet" may show as any error, e.g. a refused connection
            error = caught
        if error is None and answer:
            return answer
        waited, at = waited + min(QUESTION_SECONDS, time.monotonic() - at), time.monotonic()
        if waited > seconds:
            seen = f"last error: {error!r}" if error is not None else f"last answer: {answer!r}"
            name = what or getattr(predicate, "__qualname__", repr(predicate))
            raise AssertionError(f"waited {seconds:g} s in vain for: {name} ({seen})") from error
        time.sleep(every)
