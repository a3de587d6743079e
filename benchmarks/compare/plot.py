"""A picture per workload: bars of the medians, or lines where a workload has figures over time."""

from __future__ import annotations

import statistics
from itertools import zip_longest
from pathlib import Path
from typing import Any

from benchmarks.compare.record import medians
from benchmarks.compare.report import Run
from benchmarks.compare.workload import Workload


class Missing(Exception):
    """matplotlib is not installed; the message says what to do."""


def draw(run: Run, workload: Workload, path: Path) -> None:
    """Write a PNG.

    Raises:
        Missing: there is no matplotlib.
    """
    try:
        from matplotlib.figure import Figure  # pyright: ignore[reportMissingImports]  # of the extra "bench"
    except ImportError as error:
        raise Missing("no pictures: matplotlib is not installed (pip install 'leasequeue[bench]')") from error
    # A Figure of its own, not pyplot: no window system is asked for and no global state is left.
    figure = Figure(figsize=(9, 0.8 + 0.4 * max(4, len(run.peers))), layout="constrained")
    lines = _series(run, workload)
    if lines:
        _lines(figure.subplots(), lines)
    else:
        _bars(figure, run, workload)
    figure.suptitle(f"{workload.title} ({run.date}, {run.machine.get('cores', '?')} cores)")
    figure.savefig(path, dpi=110)


def _series(run: Run, workload: Workload) -> dict[str, list[float]]:
    """By peer, the median over the rounds at each point of time."""
    found: dict[str, list[list[float]]] = {}
    for record in run.records:
        if record.workload == workload.name and record.series:
            found.setdefault(record.peer, []).append(record.series)
    return {
        peer: [statistics.median(v for v in values if v is not None) for values in zip_longest(*rounds)]
        for peer, rounds in found.items()
    }


def _lines(axes: Any, lines: dict[str, list[float]]) -> None:
    for peer, values in lines.items():
        axes.plot([10 * (i + 1) for i in range(len(values))], values, marker="o", markersize=3, label=peer)
    axes.set_xlabel("seconds")
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")


def _bars(figure: Any, run: Run, workload: Workload) -> None:
    names = [name for name in run.peers if any(r.workload == workload.name and r.peer == name for r in run.records)]
    every = figure.subplots(1, len(workload.columns), sharey=True, squeeze=False)[0]
    for axes, column in zip(every, workload.columns, strict=True):
        found = medians(run.records, workload.name, column.key)
        values = [found.get(name, 0.0) for name in names]
        colors = ["tab:blue" if name.startswith(run.reference) else "tab:gray" for name in names]
        bars = axes.barh(names, values, color=colors)
        axes.bar_label(bars, [f"{found[n]:,.{column.digits}f}" if n in found else "–" for n in names], padding=3)
        axes.set_title(column.heading + ("" if column.more_is_better else " (less is better)"), fontsize="medium")
        axes.margins(x=0.25)
        axes.tick_params(axis="x", labelsize="small")
    every[0].invert_yaxis()
