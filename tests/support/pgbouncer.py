"""Real pgbouncers in front of the test server, for any database name (a ``*`` entry)."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
from functools import partial
from pathlib import Path

import psycopg

from leasequeue.embedded.watch import die_with_parent
from tests.support.server import Server, make_url
from tests.support.waiting import until

_PATH = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin", "/opt/homebrew/bin"])


class Unavailable(Exception):
    """pgbouncer cannot be run here; the message says why and what to do."""


def find() -> str:
    """The path of pgbouncer; installed by apt-get where it is missing and that was asked for.

    Raises:
        Unavailable: it is missing, and may not or cannot be installed.
    """
    found = shutil.which("pgbouncer", path=_PATH)
    if found:
        return found
    if not (os.environ.get("CI") or os.environ.get("LEASEQUEUE_TEST_INSTALL")):
        raise Unavailable("pgbouncer is not installed (apt-get install pgbouncer, or set LEASEQUEUE_TEST_INSTALL=1)")
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        raise Unavailable("pgbouncer is not installed, and only root with apt-get can install it")
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    install = ["apt-get", "-qq", "-y", "--no-install-recommends", "install", "pgbouncer"]
    for command in (["apt-get", "-qq", "update"], install):
        done = subprocess.run(command, env=env, capture_output=True, text=True)
        if done.returncode != 0:
            raise Unavailable(f"{' '.join(command)} failed: {done.stderr.strip()[-300:]}")
    found = shutil.which("pgbouncer", path=_PATH)
    if not found:
        raise Unavailable("apt-get installed pgbouncer, yet it is nowhere in PATH")
    return found


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class PgBouncer:
    """One pgbouncer, running from construction until ``close``.

    Args:
        server: what stands behind it; ``behind`` may name another address (a proxy) instead.
        pool_mode: ``transaction``, ``session`` or ``statement``.
        pool_size: ``default_pool_size``: server connections per database and user.
        options: further lines of the ``[pgbouncer]`` section.

    The client side asks for the same user and password as the server.
    """

    def __init__(
        self,
        server: Server,
        *,
        pool_mode: str = "transaction",
        pool_size: int = 2,
        behind: tuple[str, int] | None = None,
        options: dict[str, str] | None = None,
    ) -> None:
        binary = find()
        found = server.params()
        self.host, self.port = "127.0.0.1", free_port()
        self.user, self._password = found["user"], found.get("password")
        self.pool_mode, self.pool_size = pool_mode, pool_size
        self._folder = Path(tempfile.mkdtemp(prefix="lqb-"))
        host, port = behind or (server.host, server.port)
        # md5 towards the client, from the plain password that the login to the server needs anyway: scram
        # costs this single-threaded process some 5 ms for each login, which would show in every latency test.
        lines = {
            "listen_addr": self.host,
            "listen_port": str(self.port),
            "unix_socket_dir": "",
            "auth_type": "md5" if self._password else "trust",
            "auth_file": str(self._folder / "users.txt"),
            "admin_users": self.user,
            "pool_mode": pool_mode,
            "default_pool_size": str(pool_size),
            "max_client_conn": "500",
            "logfile": str(self._folder / "log"),
            "pidfile": str(self._folder / "pid"),
            # After an outage the server's return must be seen at once, not after the default 15 s.
            "server_login_retry": "1",
            **(options or {}),
        }
        body = "\n".join(f"{key} = {value}" for key, value in lines.items())
        config = self._folder / "pgbouncer.ini"
        config.write_text(f"[databases]\n* = host={host} port={port}\n\n[pgbouncer]\n{body}\n")
        users = self._folder / "users.txt"
        users.touch(mode=0o600)
        quoted = [text.replace('"', '""') for text in (self.user, self._password or "")]
        users.write_text('"{}" "{}"\n'.format(*quoted))
        account: pwd.struct_passwd | None = None
        if os.geteuid() == 0:  # pgbouncer refuses to run as root
            account = _unprivileged()
            for path in (self._folder, config, users):
                os.chown(path, account.pw_uid, account.pw_gid)
        self._process = subprocess.Popen(
            [binary, "-q", str(config)],
            cwd=self._folder,
            stdin=subprocess.DEVNULL,
            preexec_fn=partial(die_with_parent, signal.SIGTERM),  # a killed pytest leaves none behind
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            user=account.pw_uid if account else None,
            group=account.pw_gid if account else None,
            extra_groups=[] if account else None,
        )
        try:
            until(self._listens, 10, "pgbouncer to listen")
        except AssertionError as error:
            log = self._folder / "log"
            said = log.read_text()[-600:] if log.exists() else "it wrote no log"
            self.close()
            raise AssertionError(f"pgbouncer did not start: {said}") from error

    def url(self, dbname: str) -> str:
        return make_url(host=self.host, port=self.port, user=self.user, password=self._password, dbname=dbname)

    def admin(self, command: str) -> list[tuple[object, ...]]:
        """Run a command such as ``SHOW POOLS`` or ``RECONNECT`` on the admin console."""
        with psycopg.connect(self.url("pgbouncer"), autocommit=True) as conn:
            # The console speaks only the simple protocol.
            cursor = psycopg.ClientCursor(conn).execute(command)  # type: ignore[arg-type,unused-ignore]
            return list(cursor.fetchall()) if cursor.description else []

    @property
    def log(self) -> str:
        return (self._folder / "log").read_text()

    def close(self) -> None:
        """Stop at once (every client is cut off)."""
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(30)
        shutil.rmtree(self._folder, ignore_errors=True)

    def _listens(self) -> bool:
        if self._process.poll() is not None:
            raise RuntimeError(f"pgbouncer ended with status {self._process.returncode}")
        with socket.create_connection((self.host, self.port), timeout=1):
            return True


def _unprivileged() -> pwd.struct_passwd:
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            return pwd.getpwnam(name)
    raise Unavailable("pgbouncer refuses to run as root, and there is no user postgres or nobody")
