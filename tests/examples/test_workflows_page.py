"""docs/workflows.md: the program on the page is run as it stands."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from leasequeue import LeaseQueue
from tests.support.databases import Database
from tests.support.waiting import until
from tests.support.workers import Worker, workers

pytestmark = pytest.mark.process
ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "workflows.md").read_text()


@pytest.fixture
def worker() -> Iterator[Callable[..., Worker]]:
    yield from workers()


@pytest.mark.direct_only  # what is told of connections is tested elsewhere
def test_the_program_does_what_the_page_says(database: Database, tmp_path: Path, worker: Callable[..., Worker]) -> None:
    program = re.findall(r"```python\n(.*?)```", PAGE, re.S)[0]
    (tmp_path / "report.py").write_text(program)
    env = {"PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)]), "LEASEQUEUE_URL": database.url}

    def run(*words: str) -> str:
        return subprocess.run(
            [sys.executable, *words],
            env={**os.environ, **env},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=True,
        ).stdout

    assert run("report.py", "nowhere") == "1\n"
    worker(database, app="report:lq", env=env).started()
    assert run("report.py", "the wall") == "2\n"
    lq = LeaseQueue()
    lq.configure(url=database.url)
    both = [lq.workflow_of(id) for id in (1, 2)]
    until(lambda: all(each.status().state != "running" for each in both), 20, "the workflows to end")
    assert lq.workflow_of(2).result("publish") == "2800 to the wall"
    assert lq.workflow_of(2).status().counts == {"skipped": 1, "succeeded": 10}
    shown = run("-m", "leasequeue.cli.main", "workflows", "1")
    lines = re.search(r"\$ leasequeue workflows 1\n(.*?)```", PAGE, re.S)
    assert lines is not None
    for line in lines[1].splitlines():
        assert line in shown or line == "..."
    lq.dispose()
