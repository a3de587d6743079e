"""leasequeue and its peers, in turn, in one run on one machine: tables and pictures under ``benchmarks/results/``.

    python -m benchmarks [WORKLOAD ...] [--peers graphile-worker,pgqueuer] [--rounds 3] [--jobs 200000]

Peers are installed once, each into a folder of its own under .leasequeue/peers.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime as dt
import json
import sys
import traceback
from pathlib import Path

from benchmarks import compare, ground, peers
from benchmarks.compare import machine, plot
from benchmarks.compare.record import Record
from benchmarks.compare.report import Run, markdown
from benchmarks.compare.workload import Found, Ground, Words, Workload
from benchmarks.peers.protocol import Cannot, Peer

RESULTS = Path(__file__).parent / "results"


def main(argv: list[str] | None = None) -> int:
    words = _parser().parse_args(argv)
    names = [name for name in words.peers.split(",") if name]
    try:
        chosen, workloads = peers.choose(names), compare.choose(words.workload)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    sizes = Words(words.jobs, words.seconds, words.sustained_seconds, words.pickups, words.singles, words.many)
    # With --json the standard output is the program's; progress goes where a terminal shows it all the same.
    with contextlib.redirect_stdout(sys.stderr):
        run = measure(chosen, workloads, sizes, words.rounds, set(names), _command(argv))
        folder: Path = words.out
        _write(run, workloads, folder)
    if words.json:
        print(json.dumps(run.as_json(), indent=1))
    return 0


def measure(
    chosen: list[Peer], workloads: list[Workload], sizes: Words, rounds: int, named: set[str], command: str = ""
) -> Run:
    """Install what is missing, and run each workload on each peer in each round; progress goes to the standard output."""
    run = Run(dt.date.today().isoformat(), command, {}, peers.REFERENCE, rounds)  # noqa: DTZ011  # whoever runs it says "today"
    able: list[Peer] = []
    for peer in chosen:
        try:
            peer.install(_say)
            run.peers[peer.name] = (peer.version(), peer.settings)
            able.append(peer)
        except Cannot as error:
            run.skipped[peer.name] = str(error)
            _say(f"{peer.name}: skipped, {error}")
    with ground.server() as running:
        run.machine = machine.facts(running.version)
        for number in range(1, rounds + 1):
            # Whoever is always the last would always have the fullest caches and the hottest machine.
            turn = (number - 1) % len(able)
            for workload in workloads:
                for peer in [*able[turn:], *able[:turn]]:
                    if workload.variants or not peer.variant or peer.name in named:
                        run.records.append(_one(workload, peer, Ground(running), sizes, number))
    return run


def _one(workload: Workload, peer: Peer, on: Ground, sizes: Words, number: int) -> Record:
    found, reasons = Found(), []
    try:
        workload.run(peer, on, sizes, found)
    except Cannot as error:
        reasons.append(str(error))
    except Exception as error:  # noqa: BLE001  # hours of other figures must not be lost with it
        traceback.print_exc()
        reasons.append(f"the measurement failed: {type(error).__name__}: {error}")
    told = [f"{c.heading} {found.figures[c.key]:,.{c.digits}f}" for c in workload.columns if c.key in found.figures]
    _say(f"round {number}, {workload.name}, {peer.name}: {'; '.join([*told, *reasons])}")
    return Record(workload.name, peer.name, number, found.figures, found.series, reasons)


def _write(run: Run, workloads: list[Workload], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{run.date}.json").write_text(json.dumps(run.as_json(), indent=1) + "\n")
    (folder / f"{run.date}.md").write_text(markdown(run, workloads))
    _say(f"written: {folder / f'{run.date}.md'}")
    try:
        for workload in workloads:
            plot.draw(run, workload, folder / f"{run.date}-{workload.name}.png")
    except plot.Missing as error:
        _say(str(error))


def _say(text: str) -> None:
    print(f"{dt.datetime.now():%H:%M:%S} {text}", flush=True)  # noqa: DTZ005  # for whoever watches, on their clock


def _command(argv: list[str] | None) -> str:
    return " ".join(["python -m benchmarks", *(sys.argv[1:] if argv is None else argv)])


def _parser() -> argparse.ArgumentParser:
    sizes = Words()
    known = ", ".join(workload.name for workload in compare.WORKLOADS)
    parser = argparse.ArgumentParser("python -m benchmarks", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("workload", nargs="*", metavar="WORKLOAD", help=f"of {known}; all, if none is named")
    parser.add_argument("--peers", default="", help=f"of {', '.join(peer.name for peer in peers.PEERS)}; all, if none")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=sizes.jobs, help="the largest backlog of a drain")
    parser.add_argument("--seconds", type=float, default=sizes.seconds, help="how long a snapshot is held")
    parser.add_argument("--sustained-seconds", type=float, default=sizes.sustained_seconds)
    parser.add_argument("--pickups", type=int, default=sizes.pickups, help="jobs whose latency is measured")
    parser.add_argument("--singles", type=int, default=sizes.singles, help="jobs enqueued one by one")
    parser.add_argument("--many", type=int, default=sizes.many, help="jobs enqueued in one call")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the report")
    parser.add_argument("--json", action="store_true", help="the run as JSON on the standard output")
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
