"""The programs that enqueue under unique keys.

A key is kept by one of two rows, or by both::

    leasequeue_job.unique_key     a live job has it: until it has ended, or (``unique_until`` = 's') until it is claimed
    leasequeue_hold               a job took it for a period, by the database's clock, whatever has become of that job

Locks: a call waits for the transaction that inserted a row with its key, took the hold, or replaces the same job, until
that one has ended; then it goes by what it finds: case 27 is that such a call must not be dropped, since the other may
have rolled back. It waits by the insert that comes to nothing (or, for a period, by locking the hold), never by a lock on a
job's row: a worker may claim that row at the same moment, and must be able to renew and complete it while the caller's
transaction goes on. So a job is replaced in a statement of its own, which takes what waits with SKIP LOCKED; a row that is
locked, but not changed, by somebody is tried again for LOCKED_SECONDS.

Within one call all holds are taken before any row, and each sort in the order of the keys, so that two calls that use their
keys in the same way do not wait in a circle, save where a key that was taken is free a moment later: it is then taken after
those behind it (seen once in 22,000 calls over a dozen keys). Two transactions that take common keys in
several calls can at any time. The server ends one of the two.

Every answer is that of the statement that settled its key: what is unsettled alone is tried again, since a second
insert of a key that we created would report it as found.
"""

from __future__ import annotations

import functools
import itertools
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from sqlalchemy import (
    BigInteger,
    Double,
    Interval,
    Text,
    delete,
    exists,
    false,
    func,
    literal_column,
    null,
    select,
    text,
    true,
    union_all,
    update,
)
from sqlalchemy.dialects.postgresql import insert as pg_insert

from leasequeue.db import insert
from leasequeue.db.names import qualify
from leasequeue.db.statement import Params, Program, Statement
from leasequeue.db.tables import tables
from leasequeue.errors import DatabaseUnavailable, DuplicateJob
from leasequeue.job import RAISE, REPLACE, Enqueued

if TYPE_CHECKING:
    from leasequeue.job import Became, NewJob

UNIQUE_ROUNDS = 50
"""How often a unique key may be found taken and, a moment later, held by nobody, before we give up."""
LOCKED_SECONDS = 10.0
"""How long a job that waits, and whose row a transaction has locked, is tried again. A claim locks it for milliseconds."""


class _Way(NamedTuple):
    """How a call has its key. Two calls with one key and one way are settled by one row."""

    live: bool
    held: bool
    replaces: bool


class _Segment(NamedTuple):
    """Calls that follow each other with one key and one way: one row settles them all."""

    way: _Way
    calls: list[int]

    @property
    def lead(self) -> int:
        """The call whose row is inserted: of those that replace each other, the last."""
        return self.calls[-1 if self.way.replaces else 0]


def insert_one(schema: str, job: NewJob, statement: Statement, params: Params) -> Program[Enqueued]:
    """Insert a job that needs its key for its life, by a statement of ``insert.one``."""
    patience = _Patience()
    while patience.more(job.unique_key):
        rows = yield statement, params
        if rows:
            return Enqueued(int(rows[0][0]), True)
        if job.on_conflict == REPLACE:
            gated = job.limit_key is not None
            changed = insert.columns([job], [0]) | {"p_unique_key": [job.unique_key]}
            rows = yield _replace(schema, gated, by_key=True), changed
            for id, _, replaced, waits in rows:
                if replaced or not waits:
                    return Enqueued(int(id), False, bool(replaced))
                yield patience.rest()
            continue
        # ON CONFLICT has waited for whoever held the key. A statement of its own, with a snapshot of its own, sees the
        # job if that one committed; if it is gone by now, the key is free again.
        rows = yield insert.find_keys(schema), {"p_keys": [job.unique_key]}
        if rows:
            _check(job, int(rows[0][0]))
            return Enqueued(int(rows[0][0]), False)
    raise AssertionError  # its patience ends with an error


class _Patience:
    """How often what comes to nothing is tried again."""

    def __init__(self) -> None:
        self._rounds = 0
        self._locked_until: float | None = None

    def more(self, key: object) -> bool:
        """One more round.

        Raises:
            DatabaseUnavailable: it was the last one.
        """
        if self._locked_until is not None and time.monotonic() > self._locked_until:
            raise DatabaseUnavailable(
                f"the job with the unique key {key!r} waits to be replaced, and for {LOCKED_SECONDS:.0f} s a transaction has "
                f"had its row locked: end that one and try again"
            )
        if self._rounds == UNIQUE_ROUNDS:
            raise _restless(key)
        self._rounds += 1
        return True

    def rest(self) -> tuple[Statement, Params]:
        """A pause, where a row was found locked; it does not count as a round."""
        self._rounds -= 1
        if self._locked_until is None:
            self._locked_until = time.monotonic() + LOCKED_SECONDS
        return _REST, {}


_REST = Statement(text("SELECT 1 FROM pg_sleep(0.01)"))


def insert_keyed(
    schema: str,
    jobs: Sequence[NewJob],
    found: list[Became | None],
    chunks: Callable[[Sequence[NewJob], Sequence[int]], list[list[int]]],
) -> Program[None]:
    """Insert those of the jobs that have keys, and note in ``found`` what became of each."""
    waiting: dict[str, list[int]] = {}
    for index, job in enumerate(jobs):
        key = job.unique_key or job.hold_key
        if key is not None:
            waiting.setdefault(key, []).append(index)
    while waiting:
        segments = {}
        for key in sorted(waiting):
            segments[key] = segment = _first(jobs, waiting[key])
            waiting[key] = waiting[key][len(segment.calls) :]
        waiting = {key: calls for key, calls in waiting.items() if calls}
        # First all that take a period: each hold is locked before any row, by every call.
        held = [key for key, segment in segments.items() if segment.way.held]
        rest = [key for key, segment in segments.items() if not segment.way.held]
        groups = [held] + [list(group) for _, group in itertools.groupby(rest, key=lambda key: segments[key].way)]
        for group in groups:
            leads = {segments[key].lead: key for key in group}
            for chunk in chunks(jobs, list(leads)):
                settled = yield from _settle(schema, jobs, {leads[index]: index for index in chunk})
                for key, settled_as in settled.items():
                    _note(jobs, segments[key], settled_as, found)


def _first(jobs: Sequence[NewJob], calls: list[int]) -> _Segment:
    way = _way(jobs[calls[0]])
    return _Segment(way, list(itertools.takewhile(lambda index: _way(jobs[index]) == way, calls)))


def _way(job: NewJob) -> _Way:
    return _Way(job.unique_key is not None, job.hold_key is not None, job.on_conflict == REPLACE)


def _note(jobs: Sequence[NewJob], segment: _Segment, settled: Enqueued, found: list[Became | None]) -> None:
    calls, first = segment.calls, 0
    if settled.created:
        # Of those that replace each other the first has created the job, and the last one's row is what stands there.
        found[calls[0]], first = settled, 1
    for index in calls[first:]:
        _check(jobs[index], settled.id)
        found[index] = Enqueued(settled.id, False, segment.way.replaces and (settled.created or settled.replaced))


def _settle(schema: str, jobs: Sequence[NewJob], leads: dict[str, int]) -> Program[dict[str, Enqueued]]:
    """Insert one row for each key, or find who has it. Either all of the calls take a period, or all have one way."""
    unsettled, settled = dict(leads), dict[str, Enqueued]()
    gated = any(jobs[index].limit_key is not None for index in leads.values())
    way = _way(jobs[next(iter(leads.values()))])

    def settle(key: str, found: Enqueued) -> None:
        settled[key] = found
        del unsettled[key]

    patience = _Patience()
    while patience.more(next(iter(unsettled))):
        locked = False
        params = insert.columns(jobs, list(unsettled.values())) | {"p_unique_key": list(unsettled)}
        if way.held:
            params["p_live_key"] = [jobs[index].unique_key for index in unsettled.values()]
            params["p_hold_seconds"] = [jobs[index].hold_seconds for index in unsettled.values()]
            rows = yield _held(schema, gated), params
            strays = {key: int(id) for key, id, there in rows if not there}
            for key, id, there in rows:
                if there:
                    settle(key, Enqueued(int(id), True))
            if strays:
                undo: Params = {"p_unique_key": list(strays), "p_id": list(strays.values())}
                yield _undo_holds(schema), undo
            if unsettled:
                locked = yield from _find_held(schema, jobs, unsettled, settle)
        else:
            rows = yield insert.many(schema, True, gated), params
            for id, key in rows:
                settle(key, Enqueued(int(id), True))
            if unsettled and way.replaces:
                changed = insert.columns(jobs, list(unsettled.values())) | {"p_unique_key": list(unsettled)}
                rows = yield _replace(schema, gated, by_key=True), changed
                for id, key, replaced, waits in rows:
                    if replaced or not waits:
                        settle(key, Enqueued(int(id), False, bool(replaced)))
                    else:
                        locked = True
            elif unsettled:
                rows = yield insert.find_keys(schema), {"p_keys": list(unsettled)}
                for id, key in rows:
                    settle(key, Enqueued(int(id), False))
        if not unsettled:
            return settled
        if locked:
            yield patience.rest()
    raise AssertionError  # its patience ends with an error


def _find_held(
    schema: str, jobs: Sequence[NewJob], unsettled: dict[str, int], settle: Callable[[str, Enqueued], None]
) -> Program[bool]:
    """Find who has the keys, and replace those that wait where that is wanted. What is free again stays unsettled.

    Returns:
        Whether one that is to be replaced is locked by somebody; it stays unsettled too.
    """
    replacing = [key for key, index in unsettled.items() if jobs[index].on_conflict == REPLACE]
    if replacing:
        yield _lock_holds(schema), {"p_unique_key": replacing}
    live_keys = [jobs[index].unique_key for index in unsettled.values() if jobs[index].unique_key is not None]
    found: dict[str, tuple[int, bool]] = {}
    rows = yield _find_holds(schema), {"p_unique_key": list(unsettled), "p_live_key": live_keys}
    for id, key, own in rows:
        if own or key not in found:
            found[key] = int(id), bool(own)
    wanted: dict[int, str] = {}  # in the order of the keys
    for key, index in list(unsettled.items()):
        if key not in found:
            continue
        if jobs[index].on_conflict == REPLACE:
            wanted[found[key][0]] = key
        else:
            settle(key, Enqueued(found[key][0], False))
    if not wanted:
        return False
    calls = [unsettled[key] for key in wanted.values()]
    gated = any(jobs[index].limit_key is not None for index in calls)
    rows = yield _replace(schema, gated, by_key=False), insert.columns(jobs, calls) | {"p_id": list(wanted)}
    locked = False
    for id, _, replaced, waits in rows:
        key = wanted.pop(int(id))
        if replaced or not waits:
            settle(key, Enqueued(int(id), False, bool(replaced)))
        else:
            locked = True
    for id, key in wanted.items():
        # They have ended. One that had the key only while it lived has it no more.
        if not found[key][1]:
            settle(key, Enqueued(id, False))
    return locked


def _check(job: NewJob, id: int) -> None:
    if job.on_conflict == RAISE:
        raise DuplicateJob(job.unique_key or job.hold_key or "", id, held=job.hold_key is not None)


def _restless(key: object) -> DatabaseUnavailable:
    return DatabaseUnavailable(
        f"the unique key {key!r} was taken and free again {UNIQUE_ROUNDS} times in a row: "
        f"its jobs end as fast as they are enqueued; try again"
    )


# Statements


@functools.cache
def _held(schema: str, gated: bool) -> Statement:
    """Take the keys for their periods and insert the jobs of those that were free. Returns key, id and whether it is there.

    The ids are drawn before anything is inserted, since the holds name them. A ``live_key`` must be free of a live job,
    too; where that one is found only by the insert, the hold names a job that is not there, and is to be undone.
    """
    known = tables(schema)
    job, hold = known.job, known.hold
    rows = insert.Rows({"unique_key": Text, "live_key": Text, "hold_seconds": Double}, gated)
    each = rows.each
    clock = func.clock_timestamp()
    seconds = each.c.hold_seconds.op("*", return_type=Interval())(literal_column("interval '1 second'"))
    # Looked at first: a hold that is refused only by ON CONFLICT stays locked until the transaction ends.
    free = (
        ~exists().where(hold.c.unique_key == each.c.unique_key, hold.c.expires_at > clock),
        ~exists().where(job.c.unique_key == each.c.live_key),
    )
    table = f"{qualify(schema)}.leasequeue_job".replace("'", "''")
    sequence = func.pg_get_serial_sequence(literal_column(f"'{table}'"), literal_column("'id'"))
    drawn = func.nextval(sequence, type_=BigInteger)
    wanted = select(each.c.unique_key, drawn, clock + seconds).where(*free).order_by(each.c.place)
    taking: Any = pg_insert(hold).from_select(["unique_key", "job_id", "expires_at"], wanted)
    # The clock after the wait for whoever took the key before: a volatile function in this WHERE is asked then.
    taking = taking.on_conflict_do_update(
        index_elements=[hold.c.unique_key],
        set_={"job_id": taking.excluded.job_id, "expires_at": taking.excluded.expires_at},
        where=hold.c.expires_at <= clock,
    )
    h = taking.returning(hold.c.unique_key, hold.c.job_id).cte("h")
    values = {"id": h.c.job_id} | rows.values | {"unique_key": each.c.live_key}
    both = rows.both.join(h, h.c.unique_key == each.c.unique_key)
    given = select(*values.values()).select_from(both).order_by(each.c.place)
    adding = insert.unless_key_taken(pg_insert(job).from_select(list(values), given), job)
    there = adding.returning(job.c.id).cte("there")
    found = select(h.c.unique_key, h.c.job_id, there.c.id.is_not(None)).select_from(
        h.outerjoin(there, there.c.id == h.c.job_id)
    )
    return Statement(rows.waking(found, known))


@functools.cache
def _undo_holds(schema: str) -> Statement:
    """Free the keys whose holds name a job that could not be inserted. Returns key."""
    hold = tables(schema).hold
    given = insert.unnest("given", {"unique_key": Text, "id": BigInteger}, numbered=False)
    mine = exists().where(given.c.unique_key == hold.c.unique_key, given.c.id == hold.c.job_id)
    keys = func.any(insert.array("unique_key", Text))
    return Statement(delete(hold).where(hold.c.unique_key == keys, mine).returning(hold.c.unique_key))


@functools.cache
def _lock_holds(schema: str) -> Statement:
    """Wait for whoever replaces by these keys, in their order. Nobody but calls with the same keys looks at the rows."""
    hold = tables(schema).hold
    keys = func.any(insert.array("unique_key", Text))
    return Statement(
        select(hold.c.unique_key).where(hold.c.unique_key == keys).order_by(hold.c.unique_key).with_for_update()
    )


@functools.cache
def _replace(schema: str, gated: bool, by_key: bool) -> Statement:
    """Replace waiting jobs by their keys or ids, those that nobody has locked.

    The keys of limits are woken by the insert that came before. Returns of each job that is there: id, key, whether it was
    replaced, and whether the statement saw it waiting.
    """
    job = tables(schema).job
    name, column = ("unique_key", job.c.unique_key) if by_key else ("id", job.c.id)
    type_ = Text if by_key else BigInteger
    rows = insert.Rows({name: type_}, gated)
    each = rows.each
    ours = column == func.any(insert.array(name, type_))
    new = {name: null() for name in insert.REPLACED} | rows.values
    locked = (
        select(job.c.id, each.c.place)
        .select_from(job.join(each, each.c[name] == column))
        .where(ours, job.c.state.in_(insert.WAITING))
        .order_by(each.c.place)
        .with_for_update(of=job, skip_locked=True)
        .cte("locked")
    )
    changing: Any = update(job).values(insert.replacement(job, new))
    changing = changing.where(job.c.id == locked.c.id, each.c.place == locked.c.place, rows.kind.c.place == each.c.kind)
    changed = changing.returning(job.c.id).cte("changed")
    found = select(job.c.id, job.c.unique_key, changed.c.id.is_not(None), job.c.state.in_(insert.WAITING))
    return Statement(found.select_from(job.outerjoin(changed, changed.c.id == job.c.id)).where(ours))


@functools.cache
def _find_holds(schema: str) -> Statement:
    """Who has the keys: the job of a hold that lasts (it may have ended), and who has them for its life.

    Returns id, key, and whether it was found by its own key.
    """
    known = tables(schema)
    job, hold = known.job, known.hold
    keys, lives = (func.any(insert.array(name, Text)) for name in ("unique_key", "live_key"))
    held = select(hold.c.job_id, hold.c.unique_key, false()).where(
        hold.c.unique_key == keys, hold.c.expires_at > func.clock_timestamp()
    )
    return Statement(union_all(held, select(job.c.id, job.c.unique_key, true()).where(job.c.unique_key == lives)))


def statements(schema: str) -> dict[str, str]:
    """The statements by name, as a DBAPI cursor gets them."""
    return {
        "held": _held(schema, True).text,
        "undo_holds": _undo_holds(schema).text,
        "lock_holds": _lock_holds(schema).text,
        "replace": _replace(schema, True, by_key=True).text,
        "replace_held": _replace(schema, True, by_key=False).text,
        "find_holds": _find_holds(schema).text,
    }
