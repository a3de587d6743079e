"""Very many jobs at once, by COPY: several times as quick as an INSERT of as many.

COPY returns nothing and takes no expressions. So the ids are drawn before, and where jobs are for later the server is asked for
the times, once for each kind of job. Not for jobs with a limit or a unique key, whose rows are written together with others'
or depend on them; and not for a role that may insert jobs but not name their ids, or under row security: those are asked for
in the statement that draws the ids, since an error would cost the caller's transaction.

Locks: as an INSERT. What COPY cannot do is left to the INSERT; both leave the same rows.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from leasequeue.db.names import fill
from leasequeue.db.statement import Copy, Program, Statement

if TYPE_CHECKING:
    from leasequeue.job import Became, NewJob

COPY_MIN = 500
"""Fewer are inserted: drawing ids is a round trip."""

PIECE_ROWS = 1_000
COPY_ROWS = 100_000
COPY_CHARS = 32_000_000
"""What one COPY carries at most: rows, and characters of arguments (but one job always)."""

# Asked once, and materialized: each of those questions is dearer than a number of the sequence.
_DRAW = """WITH sequence AS MATERIALIZED (
    SELECT name FROM (SELECT CAST(pg_get_serial_sequence('{literal}', 'id') AS regclass) AS name) AS own
    WHERE has_sequence_privilege(name, 'USAGE') AND has_column_privilege('{literal}', 'id', 'INSERT')
        AND NOT row_security_active('{literal}')
)
SELECT string_agg(CAST(nextval(name) AS text), ',') FROM sequence CROSS JOIN generate_series(1, CAST(%(count)s AS int))"""

_COPY = "COPY {s}.leasequeue_job (id, queue, task, args, priority, max_attempts, meta) FROM STDIN"
_COPY_DATED = (
    "COPY {s}.leasequeue_job (id, queue, task, args, priority, max_attempts, meta, available_at, start_by) FROM STDIN"
)

_kind_of = attrgetter(
    "queue", "task", "priority", "max_attempts", "meta", "run_at", "delay_seconds", "start_by", "expires_seconds"
)
_dates_of = attrgetter("run_at", "delay_seconds", "start_by", "expires_seconds")
_args_of = attrgetter("args")
_SPECIAL = re.compile(r"[\\\n\r\t]")
_ESCAPES = {"\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"}


def copy(schema: str, jobs: Sequence[NewJob], indexes: Sequence[int], found: list[Became | None]) -> Program[list[int]]:
    """Insert those of the jobs that COPY can insert, and note them in ``found``. Returns the indexes of the others."""
    known = _statements(schema)
    left = [index for index in indexes if jobs[index].limit_key is not None]
    rest = [index for index in indexes if jobs[index].limit_key is None] if left else indexes
    if len(rest) < COPY_MIN:
        return list(indexes)
    for chunk in _chunks(jobs, rest):
        ((drawn,),) = yield known["draw"], {"count": len(chunk)}
        if drawn is None:
            return sorted([*left, *(index for index in rest if found[index] is None)])
        # They ascend in the order of the calls, whatever order they were drawn in.
        ids = sorted(map(int, drawn.split(",")))
        some = [jobs[index] for index in chunk]
        dates = yield from _dates(set(map(_dates_of, some)))
        # Made piece by piece, so that the server is at work on one while the next is written.
        yield known["copy_dated" if dates else "copy"], {"data": _pieces(some, ids, dates, chunk, found)}
    return left


def _pieces(
    jobs: list[NewJob], ids: list[int], dates: dict[tuple[Any, ...], str], indexes: Sequence[int],
    found: list[Became | None],
) -> Iterator[str]:  # fmt: skip
    around: dict[tuple[Any, ...], tuple[str, str]] = {}
    for first in range(0, len(jobs), PIECE_ROWS):
        piece = slice(first, first + PIECE_ROWS)
        yield "".join(_lines(jobs[piece], ids[piece], dates, around))
        for index, id in zip(indexes[piece], ids[piece], strict=True):
            found[index] = id


def _dates(asked: set[tuple[Any, ...]]) -> Program[dict[tuple[Any, ...], str]]:
    """The last two fields of each; empty where all of the jobs are due now, and have no end."""
    if asked <= {(None, 0.0, None, None)}:
        return {}
    from leasequeue.db import insert

    listed = list(asked)
    run_at, delay, start_by, expires = map(list, zip(*listed, strict=True))
    rows = yield insert.dates(), {"p_run_at": run_at, "p_delay": delay, "p_start_by": start_by, "p_expires": expires}
    return {one: f"\t{due}\t{_field(start)}" for one, (due, start) in zip(listed, rows, strict=True)}


def _lines(
    jobs: list[NewJob],
    ids: list[int],
    dates: dict[tuple[Any, ...], str],
    around: dict[tuple[Any, ...], tuple[str, str]],
) -> Iterator[str]:
    """The rows; ``around`` keeps what stands before and behind the arguments, by kind."""
    special = _SPECIAL.search
    for job, id, kind in zip(jobs, ids, map(_kind_of, jobs), strict=True):
        ends = around.get(kind)
        if ends is None:
            queue, task, *rest = map(_field, kind[:5])
            dated = dates[kind[5:]] if dates else ""
            ends = around[kind] = f"\t{queue}\t{task}\t", "\t" + "\t".join(rest) + dated + "\n"
        args = job.args
        yield f"{id}{ends[0]}{_escaped(args) if special(args) else args}{ends[1]}"


def _field(value: object) -> str:
    return "\\N" if value is None else _escaped(str(value))


def _escaped(text: str) -> str:
    return _SPECIAL.sub(lambda found: _ESCAPES[found[0]], text)


def _chunks(jobs: Sequence[NewJob], indexes: Sequence[int]) -> Iterator[Sequence[int]]:
    if len(indexes) <= COPY_ROWS and sum(map(len, map(_args_of, map(jobs.__getitem__, indexes)))) <= COPY_CHARS:
        yield indexes
        return
    first, chars = 0, 0
    for place, index in enumerate(indexes):
        size = len(jobs[index].args)
        if place > first and (place - first >= COPY_ROWS or chars + size > COPY_CHARS):
            yield indexes[first:place]
            first, chars = place, 0
        chars += size
    yield indexes[first:]


@functools.cache
def _statements(schema: str) -> dict[str, Statement]:
    texts = statements(schema)
    return {"draw": Statement(texts["draw"]), **{name: Copy(texts[name]) for name in ("copy", "copy_dated")}}


@functools.cache
def statements(schema: str) -> dict[str, str]:
    """Name and text of each statement, for the golden files."""
    filled = fill(schema, {"copy": _COPY, "copy_dated": _COPY_DATED, "literal": "{s}.leasequeue_job"})
    literal = filled.pop("literal").replace("'", "''")
    return {"draw": _DRAW.format(literal=literal), **{name: text.replace("%%", "%") for name, text in filled.items()}}
