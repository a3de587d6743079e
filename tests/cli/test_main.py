from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Run
from tests.support.databases import Database

_HEAVY = ("psycopg", "sqlalchemy", "alembic", "rich", "leasequeue.db", "leasequeue.queue")


def test_help_names_the_commands_and_loads_nothing_heavy() -> None:
    code = (
        "import sys\nfrom leasequeue.cli.main import main\n"
        "try: main(['--help'])\nexcept SystemExit as e: assert not e.code\n"
        f"print('LOADED', [name for name in {_HEAVY!r} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "LOADED []" in done.stdout
    for name in ("migrate", "worker", "dev", "status", "jobs"):
        assert f"\n  {name}" in done.stdout


@pytest.mark.parametrize(
    "words",
    [(), ("migrate",), ("worker",), ("dev",), ("status",), ("jobs",), ("jobs", "list"), ("jobs", "show"),
     ("jobs", "retry"), ("jobs", "cancel")],
)  # fmt: skip
def test_every_command_has_help(run: Run, words: tuple[str, ...]) -> None:
    done = run(*words, "--help")
    assert done.exit_code == 0
    assert f"Usage: leasequeue {' '.join(words)}".strip() in done.stdout


def test_the_version(run: Run) -> None:
    assert run("--version").stdout.startswith("leasequeue, version ")


@pytest.mark.parametrize(
    "words",
    [("nope",), ("status", "--nope"), ("jobs", "show"), ("jobs", "show", "x"), ("jobs", "list", "--state", "x")],
)
def test_wrong_words_are_a_matter_of_usage(run: Run, words: tuple[str, ...]) -> None:
    done = run(*words)
    assert done.exit_code == 64
    assert done.stdout == ""
    assert "Usage:" in done.stderr


def test_no_database_is_named(run: Run) -> None:
    done = run("status")
    assert done.exit_code == 78
    assert done.stderr.startswith("leasequeue: no database is named: give --url, or set LEASEQUEUE_URL")
    assert "Traceback" not in done.stderr


def test_a_url_that_is_none(run: Run) -> None:
    done = run("status", "--url", "mysql://u:hidden@h/d")
    assert done.exit_code == 78
    assert "hidden" not in done.stderr


def test_a_database_that_cannot_be_reached(run: Run) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        url = f"postgresql://u:hidden@127.0.0.1:{closed.getsockname()[1]}/d"
        done = run("status", "--url", url)
        shown = run("status", "--url", url, "--debug")
    assert done.exit_code == shown.exit_code == 69
    assert "u:***@127.0.0.1" in done.stderr
    assert "Check that the server is up" in done.stderr
    assert "hidden" not in done.stderr + shown.stderr.split("leasequeue: ")[-1]
    assert "Traceback" not in done.stderr
    assert "Traceback" in shown.stderr


def test_tables_that_are_not_there(run: Run, direct_url: str) -> None:
    for words in (("status",), ("jobs", "list"), ("jobs", "cancel", "1")):
        done = run(*words, "--url", direct_url)
        assert done.exit_code == 78
        assert "run `leasequeue migrate --schema public`" in done.stderr


@pytest.mark.direct_only  # the same connection as in every other test of a command
def test_where_the_database_is_said(run: Run, database: Database, tmp_path: Path) -> None:
    file = tmp_path / "url"
    file.write_text(database.url + "\n")
    nowhere = "postgresql://u@127.0.0.1:1/d"
    assert run("status", LEASEQUEUE_URL=database.url, DATABASE_URL=nowhere).exit_code == 0
    assert run("status", LEASEQUEUE_URL_FILE=str(file), DATABASE_URL=nowhere).exit_code == 0
    assert run("status", DATABASE_URL=database.url).exit_code == 0
    assert run("status", "--url", database.url, LEASEQUEUE_URL=nowhere).exit_code == 0
    assert run("status", LEASEQUEUE_URL=database.url, LEASEQUEUE_SCHEMA="nix").exit_code == 78
    assert run("status", "--schema", "public", LEASEQUEUE_URL=database.url, LEASEQUEUE_SCHEMA="nix").exit_code == 0


def test_migrate(run: Run, direct_url: str) -> None:
    first = run("migrate", "--url", direct_url)
    assert (first.exit_code, first.stderr) == (0, "")
    assert "created the tables, version 1" in first.stdout
    assert "nothing to do" in run("migrate", "--url", direct_url).stdout
    missing = run("migrate", "--url", direct_url, "--schema", "nix")
    assert missing.exit_code == 78
    script = run("migrate", "--sql", "--schema", "nix")
    assert script.exit_code == 0
    assert 'CREATE TABLE "nix".leasequeue_job' in script.stdout or "CREATE TABLE nix.leasequeue_job" in script.stdout


@pytest.mark.direct_only  # it is about stdout
def test_a_reader_that_has_had_enough(database: Database) -> None:
    database.execute(
        "INSERT INTO leasequeue_job (task, args) SELECT 't', to_jsonb(repeat('x', 150)) FROM generate_series(1, 999)"
    )
    read, write = os.pipe()
    os.close(read)
    words = [
        sys.executable,
        "-m",
        "leasequeue.cli.main",
        "jobs",
        "list",
        "--limit=1000",
        "--json",
        f"--url={database.url}",
    ]
    done = subprocess.run(words, stdout=write, stderr=subprocess.PIPE, text=True, check=False)
    os.close(write)
    assert (done.returncode, done.stderr) == (1, "")
