"""SQLAlchemy is imported by the first who needs it, which may be a handler that is told to stop at that moment, somebody who
interrupts that very import, or a process that is forked in the midst of it.

::

    thread of the handler                       interrupter
    needs SQLAlchemy: the import begins
                                                sets JobInterrupted for that thread
    raised when the import is done              (broken: in the midst of it)
    the next job: SQLAlchemy is whole           (broken: every other time it can never be imported again)
"""

from __future__ import annotations

import subprocess
import sys

import pytest

SCRIPT = """
import ctypes, sys, threading
from leasequeue.db.load import load_sqlalchemy
from leasequeue.raising import JobInterrupted

def in_the_same_thread():
    import sqlalchemy.dialects.postgresql

class Interrupter:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == "PLACE":
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(handler.ident), ctypes.py_object(JobInterrupted))

def handle():
    try:
        LOAD()
        for _ in range(1000):
            pass
    except JobInterrupted:
        print("interrupted, and it is", "whole" if "sqlalchemy.dialects.postgresql" in sys.modules else "in parts")

sys.meta_path.insert(0, Interrupter)
handler = threading.Thread(target=handle)
handler.start()
handler.join()
"""
NEXT = """
sys.meta_path.remove(Interrupter)
load_sqlalchemy()
import sqlalchemy
sqlalchemy.create_engine("postgresql+psycopg://")
print(issubclass(sqlalchemy.exc.OperationalError, sqlalchemy.exc.SQLAlchemyError))
"""


def _said(script: str) -> list[str]:
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_a_handler_that_is_interrupted_leaves_it_whole() -> None:
    script = SCRIPT.replace("LOAD", "load_sqlalchemy").replace("PLACE", "sqlalchemy.sql.functions")
    assert _said(script + NEXT) == ["interrupted, and it is whole", "True"]


def test_the_same_without_a_thread_of_its_own() -> None:
    script = SCRIPT.replace("LOAD", "in_the_same_thread").replace("PLACE", "sqlalchemy.sql.functions")
    assert _said(script) == ["interrupted, and it is in parts"]


@pytest.mark.parametrize("place", ["sqlalchemy.orm.loading", "sqlalchemy.ext.asyncio.engine"])
def test_nor_do_the_parts_that_only_asyncio_needs(place: str) -> None:
    load = "(lambda: load_sqlalchemy('sqlalchemy.ext.asyncio'))"
    after = "\nimport sqlalchemy.ext.asyncio, sqlalchemy.orm\nprint(sqlalchemy.orm.Session, sqlalchemy.ext.asyncio.AsyncEngine)"
    said = _said(SCRIPT.replace("LOAD", load).replace("PLACE", place) + NEXT + after)
    assert said[:2] == ["interrupted, and it is whole", "True"]
    assert len(said) == 3


WITHIN = """
import os, sys, threading
from leasequeue.db.load import load_sqlalchemy

class Hook:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == "PLACE":
            sys.meta_path.remove(Hook)
            CALL

sys.meta_path.insert(0, Hook)
"""


@pytest.mark.parametrize("place", ["sqlalchemy.engine", "sqlalchemy.sql.functions"])
def test_who_asks_for_it_within_its_import_is_not_held_up_for_ever(place: str) -> None:
    """As a signal's handler that enqueues does."""
    call = "\n            ".join(["try:", "    load_sqlalchemy()", "except Exception: pass", "print('goes on')"])
    script = WITHIN.replace("PLACE", place).replace("CALL", call)
    assert _said(script + "import sqlalchemy\nload_sqlalchemy()\nprint('done')") == ["goes on", "done"]


def test_a_fork_waits_for_the_import_of_another_thread() -> None:
    """Otherwise the child would wait for locks of modules that nobody has there."""
    script = WITHIN.replace("PLACE", "sqlalchemy.sql.functions").replace(
        "CALL", "midst.set(); threading.Event().wait(0.3)"
    )
    script += """
import signal
midst = threading.Event()
thread = threading.Thread(target=load_sqlalchemy)
thread.start()
midst.wait()
pid = os.fork()
if pid == 0:
    signal.alarm(10)
    load_sqlalchemy()
    import sqlalchemy
    sqlalchemy.create_engine("postgresql+psycopg://")
    os._exit(7)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
thread.join()
"""
    assert _said(script) == ["7"]
