"""SQLAlchemy is imported by the first who needs it, which may be a handler that is told to stop at that moment.

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

SCRIPT = """
import ctypes, sys, threading
from leasequeue.db.load import load_sqlalchemy
from leasequeue.raising import JobInterrupted

def in_the_same_thread():
    import sqlalchemy.dialects.postgresql

class Interrupter:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == "sqlalchemy.sql.functions":
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
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_a_handler_that_is_interrupted_leaves_it_whole() -> None:
    assert _said(SCRIPT.replace("LOAD", "load_sqlalchemy") + NEXT) == ["interrupted, and it is whole", "True"]


def test_the_same_without_a_thread_of_its_own() -> None:
    assert _said(SCRIPT.replace("LOAD", "in_the_same_thread")) == ["interrupted, and it is in parts"]
