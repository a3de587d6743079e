from __future__ import annotations

from collections.abc import Callable

import pytest
from click.testing import CliRunner, Result

from leasequeue.cli.main import main
from tests.ops.conftest import Rows
from tests.support.databases import Database

_NAMES = ("LEASEQUEUE_URL", "LEASEQUEUE_URL_FILE", "DATABASE_URL", "LEASEQUEUE_SCHEMA", "LEASEQUEUE_APP")

Run = Callable[..., Result]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Run:
    """``run("status", "--json")``: in process, without the environment's database."""
    for name in (*_NAMES, "COLUMNS", "LEASEQUEUE_DEBUG"):
        monkeypatch.delenv(name, raising=False)

    def invoke(*words: str, **env: str) -> Result:
        return CliRunner(env=env).invoke(main, words, catch_exceptions=False)

    return invoke


@pytest.fixture
def rows(database: Database) -> Rows:
    return Rows(database)
