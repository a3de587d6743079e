"""What is written of a job's progress, and by whom: fenced, throttled, waiting for nobody."""

from __future__ import annotations

import time
import uuid
from typing import Any

import pytest

from leasequeue import ConfigurationError, LeaseQueue, Progress
from leasequeue.context import JobContext, Said
from leasequeue.db.connect import Link
from leasequeue.db.jobs import job_statements
from leasequeue.job import Held
from leasequeue.testing import fake_job
from leasequeue.worker.hand import Claimed, Hand
from leasequeue.worker.progress import ProgressWriter

PROGRESS = "SELECT id, progress - 'at' FROM leasequeue_job ORDER BY id"


@pytest.fixture
def hand(lq: LeaseQueue, link: Link) -> Hand:
    """Three jobs that are claimed and run."""

    @lq.task(name="work")
    def work() -> None: ...

    lq.enqueue_many(lq, [work.call() for _ in range(3)])
    me, made = uuid.uuid4(), Hand()
    params = {"queue": "default", "priorities": [0], "floors": [0.0], "floor_ids": [0], "k": 9, "me": me, "ttl": 60.0}
    for row in link.run(job_statements(lq.schema).claim, params):
        job = Claimed(row, me, "default", work, time.monotonic())
        job.ctx = JobContext(Held(job.id, job.term, me), "work", "default", 1, 8)
        made.add([job])
    return made


def contexts(hand: Hand) -> list[JobContext]:
    return [job.ctx for job in sorted(hand.jobs(), key=lambda job: job.id) if job.ctx is not None]


def test_the_newest_value_of_each_is_written_in_one_statement(
    database: Any, lq: LeaseQueue, link: Link, hand: Hand, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two, three = contexts(hand)
    writer = ProgressWriter(lq.schema, hand)
    sent: list[Any] = []
    right = link.run

    def run(sql: str, params: Any) -> Any:
        sent.append(params)
        return right(sql, params)

    monkeypatch.setattr(link, "run", run)
    writer(link)
    assert sent == [], "nobody said anything"
    for n in range(1000):
        one.progress(n, 1000)
    two.progress(0.5, note="a \0 and a \ud800")
    writer(link)
    assert sent == [], "a second is not over"
    writer._due = 0.0
    writer(link)
    writer._due = 0.0
    writer(link)
    assert len(sent) == 1
    assert [row[1] for row in database.execute(PROGRESS)] == [
        {"done": 999, "total": 1000, "note": None},
        {"done": 0.5, "total": None, "note": "a \\x00 and a \\ud800"},
        None,
    ]
    assert three.reported is None


def test_a_locked_row_is_written_later_and_a_lost_one_never(
    database: Any, lq: LeaseQueue, link: Link, hand: Hand
) -> None:
    """An application's complete(conn) keeps its row locked; another holder took the second one over."""
    one, two, three = contexts(hand)
    writer = ProgressWriter(lq.schema, hand)
    held = database.connect()
    held.execute(f"SELECT FROM leasequeue_job WHERE id = {one.id} FOR UPDATE")
    database.execute("UPDATE leasequeue_job SET holder = gen_random_uuid(), term = term + 1 WHERE id = %s", [two.id])
    for n, ctx in enumerate((one, two, three)):
        ctx.progress(n)
    begun = time.monotonic()
    writer.write(link, hand.jobs())
    assert time.monotonic() - begun < 5, "it waited for nobody"
    assert [(row[1] or {}).get("done") for row in database.execute(PROGRESS)] == [None, None, 2]
    held.rollback()
    writer.write(link, hand.jobs())
    assert [(row[1] or {}).get("done") for row in database.execute(PROGRESS)] == [0, None, 2]


def test_what_may_be_said() -> None:
    with fake_job() as ctx:
        ctx.progress(1, 4, "x" * 2000)
        assert ctx.reported is not None
        assert ctx.reported[:2] == (1, 4)
        assert len(ctx.reported.note or "") < 600
        for wrong in (float("nan"), float("inf"), "1", None, True, 10**16):
            with pytest.raises(ConfigurationError, match="done is a number"):
                ctx.progress(wrong)  # type: ignore[arg-type]
        with pytest.raises(ConfigurationError, match="note is text"):
            ctx.progress(1, note=3)  # type: ignore[arg-type]
        handed: list[Said] = []
        ctx._report = handed.append  # as in a process of its own
        ctx.progress(2)
        assert handed == [Said(2, None, None)]


@pytest.mark.parametrize("value", [None, 3, "x", [], {}, {"done": "1"}, {"done": True}, {"done": 1, "total": "x"}])
def test_what_plain_sql_wrote_there_is_no_progress(value: object) -> None:
    assert Progress.of(value) is None
    assert Progress.of({"done": 1, "at": "yesterday", "note": 3}) == Progress(1)
    assert Progress(5, 4).fraction == 1.0
    assert Progress(5, 0).fraction is None


@pytest.mark.parametrize("how", ["sweep", "release", "put_back", "release_strays", "release_dead", "process died"])
def test_an_attempt_begins_without_the_progress_of_another(
    database: Any, lq: LeaseQueue, link: Link, hand: Hand, how: str
) -> None:
    """A suspect keeps it until it runs again: it may be buried."""
    sql = job_statements(lq.schema)
    job = min(hand.jobs(), key=lambda job: job.id)
    database.execute("DELETE FROM leasequeue_job WHERE id <> %s", (job.id,))
    database.execute("UPDATE leasequeue_job SET progress = %s", ('{"done": 7}',))
    held = {"ids": [job.id], "terms": [job.term], "me": job.holder}
    dead = {"first": job.holder, "last": job.holder, "back": "r", "reason": "r", "worker": "w"}
    started = {"ids": [job.id], "terms": [job.term]}
    if how == "sweep":
        database.execute("UPDATE leasequeue_job SET expires_at = now() - interval '1 s'")
        link.run(sql.sweep, {"max_abandoned": 1000})
    elif how == "release_strays":
        link.run(sql.release_strays, {"holder": job.holder, "known": [], "keys": True})
    elif how in ("release_dead", "process died"):
        link.run(sql.release_dead, {**dead, **started, "suspect": how == "process died", "keys": True})
    else:
        link.run(getattr(sql, how), {**held, "back": "r", "keys": True})
    state, progress = database.execute("SELECT state::text, progress FROM leasequeue_job")[0]
    if how != "process died":
        assert (state, progress) == ("r", None)
        return
    assert (state, progress) == ("q", {"done": 7})
    suspect = {"me": job.holder, "ttl": 30.0, "queues": ["default"]}
    assert len(link.run(sql.claim_suspect, suspect)) == 1
    assert database.execute("SELECT progress FROM leasequeue_job") == [(None,)]
    database.execute("UPDATE leasequeue_job SET progress = %s, expires_at = now() - interval '1 s'", ('{"done": 8}',))
    link.run(sql.sweep, {"max_abandoned": 1000})
    link.run(sql.bury, {"max_abandoned": 2})
    assert database.execute("SELECT outcome, meta -> 'progress' FROM leasequeue_finished") == [("failed", {"done": 8})]
