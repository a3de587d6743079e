"""``leasequeue jobs``: list, show, retry and cancel single jobs."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from leasequeue.cli.database import database_options, desk
from leasequeue.cli.leases import who

if TYPE_CHECKING:
    from leasequeue.ops import query
    from leasequeue.ops.actions import Done
    from leasequeue.ops.asking import Desk

_STATES = ("ready", "scheduled", "leased", "suspect", "waiting", "succeeded", "failed", "cancelled", "expired")


class _Id(click.IntRange):
    name = "number of a job"  # a refusal says: 'abc' is not a valid number of a job


_ID = _Id(-(2**63), 2**63 - 1)


@click.group()
def jobs() -> None:
    """List, show, retry and cancel single jobs."""


@jobs.command("list", short_help="List jobs: those that have not ended, or of one state.")
@database_options
@click.option("--state", type=click.Choice(_STATES), help="Only these; otherwise every job that has not ended.")
@click.option("--queue", metavar="NAME", help="Only of this queue.")
@click.option("--task", metavar="NAME", help="Only of this task.")
@click.option("--limit", default=50, show_default=True, type=click.IntRange(1, 1000), help="At most so many.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def list_(
    url: str | None,
    schema: str | None,
    state: str | None,
    queue: str | None,
    task: str | None,
    limit: int,
    as_json: bool,
) -> None:
    """List jobs: ready ones as they will be claimed, scheduled ones as they come due, others newest first."""
    from leasequeue.cli import render
    from leasequeue.ops import query

    with desk(url, schema) as open_desk:
        found = query.list_jobs(open_desk, state=state, queue=queue, task=task, limit=limit)
    if as_json:
        render.echo_json(found)
        return
    out = render.console()
    if found.jobs:
        finished = found.jobs[0].is_finished
        out.print(_finished_table(found.jobs) if finished else _live_table(found.jobs))
    else:
        out.print(
            "No such job." if state else "No such job that has not ended; --state succeeded or failed lists the others."
        )
    if not found.complete:
        reason = f"the first {limit}" if len(found.jobs) == limit else f"{found.looked_at:,} rows were looked through"
        click.echo(f"There may be more: {reason}.", err=True)


def _live_table(rows: tuple[query.JobRow, ...]) -> object:
    from leasequeue.cli import render

    columns = [">id", "state", "queue", "task", ">priority", ">attempt", "due", "on", "arguments"]
    cells: list[list[render.Cell]] = [
        [row.id, row.state, row.queue, row.task, row.priority, _attempt(row), render.time(row.available_at),
         row.worker, row.args_preview]
        for row in rows
    ]  # fmt: skip
    if any(row.progress is not None for row in rows):
        columns.insert(-1, "progress")
        for row, made in zip(rows, cells, strict=True):
            made.insert(-1, render.progress(row.progress))
    return render.table("", columns, cells)


def _finished_table(rows: tuple[query.JobRow, ...]) -> object:
    from leasequeue.cli import render

    columns = (">id", "outcome", "queue", "task", ">attempt", "finished", ">took", "error")
    return render.table(
        "",
        columns,
        [
            (row.id, row.state, row.queue, row.task, row.attempt, render.time(row.finished_at),
             _took(row), row.error_preview)
            for row in rows
        ],
    )  # fmt: skip


def _attempt(row: query.JobRow) -> str:
    return str(row.attempt) if row.max_attempts is None else f"{row.attempt}/{row.max_attempts}"


def _took(row: query.JobRow) -> str:
    from leasequeue.cli import render

    if row.started_at is None or row.finished_at is None:
        return ""
    return render.duration((row.finished_at - row.started_at).total_seconds())


@jobs.command(short_help="Everything that is known of one job.")
@database_options
@click.argument("id", type=_ID)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def show(url: str | None, schema: str | None, id: int, as_json: bool) -> None:
    """Everything that is known of one job: its row, arguments, result, and failed attempts with tracebacks."""
    from leasequeue.cli import render
    from leasequeue.cli.workflows import print_tree
    from leasequeue.ops import query
    from leasequeue.ops.workflows import show_workflow

    with desk(url, schema) as open_desk:
        job = query.show_job(open_desk, id)
        flow = show_workflow(open_desk, job.workflow) if job.workflow is not None else None
    if as_json:
        render.echo_json(render.plain(job) | {"steps": flow.steps if flow else None})
        return
    out = render.console()
    lines = _facts(job)
    width = max(len(name) for name, _ in lines)
    for name, text in lines:
        indented = render.clean(text).replace("\n", "\n" + " " * (width + 2))
        out.print(f"{name:<{width}}  {indented}", soft_wrap=True)
    for failure in job.failures:
        took = f", started {render.time(failure.started_at)}" if failure.started_at else ""
        out.print()
        out.print(
            render.clean(
                f"attempt {failure.attempt} failed {render.time(failure.failed_at)} on {failure.worker or '?'}{took}"
            ),
            style="bold",
        )
        body = failure.traceback or f"{failure.error_type}: {failure.message}"
        out.print("    " + render.clean(body.rstrip()).replace("\n", "\n    "), soft_wrap=True)
    if flow is not None:
        out.print()
        print_tree(out, flow.steps, here=id)


def _facts(job: query.JobDetail) -> list[tuple[str, str]]:
    from leasequeue.cli.render import pretty, since, time

    meta = {name: value for name, value in job.meta.items() if name != "progress"}

    row = job.row

    def moment(at: object) -> str:
        return f"{time(at)} ({since(at, job.at)})" if at else ""  # type: ignore[arg-type]

    facts = {
        "job": str(row.id),
        "state": row.state,
        "task": row.task,
        "queue": row.queue,
        "priority": str(row.priority) if row.priority is not None else "",
        "attempt": _attempt(row),
        "abandoned": f"{row.abandoned} (its process died or was lost so often)" if row.abandoned else "",
        "enqueued": moment(row.created_at),
        "due": moment(row.available_at),
        "start by": f"{moment(job.start_by)}, or it expires" if job.start_by else "",
        "started": moment(row.started_at),
        "progress": _progress(job),
        "held by": f"{row.worker or 'a worker without a row'}, term {job.term}" if row.state == "leased" else "",
        "lease until": moment(row.expires_at),
        "asked to stop": moment(job.cancel_requested_at),
        "finished": moment(row.finished_at),
        "workflow": f"{job.workflow}, step {job.step}" if job.step is not None else "",
        "unique key": job.unique_key or "",
        "limit key": job.limit_key or "",
        "put back": f"{job.put_back} times, by workers that do not know its task or its arguments"
        if job.put_back
        else "",
        "retry of": str(job.retry_of or ""),
        "retried as": str(job.retried_as or ""),
        "arguments": pretty(job.args),
        "result": "" if job.result is None else pretty(job.result),
        "error": job.error or "",
        "meta": pretty(meta) if meta else "",
    }
    return [(name, text) for name, text in facts.items() if text]


def _progress(job: query.JobDetail) -> str:
    from leasequeue.cli.render import progress, since

    said = job.row.progress
    if said is None:
        return ""
    note = f", {said.note}" if said.note else ""
    return f"{progress(said)}{note}" + (f" ({since(said.at, job.at)})" if said.at else "")


@jobs.command(short_help="Run jobs as soon as possible, or again.")
@database_options
@click.argument("ids", type=_ID, nargs=-1, required=True, metavar="ID...")
@click.option("--again", is_flag=True, help="Also a job that was retried before.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def retry(url: str | None, schema: str | None, ids: tuple[int, ...], again: bool, as_json: bool) -> None:
    """Run jobs as soon as possible: scheduled ones become ready, failed or cancelled ones are enqueued again.

    A job that is enqueued again has a new id and all its attempts. Exit status 1 if one of them was refused.
    """
    from leasequeue.ops import actions

    _each(url, schema, ids, as_json, lambda open_desk, id: actions.retry(open_desk, id, again=again))


@jobs.command(short_help="Cancel jobs; running ones are asked to stop.")
@database_options
@click.argument("ids", type=_ID, nargs=-1, required=True, metavar="ID...")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def cancel(url: str | None, schema: str | None, ids: tuple[int, ...], as_json: bool) -> None:
    """Cancel jobs: waiting ones end at once, running ones are asked to stop.

    Exit status 1 if one of them was refused.
    """
    from leasequeue.ops import actions

    by = who()
    _each(url, schema, ids, as_json, lambda open_desk, id: actions.cancel(open_desk, id, by=by))


def _each(
    url: str | None, schema: str | None, ids: tuple[int, ...], as_json: bool, act: Callable[[Desk, int], Done]
) -> None:
    """Act on one after another; a refusal of one does not keep the others from it."""
    from leasequeue.cli import render
    from leasequeue.errors import ActionRefused

    answers: list[object] = []
    refused = False
    with desk(url, schema) as open_desk:
        for id in dict.fromkeys(ids):
            try:
                done = act(open_desk, id)
            except ActionRefused as error:
                refused = True
                answers.append({"id": id, "change": None, "state": error.state, "message": str(error)})
                if not as_json:
                    click.echo(render.clean(f"leasequeue: {error}"), err=True)
            else:
                answers.append(done)
                if not as_json:
                    click.echo(render.clean(done.message))
    if as_json:
        render.echo_json(answers)
    if refused:
        raise SystemExit(1)
