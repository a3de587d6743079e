"""SQLAlchemy, imported when something first needs it: a worker whose handlers do not use it never does.

What the workers run is text, and their connections are psycopg's; only what an application enqueues, and the connections that
SQLAlchemy makes, want it. It takes a quarter of a second of CPU and 15 MB. Whoever imports it within a function calls
:func:`load_sqlalchemy` before; a module that is only imported after that call imports it at its top.
"""

from __future__ import annotations

import contextlib
import threading

_loaded = False


def load_sqlalchemy() -> None:
    """See that SQLAlchemy and its dialect for PostgreSQL are imported. Thread-safe; costs next to nothing the second time.

    In a thread of its own: a handler is told to stop by an exception in its thread (``worker/window.py``), and one that comes
    in the midst of this import leaves parts behind in ``sys.modules`` with which, every other time, no later import
    succeeds. All further jobs of the process would fail.
    """
    global _loaded
    if _loaded:
        return
    thread = threading.Thread(target=_attempt, name="leasequeue-import")
    with contextlib.suppress(RuntimeError):  # the system starts no thread now, or the interpreter ends
        thread.start()
        thread.join()
    _import()
    _loaded = True


def _import() -> None:
    import sqlalchemy.dialects.postgresql  # noqa: F401


def _attempt() -> None:
    with contextlib.suppress(ImportError):  # whoever waits imports it again, and says what is wrong
        _import()
