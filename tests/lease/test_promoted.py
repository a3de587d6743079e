"""A standby that lost the last transactions is promoted: what was held and written on the old primary counts nothing there."""

from __future__ import annotations

import datetime as dt
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from leasequeue import Lease, LeaseLost
from leasequeue.db.fence import fence_held
from leasequeue.db.program import run
from leasequeue.embedded.watch import free_port
from tests.lease.conftest import Make
from tests.support.databases import Database
from tests.support.server import Server
from tests.support.waiting import until

pytestmark = pytest.mark.process
TTL = dt.timedelta(seconds=3)


class Standby:
    """An asynchronous standby of an embedded server, run by the same system user."""

    def __init__(self, primary: Server) -> None:
        with primary.connect() as conn:
            pid = conn.info.backend_pid
            row = conn.execute("SHOW hba_file").fetchone()
            assert row is not None
            with Path(row[0]).open("a") as rules:
                rules.write("\nhost replication all 127.0.0.1/32 scram-sha-256\n")
            conn.execute("SELECT pg_reload_conf()")
            self._bin = Path(f"/proc/{pid}/exe").resolve().parent  # where its user can read them
            owner = Path(f"/proc/{pid}").stat()
        self._user, self._group = owner.st_uid, owner.st_gid
        self.folder = Path(tempfile.mkdtemp(prefix="lqs-"))
        os.chown(self.folder, self._user, self._group)
        self.port = free_port()
        self._params = primary.params()
        self._run(
            "pg_basebackup", "-D", str(self.folder / "data"), "-R", "-X", "stream", "-c", "fast",
            "-h", primary.host, "-p", str(primary.port), "-U", self._params["user"],
        )  # fmt: skip

    def _run(self, program: str, *words: str) -> None:
        same = os.geteuid() == self._user
        subprocess.run(
            [self._bin / program, *words],
            env={**os.environ, "PGPASSWORD": self._params["password"]},
            user=None if same else self._user,
            group=None if same else self._group,
            extra_groups=None if same else [],
            check=True,
            stdout=subprocess.DEVNULL,
            cwd=self.folder,
            timeout=60,
        )

    def start(self, *, cut_off: bool = False) -> None:
        away = " -c primary_conninfo=''" if cut_off else ""
        options = f"-p {self.port} -k {self.folder} -c listen_addresses=127.0.0.1{away}"
        options += " -c max_connections=300 -c max_prepared_transactions=20"  # no less than the primary has
        self._run(
            "pg_ctl", "-D", str(self.folder / "data"), "-o", options, "-l", str(self.folder / "log"), "-w", "start"
        )

    def stop(self) -> None:
        self._run("pg_ctl", "-D", str(self.folder / "data"), "-m", "immediate", "-w", "stop")

    def promote(self) -> None:
        self._run("pg_ctl", "-D", str(self.folder / "data"), "-w", "promote")

    def connect(self, dbname: str, *, autocommit: bool = True) -> psycopg.Connection[tuple[object, ...]]:
        return psycopg.connect(
            host="127.0.0.1", port=self.port, dbname=dbname, user=self._params["user"], password=self._params["password"],
            autocommit=autocommit, prepare_threshold=None,
        )  # fmt: skip

    def url(self, dbname: str) -> str:
        return f"postgresql://{self._params['user']}:{self._params['password']}@127.0.0.1:{self.port}/{dbname}"

    def close(self) -> None:
        subprocess.run(
            [self._bin / "pg_ctl", "-D", str(self.folder / "data"), "-m", "immediate", "stop"],
            user=None if os.geteuid() == self._user else self._user,
            extra_groups=None if os.geteuid() == self._user else [],
            check=False,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd=self.folder,
        )
        shutil.rmtree(self.folder, ignore_errors=True)


@pytest.fixture
def standby(own_server: Server, own_database: Database) -> Iterator[Standby]:
    made = Standby(own_server)
    yield made
    made.close()


def _writes(where: Callable[[], psycopg.Connection[tuple[object, ...]]], lease: Lease) -> bool:
    """A fenced write of that holder in that term; the server alone decides."""
    with where() as conn:
        try:
            run(conn, fence_held, "public", lease.name, lease.slot, lease.term, str(lease.hold.holder))
        except LeaseLost:
            conn.rollback()
            return False
        conn.execute("INSERT INTO written VALUES (%s)", (lease.term,))
    return True


def test_old_and_new_holder_never_both_write(
    own_server: Server, own_database: Database, standby: Standby, make: Make
) -> None:
    name = own_database.name
    own_database.execute("CREATE TABLE written (term bigint)")
    first = make(own_database).try_lease("leader", ttl=TTL, owner="first")
    assert isinstance(first, Lease)
    standby.start()
    with standby.connect(name) as replica:
        seen = "SELECT term FROM leasequeue_lease"
        until(lambda: replica.execute(seen).fetchone() == (first.term,), 20, "the standby to catch up")
    standby.stop()

    # The tail that will be lost: the first gives it up, another takes it and writes.
    first.release()
    second = make(own_database).try_lease("leader", ttl=TTL, owner="second")
    assert isinstance(second, Lease)
    assert second.term > first.term
    assert _writes(lambda: psycopg.connect(own_database.direct_url, prepare_threshold=None), second)
    own_server.stop()

    standby.start(cut_off=True)
    standby.promote()
    with standby.connect(name) as conn:
        # Here the first still holds it, in its old term; the second was never heard of.
        assert conn.execute("SELECT owner, term FROM leasequeue_lease").fetchone() == ("first", first.term)
        assert conn.execute("SELECT count(*) FROM written").fetchone() == (0,)
        open_one = lambda: standby.connect(name, autocommit=False)  # noqa: E731
        assert not _writes(open_one, second), "a term that this server never gave"
        ended = "SELECT clock_timestamp() > expires_at FROM leasequeue_lease"
        until(lambda: conn.execute(ended).fetchone() == (True,), 10)
        assert not _writes(open_one, first), "expired, and nobody has taken it yet"
        third = make(standby.url(name)).try_lease("leader", ttl=TTL, owner="third")
        assert isinstance(third, Lease)
        assert third.term > second.term, "a term came again that another has used"
        assert [_writes(open_one, each) for each in (first, second, third)] == [False, False, True]
        assert conn.execute("SELECT term FROM written").fetchall() == [(third.term,)]
        third.release()
    own_server.start()  # for the end of its database
