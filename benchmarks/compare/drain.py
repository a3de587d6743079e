"""A backlog of jobs that do nothing, worked off by one worker process, and by two."""

from __future__ import annotations

import time

from benchmarks import ground
from benchmarks.compare.record import steady
from benchmarks.compare.workload import Column, Found, Ground, Words, Workload, at_rest
from benchmarks.peers.protocol import Cannot, Peer

LOOK_SECONDS = 0.2
FIRST_SECONDS = 30.0
"""Whoever has finished none by then is not going to."""


def run(peer: Peer, on: Ground, words: Words, found: Found) -> None:
    for processes in (1, 2):
        found.figures[str(processes)] = drained(peer, on, words, processes)


def drained(peer: Peer, on: Ground, words: Words, processes: int) -> float:
    """Jobs per second.

    Raises:
        Cannot: none was finished, or the end did not come.
    """
    jobs = min(words.jobs, peer.pace * processes * 20)
    with on.place(peer) as place, ground.connect(place.direct) as conn:
        with peer.client(place) as client:
            peer.fill(client, conn, jobs)
        at_rest(conn)
        with peer.worker(place, processes) as workers:
            samples = [peer.left(conn)]
            workers.go()
            begun = time.monotonic()
            # A tenth of its pace is slow beyond use.
            deadline = begun + FIRST_SECONDS + 10 * jobs / peer.pace
            while samples[-1][1]:
                time.sleep(LOOK_SECONDS)
                samples.append(peer.left(conn))
                now = time.monotonic()
                if samples[-1][1] == jobs and now > begun + FIRST_SECONDS:
                    raise Cannot(f"none of {jobs:,} jobs was finished in {FIRST_SECONDS:g} s")
                if now > deadline:
                    raise Cannot(f"{samples[-1][1]:,} of {jobs:,} jobs were left after {now - begun:.0f} s")
    return steady(samples, jobs)


WORKLOAD = Workload(
    "drain",
    "Drain of a backlog, jobs/s",
    "Jobs that do nothing, filled by each queue's own call for many (by SQL where that inserts one by one), then VACUUM "
    "ANALYZE and CHECKPOINT. Counted by `count(*)` of what is not finished, five times a second: from the look at which a "
    "tenth was done to the last at which some were left, so that no start is in it.",
    (Column("1", "1 process"), Column("2", "2 processes")),
    run,
    variants=True,
)
