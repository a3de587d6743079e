"""A mail server that listens on this machine and keeps what it gets: ``python -m examples.evening_nudge.smtp``."""

from __future__ import annotations

import asyncio
import datetime as dt
import email
import signal
import socket
import sys
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from aiosmtpd.controller import Controller
from aiosmtpd.smtp import SMTP, Envelope, Session


@dataclass(frozen=True)
class Mail:
    """One that was accepted. ``sender_pid`` is the process that sent it."""

    message_id: str
    recipient: str
    tick: dt.datetime
    sender_pid: int


class Receiver:
    """Listens from ``start`` to ``stop``, on a free port unless told otherwise. Thread-safe.

    Attributes:
        address: host:port.
    """

    def __init__(self, port: int = 0, show: Callable[[Mail], None] = lambda _mail: None) -> None:
        self._listening = socket.create_server(("127.0.0.1", port))
        self.address = f"127.0.0.1:{self._listening.getsockname()[1]}"
        self._show = show
        self._lock = threading.Lock()
        self._mails: list[Mail] = []
        self._unanswered: list[Mail] = []
        self._answers = asyncio.Event()
        self._answers.set()
        self._controller = _Controller(self, self._listening)

    def start(self) -> Receiver:
        self._controller.start()
        return self

    def stop(self) -> None:
        self.answer()
        self._controller.stop()

    @property
    def mails(self) -> list[Mail]:
        """All that were accepted, in their order."""
        with self._lock:
            return list(self._mails)

    @property
    def unanswered(self) -> list[Mail]:
        """Those that were accepted, and whose sender was not told so."""
        with self._lock:
            return list(self._unanswered)

    def hold(self) -> None:
        """Accept mails from now on, and give no reply until :meth:`answer`."""
        self._on_loop(self._answers.clear)

    def answer(self) -> None:
        self._on_loop(self._answers.set)

    def _on_loop(self, act: Callable[[], None]) -> None:
        async def run() -> None:
            act()

        asyncio.run_coroutine_threadsafe(run(), self._controller.loop).result(10)

    async def handle_DATA(self, server: SMTP, session: Session, envelope: Envelope) -> str:
        """Called by aiosmtpd when a mail is complete; what it returns is the reply."""
        content = envelope.content
        assert isinstance(content, bytes)
        parsed = email.message_from_bytes(content)
        got = [
            Mail(
                parsed["Message-ID"],
                recipient,
                dt.datetime.fromisoformat(parsed["X-Tick"]),
                int(parsed["X-Mailer"].split()[-1]),
            )
            for recipient in envelope.rcpt_tos
        ]
        with self._lock:
            self._mails += got
            self._unanswered += got
        for mail in got:
            self._show(mail)
        await self._answers.wait()  # a sender that is gone by now cancels this
        with self._lock:
            for mail in got:
                self._unanswered.remove(mail)
        return "250 OK"


class _Controller(Controller):
    """On a socket that listens already: aiosmtpd takes no port 0."""

    def __init__(self, receiver: Receiver, listening: socket.socket) -> None:
        host, port = listening.getsockname()
        super().__init__(receiver, hostname=host, port=port)
        self._listening = listening

    def _create_server(self) -> Awaitable[asyncio.AbstractServer]:
        return self.loop.create_server(self._factory_invoker, sock=self._listening)


def main() -> None:
    seen: set[str] = set()

    def show(mail: Mail) -> None:
        again = " (again: a receiver drops it by its Message-ID)" if mail.message_id in seen else ""
        seen.add(mail.message_id)
        print(
            f"{mail.tick:%H:%M:%S} {mail.recipient} from process {mail.sender_pid} {mail.message_id}{again}", flush=True
        )

    receiver = Receiver(int(sys.argv[1]) if len(sys.argv) > 1 else 8025, show).start()
    print(f"listening on {receiver.address}; Ctrl-C ends it", flush=True)
    signal.sigwait({signal.SIGINT, signal.SIGTERM})
    receiver.stop()


if __name__ == "__main__":
    main()
