"""How fast jobs are enqueued: one per transaction, and many in one call. No worker runs."""

from __future__ import annotations

from benchmarks.compare.workload import Column, Found, Ground, Words, Workload
from benchmarks.peers.protocol import Peer


def run(peer: Peer, on: Ground, words: Words, found: Found) -> None:
    with on.place(peer) as place, peer.client(place) as client:
        client.one(20)
        found.figures["one"] = words.singles / client.one(words.singles)
        # Where many are inserted one by one, a fifth tells the rate as well.
        many = words.many if peer.fill_sql is None else words.many // 5
        found.figures["many"] = many / client.bulk(many)


WORKLOAD = Workload(
    "enqueue",
    "Enqueue, jobs/s",
    "In one process, by its own clock: one job per transaction, each awaited before the next; and 100,000 in one call of the "
    "queue's own for many (of chancy and oban, which insert them one by one, 20,000).",
    (Column("one", "1 per transaction"), Column("many", "100,000 in one call")),
    run,
)
