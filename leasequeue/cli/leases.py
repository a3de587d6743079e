"""``leasequeue leases``: who leads, who asks, what happened; and commands that run as a holder."""

from __future__ import annotations

import datetime as dt
import getpass
import re
import socket
from typing import TYPE_CHECKING, Any

import click

from leasequeue.cli.database import database_options, desk
from leasequeue.cli.listing import Listing

if TYPE_CHECKING:
    from leasequeue.ops import leases as ops

_UNITS = {"ms": 0.001, "s": 1.0, "": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86_400.0}
_DURATION = re.compile(r"(\d{1,15}(?:\.\d{1,9})?)\s*(ms|s|m|min|h|d|)", re.ASCII)
_SECONDS_MAX = 36_525 * 86_400.0  # a hundred years, as for a schedule


def read_duration(_ctx: click.Context, _param: click.Parameter, value: str | None) -> dt.timedelta | None:
    """``30``, ``30s``, ``5m``, ``2h``, ``1d``."""
    if value is None:
        return None
    found = _DURATION.fullmatch(value.strip().lower())
    seconds = float(found[1]) * _UNITS[found[2]] if found else float("inf")
    if seconds > _SECONDS_MAX:
        raise click.BadParameter(f"{value!r}: write a duration such as 30s, 5m, 2h or 1d")
    return dt.timedelta(seconds=seconds)


def who() -> str:
    """``user@host``, for what is written down of an operator."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError, ImportError):  # a container without a name for this uid
        user = "?"
    return f"{user}@{socket.gethostname()}"


@click.group(cls=Listing)
def leases() -> None:
    """Leadership, locks and semaphores: who holds them, who asks, what happened; all of them, or the one of NAME.

    A DURATION is 30s, 5m, 2h, 1d, or a number of seconds.
    """


@leases.command("list", short_help="All leases, and who asks for them.")
@database_options
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def list_(url: str | None, schema: str | None, as_json: bool) -> None:
    """All leases, with their holders and who was refused within the last ten minutes."""
    from leasequeue.cli import render
    from leasequeue.ops import leases as ops

    with desk(url, schema) as open_desk:
        rows = ops.list_leases(open_desk)
        asking = ops.contenders(open_desk)
    if as_json:
        render.echo_json({"leases": rows, "contenders": asking})
        return
    out = render.console()
    if not rows:
        out.print("No lease was ever held here.")
        return
    out.print(_slots(rows))
    if asking:
        out.print("", _asking(asking))


@leases.command(short_help="One lease, who asks for it, and its history.")
@database_options
@click.argument("name")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def show(url: str | None, schema: str | None, name: str, as_json: bool) -> None:
    """One lease: holder, term, age, time left, who asks and why they are refused, and its history."""
    from leasequeue.cli import render
    from leasequeue.ops import leases as ops

    with desk(url, schema) as open_desk:
        found = ops.show_lease(open_desk, name)
    if as_json:
        render.echo_json(found)
        return
    out = render.console()
    out.print(_slots(found.slots))
    if found.contenders:
        out.print("", _asking(found.contenders))
    rows = [
        (
            render.time(event.at),
            event.event,
            event.term,
            event.owner,
            f"{event.count:,}" if event.count > 1 else "",
            event.reason,
        )
        for event in found.events
    ]
    out.print("", render.table("History", ("at", "event", ">term", "owner", ">times", "reason"), rows))


def _slots(rows: tuple[ops.LeaseRow, ...]) -> Any:
    from rich.text import Text

    from leasequeue.cli import render

    def state(row: ops.LeaseRow) -> Text:
        if row.held:
            return Text("held", style="green")
        if row.holder:
            return Text("EXPIRED", style="bold red")
        # Taken from its holder, who was promised this time.
        return Text("taken away", style="yellow") if row.left_seconds else Text("free")

    return render.table(
        "",
        ("lease", ">slot", "state", "owner", ">term", ">held for", ">left"),
        [
            (row.name, f"{row.slot + 1}/{row.slots}", state(row), row.owner, row.term, render.duration(row.age_seconds),
             render.duration(row.left_seconds))
            for row in rows
        ],
    )  # fmt: skip


def _asking(rows: tuple[ops.Contender, ...]) -> Any:
    from leasequeue.cli import render

    return render.table(
        "Refused within the last ten minutes",
        ("lease", "who", ">times", "last", "reason"),
        [
            (row.name, row.owner, f"{row.refusals:,}", render.time(row.at),
             f"{row.reason}{f' in term {row.term}' if row.term else ''}")
            for row in rows
        ],
    )  # fmt: skip


@leases.command(short_help="Take a lease from its holder.")
@database_options
@click.argument("name")
@click.option("--slot", type=click.IntRange(1, 10_000), help="Only this slot of a semaphore; otherwise all.")
@click.option("--force", is_flag=True, help="Needed: the holder may be in the middle of its work.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def release(url: str | None, schema: str | None, name: str, slot: int | None, force: bool, as_json: bool) -> None:
    """Take a lease from its holder; who did it is written into its history.

    The holder learns it with its next renewal and stops. Nobody else can have the lease before the time is over that the
    holder was promised: there are never two.
    """
    from leasequeue.cli import render
    from leasequeue.ops import leases as ops

    if not force:
        from leasequeue.ops.timetable import word

        raise click.UsageError(
            f"say --force to take {name!r} from its holder; see `leasequeue leases show {word(name)}` for who that is"
        )
    with desk(url, schema) as open_desk:
        taken = ops.force_release(open_desk, name, slot=None if slot is None else slot - 1, by=who())
    if as_json:
        render.echo_json(taken)
        return
    for each in taken:
        click.echo(
            render.clean(
                f"slot {each.slot + 1} of {each.name!r} is taken from {each.owner} (term {each.term}); "
                f"free for others in {render.duration(max(0.0, each.left_seconds))}"
            )
        )


@leases.command(short_help="Change how many may hold a semaphore.")
@database_options
@click.argument("name")
@click.argument("slots", type=click.IntRange(1, 10_000))
def resize(url: str | None, schema: str | None, name: str, slots: int) -> None:
    """Change how many may hold NAME at once. Who holds one beyond that keeps it until it is released.

    Whoever asks with another number is refused with an error: change the code as well.
    """
    from leasequeue.ops import leases as ops

    with desk(url, schema) as open_desk:
        before = ops.resize(open_desk, name, slots)
    click.echo(f"{name!r} has {slots} slots; before, it had {before}")


class _Run(click.Command):
    """Insists on the ``--``: without it, options of the command would be taken for ours, and misspelt ones of ours for it."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if "--" not in args and not {"-h", "--help"} & set(args):
            raise click.UsageError("write -- before the command: leasequeue leases run NAME -- CMD [ARGS]...", ctx)
        return super().parse_args(ctx, args)


@leases.command(cls=_Run, short_help="Run a command as the holder of a lease.")
@database_options
@click.argument("name")
@click.option(
    "--ttl",
    default="30s",
    show_default=True,
    metavar="DURATION",
    callback=read_duration,
    help="What a holder that was killed costs the others.",
)
@click.option(
    "--wait",
    default="0",
    show_default=True,
    metavar="DURATION",
    callback=read_duration,
    help="How long to ask again where it is held.",
)
@click.option(
    "--slots", default=1, show_default=True, type=click.IntRange(1, 10_000), help="How many may hold it at once."
)
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED, metavar="-- CMD [ARGS]...")
def run(
    url: str | None, schema: str | None, name: str, ttl: dt.timedelta, wait: dt.timedelta, slots: int, command: tuple[str, ...]
) -> None:  # fmt: skip
    """Run CMD while holding the lease NAME, for cron, systemd timers and deploy scripts.

    The exit status is that of CMD (128 + N where signal N ended it), 75 where somebody else holds the lease, 69 where the
    database cannot be asked, 76 where the lease was lost and CMD ended well all the same. If the lease is lost, CMD gets
    SIGTERM, and SIGKILL before anybody else can hold the lease; CMD and what it started, unless stdin is a terminal.
    LEASEQUEUE_LEASE and LEASEQUEUE_TERM are in its environment.
    """
    from leasequeue.cli.database import where
    from leasequeue.cli.holder import Here, run_as_holder

    here = Here(*where(url, schema))
    raise SystemExit(run_as_holder(here, name, ttl, wait, slots, list(command), who()))
