"""What both variants share: the tables, the mails, and a connection pool that the rest of the application keeps full."""

from __future__ import annotations

import datetime as dt
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from email.message import EmailMessage
from itertools import islice
from smtplib import SMTP
from typing import TypeVar

from sqlalchemy import Engine, create_engine, make_url, text
from sqlalchemy.exc import TimeoutError as PoolTimeout

T = TypeVar("T")

POOL_SIZE = 2
BATCH = int(os.environ.get("NUDGE_BATCH", "4"))
PAGE_SECONDS = 0.03

TABLES = """
CREATE TABLE subscriber (
    id integer PRIMARY KEY,
    email text NOT NULL,
    every_seconds integer NOT NULL DEFAULT 86400,
    at_seconds integer NOT NULL DEFAULT 75600,  -- of each such span, counted from 1970: 21:00 UTC, daily
    CHECK (every_seconds > 0 AND at_seconds >= 0 AND at_seconds < every_seconds)
);
CREATE TABLE sent (
    tick timestamptz,
    subscriber integer REFERENCES subscriber,
    message_id text NOT NULL,
    busy integer NOT NULL,  -- connections of the pool that were out when one was asked for to write this row
    PRIMARY KEY (tick, subscriber)
);
"""

TURN = text(
    "SELECT id, email FROM subscriber"
    " WHERE mod(floor(extract(epoch FROM CAST(:tick AS timestamptz)))::bigint, every_seconds) = at_seconds ORDER BY id"
)
"""Whose turn it is: told from the tick alone, so that a tick that runs late, or again, finds the same people."""


def small_pool(url: str | None = None) -> Engine:
    """Two connections, and never a third one."""
    return create_engine(
        make_url(url or os.environ["LEASEQUEUE_URL"]).set(drivername="postgresql+psycopg"),
        pool_size=POOL_SIZE,
        max_overflow=0,
        connect_args={"prepare_threshold": None},  # a statement prepared on one server is unknown to a pooler's next
    )


def batches(items: Sequence[T], size: int = BATCH) -> Iterator[list[T]]:
    rest = iter(items)
    while batch := list(islice(rest, size)):
        yield batch


def nudge(tick: dt.datetime, email: str, message_id: str) -> EmailMessage:
    mail = EmailMessage()
    mail["From"] = "nudge@example.org"
    mail["To"] = email
    mail["Subject"] = "Did you log your spending?"
    mail["Message-ID"] = message_id
    mail["X-Tick"] = tick.astimezone(dt.UTC).isoformat()
    mail["X-Mailer"] = f"evening_nudge {os.getpid()}"
    mail.set_content(f"It is {tick:%H:%M}. Did you log your spending?\n")
    return mail


def smtp() -> SMTP:
    """A connection to the mail server that ``NUDGE_SMTP`` names, as host:port."""
    host, _, port = os.environ.get("NUDGE_SMTP", "127.0.0.1:8025").rpartition(":")
    return SMTP(host, int(port), local_hostname="localhost", timeout=20)  # without a name it asks the DNS for ours


def out(engine: Engine) -> int:
    """How many connections of the pool somebody holds."""
    return int(engine.pool.checkedout())  # type: ignore[attr-defined]  # a QueuePool's


@contextmanager
def visitors(engine: Engine) -> Iterator[None]:
    """The site: as many visitors as the pool has connections, each of whose pages keeps one while it renders."""
    gone = threading.Event()

    def visit() -> None:
        while not gone.wait(0.001):
            try:
                with engine.connect() as conn:
                    conn.execute(text("SELECT count(*) FROM subscriber"))
                    conn.commit()  # no transaction stays open; the connection stays out
                    gone.wait(PAGE_SECONDS)
            except PoolTimeout:
                continue  # this page is an error page

    threads = [threading.Thread(target=visit, name=f"visitor-{number}") for number in range(POOL_SIZE)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        gone.set()
        for thread in threads:
            thread.join()
