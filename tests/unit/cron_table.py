"""The rule of leasequeue.cron once more, by brute force: every minute of a year, looked up in ``zoneinfo``.

Nothing of the package and nothing of cronsim is used. Times are whole minutes since 1970-01-01T00:00: of UTC, or of a
zone's wall clock ("labels"). Only for zones whose offsets of that year are whole minutes, and crons of five fields
with numbers, lists, ranges and steps.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo

DAY = 24 * 60
MARGIN = 2 * DAY  # walked on both sides of the year, so that each label of the year is seen whole
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def minute_of(instant: datetime) -> int:
    return (instant - _EPOCH) // timedelta(minutes=1)


def instant_of(minute: int) -> datetime:
    return _EPOCH + timedelta(minutes=minute)


@dataclass(frozen=True)
class Year:
    """A year of UTC, and what a zone's wall clock shows in each minute of it.

    Args:
        first: the first minute of the year, in UTC.
        last: the first minute after it.
        shown: the label of each minute from ``first - MARGIN`` to ``last + MARGIN``.
        firsts: for each label that is shown, the first minute of UTC that shows it.
        twice: the labels that are shown two times in the year.
        never: the labels of the year that are not shown.
    """

    first: int
    last: int
    shown: array[int]
    firsts: dict[int, int]
    twice: frozenset[int]
    never: frozenset[int]

    def label(self, minute: int) -> int:
        return self.shown[minute - self.first + MARGIN]


def offset_at(zone: ZoneInfo, minute: int) -> int:
    offset = instant_of(minute).astimezone(zone).utcoffset()
    assert offset is not None
    minutes, rest = divmod(offset, timedelta(minutes=1))
    assert not rest, "whole minutes only"
    return minutes


@lru_cache(maxsize=8)
def year(key: str, number: int) -> Year:
    zone = ZoneInfo(key)
    first, last = (minute_of(datetime(n, 1, 1, tzinfo=UTC)) for n in (number, number + 1))
    shown = array("q")
    firsts: dict[int, int] = {}
    twice = set()
    for hour in range(first - MARGIN, last + MARGIN, 60):
        offset = offset_at(zone, hour)
        calm = offset == offset_at(zone, hour + 60)  # no zone changes and changes back within an hour
        for minute in range(hour, hour + 60):
            label = minute + (offset if calm else offset_at(zone, minute))
            shown.append(label)
            if label in firsts:
                twice.add(label)
            firsts.setdefault(label, minute)
    never = {label for label in range(shown[0], shown[-1]) if label not in firsts}
    return Year(first, last, shown, firsts, frozenset(twice), frozenset(never))


def numbers(field: str, low: int, high: int) -> set[int]:
    found: set[int] = set()
    for term in field.split(","):
        span, _, step = term.partition("/")
        start, _, stop = (f"{low}-{high}" if span == "*" else span).partition("-")
        found.update(range(int(start), int(stop or start) + 1, int(step or 1)))
    return found


def labels(cron: str, table: Year) -> list[int]:
    """All labels that match, ascending, whether or not the clock shows them."""
    minute, hour, day, month, weekday = cron.split()
    days, months, weekdays = numbers(day, 1, 31), numbers(month, 1, 12), {n % 7 for n in numbers(weekday, 0, 7)}
    either = not day.startswith("*") and not weekday.startswith("*")
    times = sorted(60 * h + m for h in numbers(hour, 0, 23) for m in numbers(minute, 0, 59))
    found = []
    for count in range(table.shown[0] // DAY + 1, table.shown[-1] // DAY):
        there = date(1970, 1, 1) + timedelta(days=count)
        by_day, by_weekday = there.day in days, there.isoweekday() % 7 in weekdays
        if there.month in months and (by_day or by_weekday if either else by_day and by_weekday):
            found += [count * DAY + time for time in times]
    return found


def follows_elapsed_time(cron: str) -> bool:
    return len(numbers(cron.split()[1], 0, 23)) == 24


def gap_end(table: Year, label: int) -> int:
    """The first minute of UTC at which the clock has gone past a label that it never shows."""
    minute = label - 26 * 60  # no zone is that far ahead of UTC
    while table.label(minute) < label:
        minute += 1
    return minute


def due(cron: str, table: Year) -> list[datetime]:
    """All due times of the year by the rule, ascending."""
    matching = labels(cron, table)
    if follows_elapsed_time(cron):
        wanted = frozenset(matching)
        whole_year = zip(range(table.first, table.last), table.shown[MARGIN:-MARGIN], strict=True)
        found = [minute for minute, label in whole_year if label in wanted]
    else:
        minutes = {table.firsts[label] if label in table.firsts else gap_end(table, label) for label in matching}
        found = [minute for minute in sorted(minutes) if table.first <= minute < table.last]
    return [instant_of(minute) for minute in found]
