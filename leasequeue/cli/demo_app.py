"""The application that ``leasequeue demo`` runs in two services: it reads log lines and writes what it found, once each."""

from __future__ import annotations

import datetime as dt
import hashlib
import os
import re

from sqlalchemy import text

from leasequeue.context import current_job
from leasequeue.db.demo import demo_statements
from leasequeue.queue import LeaseQueue

lq = LeaseQueue()

_TIME = re.compile(r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d")


@lq.task(name="read_line", queue="lines", max_attempts=3)
def read_line(line: int, content: str) -> None:
    """Parse one line; its effect and the end of its job are one transaction, so neither can come twice or alone."""
    found = _TIME.search(content)
    effect = {
        "line": line,
        "service": os.environ.get("LEASEQUEUE_RELEASE", "?"),
        "words": len(content.split()),
        "digest": hashlib.sha256(content.encode()).hexdigest()[:16],
        "logged_at": dt.datetime.fromisoformat(found.group()).replace(tzinfo=dt.UTC) if found else None,
    }
    with lq.begin() as conn:
        conn.execute(text(demo_statements(lq.schema).insert_effect), effect)
        current_job().complete(conn)
