"""What the three versions of the application share: its settings, its table, its pages."""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import os
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import psycopg

URL = os.environ["DATABASE_URL"]
SERVICE = os.environ.get("SERVICE", "blue")
PORT = int(os.environ.get("PORT", "8001" if SERVICE == "green" else "8000"))
SWEEP_SECONDS = int(os.environ.get("SWEEP_SECONDS", "5"))
TTL = dt.timedelta(seconds=float(os.environ.get("TTL_SECONDS", "30")))

CREATE = """CREATE TABLE IF NOT EXISTS sweep (
    service text NOT NULL, job text NOT NULL, due_at timestamptz NOT NULL, at timestamptz NOT NULL DEFAULT clock_timestamp())"""


def create_table() -> None:
    # Both services may make it at once: IF NOT EXISTS does not see what the other has not committed.
    with contextlib.suppress(psycopg.errors.UniqueViolation, psycopg.errors.DuplicateTable):
        with psycopg.connect(URL) as conn:
            conn.execute(CREATE)


def runs() -> list[dict[str, str]]:
    """The last runs: each job's effect is a row, so that they can be counted."""
    with psycopg.connect(URL) as conn:
        rows = conn.execute("SELECT service, job, due_at, at FROM sweep ORDER BY at DESC LIMIT 50").fetchall()
    return [
        {"service": service, "job": job, "due_at": due_at.isoformat(), "at": at.isoformat()}
        for service, job, due_at, at in rows
    ]


def serve(leader: Callable[[], dict[str, Any]]) -> None:
    """Serve /leader and /runs in a thread."""
    pages: dict[str, Callable[[], Any]] = {"/leader": lambda: {"service": SERVICE, **leader()}, "/runs": runs}

    class Pages(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            page = pages.get(self.path)
            if page is None:
                self.send_error(404, "there is /leader and /runs")
                return
            body = json.dumps(page(), indent=2).encode() + b"\n"
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", PORT), Pages)
    threading.Thread(target=server.serve_forever, name="pages", daemon=True).start()
    print(f"{SERVICE} serves http://127.0.0.1:{PORT}/leader and /runs", flush=True)
