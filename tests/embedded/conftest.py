"""Folders and processes for the tests of the embedded server."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from leasequeue import embedded
from leasequeue.embedded.folder import Folder
from leasequeue.embedded.processes import of_data_folder
from tests.support.server import quick_folder
from tests.support.waiting import until

# Starts the folder, says so, and then stays until it is killed or told to leave.
OWNER = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # whatever whoever started the tests has made of it
from leasequeue import embedded
server = embedded.start(sys.argv[1], durable=False)
print(server.port, server.postmaster_pid, flush=True)
sys.stdin.readline()
server.stop()
"""


class Owner:
    """A process that uses an embedded server."""

    def __init__(self, folder: Path, script: str = OWNER) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", script, str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def ready(self) -> tuple[int, int]:
        """(port, pid of the postmaster), once it has started."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"the owner ended with {self.process.wait()}"
        port, pid = map(int, line.split())
        return port, pid

    def kill(self, number: int = signal.SIGKILL) -> None:
        self.process.send_signal(number)
        self.process.wait(60)

    def close(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        self.process.communicate()


@pytest.fixture(scope="session")
def prepared() -> Iterator[Path]:
    """A folder with fresh database files, to be copied: 0.1 s where initdb takes 1."""
    above = Path(tempfile.mkdtemp(prefix="lqe-", dir=quick_folder()))
    above.chmod(0o711)
    embedded.start(above / "server", durable=False).stop()
    yield above / "server"
    shutil.rmtree(above)


@pytest.fixture
def folder(new_folder: Path, prepared: Path) -> Path:
    """A folder whose database files are there already; the server in it is gone afterwards."""
    Folder(new_folder).make()
    for name in ("password", "data"):
        subprocess.run(["cp", "-a", prepared / name, new_folder / name], check=True)
    return new_folder


@pytest.fixture
def new_folder() -> Iterator[Path]:
    """A folder that is not made yet, and that anybody may pass through to; the server in it is gone afterwards."""
    above = Path(tempfile.mkdtemp(prefix="lqe-", dir=quick_folder()))
    above.chmod(0o711)
    path = above / "server"
    yield path
    found = Folder(path)
    until(lambda: not found.is_watched(), 60, "the watcher to leave")
    shutil.rmtree(above)


@pytest.fixture
def owners(new_folder: Path) -> Iterator[list[Owner]]:
    """Processes to be ended with the test."""
    running: list[Owner] = []
    yield running
    for owner in running:
        owner.close()


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    with open(f"/proc/{pid}/stat") as stat:  # a zombie runs nothing
        return stat.read().rsplit(")", 1)[1].split()[0] != "Z"


def processes(folder: Path) -> list[int]:
    """All processes of Postgres in that folder."""
    return of_data_folder(folder / "data")
