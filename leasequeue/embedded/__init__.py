"""A Postgres from a wheel, for development, demo and tests: no installation, no container, no root needed.

    with embedded.start() as server:            # data under ./.leasequeue, kept from run to run
        engine = sqlalchemy.create_engine(server.ensure_database("app"))

Any number of processes may start the same folder: the first one starts the server, the others share it, and it stops
when the last of them is gone, by ``stop``, by its end or by SIGKILL. Who is there is told by locked files, which the
kernel unlocks when a process dies; a *watcher* process (``watch.py``) reads them and owns the postmaster:

    start():  take folder/lock → register (folder/users/N, locked) → watcher there? ──no──> spawn it → wait for ready
    watcher:  creating ──> starting ──> ready <──> paused
                               ^          │ postmaster died: start it again, on the same port
                               └──────────┘
              ready, no registered user left (looked at under folder/lock) ──> stop the postmaster, leave

Where the watcher itself is killed, the kernel tells the postmaster to shut down (Linux); elsewhere the next ``start``
finds and ends it. The server listens on 127.0.0.1 only (socket paths are limited to 107 bytes) and wants a generated
password, kept in the folder in a file of mode 600: on a shared machine the loopback is everybody's.

As root the server runs as an unprivileged user that exists (postgres, else nobody). No directory that was not made
here is ever opened up for it: where that user cannot enter the folder, the data lies under /var/lib/leasequeue, and
the folder keeps a pointer to it.
"""

from __future__ import annotations

from leasequeue.embedded.server import EmbeddedServer, start

__all__ = ["EmbeddedServer", "start"]
