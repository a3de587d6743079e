"""A run as Markdown: one table per workload, medians over the rounds, each with its ratio to the reference."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.compare.record import Record, medians, ratios
from benchmarks.compare.workload import Column, Workload


@dataclass
class Run:
    """All that a report tells.

    Attributes:
        date: of the run, as in 2026-01-31.
        command: what repeats it.
        machine: facts by name.
        peers: by name, (version, settings), in the order of the tables.
        skipped: by name, why a peer was not measured at all.
        reference: which peer the ratios are to.
    """

    date: str
    command: str
    machine: dict[str, str]
    reference: str
    rounds: int
    peers: dict[str, tuple[str, str]] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    records: list[Record] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        return {
            "date": self.date, "command": self.command, "machine": self.machine, "reference": self.reference,
            "rounds": self.rounds, "skipped": self.skipped,
            "peers": {name: {"version": version, "settings": what} for name, (version, what) in self.peers.items()},
            "records": [record.as_json() for record in self.records],
        }  # fmt: skip

    @classmethod
    def from_json(cls, told: dict[str, Any]) -> Run:
        """What ``as_json`` made."""
        peers = {name: (each["version"], each["settings"]) for name, each in told["peers"].items()}
        records = [Record(**record) for record in told["records"]]
        return cls(**{**told, "peers": peers, "records": records})


def markdown(run: Run, workloads: Iterable[Workload]) -> str:
    """The whole report; workloads of which the run has nothing are left out."""
    lines = [f"# Benchmarks of {run.date}", "", f"`{run.command}`", ""]
    lines += [f"- {name}: {value}" for name, value in run.machine.items()]
    lines += [
        "",
        f"Medians of {run.rounds} rounds, in each of which all took their turn; in parentheses the ratio to {run.reference} "
        "in the same run.",
        "",
    ]
    told = [workload for workload in workloads if any(record.workload == workload.name for record in run.records)]
    for workload in told:
        lines += _section(run, workload)
    lines += ["## Versions and settings", ""]
    lines += _table(["", "version", "settings"], [[name, *each] for name, each in run.peers.items()], numeric=False)
    lines += [f"Not measured: {name}: {why}." for name, why in run.skipped.items()]
    return "\n".join(lines).rstrip() + "\n"


def _section(run: Run, workload: Workload) -> list[str]:
    columns = {column.key: medians(run.records, workload.name, column.key) for column in workload.columns}
    took_part = [name for name in run.peers if any(r.workload == workload.name and r.peer == name for r in run.records)]
    rows = [[name, *(cell(columns[c.key], name, c, run.reference) for c in workload.columns)] for name in took_part]
    lines = [f"## {workload.title}", "", workload.note, ""]
    lines += _table(["", *(column.heading for column in workload.columns)], rows)
    for name in took_part:
        reasons = [why for r in run.records if r.workload == workload.name and r.peer == name for why in r.reasons]
        lines += [f"- {name}: {why}" for why in dict.fromkeys(reasons)]
    if lines[-1]:
        lines.append("")
    return [*lines, f"![{workload.title}]({run.date}-{workload.name}.png)", ""]


def cell(by_peer: dict[str, float], name: str, column: Column, reference: str) -> str:
    """``12,345 (0.41)``; of the reference itself without a ratio; a dash where there is no figure."""
    if name not in by_peer:
        return "–"
    text = f"{by_peer[name]:,.{column.digits}f}"
    ratio = ratios(by_peer, reference).get(name)
    return text if ratio is None or name == reference or not column.compared else f"{text} ({ratio:.2f})"


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]], *, numeric: bool = True) -> list[str]:
    rule = ["---", *("---:" if numeric else "---" for _ in heads[1:])]
    return [f"| {' | '.join(row)} |" for row in (heads, rule, *rows)] + [""]
