"""SQLAlchemy, imported when something first needs it: a worker whose handlers do not use it never does.

What the workers run is text, and their connections are psycopg's; only what an application enqueues, and the connections that
SQLAlchemy makes, want it. It takes a third of a second of CPU and 20 MB. Whoever imports it within a function calls
:func:`load_sqlalchemy` before; a module that is only imported after that call imports it at its top.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
from collections.abc import Iterable
from importlib import import_module

_PACKAGE = "sqlalchemy"
_DIALECT = "sqlalchemy.dialects.postgresql"
FORK_SECONDS = 10.0
"""How long a fork waits for an import that goes on in another thread."""

_loaded: set[str] = set()
_importing = threading.Lock()
"""Held while our thread imports. A fork waits for it: in the child nobody would ever release the locks of the modules."""


def load_sqlalchemy(*more: str) -> None:
    """See that SQLAlchemy and its dialect for PostgreSQL are imported. Thread-safe; costs next to nothing the second time.

    In a thread of its own: a handler is told to stop by an exception in its thread (``worker/window.py``), and one that comes
    in the midst of this import leaves parts behind in ``sys.modules`` with which, every other time, no later import
    succeeds. All further jobs of the process would fail.

    Args:
        more: modules of SQLAlchemy's that are wanted beside.
    """
    if _loaded.issuperset((_DIALECT, *more)):
        return
    modules = [_DIALECT, *more]
    if not _is_being_imported():
        thread = threading.Thread(target=_attempt, args=(modules,), name="leasequeue-import")
        with contextlib.suppress(RuntimeError):  # the system starts no thread now, or the interpreter ends
            thread.start()
            thread.join()
    _import(modules)
    _loaded.update(modules)


def _is_being_imported() -> bool:
    """Whether somebody is in the midst of it. If that is this thread (a signal's handler, a hook of the import), a thread that
    we waited for would wait for us."""
    ours = [module for name, module in list(sys.modules.items()) if name.partition(".")[0] == _PACKAGE]
    return any(getattr(getattr(module, "__spec__", None), "_initializing", False) for module in ours)


def _import(modules: Iterable[str]) -> None:
    for module in modules:
        import_module(module)


def _attempt(modules: Iterable[str]) -> None:
    with _importing, contextlib.suppress(Exception):  # whoever waits imports it again, and says what is wrong
        _import(modules)


def _before_fork() -> None:
    global _held
    _held = _importing.acquire(timeout=FORK_SECONDS)


def _after_fork() -> None:
    global _held
    if _held:
        _held = False
        _importing.release()


_held = False
# What was registered last comes first: logging holds its lock through a fork, and what is imported makes loggers.
logging.getLogger(__name__)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork)
