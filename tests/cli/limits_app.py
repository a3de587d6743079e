"""An application that declares limits."""

from leasequeue import LeaseQueue


def make() -> LeaseQueue:
    """A new one for each test, since it keeps its settings."""
    lq = LeaseQueue()
    lq.queue("mail", limit=4)
    lq.limit("user", 2, rate="5/m")
    return lq
