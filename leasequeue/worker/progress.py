"""What handlers say of their progress, written by the renewer's thread: a handler sets a value and waits for nobody.

Once a second, what has changed since is written in one statement for each holder, fenced by the pair (id, term). A row that
is locked, or is in other hands by now, is passed over: the first is written a second later, the second is no error, for what
this process says of it does not count any more. The last value of an attempt that ends as failed or cancelled is written by
the completer just before, so that the history keeps it; a job that has succeeded has no progress.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterable
from typing import TYPE_CHECKING

from leasequeue.db.progress import write_progress
from leasequeue.worker.hand import Claimed, Hand

if TYPE_CHECKING:
    from leasequeue.db.connect import Link

EVERY_SECONDS = 1.0


class ProgressWriter:
    """A chore of the renewer. :meth:`write` is for any thread, each with its own connection."""

    def __init__(self, schema: str, hand: Hand) -> None:
        self._sql = write_progress(schema)
        self._hand = hand
        self._due = 0.0

    def __call__(self, link: Link) -> None:
        now = time.monotonic()
        if now < self._due:
            return
        self._due = now + EVERY_SECONDS
        self.write(link, self._hand.jobs())

    def write(self, link: Link, jobs: Iterable[Claimed]) -> None:
        """Write what these jobs have said since it was last written; no statement where that is nothing."""
        changed: dict[uuid.UUID, list[Claimed]] = {}
        for job in jobs:
            ctx = job.ctx
            if ctx is not None and ctx.reported is not ctx.stored:
                changed.setdefault(job.holder, []).append(job)
        for holder, members in changed.items():
            said = {job.id: (job.ctx, job.ctx.reported) for job in members if job.ctx is not None}
            params = {
                "ids": [job.id for job in members],
                "terms": [job.term for job in members],
                "me": holder,
                "values": [json.dumps(value and value._asdict()) for _, value in said.values()],
            }
            for (id,) in link.run(self._sql, params):
                ctx, value = said[id]
                ctx.stored = value
