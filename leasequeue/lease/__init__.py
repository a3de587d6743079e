"""Named leases: leadership, locks, the slots of a semaphore. The public names are here; the protocol is in ``hold``."""

from leasequeue.lease.aleader import AsyncLeader
from leasequeue.lease.handle import Lease
from leasequeue.lease.hold import Occupant, Refused
from leasequeue.lease.leader import Leader
from leasequeue.lease.offers import Leases

__all__ = ["AsyncLeader", "Leader", "Lease", "Leases", "Occupant", "Refused"]
