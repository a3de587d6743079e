"""A ticker that is driven by hand, and the rows that it wants to see."""

from __future__ import annotations

import datetime as dt
import json
import time
import uuid
from collections.abc import Callable, Sequence
from typing import Any

from leasequeue.db.connect import Link
from leasequeue.db.schedules import Definition
from leasequeue.db.urls import Settings
from leasequeue.loop import Outage
from leasequeue.ops.release import Release
from leasequeue.worker.tick import Ticker
from tests.support.databases import Database
from tests.support.waiting import until


class Hand(Ticker):
    """``step()`` is one turn; it does not wait at its end."""

    def __init__(
        self, database: Database, definitions: Sequence[Definition] = (), release: Release | None = None
    ) -> None:
        link = Link(Settings.parse(database.url), application_name="leasequeue ticker")
        super().__init__(link, Outage(), "public", list(definitions), release or Release())
        self.would_pause = 0.0
        link.connect()

    def pause(self, seconds: float) -> None:
        self.would_pause = seconds

    def step(self) -> None:
        self._poll_due = 0.0
        self.turn()

    def turns_until(self, done: Callable[[], object], seconds: float = 10.0) -> None:
        """Turn until it is so, as the thread would."""

        def turned() -> object:
            self.turn()
            return done()

        until(turned, seconds, every=0.02)

    def run_until(self, end: float) -> None:
        """Turn as the thread does, in real time."""
        while time.monotonic() < end:
            self.turn()
            time.sleep(min(self.would_pause, max(0.0, end - time.monotonic())))


def worker_row(database: Database, tasks: Sequence[str] = ("job",), schedules: Sequence[str] = ()) -> uuid.UUID:
    """A live worker that knows these."""
    id = uuid.uuid4()
    database.execute(
        "INSERT INTO leasequeue_worker (id, host, pid, version, queues, tasks, schedules, expires_at) "
        "VALUES (%s, 'here', 1, '0', '{}', %s, %s, now() + interval '1 hour')",
        (id, json.dumps(list(tasks)), json.dumps(list(schedules))),
    )
    return id


def schedule_row(database: Database, name: str, spec: dict[str, Any], **columns: Any) -> None:
    """By plain SQL, as from psql."""
    values = {"name": name, "task": "job", "spec": json.dumps(spec), **columns}
    names = ", ".join(values)
    database.execute(
        f"INSERT INTO leasequeue_schedule ({names}) VALUES ({', '.join('%s' for _ in values)})", tuple(values.values())
    )


def ledger(database: Database, name: str) -> list[tuple[dt.datetime, str]]:
    return [
        (due.astimezone(dt.UTC), outcome)
        for due, outcome in database.execute(
            "SELECT due_at, outcome FROM leasequeue_tick WHERE schedule = %s AND outcome <> 'redefined' ORDER BY due_at",
            (name,),
        )
    ]


def outcomes(database: Database, name: str) -> list[str]:
    return [outcome for _, outcome in ledger(database, name)]


def jobs(database: Database, name: str, until: dt.datetime | None = None) -> int:
    """The jobs that a schedule has made, live and finished; those of due times up to ``until``, as more come meanwhile."""
    wanted = "meta ->> 'schedule' = %(name)s AND (meta ->> 'tick')::timestamptz <= coalesce(%(until)s, 'infinity'::timestamptz)"
    return int(
        database.scalar(
            f"SELECT (SELECT count(*) FROM leasequeue_job WHERE {wanted}) "
            f"+ (SELECT count(*) FROM leasequeue_finished WHERE {wanted})",
            {"name": name, "until": until},
        )
    )
