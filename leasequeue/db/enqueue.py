"""The programs that enqueue, one job or many, in a caller's transaction.

Locks: an enqueue locks only the rows that it inserts; on an equal ``unique_key`` it waits for the transaction
that holds the key (keys in ascending order within one call).

``now()``, the start of the caller's transaction, is the clock of ``available_at``: a job is never due before
it was enqueued, and all of one transaction are due at one time unless they say otherwise.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from sqlalchemy import (
    ARRAY,
    ColumnElement,
    DateTime,
    Double,
    Integer,
    Interval,
    SmallInteger,
    Text,
    bindparam,
    case,
    cast,
    exists,
    func,
    insert,
    literal_column,
    select,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.dialects.postgresql import insert as pg_insert

from leasequeue.db import version
from leasequeue.db.names import channel
from leasequeue.db.program import Checked, Params, Program, Statement, Target, sqlstate
from leasequeue.db.tables import Char, tables
from leasequeue.errors import DatabaseUnavailable, SchemaMismatch

if TYPE_CHECKING:
    from leasequeue.job import NewJob

CHUNK_ROWS = 5_000
CHUNK_CHARS = 8_000_000
"""What one statement of enqueue_many carries at most: rows, and characters of arguments (but one job
always).
"""

UNIQUE_ROUNDS = 50
"""How often a unique key may be found taken and, a moment later, held by nobody, before we give up."""

_UNDEFINED = ("42P01", "42703")  # table, column

_PROBE = Statement(text(version.PROBE))


# Version


def check_version(target: Target, schema: str, checked: Checked) -> Program[None]:
    """Read the tables' version, once per database; a plain SELECT that cannot fail for want of a table.

    Raises:
        SchemaMismatch: there are none, or of a version that this code cannot use.
    """
    rows = yield _PROBE, {"schema": schema}
    version.check(version.parse(rows[0][0]) if rows else None, schema)
    checked.add(target.database)


def _explained(error: Exception, target: Target, schema: str, checked: Checked) -> NoReturn:
    """Raise the error itself, or what it means: the tables went away, or changed, after they were checked."""
    if sqlstate(error) in _UNDEFINED:
        checked.discard(target.database)
        raise SchemaMismatch(schema, None, version.VERSION) from error
    raise error


# One job


def enqueue_one(target: Target, schema: str, job: NewJob, checked: Checked) -> Program[tuple[int, bool]]:
    """Insert one job, in one round trip unless its unique key is taken. Returns (id, created)."""
    if target.database not in checked:
        yield from check_version(target, schema, checked)
    scheduled = job.run_at is not None or job.delay_seconds > 0
    notifies = not scheduled and target.may_notify(channel(schema), job.queue)
    statement, params = _insert_one(schema, job, scheduled, notifies)
    try:
        for _ in range(UNIQUE_ROUNDS):
            rows = yield statement, params
            if rows:
                return int(rows[0][0]), True
            # ON CONFLICT DO NOTHING has waited for whoever held the key. A statement of its own, with a
            # snapshot of its own, sees the job if that one committed; if it is gone by now, the key is free
            # again.
            rows = yield _find_keys(schema), {"p_keys": [job.unique_key]}
            if rows:
                return int(rows[0][0]), False
    except Exception as error:  # noqa: BLE001  # raised again, as itself or as what it means
        _explained(error, target, schema, checked)
    raise _restless(job.unique_key)


def _restless(key: object) -> DatabaseUnavailable:
    return DatabaseUnavailable(
        f"the unique key {key!r} was taken and free again {UNIQUE_ROUNDS} times in a row: "
        f"its jobs end as fast as they are enqueued; try again"
    )


class _Shape(NamedTuple):
    """What an insert of one job has beside its queue, task and arguments: each shape is a statement of its own."""

    special: bool
    lane: bool
    scheduled: bool
    unique: bool
    notifies: bool
    controlled: bool = False
    gated: bool = False


def _insert_one(schema: str, job: NewJob, scheduled: bool, notifies: bool) -> tuple[Statement, Params]:
    params: Params = {"p_queue": job.queue, "p_task": job.task, "p_args": job.args}
    special = bool(job.priority) or job.max_attempts is not None or job.meta is not None
    if special:
        params["p_priority"] = job.priority
        params["p_max_attempts"] = job.max_attempts
        params["p_meta"] = job.meta
    if scheduled:
        params["p_delay"] = job.delay_seconds
        params["p_run_at"] = job.run_at
    if job.unique_key is not None:
        params["p_unique_key"] = job.unique_key
    controlled = job.expires_seconds is not None or job.start_by is not None or job.unique_until is not None
    if controlled:
        params |= {"p_expires": job.expires_seconds, "p_start_by": job.start_by, "p_unique_until": job.unique_until}
    gated = job.limit_key is not None
    if gated:
        params |= {"p_limit_key": job.limit_key, "p_limit_max": job.limit_max}
        params |= {"p_rate_max": job.rate_max, "p_rate_seconds": job.rate_seconds}
    if notifies:
        params["p_channel"] = channel(schema)
    unique = job.unique_key is not None
    shape = _Shape(special, bool(job.priority), scheduled, unique, notifies, controlled, gated)
    return _one(schema, shape), params


def _bound(name: str, type_: Any) -> ColumnElement[Any]:
    return cast(bindparam(f"p_{name}", type_=type_), type_)


@functools.cache
def _one(schema: str, shape: _Shape) -> Statement:
    known = tables(schema)
    queue = bindparam("p_queue", type_=Text)
    values: dict[str, Any] = {
        "queue": queue,
        "task": bindparam("p_task", type_=Text),
        "args": cast(bindparam("p_args", type_=Text), JSONB),
    }
    if shape.special:
        values["priority"] = cast(bindparam("p_priority", type_=Integer), SmallInteger)
        values["max_attempts"] = _bound("max_attempts", Integer)
        values["meta"] = cast(bindparam("p_meta", type_=Text), JSONB)
    due: ColumnElement[Any] = func.now()
    if shape.scheduled:
        due = _available_at(_bound("run_at", DateTime(timezone=True)), _bound("delay", Double))
        values["available_at"] = due
    if shape.unique:
        values["unique_key"] = bindparam("p_unique_key", type_=Text)
    if shape.controlled:
        values["start_by"] = _start_by(_bound("start_by", DateTime(timezone=True)), due, _bound("expires", Double))
        values["unique_until"] = cast(bindparam("p_unique_until", type_=Text), Char)
    if shape.gated:
        limit_key = _bound("limit_key", Text)
        values |= {"state": literal_column("'g'"), "limit_key": limit_key, "limit_max": _bound("limit_max", Integer)}
        values |= {"rate_max": _bound("rate_max", Integer), "rate_seconds": _bound("rate_seconds", Double)}
    adding: Any = pg_insert(known.job).values(values)
    if shape.unique:
        adding = _unless_key_taken(adding, known.job)
    if shape.lane:
        # So that workers learn which priorities are in use. Never ON CONFLICT: it would wait for whoever
        # notes the same one. Doubles are harmless.
        priority = cast(bindparam("p_priority", type_=Integer), SmallInteger)
        known_lane = exists().where(known.lane.c.queue == queue, known.lane.c.priority == priority)
        note = insert(known.lane).from_select(["queue", "priority"], select(queue, priority).where(~known_lane))
        adding = adding.add_cte(note.cte("lane"))
    if shape.gated:
        # Also where the unique key turns out to be taken: a wake for nothing costs one look.
        wake = insert(known.wake).from_select(["queue", "key", "due_at"], select(queue, limit_key, due))
        adding = adding.add_cte(wake.cte("wake"))
    returned: list[Any] = [known.job.c.id]
    if shape.notifies:
        # Evaluated for the row that is inserted, in this transaction: sent if and when it commits.
        returned.append(func.pg_notify(bindparam("p_channel", type_=Text), known.job.c.queue).label("notified"))
    return Statement(adding.returning(*returned))


def _available_at(run_at: ColumnElement[Any], delay: ColumnElement[Any]) -> ColumnElement[Any]:
    # Clamped to now, so that the claim's floor need not look for rows that come in below it.
    later = delay.op("*", return_type=Interval())(literal_column("interval '1 second'"))
    return func.greatest(func.now(), func.coalesce(run_at, func.now() + later))


def _start_by(given: ColumnElement[Any], due: ColumnElement[Any], expires: ColumnElement[Any]) -> ColumnElement[Any]:
    later = expires.op("*", return_type=Interval())(literal_column("interval '1 second'"))
    return func.coalesce(given, due + later)


def _unless_key_taken(adding: Any, job: Any) -> Any:
    return adding.on_conflict_do_nothing(index_elements=[job.c.unique_key], index_where=job.c.unique_key.is_not(None))


@functools.cache
def _find_keys(schema: str) -> Statement:
    job = tables(schema).job
    keys = cast(bindparam("p_keys", type_=ARRAY(Text)), ARRAY(Text))
    return Statement(select(job.c.id, job.c.unique_key).where(job.c.unique_key == func.any(keys)))


# Many jobs


def enqueue_many(
    target: Target, schema: str, jobs: Sequence[NewJob], checked: Checked
) -> Program[list[tuple[int, bool]]]:
    """Insert the jobs in statements of bounded size. Returns (id, created) for each, in the order given.

    The first of several calls with one unique key creates the job, the others find it.
    """
    if target.database not in checked:
        yield from check_version(target, schema, checked)
    found: list[tuple[int, bool] | None] = [None] * len(jobs)
    plain = [index for index, job in enumerate(jobs) if job.unique_key is None]
    first: dict[str, int] = {}
    for index, job in enumerate(jobs):
        if job.unique_key is not None:
            first.setdefault(job.unique_key, index)
    # In the order of the keys, so that two calls over the same keys wait for each other and never in a
    # circle.
    keyed = [first[key] for key in sorted(first)]
    try:
        lanes = sorted({(job.queue, job.priority) for job in jobs if job.priority})
        if lanes:
            queues, priorities = zip(*lanes, strict=True)
            yield _lanes(schema), {"p_queue": list(queues), "p_priority": list(priorities)}
        for chunk in _chunks(jobs, plain):
            gated = any(jobs[index].limit_key is not None for index in chunk)
            rows = yield _many(schema, False, gated), _columns(jobs, chunk, keyed=False)
            # Ids are drawn in the order of the calls (the statement sorts before it inserts), so the sorted
            # ids are in that order, whatever order the rows come back in.
            for index, id in zip(chunk, sorted(row[0] for row in rows), strict=True):
                found[index] = (int(id), True)
        for chunk in _chunks(jobs, keyed):
            yield from _insert_keyed(schema, jobs, chunk, found)
        now_due = {job.queue for job in jobs if job.run_at is None and not job.delay_seconds > 0}
        wake = [queue for queue in sorted(now_due) if target.may_notify(channel(schema), queue)]
        if wake:
            yield _wake(), {"p_channel": channel(schema), "p_queue": wake}
    except Exception as error:  # noqa: BLE001  # raised again, as itself or as what it means
        _explained(error, target, schema, checked)
    for index, job in enumerate(jobs):
        if found[index] is None and job.unique_key is not None:
            holding = found[first[job.unique_key]]
            assert holding is not None
            found[index] = (holding[0], False)
    return [each for each in found if each is not None]


def _insert_keyed(
    schema: str, jobs: Sequence[NewJob], chunk: list[int], found: list[tuple[int, bool] | None]
) -> Program[None]:
    unsettled = {str(jobs[index].unique_key): index for index in chunk}
    gated = any(jobs[index].limit_key is not None for index in chunk)
    for _ in range(UNIQUE_ROUNDS):
        # Only what is unsettled is tried again: a second insert of a key that we created would report it as
        # found.
        rows = yield _many(schema, True, gated), _columns(jobs, list(unsettled.values()), keyed=True)
        for id, key in rows:
            found[unsettled.pop(key)] = (int(id), True)
        if not unsettled:
            return
        rows = yield _find_keys(schema), {"p_keys": list(unsettled)}
        for id, key in rows:
            found[unsettled.pop(key)] = (int(id), False)
        if not unsettled:
            return
    raise _restless(next(iter(unsettled)))


def _chunks(jobs: Sequence[NewJob], indexes: list[int]) -> list[list[int]]:
    chunks: list[list[int]] = []
    chars = 0
    for index in indexes:
        size = len(jobs[index].args)
        if not chunks or len(chunks[-1]) >= CHUNK_ROWS or chars + size > CHUNK_CHARS:
            chunks.append([])
            chars = 0
        chunks[-1].append(index)
        chars += size
    return chunks


# Most calls of a bulk differ in their arguments alone. What they share is a *kind*, sent once: per job there
# are only its arguments and the number of its kind.
_KIND: dict[str, Any] = {
    "queue": Text,
    "task": Text,
    "priority": Integer,
    "run_at": DateTime(timezone=True),
    "delay": Double,
    "max_attempts": Integer,
    "meta": Text,
    "start_by": DateTime(timezone=True),
    "expires": Double,
    "unique_until": Text,
    "limit_key": Text,
    "limit_max": Integer,
    "rate_max": Integer,
    "rate_seconds": Double,
}
_KIND_OF = attrgetter(
    "queue", "task", "priority", "run_at", "delay_seconds", "max_attempts", "meta", "start_by", "expires_seconds",
    "unique_until", "limit_key", "limit_max", "rate_max", "rate_seconds",
)  # fmt: skip


def _columns(jobs: Sequence[NewJob], chunk: list[int], *, keyed: bool) -> Params:
    kinds: dict[tuple[Any, ...], int] = {}
    rows = [jobs[index] for index in chunk]
    params: Params = {
        "p_args": [job.args for job in rows],
        "p_kind": [kinds.setdefault(_KIND_OF(job), len(kinds) + 1) for job in rows],
    }
    for name, values in zip(_KIND, zip(*kinds, strict=True), strict=True):
        params[f"p_{name}"] = list(values)
    if keyed:
        params["p_unique_key"] = [job.unique_key for job in rows]
    return params


def _array(name: str, type_: Any) -> ColumnElement[Any]:
    return cast(bindparam(f"p_{name}", type_=ARRAY(type_)), ARRAY(type_))


def _unnest(name: str, arrays: dict[str, Any], *, numbered: bool = True) -> Any:
    function = func.unnest(*(_array(column, type_) for column, type_ in arrays.items()))
    place = {"with_ordinality": "place"} if numbered else {}
    return function.table_valued(*arrays, name=name, **place).render_derived(name=name)


@functools.cache
def _many(schema: str, keyed: bool, gated: bool) -> Statement:
    known = tables(schema)
    job = known.job
    each = _unnest("each", {"args": Text, "kind": Integer} | ({"unique_key": Text} if keyed else {}))
    kind = _unnest("kind", _KIND)
    due = _available_at(kind.c.run_at, kind.c.delay)
    values: dict[str, Any] = {
        "queue": kind.c.queue,
        "task": kind.c.task,
        "args": cast(each.c.args, JSONB),
        "priority": cast(kind.c.priority, SmallInteger),
        "available_at": due,
        "max_attempts": kind.c.max_attempts,
        "meta": cast(kind.c.meta, JSONB),
        "start_by": _start_by(kind.c.start_by, due, kind.c.expires),
        "unique_until": cast(kind.c.unique_until, Char),
    }
    if keyed:
        values["unique_key"] = each.c.unique_key
    if gated:
        values |= {name: kind.c[name] for name in ("limit_key", "limit_max", "rate_max", "rate_seconds")}
        waits = case((kind.c.limit_key.is_(None), literal_column("'r'")), else_=literal_column("'g'"))
        values["state"] = cast(waits, Char)
    rows = select(*values.values()).select_from(each.join(kind, kind.c.place == each.c.kind)).order_by(each.c.place)
    adding: Any = pg_insert(job).from_select(list(values), rows)
    if gated:
        woken = select(kind.c.queue, kind.c.limit_key, due).where(kind.c.limit_key.is_not(None)).distinct()
        adding = adding.add_cte(insert(known.wake).from_select(["queue", "key", "due_at"], woken).cte("wake"))
    if keyed:
        return Statement(_unless_key_taken(adding, job).returning(job.c.id, job.c.unique_key))
    return Statement(adding.returning(job.c.id))


@functools.cache
def _lanes(schema: str) -> Statement:
    lane = tables(schema).lane
    given = _unnest("given", {"queue": Text, "priority": Integer}, numbered=False)
    priority = cast(given.c.priority, SmallInteger)
    missing = ~exists().where(lane.c.queue == given.c.queue, lane.c.priority == priority)
    return Statement(insert(lane).from_select(["queue", "priority"], select(given.c.queue, priority).where(missing)))


@functools.cache
def _wake() -> Statement:
    queue = func.unnest(_array("queue", Text)).column_valued("queue")
    return Statement(select(func.pg_notify(bindparam("p_channel", type_=Text), queue)))


def statements(schema: str) -> dict[str, str]:
    """The statements by name, as a DBAPI cursor gets them; for the one job, its plainest and its fullest shape."""
    return {
        "enqueue_one": _one(schema, _Shape(False, False, False, False, True)).text,
        "enqueue_one_full": _one(schema, _Shape(True, True, True, True, False, True, True)).text,
        "find_keys": _find_keys(schema).text,
        "enqueue_many": _many(schema, False, False).text,
        "enqueue_many_keyed": _many(schema, True, True).text,
        "lanes": _lanes(schema).text,
        "wake": _wake().text,
    }
