"""The shorter statement for one key does what the fuller one does: the same jobs, the same wake."""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple

import psycopg
import pytest

from leasequeue.worker import hotkeys
from tests.limits.hand import Hand, Hands, rule
from tests.support.databases import Database

# When a wake is due, to a tenth of a second: the shortest wait that any of them has.
_WAKES = """SELECT queue, parked, whole, CASE WHEN due_at <= clock_timestamp() THEN 0.0
    ELSE round(extract(epoch FROM due_at - clock_timestamp())::numeric, 1)::float8 END
FROM leasequeue_wake ORDER BY queue, parked, due_at"""


class Case(NamedTuple):
    """What there is under the key before it is claimed."""

    limit: int | None
    ruled: int | None
    running: int
    elsewhere: int
    waiting: int
    locked: int
    wanted: int


def cases() -> list[Case]:
    found = []
    limits = [(None, None), (1, None), (3, None), (1, 2), (2, 0)]
    rest: Any = itertools.product(limits, (0, 2), (0, 1), (0, 1, 4), (0, 1), (1, 10))
    for (limit, ruled), running, elsewhere, waiting, locked, wanted in rest:
        if locked <= waiting and (ruled is not None or limit is None or running + elsewhere <= limit):
            found.append(Case(limit, ruled, running, elsewhere, waiting, locked, wanted))
    return found


_CLEAR = """WITH a AS (DELETE FROM leasequeue_job), b AS (DELETE FROM leasequeue_limit), c AS (DELETE FROM leasequeue_lane)
DELETE FROM leasequeue_wake"""
_PUT = """INSERT INTO leasequeue_job (task, state, queue, limit_key, limit_max)
SELECT 't', 'g', %s, 'k', %s FROM generate_series(1, %s)"""
_WAKE = "INSERT INTO leasequeue_wake (queue, key) VALUES (%s, 'k')"


def outcome(
    database: Database, one: Hand, other: psycopg.Connection[Any], case: Case, *, ranked: bool
) -> tuple[int, list[tuple[Any, ...]]]:
    database.execute(_CLEAR)
    one.use()
    if ranked:
        database.execute("INSERT INTO leasequeue_lane (queue, priority) VALUES ('default', 5)")
    for count, queue in ((case.running, "default"), (case.elsewhere, "other")):
        if count:
            database.execute(_PUT, (queue, None, count))
            database.execute(_WAKE, (queue,))
            assert len(one.gated_until(count, queue=queue)) == count
    if case.limit is not None:
        database.execute("UPDATE leasequeue_job SET limit_max = %s", (case.limit,))
    if case.waiting:
        database.execute(_PUT, ("default", case.limit, case.waiting))
    if case.ruled is not None:
        rule(database, "k", case.ruled)
    database.execute("DELETE FROM leasequeue_wake")
    database.execute(_WAKE, ("default",))
    one.gate.read_rules(one.link)
    if case.locked:
        other.execute("SELECT FROM leasequeue_job WHERE state = 'g' ORDER BY id LIMIT 1 FOR UPDATE")
    got = len(one.gated(case.wanted))
    other.rollback()
    return got, database.execute(_WAKES)


@pytest.mark.direct_only  # what a statement does is the same on either way
@pytest.mark.parametrize("hot", [False, True])
def test_both_statements_admit_and_wake_alike(
    database: Database, hand: Hands, monkeypatch: pytest.MonkeyPatch, hot: bool
) -> None:
    if hot:
        monkeypatch.setattr(hotkeys, "HOT_AFTER", 0)
    one, other = hand("default", "other"), database.connect()
    differ = []
    for case in cases():
        if hot and not case.running:
            continue  # nothing has been taken yet, so there is no floor
        found = [outcome(database, one, other, case, ranked=ranked) for ranked in (False, True)]
        if found[0] != found[1]:
            differ.append((case, *found))
    assert differ == []
