"""A TCP proxy between a client and Postgres that breaks things on purpose.

It knows as much of the wire protocol as it takes to see which statement is on its way and when the server has
finished it: frontend Query, Parse, Bind and Execute, backend CommandComplete and ReadyForQuery. So it can let a
statement through, wait until the server has executed it, and only then lose the answer: the client is left not
knowing, the server knows that it has committed.

    with Proxy(server.host, server.port) as proxy:
        url = server.url(name, host=proxy.host, port=proxy.port)
        lost = proxy.lose_reply("COMMIT")       # or any regular expression over the statement's text
        ...                                     # the client sees a broken connection
        assert lost.wait(30)
"""

from __future__ import annotations

import contextlib
import re
import socket
import struct
import threading
import time
from collections.abc import Callable

_STARTUP = {80877103, 80877104}  # SSLRequest and GSSENCRequest: answered by a single byte, then startup goes on


class Rule:
    """One planned fault; ``wait`` blocks until it has happened.

    Attributes:
        statement: the text of the statement that it befell, once it has.
    """

    def __init__(self, pattern: str, times: int, count: Callable[[str], bool] | None) -> None:
        self._pattern = re.compile(pattern, re.IGNORECASE | re.DOTALL)
        self._left = times
        self._count = count
        self._lock = threading.Lock()
        self._happened = threading.Event()
        self.statement: str | None = None

    def wait(self, seconds: float) -> bool:
        return self._happened.wait(seconds)

    @property
    def happened(self) -> bool:
        return self._happened.is_set()

    def takes(self, statement: str) -> bool:
        """Whether this statement is to be hit; counts it."""
        with self._lock:
            if self._left and self._pattern.search(statement) and (not self._count or self._count(statement)):
                self._left -= 1
                return True
        return False

    def done(self, statement: str) -> None:
        self.statement = statement
        self._happened.set()


class Proxy:
    """Listens on 127.0.0.1 and forwards to one address, until ``close``. Thread-safe.

    Encryption is refused towards the client (as a server without SSL does), or nothing could be read.
    """

    def __init__(self, host: str, port: int) -> None:
        self.behind = (host, port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.host = "127.0.0.1"
        self.port: int = self._listener.getsockname()[1]
        self._lock = threading.Lock()
        self._links: set[_Link] = set()
        self._rules: list[Rule] = []
        self._closed = False
        self.refusing = False
        self.delay_seconds = 0.0
        self._flow = threading.Event()
        self._flow.set()
        self._thread = threading.Thread(target=self._accept, name="proxy", daemon=True)
        self._thread.start()

    def lose_reply(self, pattern: str, *, times: int = 1, when: Callable[[str], bool] | None = None) -> Rule:
        """Drop the connection after the server has executed a statement that matches, before its answer is sent on.

        Args:
            pattern: searched in the statement's text, whatever the case.
            times: how many statements it befalls.
            when: asked as well, with the statement's text.
        """
        rule = Rule(pattern, times, when)
        with self._lock:
            self._rules.append(rule)
        return rule

    def drop(self) -> int:
        """Break all connections now (a reset, not an orderly end). Returns how many there were."""
        with self._lock:
            links = list(self._links)
        for link in links:
            link.break_off()
        return len(links)

    def blackhole(self) -> None:
        """From now on nothing is passed on in either direction; connections stay open, new ones are accepted."""
        self._flow.clear()

    def restore(self) -> None:
        """Undo ``blackhole`` (what was held back is sent on), ``refusing`` and ``delay_seconds``."""
        self.refusing = False
        self.delay_seconds = 0.0
        self._flow.set()

    @property
    def connections(self) -> int:
        with self._lock:
            return len(self._links)

    def close(self) -> None:
        self._closed = True
        self._flow.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.drop()
        self._thread.join(30)

    def __enter__(self) -> Proxy:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def rule_for(self, statement: str) -> Rule | None:
        with self._lock:
            rules = list(self._rules)
        return next((rule for rule in rules if rule.takes(statement)), None)

    def pause(self) -> bool:
        """What each piece of data waits for. False once the proxy is closed."""
        self._flow.wait()
        if self.delay_seconds:
            time.sleep(self.delay_seconds)
        return not self._closed

    def forget(self, link: _Link) -> None:
        with self._lock:
            self._links.discard(link)

    def _accept(self) -> None:
        while not self._closed:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if self.refusing:
                _reset(client)
                continue
            link = _Link(self, client)
            with self._lock:
                self._links.add(link)
            link.start()


class _Link:
    """One client connection and the server connection behind it."""

    def __init__(self, proxy: Proxy, client: socket.socket) -> None:
        self.proxy = proxy
        self.client = client
        self.server: socket.socket | None = None
        self.prepared: dict[bytes, str] = {}
        self.portals: dict[bytes, str] = {}
        self.doomed: tuple[Rule, str] | None = None  # its answer is to be lost
        self.broken = False

    def start(self) -> None:
        threading.Thread(target=self._run, name="proxy-link", daemon=True).start()

    def break_off(self) -> None:
        self.broken = True
        for end in (self.client, self.server):
            if end is not None:
                _reset(end)
        self.proxy.forget(self)

    def _run(self) -> None:
        try:
            startup = self._startup()
            if startup is None or not self.proxy.pause():
                return
            self.server = socket.create_connection(self.proxy.behind, timeout=10)
            self.server.settimeout(None)
            for end in (self.client, self.server):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.server.sendall(startup)
            answers = threading.Thread(target=self._backend, name="proxy-answers", daemon=True)
            answers.start()
            self._frontend()
            answers.join(30)
        except OSError:
            pass
        finally:
            self.break_off()

    def _startup(self) -> bytes | None:
        """The startup packet, after the client was told that there is no encryption."""
        while True:
            head = _exactly(self.client, 8)
            if head is None:
                return None
            length, code = struct.unpack("!II", head)
            body = _exactly(self.client, length - 8)
            if body is None:
                return None
            if code not in _STARTUP:
                return head + body
            self.client.sendall(b"N")

    def _frontend(self) -> None:
        """Client to server, message by message."""
        assert self.server is not None
        while (message := _message(self.client)) is not None:
            if not self.proxy.pause():
                return
            statement = self._statement(message)
            if statement is not None and self.doomed is None and (rule := self.proxy.rule_for(statement)):
                self.doomed = (rule, statement)
            self.server.sendall(message)
        with contextlib.suppress(OSError):
            self.server.shutdown(socket.SHUT_WR)

    def _backend(self) -> None:
        """Server to client; stops for good where an answer is to be lost."""
        assert self.server is not None
        try:
            while (message := _message(self.server)) is not None:
                if not self.proxy.pause():
                    return
                doomed = self.doomed
                if doomed is not None:
                    # From the doomed statement on nothing reaches the client. CommandComplete inside a transaction
                    # or an implicit one is not yet a commit: ReadyForQuery is sent after it.
                    if message[:1] == b"Z":
                        self.break_off()
                        doomed[0].done(doomed[1])
                        return
                    continue
                self.client.sendall(message)
            # The server hung up: so do we.
            self.break_off()
        except OSError:
            self.break_off()

    def _statement(self, message: bytes) -> str | None:
        """The text of the statement that this message has executed, or None."""
        kind, body = message[:1], message[5:]
        if kind == b"Q":
            return body[:-1].decode(errors="replace")
        if kind == b"P":
            name, text, _ = body.split(b"\0", 2)
            self.prepared[name] = text.decode(errors="replace")
        elif kind == b"B":
            portal, name, _ = body.split(b"\0", 2)
            self.portals[portal] = self.prepared.get(name, "")
        elif kind == b"E":
            return self.portals.get(body.split(b"\0", 1)[0], "")
        return None


def _exactly(sock: socket.socket, count: int) -> bytes | None:
    found = bytearray()
    while len(found) < count:
        piece = sock.recv(count - len(found))
        if not piece:
            return None
        found += piece
    return bytes(found)


def _message(sock: socket.socket) -> bytes | None:
    """A whole message: type, length, body."""
    head = _exactly(sock, 5)
    if head is None:
        return None
    body = _exactly(sock, struct.unpack("!I", head[1:])[0] - 4)
    return None if body is None else head + body


def _reset(sock: socket.socket) -> None:
    """Close with a reset, and wake whoever reads from it."""
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        sock.shutdown(socket.SHUT_RDWR)
    sock.close()
