"""The programs in docs/ run as they stand there, and print what the page says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.databases import Database
from tests.support.workers import Worker, workers

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture
def worker() -> Iterator[Callable[..., Worker]]:
    yield from workers()


def program(page: str, folder: Path) -> tuple[str, str]:
    """Write the page's program into the folder. Returns its module's name and what it is said to print."""
    text = (DOCS / page).read_text()
    (code,) = re.findall(r"```python\n(# \w+\.py\n.*?)```", text, re.DOTALL)
    (printed,) = re.findall(r"```text\n(.*?)```", text, re.DOTALL)
    name = re.match(r"# (\w+)\.py", code)
    assert name is not None
    (folder / f"{name.group(1)}.py").write_text(code)
    return name.group(1), printed


def run(name: str, folder: Path, database: Database) -> str:
    done = subprocess.run(
        [sys.executable, f"{name}.py"],
        cwd=folder,
        env={**os.environ, "LEASEQUEUE_URL": database.url},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.direct_only  # a page says the same on any way to the server
def test_uniqueness(database: Database, tmp_path: Path) -> None:
    name, printed = program("uniqueness.md", tmp_path)
    assert run(name, tmp_path, database) == printed


@pytest.mark.direct_only  # as above
def test_results(database: Database, tmp_path: Path, worker: Callable[..., Worker]) -> None:
    name, printed = program("results.md", tmp_path)
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    worker(database, app=f"{name}:lq", env={"PYTHONPATH": path})
    assert run(name, tmp_path, database) == printed
