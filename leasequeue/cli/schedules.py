"""``leasequeue schedules``: what is due when, what became of it, and the hands on it."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from leasequeue.cli.database import database_options, desk, desk_at, where
from leasequeue.cli.leases import read_duration, who
from leasequeue.cli.listing import Listing
from leasequeue.cli.programs import carry_out, target
from leasequeue.errors import ConfigurationError
from leasequeue.moment import say

if TYPE_CHECKING:
    from leasequeue.ops import timetable as ops


@click.group(cls=Listing)
def schedules() -> None:
    """What is due when, and what became of it: all schedules, or the one of NAME with its ledger.

    The options of `list` and `show` may be given without them. A schedule is live, paused, ended (nothing is due any more),
    overdue, vanished (no live worker registers it, or knows its task) or broken (its times cannot be read). A DURATION is
    30s, 5m, 2h, 1d, or a number of seconds.

    One that is named like a command is shown by `leasequeue schedules show NAME`, one whose name begins with a dash by
    `leasequeue schedules show -- NAME`.
    """


@schedules.command("list", short_help="All schedules (as without a command).")
@database_options
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def list_(url: str | None, schema: str | None, as_json: bool) -> None:
    """All schedules: next, last fired, started and succeeded, missed, lateness."""
    from leasequeue.cli import render
    from leasequeue.ops import timetable as ops

    with desk(url, schema) as open_desk:
        rows = ops.list_schedules(open_desk)
    if as_json:
        render.echo_json(rows)
        return
    out = render.console()
    if not rows:
        out.print("There is no schedule: write @lq.schedule(...) above a task, or `leasequeue schedules add`.")
        return
    _problems(rows)
    out.print(_table(rows))
    if len(rows) == ops.LIMIT:
        click.echo(f"There may be more: these are {ops.LIMIT:,}, the overdue ones among them.", err=True)


@schedules.command()
@database_options
@click.argument("name")
@click.option("--ticks", default=20, show_default=True, type=click.IntRange(1, 1000), help="Rows of the ledger.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def show(url: str | None, schema: str | None, name: str, ticks: int, as_json: bool) -> None:
    """One schedule, with the last rows of its ledger."""
    from leasequeue.cli import render
    from leasequeue.ops import timetable as ops

    with desk(url, schema) as open_desk:
        found = ops.show_schedule(open_desk, name, ticks)
    if as_json:
        render.echo_json(found)
        return
    out = render.console()
    _problems([found.row])
    facts = _facts(found.row)
    width = max(len(key) for key, _ in facts)
    for key, text in facts:
        # A name of two lines must not pass for two facts.
        out.print(f"{key:<{width}}  {render.clean(text, keep_lines=key == 'arguments')}", soft_wrap=True)
    rows = [
        (render.time(tick.due_at), tick.outcome, render.duration(tick.late_seconds), tick.job_id, tick.job, tick.reason)
        for tick in found.ticks
    ]
    out.print("", render.table("Ledger", ("due", "outcome", ">late", ">job", "job is", "reason"), rows))


def _problems(rows: Sequence[ops.ScheduleRow]) -> None:
    from leasequeue.cli import render
    from leasequeue.ops import timetable as ops

    for _, sentence in ops.problems(rows):
        click.echo(f"! {render.clean(sentence, keep_lines=False)}", err=True)


def _table(rows: Sequence[ops.ScheduleRow]) -> Any:
    from rich.text import Text

    from leasequeue.cli import render

    loud = ("broken", "vanished", "overdue")
    return render.table(
        "",
        ("schedule", "state", "next", "fired", "started", "succeeded", ">late", ">missed", "when"),
        [
            (row.name, Text(row.state, style="bold red" if row.state in loud else ""), render.since(row.next_at, row.at),
             render.since(row.last_fired_at, row.at), render.since(row.last_started_at, row.at),
             render.since(row.last_succeeded_at, row.at), render.duration(row.late_seconds), row.missed or "", row.when)
            for row in rows
        ],
    )  # fmt: skip


def _facts(row: ops.ScheduleRow) -> list[tuple[str, str]]:
    from leasequeue.cli.render import duration, pretty, since, time

    def moment(at: dt.datetime | None) -> str:
        return f"{time(at)} ({since(at, row.at)})" if at else ""

    written = f"in the code, release {row.release or '(not named)'}, deployed {time(row.deployed_at)}"
    facts = {
        "schedule": row.name,
        "state": row.state,
        "when": row.when,
        "task": row.task,
        "queue": row.queue,
        "priority": str(row.priority) if row.priority else "",
        "arguments": pretty(row.args) if row.args else "",
        "catch up": row.catch_up,
        "overlap": row.overlap,
        "next": moment(row.next_at),
        "last fired": moment(row.last_fired_at),
        "last started": moment(row.last_started_at),
        "last succeeded": moment(row.last_succeeded_at),
        "late at most": duration(row.late_seconds),
        "missed": f"{row.missed} within a day" if row.missed else "",
        "paused": moment(row.paused_at),
        "defined": written if row.decorated else f"at run time, version {row.version}",
    }
    return [(key, text) for key, text in facts.items() if text]


# The hands


def _when_options(function: Any) -> Any:
    for option in (
        click.option(
            "--jitter", metavar="DURATION", callback=read_duration, help="Available up to this long after it is due."
        ),
        click.option(
            "--overlap", type=click.Choice(["queue", "skip"]), help="skip: not while the job of an earlier time lives."
        ),
        click.option(
            "--catch-up-within", metavar="DURATION", callback=read_duration, help="What is later does not run."
        ),
        click.option(
            "--catch-up", type=click.Choice(["latest", "all", "none"]), help="What runs of what was not fired in time."
        ),
        click.option("--priority", type=click.IntRange(-100, 100), help="Of its jobs; the greatest is run first."),
        click.option("--queue", metavar="NAME", help="Of its jobs."),
        click.option("--args", "arguments", metavar="JSON", help="The task's arguments, an object."),
        click.option("--tz", metavar="ZONE", help="Of the cron's local times, as in Europe/Kyiv; UTC if never named."),
        click.option("--every", metavar="DURATION", callback=read_duration, help="Instead of a cron."),
        click.option("--cron", metavar="FIELDS", help="Five fields, or six with seconds first, or @hourly."),
    ):
        function = option(function)
    return function


@schedules.command(short_help="Add a schedule.")
@database_options
@click.argument("name")
@click.option("--task", required=True, metavar="NAME", help="The name of the task, as jobs carry it.")
@_when_options
def add(url: str | None, schema: str | None, name: str, task: str, **words: Any) -> None:
    """Add a schedule at run time. Its arguments are checked by the worker that runs it."""
    from leasequeue import naming
    from leasequeue.db.schedules import Definition
    from leasequeue.ops import schedules as ops

    naming.check("a schedule's name", name)
    changes, times = _changes(words | {"task": task})
    if not times.keys() & {"cron", "every"}:
        raise click.UsageError("give one of --cron and --every")
    made: dict[str, Any] = {"args": "{}", "queue": "default", "priority": 0, "spec": ops.retimed(None, times)} | changes
    with desk(url, schema) as open_desk:
        first = carry_out(open_desk, ops.add(target(), open_desk.schema, Definition(name=name, **made), who()))
    click.echo(f"schedule {name!r} is added; first due {say(first)}")


@schedules.command(short_help="Change a schedule that was added at run time.")
@database_options
@click.argument("name")
@click.option("--task", metavar="NAME", help="The name of the task, as jobs carry it.")
@_when_options
def update(url: str | None, schema: str | None, name: str, **words: Any) -> None:
    """Change what is named, and leave the rest; a new --cron stays in the time zone of the old one."""
    from leasequeue.ops import schedules as ops

    if all(value is None for value in words.values()):
        raise click.UsageError("name something to change; --help lists what can be")
    changes, times = _changes(words)
    with desk(url, schema) as open_desk:
        carry_out(open_desk, ops.change(target(), open_desk.schema, name, changes, times, who()))
    click.echo(f"schedule {name!r} is changed")


@schedules.command(short_help="Remove a schedule; its ledger stays.")
@database_options
@click.argument("name")
def remove(url: str | None, schema: str | None, name: str) -> None:
    """Remove a schedule. One of the code only when no live worker registers it: it would come back."""
    from leasequeue.ops import schedules as ops
    from leasequeue.ops import timetable

    with desk(url, schema) as open_desk:
        row = timetable.show_schedule(open_desk, name, 1).row
        carry_out(open_desk, ops.remove(target(), open_desk.schema, name, who(), live=row.served))
    click.echo(f"schedule {name!r} is removed")


@schedules.command(short_help="Run nothing until it is resumed.")
@database_options
@click.argument("name")
def pause(url: str | None, schema: str | None, name: str) -> None:
    """Run nothing until it is resumed; what is due meanwhile stands in the ledger as paused."""
    _pause(url, schema, name, True)


@schedules.command(short_help="Run again from the next due time on.")
@database_options
@click.argument("name")
def resume(url: str | None, schema: str | None, name: str) -> None:
    """Run again from the next due time on."""
    _pause(url, schema, name, False)


def _pause(url: str | None, schema: str | None, name: str, paused: bool) -> None:
    from leasequeue.ops import schedules as ops

    with desk(url, schema) as open_desk:
        changed = carry_out(open_desk, ops.set_paused(target(), open_desk.schema, name, paused, who()))
    click.echo(f"schedule {name!r} {'is' if changed else 'was already'} {'paused' if paused else 'running'}")


@schedules.command("run", short_help="Enqueue its job now.")
@database_options
@click.argument("name")
def run_(url: str | None, schema: str | None, name: str) -> None:
    """Enqueue the job of a schedule now, beside its due times, whatever --overlap says; its tick is this moment."""
    from leasequeue.ops import schedules as ops

    with desk(url, schema) as open_desk:
        id = carry_out(open_desk, ops.fire_now(target(), open_desk.schema, name, who()))
    click.echo(f"schedule {name!r}: job {id}")


@schedules.command(short_help="Write the schedules of an application's code by hand.")
@database_options
@click.argument("app", envvar="LEASEQUEUE_APP")
def sync(url: str | None, schema: str | None, app: str) -> None:
    """Write the schedules of APP's code, whatever release wrote them last, and also over one that was added at run time.

    They stay until a release that is deployed later starts. Runs the application's imports here.
    """
    import os

    from leasequeue.ops import schedules as ops
    from leasequeue.ops.release import Release
    from leasequeue.schedule import deployed_at
    from leasequeue.worker.app import load_app

    lq = load_app(app)
    lq.load_imports()
    definitions = lq.definitions()
    if not definitions:
        raise ConfigurationError(f"{app} has no schedule: write @lq.schedule(...) above a task")
    settings = where(url, schema)[0] if url is not None else lq.settings()
    name = schema or lq.schema
    release = Release(os.environ.get("LEASEQUEUE_RELEASE"), deployed_at(), force=True)
    with desk_at(settings, name) as open_desk:
        for definition in definitions:
            done = carry_out(open_desk, ops.sync(target(), open_desk.schema, definition, release, who()))
            click.echo(done.message)


def _changes(words: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Fields of a ``Definition`` from the options, and the times as ``ops.schedules.retimed`` wants them.

    Raises:
        ConfigurationError: one of them cannot be.
    """
    from leasequeue import naming
    from leasequeue.db.schedules import canonical

    changes: dict[str, Any] = {}
    cron, every, tz = words["cron"], words["every"], words["tz"]
    if cron is not None and every is not None:
        raise click.UsageError("give one of --cron and --every")
    given = {"cron": cron, "every": None if every is None else every.total_seconds(), "tz": tz}
    times = {key: value for key, value in given.items() if value is not None}
    if words["arguments"] is not None:
        try:
            value = json.loads(words["arguments"])
        except (ValueError, RecursionError) as error:
            raise click.UsageError(f"--args is no JSON: {error}") from error
        if not isinstance(value, dict):
            raise click.UsageError('--args is an object, as in {"user_id": 7}')
        changes["args"] = canonical(words["arguments"])
    for key in ("task", "queue"):
        if words[key] is not None:
            changes[key] = naming.check(f"--{key}", words[key])
    for key in ("priority", "catch_up", "overlap"):
        if words[key] is not None:
            changes[key] = words[key]
    for key, field in (("catch_up_within", "catch_up_seconds"), ("jitter", "jitter_seconds")):
        if words[key] is not None:
            changes[field] = words[key].total_seconds()
    if changes.get("jitter_seconds", 0.0) > 86_400.0:
        raise click.UsageError("--jitter is at most a day")
    if changes.get("catch_up") == "all" and changes.get("overlap") == "skip":
        raise click.UsageError("--catch-up all wants a run for each due time, --overlap skip none beside another")
    return changes, times
