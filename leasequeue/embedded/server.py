"""Starting, sharing and leaving an embedded server."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from leasequeue.embedded.folder import HOST, USER, Folder, Held, hold, locked, register
from leasequeue.errors import ConfigurationError, DatabaseUnavailable

if TYPE_CHECKING:
    import psycopg

_WORDS = {
    "waiting": "waiting for another process that starts or stops the embedded Postgres",
    "creating": "creating the embedded database",
    "starting": "starting the embedded Postgres",
}


def start(
    folder: Path | str | None = None,
    *,
    port: int | None = None,
    durable: bool = True,
    temporary: bool = False,
    settings: Mapping[str, str] | None = None,
    progress: Callable[[str], None] | None = None,
    timeout_seconds: float = 60.0,
) -> EmbeddedServer:
    """Start the embedded Postgres of a folder, or join the one that runs there.

    The first start makes the database (1 to 2 s), the next ones take some 0.2 s, joining less. The server stops when
    the last process that started it has called ``stop`` or is gone. Thread-safe; each call gives a handle of its own.

    Args:
        folder: holds the data and is made where missing; None means ``.leasequeue`` in the current directory.
        port: the port to listen on; None means the last one of this folder, or any free one.
        durable: False turns fsync off: quicker, for tests, and lost with the machine's power.
        temporary: True removes the folder and all data when the last user is gone, however it went.
        settings: further settings of Postgres. Like port, durable and temporary they count for whoever starts the server;
            one who joins it takes it as it is.
        progress: called with a sentence at each stage that takes its time.
        timeout_seconds: for the whole start.

    Raises:
        ConfigurationError: the wheel is missing, or the folder cannot be used.
        DatabaseUnavailable: Postgres did not start (the message ends with its log), or not in time.
    """
    if os.name != "posix":
        raise ConfigurationError("the embedded Postgres runs on Linux and macOS only: give the URL of a server")
    from leasequeue.embedded.ground import programs

    programs()
    where = Folder(Path(folder) if folder is not None else Path(".leasequeue"))
    where.make()
    told = progress or (lambda _sentence: None)
    deadline = time.monotonic() + timeout_seconds
    options = {"port": port, "durable": durable, "temporary": temporary, "settings": dict(settings or {})}
    lock = _lock(where, told, deadline)
    try:
        if not where.password.exists():
            where.write_private(where.password, secrets.token_urlsafe(24))
        where.prune()
        while where.is_watched() and where.read_state().get("stage") in ("failed", "leaving"):
            if time.monotonic() > deadline:
                raise DatabaseUnavailable(f"the watcher of {where.path} does not end; see {where.watch_log}")
            time.sleep(0.01)
        registration = register(where)
        server = EmbeddedServer(where, registration)
        try:
            for last_try in (False, True):
                if not where.is_watched():
                    where.state.unlink(missing_ok=True)
                    where.pause.unlink(missing_ok=True)
                    _spawn_watcher(where, options)
                try:
                    _wait_ready(server, told, deadline)
                    break
                except _WatcherGone:  # it was about to die when we looked, or was killed since
                    if last_try:
                        raise
        except BaseException:
            registration.release()
            raise
    finally:
        lock.release()
    return server


class EmbeddedServer:
    """One process's share in a running server; also a context manager. Thread-safe.

    Attributes:
        folder: the folder it was started in.
        host, user: where it listens, and the superuser.
    """

    host = HOST
    user = USER

    def __init__(self, folder: Folder, registration: Held) -> None:
        self._folder = folder
        self._registration = registration
        self.folder = folder.path

    @property
    def password(self) -> str:
        """The superuser's password (generated, kept in the folder)."""
        return self._folder.password.read_text()

    @property
    def port(self) -> int:
        """The port it listens on; may change where the server had to start anew and found it taken."""
        return int(self._folder.read_state().get("port", 0))

    @property
    def postmaster_pid(self) -> int:
        """The postmaster's pid, 0 while there is none."""
        return int(self._folder.read_state().get("pid", 0))

    @property
    def log(self) -> Path:
        """The file that Postgres logs to."""
        elsewhere = self._folder.elsewhere
        return (Path(elsewhere.read_text()) if elsewhere.exists() else self.folder) / "log"

    @property
    def version(self) -> str:
        """The server's version, such as ``18.6``."""
        with self._connect() as conn:
            return f"{conn.info.server_version // 10000}.{conn.info.server_version % 10000}"

    def url(self, dbname: str = "postgres") -> str:
        """The ``postgresql://`` URL of a database, *with the password*; ``masked`` is for people's eyes."""
        return self._url(dbname, self.password)

    def masked(self, dbname: str = "postgres") -> str:
        """The URL with the password hidden."""
        return self._url(dbname, "***")

    def ensure_database(self, dbname: str) -> str:
        """Make the database (UTF-8) where it is missing; returns its URL."""
        import psycopg
        from psycopg import sql

        with self._connect() as conn:
            found = conn.execute("SELECT 1 FROM pg_database WHERE datname = %s", [dbname]).fetchone()
            if found is None:
                # Another process may have made it since.
                with contextlib.suppress(psycopg.errors.DuplicateDatabase, psycopg.errors.UniqueViolation):
                    conn.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(dbname)))
        return self.url(dbname)

    def pause(self, *, mode: str = "fast", timeout_seconds: float = 30.0) -> None:
        """Stop Postgres for all its users, and keep it down until ``resume``: an outage on purpose.

        Args:
            mode: ``fast`` ends transactions and writes a checkpoint, ``immediate`` is a crash.
        """
        self._folder.write_private(self._folder.pause, mode)
        self._wait_stage("paused", timeout_seconds)

    def resume(self, *, timeout_seconds: float = 30.0) -> None:
        """Undo ``pause``; returns when the server takes connections again, on the same port."""
        self._folder.pause.unlink(missing_ok=True)
        _wait_ready(self, lambda _sentence: None, time.monotonic() + timeout_seconds)

    def stop(self, *, remove: bool = False, timeout_seconds: float = 20.0) -> None:
        """Leave. The last one to leave waits until the server has stopped. Calling it again does nothing.

        Args:
            remove: delete the folder and its data as well, unless others still use it.
            timeout_seconds: how long to wait for the server's end, which comes anyway.
        """
        if self._registration.released:
            return
        self._registration.release()
        self._registration.path.unlink(missing_ok=True)
        deadline = time.monotonic() + timeout_seconds
        while self._folder.is_watched() and not self._folder.is_used() and time.monotonic() < deadline:
            time.sleep(0.01)
        if remove and not self._folder.is_watched():
            with locked(self._folder):
                if not self._folder.is_watched() and not self._folder.is_used():
                    shutil.rmtree(self.log.parent, ignore_errors=True)
                    shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> EmbeddedServer:
        return self

    def __exit__(self, *_error: object) -> None:
        self.stop()

    def __repr__(self) -> str:
        return f"<EmbeddedServer {self.masked()} in {self.folder}>"

    def _url(self, dbname: str, password: str) -> str:
        from urllib.parse import quote

        name = quote(dbname, safe="")
        return f"postgresql://{self.user}:{quote(password, safe='*')}@{self.host}:{self.port}/{name}"

    def _connect(self) -> psycopg.Connection[tuple[Any, ...]]:
        import psycopg

        # As parameters, so that PGOPTIONS or PGSSLMODE in the environment are all that could still interfere.
        return psycopg.connect(
            host=self.host,
            port=self.port,
            user=self.user,
            password=self.password,
            dbname="postgres",
            autocommit=True,
            sslmode="disable",
            options="",
            connect_timeout=5,
        )

    def _wait_stage(self, stage: str, timeout_seconds: float) -> None:
        deadline = time.monotonic() + timeout_seconds
        while self._folder.read_state().get("stage") != stage:
            if time.monotonic() > deadline:
                raise DatabaseUnavailable(f"the embedded Postgres in {self.folder} is not {stage} in time")
            time.sleep(0.01)


class _WatcherGone(DatabaseUnavailable):
    """The watcher ended without a reason given: it was killed, or it failed in a way nobody foresaw."""


def _lock(folder: Folder, told: Callable[[str], None], deadline: float) -> Held:
    said = False
    while (lock := hold(folder.lock)) is None:
        if not said:
            told(_WORDS["waiting"])
            said = True
        if time.monotonic() > deadline:
            raise DatabaseUnavailable(f"another process holds {folder.lock}: it starts or stops this server, too long")
        time.sleep(0.01)
    return lock


def _spawn_watcher(folder: Folder, options: dict[str, Any]) -> None:
    import leasequeue

    # The package need not be installed (a checkout on sys.path); -P keeps the current folder's modules out.
    root = str(Path(leasequeue.__file__).resolve().parent.parent)
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))}
    with open(os.open(folder.watch_log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as log:
        done = subprocess.run(
            [sys.executable, "-P", "-m", "leasequeue.embedded.watch", str(folder.path), json.dumps(options)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=env,
            cwd="/",
            # Neither Ctrl-C nor a hang-up of the terminal reaches it: other processes may still need the server.
            start_new_session=True,
            check=False,  # it forks and ends at once
        )
    if done.returncode != 0:
        raise DatabaseUnavailable(f"the embedded Postgres's watcher cannot start: {_tail(folder.watch_log)}")


def _tail(log: Path) -> str:
    return log.read_text(errors="replace").strip()[-800:] or "it said nothing"


def _wait_ready(server: EmbeddedServer, told: Callable[[str], None], deadline: float) -> None:
    """Until a query is answered: a state that was written before a crash is not believed."""
    import psycopg

    folder = server._folder
    last, error = "", ""
    while True:
        state = folder.read_state()
        stage = state.get("stage", "")
        if stage == "failed":
            raise DatabaseUnavailable(f"the embedded Postgres did not start: {state['error']}")
        if stage != last and stage in _WORDS:
            told(_WORDS[stage])
        last = stage
        if stage == "paused":
            folder.pause.unlink(missing_ok=True)
        elif stage == "ready":
            try:
                with server._connect() as conn:
                    conn.execute("SELECT 1")
                return
            except psycopg.OperationalError as caught:
                error = str(caught).strip()
                if "password authentication failed" in error:
                    raise DatabaseUnavailable(
                        f"{folder.password} is not the password of this database (was it removed?): "
                        f"restore it, or remove {folder.path} to begin anew"
                    ) from None
        # Read again, because it may have said just before its end why it failed.
        if not folder.is_watched() and folder.read_state().get("stage") != "failed":
            raise _WatcherGone(f"the embedded Postgres's watcher ended: {_tail(folder.watch_log)}")
        if time.monotonic() > deadline:
            raise DatabaseUnavailable(
                f"the embedded Postgres in {folder.path} is not ready in time (stage {stage or 'none'}) {error}; "
                f"see {server.log}"
            )
        time.sleep(0.01)
