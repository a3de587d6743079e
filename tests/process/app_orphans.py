"""The process tests' application, with a job that leaves an orphan behind."""

from __future__ import annotations

import subprocess

from tests.process.app import lq

__all__ = ["lq"]


@lq.task(name="orphan")
def orphan(seconds: int) -> None:
    """Its shell ends at once; what the shell started becomes a child of PID 1."""
    subprocess.run(["/bin/sh", "-c", f"sleep {seconds} &"], check=True)
