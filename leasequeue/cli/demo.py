"""``leasequeue demo``: the main job on real input, while its processes are killed.

Two supervised services, blue and green, read the lines of a file, one job a line. Blue is killed with SIGKILL on the way,
all of it at once, as a machine that loses power; green is stopped with SIGTERM as by a deploy; both come back. What is
shown at the end is read back from the database.
"""

from __future__ import annotations

import itertools
import json
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from leasequeue import embedded
from leasequeue.db.connect import Link
from leasequeue.db.demo import DROP_DATABASE, demo_statements
from leasequeue.db.urls import Settings
from leasequeue.errors import LeaseQueueError
from leasequeue.ops.migrate import migrate

DEFAULT_INPUT = Path(__file__).with_name("demo.log")
TTL_SECONDS = 3.0
STALLED_SECONDS = 60.0


@dataclass
class Report:
    """What was read back. ``lost`` and ``doubled`` are counted in the table of effects."""

    lines: int
    effects: int = 0
    lost: int = 0
    doubled: int = 0
    finished: int = 0
    not_finished: int = 0
    run_again: int = 0
    recovered_seconds: float = 0.0
    advisory_locks: int = 0
    seconds: float = 0.0
    jobs_per_second: float = 0.0

    @property
    def wrong(self) -> list[str]:
        """What is not as promised."""
        found = []
        if self.effects != self.lines:
            found.append(f"{self.effects} effects for {self.lines} lines")
        if self.lost or self.doubled:
            found.append(f"{self.lost} lines lost, {self.doubled} doubled")
        if self.finished != self.lines or self.not_finished:
            found.append(f"{self.finished} jobs succeeded, {self.not_finished} did not")
        if self.advisory_locks:
            found.append(f"{self.advisory_locks} advisory locks seen")
        if self.recovered_seconds > TTL_SECONDS + 1.0:
            found.append(f"blue's jobs ran again only after {self.recovered_seconds:.1f} s")
        return found


class Service:
    """One ``leasequeue worker`` in a process group of its own.

    ``name`` is its release, which its worker row and its effects carry.
    """

    def __init__(self, name: str, url: str, log: Path) -> None:
        self.name = name
        self._url = url
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        words = ["worker", "leasequeue.cli.demo_app:lq", "--queues", "lines=8", "--ttl", str(TTL_SECONDS)]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "leasequeue.cli.main", *words],
                env={**os.environ, "LEASEQUEUE_URL": self._url, "LEASEQUEUE_RELEASE": self.name},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def kill(self) -> None:
        """SIGKILL to the supervisor and all its processes at once."""
        self._signal_all(signal.SIGKILL)

    def stop(self) -> None:
        """SIGTERM to the whole group, as systemd sends it, and the end of it."""
        self._signal_all(signal.SIGTERM)

    def end(self) -> None:
        """Whatever state it is in."""
        if self._process is not None and self._process.poll() is None:
            self._signal_all(signal.SIGKILL)

    def _signal_all(self, number: signal.Signals) -> None:
        assert self._process is not None
        os.killpg(self._process.pid, number)
        self._process.wait(40)

    def check(self) -> None:
        """Raise where it has ended without being told to."""
        if self._process is not None and self._process.poll() not in (None, 0, -signal.SIGKILL):
            raise LeaseQueueError(
                f"service {self.name} ended with status {self._process.returncode}; its log:\n{self._log.read_text()[-3000:]}"
            )


class Run:
    """One demonstration on one database.

    Args:
        say: shows a step to the user.
        show: shows how many effects there are.
    """

    def __init__(self, url: str, lines: list[str], say: Callable[[str], None], show: Callable[[int], None]) -> None:
        self._link = Link(Settings.parse(url), application_name="leasequeue demo", bound_seconds=30.0)
        self._sql = demo_statements("public")
        self._lines = lines
        self._say = say
        self._show = show
        self._url = url
        self.report = Report(lines=len(lines))
        self._folder = tempfile.TemporaryDirectory(prefix="leasequeue-demo-")
        logs = Path(self._folder.name)
        self._blue = Service("blue", url, logs / "blue.log")
        self._green = Service("green", url, logs / "green.log")

    def __enter__(self) -> Run:
        self._link.connect()
        return self

    def __exit__(self, *_: object) -> None:
        self._blue.end()
        self._green.end()
        self._link.close()
        self._folder.cleanup()

    def play(self) -> Report:
        """Enqueue, start, kill, stop, restart, and read back."""
        total = len(self._lines)
        self._link.run(self._sql.create_effects)
        self._enqueue()
        self._say(f"{total:,} jobs enqueued in one transaction; starting the services blue and green")
        self._blue.start()
        self._green.start()
        self._until(lambda done: done >= total * 0.35)
        self._kill_blue()
        self._until(lambda done: done >= total * 0.65)
        self._say("stopping green with SIGTERM, then starting both again")
        self._green.stop()
        self._blue.start()
        self._green.start()
        self._until(lambda done: done >= total)
        self._blue.stop()
        self._green.stop()
        self._read_back()
        return self.report

    def _enqueue(self) -> None:
        from leasequeue.cli.demo_app import lq, read_line

        lq.configure(url=self._url)
        with lq.begin() as conn:
            lq.enqueue_many(conn, [read_line.call(number, line) for number, line in enumerate(self._lines, 1)])
        lq.dispose()

    def _until(self, reached: Callable[[int], bool]) -> None:
        last, since = -1, time.monotonic()
        while True:
            done, locks = self._link.run(self._sql.progress)[0]
            self.report.advisory_locks += locks
            self._show(done)
            if reached(done):
                return
            if done != last:
                last, since = done, time.monotonic()
            self._blue.check()
            self._green.check()
            if time.monotonic() - since > STALLED_SECONDS:
                raise LeaseQueueError(
                    f"no line was finished for {STALLED_SECONDS:.0f} s at {done:,} of {len(self._lines):,}"
                )
            time.sleep(0.1)

    def _kill_blue(self) -> None:
        self._blue.kill()
        killed = time.monotonic()
        term = self._link.run(self._sql.newest_term)[0][0]
        held = [row[0] for row in self._link.run(self._sql.held_by, {"service": "blue"})]
        self._say(f"blue is killed with SIGKILL, while it holds {len(held)} jobs (leases of {TTL_SECONDS:g} s)")
        while held and self._link.run(self._sql.taken_over, {"ids": held, "term": term})[0][0] < len(held):
            if time.monotonic() - killed > STALLED_SECONDS:
                break
            self._show(self._link.run(self._sql.progress)[0][0])
            time.sleep(0.05)
        self.report.recovered_seconds = round(time.monotonic() - killed, 2)
        self._say(f"green has taken over blue's jobs after {self.report.recovered_seconds:.1f} s")

    def _read_back(self) -> None:
        report = self.report
        row = self._link.run(self._sql.read_back)[0]
        report.effects, distinct, report.finished, report.not_finished, seconds, report.run_again = row
        report.lost = report.lines - distinct
        report.doubled = report.effects - distinct
        report.seconds = round(seconds, 1)
        report.jobs_per_second = round(report.effects / seconds, 1) if seconds else 0.0


@click.command()
@click.option(
    "--input", "path", type=click.Path(exists=True, dir_okay=False, path_type=Path), default=DEFAULT_INPUT,
    help="A log or CSV file; a job is made of each line. Default: the log of a package manager that comes along.",
)  # fmt: skip
@click.option(
    "--jobs", type=click.IntRange(100), default=20_000, show_default=True, help="Lines to run; the file repeats."
)
@click.option("--folder", type=click.Path(file_okay=False, path_type=Path), default=None, help="Default: ./.leasequeue")
@click.option("--json", "as_json", is_flag=True, help="The result as JSON, for programs.")
def demo(path: Path, jobs: int, folder: Path | None, as_json: bool) -> int:
    """Run the main job on real input, with processes killed on the way.

    Starts an embedded PostgreSQL and two services, kills one with SIGKILL and stops the other with SIGTERM, and reads
    back what came of it. Exit status 1 if anything is lost, doubled or late.

    \b
    leasequeue demo
    leasequeue demo --input access.log --jobs 5000
    """
    lines = [line for line in path.read_text(errors="replace").replace("\0", " ").splitlines() if line.strip()]
    if not lines:
        raise click.BadParameter(f"{path} holds no line of text", param_hint="--input")
    wanted = list(itertools.islice(itertools.cycle(lines), jobs))
    console = Console(stderr=as_json, soft_wrap=True)
    console.print(f"starting an embedded PostgreSQL; {jobs:,} jobs from {len(lines):,} lines of {path.name}")
    with embedded.start(folder, progress=console.print) as server:
        name = f"demo_{os.getpid()}_{secrets.token_hex(3)}"
        url = server.ensure_database(name)
        admin = Link(Settings.parse(server.url()), application_name="leasequeue demo", bound_seconds=30.0)
        try:
            report = _play(url, wanted, console)
        finally:
            admin.connect()
            admin.run(DROP_DATABASE.format(name=name))
            admin.close()
    if as_json:
        click.echo(json.dumps(asdict(report) | {"ok": not report.wrong, "wrong": report.wrong}, indent=2))
    else:
        console.print(_table(report))
        for problem in report.wrong:
            console.print(f"WRONG: {problem}", style="bold red")
        if not report.wrong:
            console.print("every line had its effect once", style="green")
    return 1 if report.wrong else 0


def _play(url: str, lines: list[str], console: Console) -> Report:
    migrate(Settings.parse(url), "public", lambda _: None)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        bar = progress.add_task("lines", total=len(lines))

        def show(done: int) -> None:
            progress.update(bar, completed=done)

        with Run(url, lines, progress.console.print, show) as run:
            return run.play()


def _table(report: Report) -> Table:
    table = Table(title="read back from the database", title_justify="left")
    table.add_column("what")
    table.add_column("found", justify="right")
    rows: list[tuple[str, Any]] = [
        ("lines in", f"{report.lines:,}"),
        ("effects out", f"{report.effects:,}"),
        ("lost", report.lost),
        ("doubled", report.doubled),
        ("jobs that ran again", report.run_again),
        (f"blue's jobs ran again after (ttl {TTL_SECONDS:g} s)", f"{report.recovered_seconds:.1f} s"),
        ("advisory locks seen in pg_locks", report.advisory_locks),
        ("jobs per second, with the kill, the stop and the restarts", f"{report.jobs_per_second:,.0f}"),
    ]
    for what, found in rows:
        table.add_row(what, str(found))
    return table
