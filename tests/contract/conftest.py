from __future__ import annotations

from collections.abc import Iterator

import pytest

from leasequeue import LeaseQueue
from tests.support.databases import Database, Templates
from tests.support.server import Server

from .kinds import KINDS, Bench

_TABLES = ("leasequeue_job", "leasequeue_finished", "leasequeue_lane", "leasequeue_hold", "leasequeue_wake")


@pytest.fixture(scope="session")
def _one_per_way() -> Iterator[dict[str, Database]]:
    made: dict[str, Database] = {}
    yield made
    for each in made.values():
        each.close()


@pytest.fixture
def database(
    request: pytest.FixtureRequest, server: Server, templates: Templates, _one_per_way: dict[str, Database]
) -> Database:
    """As everywhere, but one database for all of these tests, emptied before each: there are some 700 of
    them.
    """
    via: str = request.param
    if via not in _one_per_way:
        name = templates.migrated()
        through = request.getfixturevalue("pgbouncer") if via == "pgbouncer" else server
        _one_per_way[via] = Database(server, name, through.url(name), via)
    found = _one_per_way[via]
    found.execute("; ".join([*(f"DELETE FROM {table}" for table in _TABLES), "DROP TABLE IF EXISTS effect, seen"]))
    return found


@pytest.fixture(params=KINDS)
def bench(request: pytest.FixtureRequest, database: Database) -> Iterator[Bench]:
    """An open connection of each kind in turn."""
    with KINDS[request.param](database.url) as opened:
        yield opened


@pytest.fixture
def lq(database: Database) -> Iterator[LeaseQueue]:
    """A LeaseQueue of its own for each test: its tables' version is read anew."""
    made = LeaseQueue(schema=database.schema)
    made.configure(url=database.url)
    yield made
    made.dispose()
