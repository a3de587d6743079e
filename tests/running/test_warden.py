"""Who does not stop when told to: when that is said, and what it costs. The clock is the test's."""

from __future__ import annotations

import datetime as dt
import logging
import uuid
from typing import Any

import pytest

from leasequeue import JobContext, LeaseQueue
from leasequeue.job import Held
from leasequeue.worker.hand import Claimed, Ended, Outcome, Slots
from leasequeue.worker.warden import Warden


def running(timeout_seconds: float | None) -> Claimed:
    @LeaseQueue().task(name="t", timeout=None if timeout_seconds is None else dt.timedelta(seconds=timeout_seconds))
    def t() -> None:
        """Nothing."""

    holder = uuid.uuid4()
    row = (7, 1, "t", "{}", 1, 0, None, 0.0, 0, "default", False, None, None, False)
    job = Claimed(row, holder, "default", t, 0.0)
    job.ctx = JobContext(Held(7, 1, holder), "t", "default", 1, 8)
    job.slots = Slots("default", 2)
    job.slots.claimed = 1
    return job


class World:
    def __init__(self) -> None:
        self.interrupted: list[Claimed] = []
        self.ended: list[Ended] = []
        self.warden = Warden(self.stop, self.interrupted.append, self.ended.append)
        self.now = 100.0

    def stop(self, job: Claimed, reason: str) -> None:
        job.stop_reason, job.told_at = reason, self.now
        self.warden.mind(job)

    def look(self, now: float) -> None:
        self.now = now
        self.warden.look(now)


def test_an_ignored_timeout(caplog: pytest.LogCaptureFixture) -> None:
    world, job = World(), running(10.0)
    slots: Any = job.slots
    job.deadline = 110.0
    world.warden.mind(job)
    world.look(109.9)
    assert not job.is_told
    world.look(110.0)
    assert job.stop_reason == "timeout"
    world.look(114.9)
    assert (world.ended, slots.lost, slots.room()) == ([], 0, 1)
    with caplog.at_level(logging.ERROR):
        for now in (115.0, 116.0, 174.9, 175.0, 235.0):
            world.look(now)
    assert caplog.text.count("goes on: its slot is lost") == 3  # at once, then every minute
    assert job.given_up
    ((_, outcome, _, failure, *_),) = world.ended
    assert outcome is Outcome.FAILED
    assert failure is not None
    assert "its thread did not stop when told to" in failure.message
    # One slot of two is left, and he has it that is not lost.
    assert (slots.lost, slots.room(), world.warden.overstaying(), world.warden.given_up()) == (1, 1, {"t": 1}, 1)
    slots.claimed += 1
    assert slots.room() == 0
    assert world.warden.over(job)
    slots.ended[0] += 1
    assert (slots.lost, slots.room(), world.warden.overstaying()) == (0, 1, {})
    assert len(world.ended) == 1


def test_a_quick_end_is_nobodys_business() -> None:
    world, job = World(), running(10.0)
    job.deadline = 110.0
    world.warden.mind(job)
    world.look(111.0)
    assert not world.warden.over(job)
    world.look(500.0)
    assert (world.ended, world.warden.overstaying()) == ([], {})


def test_who_was_cancelled_may_still_come_to_his_own_end(caplog: pytest.LogCaptureFixture) -> None:
    world, job = World(), running(None)
    world.stop(job, "cancelled")
    with caplog.at_level(logging.ERROR):
        world.look(200.0)
    assert "(cancelled) and goes on" in caplog.text
    assert (world.ended, job.given_up, world.warden.overstaying(), world.warden.given_up()) == ([], False, {"t": 1}, 0)
    assert not world.warden.over(job)


def test_who_looks_at_cancelled_is_interrupted_later() -> None:
    world, job = World(), running(None)
    assert job.ctx is not None
    assert not job.ctx.cancelled.is_set()
    world.stop(job, "cancelled")
    world.look(104.9)
    assert world.interrupted == []
    world.look(105.0)
    assert world.interrupted == [job]
    assert world.warden.overstaying() == {}
    world.look(110.0)
    assert world.warden.overstaying() == {"t": 1}
