"""The applications whose schedules the tests of ``leasequeue schedules sync`` write; made anew for each."""

from __future__ import annotations

from leasequeue import LeaseQueue


def bare() -> LeaseQueue:
    return LeaseQueue()


def make() -> LeaseQueue:
    lq = LeaseQueue(tz="Europe/Kyiv")

    @lq.schedule("0 21 * * *", name="nightly", arguments={"n": 2})
    @lq.task(name="report")
    def report(n: int) -> None: ...

    return lq


def in_a_schema() -> LeaseQueue:
    lq = LeaseQueue(schema="jobs")
    lq.schedule("@daily", name="daily")(lq.task(name="t")(_nothing))
    return lq


def _nothing() -> None: ...
