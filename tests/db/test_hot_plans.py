"""The hot statements read what they need by an index, in its order: on an empty table, on five million jobs, and on five
million of which the statistics know nothing.
"""

from __future__ import annotations

import datetime as dt
import json
import re
import uuid
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from leasequeue.db import deadlines, peek
from leasequeue.db.jobs import job_statements
from tests.support.databases import Database

JOBS = 5_000_000
BATCH = 500

HOT = {
    name: text
    for name, text in (
        job_statements("public")._asdict()
        | peek.statements("public")
        | {"expire_waiting": deadlines.expire_waiting("public"), "cancel_asked": deadlines.cancel_asked("public")}
    ).items()
    if name not in ("read_finished", "read_now", "note_refusal")
}
"""Those that workers run all the time, over the table of the jobs."""

_BY_TYPE: dict[str, Any] = {
    "bigint[]": list(range(BATCH)), "smallint[]": [5, 0, -5], "text[]": ["default", "mail", "other"],
    "boolean[]": [True] * BATCH,
    "float8[]": [1e9, 1e9, 1e9], "int[]": [1] * BATCH, "timestamptz[]": [dt.datetime(2026, 1, 1, tzinfo=dt.UTC)] * BATCH,
}  # fmt: skip
_BY_NAME: dict[str, Any] = {
    "me": uuid.UUID(int=5), "holder": uuid.UUID(int=5), "first": uuid.UUID(int=0), "last": uuid.UUID(int=9), "k": BATCH,
    "queue": "default", "ttl": 30.0, "ahead": 1.0, "max_abandoned": 3, "suspect": True, "back": "r", "keys": True,
    "probes": True,
    "window": 2.0, "reason": "it died", "worker": "w", "known": [1, 2], "outcome": "failed", "message": "m", "type": "E",
    "queues": ["default", "mail", "other"], "floor_ids": [0, 0, 0], "wake_floor_ids": [0, 0, 0], "keep": True, "tried": [1],
    "types": ["E"] * BATCH, "messages": ["m"] * BATCH, "tracebacks": [None] * BATCH, "results": [None] * BATCH,
    "delays": [1.0] * BATCH, "limit_keys": ["k"] * BATCH,
}  # fmt: skip
_PARAMETER = re.compile(r"%\((\w+)\)s(?:::([a-z0-9]+(?:\[\])?))?")


def _values(text: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, kind in _PARAMETER.findall(text):
        if name in _BY_NAME:
            found[name] = _BY_NAME[name]
        elif found.get(name) is None:
            found[name] = _BY_TYPE.get(kind)
    return found


def nodes(plan: dict[str, Any], subplans: bool = True) -> Iterator[dict[str, Any]]:
    """Of a plan; or only those whose rows come up to it, not those that are asked for each row."""
    yield plan
    for below in plan.get("Plans", []):
        if subplans or below["Parent Relationship"] not in ("SubPlan", "InitPlan"):
            yield from nodes(below, subplans)


def faults(conn: psycopg.Connection[Any], text: str) -> list[str]:
    """The scans of the whole table, and the sorts of what an index was to give in order."""
    ((explained,),) = conn.execute(f"EXPLAIN (FORMAT JSON) {text}".encode(), _values(text)).fetchall()
    found = []
    for node in nodes((explained if isinstance(explained, list) else json.loads(explained))[0]["Plan"]):
        kind = node["Node Type"]
        if kind == "Seq Scan" and node["Relation Name"] == "leasequeue_job":
            found.append(f"Seq Scan with {node.get('Filter')}")
        if kind in ("Sort", "Incremental Sort"):
            # Pairs that are given, or come of a few rows that were read before, may be sorted.
            below = [one for one in nodes(node, subplans=False) if one.get("Relation Name") == "leasequeue_job"]
            found += [f"{kind} by {node['Sort Key']} of {one['Node Type']}" for one in below if not _is_given(one)]
    return found


FEW = {"leasequeue_job_leased", "leasequeue_job_suspect", "leasequeue_job_start_by", "leasequeue_job_asked"}
"""Indexes that have nothing but what is held, suspect, or past its time: as much as a statement is about, however long the
backlog is."""


def _is_given(scan: dict[str, Any]) -> bool:
    if {one.get("Index Name") for one in nodes(scan)} & FEW:
        return True
    conditions = [str(one.get(what, "")) for one in nodes(scan) for what in ("Index Cond", "Recheck Cond", "Tid Cond")]
    return any(re.search(r"\(id = (ANY )?\(?|ctid = ", one) for one in conditions)


@pytest.fixture
def conn(database: Database) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(database.direct_url, autocommit=True) as opened:
        opened.execute("ALTER TABLE leasequeue_job SET (autovacuum_enabled = off)")
        # Empty as a queue's table is: it has had jobs. One that has no page at all is scanned, and rightly so.
        opened.execute("INSERT INTO leasequeue_job (task) SELECT 'noop' FROM generate_series(1, 20000)")
        opened.execute("DELETE FROM leasequeue_job")
        opened.execute("ANALYZE leasequeue_job")
        yield opened


def _fill(conn: psycopg.Connection[Any]) -> None:
    """Ready, scheduled, of three queues and two priorities, and some that are held."""
    ((made, names),) = conn.execute(
        "SELECT string_agg(indexdef, '; '), string_agg(format('%I', indexname), ', ') FROM pg_indexes "
        "WHERE tablename = 'leasequeue_job' AND indexname <> 'leasequeue_job_pkey'"
    ).fetchall()
    with conn.transaction():
        # Indexes are made afterwards, and nothing of it is logged: a fifth of the time.
        conn.execute(
            f"DROP INDEX {names}; ALTER TABLE leasequeue_job DROP CONSTRAINT leasequeue_job_pkey, SET UNLOGGED; "
            "SET LOCAL maintenance_work_mem = '512MB'".encode()
        )
        conn.execute(
            "INSERT INTO leasequeue_job (id, task, queue, priority, available_at, state, holder, term, expires_at, attempt) "
            "OVERRIDING SYSTEM VALUE "
            # In the order of the index, which is made ten times as fast of it.
            "SELECT i, 'noop', 'default', CASE WHEN i <= 2500000 THEN 5 ELSE 0 END, now() + (i - 2500000) * interval '10 ms', "
            "CASE WHEN i <= 2000 THEN 'l' ELSE 'r' END::\"char\", "
            "CASE WHEN i <= 2000 THEN '00000000-0000-0000-0000-000000000005'::uuid END, "
            "CASE WHEN i <= 2000 THEN 1 END, CASE WHEN i <= 2000 THEN now() + interval '30 s' END, (i <= 2000)::int "
            f"FROM generate_series(1, {JOBS}) AS i".encode()
        )
        conn.execute(
            "UPDATE leasequeue_job SET queue = CASE id % 2 WHEN 0 THEN 'mail' ELSE 'other' END WHERE id <= 100000"
        )
        conn.execute("ALTER TABLE leasequeue_job ADD CONSTRAINT leasequeue_job_pkey PRIMARY KEY (id)")
        conn.execute(made.encode())


def _all_faults(conn: psycopg.Connection[Any]) -> dict[str, list[str]]:
    return {name: found for name, text in HOT.items() if (found := faults(conn, text))}


@pytest.mark.direct_only  # the plans are the server's
def test_no_scan_of_the_table_and_no_sort(conn: psycopg.Connection[Any]) -> None:
    assert _all_faults(conn) == {}, "on an empty table"
    _fill(conn)
    assert _all_faults(conn) == {}, "on five million jobs of which the statistics know nothing"
    conn.execute("ANALYZE leasequeue_job")
    assert _all_faults(conn) == {}, "on five million jobs"
    # What this guards against is seen.
    unordered = HOT["claim"].replace("ORDER BY available_at, id", "ORDER BY created_at, id")
    assert unordered != HOT["claim"]
    assert faults(conn, unordered) != []
    joined = HOT["peek"].replace("WHERE (SELECT true", "WHERE EXISTS (SELECT")
    assert joined != HOT["peek"]
    assert faults(conn, joined) != []
    unbounded = re.sub(r"id = ANY\(%\(ids\)s::bigint\[\]\) AND state = 'l' AND", "", HOT["read_held"])
    assert unbounded != HOT["read_held"]
    assert faults(conn, unbounded) != []
