"""Produced and drained at once, as fast as it goes: for some seconds, and under a held snapshot."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator

import psycopg

from benchmarks import ground
from benchmarks.compare.workload import Column, Found, Ground, Words, Workload, at_rest
from benchmarks.peers.protocol import Cannot, Client, Peer

WARM_SECONDS = 3.0
WINDOW_SECONDS = 10.0
FIRST_SECONDS = 30.0


class Producer:
    """Keeps a backlog of one to two seconds' work in front of a worker."""

    def __init__(self, peer: Peer, client: Client, conn: ground.Connection) -> None:
        self._peer, self._client, self._conn = peer, client, conn
        self._chunk = min(5_000, max(100, peer.pace // 10))
        self.made = 0
        self.done = 0

    def step(self) -> None:
        """Enqueue some, unless there is enough."""
        _, self.done = self._peer.done(self._conn)
        if self.made - self.done < 2 * self._peer.pace:
            self._peer.fill(self._client, self._conn, self._chunk)
            self.made += self._chunk
        else:
            time.sleep(0.05)

    def until(self, deadline: float) -> None:
        while time.monotonic() < deadline:
            self.step()

    def warm(self) -> None:
        """Until the worker has been at work for some seconds.

        Raises:
            Cannot: it finishes nothing.
        """
        deadline = time.monotonic() + FIRST_SECONDS
        while self.done == 0:
            self.step()
            if time.monotonic() > deadline:
                raise Cannot(f"none of {self.made:,} jobs was finished in {FIRST_SECONDS:g} s")
        self.until(time.monotonic() + WARM_SECONDS)


@contextlib.contextmanager
def _flow(peer: Peer, on: Ground, hold: bool) -> Iterator[tuple[Producer, ground.Connection]]:
    with contextlib.ExitStack() as stack:
        place = stack.enter_context(on.place(peer))
        conn = stack.enter_context(ground.connect(place.direct))
        client = stack.enter_context(peer.client(place))
        producer = Producer(peer, client, conn)
        peer.fill(client, conn, 2)
        producer.made += 2
        at_rest(conn)
        workers = stack.enter_context(peer.worker(place))
        if hold:
            holder = stack.enter_context(psycopg.connect(place.direct))
            holder.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            holder.execute("SELECT count(*) FROM pg_class")
        workers.go()
        producer.warm()
        yield producer, conn


def _rate(before: tuple[float, int], after: tuple[float, int]) -> float:
    return (after[1] - before[1]) / (after[0] - before[0])


def sustained(peer: Peer, on: Ground, words: Words, found: Found) -> None:
    with _flow(peer, on, hold=False) as (producer, conn):
        # Exact: between two steps nobody enqueues.
        def look() -> tuple[float, int]:
            at, left = peer.left(conn)
            return at, producer.made - left

        before = look()
        producer.until(time.monotonic() + words.sustained_seconds)
        after = look()
    found.figures["rate"] = _rate(before, after)
    found.figures["left"] = producer.made - after[1]


def snapshot(peer: Peer, on: Ground, words: Words, found: Found) -> None:
    with _flow(peer, on, hold=True) as (producer, conn):
        _windows(producer, lambda: peer.done(conn), words.seconds, found)
    found.figures["first"], found.figures["last"] = found.series[0], found.series[-1]
    found.figures["kept"] = 100 * found.series[-1] / found.series[0] if found.series[0] else 0.0


def _windows(producer: Producer, look: Callable[[], tuple[float, int]], seconds: float, found: Found) -> None:
    until = time.monotonic() + seconds
    before = look()
    while not found.series or time.monotonic() + WINDOW_SECONDS / 2 < until:
        producer.until(time.monotonic() + min(WINDOW_SECONDS, seconds))
        after = look()
        found.series.append(_rate(before, after))
        before = after


SUSTAINED = Workload(
    "sustained",
    "Produced and drained at once, jobs/s",
    "One process enqueues by the queue's own call for many (by SQL where that inserts one by one) whenever there are fewer "
    "than two seconds' jobs, one worker process drains, for 20 s after 3 s of warming up. Counted by what was enqueued less "
    "an exact count of what is not finished, at both ends; where few are left at the end, the producer was the limit.",
    (Column("rate", "1 process"), Column("left", "jobs left at the end", more_is_better=False, compared=False)),
    sustained,
)
SNAPSHOT = Workload(
    "snapshot",
    "The same under a held snapshot, jobs/s per 10 s",
    "A REPEATABLE READ transaction is held open from before the first job on. Counted per window by the server's statistics "
    "of deleted or updated rows, since a count of the rows would cost more and more itself.",
    (Column("first", "first 10 s"), Column("last", "last 10 s"), Column("kept", "last, % of first", compared=False)),
    snapshot,
)
