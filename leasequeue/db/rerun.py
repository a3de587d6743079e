"""The program that runs steps of a workflow again: those that failed, or one and everything behind it.

Steps that ended are enqueued anew, under new ids, with their edges; what is live stays as it is, and waits for the new jobs
where it waited for the old ones.

Locks, in a transaction of our own: the workflow's row, so that two of these follow each other; then every live job of it, in
id order, ``FOR NO KEY UPDATE``, so that none can end before the new edges are committed (completions skip them, and are
written a moment later). An edge of a live parent is never taken away, only another one added and ``children`` raised: a
completion whose snapshot is from before fails its check, and is run again.
"""

from __future__ import annotations

import functools
from collections import Counter
from typing import NamedTuple

from leasequeue.db.enqueue import check_version, explained
from leasequeue.db.jobs import OF_ITS_PAST
from leasequeue.db.names import qualify
from leasequeue.db.program import Checked
from leasequeue.db.statement import Program, Statement, Target
from leasequeue.errors import WorkflowRefused

_BOUND = "SELECT set_config('lock_timeout', '2s', true)"

_LOCK = "SELECT id FROM {s}.leasequeue_workflow WHERE id = %(workflow)s::bigint FOR UPDATE"

_LOCK_LIVE = """SELECT job.id
FROM {s}.leasequeue_step AS step JOIN {s}.leasequeue_job AS job ON job.id = step.job_id
WHERE step.workflow = %(workflow)s::bigint ORDER BY job.id FOR NO KEY UPDATE OF job"""

_READ_STEPS = """SELECT step.name, step.job_id, job.state::text,
    CASE WHEN finished.meta ->> 'skipped' IS NOT NULL THEN 'skipped' ELSE finished.outcome END,
    job.cancel_requested_at IS NOT NULL
FROM {s}.leasequeue_step AS step LEFT JOIN {s}.leasequeue_job AS job ON job.id = step.job_id
LEFT JOIN {s}.leasequeue_finished AS finished ON finished.id = step.job_id
WHERE step.workflow = %(workflow)s::bigint ORDER BY step.job_id"""

_READ_EDGES = """SELECT edge.parent_id, edge.child_id, edge.on_failure::text
FROM {s}.leasequeue_step AS step JOIN {s}.leasequeue_edge AS edge ON edge.child_id = step.job_id
WHERE step.workflow = %(workflow)s::bigint"""

_INSERT = f"""WITH new AS (
    INSERT INTO {{s}}.leasequeue_job (queue, task, args, meta, priority, max_attempts, limit_key, limit_max, rate_max,
        rate_seconds, workflow, pending, children, state)
    SELECT old.queue, old.task, old.args,
        coalesce(old.meta, jsonb_build_object()) - {OF_ITS_PAST}
            || jsonb_build_object('retry_of', old.id),
        coalesce((old.options ->> 'priority')::smallint, 0), (old.options ->> 'max_attempts')::int,
        old.options ->> 'limit_key', (old.options ->> 'limit_max')::int, (old.options ->> 'rate_max')::int,
        (old.options ->> 'rate_seconds')::float8, %(workflow)s::bigint, nullif(e.pending, 0), nullif(e.children, 0),
        CASE WHEN e.pending > 0 THEN 'b' WHEN old.options ->> 'limit_key' IS NULL THEN 'r' ELSE 'g' END::"char"
    FROM unnest(%(ids)s::bigint[], %(pending)s::int[], %(children)s::int[]) WITH ORDINALITY
        AS e (id, pending, children, place)
    JOIN {{s}}.leasequeue_finished AS old ON old.id = e.id ORDER BY e.place
    RETURNING id, queue, limit_key, state
), woken AS (
    INSERT INTO {{s}}.leasequeue_wake (queue, key) SELECT DISTINCT queue, limit_key FROM new WHERE state = 'g'
)
SELECT id FROM new"""

_FORGET_EDGES = """DELETE FROM {s}.leasequeue_edge
WHERE parent_id = ANY(%(ids)s::bigint[]) OR (child_id = ANY(%(ids)s::bigint[]) AND NOT parent_id = ANY(%(live)s::bigint[]))"""

_ADD_EDGES = """INSERT INTO {s}.leasequeue_edge (parent_id, child_id, on_failure)
SELECT parent_id, child_id, on_failure::"char"
FROM unnest(%(parents)s::bigint[], %(children)s::bigint[], %(kinds)s::text[]) AS e (parent_id, child_id, on_failure)"""

_COUNT_EDGES = """UPDATE {s}.leasequeue_job AS job
SET children = nullif(coalesce(job.children, 0) + e.children, 0), pending = nullif(coalesce(job.pending, 0) + e.pending, 0)
FROM unnest(%(ids)s::bigint[], %(children)s::int[], %(pending)s::int[]) AS e (id, children, pending) WHERE job.id = e.id"""

_REPLACE = """WITH e AS (
    SELECT * FROM unnest(%(names)s::text[], %(old)s::bigint[], %(new)s::bigint[]) AS e (name, old, new)
), step AS (
    UPDATE {s}.leasequeue_step AS step SET job_id = e.new FROM e
    WHERE step.workflow = %(workflow)s::bigint AND step.name = e.name
)
UPDATE {s}.leasequeue_finished AS job
SET meta = coalesce(job.meta, jsonb_build_object()) || jsonb_build_object('retried_as', e.new)
FROM e WHERE job.id = e.old"""

_TEMPLATES = {
    "bound": _BOUND,
    "lock": _LOCK,
    "lock_live": _LOCK_LIVE,
    "read_steps": _READ_STEPS,
    "read_edges": _READ_EDGES,
    "insert": _INSERT,
    "forget_edges": _FORGET_EDGES,
    "add_edges": _ADD_EDGES,
    "count_edges": _COUNT_EDGES,
    "replace": _REPLACE,
}


@functools.cache
def statements(schema: str) -> dict[str, str]:
    """Name and text of each statement, with the quoted schema name filled in; not to be changed. Cached per schema."""
    quoted = qualify(schema).replace("%", "%%")
    return {name: text.format(s=quoted) for name, text in _TEMPLATES.items()}


@functools.cache
def _statement(schema: str, name: str) -> Statement:
    return Statement(statements(schema)[name])


class Now(NamedTuple):
    """A step as it is: ``live`` the state of its row, or ``ended`` what became of it; neither where its history is gone.

    ``stopping``: it is live, and was asked to stop.
    """

    job_id: int
    live: str | None
    ended: str | None
    stopping: bool = False


class Again(NamedTuple):
    """What is to be run again: names in an order with parents first, and for how many each waits."""

    names: list[str]
    pending: dict[str, int]


def choose(workflow: int, steps: dict[str, Now], parents: dict[str, dict[str, str]], from_step: str | None) -> Again:
    """Which steps run again. Pure.

    Args:
        steps: by name.
        parents: by name, the kinds of the edges by the parent's name.
        from_step: None means all that ended as failed, cancelled or expired.

    Raises:
        WorkflowRefused: nothing is to be done, or it would run something twice.
    """
    order = _ordered(steps, parents)
    if from_step is None:
        wanted = {name for name, now in steps.items() if now.ended in _FAILED}
    else:
        wanted = _behind(workflow, steps, parents, order, from_step)
    for name in order:  # what was not needed, or has fired, may be wanted anew
        above = parents[name].keys() & wanted
        if above and steps[name].live is None and (steps[name].ended == "skipped" or "f" in parents[name].values()):
            wanted.add(name)
    pending: dict[str, int] = {}
    names: list[str] = []
    for name in order:
        if name not in wanted:
            continue
        stopping = [above for above, kind in parents[name].items() if kind == "x" and steps[above].stopping]
        if stopping:
            # Run again now, it would be cancelled again as soon as that one has stopped.
            raise WorkflowRefused(
                f"step {name!r} of workflow {workflow} comes after {stopping[0]!r}, which was asked to stop and has not ended: "
                f"wait for its end, and run both again then"
            )
        why_not, count = _weigh(name, steps, parents[name], wanted)
        if why_not is None:
            names.append(name)
            pending[name] = count
            continue
        wanted.discard(name)
        if name == from_step:
            raise WorkflowRefused(f"step {name!r} of workflow {workflow} cannot run again: {why_not}")
    if not names:
        raise WorkflowRefused(f"nothing of workflow {workflow} is to be run again: no step has failed or was cancelled")
    return Again(names, pending)


_FAILED = ("failed", "cancelled", "expired")


def _behind(
    workflow: int, steps: dict[str, Now], parents: dict[str, dict[str, str]], order: list[str], from_step: str
) -> set[str]:
    if from_step not in steps:
        raise WorkflowRefused(f"workflow {workflow} has no step {from_step!r}")
    if steps[from_step].live is not None:
        raise WorkflowRefused(
            f"step {from_step!r} of workflow {workflow} has not ended: cancel it first, or wait for it"
        )
    wanted = {from_step}
    for name in order:
        if parents[name].keys() & wanted:
            live = steps[name].live
            if live is None:
                wanted.add(name)
            elif live != "b":
                raise WorkflowRefused(
                    f"step {name!r} of workflow {workflow}, behind {from_step!r}, has been released and has not ended: cancel "
                    f"it first, or wait for it"
                )
    return wanted


def _weigh(name: str, steps: dict[str, Now], kinds: dict[str, str], wanted: set[str]) -> tuple[str | None, int]:
    """Why it cannot run, or for how many parents it waits."""
    waits = [parent for parent in kinds if parent in wanted or steps[parent].live is not None]
    ended = {parent: steps[parent].ended for parent in kinds if parent not in waits}
    if "f" in kinds.values():
        if any(outcome in _FAILED for outcome in ended.values()):
            return None, 0
        return (None, len(waits)) if waits else ("none of the steps whose failure it waits for has failed", 0)
    for parent, outcome in ended.items():
        if kinds[parent] == "x" and outcome != "succeeded":
            return (
                f"{parent!r}, which it comes after, ended as {outcome or 'nobody knows what: its history is gone'}",
                0,
            )
    return None, len(waits)


def _ordered(steps: dict[str, Now], parents: dict[str, dict[str, str]]) -> list[str]:
    """Parents first."""
    left = {name: len(parents[name]) for name in steps}
    behind: dict[str, list[str]] = {name: [] for name in steps}
    for name in steps:
        for parent in parents[name]:
            behind[parent].append(name)
    ready = [name for name, count in left.items() if not count]
    for name in ready:  # it grows
        for child in behind[name]:
            left[child] -= 1
            if not left[child]:
                ready.append(child)
    return ready


def rerun(
    target: Target, schema: str, workflow: int, from_step: str | None, checked: Checked
) -> Program[dict[str, int]]:
    """Run steps again, in one transaction. Returns the new ids by the names.

    Raises:
        WorkflowRefused: see :func:`choose`; or the history of a step is gone.
    """
    if target.database not in checked:
        yield from check_version(target, schema, checked)
    of = {"workflow": workflow}
    try:
        yield _statement(schema, "bound"), {}
        if not (yield _statement(schema, "lock"), of):
            raise WorkflowRefused(f"there is no workflow {workflow}, or no more")
        yield _statement(schema, "lock_live"), of
        rows = yield _statement(schema, "read_steps"), of
        steps = {name: Now(int(id), live, ended, stopping) for name, id, live, ended, stopping in rows}
        name_of = {now.job_id: name for name, now in steps.items()}
        edges = [(name_of.get(p), name_of[c], kind) for p, c, kind in (yield _statement(schema, "read_edges"), of)]
        known = [(parent, child, kind) for parent, child, kind in edges if parent is not None]
        parents: dict[str, dict[str, str]] = {name: {} for name in steps}
        for parent, child, kind in known:
            parents[child][parent] = kind
        again = choose(workflow, steps, parents, from_step)
        return (yield from _write(schema, workflow, steps, known, again))
    except Exception as error:  # noqa: BLE001  # raised again, as itself or as what it means
        explained(error, target, schema, checked)


def _write(
    schema: str, workflow: int, steps: dict[str, Now], edges: list[tuple[str, str, str]], again: Again
) -> Program[dict[str, int]]:
    chosen = set(again.names)
    moved = [(p, c, kind) for p, c, kind in edges if p in chosen or c in chosen]
    children = Counter(parent for parent, _, _ in moved)
    old = [steps[name].job_id for name in again.names]
    rows = yield (
        _statement(schema, "insert"),
        {
            "workflow": workflow,
            "ids": old,
            "pending": [again.pending[name] for name in again.names],
            "children": [children[name] for name in again.names],
        },
    )
    ids = sorted(int(row[0]) for row in rows)
    if len(ids) != len(old):
        raise WorkflowRefused(f"steps of workflow {workflow} cannot run again: the history of some is gone")
    new = dict(zip(again.names, ids, strict=True))
    live = [now.job_id for now in steps.values() if now.live is not None]
    yield _statement(schema, "forget_edges"), {"ids": old, "live": live}

    def id_of(name: str) -> int:
        return new[name] if name in new else steps[name].job_id

    if moved:
        parents, kids, kinds = zip(*((id_of(p), id_of(c), kind) for p, c, kind in moved), strict=True)
        yield (
            _statement(schema, "add_edges"),
            {"parents": list(parents), "children": list(kids), "kinds": list(kinds)},
        )
    waits = Counter(child for _, child, _ in moved if child not in chosen and steps[child].live == "b")
    more = {name: children[name] for name in children if name not in chosen and steps[name].live is not None}
    changed = sorted(waits.keys() | more.keys(), key=id_of)
    if changed:
        yield (
            _statement(schema, "count_edges"),
            {
                "ids": [id_of(name) for name in changed],
                "children": [more.get(name, 0) for name in changed],
                "pending": [waits[name] for name in changed],
            },
        )
    yield _statement(schema, "replace"), {"workflow": workflow, "names": again.names, "old": old, "new": ids}
    return new
