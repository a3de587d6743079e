"""What a run leaves behind: figures by workload, peer and round, or why there is none."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class Record:
    """One workload on one peer in one round.

    Attributes:
        figures: by the workload's columns; a column without a figure is missing.
        series: figures over time, where the workload has such.
        reasons: why figures are missing.
    """

    workload: str
    peer: str
    round: int
    figures: dict[str, float] = field(default_factory=dict)
    series: list[float] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def medians(records: Iterable[Record], workload: str, column: str) -> dict[str, float]:
    """By peer, the median over the rounds that have this figure."""
    found: dict[str, list[float]] = {}
    for record in records:
        if record.workload == workload and column in record.figures:
            found.setdefault(record.peer, []).append(record.figures[column])
    return {peer: statistics.median(values) for peer, values in found.items()}


def ratios(by_peer: dict[str, float], reference: str) -> dict[str, float]:
    """Each figure by that of the reference; empty where the reference has none."""
    base = by_peer.get(reference)
    return {peer: value / base for peer, value in by_peer.items()} if base else {}


def steady(samples: list[tuple[float, int]], jobs: int, begin: float = 0.1) -> float:
    """Jobs per second of a drain, from samples (time, jobs left): between two looks, so that neither the start nor the
    wait for the last look is in it.

    The first look is the first at which a tenth of the jobs was done (the worker is at work by then), the last the last
    at which some were left; where those saw the same, the drain was too short, and its end is taken as well.
    """
    running = [(at, left) for at, left in samples if 0 < left <= jobs * (1 - begin)]
    if len({left for _, left in running}) < 2:  # also where batches are so large that all looks saw the same
        running = running[:1] or [(at, left) for at, left in samples if left > 0][-1:]
        running += [(at, left) for at, left in samples if left == 0][:1]
    if len(running) < 2:
        raise ValueError(f"{len(samples)} looks at {jobs} jobs tell no rate")
    (begun, first), (until, last) = running[0], running[-1]
    return (first - last) / (until - begun)


def percentile(values: list[float], percent: float) -> float:
    """The smallest of the values that at least so many percent of them do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]
