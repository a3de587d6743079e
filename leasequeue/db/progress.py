"""The statement by which a worker writes how far its jobs are. Locks their rows, ``FOR NO KEY UPDATE SKIP LOCKED``.

``progress`` is in no index, so the update is a HOT one; it leaves the lease as it is.
"""

from __future__ import annotations

from functools import cache

from leasequeue.db.jobs import FENCE
from leasequeue.db.names import qualify

_WRITE = f"""WITH k AS MATERIALIZED (
    SELECT id FROM {{s}}.leasequeue_job WHERE {FENCE} ORDER BY id FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE {{s}}.leasequeue_job AS job
SET progress = said.value::jsonb || jsonb_build_object('at', clock_timestamp())
FROM unnest(%(ids)s::bigint[], %(values)s::text[]) AS said (id, value)
WHERE job.id = ANY(ARRAY(SELECT id FROM k)) AND said.id = job.id RETURNING job.id"""


@cache
def write_progress(schema: str) -> str:
    """Writes ``values``, JSON objects, to the rows that are held; returns the ids of those that it wrote."""
    return _WRITE.format(s=qualify(schema).replace("%", "%%"))


def statements(schema: str) -> dict[str, str]:
    """The statement by its name, for the golden files."""
    return {"write_progress": write_progress(schema)}
