"""``/healthz`` and ``/readyz``: whether the loops of the worker processes make progress, and whether the database answers.

A database that is away makes a worker not ready; it does not make it dead, for a restart would not bring it back.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Health = Callable[[], tuple[bool, bool, dict[str, Any]]]


class HealthServer:
    """Serves until closed, on a thread of its own.

    Args:
        address: host and port; port 0 takes a free one.
        health: gives alive, ready, and the details.
    """

    def __init__(self, address: tuple[str, int], health: Health) -> None:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                if self.path not in ("/healthz", "/readyz"):
                    self.send_error(404, "try /healthz or /readyz")
                    return
                alive, ready, details = health()
                body = json.dumps(details, indent=1).encode() + b"\n"
                self.send_response(200 if (alive if self.path == "/healthz" else ready) else 503)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                """Probes come every few seconds; they are not worth a line."""

        self._server = ThreadingHTTPServer(address, Handler)
        self._server.daemon_threads = True
        self.port = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, name="leasequeue-health", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
