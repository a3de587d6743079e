"""The shared page of one worker process: what its supervisor must know when the process can no longer say it.

An entry holds (id, term) of a job from before its handler starts until its end has been acknowledged, and the
moment at which its timeout ends. After a crash the entries are the suspects. Each entry has one writer at a time:
the thread that runs the job, then the completer. A torn entry (the process died while it was being written) names
no existing pair and so counts as not started, which is what it was.

The header carries clocks (``time.monotonic``, the same for all processes of a machine): the beat of the control
thread, which needs the interpreter, and for each loop when it last began a turn and when the database last answered.
"""

from __future__ import annotations

import mmap
import os
import struct
import tempfile
import time
from typing import NamedTuple

CAPACITY = 8192
"""Entries of a page: the most jobs that may be started and not yet acknowledged in one process."""

_ENTRY = struct.Struct("<qqd")
_CLEAR = bytes(_ENTRY.size)
_START = 128
_SIZE = _START + CAPACITY * _ENTRY.size

_CLOCKS = ("beat", "claim_turn", "claim_ok", "renew_turn", "renew_ok", "complete_turn", "complete_ok")
_COUNTS = ("started", "completed", "failed", "refused")
_FIELDS = {name: (i * 8, "<d") for i, name in enumerate(_CLOCKS)} | {
    name: ((len(_CLOCKS) + i) * 8, "<Q") for i, name in enumerate(_COUNTS)
}


class Started(NamedTuple):
    """One entry: a job that was started and whose end is not acknowledged.

    ``deadline`` is the ``time.monotonic`` at which its timeout ends; 0.0 where it has none.
    """

    id: int
    term: int
    deadline: float


class Page:
    """The page, in the process that writes it and in the supervisor that reads it.

    Args:
        fd: the file behind it, from :func:`create_file`.
    """

    def __init__(self, fd: int) -> None:
        self._map = mmap.mmap(fd, _SIZE)
        self._free = list(range(_START, _SIZE, _ENTRY.size))
        self._pack = _ENTRY.pack_into

    # The worker process

    def enter(self, id: int, term: int, deadline: float) -> int:
        """Note a job before its handler starts. Thread-safe; waits while the page is full.

        A full page means that thousands of ended jobs wait for a database that does not answer: starting more
        would only lengthen the list of suspects.

        Returns:
            The entry, for :meth:`leave`.
        """
        while True:
            try:
                entry = self._free.pop()
            except IndexError:
                time.sleep(0.005)
                continue
            self._pack(self._map, entry, id, term, deadline)
            return entry

    def leave(self, entry: int) -> None:
        """The end of the job is acknowledged."""
        self._map[entry : entry + _ENTRY.size] = _CLEAR
        self._free.append(entry)

    def stamp(self, name: str) -> None:
        """Set one of the clocks to now."""
        offset, form = _FIELDS[name]
        struct.pack_into(form, self._map, offset, time.monotonic())

    def rest(self, name: str) -> None:
        """Set one of the turn clocks to "not in a turn": a loop that waits for work is not stuck."""
        offset, form = _FIELDS[name]
        struct.pack_into(form, self._map, offset, 0.0)

    def count(self, name: str, value: int) -> None:
        """Set one of the counters."""
        offset, form = _FIELDS[name]
        struct.pack_into(form, self._map, offset, value)

    # The supervisor

    def read(self, name: str) -> float:
        """A clock or a counter; 0 where it was never set."""
        offset, form = _FIELDS[name]
        return float(struct.unpack_from(form, self._map, offset)[0])

    def started(self) -> list[Started]:
        """All entries. Read while the process writes, a pair may be torn: use it with a fence only."""
        found = []
        for offset in range(_START, _SIZE, _ENTRY.size):
            entry = Started(*_ENTRY.unpack_from(self._map, offset))
            if entry.id and entry.term:
                found.append(entry)
        return found


def create_file() -> int:
    """A file descriptor for a page: in memory where the system can, never visible by a name; inheritable on demand."""
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create("leasequeue-page")
    else:
        with tempfile.TemporaryFile() as file:
            fd = os.dup(file.fileno())
    os.ftruncate(fd, _SIZE)
    return fd
