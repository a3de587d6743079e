"""What was claimed and has never started goes back, with the unique key that it had until its start."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import psycopg

if TYPE_CHECKING:
    from leasequeue.db.connect import Link

_TAKEN = (psycopg.errors.UniqueViolation, psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected)
KEYS_SECONDS = 1.0
"""How long keys are given back one by one, after one of them was found taken; the others are then gone."""


def give_back(link: Link, sql: str, params: dict[str, Any], of_each: Sequence[str] = ()) -> list[tuple[Any, ...]]:
    """Run one of the statements of ``db/jobs.py`` that put back what has not started. Returns its rows.

    A job whose key is being taken by somebody else at the moment goes back without it, as if it had started.

    Args:
        of_each: the names of the parameters that are lists with a value for each job: these are then put back one by one.
            Without them all keys are kept, or none.
    """
    try:
        return link.run(sql, params | {"keys": True})
    except _TAKEN:
        pass
    if not of_each:
        return link.run(sql, params | {"keys": False})
    rows: list[tuple[Any, ...]] = []
    until = time.monotonic() + KEYS_SECONDS
    for n in range(len(params[of_each[0]])):
        one = params | {name: params[name][n : n + 1] for name in of_each}
        if time.monotonic() < until:
            try:
                rows += link.run(sql, one | {"keys": True})
                continue
            except _TAKEN:
                pass
        rows += link.run(sql, one | {"keys": False})
    return rows
