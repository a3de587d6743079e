"""What an operator asks of workflows, and does to them."""

from __future__ import annotations

import datetime as dt
import time
from dataclasses import dataclass
from typing import TypeVar

from leasequeue.db.ends import CONTENDED
from leasequeue.db.program import Checked
from leasequeue.db.rerun import rerun
from leasequeue.db.statement import Program, Target, drive
from leasequeue.db.workflows import cancel_workflow
from leasequeue.errors import WorkflowRefused
from leasequeue.moment import moment
from leasequeue.ops.asking import Desk
from leasequeue.ops.json_text import from_json
from leasequeue.steps import StepRow, state_of, step_rows

T = TypeVar("T")

STEPS_MAX = 20_000
COUNT_BUDGET, COUNT_FLOOR = 100_000, 500
LOCKED_SECONDS = 5.0
_PAUSE_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class WorkflowRow:
    """A workflow in a list.

    Attributes:
        state: ``running``, ``succeeded``, ``failed``, ``cancelled`` or ``gone``: see ``WorkflowStatus``.
        counts: steps by their state.
        capped: it has more steps than were counted; ``state`` goes by those that were.
    """

    id: int
    name: str | None
    state: str
    created_at: dt.datetime | None
    counts: dict[str, int]
    capped: bool = False


@dataclass(frozen=True, slots=True)
class WorkflowDetail:
    """A workflow and its steps, in the order of their jobs; at most ``STEPS_MAX``."""

    workflow: WorkflowRow
    steps: tuple[StepRow, ...]


def list_workflows(desk: Desk, *, limit: int = 20) -> list[WorkflowRow]:
    """The newest ones, by one statement that looks at some 100,000 steps at most.

    Raises:
        DatabaseUnavailable: see ``Link.run``.
    """
    cap = max(COUNT_FLOOR, COUNT_BUDGET // max(1, limit))
    found = []
    for id, name, created, states in desk.ask("workflow_recent", {"limit": limit, "cap": cap + 1}):
        counts = {str(state): int(count) for state, count in sorted((from_json(states) or {}).items())}
        capped = sum(counts.values()) > cap
        found.append(WorkflowRow(id, name, state_of(counts), moment(created), counts, capped))
    return found


def show_workflow(desk: Desk, id: int) -> WorkflowDetail:
    """One workflow with its steps.

    Raises:
        WorkflowRefused: there is none with that id, or no more.
        DatabaseUnavailable: see ``Link.run``.
    """
    rows = desk.ask("workflow_find", {"workflow": id})
    if not rows:
        raise WorkflowRefused(f"there is no workflow {id}: it never was, or has passed its retention")
    _, name, created = rows[0]
    counts = _counts(desk, id)
    steps = desk.ask("workflow_list_steps", {"workflow": id, "limit": STEPS_MAX})
    edges = desk.ask("workflow_list_edges", {"workflow": id, "limit": 10 * STEPS_MAX})
    return WorkflowDetail(
        WorkflowRow(id, name, state_of(counts), moment(created), counts), tuple(step_rows(steps, edges))
    )


def _counts(desk: Desk, id: int) -> dict[str, int]:
    return {str(state): int(count) for state, count in sorted(desk.ask("workflow_count", {"workflow": id}))}


def cancel(desk: Desk, id: int, *, by: str = "an operator") -> str:
    """End what waits, ask what runs to stop; returns a sentence.

    Raises:
        WorkflowRefused: there is no such workflow; or rows of it stayed locked, and what could be cancelled is.
        DatabaseUnavailable, OutcomeUnknown: see ``Link.run``.
    """
    if not desk.ask("workflow_find", {"workflow": id}):
        raise WorkflowRefused(f"there is no workflow {id}: it never was, or has passed its retention")
    ended = asked = 0
    until = time.monotonic() + LOCKED_SECONDS
    while True:
        try:
            now = _run(desk, cancel_workflow(_target(desk), desk.schema, id, f"cancelled by {by}", by, _checked(desk)))
        except CONTENDED:
            now = (0, 0, 1)
        ended, asked = ended + now[0], asked + now[1]
        if not now[2]:
            return f"workflow {id}: {ended} steps are cancelled, {asked} that run were asked to stop"
        if time.monotonic() > until:
            raise WorkflowRefused(f"workflow {id} is cancelled but for {now[2]} steps whose rows somebody has locked")
        time.sleep(_PAUSE_SECONDS)


def retry(desk: Desk, id: int, from_step: str | None = None) -> dict[str, int]:
    """Run steps again; see ``WorkflowHandle.retry``. Returns the new jobs by the steps' names.

    Raises:
        WorkflowRefused: nothing was changed; the message says why.
        DatabaseUnavailable, OutcomeUnknown: see ``Link.run``.
    """
    until = time.monotonic() + LOCKED_SECONDS
    while True:
        try:
            return _run(desk, rerun(_target(desk), desk.schema, id, from_step, _checked(desk)))
        except CONTENDED as error:
            if time.monotonic() > until:
                raise WorkflowRefused(f"workflow {id} was not changed: rows of it are locked by somebody") from error
        time.sleep(_PAUSE_SECONDS)


def _run(desk: Desk, program: Program[T]) -> T:
    return desk.link.transact(lambda execute: drive(program, lambda statement, params: execute(statement.text, params)))


def _target(desk: Desk) -> Target:
    return Target(desk)


def _checked(desk: Desk) -> Checked:
    known = Checked()
    known.add(desk)  # its version was read when the desk was made
    return known
