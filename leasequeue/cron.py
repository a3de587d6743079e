"""When a schedule is due. Pure: no database, no clock, no threads.

A schedule is a cron in a time zone, or a span of elapsed time. A cron has five fields (minute, hour, day of the month,
month, day of the week) or six, the seconds first; `L`, `LW`, `MON#2` and `5L` are understood as cronsim understands
them. Where both days are given they are alternatives, unless one of the two begins with `*` (Debian's rule). The fields
are cronsim's, the mapping of local times to instants is ours. Seven names stand for a cron: @hourly, @daily, @midnight,
@weekly, @monthly, @yearly and @annually.

When clocks change:

- A cron whose hour field matches every hour of the day (``*``, ``0-23``, @hourly) follows elapsed time. It is due at
  every instant whose local wall clock matches: in both passes of a repeated hour, and not at all in a skipped hour.
- Every other cron is a set of local times, and each is due once: at the first instant at which the local clock shows
  it or has gone past it. So a time that exists twice is due at its first occurrence. One that a change skips is due
  at the first instant after the gap; several that one gap skips coincide there and are one due time.
- ``every`` is elapsed time, whatever the clocks do.

Zone data are those of ``zoneinfo``. Nothing is due outside of the years 2 to 9998, so that no arithmetic leaves what
a datetime can hold.
"""

from __future__ import annotations

import contextlib
import copy
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any, cast
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from leasequeue.errors import ConfigurationError

CRON_CHARACTERS_MAX = 256
EVERY_SECONDS_MIN = 1.0
EVERY_SECONDS_MAX = 36525 * 86400.0  # 100 years; up to here a float of seconds holds each microsecond

_NAMED = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
_KEYS = ("cron", "every", "tz", "start", "end")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_EARLIEST = datetime(2, 1, 1, tzinfo=UTC)
_LATEST = datetime(9998, 12, 31, 23, 59, 59, tzinfo=UTC)
_SECOND = timedelta(seconds=1)
_MICROSECOND = timedelta(microseconds=1)
# More than any two offsets of a zone differ by (24 h, where the date line was crossed), and less than two changes
# of a zone have ever been apart (4 days; Africa/Freetown, 1939).
_REACH = timedelta(days=2)
_UNITS = ((timedelta(days=1), "d"), (timedelta(hours=1), "h"), (timedelta(minutes=1), "min"), (_SECOND, "s"))
_ZONE_KEY = re.compile(r"[A-Za-z0-9_+-]{1,40}(/[A-Za-z0-9_+-]{1,40}){0,3}")
# In the zone directory, but no IANA names: what the first two say differs between machines, the others are copies
# of the whole tree, one of them with leap seconds.
_NO_ZONES = re.compile(r"(localtime|posixrules)$|(posix|right)/")


@dataclass(frozen=True, slots=True)
class Spec:
    """When a schedule is due. One that exists is valid: building one checks it, by whichever way.

    Immutable and hashable; may be used by any number of threads at once. Equal when they say the same: blanks of the
    cron are made single, and the two ends become UTC.

    Args:
        cron: five or six fields (seconds first), or one of the names such as @daily; None with ``every_seconds``.
        every_seconds: seconds of elapsed time, 1 s to 100 years, rounded to a microsecond; None with ``cron``.
        tz: an IANA name. Only a cron uses it, but it is checked in any case.
        start: aware; nothing is due before it. ``every_seconds`` is counted from it, and it is due itself. None:
            no limit, and counted from 1970-01-01T00:00:00Z.
        end: aware; nothing is due after it, an instant equal to it may be. None: no limit.

    Raises:
        ConfigurationError: it cannot be a schedule; the message says what was found and what to write. A cron that is
            well formed and matches no day there is (30 February) is accepted, and never due.
    """

    cron: str | None
    every_seconds: float | None
    tz: str
    start: datetime | None = None
    end: datetime | None = None

    def __post_init__(self) -> None:
        if (self.cron is None) == (self.every_seconds is None):
            found = "neither" if self.cron is None else "both"
            raise ConfigurationError(
                f'a schedule has either a cron or a span, and {found} was given: write "cron" or "every"'
            )
        _zone(_zone_key(self.tz))
        if self.cron is not None:
            object.__setattr__(self, "cron", _cron_text(self.cron))
        if self.every_seconds is not None:
            object.__setattr__(self, "every_seconds", _every(self.every_seconds))
        object.__setattr__(self, "start", _limit("start", self.start))
        object.__setattr__(self, "end", _limit("end", self.end))
        if self.start is not None and self.end is not None and self.end < self.start:
            raise ConfigurationError(
                f"the end, {self.end.isoformat()}, is before the start, {self.start.isoformat()}: nothing would be due"
            )

    @classmethod
    def make(cls, when: str | timedelta, tz: str, start: datetime | None = None, end: datetime | None = None) -> Spec:
        """The schedule that an application asks for: a cron as text, or a span as timedelta.

        Raises:
            ConfigurationError: see the class.
        """
        if isinstance(when, timedelta):
            return cls(None, when.total_seconds(), tz, start, end)
        if isinstance(when, str):
            return cls(when, None, tz, start, end)
        raise ConfigurationError(f'a schedule is a cron as text ("0 21 * * *") or a timedelta, not {_shown(when)}')

    def to_json(self) -> dict[str, Any]:
        """What goes into the row: ``{"cron": ..., "tz": ...}`` or ``{"every": seconds, "tz": ...}``.

        ``start`` and ``end`` are ISO 8601 texts in UTC, and left out where there is none.
        """
        value: dict[str, Any] = {}
        if self.every_seconds is None:
            value["cron"] = self.cron
        else:
            seconds = self.every_seconds
            value["every"] = int(seconds) if seconds.is_integer() else seconds
        value["tz"] = self.tz
        if self.start is not None:
            value["start"] = self.start.isoformat()
        if self.end is not None:
            value["end"] = self.end.isoformat()
        return value

    @classmethod
    def from_json(cls, value: object) -> Spec:
        """What stands in a row, whoever wrote it; the inverse of ``to_json``.

        A null counts as left out. ``tz`` may be left out with ``every``. A key that is not known here is refused:
        leaving it aside could mean to run at the wrong times.

        Raises:
            ConfigurationError: anything at all is wrong with it; there is no other error.
        """
        if not isinstance(value, dict):
            raise ConfigurationError(
                f'a schedule is stored as an object such as {{"cron": "0 21 * * *", "tz": "UTC"}}, not {_shown(value)}'
            )
        unknown = [key for key in value if key not in _KEYS]
        if unknown:
            raise ConfigurationError(f"a schedule has no {_shown(unknown[0])}: write only {', '.join(_KEYS)}")
        given: dict[str, Any] = value
        tz: Any = given.get("tz")
        if tz is None and given.get("every") is not None:
            tz = "UTC"
        # The checks of types are those of the class, which lets nothing through.
        return cls(
            value.get("cron"), value.get("every"), cast(str, tz), _from_iso("start", value), _from_iso("end", value)
        )

    def after(self, instant: datetime) -> datetime | None:
        """The first due time strictly after ``instant``, in UTC; None when there is none any more.

        Args:
            instant: aware, in any zone; microseconds count.

        Raises:
            ValueError: ``instant`` is naive.
        """
        return next(self._due(instant), None)

    def between(self, first_after: datetime, until: datetime, limit: int) -> list[datetime]:
        """The due times d with ``first_after`` < d <= ``until``, in UTC, ascending: the first ``limit`` of them.

        Empty where ``limit`` is 0 or less.

        Raises:
            ValueError: ``first_after`` or ``until`` is naive.
        """
        _check_aware(until)
        found: list[datetime] = []
        if limit <= 0:
            _check_aware(first_after)
            return found
        for due in self._due(first_after):
            if due > until:
                break
            found.append(due)
            if len(found) == limit:
                break
        return found

    def describe(self) -> str:
        """For people: ``0 21 * * * Europe/Kyiv``, ``every 15 min``, and the limits where there are any."""
        if self.every_seconds is None:
            text = f"{self.cron} {self.tz}"
        else:
            span = timedelta(seconds=self.every_seconds)
            unit, name = next((unit for unit in _UNITS if not span % unit[0]), _UNITS[-1])
            text = f"every {span // unit if not span % unit else self.every_seconds} {name}"
        if self.start is not None:
            text += f" from {self.start.isoformat()}"
        if self.end is not None:
            text += f" until {self.end.isoformat()}"
        return text

    def _due(self, instant: datetime) -> Iterator[datetime]:
        """All due times after ``instant``, ascending."""
        _check_aware(instant)
        low = max(instant, _EARLIEST if self.start is None else self.start - _MICROSECOND)
        high = _LATEST if self.end is None else self.end
        if low >= high:
            return
        low = low.astimezone(UTC)
        if self.every_seconds is None:
            assert self.cron is not None
            times = _cron_times(_fields(self.cron), _zone(self.tz), low.replace(microsecond=0))
        else:
            times = _every_times(self.start or _EPOCH, timedelta(seconds=self.every_seconds), low)
        # At the very end of the years the arithmetic overflows before the limit is reached.
        with contextlib.suppress(OverflowError):
            for due in times:
                if due > high:
                    return
                yield due


@dataclass(frozen=True, slots=True)
class _Fields:
    """A parsed cron. Shared between threads: the pattern is only copied from.

    Args:
        pattern: None where no date ever matches.
        elapsed: its hour field matches every hour.
    """

    pattern: CronSim | None
    elapsed: bool

    def labels(self, after: datetime) -> CronSim:
        """An iterator over the local times that match, after a naive one; its ``dt`` may be set to go on elsewhere."""
        walk = copy.copy(self.pattern)
        assert walk is not None
        walk.dt = after
        return walk


@lru_cache(maxsize=1024)
def _fields(cron: str) -> _Fields:
    """Raises CronSimError."""
    parts = _NAMED.get(cron, cron).split()
    origin = datetime(2000, 1, 1)  # noqa: DTZ001  local times are naive
    try:
        pattern = CronSim(" ".join(parts), origin)
    except CronSimError:
        # cronsim refuses 30 February like a spelling error. It is one if either of the two fields is bad by itself.
        if len(parts) not in (5, 6):
            raise
        for field, free in ((-3, "1"), (-2, "*")):
            CronSim(" ".join([*parts[:field], free, *parts[field + 1 :]]), origin)
        return _Fields(None, False)
    # Within the 50 years after which cronsim gives up, these hold every kind of year: what never matches there never
    # does. Found out once, as it takes tens of milliseconds.
    if next(copy.copy(pattern), None) is None:
        return _Fields(None, False)
    return _Fields(pattern, len(pattern.hours) == 24)


@lru_cache(maxsize=1024)
def _zone(key: str) -> ZoneInfo:
    """The zone of a key in the right form. Kept here, as zoneinfo's own cache holds on to only eight.

    Raises:
        ConfigurationError: there is none.
    """
    try:
        return ZoneInfo(key)
    except (LookupError, ValueError, OSError, EOFError, struct.error):
        raise ConfigurationError(
            f"the time zone {key!r} is not known here: write an IANA name such as Europe/Kyiv or UTC"
            f" (where the system has no zone data, install the package tzdata)"
        ) from None


def _cron_times(fields: _Fields, zone: ZoneInfo, second: datetime) -> Iterator[datetime]:
    """Due times of a cron, ascending, after a whole second in UTC."""
    if fields.pattern is None:
        return iter(())
    return _elapsed(fields, zone, second) if fields.elapsed else _local(fields, zone, second)


def _elapsed(fields: _Fields, zone: ZoneInfo, second: datetime) -> Iterator[datetime]:
    """Every instant whose local time matches: stretch by stretch of one offset."""
    moment, offset = second, _offset(zone, second)
    walk = fields.labels(_naive(second + offset))
    while (label := next(walk, None)) is not None:
        due = label.replace(tzinfo=UTC) - offset
        horizon = min(due, moment + _REACH)
        turn = _turn(zone, moment, horizon, offset)
        if turn is not None:
            # Nothing matches before the change; the instant of the change itself may.
            moment, offset = turn, _offset(zone, turn)
            walk.dt = _naive(turn + offset - _SECOND)
        elif due > horizon:
            # Far away. Whatever the offsets are in between, they differ by less than the reach: local times there
            # lie between the one at `moment` and `label`, where nothing matches.
            moment = max(horizon, due - _REACH)
            offset = _offset(zone, moment)
            walk.dt = _naive(moment + offset)
        else:
            yield due
            moment = due


def _local(fields: _Fields, zone: ZoneInfo, second: datetime) -> Iterator[datetime]:
    """For each local time that matches, the first instant at which the clock shows it or has gone past it.

    These instants ascend with the local times. So only the latest local time that the clock has shown matters: the
    present one, or in a repeated stretch the end of its first pass.
    """
    now = second.astimezone(zone)
    shown = now.replace(tzinfo=None, fold=0)
    if now.fold:
        first_pass = now.replace(fold=0).astimezone(UTC)  # where the same label was shown for the first time
        before = _offset(zone, first_pass)
        turn = _turn(zone, first_pass, second, before)
        if turn is not None:
            shown = _naive(turn + before - _SECOND)
    walk = fields.labels(shown)
    while (label := next(walk, None)) is not None:
        due = label.replace(tzinfo=zone).astimezone(UTC)  # fold=0: its first occurrence
        there = due.astimezone(zone).replace(tzinfo=None)
        if there != label:
            # In a gap, so that python took the offset before it: `due` is after the change, by less than its size.
            low = due - (there - label)
            turn = _turn(zone, low, due, _offset(zone, low))
            if turn is not None:
                due = turn
                walk.dt = _naive(turn + _offset(zone, turn))  # all up to the end of the gap coincide here
        yield due


def _every_times(anchor: datetime, span: timedelta, instant: datetime) -> Iterator[datetime]:
    # Counting whole spans from the anchor, in integers: nothing adds up to a drift. The limits are the caller's.
    due = anchor + ((instant - anchor) // span + 1) * span
    while True:
        yield due
        due += span


def _offset(zone: ZoneInfo, instant: datetime) -> timedelta:
    offset = instant.astimezone(zone).utcoffset()
    assert offset is not None
    return offset


def _naive(label: datetime) -> datetime:
    return label.replace(tzinfo=None)


def _turn(zone: ZoneInfo, low: datetime, high: datetime, before: timedelta) -> datetime | None:
    """The first second in (low, high] whose offset is not ``before``, the one at ``low``; None: no change.

    Both are whole seconds of UTC, and at most the reach apart. So close together there is one change at most, and the
    offsets at both ends tell.
    """
    if _offset(zone, high) == before:
        return None
    while high - low > _SECOND:
        middle = low + (high - low) // _SECOND // 2 * _SECOND
        if _offset(zone, middle) == before:
            low = middle
        else:
            high = middle
    return high


def _check_aware(instant: datetime) -> None:
    if instant.utcoffset() is None:
        raise ValueError(f"{instant.isoformat()} has no time zone: pass an aware datetime, datetime.now(UTC)")


def _shown(value: object) -> str:
    # Anybody may have written it: megabytes, numbers that python refuses to print, lists too deep for repr().
    if isinstance(value, str):
        return repr(value if len(value) <= 80 else value[:80] + "...")
    if isinstance(value, int) and not -(10**20) < value < 10**20:
        return "a huge number"
    return repr(value) if value is None or isinstance(value, int | float) else f"a value of type {type(value).__name__}"


def _cron_text(cron: object) -> str:
    """The cron in one form: single blanks, names in lower case."""
    if not isinstance(cron, str):
        raise ConfigurationError(f'a cron is text such as "0 21 * * *", not {_shown(cron)}')
    text = cron.replace("\t", " ")
    if len(text) > CRON_CHARACTERS_MAX or not text.isascii() or not text.isprintable():
        raise ConfigurationError(
            f"a cron is one line of at most {CRON_CHARACTERS_MAX} ASCII characters, not {_shown(cron)}"
        )
    text = " ".join(text.split())
    if text.startswith("@"):
        text = text.lower()
        if text not in _NAMED:
            raise ConfigurationError(f"there is no cron {_shown(cron)}: write fields, or one of {', '.join(_NAMED)}")
        return text
    try:
        _fields(text)
    except CronSimError as error:
        raise ConfigurationError(
            f"{_shown(cron)} is no cron ({str(error).lower()}): write minute, hour, day of the month, month, day of"
            f' the week, such as "0 21 * * *"; a sixth field, in front of them, is seconds'
        ) from None
    return text


def _every(seconds: object) -> float:
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise ConfigurationError(f"every is a number of seconds, not {_shown(seconds)}")
    if not EVERY_SECONDS_MIN <= seconds <= EVERY_SECONDS_MAX:  # NaN is refused here, too
        raise ConfigurationError(f"every is 1 second to 100 years, and {_shown(seconds)} seconds were given")
    return timedelta(seconds=seconds).total_seconds()


def _zone_key(tz: object) -> str:
    # Checked before zoneinfo sees it: it would open a file by that name.
    if not isinstance(tz, str) or not _ZONE_KEY.fullmatch(tz) or _NO_ZONES.match(tz):
        raise ConfigurationError(f"a time zone is an IANA name such as Europe/Kyiv or UTC, not {_shown(tz)}")
    return tz


def _limit(name: str, instant: object) -> datetime | None:
    """``start`` or ``end`` in UTC."""
    if instant is None:
        return None
    if not isinstance(instant, datetime):
        raise ConfigurationError(f"{name} is an aware datetime, not {_shown(instant)}")
    if instant.utcoffset() is None:
        raise ConfigurationError(
            f"{name} is {instant.isoformat()}, without a time zone: write it with its offset, such as"
            f" {instant.isoformat()}+00:00"
        )
    if not _EARLIEST <= instant <= _LATEST:
        raise ConfigurationError(f"{name} is {instant.isoformat()}: write an instant of the years 2 to 9998")
    return instant.astimezone(UTC)


def _from_iso(name: str, value: dict[Any, Any]) -> datetime | None:
    text = value.get(name)
    if text is None:
        return None
    if isinstance(text, str) and len(text) <= 64:
        with contextlib.suppress(ValueError):
            return datetime.fromisoformat(text)
    raise ConfigurationError(f'{name} is an ISO 8601 text such as "2030-01-31T21:00:00+00:00", not {_shown(text)}')
