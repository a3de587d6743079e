"""What stands between us and the server: nothing, a pooler that keeps sessions, or one that does not.

Asked only for what a session is good for (``LISTEN``); every statement of ours is correct behind any of them::

    A: the pid that the login named = pg_backend_pid()? ── yes ──────────────────> DIRECT
    │ no: somebody answered the login in the server's place
    B: BEGIN ── refused, and why ────────────────────────────────────────────────> STATEMENT
    │ the pid of its server process = A's? ── yes: two clients, one process ─────> TRANSACTION
    │ A asked again while B holds that process: another pid? ── yes ─────────────> TRANSACTION
    LISTEN on A, NOTIFY from B: does it arrive? ── yes ──────────────────────────> SESSION
                                                ── no ───────────────────────────> TRANSACTION
    anything that fails or takes too long ───────────────────────────────────────> UNKNOWN

A is never asked again once the pids were equal: with a pool of one it would wait for B, which waits for us.
"""

from __future__ import annotations

import contextlib
import secrets
import time
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

import psycopg

from leasequeue.db.connect import Link
from leasequeue.errors import DatabaseUnavailable

if TYPE_CHECKING:
    from leasequeue.db.urls import Settings
    from leasequeue.db.watchdog import Watchdog

_ROUNDS = 3
_PID = "SELECT pg_backend_pid()"
# One name for all: what a transaction pooler leaves listening does not grow with every question.
_CHANNEL = "leasequeue_probe"
_LISTEN = f"LISTEN {_CHANNEL}"
_UNLISTEN = f"UNLISTEN {_CHANNEL}"
_NOTIFY = "SELECT pg_notify(%(channel)s, %(payload)s)"


class Kind(Enum):
    """A kind of connection."""

    DIRECT = "direct"
    SESSION = "session"
    TRANSACTION = "transaction"
    STATEMENT = "statement"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Pooling:
    """What was found.

    Attributes:
        kind: UNKNOWN is to be treated as TRANSACTION.
        why: what it was judged by, in words; no secret in it.
    """

    kind: Kind
    why: str

    @property
    def keeps_session(self) -> bool:
        """Whether what is set or listened to on a connection stays with that connection."""
        return self.kind in (Kind.DIRECT, Kind.SESSION)

    def __str__(self) -> str:
        return f"{self.kind.value} ({self.why})"


def detect(
    settings: Settings,
    *,
    watchdog: Watchdog | None = None,
    bound_seconds: float = 3.0,
    listen_seconds: float = 1.0,
) -> Pooling:
    """Find out what kind of connection ``settings`` give. One connection of its own if direct, two otherwise.

    Takes about a millisecond beside the connects; ``listen_seconds`` more where a notification is waited for in vain.

    Args:
        bound_seconds: for each statement: a session pooler whose slots are all taken would keep us waiting.
        listen_seconds: how long a notification may take.

    Returns:
        The kind; UNKNOWN for whatever fails. Never raises a database's error.
    """
    a = Link(settings, application_name="leasequeue detect", watchdog=watchdog, bound_seconds=bound_seconds)
    b = _Holder(settings, application_name="leasequeue detect", watchdog=watchdog, bound_seconds=bound_seconds)
    try:
        return _detect(a, b, listen_seconds)
    except DatabaseUnavailable as error:
        if "statement pooling mode" in str(error):
            return Pooling(Kind.STATEMENT, "a transaction block is refused")
        return Pooling(Kind.UNKNOWN, str(error))
    except psycopg.Error as error:
        return Pooling(Kind.UNKNOWN, settings.hide(f"{type(error).__name__}: {error}"))
    finally:
        a.close()
        b.close()


def arrives(
    listener: Link, notifier: Link, *, channel: str = _CHANNEL, payload: str = "", seconds: float = 1.0
) -> bool:
    """Whether a notification sent by ``notifier`` reaches ``listener``, which listens to ``channel`` already.

    Two connections, for on a single one it arrives behind a transaction pooler too. Other notifications that
    come meanwhile are lost to the caller.

    Args:
        payload: empty: a random one.

    Raises:
        DatabaseUnavailable: one of the connections is lost.
    """
    payload = payload or secrets.token_hex(8)
    notifier.run(_NOTIFY, {"channel": channel, "payload": payload})
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        if payload in listener.notifications(left):
            return True
    return False


class _Holder(Link):
    """A Link that can keep its server process by an open transaction, which no other code of ours does."""

    def hold(self) -> int:
        """Begin, and say which server process it is."""
        self._begin = None  # or BEGIN would be followed by a COMMIT
        self.run("BEGIN")
        return _pid(self)

    def let_go(self) -> None:
        if self.connected:
            self.run("COMMIT")


def _pid(link: Link) -> int:
    return int(link.run(_PID)[0][0])


def _detect(a: Link, b: _Holder, listen_seconds: float) -> Pooling:
    a.connect()
    if _pid(a) == a.pid:
        return Pooling(Kind.DIRECT, "the login named the server process that answers")
    b.connect()
    for _ in range(_ROUNDS):
        before = _pid(a)
        try:
            if b.hold() == before:
                return Pooling(Kind.TRANSACTION, "two connections met the same server process")
            if _pid(a) != before:
                return Pooling(Kind.TRANSACTION, "the server process changed between two statements of a connection")
        finally:
            b.let_go()
    a.run(_LISTEN)
    if arrives(a, b, seconds=listen_seconds):
        a.run(_UNLISTEN)
        return Pooling(Kind.SESSION, "a notification reached an idle connection")
    # The LISTEN stays on some pooled server connection. Two are cleaned, the most that can be told apart here.
    with contextlib.suppress(DatabaseUnavailable):
        b.hold()
        b.run(_UNLISTEN)
        a.run(_UNLISTEN)
        b.let_go()
    return Pooling(Kind.TRANSACTION, "no notification reached an idle connection")
