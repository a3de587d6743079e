"""Which processes of Postgres work in a data folder, whoever their parent is or was."""

from __future__ import annotations

import contextlib
import os
import subprocess
from pathlib import Path


def of_data_folder(data: Path) -> list[int]:
    """The pids of the postmaster and all its children; empty where none lives.

    Linux: Postgres changes into its data folder, so each of its processes says so under /proc, and each child notices
    its postmaster's death only when it next waits for something. A shell that was left in that folder is not meant.
    Elsewhere only the postmaster is found, by the pid file and ``ps``.
    """
    return _by_proc(data) if os.path.exists("/proc/self/cwd") else _by_pid_file(data)


def _by_proc(data: Path) -> list[int]:
    found = []
    try:
        wanted = os.stat(data)
    except FileNotFoundError:
        return []
    for name in os.listdir("/proc"):
        if name.isdigit():
            # Processes of others and those just gone cannot be read, and are none of ours.
            with contextlib.suppress(OSError):
                here = os.stat(f"/proc/{name}/cwd")
                if os.path.samestat(here, wanted) and _is_postgres(name):
                    found.append(int(name))
    return found


def _is_postgres(pid: str) -> bool:
    # A replaced file (a wheel upgraded under a running server) is shown as "postgres (deleted)".
    return os.path.basename(os.readlink(f"/proc/{pid}/exe")).split(" ")[0] == "postgres"


def _by_pid_file(data: Path) -> list[int]:
    try:
        pid = int((data / "postmaster.pid").read_text().split("\n")[0])
    except (OSError, ValueError):
        return []
    said = subprocess.run(["/bin/ps", "-o", "command=", "-p", str(pid)], capture_output=True, check=False)
    return [pid] if os.fsencode(data) in said.stdout and b"postgres" in said.stdout else []
