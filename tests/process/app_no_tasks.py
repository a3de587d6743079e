"""An application whose tasks nobody imports."""

from __future__ import annotations

from leasequeue import LeaseQueue

lq = LeaseQueue()
