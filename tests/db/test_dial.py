"""Several hosts: silent, refusing, read-only ones cost next to nothing; the primary is found, and found again."""

from __future__ import annotations

import contextlib
import os
import pwd
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from leasequeue.db.connect import Link
from leasequeue.errors import DatabaseUnavailable, OutcomeUnknown
from tests.db.conftest import Execute, MakeLink
from tests.db.wire import Blackhole, Wire
from tests.support.pgbouncer import PgBouncer
from tests.support.proxy import Proxy
from tests.support.server import Server
from tests.support.waiting import until

SECRET = "Zq9-secret"


@pytest.fixture
def dbname(direct_url: str) -> str:
    return direct_url.rpartition("/")[2]


def several(server: Server, dbname: str, *ports: int, attrs: str = "read-write", **options: object) -> str:
    """One URL for these ports of 127.0.0.1, with the server's user and password."""
    one = server.url(dbname, host="127.0.0.1", port=1)
    hosts = ",".join(f"127.0.0.1:{port}" for port in ports)
    query = "&".join(f"{key}={value}" for key, value in {"target_session_attrs": attrs, **options}.items())
    return one.replace("127.0.0.1:1", hosts) + "?" + query


def closed_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _seconds(link: Link) -> float:
    started = time.monotonic()
    link.connect()
    return time.monotonic() - started


def test_silent_and_refusing_hosts_in_front(server: Server, dbname: str, make_link: MakeLink) -> None:
    with Blackhole() as silent, Blackhole() as silent_too:
        url = several(server, dbname, silent.port, closed_port(), silent_too.port, server.port)
        link = make_link(url, connect=False)
        assert 0.2 <= _seconds(link) < 1.5, "a tenth of a second for each silent host, 5 s if they were waited for"
        assert link.run("SELECT 1") == [(1,)]
        assert link.host is not None
        assert link.host.port == server.port


def test_the_last_good_one_is_asked_first_and_alone(server: Server, dbname: str, make_link: MakeLink) -> None:
    with Wire(server.host, server.port) as first, Wire(server.host, server.port) as second:
        first.on_request = lambda _: None
        link = make_link(several(server, dbname, first.port, second.port))
        assert (first.accepted, second.accepted) == (1, 1)
        first.on_request = lambda data: data
        link.close()
        link.connect()
        assert (first.accepted, second.accepted) == (1, 2)


def test_a_host_that_lets_in_but_never_answers(server: Server, dbname: str, make_link: MakeLink) -> None:
    """What a pooler before a dead server does."""
    with Wire(server.host, server.port) as mute:
        mute.on_request = lambda data: b"" if b"transaction_isolation" in data else data
        assert _seconds(make_link(several(server, dbname, mute.port, server.port), connect=False)) < 1.5
        link = make_link(several(server, dbname, mute.port, connect_timeout=1), connect=False)
        started = time.monotonic()
        with pytest.raises(DatabaseUnavailable, match="let us in, but no statement was answered within 1 s"):
            link.connect()
        assert time.monotonic() - started < 2


def test_an_answer_that_comes_in_pieces(server: Server, dbname: str, make_link: MakeLink) -> None:
    # As where a pooler passes each message on by itself: the row first, the end of the answer a moment later.
    with Proxy(server.host, server.port) as proxy:
        proxy.delay_seconds = 0.02
        link = make_link(server.url(dbname, host=proxy.host, port=proxy.port), connect=False)
        link.connect()
        assert link.run("SELECT 1") == [(1,)]


def test_no_host_will_do(server: Server, dbname: str, make_link: MakeLink) -> None:
    with Blackhole() as silent:
        port = closed_port()
        url = several(server, dbname, silent.port, port, connect_timeout=1)
        link = make_link(url, connect=False)
        started = time.monotonic()
        with pytest.raises(DatabaseUnavailable) as raised:
            link.connect()
        assert time.monotonic() - started < 2
        assert not isinstance(raised.value, OutcomeUnknown)
        assert f"127.0.0.1:{silent.port}: no answer within 1 s" in str(raised.value)
        assert f"127.0.0.1:{port}: " in str(raised.value)
        assert "refused" in str(raised.value)
        assert not link.connected
        assert link.generation == 0


def test_a_refused_host_is_no_reason_to_wait(make_link: MakeLink) -> None:
    link = make_link(f"postgresql://u:{SECRET}@127.0.0.1:{closed_port()}/d", connect=False)
    started = time.monotonic()
    with pytest.raises(DatabaseUnavailable, match="refused") as raised:
        link.connect()
    assert time.monotonic() - started < 1
    assert SECRET not in str(raised.value)


def test_an_error_of_the_server_that_quotes_the_password(make_link: MakeLink) -> None:
    """Whatever a server or pooler says is shown without it."""

    def refuse(_: bytes) -> bytes | None:
        wire.refuse("28P01", f"no such password: {SECRET}")
        return None

    with Blackhole() as silent, Wire("127.0.0.1", silent.port) as wire:
        wire.on_request = refuse
        options = "sslmode=disable&gssencmode=disable"
        link = make_link(f"postgresql://u:{SECRET}@127.0.0.1:{wire.port}/d?{options}", connect=False)
        with pytest.raises(DatabaseUnavailable, match=r"no such password: \*\*\*") as raised:
            link.connect()
        assert SECRET not in f"{raised.value!r}"


def test_a_name_that_does_not_resolve(server: Server, dbname: str, make_link: MakeLink) -> None:
    url = several(server, dbname, server.port).replace("127.0.0.1:", "no-such-host.invalid:5432,127.0.0.1:")
    assert _seconds(make_link(url, connect=False)) < 1
    link = make_link("postgresql://no-such-host.invalid/d", connect=False)
    with pytest.raises(DatabaseUnavailable, match=r"no-such-host.invalid: its name cannot be resolved"):
        link.connect()


def test_a_resolver_that_hangs(
    server: Server, dbname: str, make_link: MakeLink, monkeypatch: pytest.MonkeyPatch
) -> None:
    release = threading.Event()

    def hang(*_: object, **__: object) -> list[object]:
        release.wait(20)
        raise OSError("released")

    monkeypatch.setattr(socket, "getaddrinfo", hang)
    try:
        url = several(server, dbname, server.port).replace("127.0.0.1:", "db.invalid:5432,127.0.0.1:")
        assert _seconds(make_link(url, connect=False)) < 1
        link = make_link("postgresql://db.invalid/d?connect_timeout=1", connect=False)
        with pytest.raises(DatabaseUnavailable, match="was not resolved within 1 s"):
            link.connect()
    finally:
        release.set()


def test_a_name_with_several_addresses(server: Server, dbname: str, make_link: MakeLink) -> None:
    if server.host != "127.0.0.1":
        pytest.skip(f"the server is at {server.host}, not known to be reachable as localhost")
    link = make_link(server.url(dbname, host="localhost"), connect=False)
    assert _seconds(link) < 1
    assert link.run("SELECT 1") == [(1,)]


def test_a_pooler_that_refuses_a_parameter_of_ours(server: Server, dbname: str, make_link: MakeLink) -> None:
    """The application's name is worth nothing if it keeps us out."""

    def refuse(data: bytes) -> bytes | None:
        if b"application_name\0" not in data:
            return data
        wire.refuse("08P01", "unsupported startup parameter: application_name")
        return None

    with Wire(server.host, server.port) as wire:
        wire.on_request = refuse
        link = make_link(several(server, dbname, wire.port, sslmode="disable", gssencmode="disable"))
        assert link.run("SELECT current_setting('application_name')") == [("",)]


def test_a_pooler_that_refuses_a_parameter_of_the_application(
    make_pgbouncer: Callable[..., PgBouncer], dbname: str, make_link: MakeLink
) -> None:
    """That one may matter: it is not dropped, the error names it."""
    url = make_pgbouncer().url(dbname) + "?options=-csearch_path%3Dapp"
    with pytest.raises(DatabaseUnavailable, match=r"unsupported startup parameter.*options"):
        make_link(url)
    assert make_link(make_pgbouncer().url(dbname)).run("SELECT 1") == [(1,)], "ours are all accepted"


# A real standby


class _Standby:
    """A physical standby of ``primary``, promoted on demand."""

    def __init__(self, primary: Server, folder: Path) -> None:
        with primary.connect() as conn:
            ((data, bin_folder),) = conn.execute(
                "SELECT current_setting('data_directory'), (SELECT setting FROM pg_config WHERE name = 'BINDIR')"
            ).fetchall()
            with (Path(data) / "pg_hba.conf").open("a") as hba:
                hba.write("host replication all 127.0.0.1/32 scram-sha-256\n")
            ((before, _),) = conn.execute("SELECT pg_conf_load_time(), pg_reload_conf()").fetchall()
            # The postmaster reads pg_hba.conf before it tells its children to reload.
            loaded = "SELECT pg_conf_load_time()"
            until(lambda: conn.execute(loaded).fetchall()[0][0] > before, 10, "pg_hba.conf to be read again")
            # A standby refuses to start with less than its primary has.
            least = conn.execute(
                "SELECT name || '=' || setting FROM pg_settings "
                "WHERE name IN ('max_connections', 'max_prepared_transactions')"
            ).fetchall()
        owner = pwd.getpwuid(os.stat(data).st_uid)
        self._user = owner.pw_uid if os.geteuid() == 0 else None
        self._bin, self._data = Path(bin_folder), folder / "standby"
        self.port = closed_port()
        folder.chmod(0o755)
        self._data.mkdir(mode=0o700)
        if self._user is not None:
            os.chown(self._data, owner.pw_uid, owner.pw_gid)
        found = primary.params()
        source = f"host={found['host']} port={found['port']} user={found['user']} password={found['password']}"
        self._run("pg_basebackup", "-D", str(self._data), "-d", source, "-R", "-c", "fast", "--no-sync")
        with (folder / "log").open("wb") as log:
            settings = [part for (each,) in least for part in ("-c", str(each))]
            self._process = subprocess.Popen(
                [
                    str(self._bin / "postgres"),
                    *("-D", str(self._data), "-p", str(self.port), "-h", "127.0.0.1", "-k", "", *settings),
                ],
                user=self._user,
                stdout=log,
                stderr=log,
                cwd="/",
            )

    def _run(self, program: str, *arguments: str) -> None:
        subprocess.run([self._bin / program, *arguments], user=self._user, check=True, capture_output=True, cwd="/")

    def promote(self) -> None:
        self._run("pg_ctl", "promote", "-D", str(self._data), "-w")

    def close(self) -> None:
        self._process.terminate()  # smart shutdown would wait for clients
        self._process.send_signal(3)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(60)


@pytest.fixture
def standby(own_server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[_Standby]:
    folder = tmp_path_factory.mktemp("standby")
    for parent in folder.parents:  # ours, made by pytest for this run
        if parent == Path(tempfile.gettempdir()):
            break
        parent.chmod(0o755)
    made = _Standby(own_server, folder)
    yield made
    made.close()


def test_a_failover(own_server: Server, standby: _Standby, make_link: MakeLink) -> None:
    """The standby is refused while it is one; after the failover the new primary is found."""
    both = several(own_server, "postgres", standby.port, own_server.port)
    link = make_link(both, connect=False)
    until(lambda: _in_recovery(own_server, standby.port, make_link), 20, "the standby to answer")
    assert _seconds(link) < 1
    link.run("CREATE TABLE t (a int)")
    assert link.run("SELECT pg_is_in_recovery()") == [(False,)]

    alone = several(own_server, "postgres", standby.port, attrs="read-write", connect_timeout=1)
    with pytest.raises(DatabaseUnavailable, match="it is a standby, and read-write is wanted"):
        make_link(alone)
    for attrs, is_standby in (
        ("any", False),
        ("primary", False),
        ("standby", True),
        ("read-only", True),
        ("prefer-standby", True),
    ):
        url = several(own_server, "postgres", standby.port, own_server.port, attrs=attrs)
        assert make_link(url).run("SELECT pg_is_in_recovery()") == [(is_standby,)], attrs

    _wait_for_replay(own_server)  # the table must be there, or another error comes first
    # One that was let in as a reader is thrown away by its first write, and does not come back.
    reader = make_link(several(own_server, "postgres", standby.port, attrs="any"))
    with pytest.raises(DatabaseUnavailable, match="is read-only"):
        reader.run("INSERT INTO t VALUES (0)")
    with pytest.raises(DatabaseUnavailable, match="it is a standby"):
        reader.connect()

    _wait_for_replay(own_server)
    own_server.stop()
    with pytest.raises(DatabaseUnavailable):
        link.run("INSERT INTO t VALUES (1)")
    with pytest.raises(DatabaseUnavailable, match="it is a standby"):
        link.connect()
    standby.promote()
    link.connect()
    link.run("INSERT INTO t VALUES (2)")
    assert link.run("SELECT a FROM t") == [(2,)]
    reader.connect()
    assert link.host is not None
    assert link.host.port == standby.port


def _wait_for_replay(primary: Server) -> None:
    with primary.connect() as conn:
        replayed = "SELECT count(*) FROM pg_stat_replication WHERE replay_lsn >= pg_current_wal_lsn()"
        until(lambda: conn.execute(replayed).fetchall() == [(1,)], 20, "the standby to catch up")


def _in_recovery(server: Server, port: int, make_link: MakeLink) -> bool:
    return make_link(several(server, "postgres", port, attrs="any")).run("SELECT pg_is_in_recovery()") == [(True,)]


def test_the_probe_leaves_no_connection_behind(
    server: Server, dbname: str, make_link: MakeLink, execute: Execute
) -> None:
    """Hosts that lost the race are hung up on."""

    def late(data: bytes) -> bytes | None:
        time.sleep(0.2)
        return data

    with Wire(server.host, server.port) as slow:
        slow.on_reply = late
        make_link(several(server, dbname, slow.port, server.port))
        mine = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
        until(lambda: execute(mine) == [(2,)], 5, "the loser's connection to end")
