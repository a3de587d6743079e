"""As it was: an advisory lock guards the tick, and each statement takes a connection of its own from the pool.

The lock belongs to the session that took it. The statement that should release it may go to another one:

    connection 1   lock: true ......................... a page has it ........... still locked, back in the pool
    connection 2   a page has it ... the page ends ...  unlock: false, unread

From then on the lock is refused to everybody, which looks like "another instance is already on it".
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from dataclasses import dataclass
from email.utils import make_msgid
from typing import Any

from sqlalchemy import Connection, Engine, text

from examples.evening_nudge.application import TURN, batches, nudge, smtp

NAME = "evening-nudge"
LOCK = text("SELECT pg_try_advisory_lock(hashtextextended(:name, 0)), pg_backend_pid()")
UNLOCK = text("SELECT pg_advisory_unlock(hashtextextended(:name, 0)), pg_backend_pid()")


@dataclass(frozen=True)
class Answer:
    """What the server said to one of the guard's statements. The application looks at none of the second ones."""

    asked: str
    said: bool
    backend: int


class Instance:
    """One instance of the application.

    Args:
        engine: its pool.
        meanwhile: the rest of the application: what its requests do while the mails go out. They come in threads of
            their own; here they come at one point, so that each run is the same.
    """

    def __init__(self, engine: Engine, meanwhile: Callable[[], None] = lambda: None) -> None:
        self.engine = engine
        self.meanwhile = meanwhile
        self.answers: list[Answer] = []

    def tick(self, tick: dt.datetime) -> None:
        if not self._ask("lock", LOCK):
            return  # another instance is already on it
        try:
            self._mail(tick)
        finally:
            self._ask("unlock", UNLOCK)

    def _mail(self, tick: dt.datetime) -> None:
        for batch in batches(self._execute(TURN, tick=tick)):
            with smtp() as server:
                for _, email in batch:
                    server.send_message(nudge(tick, email, make_msgid(domain="example.org")))
        self.meanwhile()

    def _execute(self, statement: Any, **values: Any) -> list[Any]:
        """As the ``db.execute`` of many an application: a connection out of the pool, and straight back."""
        with self.engine.begin() as conn:
            return list(conn.execute(statement, values))

    def _ask(self, what: str, statement: Any) -> bool:
        ((said, backend),) = self._execute(statement, name=NAME)
        self.answers.append(Answer(what, said, backend))
        return bool(said)


def incident(blue: Instance, green: Instance, first: dt.datetime, second: dt.datetime) -> None:
    """Two ticks: the first reaches blue, while two pages take turns at its pool; the second reaches both instances."""
    pages: list[Connection] = [blue.engine.connect()]  # one page has one of the two connections

    def turn_over() -> None:
        pages.append(blue.engine.connect())  # the next page gets the other one: that which took the lock
        pages.pop(0).close()  # and the first page ends: its connection is the only one left for the unlock

    blue.meanwhile = turn_over
    try:
        blue.tick(first)
        blue.tick(second)
        green.tick(second)
    finally:
        for page in pages:
            page.close()
