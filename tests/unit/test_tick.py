"""What becomes of due times, with a clock that the test holds."""

from __future__ import annotations

import datetime as dt
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leasequeue.cron import Spec
from leasequeue.tick import CATCH_UP, ON_TIME, Due, Policy, settle

MINUTELY = Spec.make("* * * * *", "UTC")
START = dt.datetime(2026, 3, 1, 12, 0, tzinfo=dt.UTC)


def after(**words: float) -> dt.datetime:
    return START + dt.timedelta(**words)


def test_on_time() -> None:
    settled = settle("s", MINUTELY, Policy(), START, after(milliseconds=3))
    (due,) = settled.dues
    assert (due.at, due.outcome, due.runs, due.reason, due.delay_seconds) == (START, "fired", True, None, 0.0)
    assert settled.next_at == after(minutes=1)
    assert not settled.more


@pytest.mark.parametrize(
    ("catch_up", "outcomes", "runs"),
    [
        ("latest", {"coalesced": 77, "fired": 1}, [77]),
        ("all", {"caught_up": 77, "fired": 1}, list(range(78))),
        ("none", {"missed": 77, "fired": 1}, [77]),
    ],
)
def test_78_minutes_of_suspension(catch_up: str, outcomes: dict[str, int], runs: list[int]) -> None:
    """12:00 to 13:17, seen at 13:17:10: the last is on time, the others are accounted for."""
    settled = settle("s", MINUTELY, Policy(catch_up), START, after(minutes=77, seconds=0.9))
    assert len(settled.dues) == 78
    assert Counter(due.outcome for due in settled.dues) == outcomes
    assert [place for place, due in enumerate(settled.dues) if due.runs] == runs
    assert all(due.reason for due in settled.dues if due.outcome != "fired")
    assert settled.next_at == after(minutes=78)


def test_a_late_one_alone() -> None:
    weekly = Spec.make("0 12 * * 0", "UTC")
    for catch_up, outcome in (("latest", "caught_up"), ("all", "caught_up"), ("none", "missed")):
        (due,) = settle("s", weekly, Policy(catch_up), START, after(hours=5)).dues
        assert (due.outcome, due.runs) == (outcome, outcome == "caught_up")
        assert due.reason is not None
        assert due.reason.startswith("18000 s late")


def test_a_bound_takes_what_is_later() -> None:
    for catch_up in ("latest", "all"):
        settled = settle("s", MINUTELY, Policy(catch_up, 600.0), START, after(minutes=30, seconds=1))
        late = [due for due in settled.dues if due.runs]
        assert len(late) == (1 if catch_up == "latest" else 10)
    weekly = Spec.make("0 12 * * 0", "UTC")
    (due,) = settle("s", weekly, Policy("latest", 600.0), START, after(hours=5)).dues
    assert (due.outcome, due.runs) == ("missed", False)
    assert "within 600 s" in str(due.reason)


def test_paused_ones_are_written_down() -> None:
    settled = settle("s", MINUTELY, Policy("all"), START, after(minutes=5), paused=True)
    assert [due.outcome for due in settled.dues] == ["paused"] * 6
    assert not any(due.runs for due in settled.dues)


def test_the_end_of_a_schedule() -> None:
    spec = Spec.make("* * * * *", "UTC", end=after(minutes=2))
    settled = settle("s", spec, Policy(), START, after(hours=1))
    assert [due.at for due in settled.dues] == [START, after(minutes=1), after(minutes=2)]
    assert settled.next_at is None
    assert not settled.more


def test_jitter_is_the_same_whoever_fires() -> None:
    draws = {settle("s", MINUTELY, Policy(jitter_seconds=30), START, START).dues[0].delay_seconds for _ in range(3)}
    assert len(draws) == 1
    assert 0 < draws.pop() < 30
    others = settle("s", MINUTELY, Policy("all", jitter_seconds=30), START, after(minutes=50)).dues
    assert len({due.delay_seconds for due in others}) == 51


@given(
    catch_up=st.sampled_from(CATCH_UP),
    bound=st.none() | st.floats(0, 10_000),
    minutes=st.integers(0, 300),
    batch=st.integers(1, 50),
    seconds=st.floats(0, 59.9),
    paused=st.booleans(),
)
def test_in_batches_as_in_one(
    catch_up: str, bound: float | None, minutes: int, batch: int, seconds: float, paused: bool
) -> None:
    """Every due time is settled once, whatever the size of the pieces, and none but the last may run under ``latest``."""
    now = after(minutes=minutes, seconds=seconds)
    policy = Policy(catch_up, bound)
    dues: list[Due] = []
    next_at, more = START, True
    while more:
        settled = settle("s", MINUTELY, policy, next_at, now, paused=paused, batch=batch)
        assert 1 <= len(settled.dues) <= batch
        dues += settled.dues
        assert settled.next_at is not None
        next_at, more = settled.next_at, settled.more
    assert [due.at for due in dues] == [after(minutes=minute) for minute in range(minutes + 1)]
    assert next_at == after(minutes=minutes + 1)
    running = [due for due in dues if due.runs]
    if paused:
        assert not running
    elif catch_up != "all":
        assert running in ([], [dues[-1]])
    limit = bound if bound is not None else (ON_TIME.total_seconds() if catch_up == "none" else None)
    assert all(limit is None or (now - due.at).total_seconds() <= limit for due in running)
    assert all((due.outcome in ("fired", "caught_up")) == due.runs for due in dues)
