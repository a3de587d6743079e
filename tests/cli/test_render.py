from __future__ import annotations

import datetime as dt

import pytest

from leasequeue.cli import render


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, ""), (0.04, "0.0 s"), (9.94, "9.9 s"), (45, "45 s"), (119.4, "119 s"), (120, "2 min"), (3599, "59 min"),
     (3 * 3600 + 300, "3 h 5 min"), (200_000, "2 d 7 h"), (-30, "-30 s")],
)  # fmt: skip
def test_durations(seconds: float | None, text: str) -> None:
    assert render.duration(seconds) == text


def test_times() -> None:
    at = dt.datetime(2026, 3, 1, 12, 0, 0, 999, tzinfo=dt.timezone(dt.timedelta(hours=2)))
    assert render.time(at) == "2026-03-01 10:00:00Z"
    assert render.since(at, at + dt.timedelta(minutes=3)) == "3 min ago"
    assert render.since(at, at - dt.timedelta(seconds=30)) == "in 30 s"
    assert render.since(dt.datetime.max.replace(tzinfo=dt.UTC), at).startswith("in 2912")


def test_numbers() -> None:
    assert (render.count(1234), render.count(100_000, capped=True)) == ("1,234", "100,000+")


def test_control_characters_are_shown() -> None:
    assert render.clean("a\x1b[0m\r\x00\u202eb\nc\té") == "a\\x1b[0m\\x0d\\x00\\u202eb\nc\té"
    assert render.clean("a\nb\tc", keep_lines=False) == "a\\nb\\tc"
