"""Named leases: leadership, locks, the slots of a semaphore. The public names are here; the protocol is in ``hold``.

Loaded at the first use of a name: an application that only enqueues pays for none of it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from leasequeue.lease.aleader import AsyncLeader
    from leasequeue.lease.handle import Lease
    from leasequeue.lease.hold import Occupant, Refused
    from leasequeue.lease.leader import Leader

__all__ = ["AsyncLeader", "Leader", "Lease", "Occupant", "Refused"]

_HOMES = {"AsyncLeader": "aleader", "Leader": "leader", "Lease": "handle", "Occupant": "hold", "Refused": "hold"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
