"""``leasequeue status``."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from leasequeue.cli.database import database_options, desk

if TYPE_CHECKING:
    from rich.console import Console

    from leasequeue.ops import status as ops
    from leasequeue.ops.asking import Desk


@click.command()
@database_options
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--watch", type=click.FloatRange(0.2, 3600.0), metavar="SECONDS", help="Again and again, until Ctrl-C.")
def status(url: str | None, schema: str | None, as_json: bool, watch: float | None) -> None:
    """Workers, queues, failures of the last hour, and what needs attention.

    Cheap on any table: nothing big is counted; a number that ends with + is "at least".
    """
    from leasequeue.errors import DatabaseUnavailable

    while watch is not None:
        try:
            with desk(url, schema) as open_desk:
                _print_one(open_desk, as_json, clear=True)
        except DatabaseUnavailable as error:
            click.echo(f"leasequeue: {error}", err=True)
        time.sleep(watch)
    with desk(url, schema) as open_desk:
        _print_one(open_desk, as_json, clear=False)


def _print_one(open_desk: Desk, as_json: bool, *, clear: bool) -> None:
    from leasequeue.cli import render
    from leasequeue.ops import status as ops

    found = ops.status(open_desk)
    if as_json:
        render.echo_json(found)
        return
    if clear:
        click.clear()
    show(found, render.console())


def show(found: ops.Status, out: Console) -> None:
    """Print for people."""
    from rich.text import Text

    from leasequeue.cli import render

    out.print(
        Text(
            render.clean(
                f"database {found.database} · schema {found.schema}, version {found.schema_version} · {render.time(found.at)}"
            )
        )
    )
    _attention(found, out)
    _queues(found, out)
    _workers(found, out)
    _failures(found, out)


def _attention(found: ops.Status, out: Console) -> None:
    from rich.text import Text

    from leasequeue.cli import render

    loud = ("unserved", "not_read", "expired_leases", "schedule", "orphans")
    for warning in found.warnings:
        style = "bold red" if warning.kind in loud else "yellow"
        out.print(Text(f"! {render.clean(warning.message, keep_lines=False)}", style=style))
    out.print()


def _queues(found: ops.Status, out: Console) -> None:
    from rich.text import Text

    from leasequeue.cli import render

    def served(queue: ops.Queue) -> Text:
        if queue.paused_at is not None:
            return Text(f"{queue.workers} (paused)", style="yellow")
        if not queue.workers:
            return Text("NONE", style="bold red")
        return Text(f"{queue.workers}, {queue.slots} slots")

    rows = [
        (
            queue.name,
            render.count(queue.ready, capped="ready" in queue.capped),
            render.duration(queue.oldest_ready_seconds),
            render.count(queue.scheduled, capped="scheduled" in queue.capped),
            render.count(queue.leased, capped="leased" in queue.capped),
            render.count(queue.suspect, capped="suspect" in queue.capped),
            render.count(queue.waiting, capped="waiting" in queue.capped),
            render.count(queue.blocked, capped="blocked" in queue.capped),
            served(queue),
        )
        for queue in found.queues
    ]
    columns = ("queue", ">ready", ">oldest", ">scheduled", ">leased", ">suspect", ">at a limit", ">blocked", "workers")
    if rows:
        title = "Queues" + (f" (the first {len(rows)})" if found.queues_capped else "")
        out.print(render.table(title, columns, rows), "")
    else:
        out.print("No queue has live jobs, and no worker serves one.", "")


def _workers(found: ops.Status, out: Console) -> None:
    from rich.text import Text

    from leasequeue.cli import render

    rows = [
        (
            f"{worker.host}:{worker.pid}",
            render.duration(worker.age_seconds),
            Text(render.duration(worker.silent_seconds) + ("" if worker.live else " EXPIRED"),
                 style="" if worker.live else "bold red"),
            f"{worker.running}/{worker.slots}",
            f"{worker.completed:,}",
            f"{worker.failed:,}",
            f"{worker.refused:,}",
            len(worker.tasks),
            worker.release or worker.version,
            ", ".join(
                f"{name}={slots}" + (f":high={worker.reserved[name]}" if worker.reserved.get(name) else "")
                for name, slots in worker.queues.items()
            ),
        )
        for worker in found.workers
    ]  # fmt: skip
    columns = ("worker", ">up", ">renewed", ">running", ">done", ">failed", ">refused", ">tasks", "release", "queues")
    if rows:
        title = "Workers" + (f" (the first {len(rows)})" if found.workers_capped else "")
        out.print(render.table(title, columns, rows), "")
    elif "workers" not in found.not_read:
        out.print("No worker is running: start one with `leasequeue worker APP`.", "")


def _failures(found: ops.Status, out: Console) -> None:
    from leasequeue.cli import render

    rows = [
        (
            each.task,
            f"{each.failures:,}",
            f"{each.jobs:,}",
            render.since(each.last_at, found.at),
            f"{each.last_type}: {each.last_message}",
        )
        for each in found.failures
    ]
    if rows:
        cut = " (the newest only)" if found.failures_capped else ""
        columns = ("task", ">attempts", ">jobs", ">last", "last error")
        out.print(render.table(f"Failed attempts of the last hour{cut}", columns, rows))
    elif "failures" not in found.not_read:
        out.print("No attempt has failed within the last hour.")
