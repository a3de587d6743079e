"""What a workload asks of a queue, whichever it is.

    install() once -> prepare(place) in a fresh database -> client(place): bulk(n), one(n), stamp(i)
                                                         -> worker(place, processes): go(), stamps()

A worker is *ready* when its processes have been started and have loaded their code; it takes jobs from ``go()`` on, so
that what a language costs at its start is in no figure.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import LiteralString, Protocol

from benchmarks import ground


class Cannot(Exception):
    """This peer cannot do this here; the message says why. It stands in the report in place of a figure."""


@dataclass(frozen=True)
class Place:
    """Where jobs are.

    Attributes:
        url: what the peer is given.
        direct: the same database, straight to the server.
        pooled: ``url`` leads through pgbouncer in transaction mode: the peer takes its documented settings for that.
    """

    url: str
    direct: str
    pooled: bool = False


class Client(Protocol):
    """What enqueues, in a process of its own. Durations are seconds, measured in that process."""

    def one(self, jobs: int) -> float:
        """So many jobs, each in a transaction of its own, one after the other."""
        ...

    def bulk(self, jobs: int) -> float:
        """So many jobs by the peer's own call for many."""
        ...

    def stamp(self, number: int) -> float:
        """A job that says when its handler started; returns when its commit had returned (seconds since the epoch)."""
        ...


class Workers(Protocol):
    """Worker processes that are ready."""

    def go(self) -> None:
        """Take jobs from now on."""

    def stamps(self) -> dict[int, float]:
        """When the handlers of the stamped jobs were started, so far (seconds since the epoch).

        Raises:
            Cannot: a worker process has died.
        """
        ...


class Peer(ABC):
    """One queue under measurement.

    Attributes:
        name: as on the command line and in the report.
        settings: what was set for its best, in one line.
        pace: about how many jobs a second one process does; the size of a backlog and the lead of producers follow it.
        variant: another way to run a queue that is measured already: takes part where it is named, and in the drain.
        left_sql: how many jobs are not finished: exact, and as costly as a count is.
        done_sql: how many jobs were finished since the database was made, from the server's statistics: costs nothing
            however large the tables are, and is a second late.
        fill_sql: enqueues so many (``%s``) jobs that do nothing like one that is in the table already; for a peer whose
            own call for many inserts them one by one, so that it is not its producer that is measured as its worker.
    """

    name: str
    settings: str
    pace: int
    variant: bool = False
    left_sql: LiteralString
    done_sql: LiteralString
    fill_sql: LiteralString | None = None

    @abstractmethod
    def install(self, say: Callable[[str], None]) -> None:
        """Make ready what runs it, once; progress goes to ``say``.

        Raises:
            Cannot: it cannot be installed here.
        """

    @abstractmethod
    def version(self) -> str:
        """Of the installed peer and of what runs it."""

    @abstractmethod
    def prepare(self, place: Place) -> None:
        """Its tables, in a fresh database."""

    @abstractmethod
    def client(self, place: Place) -> AbstractContextManager[Client]: ...

    @abstractmethod
    def worker(self, place: Place, processes: int = 1) -> AbstractContextManager[Workers]: ...

    def fill(self, client: Client, conn: ground.Connection, jobs: int) -> None:
        """Enqueue so many jobs that do nothing, by the quickest documented way."""
        if self.fill_sql is None or jobs == 1:
            client.bulk(jobs)
            return
        if conn.execute(self.fill_sql.encode(), (jobs,)).rowcount == 0:  # there was none to be like
            client.bulk(1)
            conn.execute(self.fill_sql.encode(), (jobs - 1,))

    def left(self, conn: ground.Connection) -> tuple[float, int]:
        """The database's time (seconds since the epoch) and how many jobs were not finished then."""
        return _pair(conn, self.left_sql)

    def done(self, conn: ground.Connection) -> tuple[float, int]:
        """The database's time and how many jobs were finished, by the statistics."""
        return _pair(conn, self.done_sql)


def _pair(conn: ground.Connection, sql: LiteralString) -> tuple[float, int]:
    # now() is the start of this statement's transaction, which is where its snapshot was taken.
    query = "SELECT extract(epoch FROM now())::float8, coalesce((" + sql + "), 0)::int8"  # noqa: S608  # a constant
    ((at, count),) = conn.execute(query.encode()).fetchall()
    return float(str(at)), int(str(count))
