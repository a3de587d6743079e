"""The ground of a measurement: an embedded server with default durability, a fresh database, a supervised worker."""

from __future__ import annotations

import contextlib
import os
import platform
import secrets
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator

import psycopg

from leasequeue import embedded
from leasequeue.db.urls import Settings
from leasequeue.ops.migrate import migrate

Connection = psycopg.Connection[tuple[object, ...]]


@contextlib.contextmanager
def server() -> Iterator[embedded.EmbeddedServer]:
    """An embedded server in a folder of its own, removed at the end."""
    with tempfile.TemporaryDirectory(prefix="leasequeue-bench-", ignore_cleanup_errors=True) as folder:
        with embedded.start(folder, temporary=True) as running:
            print(
                f"PostgreSQL {running.version}, {os.cpu_count()} cores, Python {platform.python_version()}", flush=True
            )
            yield running


def database(running: embedded.EmbeddedServer) -> str:
    """The URL of a fresh database with the tables."""
    url = running.ensure_database(f"bench_{secrets.token_hex(4)}")
    migrate(Settings.parse(url), "public", lambda _: None)
    return url


def connect(url: str) -> Connection:
    return psycopg.connect(url, autocommit=True, prepare_threshold=None)


@contextlib.contextmanager
def worker(url: str, *words: str) -> Iterator[subprocess.Popen[bytes]]:
    """``leasequeue worker benchmarks.app:lq`` with further words; stopped by SIGTERM at the end."""
    command = [
        sys.executable,
        "-m",
        "leasequeue.cli.main",
        "worker",
        "benchmarks.app:lq",
        "--log-level",
        "warning",
        *words,
    ]
    with subprocess.Popen(command, env={**os.environ, "LEASEQUEUE_URL": url}) as process:
        try:
            yield process
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(40)
