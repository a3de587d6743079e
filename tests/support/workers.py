"""Real workers for the process tests: started, signalled and killed as an operator or a machine would."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from leasequeue.worker.options import WorkerOptions
from tests.support.databases import Database
from tests.support.waiting import until

APP = "tests.process.app:lq"


class Worker:
    """One supervisor and its processes.

    Args:
        url: where it works.
        group: give it a process group of its own, to be signalled as systemd signals a service.
        within: a command that runs it, e.g. ``("unshare", ...)``.
        options: fields of ``WorkerOptions``.
    """

    def __init__(
        self,
        url: str,
        *,
        group: bool = True,
        env: dict[str, str] | None = None,
        within: Sequence[str] = (),
        **options: Any,
    ) -> None:
        defaults: dict[str, Any] = {
            "app": APP,
            "ttl_seconds": 3.0,
            "shutdown_timeout_seconds": 5.0,
            "log_level": "debug",
        }
        self.options = WorkerOptions(url=url, **(defaults | options))
        handle, name = tempfile.mkstemp(prefix="worker-", suffix=".log")
        self._log = Path(name)
        with os.fdopen(handle, "w") as log:
            self.process = subprocess.Popen(
                [*within, sys.executable, "-m", "tests.support.run_worker"],
                stdin=subprocess.PIPE,
                stderr=log,
                stdout=log,
                start_new_session=group,
                env={**os.environ, **(env or {})},
            )
        assert self.process.stdin is not None
        self.process.stdin.write(self.options.to_json().encode() + b"\n")
        self.process.stdin.flush()
        self.process.stdin.close()

    @property
    def log(self) -> str:
        return self._log.read_text()

    def started(self, seconds: float = 20.0) -> Worker:
        """Wait until its processes serve."""
        wanted = self.options.processes
        until(lambda: self.log.count("started: database") >= wanted, seconds, "the worker to start")
        return self

    def standing_by(self, seconds: float = 20.0) -> Worker:
        """Wait until its processes serve and the spare, which comes after them, has its application imported."""
        self.started(seconds)
        until(lambda: "stands by to run suspects" in self.log, seconds, "the spare to stand by")
        return self

    def children(self) -> list[int]:
        """The processes that the supervisor started and that live."""
        try:
            text = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text()
        except OSError:
            return []
        return [int(word) for word in text.split()]

    def serving(self, database: Database) -> list[int]:
        """The processes that serve queues, by their rows."""
        rows = database.execute("SELECT pid FROM leasequeue_worker WHERE expires_at > now()")
        return [pid for (pid,) in rows if pid in self.children()]

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def signal_group(self, number: int) -> None:
        os.killpg(self.process.pid, number)

    def kill_tree(self) -> None:
        """SIGKILL to all at once, as a machine that loses power."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def stop(self, seconds: float = 20.0) -> int:
        """SIGTERM, and wait for the end."""
        if self.process.poll() is None:
            self.signal(signal.SIGTERM)
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the worker did not end in {seconds:g} s; its log:\n{self.log[-6000:]}") from None

    def close(self) -> None:
        """Whatever is left of it goes."""
        for pid in (*self.children(), self.process.pid):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        self.process.wait()
        self._log.unlink(missing_ok=True)


def workers() -> Iterator[Any]:
    """The body of the fixture ``worker``: ``worker(database, **options)`` starts one; all end with the test."""
    made: list[Worker] = []

    def make(database: Database, **options: Any) -> Worker:
        url = options.pop("url", None) or database.url
        made.append(Worker(url, **options))
        return made[-1]

    yield make
    for each in made:
        each.close()
