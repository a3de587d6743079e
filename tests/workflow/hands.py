"""A worker's statements by hand, on plain connections, so that a test says what happens when."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable
from typing import Any

import psycopg

from leasequeue.db.ends import end_statements
from leasequeue.db.jobs import job_statements
from leasequeue.db.program import Checked, run
from leasequeue.db.workflows import Late, Plan, add_steps, enqueue_workflow
from leasequeue.job import NewJob
from tests.support.databases import Database
from tests.support.waiting import until

ME = uuid.uuid4()
SQL = job_statements("public")
ENDS = end_statements("public")
JOB = NewJob("t", "default", "{}")


def flow(database: Database, steps: dict[str, dict[str, str]]) -> tuple[int, dict[str, int]]:
    """A workflow by its steps and the kinds of their edges; the ids by the names."""
    names = list(steps)
    edges = [(names.index(p), names.index(c), kind) for c, parents in steps.items() for p, kind in parents.items()]
    with database.connect() as conn:
        id, ids = run(conn, enqueue_workflow, "public", Plan(None, names, [JOB] * len(names), edges), Checked())
    return id, dict(zip(names, ids, strict=True))


def claim(database: Database, k: int = 100) -> dict[int, tuple[int, int]]:
    """The pairs (id, term) of what was claimed, by id."""
    params = {
        "me": ME,
        "ttl": 60,
        "queue": "default",
        "priorities": [0],
        "floors": [float("-inf")],
        "floor_ids": [0],
        "k": k,
    }
    return {row[0]: (row[0], row[1]) for row in database.execute(SQL.claim, params)}


def success(*pairs: tuple[int, int]) -> dict[str, Any]:
    return {
        "ids": [id for id, _ in pairs], "terms": [term for _, term in pairs], "me": ME,
        "results": ["1"] * len(pairs), "kept": [True] * len(pairs),
    }  # fmt: skip


def failure(*pairs: tuple[int, int]) -> dict[str, Any]:
    count = len(pairs)
    return {
        "ids": [id for id, _ in pairs], "terms": [term for _, term in pairs], "me": ME, "types": ["Asked"] * count,
        "messages": ["as asked"] * count, "tracebacks": [None] * count, "worker": "test", "outcome": "failed",
    }  # fmt: skip


def add(conn: psycopg.Connection[Any], workflow: int, name: str, after: dict[str, str]) -> int:
    return run(conn, add_steps, "public", workflow, [Late(name, JOB, after)], Checked(), False)[name]


def live(database: Database) -> dict[str, str]:
    """State and pending of the live steps by name."""
    rows = database.execute(
        "SELECT meta ->> 'step', state::text || coalesce(pending::text, '') FROM leasequeue_job ORDER BY id"
    )
    return {str(name): str(state) for name, state in rows}


def ended(database: Database) -> dict[str, str]:
    return dict(database.execute("SELECT meta ->> 'step', outcome FROM leasequeue_finished"))


class Aside:
    """A statement in a thread of its own, on a connection of its own."""

    def __init__(self, database: Database, sql: str, params: dict[str, Any]) -> None:
        self.conn = database.connect(autocommit=True)
        self.rows: list[tuple[Any, ...]] = []
        self.error: Exception | None = None
        self._database = database
        self._thread = threading.Thread(target=self._run, args=(sql, params), daemon=True)
        self._thread.start()

    def _run(self, sql: str, params: dict[str, Any]) -> None:
        try:
            self.rows = self.conn.execute(sql.encode(), params).fetchall()
        except Exception as error:  # noqa: BLE001  # shown to the test
            self.error = error

    def waits(self) -> Aside:
        """Until it waits for a lock."""
        asked = "SELECT wait_event_type = 'Lock' FROM pg_stat_activity WHERE pid = %s"
        until(lambda: self._database.scalar(asked, (self.conn.info.backend_pid,)), 10, "the statement to wait")
        return self

    def ends(self) -> Aside:
        self._thread.join(20)
        assert not self._thread.is_alive()
        return self


def held_back(text: str) -> str:
    """The statement, which takes its snapshot and then waits for the row of the table ``hurdle`` before anything else."""
    old = "WHERE id = ANY(%(ids)s::bigint[]) AND state = 'l'"
    assert text.count(old) == 1
    begins, rest = text.split(" bound AS", 1)
    waits = " hurdle AS MATERIALIZED (SELECT 1 FROM hurdle FOR UPDATE), bound AS"
    return (
        begins + waits + rest.replace(old, "WHERE (SELECT count(*) FROM hurdle) > 0 AND " + old.removeprefix("WHERE "))
    )


def clear_the_way(database: Database) -> Callable[[], None]:
    """Set the hurdle up; calling what is returned takes it away."""
    database.execute("CREATE TABLE IF NOT EXISTS hurdle (n int)")
    database.execute("TRUNCATE hurdle")
    database.execute("INSERT INTO hurdle VALUES (1)")
    holder = database.connect()
    holder.execute("SELECT 1 FROM hurdle FOR UPDATE")
    return holder.commit
