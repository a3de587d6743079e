"""``leasequeue queues``: what each queue holds, and the hands on it."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING

import click

from leasequeue.cli.database import database_options, desk
from leasequeue.cli.leases import read_duration, who
from leasequeue.cli.listing import Listing
from leasequeue.cli.programs import carry_out, target
from leasequeue.moment import say

if TYPE_CHECKING:
    from rich.text import Text

    from leasequeue.ops import queues as ops
    from leasequeue.ops.attention import Attention
    from leasequeue.ops.status import Queue


@click.group(cls=Listing)
def queues() -> None:
    """What each queue holds, what limits it, and who serves it: all queues, or the one of NAME.

    The options of `list` and `show` may be given without them. A number that ends with + is "at least". A DURATION is 30s,
    5m, 2h, 1d, or a number of seconds.
    """


@queues.command("list", short_help="All queues (as without a command).")
@database_options
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def list_(url: str | None, schema: str | None, as_json: bool) -> None:
    """All queues: ready, scheduled, waiting at a limit, leased; the limit on the queue; the workers that serve it."""
    from leasequeue.cli import render
    from leasequeue.ops import queues as ops

    with desk(url, schema) as open_desk:
        found = ops.list_queues(open_desk)
    if as_json:
        render.echo_json(found)
        return
    _attention(found.warnings)
    if not found.rows:
        render.console().print("No queue has live jobs, and no worker serves one.")
        return
    _print(found.rows, found.at)
    if found.capped:
        click.echo(f"There are more: these are {len(found.rows):,}.", err=True)


@queues.command(short_help="One queue.")
@database_options
@click.argument("name")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def show(url: str | None, schema: str | None, name: str, as_json: bool) -> None:
    """One queue. Any name is answered: a queue is there as soon as a job names it."""
    from leasequeue.cli import render
    from leasequeue.ops import queues as ops
    from leasequeue.ops.status import Queue

    with desk(url, schema) as open_desk:
        found = ops.list_queues(open_desk)
    row = next((row for row in found.rows if row.queue.name == name), None) or ops.QueueRow(Queue(name), None)
    if as_json:
        render.echo_json(row)
        return
    _attention(tuple(each for each in found.warnings if each.subject == name))
    _print((row,), found.at)


def _attention(warnings: tuple[Attention, ...]) -> None:
    from leasequeue.cli import render

    for warning in warnings:
        click.echo(f"! {render.clean(warning.message, keep_lines=False)}", err=True)


def _print(rows: tuple[ops.QueueRow, ...], at: dt.datetime | None) -> None:
    from rich.text import Text

    from leasequeue.cli import render

    def served(queue: Queue) -> Text:
        return Text(f"{queue.workers}, {queue.slots} slots") if queue.workers else Text("NONE", style="bold red")

    def paused(queue: Queue) -> Text:
        if queue.paused_at is None:
            return Text("")
        until = f", resumes {render.since(queue.resume_at, at)}" if queue.resume_at else ""
        return Text(f"{render.since(queue.paused_at, at)}{until}", style="yellow")

    def count(queue: Queue, what: str) -> str:
        return render.count(getattr(queue, what), capped=what in queue.capped)

    table = [
        (queue.name, count(queue, "ready"), count(queue, "scheduled"), count(queue, "waiting"),
         count(queue, "blocked"), count(queue, "leased"), count(queue, "suspect"),
         render.duration(queue.oldest_ready_seconds), limit or "", paused(queue), served(queue))
        for queue, limit in ((row.queue, row.limit) for row in rows)
    ]  # fmt: skip
    columns = (
        "queue",
        ">ready",
        ">scheduled",
        ">at a limit",
        ">blocked",
        ">leased",
        ">suspect",
        ">oldest",
        "limit",
        "paused",
        "workers",
    )
    render.console().print(render.table("", columns, table))


@queues.command("pause", short_help="Let no worker claim from it.")
@database_options
@click.argument("name")
@click.option("--for", "seconds", metavar="DURATION", callback=read_duration, help="Resume after that by itself.")
@click.option("--until", "until", metavar="TIME", help="Resume then, as in 2026-11-30T21:00:00+02:00.")
@click.option("--by", metavar="WHO", help="Who does it; otherwise user@host.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def pause(
    url: str | None,
    schema: str | None,
    name: str,
    seconds: dt.timedelta | None,
    until: str | None,
    by: str | None,
    as_json: bool,
) -> None:
    """Let no worker claim from a queue. What runs goes on, jobs are enqueued as ever; workers learn it within a second.

    Of a queue that is paused already, the time at which it resumes becomes the one given here, or none.
    """
    from leasequeue.cli import render
    from leasequeue.ops import queues as ops

    if seconds is not None and until is not None:
        raise click.UsageError("give --for or --until, not both")
    resume_at = None if until is None else _time(until)
    span = None if seconds is None else seconds.total_seconds()
    with desk(url, schema) as open_desk:
        program = ops.pause(target(), open_desk.schema, name, by or who(), resume_at=resume_at, seconds=span)
        ran, resumes = carry_out(open_desk, program)
    if as_json:
        render.echo_json({"queue": name, "changed": ran, "paused": True, "resume_at": resumes})
        return
    then = f"; it resumes by itself at {say(resumes)}" if resumes else ""
    click.echo(f"queue {name!r} {'is' if ran else 'was already'} paused{then}")


@queues.command("resume", short_help="Let workers claim from it again.")
@database_options
@click.argument("name")
@click.option("--by", metavar="WHO", help="Who does it; otherwise user@host.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def resume(url: str | None, schema: str | None, name: str, by: str | None, as_json: bool) -> None:
    """Let workers claim from a queue again; they learn it within a second."""
    from leasequeue.cli import render
    from leasequeue.ops import queues as ops

    with desk(url, schema) as open_desk:
        changed = carry_out(open_desk, ops.resume(target(), open_desk.schema, name, by or who()))
    if as_json:
        render.echo_json({"queue": name, "changed": changed, "paused": False, "resume_at": None})
        return
    click.echo(f"queue {name!r} {'is resumed' if changed else 'was not paused'}")


def _time(text: str) -> dt.datetime:
    try:
        found = dt.datetime.fromisoformat(text)
    except ValueError:
        found = None
    if found is None or found.utcoffset() is None:
        raise click.UsageError(f"--until {text!r}: write a time with its zone, as in 2026-11-30T21:00:00+02:00")
    return found
