"""The programs that enqueue, one job or many, in a caller's transaction.

Locks: an enqueue locks only the rows that it inserts; with a ``unique_key`` see ``db/unique.py``.

The inserts are Core constructs of many shapes, and are imported with SQLAlchemy by the first enqueue: a worker that enqueues
nothing has no need of them.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple, NoReturn

from leasequeue.db import bulk, version
from leasequeue.db.load import load_sqlalchemy
from leasequeue.db.names import channel
from leasequeue.db.program import Checked, sqlstate
from leasequeue.db.statement import Program, Statement, Target
from leasequeue.errors import SchemaMismatch
from leasequeue.job import Enqueued

if TYPE_CHECKING:
    import datetime as dt

    from leasequeue.job import Became, NewJob

CHUNK_ROWS = 5_000
CHUNK_CHARS = 8_000_000
"""What one statement of enqueue_many carries at most: rows, and characters of arguments (but one job
always).
"""

_UNDEFINED = ("42P01", "42703")  # table, column

SOON_SECONDS = 1.5
"""What becomes due within this time is announced like what is due now: a worker that has nothing to do and listens for
notifications looks ahead no further."""

_DUE = attrgetter("queue", "run_at", "delay_seconds")

_PROBE = Statement(version.LINK_PROBE)


# Version


def check_version(target: Target, schema: str, checked: Checked) -> Program[None]:
    """Read the tables' version, once per database; a plain SELECT that cannot fail for want of a table.

    Raises:
        SchemaMismatch: there are none, or of a version that this code cannot use.
    """
    rows = yield _PROBE, {"schema": schema}
    version.check(version.parse(rows[0][0]) if rows else None, schema)
    checked.add(target.database)


def explained(error: Exception, target: Target, schema: str, checked: Checked) -> NoReturn:
    """Raise the error itself, or what it means: the tables went away, or changed, after they were checked."""
    if sqlstate(error) in _UNDEFINED:
        checked.discard(target.database)
        raise SchemaMismatch(schema, None, version.VERSION) from error
    raise error


# Jobs


def enqueue_one(target: Target, schema: str, job: NewJob, checked: Checked) -> Program[Enqueued]:
    """Insert one job, in one round trip unless its unique key is taken.

    Raises:
        DuplicateJob: it is taken, and the call says so (``on_conflict="raise"``).
    """
    load_sqlalchemy()
    from leasequeue.db import insert, unique

    if job.hold_key is not None:
        (only,) = yield from enqueue_many(target, schema, [job], checked)
        return Enqueued(only, True) if isinstance(only, int) else only
    if target.database not in checked:
        yield from check_version(target, schema, checked)
    scheduled = job.run_at is not None or job.delay_seconds > 0
    notifies = _is_soon(job.run_at, job.delay_seconds, time.time()) and target.may_notify(channel(schema), job.queue)
    statement, params = insert.insert_one(schema, job, scheduled, notifies)
    try:
        if job.unique_key is None:
            rows = yield statement, params
            return Enqueued(int(rows[0][0]), True)
        found = yield from unique.insert_one(schema, job, statement, params)
        if found.replaced and notifies:
            yield from announce(target, schema, [job])
        return found
    except Exception as error:  # noqa: BLE001  # raised again, as itself or as what it means
        explained(error, target, schema, checked)


def enqueue_many(target: Target, schema: str, jobs: Sequence[NewJob], checked: Checked) -> Program[list[Became]]:
    """Insert the jobs in statements of bounded size. Returns what became of each, in the order given.

    The first of several calls with one unique key creates the job, the others find it.

    Raises:
        DuplicateJob: the key of a call that says so (``on_conflict="raise"``) is taken; others may be inserted already.
    """
    load_sqlalchemy()
    from leasequeue.db import insert, unique

    if target.database not in checked:
        yield from check_version(target, schema, checked)
    found: list[Became | None] = [None] * len(jobs)
    plain = [index for index, job in enumerate(jobs) if job.unique_key is None and job.hold_key is None]
    try:
        yield from note_lanes(schema, jobs)
        if target.copies and len(plain) >= bulk.COPY_MIN:
            plain = yield from bulk.copy(schema, jobs, plain, found)
        for chunk in chunks(jobs, plain):
            gated = any(jobs[index].limit_key is not None for index in chunk)
            rows = yield insert.many(schema, False, gated), insert.columns(jobs, chunk)
            # Ids are drawn in the order of the calls (the statement sorts before it inserts), so the sorted
            # ids are in that order, whatever order the rows come back in.
            for index, id in zip(chunk, sorted(row[0] for row in rows), strict=True):
                found[index] = Enqueued(int(id), True)
        if None in found:
            yield from unique.insert_keyed(schema, jobs, found, chunks)
        yield from announce(target, schema, jobs)
    except Exception as error:  # noqa: BLE001  # raised again, as itself or as what it means
        explained(error, target, schema, checked)
    return [each for each in found if each is not None]


def note_lanes(schema: str, jobs: Sequence[NewJob]) -> Program[None]:
    """Note the priorities that the jobs bring into use."""
    lanes = sorted({(job.queue, job.priority) for job in jobs if job.priority})
    if lanes:
        load_sqlalchemy()
        from leasequeue.db import insert

        queues, priorities = zip(*lanes, strict=True)
        yield insert.lanes(schema), {"p_queue": list(queues), "p_priority": list(priorities)}


def _is_soon(run_at: dt.datetime | None, delay_seconds: float, now: float) -> bool:
    return (run_at.timestamp() - now if run_at is not None else delay_seconds) < SOON_SECONDS


def announce(target: Target, schema: str, jobs: Sequence[NewJob]) -> Program[None]:
    """Notify for the queues of those that are due now or soon."""
    now = time.time()  # our own, which may be wrong: an announcement is a hint
    due = set(map(_DUE, jobs))
    queues = {queue for queue, run_at, delay in due if _is_soon(run_at, delay, now)}
    wake = [queue for queue in sorted(queues) if target.may_notify(channel(schema), queue)]
    if wake:
        load_sqlalchemy()
        from leasequeue.db import insert

        yield insert.notice(), {"p_channel": channel(schema), "p_queue": wake}


class StepOf(NamedTuple):
    """What the jobs of a workflow have beside: each its step's name, how many it waits for, how many wait for it.

    Attributes:
        xact: the transaction in which it all happens, as the server names it.
    """

    workflow: int
    flow: str | None
    xact: str
    names: Sequence[str]
    pending: Sequence[int]
    children: Sequence[int]


def insert_steps(schema: str, jobs: Sequence[NewJob], of: StepOf) -> Program[list[int]]:
    """Insert the jobs of a workflow, in statements of bounded size; unique keys are not looked at.

    Returns:
        Their ids, ascending in the order given; none where the transaction is not ``of.xact`` any more.
    """
    load_sqlalchemy()
    from leasequeue.db import insert

    ids: list[int] = []
    for chunk in chunks(jobs, range(len(jobs))):
        gated = any(jobs[index].limit_key is not None for index in chunk)
        params = insert.columns(jobs, chunk) | {"p_workflow": of.workflow, "p_flow": of.flow, "p_xact": of.xact}
        params |= {"p_pending": [of.pending[i] for i in chunk], "p_children": [of.children[i] for i in chunk]}
        params["p_step"] = [of.names[i] for i in chunk]
        rows = yield insert.steps(schema, gated), params
        ids += sorted(int(row[0]) for row in rows)
    return ids


def chunks(jobs: Sequence[NewJob], indexes: Sequence[int]) -> list[list[int]]:
    """The indexes in pieces of bounded size, in their order."""
    found: list[list[int]] = []
    chars = 0
    for index in indexes:
        size = len(jobs[index].args)
        if not found or len(found[-1]) >= CHUNK_ROWS or chars + size > CHUNK_CHARS:
            found.append([])
            chars = 0
        found[-1].append(index)
        chars += size
    return found


def statements(schema: str) -> dict[str, str]:
    """The statements by name, as a DBAPI cursor gets them."""
    return {"version": _PROBE.text}
