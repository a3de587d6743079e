"""How many jobs may run at once, and how many may start in a span of time. Pure.

A limit is named by what it is about: a key of the application's own (``user:7``), ``task:NAME``, ``queue:NAME``, or the
first part of keys (``user`` is the limit of each key ``user:...`` that has none of its own).
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterable
from typing import Any, NamedTuple, TypeAlias

from leasequeue import naming
from leasequeue.errors import ConfigurationError

OF_TASK = "task:"
OF_QUEUE = "queue:"
OF_SHARE = "fair:"
_OURS = (OF_TASK, OF_QUEUE, OF_SHARE)

_COUNT_MAX = 2**31 - 1
_SECONDS = {"ms": 0.001, "s": 1.0, "sec": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86_400.0}
_RATE = re.compile(r"\s*(\d+)\s*/\s*(\d+(?:\.\d+)?)?\s*([a-z]+)\s*")

RateLike: TypeAlias = "str | tuple[int, dt.timedelta]"


class Limit(NamedTuple):
    """What a job of a key must pass; None where there is no such bound.

    Attributes:
        running: jobs of the key that may run at once, over all workers.
        rate: jobs that may start in any ``rate_seconds``: a window that slides, not one that begins anew.
    """

    running: int | None = None
    rate: int | None = None
    rate_seconds: float | None = None

    def over(self, other: Limit) -> Limit:
        """This one, with what it does not say taken from another."""
        rated = self if self.rate is not None else other
        return Limit(other.running if self.running is None else self.running, rated.rate, rated.rate_seconds)

    def __str__(self) -> str:
        parts = []
        if self.running is not None:
            parts.append(f"{self.running} at once")
        if self.rate is not None:
            parts.append(f"{self.rate} in any {self.rate_seconds:g} s")
        return ", ".join(parts) or "none"


NO_LIMIT = Limit()


class Rules:
    """Limits that stand beside the jobs: declared in code, or set by an operator, which goes before. Immutable.

    Args:
        rows: (name, declared, running, rate, rate_seconds) of each.
    """

    def __init__(self, rows: Iterable[tuple[str, bool, int | None, int | None, float | None]] = ()) -> None:
        found: dict[str, Limit] = {}
        for name, _, running, rate, seconds in sorted(rows, key=lambda row: row[1]):
            found[name] = found.get(name, NO_LIMIT).over(Limit(running, rate, seconds))
        self._by_name = found

    def of(self, key: str) -> Limit:
        """What is said for a key: under its own name, else under the first part of it; each value by itself."""
        if not self._by_name:  # asked for each key of each claim
            return NO_LIMIT
        return self._by_name.get(key, NO_LIMIT).over(self._by_name.get(key.partition(":")[0], NO_LIMIT))

    def above(self, queue: str) -> list[str]:
        """The limits of the queue itself and of whole tasks, which keys of it may be under; in a fixed order."""
        return sorted(n for n in self._by_name if n.startswith(OF_TASK) or n == OF_QUEUE + queue)

    def __bool__(self) -> bool:
        return bool(self._by_name)


def parse(what: str, running: Any, rate: Any, least: int = 1) -> Limit:
    """A limit from what an application or an operator wrote.

    Args:
        what: for the error: ``app.send`` or ``queue 'mail'``.
        running: a whole number of at least ``least`` (and at most 2**31 - 1), or None.
        rate: ``"100/10s"`` (units ms, s, m, h, d), ``(100, timedelta(seconds=10))``, or None.

    Raises:
        ConfigurationError: neither form.
    """
    if running is not None and (
        not isinstance(running, int) or isinstance(running, bool) or not least <= running <= _COUNT_MAX
    ):
        raise ConfigurationError(f"{what}: limit is a whole number from {least} to {_COUNT_MAX}, not {running!r}")
    if rate is None:
        return Limit(running)
    count, seconds = _rate(what, rate)
    return Limit(running, count, seconds)


def _rate(what: str, rate: Any) -> tuple[int, float]:
    wrong = ConfigurationError(
        f"{what}: rate is a number of starts and a span of at most 366 days, as in "
        f'"100/10s", "5/m" or (100, timedelta(seconds=10)), not {rate!r}'
    )
    if isinstance(rate, tuple):
        if len(rate) != 2 or not isinstance(rate[1], dt.timedelta):
            raise wrong
        count, seconds = rate[0], rate[1].total_seconds()
    else:
        found = _RATE.fullmatch(rate) if isinstance(rate, str) else None
        if found is None or found.group(3) not in _SECONDS:
            raise wrong
        count, seconds = int(found.group(1)), float(found.group(2) or 1) * _SECONDS[found.group(3)]
    if (
        not isinstance(count, int)
        or isinstance(count, bool)
        or not 1 <= count <= _COUNT_MAX
        or not 0 < seconds <= 366 * 86_400
    ):
        raise wrong
    return count, seconds


def check_key(text: Any) -> str:
    """A key that an application gave.

    Raises:
        ConfigurationError: it is too long or empty, or begins like a name of ours.
    """
    key = naming.check("a limit_key", text)
    if key.startswith(_OURS):
        raise ConfigurationError(
            f"a limit_key does not begin with {', '.join(_OURS)}: those are limits of ours, not {key!r}"
        )
    return key
