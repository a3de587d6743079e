"""The folder of an embedded server: what lies where, and who uses it.

Everything here belongs to the process that starts the server, in mode 600; only ``data`` and what is in it belongs to
the user that runs Postgres. Users are counted by locked files, so a process that dies in whatever way no longer counts.

Lock order: ``lock``, then one file of ``users``; ``watching`` is held by the watcher for as long as it lives.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

from leasequeue.errors import ConfigurationError

HOST = "127.0.0.1"
USER = "postgres"


class Folder:
    """The paths below one folder, and the small files in it."""

    def __init__(self, path: Path) -> None:
        # Made absolute without following links: a link that is pointed elsewhere later is another folder.
        self.path = Path(os.path.abspath(path))
        self.lock = self.path / "lock"
        self.watching = self.path / "watching"
        self.users = self.path / "users"
        self.state = self.path / "state.json"
        self.password = self.path / "password"
        self.pause = self.path / "pause"
        self.port = self.path / "port"
        self.elsewhere = self.path / "elsewhere"
        self.watch_log = self.path / "watch.log"

    def make(self) -> None:
        """Create what is missing.

        Raises:
            ConfigurationError: the folder cannot be made, or belongs to somebody else.
        """
        try:
            if not self.path.exists():
                self.path.mkdir(parents=True)
                # Root lets the user that runs Postgres pass through (not look around); files in it are all private.
                self.path.chmod(0o711 if os.geteuid() == 0 else 0o700)
            if self.path.stat().st_uid != os.geteuid():
                raise ConfigurationError(
                    f"{self.path} belongs to user {self.path.stat().st_uid}, this process runs as {os.geteuid()}: "
                    f"give the embedded database another folder, or remove that one"
                )
            self.users.mkdir(mode=0o700, exist_ok=True)
            ignore = self.path / ".gitignore"
            if not ignore.exists():
                ignore.write_text("*\n")
        except OSError as error:
            raise ConfigurationError(
                f"cannot keep an embedded database in {self.path}: {error.strerror or error}; "
                f"give it a folder that this user may write to"
            ) from error

    def read_state(self) -> dict[str, Any]:
        """What the watcher last said, or an empty dict."""
        try:
            found: dict[str, Any] = json.loads(self.state.read_text())
        except (FileNotFoundError, ValueError):
            return {}
        return found

    def write_private(self, path: Path, text: str) -> None:
        """Replace a file as a whole, readable for its owner only from the first byte on."""
        new = path.with_name(f"{path.name}.{os.getpid()}")
        with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            file.write(text)
        new.replace(path)

    def is_watched(self) -> bool:
        """Whether a watcher lives."""
        return _is_held(self.watching)

    def is_used(self) -> bool:
        """Whether any registered process lives. False also where the whole folder was removed."""
        try:
            names = os.listdir(self.users)
        except OSError:
            return False
        return any(_is_held(self.users / name) for name in names)

    def prune(self) -> None:
        """Forget the dead. Only under ``lock``: a registration is locked a moment after it is made."""
        for name in os.listdir(self.users):
            if not _is_held(self.users / name):
                (self.users / name).unlink(missing_ok=True)


class Held:
    """A file locked by this process, until ``release`` or its death. A forked child does not hold it."""

    _all: ClassVar[weakref.WeakSet[Held]] = weakref.WeakSet()

    def __init__(self, path: Path, fd: int) -> None:
        self.path = path
        self._fd: int | None = fd
        Held._all.add(self)

    @property
    def released(self) -> bool:
        return self._fd is None

    def release(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    @staticmethod
    def forget_in_child() -> None:
        # The lock belongs to the open file, which a fork shares: a child that outlives its parent would keep a server
        # alive that nobody can stop. Closing the child's copy leaves the parent's lock as it is.
        for held in list(Held._all):
            held.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=Held.forget_in_child)


def hold(path: Path, *, wait: bool = False) -> Held | None:
    """Lock a file (made if missing); None where another process holds it and ``wait`` is false."""
    while True:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            # A file that was removed and made anew between open and lock is another file: try again on that one.
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(fd), os.stat(path)):
                    return Held(path, fd)
        except BlockingIOError:
            os.close(fd)
            return None
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)


@contextlib.contextmanager
def locked(folder: Folder) -> Iterator[None]:
    """The folder's lock: starting, registering and leaving happen one at a time."""
    held = hold(folder.lock, wait=True)
    assert held is not None
    try:
        yield
    finally:
        held.release()


def register(folder: Folder) -> Held:
    """Count this process as a user. Only under ``lock``."""
    held = hold(folder.users / f"{os.getpid()}-{secrets.token_hex(4)}")
    assert held is not None
    return held


def _is_held(path: Path) -> bool:
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return False
    try:
        # Shared, so that two who look at the same time do not take each other for a holder.
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False
