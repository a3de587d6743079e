"""Uniqueness as it must not be done: each way is one that the checker has to catch."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from typing import Any

from sqlalchemy import text

from leasequeue.db import insert, unique
from leasequeue.db.statement import Program, Statement
from leasequeue.job import Enqueued, NewJob

PERIOD = dt.timedelta(seconds=0.25)
DELAY = dt.timedelta(milliseconds=60)

CONTROLS = {
    "retry all": "there, and reported as created by nobody",
    "select, then insert": "two live at once",
    "the application's clock": "a period cut short",
    "the update goes by the first look": "ran with what was replaced",
}
"""The name of each way, and what the checker must say of it."""


def break_it(control: str, skew_seconds: float) -> None:
    """Do it that way in this process from now on."""
    module: Any = unique
    if control == "retry all":
        module._settle = _settle_all
    elif control == "select, then insert":
        module.insert_one, module._settle = _insert_one, _settle_selected
        guarded = unique._held
        module._held = lambda *shape: _said(guarded(*shape).text.replace(_GUARD, ""))
    elif control == "the application's clock":
        right = unique._held
        module._held = lambda *shape: _skewed(right(*shape), skew_seconds)
    elif control == "the update goes by the first look":
        module.insert_one = _insert_one_reporting
    else:
        raise ValueError(control)


_GUARD = "ON CONFLICT (unique_key) WHERE unique_key IS NOT NULL DO NOTHING "
_right_settle = unique._settle


def _settle_all(schema: str, jobs: Sequence[NewJob], leads: dict[str, int]) -> Program[dict[str, Enqueued]]:
    """Bulk: where one key was taken and free a moment later, all of them are inserted again."""
    while True:
        settled: dict[str, Enqueued] = {}
        params = insert.columns(jobs, list(leads.values())) | {"p_unique_key": list(leads)}
        lead = jobs[next(iter(leads.values()))]
        if lead.hold_key is not None:
            return (yield from _right_settle(schema, jobs, leads))
        rows = yield insert.many(schema, True, False), params
        settled |= {key: Enqueued(int(id), True) for id, key in rows}
        missing = [key for key in leads if key not in settled]
        rows = yield insert.find_keys(schema), {"p_keys": missing}
        settled |= {key: Enqueued(int(id), False) for id, key in rows}
        if len(settled) == len(leads):
            return settled


def _insert_one(schema: str, job: NewJob, statement: Statement, params: Any) -> Program[Enqueued]:
    """A look, and an insert where nobody was seen; there is no index that would refuse the second one."""
    rows = yield insert.find_keys(schema), {"p_keys": [job.unique_key]}
    if rows:
        return Enqueued(int(rows[0][0]), False)
    rows = yield _said(_unguarded(statement) + " RETURNING id"), params
    return Enqueued(int(rows[0][0]), True)


def _settle_selected(schema: str, jobs: Sequence[NewJob], leads: dict[str, int]) -> Program[dict[str, Enqueued]]:
    if jobs[next(iter(leads.values()))].hold_key is not None:
        return (yield from _right_settle(schema, jobs, leads))
    rows = yield insert.find_keys(schema), {"p_keys": list(leads)}
    settled = {key: Enqueued(int(id), False) for id, key in rows}
    free = {key: index for key, index in leads.items() if key not in settled}
    if free:
        params = insert.columns(jobs, list(free.values())) | {"p_unique_key": list(free)}
        sql = _unguarded(insert.many(schema, True, False)) + " RETURNING id, unique_key"
        rows = yield _said(sql), params
        settled |= {key: Enqueued(int(id), True) for id, key in rows}
    return settled


def _unguarded(statement: Statement) -> str:
    return statement.text.partition(" ON CONFLICT")[0]


def _insert_one_reporting(schema: str, job: NewJob, statement: Statement, params: Any) -> Program[Enqueued]:
    """Debounce that reports what it saw, and does not look whether its update came to anything."""
    rows = yield statement, params
    if rows:
        return Enqueued(int(rows[0][0]), True)
    rows = yield insert.find_keys(schema), {"p_keys": [job.unique_key]}
    return Enqueued(int(rows[0][0]) if rows else 0, False, job.on_conflict == "replace")


def _skewed(statement: Statement, seconds: float) -> Statement:
    return _said(statement.text.replace("clock_timestamp()", f"(clock_timestamp() + interval '{seconds} s')"))


def _said(sql: str) -> Statement:
    """A statement of which only the text is known; a DBAPI cursor alone can execute it."""
    made = Statement(text("SELECT"))
    made._text = sql
    return made
