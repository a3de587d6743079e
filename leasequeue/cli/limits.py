"""``leasequeue limits``: what is limited, by whom, and the hands on it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from leasequeue.cli.database import database_options, desk, desk_at, where
from leasequeue.cli.leases import who
from leasequeue.cli.listing import Listing
from leasequeue.cli.programs import carry_out, target

if TYPE_CHECKING:
    from leasequeue.ops import bounds as ops


@click.group(cls=Listing)
def limits() -> None:
    """How many jobs run at once, and how many start in a span: all limits, or the one of NAME.

    NAME is an exact key (user:7), the first part of keys (user: each key user:... that has no limit of its own), task:NAME,
    queue:NAME, or fair:NAME (a fair_key). A limit that is set here goes before one that the code declares, and both before
    what jobs bring along. A RATE is 100/10s, 5/m: so many starts in any such span.

    The options of `list` and `show` may be given without them. One that is named like a command is shown by `leasequeue
    limits show NAME`.
    """


@limits.command("list", short_help="All limits that are set or declared (as without a command).")
@database_options
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def list_(url: str | None, schema: str | None, as_json: bool) -> None:
    """All limits that are set or declared, and which of two of one name is in force.

    What tasks say of their own jobs (limit=, rate=) stands in the jobs, and is not listed: `leasequeue limits show KEY`.
    """
    from leasequeue.cli import render
    from leasequeue.ops import bounds as ops

    with desk(url, schema) as open_desk:
        rows = ops.read_limits(open_desk)
    if as_json:
        render.echo_json(rows)
        return
    if not rows:
        render.console().print("No limit is set or declared: `leasequeue limits set NAME 5`, or lq.limit(NAME, 5).")
        return
    _print(rows)
    if len(rows) == ops.LIMITS_MAX:
        click.echo(f"There may be more: these are {ops.LIMITS_MAX:,}.", err=True)


def _print(rows: tuple[ops.LimitRow, ...]) -> None:
    from rich.text import Text

    from leasequeue.cli import render
    from leasequeue.ops import bounds as ops

    table = [
        (row.name, ops.say_limit(row.limit), Text("yes") if row.in_force else Text("no", style="yellow"), row.source,
         render.time(row.updated_at))
        for row in rows
    ]  # fmt: skip
    render.console().print(render.table("", ("limit", "value", "in force", "from", "since"), table))


@limits.command(short_help="One name: what is in force, what runs and waits.")
@database_options
@click.argument("name")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def show(url: str | None, schema: str | None, name: str, as_json: bool) -> None:
    """One name: the rule in force and where it comes from, what runs and waits under it, starts in the window of its rate.

    Any name is answered, also one of which nothing is written.
    """
    from leasequeue.cli import render
    from leasequeue.ops import bounds as ops

    with desk(url, schema) as open_desk:
        found = ops.show_limit(open_desk, name)
    if as_json:
        render.echo_json(found)
        return
    facts = _facts(found)
    width = max(len(key) for key in facts)
    out = render.console()
    for key, text in facts.items():
        out.print(f"{key:<{width}}  {render.clean(text, keep_lines=False)}", soft_wrap=True)
    if found.rows:
        _print(found.rows)


def _facts(found: ops.LimitDetail) -> dict[str, str]:
    from leasequeue.cli import render
    from leasequeue.limit import Limit
    from leasequeue.ops import bounds as ops

    about = {
        "key": "one key",
        "prefix": f"each key {found.name}:... that has no limit of its own",
        "task": "all jobs of the task",
        "queue": "all jobs of the queue",
    }
    rule, own = found.rule, found.jobs_own

    def origin(row: ops.LimitRow | None, of_jobs: bool) -> str:
        return f"{row.source}, as {row.name!r}" if row else "the jobs themselves" if of_jobs else ""

    running = Limit(rule.limit.running if rule.running_from else own.running if own else None)
    rate = Limit(None, *rule.limit[1:]) if rule.rate_from else Limit(None, *own[1:]) if own else Limit()
    facts = {"limit": found.name, "about": about[found.about]}
    facts["at once"] = "no limit"
    if running.running is not None:
        facts["at once"] = f"{ops.say_limit(running)}: {origin(rule.running_from, own is not None)}"
    if rate.rate is not None:
        facts["rate"] = f"{ops.say_limit(rate)}: {origin(rule.rate_from, own is not None)}"
    facts["running"] = render.count(found.running, capped="running" in found.capped)
    facts["waiting"] = render.count(found.waiting, capped="waiting" in found.capped)
    if found.started is not None:
        facts["started"] = f"{found.started:,} in the window of the rate"
    return facts


@limits.command("set", short_help="Set a limit, before what the code declares.")
@database_options
@click.argument("name")
@click.argument("number", required=False)
@click.option("--rate", metavar="RATE", help="So many starts in any such span, as in 100/10s.")
@click.option("--by", metavar="WHO", help="Who does it; otherwise user@host.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def set_(
    url: str | None,
    schema: str | None,
    name: str,
    number: str | None,
    rate: str | None,
    by: str | None,
    as_json: bool,
) -> None:
    """Set how many jobs of NAME run at once, and how many may start in a span: in place of what was set before.

    NUMBER is 0 to hold all of them, or none for any number. Without NUMBER or --rate the other one alone is set, and for the
    rest the code decides. All workers know it within about a second; what runs goes on.
    """
    from leasequeue.cli import render
    from leasequeue.limit import Limit, parse
    from leasequeue.ops import bounds
    from leasequeue.ops import limits as ops

    if number is not None and number != "none" and not (number.isascii() and number.isdigit() and len(number) < 10):
        raise click.UsageError(f"{number!r} is no number of jobs: write 5, 0 to hold all of them, or none for no limit")
    if number is None and rate is None:
        raise click.UsageError("give a NUMBER of jobs at once, a --rate, or both")
    running = ops.NO_BOUND if number == "none" else None if number is None else int(number)
    made: Limit = parse(f"limit {name!r}", running, rate, least=0)
    with desk(url, schema) as open_desk:
        woken = carry_out(open_desk, ops.set_limit(target(), open_desk.schema, name, made, by or who()))
    if as_json:
        render.echo_json({"limit": name, "running": made.running, "rate": made.rate, "rate_seconds": made.rate_seconds,
                          "woken": woken})  # fmt: skip
        return
    click.echo(f"limit {name!r} is set: {bounds.say_limit(made)}")


@limits.command("unset", short_help="Take a limit away that was set.")
@database_options
@click.argument("name")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def unset(url: str | None, schema: str | None, name: str, as_json: bool) -> None:
    """Take a limit away that was set here; what the code declares is in force again, and what jobs bring along."""
    from leasequeue.cli import render
    from leasequeue.ops import limits as ops

    with desk(url, schema) as open_desk:
        changed = carry_out(open_desk, ops.unset_limit(target(), open_desk.schema, name))
    if as_json:
        render.echo_json({"limit": name, "changed": changed})
        return
    click.echo(f"limit {name!r} {'is taken away' if changed else 'was not set'}")


@limits.command(short_help="Write the limits of an application's code by hand.")
@database_options
@click.argument("app", envvar="LEASEQUEUE_APP")
def sync(url: str | None, schema: str | None, app: str) -> None:
    """Write the limits that APP's code declares, whatever release wrote them last.

    They stay until a release that is deployed later starts. Runs the application's imports here.
    """
    import os

    from leasequeue.ops import limits as ops
    from leasequeue.ops.release import Release
    from leasequeue.schedule import deployed_at
    from leasequeue.worker.app import load_app

    lq = load_app(app)
    lq.load_imports()
    settings = where(url, schema)[0] if url is not None else lq.settings()
    release = Release(os.environ.get("LEASEQUEUE_RELEASE"), deployed_at(), force=True)
    name = schema or lq.schema
    with desk_at(settings, name) as open_desk:
        wrote = carry_out(open_desk, ops.declare(target(), name, app, lq.declared_limits(), release, who()))
    click.echo(wrote.message or f"the limits of {app} are as its code says")
