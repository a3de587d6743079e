"""Whether a notification can end an idle claimer's pause, and the proof of it.

LISTEN is used only where the claimer's connection is a session of its own (direct, or a session pooler). That it works is
proven, not believed: the renewer sends a notification with a token over *its* connection, the claimer must see it. The
proof is repeated; when it fails the claimer says so and goes on by polling, which it does all the time anyway.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from leasequeue.db.connect import readable
from leasequeue.db.names import CANCEL, channel
from leasequeue.db.pooling import Kind, detect
from leasequeue.db.workers import BACKEND_PID, NOTIFY, listen

if TYPE_CHECKING:
    from leasequeue.db.connect import Link
    from leasequeue.db.urls import Settings

log = logging.getLogger("leasequeue.worker")

PROVE_EVERY_SECONDS = 15.0
PROOF_SECONDS = 5.0
_PROBE = "probe:"


class WakeMode:
    """Shared by the claimer, which listens, and the renewer, which proves.

    Args:
        poll_only: never listen.

    ``on_cancel`` is called with the id of a job that somebody wants cancelled, in the claimer's thread.
    """

    def __init__(self, settings: Settings, schema: str, poll_only: bool) -> None:
        self._settings = settings
        self._channel = channel(schema)
        self._poll_only = poll_only
        self._lock = threading.Lock()
        self._kind: Kind | None = None
        self._listening = False
        self._token: str | None = None
        self._sent = 0.0
        self._proven: bool | None = None
        self.on_cancel: Callable[[int], None] = lambda _: None

    @property
    def kind(self) -> str:
        """What kind of connection was found, for the line at start."""
        return self._kind.value if self._kind is not None else "not asked"

    def describe(self) -> str:
        """The mode in words."""
        if self._poll_only:
            return "polling (asked for)"
        if not self._listening:
            return f"polling (connection: {self.kind})"
        if self._proven is None:
            return f"listening, not proven yet (connection: {self.kind})"
        return f"listening (connection: {self.kind})" if self._proven else "polling (notifications do not arrive)"

    # The claimer

    def begin(self, link: Link) -> None:
        """A new connection of the claimer: listen on it if it is a session."""
        self._listening = False
        if self._poll_only:
            return
        if link.run(BACKEND_PID)[0][0] == link.pid:
            self._kind = Kind.DIRECT
        elif self._kind in (None, Kind.DIRECT, Kind.UNKNOWN):
            self._kind = detect(self._settings).kind
        if self._kind in (Kind.DIRECT, Kind.SESSION):
            link.run(listen(self._channel))
            self._listening = True
            self._token = None

    @property
    def arrives(self) -> bool:
        """Whether a notification would end a pause of the claimer, as the last proof says."""
        return self._listening and self._proven is True

    def wait(self, link: Link, seconds: float, wake_fd: int) -> bool:
        """Wait that long, or until a notification comes or ``wake_fd`` becomes readable; whether a notification came."""
        if not self._listening:
            readable([wake_fd], seconds)
            return False
        until = time.monotonic() + seconds
        while True:
            payloads = link.notifications(max(0.0, until - time.monotonic()), wake_fd)
            if not payloads:
                return False
            if self._is_for_claimer(payloads):
                return True

    def take(self, link: Link) -> None:
        """Take the notifications that came meanwhile, without waiting: a claimer that finds work never waits."""
        if self._listening and link.has_heard:
            self._is_for_claimer(link.notifications(0.0))

    def _is_for_claimer(self, payloads: list[str]) -> bool:
        """Pass on what is not for it; whether something is."""
        found = False
        for payload in payloads:
            if payload.startswith(_PROBE):
                self._seen(payload)
            elif payload.startswith(CANCEL):
                id = payload.removeprefix(CANCEL)
                if id.isdecimal() and id.isascii():
                    self.on_cancel(int(id))
            else:
                found = True
        return found

    def _seen(self, payload: str) -> None:
        with self._lock:
            if payload != self._token:
                return
            self._token = None
            before, self._proven = self._proven, True
        if before is not True:
            log.info("notifications arrive: a new job is seen at once")

    # The renewer

    def prove(self, link: Link) -> None:
        """Send a proof when one is due, and judge the last one. Cheap when nothing is due."""
        if not self._listening:
            return
        now = time.monotonic()
        token = None
        with self._lock:
            before = self._proven
            failed = self._token is not None and now - self._sent > PROOF_SECONDS
            if failed:
                self._token = None
                self._proven = False
            if self._token is None and (now - self._sent > PROVE_EVERY_SECONDS or self._sent == 0.0):
                self._token = token = _PROBE + secrets.token_hex(8)
                self._sent = now
        if failed and before is not False:
            log.warning("notifications do not arrive any more: new jobs are found by polling, up to 0.1 s later")
        if token is not None:
            link.run(NOTIFY, {"channel": self._channel, "payload": token})
