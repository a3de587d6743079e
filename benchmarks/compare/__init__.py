"""Workloads that take any of the queues of ``benchmarks.peers``, and the report of a run: ``python -m benchmarks``."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.compare import drain, enqueue, flow, pickup
from benchmarks.compare.workload import Workload

WORKLOADS: tuple[Workload, ...] = (
    drain.WORKLOAD, flow.SUSTAINED, flow.SNAPSHOT, pickup.DIRECT, pickup.POOLED, enqueue.WORKLOAD,
)  # fmt: skip


def choose(names: Sequence[str]) -> list[Workload]:
    """The workloads of these names; all where there are none.

    Raises:
        ValueError: there is no workload of such a name.
    """
    known = [workload.name for workload in WORKLOADS]
    unknown = [name for name in names if name not in known]
    if unknown:
        raise ValueError(f"no workload is named {', '.join(unknown)}; there are {', '.join(known)}")
    return [workload for workload in WORKLOADS if not names or workload.name in names]
