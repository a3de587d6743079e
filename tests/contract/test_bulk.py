"""Very many jobs go in by COPY where a connection can: the rows are those of an INSERT, whatever is in them."""

from __future__ import annotations

import datetime as dt
from typing import Any

import psycopg
import pytest

from leasequeue import LeaseQueue
from leasequeue.db import bulk
from tests.contract.kinds import Bench
from tests.support.databases import Database

COLUMNS = (
    "queue, task, args, priority, max_attempts, meta, state::text, unique_key, limit_key, attempt, abandoned, "
    "available_at - created_at, start_by - created_at, holder, created_at = (SELECT max(created_at) FROM leasequeue_job)"
)
NASTY = [
    "",
    "\\",
    "\\N",
    "\\.",
    "a\\tb",
    "tab\there",
    "line\nfeed",
    "cr\rlf\r\n",
    "ä€😀",
    '"{}"',
    "\\\\n",
    "\x7f\x01",
    "%s %(x)s :y",
]


@pytest.fixture
def copied(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The statements that were COPYs."""
    seen: list[str] = []
    run = bulk._lines  # pyright: ignore[reportPrivateUsage]  # the only sign of it that costs nothing in use

    def lines(*args: Any) -> Any:
        seen.append("COPY")
        return run(*args)

    monkeypatch.setattr(bulk, "_lines", lines)
    monkeypatch.setattr(bulk, "COPY_MIN", 1)
    return seen


def _calls(lq: LeaseQueue) -> list[Any]:
    @lq.task(name="say")
    def say(text: str, number: int = 0) -> None: ...

    @lq.task(name="odd\\ta\\N", queue="mail\\1", max_attempts=3)
    def odd(text: str) -> None: ...

    hour = dt.timedelta(hours=1)
    return [
        *(say.call(text, number) for number, text in enumerate(NASTY)),
        *(odd.call(text) for text in NASTY),
        say.options(priority=9, delay=hour).call("later"),
        say.options(run_at=dt.datetime(1990, 1, 1, tzinfo=dt.UTC)).call("long ago"),
        say.options(expires=hour).call("expires"),
        odd.options(delay=hour, expires=hour / 2).call("both"),
        say.options(limit_key="k", limit=2).call("limited"),
        say.options(unique_key="u").call("unique"),
        say.options(unique_key="u").call("not so unique"),
        say.call("last"),
    ]


def _rows(database: Database) -> list[tuple[Any, ...]]:
    return database.execute(f"SELECT id, {COLUMNS} FROM leasequeue_job ORDER BY id")


def test_the_rows_are_those_of_an_insert(
    bench: Bench, database: Database, lq: LeaseQueue, copied: list[str], monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:  # fmt: skip
    calls = _calls(lq)
    monkeypatch.setattr(bulk, "COPY_ROWS", 7)
    found = bench.enqueue_many(lq, calls)
    assert len(found) == len(calls)
    assert [job.created for job in found].count(False) == 1
    bench.commit()
    by_copy = {row[0]: row[1:] for row in _rows(database)}
    plain = [job.id for job in found[: len(NASTY) * 2]]
    assert plain == sorted(plain)
    assert [by_copy[id][2]["text"] for id in plain] == NASTY * 2
    in_order = [by_copy[job.id] for job in found if job.created]
    wakes = database.execute("SELECT queue, key FROM leasequeue_wake")
    assert wakes == [("default", "k")]
    kind = str(request.node.callspec.params["bench"])
    assert bool(copied) == ("asyncpg" not in kind and kind != "Django")

    database.execute("DELETE FROM leasequeue_job; DELETE FROM leasequeue_wake")
    copied.clear()
    monkeypatch.setattr(bulk, "COPY_MIN", 10**9)
    found = bench.enqueue_many(lq, calls)
    bench.commit()
    by_insert = {row[0]: row[1:] for row in _rows(database)}
    assert copied == []
    assert [by_insert[job.id] for job in found if job.created] == in_order


@pytest.mark.direct_only  # what is sent is the same
def test_what_is_rolled_back_was_never_there(
    bench: Bench, database: Database, lq: LeaseQueue, copied: list[str]
) -> None:
    bench.enqueue_many(lq, _calls(lq))
    bench.rollback()
    assert _rows(database) == []
    found = bench.enqueue_many(lq, _calls(LeaseQueue(schema=database.schema))[:3])
    bench.commit()
    assert [row[0] for row in _rows(database)] == [job.id for job in found]


@pytest.mark.direct_only  # what is sent is the same
def test_a_row_that_the_server_refuses_is_an_error_of_the_driver(
    bench: Bench, database: Database, lq: LeaseQueue, copied: list[str]
) -> None:
    database.execute("ALTER TABLE leasequeue_job ADD CONSTRAINT no_3 CHECK (args <> '{\"number\": 3}') NOT VALID")
    try:

        @lq.task(name="number")
        def number(number: int) -> None: ...

        with pytest.raises(Exception, match="no_3"):
            bench.enqueue_many(lq, [number.call(i) for i in range(5)])
        bench.rollback()
        assert _rows(database) == []
        assert len(bench.enqueue_many(lq, [number.call(i) for i in range(3)])) == 3
        bench.commit()
        assert len(_rows(database)) == 3
    finally:
        database.execute("ALTER TABLE leasequeue_job DROP CONSTRAINT no_3")


GRANT = "GRANT SELECT, INSERT ON leasequeue_job, leasequeue_lane TO clerk; GRANT USAGE ON SCHEMA public TO clerk"


@pytest.mark.direct_only  # what is sent is the same
@pytest.mark.parametrize(
    ("grant", "copies"),
    [
        (f"{GRANT}; GRANT USAGE ON SEQUENCE leasequeue_job_id_seq TO clerk", True),
        (GRANT, False),
        (
            "GRANT USAGE ON SCHEMA public TO clerk; GRANT USAGE ON SEQUENCE leasequeue_job_id_seq TO clerk; "
            "GRANT SELECT ON leasequeue_job TO clerk; "
            "GRANT INSERT (queue, task, args, priority, available_at, max_attempts, meta, start_by, unique_until) "
            "ON leasequeue_job TO clerk",
            False,
        ),
        (
            f"{GRANT}; GRANT USAGE ON SEQUENCE leasequeue_job_id_seq TO clerk; "
            "ALTER TABLE leasequeue_job ENABLE ROW LEVEL SECURITY; "
            "CREATE POLICY own ON leasequeue_job TO clerk USING (true) WITH CHECK (true)",
            False,
        ),
    ],
    ids=["may", "may not draw", "may not name ids", "row security"],
)
def test_a_role_that_may_only_insert_inserts(
    database: Database, lq: LeaseQueue, copied: list[str], grant: str, copies: bool
) -> None:
    @lq.task(name="number")
    def number(number: int) -> None: ...

    with psycopg.connect(database.direct_url) as conn:
        conn.execute("CREATE ROLE clerk")
        conn.execute(grant.encode())
        conn.execute("SET ROLE clerk")
        found = lq.enqueue_many(conn, [number.call(i) for i in range(20)])
        assert bool(copied) == copies
        assert conn.execute("SELECT id FROM leasequeue_job ORDER BY id").fetchall() == [(job.id,) for job in found]
        conn.rollback()  # and with it the role
