"""The pages about queues and limits: their application is run, and each command that they show."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from leasequeue.cli.main import main
from tests.support.databases import Database
from tests.support.waiting import until
from tests.support.workers import Worker, workers

pytestmark = pytest.mark.process

DOCS = Path(__file__).parents[2] / "docs"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
Start = Callable[..., Worker]


@pytest.fixture
def worker() -> Iterator[Any]:
    yield from workers()


@pytest.mark.direct_only
@pytest.mark.parametrize(("page", "jobs"), [("limits", 60), ("queues-and-priorities", 3)])
def test_what_the_page_shows(database: Database, worker: Start, tmp_path: Path, page: str, jobs: int) -> None:
    blocks = BLOCK.findall((DOCS / f"{page}.md").read_text())
    (application,) = (text for kind, text in blocks if kind == "python")
    (tmp_path / "app.py").write_text(application)
    path = os.pathsep.join([str(tmp_path), str(DOCS.parent)])
    env = {**os.environ, "LEASEQUEUE_URL": database.url, "PYTHONPATH": path}
    lines = [line for kind, text in blocks if kind == "sh" for line in text.splitlines()]
    assert len(lines) >= 5

    for line in lines:
        words = shlex.split(line, comments=True)
        if words[0] == "python":
            subprocess.run([sys.executable, *words[1:]], env=env, cwd=tmp_path, check=True, timeout=120)
        elif words[1] != "worker":  # which is started below
            done = CliRunner(env={"LEASEQUEUE_URL": database.url}).invoke(main, words[1:])
            assert done.exit_code == 0, f"{line}: {done.stderr}"
    # Whatever the commands left, the application's jobs run to the end.
    worker(database, app="app:lq", env={"PYTHONPATH": path}, queues=(), reserved=()).started()
    left = "SELECT count(*) FROM leasequeue_job"
    until(lambda: database.scalar(left) == 0, 30, "the jobs of the page to be done")
    kept = database.scalar("SELECT count(*) FROM leasequeue_finished WHERE outcome = 'succeeded'")
    assert kept == (jobs - 1 if page == "queues-and-priorities" else jobs)  # one queue keeps no history
