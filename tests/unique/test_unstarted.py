"""``unique="until_started"`` and jobs that were claimed and never started: they get their keys back."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from leasequeue.db.connect import Link
from leasequeue.db.enqueue import enqueue_many
from leasequeue.db.jobs import JobStatements, job_statements
from leasequeue.db.program import Checked, run
from leasequeue.db.urls import Settings
from leasequeue.job import NewJob
from leasequeue.worker.unstarted import give_back
from tests.support.databases import Database

ME = uuid.UUID(bytes=bytes(range(12)) + bytes(4))
LANES = {"queue": "default", "priorities": [0], "floors": [0.0], "floor_ids": [0]}
Back = Callable[[list[tuple[int, int]]], set[int]]


@pytest.fixture
def sql(database: Database) -> JobStatements:
    return job_statements(database.schema)


@pytest.fixture
def link(database: Database) -> Iterator[Link]:
    made = Link(Settings.parse(database.url), application_name="test", bound_seconds=5.0)
    made.connect()
    yield made
    made.close()


def put(database: Database, *keys: str | None) -> list[int]:
    jobs = [NewJob("t", "default", "{}", unique_key=key, unique_until="s" if key else None) for key in keys]
    conn = database.connect(autocommit=True)
    return [
        job if isinstance(job, int) else job.id for job in run(conn, enqueue_many, database.schema, jobs, Checked())
    ]


def claim(link: Link, sql: JobStatements, k: int = 10) -> list[tuple[int, int]]:
    return [(row[0], row[1]) for row in link.run(sql.claim, LANES | {"k": k, "me": ME, "ttl": 30.0})]


def keys(database: Database) -> dict[int, str | None]:
    return dict(database.execute("SELECT id, unique_key FROM leasequeue_job"))


@pytest.fixture(params=["release", "put_back", "divert", "release_strays", "release_dead"])
def back(request: pytest.FixtureRequest, link: Link, sql: JobStatements) -> Back:
    """Each of the statements by which unstarted jobs go back, as its caller runs it."""
    name: str = request.param

    def give(jobs: list[tuple[int, int]]) -> set[int]:
        ids, terms = [job[0] for job in jobs], [job[1] for job in jobs]
        held: dict[str, Any] = {"ids": ids, "terms": terms, "me": ME, "back": "r"}
        each = ["ids", "terms"]
        if name == "divert":
            n = len(ids)
            held |= {"keys_of": ["k"] * n, "running": [1] * n, "rates": [None] * n, "seconds": [None] * n}
            each += ["keys_of", "running", "rates", "seconds"]
        elif name == "release_strays":
            held, each = {"holder": ME, "known": []}, []
        elif name == "release_dead":
            held = {"first": ME, "last": ME, "ids": [], "terms": [], "suspect": True, "back": "r", "reason": "r"}
            held, each = held | {"worker": "w"}, []
        return {row[0] for row in give_back(link, getattr(sql, name), held, each)}

    return give


def test_what_never_started_has_its_key_again(database: Database, link: Link, sql: JobStatements, back: Back) -> None:
    first, second, plain = put(database, "a", "b", None)
    jobs = claim(link, sql)
    assert keys(database) == {first: None, second: None, plain: None}
    (later,) = put(database, "b")
    assert back(jobs) == {first, second, plain}
    # The key of the second is that of another job by now, and stays with it.
    assert keys(database) == {first: "a", second: None, plain: None, later: "b"}
    assert database.scalar("SELECT meta FROM leasequeue_job WHERE id = %s", [plain]) in (
        None,
        {"put_back": 1},
        {"returned": 1},
    )


def test_of_two_with_one_key_the_first_has_it(database: Database, link: Link, sql: JobStatements, back: Back) -> None:
    (first,) = put(database, "a")
    jobs = claim(link, sql)
    (second,) = put(database, "a")
    jobs += claim(link, sql)
    assert back(jobs) == {first, second}
    assert keys(database) == {first: "a", second: None}


@pytest.mark.direct_only  # one transaction is held while others go on
def test_a_key_that_is_being_taken_does_not_hold_up_the_others(
    database: Database, link: Link, sql: JobStatements, back: Back, request: pytest.FixtureRequest
) -> None:
    """An application has enqueued with the key, in a transaction that goes on: nobody can see that, or may wait for it."""
    first, second = put(database, "a", "b")
    jobs = claim(link, sql)
    conn = database.connect()
    run(conn, enqueue_many, database.schema, [NewJob("t", "default", "{}", unique_key="a")], Checked())
    assert back(jobs) == {first, second}
    one_by_one = request.node.callspec.params["back"] in ("release", "put_back", "divert")
    assert keys(database) == {first: None, second: "b" if one_by_one else None}
    conn.commit()


@pytest.mark.direct_only  # the statements are those of the tests above
def test_one_that_has_started_has_lost_it_for_good(database: Database, link: Link, sql: JobStatements) -> None:
    """Its handler has run. The attempt after that is claimed and released unstarted: it has no key to give back."""
    (first,) = put(database, "a")
    ((_, term),) = claim(link, sql)
    failure = {"delays": [0.0], "types": ["E"], "messages": [""], "tracebacks": [None], "worker": "w"}
    link.run(sql.retry, {"ids": [first], "terms": [term], "me": ME} | failure)
    assert keys(database) == {first: None}
    ((_, term),) = claim(link, sql)
    give_back(link, sql.release, {"ids": [first], "terms": [term], "me": ME, "back": "r"}, ["ids", "terms"])
    assert keys(database) == {first: None}
    (second,) = put(database, "a")
    ((_, _),) = claim(link, sql, 1)
    started = {"first": ME, "last": ME, "ids": [first], "terms": [None], "suspect": True, "back": "r", "reason": "r"}
    term = database.scalar("SELECT term FROM leasequeue_job WHERE id = %s", [first])
    give_back(link, sql.release_dead, started | {"terms": [term], "worker": "w"})
    assert keys(database) == {first: None, second: "a"}


@pytest.mark.direct_only
def test_a_started_one_of_a_dead_process_has_lost_it(database: Database, link: Link, sql: JobStatements) -> None:
    first, second = put(database, "a", "b")
    (job, _) = claim(link, sql)
    dead = {"first": ME, "last": ME, "ids": [job[0]], "terms": [job[1]], "suspect": True, "back": "r", "reason": "r"}
    give_back(link, sql.release_dead, dead | {"worker": "w"})
    assert keys(database) == {first: None, second: "b"}
