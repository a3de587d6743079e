from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from leasequeue.db.connect import Link
from leasequeue.db.urls import Settings
from leasequeue.ops.asking import Desk
from tests.support.databases import Database


@pytest.fixture
def desk(database: Database) -> Iterator[Desk]:
    link = Link(Settings.parse(database.url), application_name="test", bound_seconds=20.0)
    link.connect()
    yield Desk(link, database.schema)
    link.close()


class Rows:
    """Writes rows as workers do, by plain SQL; returns ids."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def job(self, task: str = "t", **columns: str | int | None) -> int:
        """Columns that are not given have their defaults; a text that begins with ``=`` is an SQL expression."""
        waits: dict[str | int | None, dict[str, Any]] = {"g": {"limit_key": "k"}, "b": {"pending": 1}}
        values: dict[str, Any] = {"task": task, **waits.get(columns.get("state"), {}), **columns}
        params = {name: value for name, value in values.items() if not str(value).startswith("=")}
        listed = ", ".join(str(values[n])[1:] if n not in params else f"%({n})s" for n in values)
        id = self._database.scalar(
            f"INSERT INTO leasequeue_job ({', '.join(values)}) VALUES ({listed}) RETURNING id", params
        )
        return int(id)

    def leased(
        self, holder: uuid.UUID | None = None, seconds: int = 60, task: str = "t", **columns: str | int | None
    ) -> int:
        return self.job(
            task, state="l", holder=str(holder or uuid.uuid4()), term=7, attempt=1, claimed_at="=now()",
            expires_at=f"=now() + {seconds} * interval '1 second'", **columns,
        )  # fmt: skip

    def finished(self, id: int, outcome: str, **columns: str | int) -> int:
        self._database.execute(
            "INSERT INTO leasequeue_finished (id, queue, task, args, outcome, attempt, abandoned, enqueued_at, error, meta) "
            "VALUES (%(id)s, 'default', 't', '{\"n\": 1}', %(outcome)s, 3, 0, now(), %(error)s, %(meta)s)",
            {"id": id, "outcome": outcome, "error": None, "meta": None} | columns,
        )
        return id

    def failure(self, task: str, job: int = 1, type: str = "ValueError", message: str = "no", ago: int = 60) -> None:
        self._database.execute(
            "INSERT INTO leasequeue_failure (job_id, attempt, queue, task, error_type, message, traceback, worker, failed_at) "
            "VALUES (%s, 1, 'default', %s, %s, %s, 'Traceback ...', 'h:1', now() - %s * interval '1 second')",
            [job, task, type, message, ago],
        )

    def worker(
        self, queues: str = '{"default": 4}', counters: str = "{}", pid: int = 11, seconds: int = 30
    ) -> uuid.UUID:
        """Its id ends in eight zeros, as a worker's does; its holders share the rest."""
        id = uuid.UUID(bytes=uuid.uuid4().bytes[:12] + bytes(4))
        self._database.execute(
            "INSERT INTO leasequeue_worker (id, host, pid, version, queues, tasks, expires_at, counters) "
            "VALUES (%s, 'box', %s, '1', %s, '[\"t\"]', now() + %s * interval '1 second', %s)",
            [id, pid, queues, seconds, counters],
        )
        return id


@pytest.fixture
def rows(database: Database) -> Rows:
    return Rows(database)
