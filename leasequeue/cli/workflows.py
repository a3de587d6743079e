"""``leasequeue workflows``: list, show as a tree, cancel, retry."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from leasequeue.cli.database import database_options, desk
from leasequeue.cli.leases import who
from leasequeue.cli.listing import Listing

if TYPE_CHECKING:
    from collections.abc import Sequence

    from leasequeue.steps import StepRow

_ID = click.IntRange(1, 2**63 - 1)
_AFTER = {"c": "goes on whatever became of", "f": "fires on a failure of"}
_STYLES = {"failed": "bold red", "expired": "red", "cancelled": "yellow", "running": "bold", "succeeded": "green"}


@click.group(cls=Listing)
def workflows() -> None:
    """Workflows: the newest ones, or the one of that number as a tree; cancel and retry them."""


@workflows.command("list", short_help="The newest workflows.")
@database_options
@click.option("--limit", default=20, show_default=True, type=click.IntRange(1, 200), help="At most so many.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def list_(url: str | None, schema: str | None, limit: int, as_json: bool) -> None:
    """The newest workflows, and how many of their steps are in which state."""
    from leasequeue.cli import render
    from leasequeue.ops import workflows as ops

    with desk(url, schema) as open_desk:
        rows = ops.list_workflows(open_desk, limit=limit)
    if as_json:
        render.echo_json(rows)
        return
    out = render.console()
    if not rows:
        out.print("There is no workflow here.")
        return
    out.print(
        render.table(
            "",
            (">id", "name", "state", "enqueued", "steps"),
            [
                (
                    row.id,
                    row.name,
                    row.state,
                    render.time(row.created_at),
                    _counts(row.counts) + (" (of more)" if row.capped else ""),
                )
                for row in rows
            ],
        )
    )


@workflows.command(short_help="One workflow as a tree.")
@database_options
@click.argument("id", type=_ID)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def show(url: str | None, schema: str | None, id: int, as_json: bool) -> None:
    """One workflow: its steps as a tree, each under the last of those that it comes after."""
    from leasequeue.cli import render
    from leasequeue.ops import workflows as ops

    with desk(url, schema) as open_desk:
        found = ops.show_workflow(open_desk, id)
    if as_json:
        render.echo_json(found)
        return
    row = found.workflow
    name = f" {row.name}" if row.name else ""
    out = render.console()
    out.print(
        render.clean(f"workflow {row.id}{name}: {row.state} ({_counts(row.counts)})", keep_lines=False), style="bold"
    )
    print_tree(out, found.steps)


@workflows.command(short_help="End what waits, ask what runs to stop.")
@database_options
@click.argument("id", type=_ID)
def cancel(url: str | None, schema: str | None, id: int) -> None:
    """End the steps that wait, callbacks too, and ask those that run to stop."""
    from leasequeue.ops import workflows as ops

    with desk(url, schema) as open_desk:
        click.echo(ops.cancel(open_desk, id, by=who()))


@workflows.command(short_help="Run the steps that failed again, or from one on.")
@database_options
@click.argument("id", type=_ID)
@click.option("--from", "from_step", metavar="STEP", help="This step and everything behind it, however it ended.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def retry(url: str | None, schema: str | None, id: int, from_step: str | None, as_json: bool) -> None:
    """Run steps again, as new jobs: those that failed, were cancelled or have expired; or one and what is behind it."""
    from leasequeue.cli import render
    from leasequeue.ops import workflows as ops

    with desk(url, schema) as open_desk:
        new = ops.retry(open_desk, id, from_step)
    if as_json:
        render.echo_json(new)
        return
    for name, job in list(new.items())[:20]:
        click.echo(render.clean(f"step {name} runs again as job {job}", keep_lines=False))
    if len(new) > 20:
        click.echo(f"and {len(new) - 20:,} more")


def print_tree(out: Any, steps: Sequence[StepRow], here: int | None = None) -> None:
    """Print the tree.

    Args:
        here: the id of the job to point at.
    """
    from rich.text import Text

    from leasequeue.cli import render
    from leasequeue.steps import tree

    for line in tree(steps):
        margin = "".join("   " if last else "│  " for last in line.last[1:-1])
        if len(line.last) > 1:
            margin += "└─ " if line.last[-1] else "├─ "
        text = Text(margin)
        if line.step is None:
            text.append(line.more, style="dim")
        else:
            _append_step(text, line.step, here, render.clean)
        out.print(text, soft_wrap=True)


def _append_step(text: Any, step: StepRow, here: int | None, clean: Any) -> None:
    name = clean(step.name, keep_lines=False)
    text.append(f"{name} ", style="bold reverse" if step.job_id == here else "bold")
    text.append(step.state, style=_STYLES.get(step.state, ""))
    text.append(f" (job {step.job_id}, {clean(step.task or '?', keep_lines=False)})")
    kinds = sorted({kind for kind in step.after.values() if kind in _AFTER})
    for kind in kinds:
        names = [clean(name, keep_lines=False) for name, each in step.after.items() if each == kind]
        text.append(f", {_AFTER[kind]} {_few(names)}")
    if len(step.after) > 1 and "f" not in kinds:
        text.append(f", after {_few([clean(name, keep_lines=False) for name in step.after])}")
    if step.error and step.state in ("failed", "expired"):
        text.append(f": {clean(step.error, keep_lines=False)[:120]}", style="red")


def _few(names: list[str]) -> str:
    return ", ".join(names[:4]) + (f" and {len(names) - 4:,} more" if len(names) > 4 else "")


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{count:,} {state}" for state, count in counts.items())
