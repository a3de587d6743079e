"""The statements that insert jobs: one, or as many as fit into arrays. What runs them is ``db/enqueue.py``.

All are Core constructs, so that they run over every kind of connection.

``now()``, the start of the caller's transaction, is the clock of ``available_at``: a job is never due before
it was enqueued, and all of one transaction are due at one time unless they say otherwise.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from sqlalchemy import (
    ARRAY,
    BigInteger,
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
    null,
    select,
)
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.dialects.postgresql import insert as pg_insert

from leasequeue.db.columns import Char
from leasequeue.db.names import channel
from leasequeue.db.statement import Params, Statement
from leasequeue.db.tables import Tables, tables

if TYPE_CHECKING:
    from leasequeue.job import NewJob


class Shape(NamedTuple):
    """What an insert of one job has beside its queue, task and arguments: each shape is a statement of its own."""

    special: bool
    lane: bool
    scheduled: bool
    unique: bool
    notifies: bool
    controlled: bool = False
    gated: bool = False


def insert_one(schema: str, job: NewJob, scheduled: bool, notifies: bool) -> tuple[Statement, Params]:
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
    shape = Shape(special, bool(job.priority), scheduled, unique, notifies, controlled, gated)
    return one(schema, shape), params


def _bound(name: str, type_: Any) -> ColumnElement[Any]:
    return cast(bindparam(f"p_{name}", type_=type_), type_)


@functools.cache
def one(schema: str, shape: Shape) -> Statement:
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
        adding = unless_key_taken(adding, known.job)
    if shape.lane:
        # So that workers learn which priorities are in use. Never ON CONFLICT: it would wait for whoever
        # notes the same one. Doubles are harmless.
        priority = cast(bindparam("p_priority", type_=Integer), SmallInteger)
        known_lane = exists().where(known.lane.c.queue == queue, known.lane.c.priority == priority)
        note = insert(known.lane).from_select(["queue", "priority"], select(queue, priority).where(~known_lane))
        adding = adding.add_cte(note.cte("lane"))
    if shape.gated:
        # Also where the unique key turns out to be taken: a wake for nothing costs one look.
        wake = insert(known.wake).from_select(["queue", "key", "due_at"], select(queue, values["limit_key"], due))
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


WAITING: tuple[ColumnElement[Any], ...] = tuple(literal_column(f"'{state}'") for state in "rgb")
REPLACED = (
    "queue", "task", "args", "priority", "available_at", "max_attempts", "meta", "start_by", "unique_until",
    "limit_key", "limit_max", "rate_max", "rate_seconds",
)  # fmt: skip


def unless_key_taken(adding: Any, job: Any) -> Any:
    """Waits for whoever inserts, changes or deletes the row of the key, and locks it not.

    Never DO UPDATE: that locks the row also where its WHERE says no, until the caller's transaction ends, and a job that is
    claimed between the statement's snapshot and that lock could neither be renewed nor completed meanwhile.
    """
    return adding.on_conflict_do_nothing(index_elements=[job.c.unique_key], index_where=job.c.unique_key.is_not(None))


def replacement(job: Any, new: Any) -> dict[str, Any]:
    """What of a waiting job another call replaces: all but its id, its age, its key and the attempts that it has spent.

    A request to cancel was about the call that is replaced. A job that waits for its parents goes on waiting for them.
    """
    waits = case((job.c.state == literal_column("'b'"), job.c.state), else_=_gate(new["limit_key"]))
    return {name: new[name] for name in REPLACED} | {"state": cast(waits, Char), "cancel_requested_at": null()}


def _gate(limit_key: ColumnElement[Any]) -> ColumnElement[Any]:
    return cast(case((limit_key.is_(None), literal_column("'r'")), else_=literal_column("'g'")), Char)


@functools.cache
def find_keys(schema: str) -> Statement:
    job = tables(schema).job
    keys = cast(bindparam("p_keys", type_=ARRAY(Text)), ARRAY(Text))
    return Statement(select(job.c.id, job.c.unique_key).where(job.c.unique_key == func.any(keys)))


# Many jobs

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


def columns(jobs: Sequence[NewJob], chunk: list[int]) -> Params:
    """The parameters of :func:`many`, and of the statements of ``db/unique.py``; each takes those that it names."""
    kinds: dict[tuple[Any, ...], int] = {}
    rows = [jobs[index] for index in chunk]
    params: Params = {
        "p_args": [job.args for job in rows],
        "p_kind": [kinds.setdefault(_KIND_OF(job), len(kinds) + 1) for job in rows],
    }
    for name, values in zip(_KIND, zip(*kinds, strict=True), strict=True):
        params[f"p_{name}"] = list(values)
    return params


def array(name: str, type_: Any) -> ColumnElement[Any]:
    return cast(bindparam(f"p_{name}", type_=ARRAY(type_)), ARRAY(type_))


def unnest(name: str, arrays: dict[str, Any], *, numbered: bool = True) -> Any:
    function = func.unnest(*(array(column, type_) for column, type_ in arrays.items()))
    place = {"with_ordinality": "place"} if numbered else {}
    return function.table_valued(*arrays, name=name, **place).render_derived(name=name)


class Rows:
    """The rows that arrays give: each with its arguments and the number of its kind, beside what else differs."""

    def __init__(self, more: dict[str, Any], gated: bool) -> None:
        self.each = each = unnest("each", {"args": Text, "kind": Integer} | more)
        self.kind = kind = unnest("kind", _KIND)
        self.both = each.join(kind, kind.c.place == each.c.kind)
        self.due = _available_at(kind.c.run_at, kind.c.delay)
        self.gated = gated
        self.values: dict[str, Any] = {
            "queue": kind.c.queue,
            "task": kind.c.task,
            "args": cast(each.c.args, JSONB),
            "priority": cast(kind.c.priority, SmallInteger),
            "available_at": self.due,
            "max_attempts": kind.c.max_attempts,
            "meta": cast(kind.c.meta, JSONB),
            "start_by": _start_by(kind.c.start_by, self.due, kind.c.expires),
            "unique_until": cast(kind.c.unique_until, Char),
        }
        if gated:
            self.values |= {name: kind.c[name] for name in ("limit_key", "limit_max", "rate_max", "rate_seconds")}
            self.values["state"] = _gate(kind.c.limit_key)

    def waking(self, statement: Any, known: Tables) -> Any:
        """With a wake for each gate; one for a job that is not there after all costs a look."""
        if not self.gated:
            return statement
        kind = self.kind
        woken = select(kind.c.queue, kind.c.limit_key, self.due).where(kind.c.limit_key.is_not(None)).distinct()
        return statement.add_cte(insert(known.wake).from_select(["queue", "key", "due_at"], woken).cte("wake"))


@functools.cache
def many(schema: str, keyed: bool, gated: bool) -> Statement:
    """Insert jobs. Returns id; with keys those alone whose key was free: id and key."""
    known = tables(schema)
    job = known.job
    rows = Rows({"unique_key": Text} if keyed else {}, gated)
    values = rows.values | ({"unique_key": rows.each.c.unique_key} if keyed else {})
    given = select(*values.values()).select_from(rows.both).order_by(rows.each.c.place)
    adding: Any = rows.waking(pg_insert(job).from_select(list(values), given), known)
    if not keyed:
        return Statement(adding.returning(job.c.id))
    return Statement(unless_key_taken(adding, job).returning(job.c.id, job.c.unique_key))


@functools.cache
def dates() -> Statement:
    """When jobs of some kinds become due, and by when they must have started, as text that the same session reads again."""
    names = ("run_at", "delay", "start_by", "expires")
    kind = unnest("kind", {name: _KIND[name] for name in names})
    due = _available_at(kind.c.run_at, kind.c.delay)
    end = _start_by(kind.c.start_by, due, kind.c.expires)
    return Statement(select(cast(due, Text), cast(end, Text)).order_by(kind.c.place))


@functools.cache
def steps(schema: str, gated: bool) -> Statement:
    """Insert the jobs of a workflow: what waits for others does so in state ``b``. Returns id."""
    known = tables(schema)
    rows = Rows({"pending": Integer, "children": Integer, "step": Text}, gated)
    each, zero = rows.each, cast(literal_column("0"), Integer)
    due_state = _gate(rows.kind.c.limit_key) if gated else cast(literal_column("'r'"), Char)
    named = func.jsonb_build_object(
        literal_column("'step'"), each.c.step, literal_column("'flow'"), _bound("flow", Text)
    )
    meta = func.coalesce(rows.values["meta"], func.jsonb_build_object())
    values = rows.values | {
        "meta": meta.op("||", return_type=JSONB())(func.jsonb_strip_nulls(named)),
        "state": case((each.c.pending > zero, cast(literal_column("'b'"), Char)), else_=due_state),
        "pending": func.nullif(each.c.pending, zero),
        "children": func.nullif(each.c.children, zero),
        "workflow": _bound("workflow", BigInteger),
    }
    # In autocommit mode this would be another transaction than the one before, and a step could end before those behind it
    # are known.
    same = literal_column("pg_current_xact_id()::text") == _bound("xact", Text)
    given = select(*values.values()).select_from(rows.both).where(same).order_by(each.c.place)
    adding: Any = pg_insert(known.job).from_select(list(values), given)
    return Statement(rows.waking(adding, known).returning(known.job.c.id))


@functools.cache
def lanes(schema: str) -> Statement:
    lane = tables(schema).lane
    given = unnest("given", {"queue": Text, "priority": Integer}, numbered=False)
    priority = cast(given.c.priority, SmallInteger)
    missing = ~exists().where(lane.c.queue == given.c.queue, lane.c.priority == priority)
    return Statement(insert(lane).from_select(["queue", "priority"], select(given.c.queue, priority).where(missing)))


@functools.cache
def notice() -> Statement:
    queue = func.unnest(array("queue", Text)).column_valued("queue")
    return Statement(select(func.pg_notify(bindparam("p_channel", type_=Text), queue)))


def statements(schema: str) -> dict[str, str]:
    """The statements by name, as a DBAPI cursor gets them; for the one job, its plainest and its fullest shape."""
    return {
        "enqueue_one": one(schema, Shape(False, False, False, False, True)).text,
        "enqueue_one_full": one(schema, Shape(True, True, True, True, False, True, True)).text,
        "find_keys": find_keys(schema).text,
        "enqueue_many": many(schema, False, False).text,
        "enqueue_many_keyed": many(schema, True, True).text,
        "enqueue_steps": steps(schema, True).text,
        "dates": dates().text,
        "lanes": lanes(schema).text,
        "wake": notice().text,
    }
