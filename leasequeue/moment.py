"""Times as the database gives them to us, in seconds since 1970, and in words. Pure."""

from __future__ import annotations

import datetime as dt
import math

_LAST = dt.datetime.max.replace(tzinfo=dt.UTC)
_FIRST = dt.datetime.min.replace(tzinfo=dt.UTC)


def moment(seconds: float | None) -> dt.datetime | None:
    """A time from seconds since 1970; what no ``datetime`` can hold becomes the last or the first that can be."""
    if seconds is None or math.isnan(seconds):
        return None
    try:
        return dt.datetime.fromtimestamp(seconds, dt.UTC)
    except (OverflowError, ValueError, OSError):
        return _LAST if seconds > 0 else _FIRST


def say(at: dt.datetime | None, *, precise: bool = False) -> str:
    """``2026-11-30 21:00:00Z``, with milliseconds where they matter; ``never`` for None."""
    if at is None:
        return "never"
    return at.isoformat(sep=" ", timespec="milliseconds" if precise else "seconds").replace("+00:00", "Z")
