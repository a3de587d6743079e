"""What ends without having run, also where others wait for it: suspects, and jobs that were not started in time."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from leasequeue.db.ends import CONTENDED

if TYPE_CHECKING:
    from leasequeue.db.connect import Link
    from leasequeue.db.ends import EndStatements
    from leasequeue.db.jobs import JobStatements

log = logging.getLogger("leasequeue.worker")


def bury(link: Link, sql: JobStatements, ends: EndStatements, max_abandoned: int) -> None:
    """Fail for good the suspects that were abandoned too often.

    One round; what is locked at the moment, or gets a child at the moment, is found by the next one.
    """
    params = {"max_abandoned": max_abandoned}
    rows = link.run(sql.bury, params)
    found = [(id, task) for id, task in rows if id is not None]
    if len(found) < len(rows):
        try:
            found += [(row[0], row[1]) for row in link.run(ends.bury, params) if row[3]]
        except CONTENDED:
            log.info("suspects that other jobs wait for are buried a little later: a child's row is locked, or new")
    for id, task in found:
        log.error("job %s (%s) has failed for good: its process died or was lost too often", id, task)


def end_joined(link: Link, sql: str, bound_seconds: float) -> list[tuple[int, str, str]]:
    """One round of a statement of ``db/ends.py`` for what expires or was cancelled. Returns id, task and queue of that."""
    try:
        rows = link.run(sql, {}, bound_seconds=bound_seconds)
    except CONTENDED:
        return []  # found by the next round
    return [(row[0], row[1], row[2]) for row in rows if row[3]]
