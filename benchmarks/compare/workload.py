"""What a workload is, and what it may use."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from benchmarks import ground
from benchmarks.peers.protocol import Cannot, Peer, Place
from leasequeue import embedded


@dataclass(frozen=True)
class Words:
    """What the command line says.

    Attributes:
        jobs: the largest backlog; a peer gets what it can do in about 20 seconds, if that is less.
        seconds: how long a snapshot is held.
        sustained_seconds: how long is produced and drained.
        pickups: how many jobs a latency is measured on.
        singles: how many jobs are enqueued one by one.
        many: how many jobs are enqueued in one call.
    """

    jobs: int = 200_000
    seconds: float = 60.0
    sustained_seconds: float = 20.0
    pickups: int = 200
    singles: int = 1_000
    many: int = 100_000


@dataclass(frozen=True)
class Column:
    """One figure of a workload.

    Attributes:
        key, heading: in the figures, and over the column.
        more_is_better: or less.
        digits: after the point.
        compared: shown with its ratio to the reference.
    """

    key: str
    heading: str
    more_is_better: bool = True
    digits: int = 0
    compared: bool = True


@dataclass
class Found:
    """What one run of a workload has found so far; kept also where the rest could not be done."""

    figures: dict[str, float] = field(default_factory=dict)
    series: list[float] = field(default_factory=list)


class Ground:
    """The server of a run: databases for workloads."""

    def __init__(self, running: embedded.EmbeddedServer) -> None:
        self.running = running

    @contextlib.contextmanager
    def place(self, peer: Peer) -> Iterator[Place]:
        """A fresh database with the peer's tables, gone afterwards."""
        name = f"bench_{secrets.token_hex(4)}"
        url = self.running.ensure_database(name)
        try:
            place = Place(url, url)
            peer.prepare(place)
            yield place
        finally:
            with ground.connect(self.running.url()) as conn:
                conn.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())

    @contextlib.contextmanager
    def pooled(self, place: Place) -> Iterator[Place]:
        """The same database through a pgbouncer in transaction mode.

        Raises:
            Cannot: pgbouncer is not installed.
        """
        from tests.support.pgbouncer import PgBouncer, Unavailable
        from tests.support.server import UrlServer

        try:
            bouncer = PgBouncer(UrlServer(place.direct, "a measurement"), pool_size=10)
        except Unavailable as error:
            raise Cannot(str(error)) from error
        try:
            yield Place(bouncer.url(place.direct.rsplit("/", 1)[1]), place.direct, pooled=True)
        finally:
            bouncer.close()


@dataclass(frozen=True)
class Workload:
    """Attributes:
    name: as on the command line.
    title, note: of its table; the note says how it is counted.
    run: measures one peer, writing into ``Found``; raises ``Cannot`` where (the rest of) it cannot be done.
    variants: peers' variants take part without being named.
    """

    name: str
    title: str
    note: str
    columns: tuple[Column, ...]
    run: Callable[[Peer, Ground, Words, Found], None]
    variants: bool = False


def at_rest(conn: ground.Connection) -> None:
    """Statistics and the visibility map are there, and no checkpoint is due."""
    conn.execute("SET max_parallel_workers_per_gather = 0")  # a look must not take both cores
    conn.execute("VACUUM ANALYZE")
    conn.execute("CHECKPOINT")
