"""The queues that are measured in turn, each at its best documented settings, behind one protocol (``protocol.py``)."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.peers.chancy import Chancy
from benchmarks.peers.graphile import GraphileWorker
from benchmarks.peers.leasequeue import PEERS as OURS
from benchmarks.peers.oban import Oban
from benchmarks.peers.pgboss import PgBoss
from benchmarks.peers.pgqueuer import PgQueuer
from benchmarks.peers.procrastinate import Procrastinate
from benchmarks.peers.protocol import Peer

REFERENCE = "leasequeue"
"""Every figure is set against that of this one, in the same run."""

PEERS: tuple[Peer, ...] = (
    *OURS, GraphileWorker(), PgBoss(), PgQueuer(), Chancy(), Oban(), Procrastinate(),
)  # fmt: skip


def choose(names: Sequence[str]) -> list[Peer]:
    """The peers of these names, the reference always among them, in the registry's order; all where there are no names.

    Raises:
        ValueError: there is no peer of such a name.
    """
    known = {peer.name: peer for peer in PEERS}
    unknown = [name for name in names if name not in known]
    if unknown:
        raise ValueError(f"no peer is named {', '.join(unknown)}; there are {', '.join(known)}")
    return [peer for peer in PEERS if not names or peer.name in {REFERENCE, *names}]
