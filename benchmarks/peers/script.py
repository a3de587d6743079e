"""A peer that is run by a script of its own, in its own environment, and how one talks with such a script.

``SCRIPT prepare`` makes the tables and ends. ``SCRIPT work`` loads its code, says ``@ ready``, and works once it has read
a line. ``SCRIPT client`` says ``@ ready`` when it is connected and answers ``one N``, ``bulk N`` and ``stamp I`` with
``@ seconds S`` or ``@ at T``; a worker says ``@ stamp I T`` for each stamped job. Lines without ``@`` are the library's own.
"""

from __future__ import annotations

import contextlib
import os
import queue
import subprocess
import tempfile
import threading
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import IO

from benchmarks.peers.protocol import Cannot, Client, Peer, Place, Workers

READY_SECONDS = 30.0
BULK_SECONDS = 300.0


class Process:
    """One process of a script."""

    def __init__(self, command: Sequence[str], place: Place, errors: IO[str]) -> None:
        env = {**os.environ, "BENCH_URL": place.url, "BENCH_POOLED": "1" if place.pooled else ""}
        self._errors = errors
        self.stamps: dict[int, float] = {}
        self._said: queue.SimpleQueue[list[str] | None] = queue.SimpleQueue()
        self.process = subprocess.Popen(
            command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            match line.split():
                case ["@", "stamp", number, at]:
                    self.stamps[int(number)] = float(at)
                case ["@", *words]:
                    self._said.put(words)
                case _:
                    pass
        self._said.put(None)

    def tell(self, text: str) -> None:
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(text + "\n")
            self.process.stdin.flush()
        except BrokenPipeError as error:
            raise self._died() from error

    def hear(self, first: str, seconds: float) -> list[str]:
        """The words after ``first``, which must be what comes next."""
        try:
            words = self._said.get(timeout=seconds)
        except queue.Empty as error:
            raise Cannot(f"no answer in {seconds:g} s{self._last_words()}") from error
        if words is None:
            raise self._died()
        if words[0] != first:
            raise Cannot(" ".join(words[1:] if words[0] == "error" else words))
        return words[1:]

    def check(self) -> None:
        if self.process.poll() is not None:
            raise self._died()

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(10)
        self._reader.join(10)
        for pipe in (self.process.stdin, self.process.stdout):
            with contextlib.suppress(BrokenPipeError):
                assert pipe is not None
                pipe.close()

    def _died(self) -> Cannot:
        return Cannot(f"its process ended with status {self.process.wait(10)}{self._last_words()}")

    def _last_words(self) -> str:
        self._errors.flush()
        self._errors.seek(0)
        lines = [line.strip() for line in self._errors if line.strip()]
        # Of a traceback the last line tells; Node puts the error in the midst of it.
        telling = [line for line in lines if "rror:" in line] or lines
        return f": {telling[-1][:300]}" if telling else ""


class ScriptClient:
    def __init__(self, process: Process) -> None:
        self._process = process

    def one(self, jobs: int) -> float:
        return self._ask(f"one {jobs}", "seconds")

    def bulk(self, jobs: int) -> float:
        return self._ask(f"bulk {jobs}", "seconds")

    def stamp(self, number: int) -> float:
        return self._ask(f"stamp {number}", "at")

    def _ask(self, text: str, first: str) -> float:
        self._process.tell(text)
        return float(self._process.hear(first, BULK_SECONDS)[0])


class ScriptWorkers:
    def __init__(self, processes: list[Process]) -> None:
        self._processes = processes

    def go(self) -> None:
        for each in self._processes:
            each.tell("go")

    def stamps(self) -> dict[int, float]:
        found: dict[int, float] = {}
        for each in self._processes:
            each.check()
            found |= each.stamps
        return found


@contextlib.contextmanager
def client(command: Sequence[str], place: Place) -> Iterator[Client]:
    """A ``SCRIPT client`` that is connected."""
    with _process([*command, "client"], place) as process:
        process.hear("ready", READY_SECONDS)
        yield ScriptClient(process)


@contextlib.contextmanager
def _process(command: Sequence[str], place: Place) -> Iterator[Process]:
    with tempfile.TemporaryFile("w+", errors="replace") as errors:
        process = Process(command, place, errors)
        try:
            yield process
        finally:
            process.close()


class ScriptPeer(Peer):
    """A peer with a script beside this file."""

    @abstractmethod
    def command(self) -> list[str]:
        """What runs its script."""

    def prepare(self, place: Place) -> None:
        done = subprocess.run(
            [*self.command(), "prepare"],
            env={**os.environ, "BENCH_URL": place.direct, "BENCH_POOLED": ""},
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=120,
        )
        if done.returncode != 0:
            raise Cannot(f"its tables could not be made: {(done.stderr.strip().splitlines() or ['no word'])[-1]}")

    def client(self, place: Place) -> contextlib.AbstractContextManager[Client]:
        return client(self.command(), place)

    @contextlib.contextmanager
    def worker(self, place: Place, processes: int = 1) -> Iterator[Workers]:
        with contextlib.ExitStack() as stack:
            command = [*self.command(), "work"]
            started = [stack.enter_context(_process(command, place)) for _ in range(processes)]
            for each in started:
                each.hear("ready", READY_SECONDS)
            yield ScriptWorkers(started)
