"""What no statement of ours may do: it would not survive a pooler, or a process that is killed.

Only strings count, and not the prose among them (docstrings): a module may well say why it takes no advisory lock.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2]
FILES = sorted(
    path
    for folder in ("leasequeue", "migrations")
    for path in (ROOT / folder).rglob("*.py")
    if "_migrations" not in path.parts
)


class Found(NamedTuple):
    """A string constant; the parts of an f-string come one by one."""

    place: str
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.place}:{self.line}: {' '.join(self.text.split())[:100]}"


def _strings(place: str, source: str) -> Iterator[Found]:
    tree = ast.parse(source)
    # A string that stands alone as a statement is prose: docstrings, and those under constants.
    prose = {
        id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in prose:
            yield Found(place, node.lineno, node.value)


SOURCES = {str(path.relative_to(ROOT)): path.read_text() for path in FILES}
STRINGS = [found for place, source in SOURCES.items() for found in _strings(place, source)]

# Each is matched without regard to case, unless it says otherwise.
_SCHEMA_OBJECT = r"(TABLE|INDEX|SEQUENCE|SCHEMA|VIEW|FUNCTION|TRIGGER|DATABASE|ROLE)\b"
STATEMENT = re.compile(
    r"^\s*(SELECT\s|INSERT\s+INTO\s|UPDATE\s+\S+\s+SET\s|DELETE\s+FROM\s|WITH\s+\w+\s+AS\s|MERGE\s+INTO\s|COPY\s+\S+\s|"
    rf"(CREATE|ALTER|DROP)\s+{_SCHEMA_OBJECT}|TRUNCATE\s|COMMENT\s+ON\s|GRANT\s|REVOKE\s|LOCK\s+TABLE\s|LISTEN\s|NOTIFY\s|"
    r"BEGIN\b|COMMIT\b|ROLLBACK\b|SAVEPOINT\s|SET\s+(LOCAL|SESSION|[a-z_.]+\s*(=|TO\b)))|\bFOR\s+(UPDATE|NO\s+KEY|KEY\s+SHARE)"
)
FORBIDDEN = {
    "advisory lock": re.compile(r"pg_(try_)?advisory|pg_advisory", re.I),
    "session SET": re.compile(r"^\s*(SET|RESET)\s+(?!TRANSACTION\b)[\w.]+|;\s*SET\s|\bDISCARD\s+ALL\b|SET\s+SESSION\b"),
    "session set_config": re.compile(r"set_config\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*,\s*(false|'f')\s*\)", re.I),
    "temp table": re.compile(r"\bCREATE\s+(GLOBAL\s+|LOCAL\s+)?TEMP(ORARY)?\b|\bpg_temp\b", re.I),
    "server-side prepared statement": re.compile(r"^\s*(PREPARE|EXECUTE|DEALLOCATE)\s+\w"),
    "cursor beyond the transaction": re.compile(r"\bWITH\s+HOLD\b", re.I),
}
# A control query says what it found; it takes nothing. It must name pg_locks beside it.
_READS_LOCKS = re.compile(r"\bpg_locks\b")

PREPARES = re.compile(r"\bprepare\s*=\s*True\b|\bprepare_threshold\s*=\s*[0-9]")
PICKLES = re.compile(r"^\s*(import|from)\s+(pickle|cPickle|dill|cloudpickle|shelve|marshal)\b", re.M)

SQL_ROOMS = ("leasequeue/db/", "leasequeue/schema.py")
EXCEPTIONS = {
    "leasequeue/embedded/server.py": "administers the server that it started itself: creates databases, asks for settings",
}
"""Files outside of the room of SQL that may hold a statement, each with its reason."""
LISTENERS = {
    "leasequeue/db/workers.py": "the hint for an idle worker",
    "leasequeue/db/pooling.py": "the proof that a hint arrives, before one is relied on for speed",
}


def _refused(rule: re.Pattern[str]) -> list[str]:
    return [str(found) for found in STRINGS if rule.search(found.text) and not _READS_LOCKS.search(found.text)]


@pytest.mark.parametrize("what", FORBIDDEN)
def test_no_statement_depends_on_a_database_session(what: str) -> None:
    assert _refused(FORBIDDEN[what]) == []


def test_listen_is_said_where_it_is_a_hint() -> None:
    places = {found.place for found in STRINGS if re.search(r"^\s*(UN)?LISTEN\s", found.text)}
    assert places <= set(LISTENERS)


def test_nothing_is_prepared_in_the_server() -> None:
    assert [place for place, source in SOURCES.items() if PREPARES.search(source)] == []


def test_nothing_is_pickled() -> None:
    assert [place for place, source in SOURCES.items() if PICKLES.search(source)] == []


def test_sql_stands_in_its_room() -> None:
    outside = [
        str(found)
        for found in STRINGS
        if STATEMENT.search(found.text) and not found.place.startswith(SQL_ROOMS) and found.place not in EXCEPTIONS
    ]
    assert outside == []


def test_every_connection_of_ours_turns_preparing_off() -> None:
    """Wherever psycopg's connect is called, the same call says prepare_threshold=None (or gets it by its parameters)."""
    missing = []
    for place, source in SOURCES.items():
        if place in EXCEPTIONS:
            continue  # straight to its own server, no pooler can stand between
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in (
                "psycopg.connect",
                "psycopg.Connection.connect",
            ):
                given = {word.arg: word.value for word in node.keywords}
                if "prepare_threshold" not in given and None not in given:
                    missing.append(f"{place}:{node.lineno}")
    assert missing == []


@pytest.mark.parametrize(
    ("what", "text"),
    [
        ("advisory lock", "SELECT pg_try_advisory_xact_lock(1)"),
        ("advisory lock", "SELECT pg_advisory_unlock_all()"),
        ("session SET", "SET lock_timeout = '1s'"),
        ("session SET", "SET LOCAL lock_timeout = '1s'"),
        ("session SET", "SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL SERIALIZABLE"),
        ("session SET", "RESET ALL"),
        ("session SET", "DISCARD ALL"),
        ("session set_config", "SELECT set_config('lock_timeout', '1s', false)"),
        ("session set_config", "SELECT set_config('lock_timeout', least(1, (2))::text, false)"),
        ("temp table", "CREATE TEMP TABLE x (y int)"),
        ("temp table", "create temporary table x (y int)"),
        ("server-side prepared statement", "PREPARE claim AS SELECT 1"),
        ("server-side prepared statement", "EXECUTE claim"),
    ],
)
def test_the_rules_see(what: str, text: str) -> None:
    assert FORBIDDEN[what].search(text)


def test_the_other_rules_see() -> None:
    assert STATEMENT.search("SELECT 1 FROM leasequeue_job")
    assert STATEMENT.search("\n  UPDATE leasequeue_job SET state = 'r'")
    assert not STATEMENT.search("Update the row first")
    assert PREPARES.search("conn.execute(query, prepare=True)")
    assert PREPARES.search("psycopg.connect(url, prepare_threshold=5)")
    assert PICKLES.search("import json\nimport pickle\n")
    assert len(list(_strings("here", '"""Prose."""\nx = f"SELECT {y} FROM z"'))) == 2
    assert len(FILES) > 20
    assert set(EXCEPTIONS) | set(LISTENERS) <= set(SOURCES)
