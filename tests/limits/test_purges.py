"""What a limit leaves behind goes by itself."""

from __future__ import annotations

from leasequeue.db.workers import purges
from tests.limits.hand import Hands, put
from tests.support.databases import Database


def _purge(database: Database, table: str) -> int:
    (purge,) = [each for each in purges(database.schema) if f"{table} WHERE ctid" in each.text]
    return len(database.execute(purge.text, {"keep": purge.keep_seconds, "limit": purge.limit}))


def test_admissions_go_once_no_window_reaches_them(database: Database, hand: Hands) -> None:
    for user in range(3):
        put(database, f"user:{user}", 1, rate=(5, 60.0))
    assert len(hand().gated_until(3)) == 3
    spans = database.execute("SELECT extract(epoch FROM until - at)::int FROM leasequeue_admission")
    assert spans == [(120,)] * 3
    assert _purge(database, "leasequeue_admission") == 0
    database.execute("UPDATE leasequeue_admission SET until = now() - interval '1 s' WHERE name <> 'user:1'")
    assert _purge(database, "leasequeue_admission") == 2
    assert database.execute("SELECT name FROM leasequeue_admission") == [("user:1",)]


def test_a_suspect_at_the_gate_is_noted_with_its_window(database: Database, hand: Hands) -> None:
    (id,) = put(database, "k", 1, rate=(5, 30.0))
    database.execute("UPDATE leasequeue_job SET state = 'q', abandoned = 1")
    one = hand()
    params = {
        "names": ["k"], "running": [None], "rates": [5], "seconds": [30.0], "key": "k", "id": id, "me": one.me, "ttl": 30.0,
    }  # fmt: skip
    assert len(one.link.run(one.gate_sql.admit_suspect, params)) == 1
    spans = database.execute("SELECT extract(epoch FROM until - at)::int FROM leasequeue_admission")
    assert spans == [(60,)]


def test_wakes_for_which_nobody_waits_go(database: Database) -> None:
    put(database, "waits", 1, limit=1, queue="unserved")
    put(database, "gone", 1, limit=1, queue="unserved")
    put(database, "gone", 1, limit=1, queue="another")
    database.execute("DELETE FROM leasequeue_job WHERE limit_key = 'gone' AND queue = 'unserved'")
    assert _purge(database, "leasequeue_wake") == 0
    database.execute("UPDATE leasequeue_wake SET due_at = now() - interval '25 hours'")
    assert _purge(database, "leasequeue_wake") == 1
    left = database.execute("SELECT queue, key FROM leasequeue_wake ORDER BY queue")
    assert left == [("another", "gone"), ("unserved", "waits")]
