"""Which limit is in force, whom a change wakes, and which release decides what the code declares."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence

import pytest

from leasequeue import ConfigurationError
from leasequeue.cli.programs import carry_out
from leasequeue.db import limits as db
from leasequeue.db.statement import Target
from leasequeue.limit import Limit
from leasequeue.ops import bounds, limits
from leasequeue.ops.asking import Desk
from leasequeue.ops.release import Release
from tests.ops.conftest import Rows as Jobs
from tests.support.databases import Database

TARGET = Target("test")
FIVE, TEN = Limit(5), Limit(10)


def run(desk: Desk, program: object) -> object:
    return carry_out(desk, program)  # type: ignore[arg-type]  # any program's result


def put(desk: Desk, name: str, limit: Limit) -> object:
    return run(desk, limits.set_limit(TARGET, "public", name, limit, "ann"))


def declare(desk: Desk, app: str, given: Sequence[tuple[str, Limit]], release: Release | None = None) -> limits.Wrote:
    wrote = run(desk, limits.declare(TARGET, "public", app, given, release or Release(), "box:1"))
    assert isinstance(wrote, limits.Wrote)
    return wrote


def wakes(database: Database) -> list[tuple[str, str]]:
    """Who was woken since the last look: each once, and so that its claimer reads the limits anew."""
    found = database.execute("DELETE FROM leasequeue_wake RETURNING queue, key, whole")
    assert all(whole for _, _, whole in found)
    return sorted((queue, key) for queue, key, _ in found)


def declared(database: Database) -> dict[str, int]:
    return dict(database.execute("SELECT name, max_running FROM leasequeue_limit WHERE declared"))


# Precedence


def test_an_exact_key_goes_before_a_first_part_and_an_operator_before_the_code(desk: Desk) -> None:
    declare(desk, "a", [("user", Limit(1, 10, 60.0)), ("user:7", Limit(2))])
    put(desk, "user", Limit(3))

    def rule(name: str) -> tuple[Limit, str, str]:
        found = bounds.in_force(bounds.read_limits(desk), name)
        assert found.running_from is not None
        assert found.rate_from is not None
        return found.limit, found.running_from.source, found.rate_from.source

    assert rule("user:8") == (Limit(3, 10, 60.0), "an operator (ann)", "the code of a")
    assert rule("user:7") == (Limit(2, 10, 60.0), "the code of a", "the code of a")
    put(desk, "user:7", Limit(0, 1, 1.0))
    assert rule("user:7") == (Limit(0, 1, 1.0), "an operator (ann)", "an operator (ann)")
    assert [(row.name, row.declared, row.in_force) for row in bounds.read_limits(desk)] == [
        ("user", False, True), ("user", True, True), ("user:7", False, True), ("user:7", True, False),
    ]  # fmt: skip
    assert bounds.in_force(bounds.read_limits(desk), "users:7").is_none
    run(desk, limits.unset_limit(TARGET, "public", "user:7"))
    assert rule("user:7")[0] == Limit(2, 10, 60.0)


@pytest.mark.parametrize("name", ["", "user:", "x" * 513])
def test_names_that_cannot_be(desk: Desk, name: str) -> None:
    with pytest.raises(ConfigurationError):
        put(desk, name, FIVE)
    with pytest.raises(ConfigurationError):
        put(desk, "user", Limit())
    assert bounds.read_limits(desk) == ()


# Waking


def test_a_change_wakes_those_who_may_run(
    desk: Desk, database: Database, rows: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(db, "PIECE", 2)
    monkeypatch.setattr(db, "LOOK", 3)
    for queue, key, task in (
        ("a", "user:1", "t"), ("b", "user:1", "t"), ("a", "user:2", "send"), ("a", "user_x:1", "t"), ("b", "other", "send"),
        ("b", "task:send", "send"), ("a", "queue:a", "t"),
    ):  # fmt: skip
        for _ in range(2):
            rows.job(task, queue=queue, state="g", limit_key=key)
    for _ in range(3):
        rows.job("t", queue="a", state="g", limit_key="hot")
    rows.job("send", queue="a", state="g", limit_key="hot")
    rows.leased(queue="a", limit_key="user:9")
    for name, woken in {
        "user:1": [("a", "user:1"), ("b", "user:1")],
        "user:3": [],
        "user": [("a", "user:1"), ("a", "user:2"), ("b", "user:1")],
        "other": [("b", "other")],
        # Of a key with many jobs it is not looked up whether one of the task is among them.
        "task:send": [("a", "hot"), ("a", "user:2"), ("b", "other"), ("b", "task:send")],
        "queue:a": [("a", "hot"), ("a", "queue:a"), ("a", "user:1"), ("a", "user:2"), ("a", "user_x:1")],
        "task": [("b", "task:send")],
    }.items():
        assert put(desk, name, FIVE) == len(woken), name
        assert wakes(database) == woken, name
        assert run(desk, limits.unset_limit(TARGET, "public", name)) is True
        assert wakes(database) == woken, name
        assert run(desk, limits.unset_limit(TARGET, "public", name)) is False
        assert wakes(database) == []


@pytest.mark.direct_only  # it counts what is read; a pooler changes none of it
def test_a_hot_key_costs_one_step(desk: Desk, database: Database) -> None:
    database.execute(
        "INSERT INTO leasequeue_job (task, state, limit_key) SELECT 't', 'g', "
        "CASE WHEN i % 100 = 0 THEN 'user:' || i ELSE 'hot' END FROM generate_series(1, 100000) AS i"
    )
    assert put(desk, "user", FIVE) == 1000
    text = "EXPLAIN (ANALYZE, BUFFERS, TIMING OFF) " + db.limit_statements("public").wake_many.text
    words = {
        "name": "user",
        "kind": "prefix",
        "word": "user",
        "after_key": "",
        "after_queue": "",
        "piece": 2000,
        "look": 9,
    }
    plan = [row[0] for row in desk.link.run(text, words)]
    assert not [line for line in plan if "Seq Scan on leasequeue_job" in line], "\n".join(plan)


def test_what_is_shown(desk: Desk, database: Database, rows: Jobs) -> None:
    for _ in range(3):
        rows.job(state="g", limit_key="user:7", limit_max=2, rate_max=5, rate_seconds="=0.5")
    rows.job(state="g", limit_key="user:8", queue="mail")
    rows.leased(limit_key="user:7")
    rows.leased(limit_key="user:8", queue="mail", task="send")
    database.execute(
        "INSERT INTO leasequeue_admission (name, at, count, until) SELECT *, now() + interval '1 day' FROM ("
        "VALUES ('user:7', now(), 2), ('user:7', now() - interval '1 hour', 9), ('user:8', now(), 4)) AS started"
    )
    found = bounds.show_limit(desk, "user:7")
    assert (found.about, found.running, found.waiting, found.capped) == ("key", 1, 3, ())
    assert found.rule.is_none
    assert found.jobs_own == Limit(2, 5, 0.5)
    assert found.started in (0, 2)  # a window of half a second, on a machine that may stall
    put(desk, "user", Limit(1, 100, 7200.0))
    assert bounds.show_limit(desk, "user:7").started == 11
    for name, numbers in {
        "user": (2, 4),
        "queue:mail": (1, 1),
        "task:send": (1, 0),
        "task:t": (1, 4),
        "none": (0, 0),
    }.items():
        found = bounds.show_limit(desk, name)
        assert (found.running, found.waiting) == numbers, name


# The code's own


def test_limits_of_the_code_come_and_go_with_its_release(desk: Desk, database: Database, rows: Jobs) -> None:
    rows.job(state="g", limit_key="user:1")
    assert declare(desk, "a", []) == limits.Wrote((), None)
    assert database.scalar("SELECT count(*) FROM leasequeue_app") == 0
    wrote = declare(desk, "a", [("user", FIVE), ("queue:mail", TEN)])
    assert set(wrote.changed) == {"user", "queue:mail"}
    assert wakes(database) == [("default", "user:1")]
    again = declare(desk, "a", [("user", FIVE), ("queue:mail", TEN)])
    assert again == limits.Wrote((), None)
    assert wakes(database) == []
    assert database.scalar("SELECT version FROM leasequeue_app") == 2, (
        "nothing is written by a start that changes nothing"
    )
    assert set(declare(desk, "a", [("user", TEN)]).changed) == {"user", "queue:mail"}
    assert declared(database) == {"user": 10}
    assert wakes(database) == [("default", "user:1")]
    assert declare(desk, "a", []).changed == ("user",)
    assert declared(database) == {}
    assert wakes(database) == [("default", "user:1")], "what it held back may run"


T1, T2 = (dt.datetime(2026, 11, 30, hour, tzinfo=dt.UTC) for hour in (10, 11))
_Deploys = list[tuple[list[tuple[str, Limit]], Release]]


@pytest.mark.parametrize("named", [True, False], ids=["LEASEQUEUE_RELEASE", "no name"])
@pytest.mark.parametrize("timed", [True, False], ids=["LEASEQUEUE_DEPLOYED_AT", "first seen"])
def test_in_a_rolling_deploy_the_older_release_changes_nothing(
    desk: Desk, database: Database, named: bool, timed: bool
) -> None:
    """Its processes start again and again meanwhile: neither does it overwrite, nor bring back what is gone."""
    blue = [("user", FIVE), ("gone", FIVE)], Release("blue" if named else None, T1 if timed else None)
    green = [("user", TEN), ("new", TEN)], Release("green" if named else None, T2 if timed else None)
    assert declare(desk, "a", *blue).changed
    assert set(declare(desk, "a", *green).changed) == {"user", "gone", "new"}
    for _ in range(2):
        kept = declare(desk, "a", *blue)
        assert kept.warning
        assert "count as newer. If this code is the newer: leasequeue limits sync a" in str(kept.message)
        assert kept.changed == declare(desk, "a", *green).changed == ()
    assert declared(database) == {"user": 10, "new": 10}
    by_hand = declare(desk, "a", blue[0], Release(blue[1].name, blue[1].deployed_at, force=True))
    assert set(by_hand.changed) == {"user", "gone", "new"}
    assert declared(database) == {"user": 5, "gone": 5}
    if not timed:  # or the time that was said goes on to decide
        assert declare(desk, "a", *blue).changed == ()
        assert declare(desk, "a", *green).warning


def test_two_applications_keep_apart(desk: Desk, database: Database) -> None:
    declare(desk, "shop", [("user", FIVE), ("order", FIVE)])
    wrote = declare(desk, "mail", [("user", TEN), ("letter", TEN)])
    assert wrote.changed == ("letter",)
    assert wrote.warning
    assert "'user' (shop)" in str(wrote.message)
    assert declared(database) == {"user": 5, "order": 5, "letter": 10}
    assert declare(desk, "shop", [("order", FIVE)]).changed == ("user",)
    assert declared(database) == {"order": 5, "letter": 10}
    assert declare(desk, "mail", [("user", TEN), ("letter", TEN)]).changed == ("user",)
    assert declared(database) == {"order": 5, "letter": 10, "user": 10}


def test_of_two_that_start_at_once_one_reads_again(desk: Desk, database: Database) -> None:
    """Both have read the row of the application; the newer one writes first: the older one must not write after it."""
    declare(desk, "a", [("user", Limit(1))], Release("zero", T1 - dt.timedelta(hours=1)))
    older = limits.declare(TARGET, "public", "a", [("user", FIVE)], Release("blue", T1), "box:1")
    known = db.limit_statements("public")
    statement, params = next(older)
    while statement is not known.declare:
        statement, params = older.send(desk.link.run(statement.text, params))
    declare(desk, "a", [("user", TEN)], Release("green", T2))
    assert desk.link.run(statement.text, params) == [], "its version is gone"
    wrote = run(desk, older)  # goes on as with no row: it reads again
    assert isinstance(wrote, limits.Wrote)
    assert wrote.warning
    assert declared(database) == {"user": 10}
    # The control: a write that forgets the version does what must not be.
    forgets = known.declare.text.replace(" AND version = CAST(%(version)s AS bigint)", "")
    words = db.declared("a", 0, [("user", FIVE)], release="blue", deployed_at=T1.timestamp(), releases={}, by="x")
    desk.link.run(forgets, words)
    assert declared(database) == {"user": 5}
