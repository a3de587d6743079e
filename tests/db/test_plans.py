"""The fence costs the same whatever the planner believes: a look into a hash table for each row, never a join."""

from __future__ import annotations

import re
import uuid
from typing import Any

import psycopg
import pytest

from leasequeue.db.ends import end_statements
from leasequeue.db.gates import gate_statements
from leasequeue.db.jobs import FENCE, job_statements
from leasequeue.db.progress import statements as progress_statements
from tests.support.databases import Database

_FENCED = {
    name: text
    for name, text in (
        job_statements("public")._asdict() | end_statements("public")._asdict() | progress_statements("public")
    ).items()
    if "unnest(%(ids)s::bigint[], %(terms)s::bigint[])" in text
}
_JOIN = "AND (id, term) IN (SELECT * FROM unnest(%(ids)s::bigint[], %(terms)s::bigint[]))"


def plan(conn: psycopg.Connection[Any], statement: str) -> str:
    n = 500
    values: dict[str, Any] = {"ids": list(range(n)), "terms": [1] * n, "me": uuid.uuid4(), "attempts": [1] * n}
    for name in set(re.findall(r"%\((\w+)\)s", statement)) - set(values):
        values[name] = _OTHERS[name] if name in _OTHERS else [None] * n
    # Whatever is a join becomes one that compares each with each.
    with conn.transaction(force_rollback=True):
        conn.execute("SET LOCAL enable_hashjoin = off; SET LOCAL enable_mergejoin = off")
        return "\n".join(row[0] for row in conn.execute(f"EXPLAIN (VERBOSE) {statement}".encode(), values).fetchall())


_OTHERS: dict[str, Any] = {
    "ttl": 30.0, "back": "r", "worker": "w", "outcome": "failed",
    "keys": True, "first": uuid.UUID(int=0), "last": uuid.UUID(int=1), "reason": "it died", "suspect": True,
}  # fmt: skip


def is_compared_pair_by_pair(text: str) -> bool:
    return "hashed SubPlan" not in text or re.search(r"Join Filter:.*\bunnest", text) is not None


@pytest.mark.parametrize("name", _FENCED)
def test_pairs_are_looked_up(database: Database, name: str) -> None:
    with psycopg.connect(database.url, autocommit=True) as conn:
        assert not is_compared_pair_by_pair(plan(conn, _FENCED[name])), plan(conn, _FENCED[name])


def test_a_plain_in_is_what_this_guards_against(database: Database) -> None:
    broken = f"SELECT id FROM public.leasequeue_job WHERE {FENCE.partition(' AND ((id, term)')[0]} {_JOIN}"
    with psycopg.connect(database.url, autocommit=True) as conn:
        assert is_compared_pair_by_pair(plan(conn, broken)), plan(conn, broken)


KEYS = 300
_ACTUAL = re.compile(r"actual time=\S+ rows=(\S+) loops=(\d+)")


def most_rows(conn: psycopg.Connection[Any], statement: str) -> float:
    """How many rows the busiest node of its plan gives over all its runs."""
    values: dict[str, Any] = {"queue": "default", "floor_at": float("-inf"), "floor_id": 0, "scan": KEYS, "most": KEYS}
    with conn.transaction(force_rollback=True):
        explained = conn.execute(f"EXPLAIN (ANALYZE) {statement}".encode(), values | {"above": []}).fetchall()
    return max(float(rows) * int(loops) for (line,) in explained for rows, loops in _ACTUAL.findall(line))


def test_wakes_that_the_statistics_do_not_know_are_looked_up(database: Database) -> None:
    take = gate_statements("public").take_wakes
    looked_up = "key IN (SELECT key FROM named)) IS TRUE AND (bucket IN (SELECT id FROM b)) IS TRUE"
    joined = "key IN (SELECT key FROM named)) AND (bucket IN (SELECT id FROM b))"
    assert looked_up in take
    with psycopg.connect(database.url, autocommit=True) as conn:
        conn.execute("ALTER TABLE leasequeue_wake SET (autovacuum_enabled = off)")
        conn.execute("INSERT INTO leasequeue_bucket SELECT generate_series(0, 16383) ON CONFLICT DO NOTHING")
        due = (
            "INSERT INTO leasequeue_wake (queue, key, due_at) SELECT %s, 'k' || i, %s FROM generate_series(1, %s) AS i"
        )
        conn.execute(due, ("default", "2100-01-01", 5000))  # all of those that the statistics know are for later
        conn.execute("VACUUM ANALYZE leasequeue_wake, leasequeue_bucket")
        conn.execute(due, ("default", "2000-01-01", KEYS))
        assert most_rows(conn, take) < 3 * KEYS
        assert most_rows(conn, take.replace(looked_up, joined)) >= KEYS**2 / 2  # what this guards against
