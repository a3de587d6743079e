"""When a schedule is due, compared with a table that another hand made minute by minute."""

from __future__ import annotations

import dataclasses
import json
import math
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from cronsim import CronSim
from hypothesis import given, settings
from hypothesis import strategies as st

from leasequeue.cron import Spec
from leasequeue.errors import ConfigurationError
from tests.unit import cron_table as table

YEAR = 2024
CHANGING = (
    "Europe/Kyiv",
    "America/New_York",
    "Australia/Lord_Howe",  # by half an hour
    "Africa/Cairo",  # at midnight
    "America/Asuncion",  # at midnight, too
)
ZONES = (*CHANGING, "Asia/Kolkata", "UTC")
CRONS = (
    "30 2 * * *",
    "30 1 * * *",
    "30 3 * * *",
    "0 0 * * *",
    "30 0,23 * * *",
    "15 3 * * 1-5",
    "0 * * * *",
    "*/15 * * * *",
    "7 0-23 * * 0",
    "*/30 1,2 * * *",
    "*/20 0-4,23 * * *",
    "0 0 1 * *",
    "45 23 * * 0",
    "0 8-17 * * 1-5",
    "5 0 31 * *",
    "0 12 13 * 5",  # either of the two days
    "0 * 1 1 *",
)
LONG_AGO = datetime(YEAR, 1, 1, tzinfo=UTC) - timedelta(microseconds=1)
YEAR_END = datetime(YEAR + 1, 1, 1, tzinfo=UTC) - timedelta(microseconds=1)


def at(text: str) -> datetime:
    return datetime.fromisoformat(text + "+00:00")


def cron(text: str, tz: str = "UTC", start: datetime | None = None, end: datetime | None = None) -> Spec:
    return Spec.make(text, tz, start, end)


def chain(spec: Spec, instant: datetime, until: datetime) -> list[datetime]:
    found = []
    due = spec.after(instant)
    while due is not None and due <= until:
        found.append(due)
        due = spec.after(due)
    return found


# --- the table


def windows(zone: str) -> list[tuple[datetime, datetime]]:
    """Six days around each change of the year, and the first three of it."""
    one = table.year(zone, YEAR)
    labels = sorted(one.never | one.twice)
    turns = [label for label in labels if label - 1 not in one.never | one.twice]
    three = timedelta(days=3)
    around = [(table.instant_of(label) - three, table.instant_of(label) + three) for label in turns]
    return [(LONG_AGO, LONG_AGO + three), *around]


@pytest.mark.parametrize("zone", ZONES)
def test_a_year_is_the_table(zone: str) -> None:
    for text in CRONS:
        expected = table.due(text, table.year(zone, YEAR))
        assert expected
        spec = cron(text, zone)
        whole = [(LONG_AGO, YEAR_END)]
        # Thousands of due times take their time: where there are so many, only the days around changes; together, and
        # not one by one, those of the whole year in one zone.
        few = whole if len(expected) < 2_000 else windows(zone)
        for first, last in whole if zone == CHANGING[0] else few:
            assert spec.between(first, last, 1_000_000) == [due for due in expected if first < due <= last], text
        for first, last in few:
            assert chain(spec, first, last) == [due for due in expected if first < due <= last], text


@pytest.mark.parametrize("zone", CHANGING)
def test_the_table_meets_a_gap_and_an_overlap(zone: str) -> None:
    one = table.year(zone, YEAR)
    assert one.never
    assert one.twice
    assert len(windows(zone)) == 3
    for elapsed in (True, False):
        hit = {
            label for text in CRONS if table.follows_elapsed_time(text) is elapsed for label in table.labels(text, one)
        }
        assert hit & one.never
        assert hit & one.twice


def test_zones_without_changes_have_neither() -> None:
    for zone in ("Asia/Kolkata", "UTC"):
        one = table.year(zone, YEAR)
        assert not one.never | one.twice


def cronsim_alone(text: str, zone: str) -> list[datetime]:
    found = []
    for due in CronSim(text, LONG_AGO.astimezone(ZoneInfo(zone))):
        if due > YEAR_END:
            break
        found.append(due.astimezone(UTC))
    return found


def leaves_gaps_out(text: str, zone: str) -> list[datetime]:
    one = table.year(zone, YEAR)
    minutes = [one.firsts[label] for label in table.labels(text, one) if label in one.firsts]
    return [table.instant_of(minute) for minute in sorted(minutes) if one.first <= minute < one.last]


def takes_the_second_pass(text: str, zone: str) -> list[datetime]:
    one = table.year(zone, YEAR)
    seconds = {one.label(minute): minute for minute in range(one.first, one.last)}
    minutes = [
        seconds[label] if label in seconds else table.gap_end(one, label)
        for label in table.labels(text, one)
        if label in seconds or label in one.never
    ]
    return [table.instant_of(minute) for minute in sorted(set(minutes))]


def python_offset_in_gaps(text: str, zone: str) -> list[datetime]:
    one = table.year(zone, YEAR)
    found = {
        table.instant_of(label).replace(tzinfo=ZoneInfo(zone)).astimezone(UTC) for label in table.labels(text, one)
    }
    return sorted(due for due in found if LONG_AGO < due <= YEAR_END)


@pytest.mark.parametrize(
    ("wrong", "text", "zone"),
    [
        (cronsim_alone, "*/30 1,2 * * *", "America/New_York"),
        (cronsim_alone, "*/30 1,2 * * *", "Australia/Lord_Howe"),
        (cronsim_alone, "*/10 0-4,23 * * *", "Africa/Cairo"),
        (leaves_gaps_out, "30 2 * * *", "America/New_York"),
        (leaves_gaps_out, "0 0 * * *", "Africa/Cairo"),
        (leaves_gaps_out, "*/15 * * * *", "Europe/Kyiv"),  # and the second pass
        (takes_the_second_pass, "30 1 * * *", "America/New_York"),
        (takes_the_second_pass, "30 0,23 * * *", "America/Asuncion"),
        (python_offset_in_gaps, "30 2 * * *", "America/New_York"),
        (python_offset_in_gaps, "0 * * * *", "America/New_York"),
    ],
)
def test_what_is_nearly_right_is_not_the_table(wrong: Any, text: str, zone: str) -> None:
    found, expected = wrong(text, zone), table.due(text, table.year(zone, YEAR))
    assert found != expected
    assert abs(len(found) - len(expected)) <= 10  # but nearly
    assert cron(text, zone).between(LONG_AGO, YEAR_END, 1_000_000) == expected


# --- single cases


def test_a_gap_is_one_due_time_at_its_end() -> None:
    spec = cron("*/10 2 * * *", "America/New_York")
    gap_end = at("2024-03-10T07:00:00")
    assert spec.between(at("2024-03-09T07:45:00"), at("2024-03-11T06:00:00"), 9) == [
        at("2024-03-09T07:50:00"),
        gap_end,
        at("2024-03-11T06:00:00"),
    ]
    assert spec.after(gap_end - timedelta(microseconds=1)) == gap_end


def test_the_end_of_a_gap_coincides_with_what_is_due_at_that_local_time() -> None:
    spec = cron("30 2,3 * * *", "America/New_York")
    other = cron("0,30 2,3 * * *", "America/New_York")
    day = (at("2024-03-10T05:00:00"), at("2024-03-10T12:00:00"), 9)
    assert spec.between(*day) == other.between(*day) == [at("2024-03-10T07:00:00"), at("2024-03-10T07:30:00")]


def test_a_repeated_time_is_due_at_its_first_occurrence_only() -> None:
    spec = cron("*/20 1 * * *", "America/New_York")
    first_pass = [at("2024-11-03T05:00:00"), at("2024-11-03T05:20:00"), at("2024-11-03T05:40:00")]
    assert spec.between(at("2024-11-03T04:00:00"), at("2024-11-04T05:59:59"), 9) == first_pass
    for minutes in range(60):  # within the second pass
        assert spec.after(at("2024-11-03T06:00:00") + timedelta(minutes=minutes)) == at("2024-11-04T06:00:00")


def test_a_cron_of_all_hours_runs_in_both_passes() -> None:
    found = cron("30 * * * *", "America/New_York").between(at("2024-11-03T05:00:00"), at("2024-11-03T07:30:00"), 9)
    assert found == [at("2024-11-03T05:30:00"), at("2024-11-03T06:30:00"), at("2024-11-03T07:30:00")]


def test_a_whole_skipped_day() -> None:
    # Pacific/Apia went from UTC-10 to UTC+14 at the end of 2011-12-29: there was no 30 December.
    before, after = at("2011-12-29T00:00:00"), at("2012-01-01T00:00:00")
    change = at("2011-12-30T10:00:00")
    noon = cron("0 12 * * *", "Pacific/Apia")
    expected = [at("2011-12-29T22:00:00"), change, at("2011-12-30T22:00:00"), at("2011-12-31T22:00:00")]
    assert noon.between(before, after, 9) == chain(noon, before, after) == expected
    midnight = cron("0 0 * * *", "Pacific/Apia")
    expected = [at("2011-12-29T10:00:00"), change, at("2011-12-31T10:00:00")]
    assert midnight.between(before, after, 9) == chain(midnight, before, after) == expected
    # The gap as a whole is one due time of a cron with thousands of local times in it.
    seconds = cron("* * 1-23 * * *", "Pacific/Apia").between(change - timedelta(seconds=2), change, 9)
    assert seconds == [change - _S, change]
    hourly = cron("0 * 30 12 *", "Pacific/Apia").after(before)
    assert hourly == at("2012-12-29T10:00:00")


_S = timedelta(seconds=1)


def test_a_repeated_day() -> None:
    # Pacific/Kwajalein went from UTC+11 to UTC-12 on 1969-10-01: 23 hours were repeated.
    before, after = at("1969-09-29T13:00:00"), at("1969-10-02T12:00:00")
    midday = cron("0 12 * * *", "Pacific/Kwajalein")
    assert chain(midday, before, after) == [at("1969-09-30T01:00:00"), at("1969-10-02T00:00:00")]
    hourly = cron("@hourly", "Pacific/Kwajalein")
    assert chain(hourly, before, after) == hourly.between(before, after, 99)
    assert len(hourly.between(before, after, 99)) == 71


def test_two_changes_four_days_apart() -> None:
    # The closest there have been: Africa/Freetown, 1939-09-01 and 1939-09-05.
    before, after = at("1939-08-30T00:00:00"), at("1939-09-07T00:00:00")
    zone = ZoneInfo("Africa/Freetown")
    minutes = (before + timedelta(minutes=n) for n in range(1, 8 * 1440 + 1))
    expected = [minute for minute in minutes if minute.astimezone(zone).minute == 10]
    assert chain(cron("10 * * * *", "Africa/Freetown"), before, after) == expected
    rare = cron("10 * 5 9 *", "Africa/Freetown")
    assert rare.after(before) == next(minute for minute in expected if minute.astimezone(zone).day == 5)


def test_a_repeated_hour_before_a_long_pause_of_the_same_offset() -> None:
    # Asuncion went back at midnight and was at UTC-3 again a year later: the offsets at both ends say nothing.
    first_pass = at("2024-03-24T02:30:00")
    spec = cron("30 * 23 3 *", "America/Asuncion")
    expected = [first_pass + timedelta(hours=1), at("2025-03-23T03:30:00")]
    assert chain(spec, first_pass, expected[1]) == spec.between(first_pass, expected[1], 9) == expected


def test_six_fields_begin_with_the_seconds() -> None:
    spec = cron("*/20 5 21 * * *", "Europe/Kyiv")
    assert spec.between(at("2024-06-01T18:05:00.5"), at("2024-06-02T18:05:00"), 9) == [
        at("2024-06-01T18:05:20"),
        at("2024-06-01T18:05:40"),
        at("2024-06-02T18:05:00"),
    ]
    every_second = cron("* * * * * *", "America/New_York")
    for instant in (at("2024-11-03T05:59:58"), at("2024-03-10T06:59:58"), at("2024-11-03T06:59:58")):
        assert every_second.between(instant, instant + 4 * _S, 9) == [instant + n * _S for n in range(1, 5)]


def test_last_days_and_weekdays_are_those_of_cronsim() -> None:
    assert cron("0 0 L * *").after(at("2024-02-01T00:00:00")) == at("2024-02-29T00:00:00")
    assert cron("0 0 LW * *").after(at("2024-03-01T00:00:00")) == at("2024-03-29T00:00:00")
    assert cron("0 0 * * MON#2").after(at("2024-03-01T00:00:00")) == at("2024-03-11T00:00:00")
    assert cron("0 0 * * 5L").after(at("2024-03-01T00:00:00")) == at("2024-03-29T00:00:00")


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("@hourly", "0 * * * *"),
        ("@daily", "0 0 * * *"),
        ("@midnight", "0 0 * * *"),
        ("@weekly", "0 0 * * 0"),
        ("@monthly", "0 0 1 * *"),
        ("@yearly", "0 0 1 1 *"),
        ("@Annually", "0 0 1 1 *"),
    ],
)
def test_names_stand_for_fields(name: str, fields: str) -> None:
    until = LONG_AGO + timedelta(days=800)
    assert cron(name, "Africa/Cairo").between(LONG_AGO, until, 100) == cron(fields, "Africa/Cairo").between(
        LONG_AGO, until, 100
    )


@pytest.mark.parametrize(
    "text", ["0 0 30 2 *", "0 0 31 2,4,6 *", "0 0 0 30 2 *", "0 0 */15 2 MON#5", "0 * 30 FEB *", "0 0 */20 * TUE#5"]
)
def test_a_date_that_there_is_not_is_never_due(text: str) -> None:
    spec = cron(text, "Europe/Kyiv")
    assert spec.after(LONG_AGO) is None
    assert spec.between(LONG_AGO, YEAR_END, 5) == []
    assert Spec.from_json(spec.to_json()) == spec


def test_a_date_that_is_rare_is_found() -> None:
    assert cron("0 0 29 2 *").after(at("2096-03-01T00:00:00")) == at("2104-02-29T00:00:00")
    # 29 February, a Monday: 40 years apart around 2100.
    assert cron("0 * * 2 MON#5").after(at("2072-03-01T00:00:00")) == at("2112-02-29T00:00:00")


def test_start_and_end_are_inclusive() -> None:
    start, end = at("2024-06-01T09:00:00"), at("2024-06-03T09:00:00")
    spec = cron("0 9 * * *", "UTC", start, end)
    assert spec.after(LONG_AGO) == start
    assert chain(spec, LONG_AGO, YEAR_END) == [start, at("2024-06-02T09:00:00"), end]
    assert spec.after(end - timedelta(microseconds=1)) == end
    assert spec.after(end) is None
    late = cron("0 9 * * *", "UTC", start + timedelta(microseconds=1), end - timedelta(microseconds=1))
    assert chain(late, LONG_AGO, YEAR_END) == [at("2024-06-02T09:00:00")]
    assert chain(cron("* * * * * *", "UTC", start, start), LONG_AGO, YEAR_END) == [start]


def test_every_counts_from_the_start_or_from_1970() -> None:
    spec = Spec.make(timedelta(minutes=7), "Europe/Kyiv")
    due = spec.after(at("2024-06-01T00:00:00"))
    assert due is not None
    assert (due - datetime(1970, 1, 1, tzinfo=UTC)) % timedelta(minutes=7) == timedelta(0)
    assert due - at("2024-06-01T00:00:00") <= timedelta(minutes=7)
    before = spec.after(at("1960-01-01T00:00:00"))
    assert before is not None
    assert before - at("1960-01-01T00:00:00") <= timedelta(minutes=7)

    start = at("2024-06-01T00:00:00.25")
    spec = Spec.make(timedelta(hours=1), "UTC", start, start + timedelta(hours=2))
    expected = [start, start + timedelta(hours=1), start + timedelta(hours=2)]
    assert spec.between(LONG_AGO, YEAR_END, 9) == chain(spec, LONG_AGO, YEAR_END) == expected
    assert spec.after(start - timedelta(microseconds=1)) == start


def test_every_does_not_drift() -> None:
    span = timedelta(seconds=1, microseconds=100_003)
    spec = Spec.make(span, "UTC", at("2000-01-01T00:00:00"))
    due = spec.after(at("2124-01-01T00:00:00"))
    assert due is not None
    assert (due - at("2000-01-01T00:00:00")) % span == timedelta(0)
    assert Spec.from_json(json.loads(json.dumps(spec.to_json()))) == spec


def test_between_stops_at_the_limit() -> None:
    spec = cron("* * * * *")
    assert spec.between(LONG_AGO, YEAR_END, 3) == [at(f"2024-01-01T00:0{n}:00") for n in range(3)]
    assert spec.between(LONG_AGO, YEAR_END, 0) == spec.between(LONG_AGO, YEAR_END, -1) == []
    assert spec.between(YEAR_END, LONG_AGO, 3) == []


def test_the_end_of_years_is_an_end() -> None:
    first, last = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)
    for zone in ("Pacific/Kiritimati", "America/Adak", "UTC"):
        for when in ("* * * * *", "0 0 29 2 *", "0 8 * * *", timedelta(days=36500)):
            spec = Spec.make(when, zone)
            assert spec.after(last) is None
            assert spec.after(last - timedelta(hours=3)) is None
            assert spec.after(at("9998-12-31T23:59:59")) is None
            found = spec.after(first)
            assert found is not None
            assert found.year < 200
            assert all(due.year <= 9998 for due in spec.between(at("9998-12-31T20:00:00"), last, 9))
    edge = first.replace(tzinfo=timezone(timedelta(hours=14)))
    assert cron("* * * * *").after(edge) is not None


def test_an_instant_of_another_zone_is_the_same_instant() -> None:
    spec = cron("0 21 * * *", "Europe/Kyiv")
    instant = datetime(2024, 6, 1, 23, 30, tzinfo=ZoneInfo("Asia/Tokyo"))
    due = spec.after(instant)
    assert due is not None
    assert due == at("2024-06-01T18:00:00")
    assert due.tzinfo is UTC


def test_a_naive_instant_is_refused() -> None:
    naive = LONG_AGO.replace(tzinfo=None)
    spec = cron("* * * * *")
    for call in (
        lambda: spec.after(naive),
        lambda: spec.between(naive, YEAR_END, 1),
        lambda: spec.between(naive, YEAR_END, 0),
        lambda: spec.between(LONG_AGO, naive, 1),
    ):
        with pytest.raises(ValueError, match="has no time zone"):
            call()


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        (cron("0 21  * * *", "Europe/Kyiv"), "0 21 * * * Europe/Kyiv"),
        (cron("@DAILY"), "@daily UTC"),
        (Spec.make(timedelta(minutes=15), "UTC"), "every 15 min"),
        (Spec.make(timedelta(minutes=90), "UTC"), "every 90 min"),
        (Spec.make(timedelta(days=2), "UTC"), "every 2 d"),
        (Spec.make(timedelta(hours=36), "UTC"), "every 36 h"),
        (Spec.make(timedelta(seconds=1.5), "UTC"), "every 1.5 s"),
        (cron("@daily", "UTC", LONG_AGO), "@daily UTC from 2023-12-31T23:59:59.999999+00:00"),
        (cron("@daily", "UTC", None, at("2024-01-01T00:00:00")), "@daily UTC until 2024-01-01T00:00:00+00:00"),
    ],
)
def test_describe(spec: Spec, text: str) -> None:
    assert spec.describe() == text


# --- random ones

some_instants = st.datetimes(
    min_value=datetime(1900, 1, 1),  # noqa: DTZ001  hypothesis wants naive limits
    max_value=datetime(2100, 1, 1),  # noqa: DTZ001
    timezones=st.just(UTC),
)
# Half of them near a change of some zone.
changes = st.sampled_from(
    [
        *("2024-03-31T01:00:00", "2024-10-27T01:00:00", "2024-03-10T07:00:00", "2024-11-03T06:00:00"),
        *("2024-04-06T15:00:00", "2024-10-05T15:30:00", "2024-04-25T22:00:00", "2024-10-31T21:00:00"),
        *("2024-03-24T03:00:00", "2024-10-06T04:00:00", "2011-12-30T10:00:00", "1969-09-30T13:00:00"),
    ]
).map(at)
near_changes = st.builds(
    lambda instant, by: instant + by, changes, st.timedeltas(-timedelta(days=2), timedelta(days=2))
)
instants = some_instants | near_changes
zones = st.sampled_from([*ZONES, "Pacific/Apia", "Pacific/Kwajalein", "Africa/Casablanca", "Africa/Freetown"])


def fields(low: int, high: int) -> st.SearchStrategy[str]:
    number = st.integers(low, high)
    spans = st.tuples(number, number).map(lambda pair: f"{min(pair)}-{max(pair)}")
    return st.one_of(
        st.just("*"),
        number.map(str),
        spans,
        st.integers(1, 9).map(lambda n: f"*/{n}"),
        st.lists(number, min_size=1).map(lambda some: ",".join(map(str, some))),
    )


minutes, hours = fields(0, 59), fields(0, 23)
dates = [st.just("*") | fields(1, 31), st.just("*") | fields(1, 12), st.just("*") | fields(0, 7)]
crons = st.tuples(minutes, hours, *dates).map(" ".join) | st.tuples(minutes, minutes, hours, *dates).map(" ".join)
spans = st.timedeltas(timedelta(seconds=1), timedelta(days=36525))
limits = st.none() | instants


def valid(when: str | timedelta, tz: str, one: datetime | None, other: datetime | None) -> Spec:
    if one is not None and other is not None and one > other:
        one, other = other, one
    return Spec.make(when, tz, one, other)


specs = st.builds(valid, crons | spans, zones, limits, limits)


@settings(deadline=None)  # the machine may be busy, and an odd cron takes tens of milliseconds once
@given(specs, instants)
def test_due_times_ascend_and_are_after(spec: Spec, instant: datetime) -> None:
    due = spec.after(instant)
    found = spec.between(instant, datetime.max.replace(tzinfo=UTC), 6)
    assert (found[0] if found else None) == due
    for earlier, later in zip([instant, *found], found, strict=False):
        assert earlier < later
        assert spec.after(earlier) == later
        assert spec.after(later - timedelta(microseconds=1)) == later
        assert spec.start is None or later >= spec.start
        assert spec.end is None or later <= spec.end
        assert spec.cron is None or later.microsecond == 0


@settings(max_examples=60, deadline=None)
@given(crons, zones, near_changes)
def test_seconds_near_a_change_are_those_of_a_walk(text: str, tz: str, instant: datetime) -> None:
    """The definition itself, second by second, for an hour and a half."""
    spec, zone = cron(text, tz), ZoneInfo(tz)
    instant = instant.replace(microsecond=0)
    clock: tzinfo = zone

    def matches(label: datetime) -> bool:
        return next(iter(CronSim(text, label - _S))) == label

    def label_of(moment: datetime) -> datetime:
        return moment.astimezone(clock).replace(tzinfo=None, fold=0)

    if spec.after(instant) is None:
        return
    parts = text.split()
    every_hour = len(CronSim(text, instant).hours) == 24
    step = _S if len(parts) == 6 else timedelta(minutes=1)
    instant -= timedelta(seconds=instant.second)
    highest = max(label_of(instant - n * timedelta(minutes=5)) for n in range(26 * 12))
    if instant.astimezone(zone).fold:  # the end of the first pass may lie between those steps
        return
    expected = []
    previous = label_of(instant)
    n = 0
    for n in range(1, 90 if len(parts) == 5 else 600):
        moment = instant + n * step
        label = label_of(moment)
        if label - previous != step:
            return  # the minutes of the change are the table's part
        if matches(label) and (every_hour or label > highest):
            expected.append(moment)
        previous, highest = label, max(highest, label)
    assert spec.between(instant, instant + n * step, 10_000) == expected


@settings(deadline=None)
@given(specs)
def test_json_and_back(spec: Spec) -> None:
    again = Spec.from_json(json.loads(json.dumps(spec.to_json())))
    assert again == spec
    assert hash(again) == hash(spec)
    assert again.to_json() == spec.to_json()
    assert spec.describe()


# --- refusals


def test_json_is_short() -> None:
    assert cron("0 21 * * *", "Europe/Kyiv").to_json() == {"cron": "0 21 * * *", "tz": "Europe/Kyiv"}
    start = datetime(2024, 1, 1, 2, tzinfo=ZoneInfo("Europe/Kyiv"))
    assert json.dumps(Spec.make(timedelta(minutes=15), "UTC", start).to_json()) == (
        '{"every": 900, "tz": "UTC", "start": "2024-01-01T00:00:00+00:00"}'
    )
    assert Spec.from_json({"every": 1.5}) == Spec.make(timedelta(seconds=1.5), "UTC")
    assert Spec.from_json({"every": 60, "cron": None, "tz": None, "start": None, "end": None}).tz == "UTC"


KYIV = {"cron": "0 21 * * *", "tz": "Europe/Kyiv"}
DEEP: list[Any] = []
for _ in range(100_000):
    DEEP = [DEEP]


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (None, "stored as an object"),
        ([], "stored as an object"),
        ("0 21 * * *", "stored as an object"),
        (DEEP, "of type list"),
        ({}, "neither"),
        ({"tz": "UTC"}, "neither"),
        (KYIV | {"every": 60}, "both"),
        (KYIV | {"timezone": "UTC"}, "no 'timezone'"),
        (KYIV | {"x" * 10_000: 1}, "xxx..."),
        (KYIV | {"cron": 5}, "a cron is text"),
        (KYIV | {"cron": True}, "a cron is text"),
        (KYIV | {"cron": DEEP}, "of type list"),
        (KYIV | {"cron": ""}, "wrong number of fields"),
        (KYIV | {"cron": "* * * *"}, "wrong number of fields"),
        (KYIV | {"cron": "* * * * * * *"}, "wrong number of fields"),
        (KYIV | {"cron": "61 * * * *"}, "bad minute"),
        (KYIV | {"cron": "* 24 * * *"}, "bad hour"),
        (KYIV | {"cron": "0 0 32 2 *"}, "bad day-of-month"),
        (KYIV | {"cron": "0 0 30 14 *"}, "bad month"),
        (KYIV | {"cron": "0 0 * * 1#6"}, "bad day-of-week"),
        (KYIV | {"cron": "0 0 30 2 L"}, "bad day-of-week"),
        (KYIV | {"cron": "*/0 * * * *"}, "bad minute"),
        (KYIV | {"cron": "5-1 * * * *"}, "bad minute"),
        (KYIV | {"cron": "@reboot"}, "one of @hourly"),
        (KYIV | {"cron": "0 21 * * *\n"}, "one line"),
        (KYIV | {"cron": "0 21 * *\x00*"}, "one line"),
        (KYIV | {"cron": "0 21 * * \ud800"}, "one line"),
        (KYIV | {"cron": "0 21 * * ſun"}, "one line"),
        (KYIV | {"cron": "0 21 * * ²L"}, "one line"),
        (KYIV | {"cron": "1," * 5000 + "1 * * * *"}, "at most 256"),
        (KYIV | {"cron": " " * 10_000}, "at most 256"),
        ({"every": 0}, "1 second to 100 years"),
        ({"every": 0.999}, "1 second to 100 years"),
        ({"every": -60}, "1 second to 100 years"),
        ({"every": math.inf}, "1 second to 100 years"),
        ({"every": math.nan}, "1 second to 100 years"),
        ({"every": 1e300}, "1 second to 100 years"),
        ({"every": 10**5000}, "a huge number"),
        ({"every": True}, "a number of seconds"),
        ({"every": "60"}, "a number of seconds"),
        ({"every": DEEP}, "a number of seconds"),
        ({"cron": "0 21 * * *"}, "IANA name .* not None"),
        (KYIV | {"tz": 1}, "IANA name"),
        (KYIV | {"tz": ""}, "IANA name"),
        (KYIV | {"tz": "../x"}, "IANA name"),
        (KYIV | {"tz": "/etc/passwd"}, "IANA name"),
        (KYIV | {"tz": "Europe/../../../../../etc/passwd"}, "IANA name"),
        (KYIV | {"tz": "UTC\x00"}, "IANA name"),
        (KYIV | {"tz": "UTC\n"}, "IANA name"),
        (KYIV | {"tz": "\ud800"}, "IANA name"),
        (KYIV | {"tz": "x" * 10_000}, "IANA name"),
        (KYIV | {"tz": "Europe//Kyiv"}, "IANA name"),
        (KYIV | {"tz": "tzdata.zi"}, "IANA name"),
        (KYIV | {"tz": "localtime"}, "IANA name"),
        (KYIV | {"tz": "right/UTC"}, "IANA name"),
        (KYIV | {"tz": "Europe"}, "not known here"),
        (KYIV | {"tz": "leapseconds"}, "not known here"),
        (KYIV | {"tz": "Europe/Atlantis"}, "not known here"),
        ({"every": 60, "tz": "Europe/Atlantis"}, "not known here"),
        (KYIV | {"start": 5}, "start is an ISO 8601 text"),
        (KYIV | {"start": "soon"}, "start is an ISO 8601 text"),
        (KYIV | {"start": "2" * 10_000}, "start is an ISO 8601 text"),
        (KYIV | {"start": "\ud800"}, "start is an ISO 8601 text"),
        (KYIV | {"end": "2024-01-01"}, "without a time zone"),
        (KYIV | {"end": "2024-01-01T00:00:00"}, "without a time zone"),
        (KYIV | {"start": "0001-01-01T00:00:00+14:00"}, "years 2 to 9998"),
        (KYIV | {"end": "9999-12-31T23:59:59-14:00"}, "years 2 to 9998"),
        (KYIV | {"start": "2024-01-02T00:00:00Z", "end": "2024-01-01T00:00:00Z"}, "before the start"),
    ],
)
def test_what_is_wrong_in_a_row_is_named(value: object, says: str) -> None:
    with pytest.raises(ConfigurationError, match=says) as caught:
        Spec.from_json(value)
    assert len(str(caught.value)) < 500


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
garbled = st.fixed_dictionaries(
    {},
    optional={
        "cron": st.text(alphabet="0123456789*/,-#LWMONSUN@ ", max_size=20) | crons | json_values,
        "every": st.integers() | st.floats() | json_values,
        "tz": zones | st.text(alphabet="./UTCEurope\x00", max_size=10) | json_values,
        "start": st.text(alphabet="0123456789-:TZ+.W", max_size=30) | instants.map(datetime.isoformat) | json_values,
        "end": st.text() | instants.map(datetime.isoformat) | json_values,
    },
)


@settings(max_examples=300, deadline=None)
@given(json_values | garbled, instants)
def test_no_row_raises_anything_else(value: object, instant: datetime) -> None:
    try:
        spec = Spec.from_json(value)
    except ConfigurationError:
        return
    spec.after(instant)
    assert Spec.from_json(spec.to_json()) == spec


@pytest.mark.parametrize("when", [900, None, 1.5, b"0 21 * * *", True])
def test_when_is_text_or_a_span(when: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"a cron as text .* or a timedelta"):
        Spec.make(when, "UTC")


def test_no_spec_is_built_unchecked() -> None:
    spec = cron("0 21 * * *", "Europe/Kyiv")
    for change in ({"cron": "x"}, {"every_seconds": 5.0}, {"tz": "x"}, {"start": 1}, {"end": "2024"}):
        with pytest.raises(ConfigurationError):
            dataclasses.replace(spec, **change)
    with pytest.raises(ConfigurationError, match="without a time zone"):
        cron("0 21 * * *", "UTC", LONG_AGO.replace(tzinfo=None))
    with pytest.raises(ConfigurationError, match="1 second to 100 years"):
        Spec.make(timedelta(milliseconds=999), "UTC")
    assert Spec.from_json({"every": 1.0000001}).every_seconds == 1.0
