"""Lines that misbehave: a listener that never answers, and a proxy that may look into, hold back or cut what passes."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self

Hook = Callable[[bytes], "bytes | None"]


def _pass(data: bytes) -> bytes | None:
    return data


class Blackhole:
    """Accepts (the kernel does) and never says a word, as a host behind a firewall or a stopped one."""

    def __init__(self) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._socket.getsockname()[1])

    def close(self) -> None:
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        self.close()


class Wire(Blackhole):
    """A TCP proxy.

    Attributes:
        on_request: sees each piece from the client; its answer is passed on, None cuts the line.
        on_reply: the same for each piece from the server.
        accepted: how many clients came.
    """

    def __init__(self, host: str, port: int) -> None:
        super().__init__()
        self._behind = (host, port)
        self.on_request: Hook = _pass
        self.on_reply: Hook = _pass
        self.accepted = 0
        self._open: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._socket.accept()
                self.accepted += 1
                server = socket.create_connection(self._behind)
                self._open += [client, server]
                threading.Thread(target=self._pump, args=(client, server, True), daemon=True).start()
                threading.Thread(target=self._pump, args=(server, client, False), daemon=True).start()

    def _pump(self, source: socket.socket, target: socket.socket, request: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                passed = (self.on_request if request else self.on_reply)(data)
                if passed is None:
                    break
                target.sendall(passed)
        for end in (source, target):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def answer_then_cut(self, data: bytes) -> None:
        """Say this to the last client, and close."""
        client = self._open[-2]
        client.sendall(data)
        client.shutdown(socket.SHUT_RDWR)

    def refuse(self, state: str, message: str) -> None:
        """Answer the last client with a FATAL error, and close: a hook may return the result."""
        said = f"SFATAL\0C{state}\0M{message}\0\0".encode()
        self.answer_then_cut(b"E" + (len(said) + 4).to_bytes(4, "big") + said)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        super().close()
        for end in self._open:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()
