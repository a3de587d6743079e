"""Many processes of one module for the price of one: its imports are made once, and the others are forked from there.

    python -m tests.support.herd MODULE IN OUT ...      forks a process for each pair of descriptors

Each runs MODULE.main(), with these as its standard input and output.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Iterator
from importlib import import_module
from typing import TextIO


class Member:
    """One process of a herd."""

    def __init__(self, pid: int, stdin: int, stdout: int) -> None:
        self.pid = pid
        self.stdin: TextIO = os.fdopen(stdin, "w")
        self.stdout: TextIO = os.fdopen(stdout)

    def tell(self, text: str) -> None:
        self.stdin.write(text + "\n")
        self.stdin.flush()

    def close(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        for each in (self.stdin, self.stdout):
            with contextlib.suppress(OSError):
                each.close()


@contextlib.contextmanager
def herd(module: str, count: int) -> Iterator[list[Member]]:
    """Start so many processes, and kill at the end those that are left.

    Raises:
        AssertionError: at the end, one of them has failed.
    """
    pipes = [(*os.pipe(), *os.pipe()) for _ in range(count)]
    theirs = [fd for stdin, _, _, stdout in pipes for fd in (stdin, stdout)]
    command = [sys.executable, "-m", "tests.support.herd", module, *map(str, theirs)]
    members: list[Member] = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, pass_fds=theirs) as mother:
        for fd in theirs:
            os.close(fd)
        assert mother.stdout is not None
        try:
            members += [Member(int(mother.stdout.readline()), stdin, stdout) for _, stdin, stdout, _ in pipes]
            yield members
            assert mother.wait(30) == 0, "a process of the herd has failed"
        finally:
            for member in members:
                member.close()
            mother.kill()


def main() -> None:
    module = import_module(sys.argv[1])
    fds = [int(word) for word in sys.argv[2:]]
    children = []
    for stdin, stdout in zip(fds[::2], fds[1::2], strict=True):
        child = os.fork()
        if child == 0:
            os.dup2(stdin, 0)
            os.dup2(stdout, 1)
            for other in fds:
                os.close(other)
            status = 1
            try:
                module.main()
                sys.stdout.flush()
                status = 0
            except BaseException:  # noqa: BLE001  # nothing of the mother's is to be run here
                traceback.print_exc()
            finally:
                os._exit(status)
        children.append(child)
        print(child, flush=True)
    for fd in fds:
        os.close(fd)
    failed = [child for child in children if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 0]
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
