"""What is left and what comes back after a kill of each of the processes involved."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
from pathlib import Path

import psycopg
import pytest

from leasequeue import embedded
from leasequeue.embedded.folder import Folder
from tests.embedded.conftest import OWNER, Owner, is_alive, processes
from tests.support.waiting import until

pytestmark = pytest.mark.process


def answers(server: embedded.EmbeddedServer) -> bool:
    with psycopg.connect(server.url(), autocommit=True) as conn:
        return conn.execute("SELECT 1").fetchone() == (1,)


def test_a_temporary_server_leaves_no_file_behind(new_folder: Path, owners: list[Owner]) -> None:
    owners.append(Owner(new_folder, OWNER.replace("durable=False", "durable=False, temporary=True")))
    owners[0].ready()
    owners[0].kill()
    until(lambda: not new_folder.exists(), 10, "the folder to be removed")
    assert not Folder(new_folder).is_watched()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_no_orphan_after_the_only_owner_is_killed(folder: Path, owners: list[Owner], number: int) -> None:
    owners.append(Owner(folder))
    _, postmaster = owners[0].ready()
    owners[0].kill(number)
    until(lambda: not is_alive(postmaster), 30, "the postmaster to stop")
    until(lambda: not Folder(folder).is_watched(), 30, "the watcher to leave")
    assert not processes(folder)


def test_the_server_stays_while_one_owner_lives(folder: Path, owners: list[Owner]) -> None:
    owners += [Owner(folder), Owner(folder), Owner(folder)]  # at the same time
    found = {owner.ready() for owner in owners}
    assert len(found) == 1, "three starts at once share one server"
    ((_, postmaster),) = found
    owners[0].kill()
    owners[1].kill(signal.SIGTERM)
    with embedded.start(folder) as server:
        assert server.postmaster_pid == postmaster
        assert answers(server)
    assert is_alive(postmaster)
    assert len(os.listdir(folder / "users")) == 1, "the dead are forgotten"
    owners[2].kill()
    until(lambda: not processes(folder), 30, "the server to stop")


def test_killed_during_its_start(new_folder: Path, owners: list[Owner]) -> None:
    """In the middle of initdb: nothing goes on running, and the half-made data is made anew."""
    owners.append(Owner(new_folder))
    until(lambda: (new_folder / "data.new" / "base").exists(), 10, "initdb to be at work")
    owners[0].kill()
    until(lambda: not Folder(new_folder).is_watched(), 20, "the watcher to leave")
    assert not processes(new_folder)
    with embedded.start(new_folder, durable=False) as server:
        assert answers(server)


def test_the_watcher_is_killed_during_initdb(new_folder: Path, owners: list[Owner]) -> None:
    owners.append(Owner(new_folder))
    until(lambda: (new_folder / "data.new" / "base").exists(), 10, "initdb to be at work")
    os.kill(Folder(new_folder).read_state()["watcher"], signal.SIGKILL)
    owners[0].kill()
    assert not (new_folder / "data").exists()
    with embedded.start(new_folder, durable=False) as server:
        assert answers(server)


def test_the_postmaster_is_killed(folder: Path) -> None:
    """It comes back on the same port, though its children held its memory for a moment."""
    with embedded.start(folder, durable=False) as server:
        port, old = server.port, server.postmaster_pid
        with psycopg.connect(server.url(), autocommit=True) as conn:
            conn.execute("CREATE TABLE t AS SELECT 1 AS a")
            busy = conn.info.backend_pid
            # A stopped child does not notice its postmaster's death, and holds the shared memory.
            os.kill(busy, signal.SIGSTOP)
            os.kill(old, signal.SIGKILL)
            until(lambda: server.postmaster_pid not in (0, old), 20, "another postmaster")
            until(lambda: answers(server), 20, "it to answer")
        assert server.port == port
        assert not is_alive(busy)
        with psycopg.connect(server.url()) as conn:
            assert conn.execute("SELECT a FROM t").fetchone() == (1,)


def test_the_postmaster_is_killed_just_before_a_start(folder: Path, owners: list[Owner]) -> None:
    """No dead URI is handed out."""
    owners.append(Owner(folder))
    _, postmaster = owners[0].ready()
    for _ in range(3):
        os.kill(postmaster, signal.SIGKILL)
        with embedded.start(folder) as server:
            assert answers(server)
            postmaster = server.postmaster_pid


def test_the_watcher_is_killed(folder: Path, owners: list[Owner]) -> None:
    """The kernel tells the postmaster to shut down; the next start brings it back."""
    owners.append(Owner(folder))
    _, postmaster = owners[0].ready()
    os.kill(Folder(folder).read_state()["watcher"], signal.SIGKILL)
    until(lambda: not is_alive(postmaster), 10, "the postmaster to follow")
    with embedded.start(folder, durable=False) as server:
        assert answers(server)


def test_everything_is_killed_at_once(folder: Path, owners: list[Owner]) -> None:
    """As by the kernel when a container ends: a start right after it finds its way."""
    owners.append(Owner(folder))
    owners[0].ready()
    watcher = Folder(folder).read_state()["watcher"]
    for pid in [watcher, *processes(folder)]:
        with contextlib.suppress(ProcessLookupError):  # children follow their postmaster
            os.kill(pid, signal.SIGKILL)
    owners[0].kill()
    with embedded.start(folder, durable=False) as server:
        assert answers(server)


def test_a_reboot(folder: Path) -> None:
    """What a full stop leaves: a pid file whose pid now belongs to somebody else, state and registrations."""
    with embedded.start(folder, durable=False) as server:
        with psycopg.connect(server.url(), autocommit=True) as conn:
            conn.execute("CREATE TABLE t AS SELECT 1 AS a")
        pid_file = (folder / "data" / "postmaster.pid").read_text()
        state = (folder / "state.json").read_text()
        server.pause(mode="immediate")
    lines = pid_file.splitlines()
    (folder / "data" / "postmaster.pid").write_text("\n".join([str(os.getppid()), *lines[1:]]) + "\n")
    (folder / "state.json").write_text(state)
    (folder / "users" / "1-dead").touch()
    with embedded.start(folder, durable=False) as server, psycopg.connect(server.url()) as conn:
        assert conn.execute("SELECT a FROM t").fetchone() == (1,)


def test_the_folder_is_removed_under_a_running_server(folder: Path) -> None:
    server = embedded.start(folder, durable=False)
    postmaster = server.postmaster_pid
    shutil.rmtree(folder)
    until(lambda: not is_alive(postmaster), 10, "the postmaster to stop")
    server.stop()
    with embedded.start(folder, durable=False) as again:
        assert answers(again)


def test_a_start_while_the_server_stops(folder: Path) -> None:
    """The last one leaves while another comes: it waits for the end and starts anew, every time."""
    for _ in range(5):
        server = embedded.start(folder, durable=False)
        server.stop(timeout_seconds=0)
    with embedded.start(folder, durable=False) as server:
        assert answers(server)
