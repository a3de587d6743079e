"""How long an idle worker takes to start a job: from the return of the enqueuing commit to the start of the handler."""

from __future__ import annotations

import contextlib
import statistics
import time

from benchmarks.compare.record import percentile
from benchmarks.compare.workload import Column, Found, Ground, Words, Workload
from benchmarks.peers.protocol import Cannot, Peer, Workers

EVERY_SECONDS = 0.05
FIRST_SECONDS = 15.0


def direct(peer: Peer, on: Ground, words: Words, found: Found) -> None:
    _measure(peer, on, words, found, pooled=False)


def pooled(peer: Peer, on: Ground, words: Words, found: Found) -> None:
    _measure(peer, on, words, found, pooled=True)


def _measure(peer: Peer, on: Ground, words: Words, found: Found, *, pooled: bool) -> None:
    with contextlib.ExitStack() as stack:
        place = stack.enter_context(on.place(peer))
        if pooled:
            place = stack.enter_context(on.pooled(place))
        client = stack.enter_context(peer.client(place))
        workers = stack.enter_context(peer.worker(place))
        workers.go()
        client.stamp(-1)
        if not _wait(workers, {-1}, FIRST_SECONDS):
            raise Cannot(f"none started in {FIRST_SECONDS:g} s")
        sent: dict[int, float] = {}
        due = time.monotonic()
        for number in range(words.pickups):
            sent[number] = client.stamp(number)
            due += EVERY_SECONDS
            time.sleep(max(0.0, due - time.monotonic()))
        if not _wait(workers, set(sent), 2 * FIRST_SECONDS):
            missing = len(set(sent) - set(workers.stamps()))
            raise Cannot(f"{missing} of {len(sent)} had not started {2 * FIRST_SECONDS:g} s after the last")
        started = workers.stamps()
    # A handler may start before its enqueuer has heard of the commit.
    latencies = [1000 * max(0.0, started[number] - at) for number, at in sent.items()]
    found.figures["p50"] = statistics.median(latencies)
    found.figures["p99"] = percentile(latencies, 99)


def _wait(workers: Workers, numbers: set[int], seconds: float) -> bool:
    until = time.monotonic() + seconds
    while not numbers <= set(workers.stamps()):
        if time.monotonic() > until:
            return False
        time.sleep(0.05)
    return True


_COLUMNS = (Column("p50", "p50", more_is_better=False, digits=2), Column("p99", "p99", more_is_better=False, digits=2))
_NOTE = (
    "20 jobs a second, enqueued one by one by a process of its own, one idle worker process; both take their times from this "
    "machine's clock."
)
DIRECT = Workload("pickup", "Pickup, ms, direct", _NOTE, _COLUMNS, direct)
POOLED = Workload(
    "pickup-pooled",
    "Pickup, ms, through pgbouncer in transaction mode",
    f"{_NOTE} Worker and enqueuer both go through pgbouncer.",
    _COLUMNS,
    pooled,
)
