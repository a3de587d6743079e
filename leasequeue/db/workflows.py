"""The programs of workflows: they are enqueued, added to, read and cancelled in a caller's transaction.

A workflow is enqueued in few statements: its row, its jobs (a step's job waits in state ``b`` while ``pending`` parents have
not ended), the edges between them, the steps' names. Ids ascend from parents to children.

Locks: an enqueue locks only what it inserts. Adding steps to a workflow that runs locks the live jobs that they come after,
in id order, ``FOR NO KEY UPDATE``, and waits for them; from then on none of these can end before the caller's transaction
has, so keep it short. Cancelling: see ``db/ends.py``.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from leasequeue.db.ends import end_statements
from leasequeue.db.enqueue import StepOf, announce, check_version, explained, insert_steps, note_lanes
from leasequeue.db.jobs import FAILED, HISTORY
from leasequeue.db.names import CANCEL, channel, qualify
from leasequeue.db.program import Checked
from leasequeue.db.statement import Params, Program, Rows, Statement, Target
from leasequeue.errors import ConfigurationError, WorkflowRefused

if TYPE_CHECKING:
    from leasequeue.job import NewJob

CHUNK_ROWS = 20_000

_CREATE = """INSERT INTO {s}.leasequeue_workflow (name) VALUES (%(name)s::text)
RETURNING id, pg_current_xact_id()::text"""

_XACT = "SELECT name, pg_current_xact_id()::text FROM {s}.leasequeue_workflow WHERE id = %(workflow)s::bigint"

_ADD_EDGES = """INSERT INTO {s}.leasequeue_edge (parent_id, child_id, on_failure)
SELECT parent_id, child_id, on_failure::"char"
FROM unnest(%(parents)s::bigint[], %(children)s::bigint[], %(kinds)s::text[]) AS e (parent_id, child_id, on_failure)"""

_ADD_STEPS = """INSERT INTO {s}.leasequeue_step (workflow, name, job_id)
SELECT %(workflow)s::bigint, name, id FROM unnest(%(names)s::text[], %(ids)s::bigint[]) AS e (name, id)"""

_LOCK_PARENTS = """SELECT step.name, job.id
FROM {s}.leasequeue_step AS step JOIN {s}.leasequeue_job AS job ON job.id = step.job_id
WHERE step.workflow = %(workflow)s::bigint AND step.name = ANY(%(names)s::text[])
ORDER BY job.id FOR NO KEY UPDATE OF job"""

_STATE = """CASE WHEN finished.meta ->> 'skipped' IS NOT NULL THEN 'skipped'
        WHEN finished.id IS NOT NULL THEN finished.outcome
        WHEN job.id IS NULL THEN 'gone' WHEN job.state = 'l' THEN 'running' WHEN job.state = 'q' THEN 'suspect'
        WHEN job.state IN ('g', 'b') THEN 'waiting' WHEN job.available_at <= now() THEN 'ready' ELSE 'scheduled' END"""

_OF_STEP = """{s}.leasequeue_step AS step LEFT JOIN {s}.leasequeue_job AS job ON job.id = step.job_id
    LEFT JOIN {s}.leasequeue_finished AS finished ON finished.id = step.job_id"""

_LOOK = f"""SELECT step.name, step.job_id, {_STATE} FROM {_OF_STEP}
WHERE step.workflow = %(workflow)s::bigint AND step.name = ANY(%(names)s::text[])"""

# Whether one of these runs only on another's failure, by an edge of its own or as what such a one cascades to.
_CONDITIONAL = """WITH RECURSIVE up (id) AS (
    SELECT id FROM unnest(%(ids)s::bigint[]) AS given (id)
    UNION SELECT edge.parent_id FROM up JOIN {s}.leasequeue_edge AS edge ON edge.child_id = up.id WHERE edge.on_failure = 'x'
)
SELECT 1 FROM up JOIN {s}.leasequeue_edge AS edge ON edge.child_id = up.id WHERE edge.on_failure = 'f' LIMIT 1"""

_RAISE = """UPDATE {s}.leasequeue_job AS job SET children = coalesce(job.children, 0) + e.n
FROM unnest(%(ids)s::bigint[], %(counts)s::int[]) AS e (id, n) WHERE job.id = e.id"""

# Added behind a step that has ended otherwise than hoped for. Nobody has seen the rows: they were inserted here.
_NEVER = f"""WITH d AS (
    DELETE FROM {{s}}.leasequeue_job WHERE id = ANY(%(ids)s::bigint[]) RETURNING {FAILED}
)
INSERT INTO {{s}}.leasequeue_finished ({HISTORY}, meta, options, error)
SELECT id, queue, task, args, 'cancelled', attempt, abandoned, created_at, claimed_at, clock_timestamp(),
    CASE WHEN skipped THEN meta || jsonb_build_object('skipped', true) ELSE meta END, options, error
FROM d JOIN unnest(%(ids)s::bigint[], %(skipped)s::boolean[], %(errors)s::text[]) AS e (id, skipped, error) USING (id)"""

# One that has no outcome and does not live has lost its history.
_PARENTS = """SELECT step.name, finished.task, finished.outcome, finished.result::text,
    finished.id IS NULL AND job.id IS NULL, edge.parent_id
FROM {s}.leasequeue_edge AS edge
JOIN {s}.leasequeue_step AS step ON step.job_id = edge.parent_id
LEFT JOIN {s}.leasequeue_job AS job ON job.id = edge.parent_id
LEFT JOIN {s}.leasequeue_finished AS finished ON finished.id = edge.parent_id
WHERE edge.child_id = %(id)s::bigint ORDER BY edge.parent_id"""

_RESULT = f"""SELECT step.job_id, finished.task, {_STATE}, finished.result::text, finished.error,
    finished.attempt FROM {_OF_STEP}
WHERE step.workflow = %(workflow)s::bigint AND step.name = %(name)s::text"""

_FIND = """SELECT id, name, extract(epoch FROM created_at)::float8 FROM {s}.leasequeue_workflow
WHERE id = %(workflow)s::bigint"""

_COUNT = f"""SELECT {_STATE} AS state, count(*)::int FROM {_OF_STEP}
WHERE step.workflow = %(workflow)s::bigint GROUP BY 1"""

_LIST_STEPS = f"""SELECT step.name, step.job_id, coalesce(job.task, finished.task), {_STATE},
    coalesce(job.attempt, finished.attempt), left(finished.error, 500), extract(epoch FROM finished.finished_at)::float8
FROM {_OF_STEP}
WHERE step.workflow = %(workflow)s::bigint ORDER BY step.job_id LIMIT %(limit)s::int"""

_LIST_EDGES = """SELECT edge.parent_id, edge.child_id, edge.on_failure::text
FROM {s}.leasequeue_step AS step JOIN {s}.leasequeue_edge AS edge ON edge.child_id = step.job_id
WHERE step.workflow = %(workflow)s::bigint ORDER BY edge.child_id, edge.parent_id LIMIT %(limit)s::int"""

# Their workers hear of it as they hear of a single job's cancel.
_STOP_STEPS = f"""WITH k AS MATERIALIZED (
    SELECT job.id
    FROM {{s}}.leasequeue_step AS step JOIN {{s}}.leasequeue_job AS job ON job.id = step.job_id
    WHERE step.workflow = %(workflow)s::bigint AND job.state = 'l' AND job.cancel_requested_at IS NULL
    ORDER BY job.id FOR NO KEY UPDATE OF job SKIP LOCKED
), u AS (
    UPDATE {{s}}.leasequeue_job SET cancel_requested_at = clock_timestamp(),
        meta = coalesce(meta, jsonb_build_object()) || jsonb_build_object('cancel_requested_by', %(by)s::text)
    WHERE id = ANY(ARRAY(SELECT id FROM k)) AND state = 'l' RETURNING id
)
SELECT id, pg_notify('{{channel}}', '{CANCEL}' || id)::text FROM u"""

_NOT_STOPPED = """SELECT count(*)::int
FROM {s}.leasequeue_step AS step JOIN {s}.leasequeue_job AS job ON job.id = step.job_id
WHERE step.workflow = %(workflow)s::bigint AND job.cancel_requested_at IS NULL"""

_STEP_OF_JOB = """SELECT step.workflow, step.name, workflow.name
FROM {s}.leasequeue_step AS step JOIN {s}.leasequeue_workflow AS workflow ON workflow.id = step.workflow
WHERE step.job_id = %(id)s::bigint"""

# The newest, with the steps of each by state; so many of each are looked at.
_RECENT = f"""SELECT workflow.id, workflow.name, extract(epoch FROM workflow.created_at)::float8, counts.states::text
FROM (
    SELECT id, name, created_at FROM {{s}}.leasequeue_workflow ORDER BY created_at DESC LIMIT %(limit)s::int
) AS workflow
CROSS JOIN LATERAL (
    SELECT jsonb_object_agg(state, n) AS states FROM (
        SELECT {_STATE} AS state, count(*) AS n
        FROM (
            SELECT job_id FROM {{s}}.leasequeue_step
            WHERE leasequeue_step.workflow = workflow.id LIMIT %(cap)s::int
        ) AS step LEFT JOIN {{s}}.leasequeue_job AS job ON job.id = step.job_id
        LEFT JOIN {{s}}.leasequeue_finished AS finished ON finished.id = step.job_id
        GROUP BY 1
    ) AS counted
) AS counts
ORDER BY workflow.created_at DESC"""

_TEMPLATES = {
    "create": _CREATE,
    "xact": _XACT,
    "add_edges": _ADD_EDGES,
    "add_steps": _ADD_STEPS,
    "lock_parents": _LOCK_PARENTS,
    "look": _LOOK,
    "conditional": _CONDITIONAL,
    "raise": _RAISE,
    "never": _NEVER,
    "parents": _PARENTS,
    "result": _RESULT,
    "find": _FIND,
    "count": _COUNT,
    "list_steps": _LIST_STEPS,
    "list_edges": _LIST_EDGES,
    "stop_steps": _STOP_STEPS,
    "not_stopped": _NOT_STOPPED,
    "step_of_job": _STEP_OF_JOB,
    "recent": _RECENT,
}


@functools.cache
def statements(schema: str) -> dict[str, str]:
    """Name and text of each statement, with the quoted schema name filled in; not to be changed. Cached per schema."""
    quoted = qualify(schema).replace("%", "%%")
    literal = channel(schema).replace("'", "''").replace("%", "%%")
    return {name: text.format(s=quoted, channel=literal) for name, text in _TEMPLATES.items()}


@functools.cache
def _statement(schema: str, name: str) -> Statement:
    own = statements(schema).get(name)
    return Statement(own if own is not None else getattr(end_statements(schema), name))


def ask(target: Target, schema: str, name: str, params: Params, checked: Checked) -> Program[Rows]:
    """One statement of this module, or of ``db/ends.py``, by its name."""
    if target.database not in checked:
        yield from check_version(target, schema, checked)
    try:
        return (yield _statement(schema, name), params)
    except Exception as error:  # noqa: BLE001  # raised again, as itself or as what it means
        explained(error, target, schema, checked)


def _chunked(columns: dict[str, Sequence[Any]]) -> list[Params]:
    size = len(next(iter(columns.values())))
    starts = range(0, size, CHUNK_ROWS)
    return [{name: list(each[at : at + CHUNK_ROWS]) for name, each in columns.items()} for at in starts]


# Enqueueing


class Plan(NamedTuple):
    """A workflow that was checked: its steps, parents before children, and its edges by their places.

    Attributes:
        edges: place of the parent, place of the child, and ``x``, ``c`` or ``f``.
    """

    name: str | None
    names: list[str]
    jobs: list[NewJob]
    edges: list[tuple[int, int, str]]


def enqueue_workflow(target: Target, schema: str, plan: Plan, checked: Checked) -> Program[tuple[int, list[int]]]:
    """Insert a whole workflow. Returns its id and the ids of its jobs, in the order of the plan.

    Raises:
        ConfigurationError: the connection is in autocommit mode; no step was written.
    """
    ((workflow, xact),) = yield from ask(target, schema, "create", {"name": plan.name}, checked)
    try:
        yield from note_lanes(schema, plan.jobs)
        pending = Counter(child for _, child, _ in plan.edges)
        children = Counter(parent for parent, _, _ in plan.edges)
        places = range(len(plan.jobs))
        of = StepOf(
            int(workflow), plan.name, xact, plan.names, [pending[i] for i in places], [children[i] for i in places]
        )
        ids = yield from insert_steps(schema, plan.jobs, of)
        if len(ids) != len(plan.jobs):
            raise ConfigurationError(_AUTOCOMMIT)
        yield from _link(schema, int(workflow), plan.names, ids, [(ids[p], ids[c], k) for p, c, k in plan.edges])
        yield from announce(target, schema, [job for i, job in enumerate(plan.jobs) if not pending[i]])
    except Exception as error:  # noqa: BLE001  # raised again, as itself or as what it means
        explained(error, target, schema, checked)
    return int(workflow), ids


_AUTOCOMMIT = (
    "a workflow takes several statements, and this connection is in autocommit mode, where each is a transaction of its own: "
    "begin one (`with conn.transaction():`, `with transaction.atomic():`), or give the LeaseQueue itself"
)


def _link(
    schema: str, workflow: int, names: Sequence[str], ids: Sequence[int], edges: Sequence[tuple[int, int, str]]
) -> Program[None]:
    if edges:
        parents, children, kinds = zip(*edges, strict=True)
        for params in _chunked({"parents": parents, "children": children, "kinds": kinds}):
            yield _statement(schema, "add_edges"), params
    for params in _chunked({"names": names, "ids": ids}):
        yield _statement(schema, "add_steps"), params | {"workflow": workflow}


# Adding


class Late(NamedTuple):
    """A step for a workflow that runs: its name, its job, and the names that it comes after with the kinds of the edges."""

    name: str
    job: NewJob
    after: dict[str, str]


def add_steps(
    target: Target, schema: str, workflow: int, late: list[Late], checked: Checked, exist_ok: bool
) -> Program[dict[str, int]]:
    """Add steps behind steps that live or have ended. Returns the ids of their jobs by their names.

    A step that has ended counts for what it ended as: the new one waits for it no more, or is cancelled with it at once.

    Raises:
        WorkflowRefused: a name is unknown, or taken; nothing was written.
        ConfigurationError: the connection is in autocommit mode; no step was written.
    """
    found = yield from ask(target, schema, "xact", {"workflow": workflow}, checked)
    if not found:
        raise WorkflowRefused(f"there is no workflow {workflow}, or no more")
    flow, xact = found[0]
    parents = sorted({name for each in late for name in each.after})
    # Locked until the transaction ends: none of them can end before. What is not locked by then has ended.
    locked: dict[str, int] = {}
    states: dict[str, tuple[int, str]] = {}
    while True:
        rows = yield _statement(schema, "lock_parents"), {"workflow": workflow, "names": parents}
        locked = {name: int(id) for name, id in rows}
        names = [*parents, *(each.name for each in late)]
        rows = yield _statement(schema, "look"), {"workflow": workflow, "names": names}
        states = {name: (int(id), state) for name, id, state in rows}
        live = {name for name in parents if name in states and states[name][1] in _LIVE}
        if live <= locked.keys():
            break  # else a retry of the workflow put another job in its place meanwhile
    here = {name: states[each.name][0] for each in late for name in [each.name] if name in states}
    if here and not exist_ok:
        raise WorkflowRefused(
            f"workflow {workflow} has a step {min(here)!r} already: choose another name, or say exist_ok=True where an earlier "
            f"attempt of the same job may have added it"
        )
    unknown = [name for name in parents if name not in states or states[name][1] == "gone"]
    if unknown:
        raise WorkflowRefused(f"workflow {workflow} has no step {unknown[0]!r} to come after, or its history is gone")
    late = [each for each in late if each.name not in here]
    fired_on = [states[name][0] for each in late for name, kind in each.after.items() if kind == "f"]
    if fired_on and (yield _statement(schema, "conditional"), {"ids": fired_on}):
        raise WorkflowRefused(CONDITIONAL)
    verdicts = [_verdict(each, locked, states) for each in late]
    children: Counter[int] = Counter(locked[name] for v in verdicts for name in v.waits_for)
    raised = sorted(children)
    if raised:
        yield _statement(schema, "raise"), {"ids": raised, "counts": [children[id] for id in raised]}
    jobs = [each.job for each in late]
    yield from note_lanes(schema, jobs)
    # One that never runs must not be seen ready, not even by this transaction's end.
    pending = [max(len(v.waits_for), 0 if v.never is None else 1) for v in verdicts]
    of = StepOf(workflow, flow, xact, [each.name for each in late], pending, [0] * len(late))
    ids = yield from insert_steps(schema, jobs, of)
    if len(ids) != len(jobs):
        raise ConfigurationError(_AUTOCOMMIT)
    edges = [
        (states[name][0], id, kind)
        for each, verdict, id in zip(late, verdicts, ids, strict=True)
        for name, kind in each.after.items()
        if name in verdict.waits_for or name not in locked
    ]
    yield from _link(schema, workflow, [each.name for each in late], ids, edges)
    never = [(id, v) for id, v in zip(ids, verdicts, strict=True) if v.never is not None]
    if never:
        dropped = {"ids": [id for id, _ in never], "skipped": [v.skipped for _, v in never]}
        yield _statement(schema, "never"), dropped | {"errors": [v.never for _, v in never]}
    yield from announce(target, schema, [job for job, n in zip(jobs, pending, strict=True) if not n])
    return here | dict(zip([each.name for each in late], ids, strict=True))


CONDITIONAL = (
    "a step that runs only on a failure cannot have one that fires on its own failure: nobody could tell a step that failed "
    "from one that was not needed; put that into the task itself"
)

_LIVE = ("running", "suspect", "waiting", "ready", "scheduled")
_FAILED = ("failed", "cancelled", "expired")


class _Verdict(NamedTuple):
    waits_for: list[str]
    never: str | None = None
    skipped: bool = False


def _verdict(late: Late, locked: dict[str, int], states: dict[str, tuple[int, str]]) -> _Verdict:
    """What the steps that have ended mean for one that comes after them."""
    live = [name for name in late.after if name in locked]
    ended = {name: states[name][1] for name in late.after if name not in locked}
    fires = "f" in late.after.values()
    if fires:
        if any(state in _FAILED for state in ended.values()):
            return _Verdict([])
        if late.after and not live:
            return _Verdict([], "NotNeeded: none of the steps whose failure it waited for has failed", True)
        return _Verdict(live)
    for name, state in ended.items():
        if late.after[name] == "x" and state not in ("succeeded",):
            return _Verdict([], f"Cascade: step {name!r}, which it comes after, had ended as {state}")
    return _Verdict(live)


# Cancelling


def cancel_workflow(
    target: Target, schema: str, workflow: int, reason: str, by: str, checked: Checked
) -> Program[tuple[int, int, int]]:
    """End what waits, ask what runs to stop. Returns how many of each, and how many are locked by somebody, to be asked again.

    Runs in a transaction of our own: it bounds its waits for locks.

    Args:
        reason: written as the error of what ends.
        by: who; it stays with what was asked to stop.
    """
    ended = yield from ask(target, schema, "cancel_steps", {"workflow": workflow, "reason": reason}, checked)
    asked = yield _statement(schema, "stop_steps"), {"workflow": workflow, "by": by}
    ((left,),) = yield _statement(schema, "not_stopped"), {"workflow": workflow}
    return len(ended), len(asked), int(left)
