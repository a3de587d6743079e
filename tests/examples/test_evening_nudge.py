"""``examples/evening_nudge``: an advisory lock through a pool, and what stands in its place; real mails, real processes.

Mails are counted where they arrive, ticks in the ledger, and the expected ones by this file's own arithmetic.
"""

from __future__ import annotations

import datetime as dt
import logging
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from examples.evening_nudge import as_it_was
from examples.evening_nudge.application import TABLES, small_pool
from examples.evening_nudge.smtp import Mail, Receiver
from leasequeue import LeaseQueue
from tests.support.databases import Database
from tests.support.waiting import until
from tests.support.workers import Worker, workers

pytestmark = pytest.mark.process

SECOND = dt.timedelta(seconds=1)
# id, the seconds between two nudges, and the second of each such span
SUBSCRIBERS = [
    *((i, 1, 0) for i in range(1, 8)),
    *((i, 2, 0) for i in range(8, 11)),
    *((i, 2, 1) for i in range(11, 15)),
]
LOCKS = """SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'
AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"""
LIVE = "SELECT count(*) FROM leasequeue_job"
RAN = "SELECT count(*) FROM leasequeue_tick WHERE outcome IN ('fired', 'caught_up')"
SENT = "SELECT count(DISTINCT tick) FROM sent"

Pair = tuple[dt.datetime, str]


def address(subscriber: int) -> str:
    return f"user{subscriber}@example.org"


def turns(tick: dt.datetime) -> set[Pair]:
    return {(tick, address(i)) for i, every, at in SUBSCRIBERS if int(tick.timestamp()) % every == at}


def serving(instances: list[Worker]) -> bool:
    return all("started: database" in instance.log for instance in instances)


class Mailing:
    """The example on a database: its instances, its mails, its ledger.

    Attributes:
        locks: the most advisory locks that were seen at any time.
    """

    def __init__(self, database: Database, receiver: Receiver) -> None:
        self.database, self.receiver, self.locks = database, receiver, 0
        self._start = workers()
        self._make = next(self._start)
        self._lq = LeaseQueue()
        self._lq.configure(url=database.direct_url)
        for statement in TABLES.split(";\n"):
            database.execute(statement)
        for subscriber in SUBSCRIBERS:
            row = (subscriber[0], address(subscriber[0]), *subscriber[1:])
            database.execute("INSERT INTO subscriber VALUES (%s, %s, %s, %s)", row)

    def instance(self, mail_slots: int = 4, env: dict[str, str] | None = None) -> Worker:
        """A supervisor with one process and a spare, on a pool of two connections that the site's visitors keep full."""
        worker: Worker = self._make(
            self.database,
            app="examples.evening_nudge.as_it_is:lq",
            ttl_seconds=2.0,
            queues=(("default", 2), ("mail", mail_slots)),
            env={
                "LEASEQUEUE_URL": self.database.url,
                "NUDGE_SMTP": self.receiver.address,
                "NUDGE_WHEN": "* * * * * *",
                "NUDGE_BATCH": "3",
                **(env or {}),
            },
        )
        return worker

    def until(self, predicate: Callable[[], Any], seconds: float, what: str) -> Any:
        """As ``until``, with an eye on the advisory locks all the while."""

        def look() -> Any:
            self.locks = max(self.locks, self.database.scalar(LOCKS))
            return predicate()

        return until(look, seconds, what, every=0.02)

    def count(self, query: str) -> int:
        return int(self.database.scalar(query))

    def pause(self) -> None:
        """No tick runs any more; all that did are mailed to the end."""
        assert self._lq.schedules.pause(self._lq, "evening-nudge")
        paused = "SELECT count(*) FROM leasequeue_tick WHERE outcome = 'paused'"
        self.until(lambda: self.count(paused) >= 1, 15, "a tick to end as paused")
        self.until(lambda: self.count(LIVE) == 0, 30, "every job to end")

    def ledger(self) -> list[tuple[dt.datetime, str, str | None]]:
        rows = self.database.execute(
            "SELECT due_at, outcome, reason FROM leasequeue_tick WHERE outcome <> 'redefined' ORDER BY due_at"
        )
        return [(due.astimezone(dt.UTC), outcome, reason) for due, outcome, reason in rows]

    def check(self) -> list[Mail]:
        """What holds in any case; the repeats, for the test to say how many there may be."""
        ledger = self.ledger()
        first, last = ledger[0][0], ledger[-1][0]
        assert [due for due, _, _ in ledger] == [first + n * SECOND for n in range((last - first) // SECOND + 1)]
        assert all((outcome == "fired") == (reason is None) for _, outcome, reason in ledger), ledger

        mails = self.receiver.mails
        expected = {pair for due, outcome, _ in ledger if outcome in ("fired", "caught_up") for pair in turns(due)}
        assert {(mail.tick, mail.recipient) for mail in mails} == expected
        written = self.database.execute(
            "SELECT tick, email FROM sent JOIN subscriber ON subscriber.id = sent.subscriber"
        )
        assert {(tick.astimezone(dt.UTC), email) for tick, email in written} == expected

        known: dict[str, Pair] = {}
        repeats = []
        for mail in mails:
            pair = (mail.tick, mail.recipient)
            if mail.message_id in known:
                repeats.append(mail)
            assert known.setdefault(mail.message_id, pair) == pair
        # What a receiver keeps that drops known ids is one mail for each.
        assert len(known) == len(expected)

        assert self.database.execute("SELECT DISTINCT outcome FROM leasequeue_finished") == [("succeeded",)]
        assert self.locks == 0
        return repeats

    def close(self) -> None:
        for _ in self._start:  # the end of a fixture's body
            raise AssertionError("workers() gives one thing")
        self._lq.dispose()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    made = Receiver().start()
    yield made
    made.stop()


@pytest.fixture
def mailing(database: Database, receiver: Receiver) -> Iterator[Mailing]:
    made = Mailing(database, receiver)
    yield made
    made.close()


@pytest.mark.direct_only  # a transaction pooler has servers of its own to lose the lock on; here it is the pool's doing
def test_as_it_was_the_unlock_is_refused_and_the_next_tick_is_skipped_in_silence(
    mailing: Mailing, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    database, receiver = mailing.database, mailing.receiver
    monkeypatch.setenv("NUDGE_SMTP", receiver.address)
    caplog.set_level(logging.INFO)
    blue, green = (as_it_was.Instance(small_pool(database.url)) for _ in range(2))
    first = dt.datetime(2026, 4, 25, 21, 0, tzinfo=dt.UTC)
    second = first + 60 * SECOND
    try:
        as_it_was.incident(blue, green, first, second)

        took, gave_back, *refused = blue.answers
        assert (took.asked, took.said) == ("lock", True)
        assert (gave_back.asked, gave_back.said) == ("unlock", False)
        assert took.backend != gave_back.backend
        assert [(answer.asked, answer.said) for answer in [*refused, *green.answers]] == [("lock", False)] * 2

        assert database.execute(LOCKS.replace("count(*)", "pid")) == [(took.backend,)]
        # Nobody works, nobody holds the lock on purpose; the second tick is lost and nothing was said.
        assert {(mail.tick, mail.recipient) for mail in receiver.mails} == turns(first)
        assert [record for record in caplog.records if not record.name.startswith("mail.log")] == []

        # Why it went unnoticed: where the connection closes in time, so does the lock.
        blue.engine.dispose()
        until(lambda: database.scalar(LOCKS) == 0, 5, "the session to end")
        green.tick(second)
        assert {(mail.tick, mail.recipient) for mail in receiver.mails} == turns(first) | turns(second)
    finally:
        blue.engine.dispose()
        green.engine.dispose()


def test_two_instances_with_full_pools_mail_each_turn_once(mailing: Mailing) -> None:
    # Fewer slots than a tick has batches, so that there is something for both.
    instances = [mailing.instance(2), mailing.instance(2)]

    def enough() -> bool:
        return mailing.count(SENT) >= 3 and len({mail.sender_pid for mail in mailing.receiver.mails}) == 2

    mailing.until(enough, 30, "the mails of three ticks, from both instances")
    mailing.pause()
    for instance in instances:
        assert instance.stop() == 0

    assert mailing.check() == []
    busy = Counter(busy for (busy,) in mailing.database.execute("SELECT busy FROM sent"))
    assert busy[2] > sum(busy.values()) / 2, "the pool was full more often than not"


@pytest.mark.direct_only  # an instance that is killed is the same to a pooler; the test before runs through one
def test_an_instance_is_killed_and_the_other_mails_what_is_left(mailing: Mailing) -> None:
    killed, other = instances = [mailing.instance(), mailing.instance()]
    mailing.until(lambda: serving(instances) and mailing.count(SENT) >= 1, 30, "both to serve, and the first mails")
    mailing.receiver.hold()
    in_flight = mailing.until(
        lambda: [mail for mail in mailing.receiver.unanswered if mail.sender_pid in killed.children()],
        10, "a mail of the one, without its reply",
    )  # fmt: skip
    killed.kill_tree()
    mailing.receiver.answer()
    ran = mailing.count(RAN)
    mailing.until(lambda: mailing.count(RAN) > ran, 10, "one more tick")
    mailing.pause()
    assert other.stop() == 0

    repeats = mailing.check()
    # At least those that were seen; others of the same process may have come in before it died.
    assert {mail.message_id for mail in in_flight} <= {mail.message_id for mail in repeats}
    assert len(repeats) == len({mail.message_id for mail in repeats}) <= 4, "one for each job that it ran"
    assert not {mail.sender_pid for mail in repeats} & {mail.sender_pid for mail in in_flight}


@pytest.mark.direct_only  # the gap is between the mail server and the commit, whatever carries the commit
def test_a_crash_between_reply_and_commit_repeats_one_mail_under_the_same_id(mailing: Mailing, tmp_path: Path) -> None:
    crash = tmp_path / "crash"
    # One mail job at a time in each process: another one could be in the same gap when the process dies.
    instances = [mailing.instance(1, {"NUDGE_CRASH_FILE": str(crash)}) for _ in range(2)]
    mailing.until(lambda: serving(instances) and mailing.count(SENT) >= 1, 30, "both to serve, and the first mails")
    crash.touch()
    mailing.until(lambda: not crash.exists(), 10, "one to crash")
    mailing.pause()

    (repeat,) = mailing.check()
    first, second = (mail for mail in mailing.receiver.mails if mail.message_id == repeat.message_id)
    assert (first.tick, first.recipient) == (second.tick, second.recipient)
    assert first.sender_pid != second.sender_pid


@pytest.mark.direct_only  # the ledger is written by the supervisor's own statements, which the tests of schedules carry through
@pytest.mark.parametrize(
    ("catch_up", "within", "outcome", "words"),
    [
        ("all", "1.5", "missed", "s late, and catch_up is 'all' within 1.5 s"),
        ("latest", "", "coalesced", "s late: a later due time stands for it"),
    ],
)
def test_each_second_that_was_not_run_has_its_reason(
    mailing: Mailing, catch_up: str, within: str, outcome: str, words: str
) -> None:
    env = {"NUDGE_CATCH_UP": catch_up, "NUDGE_CATCH_UP_SECONDS": within}
    before = mailing.instance(env=env)
    mailing.until(lambda: mailing.count(SENT) >= 1, 20, "the first mails")
    assert before.stop() == 0
    gap = "SELECT clock_timestamp() > max(due_at) + interval '2.5 seconds' FROM leasequeue_tick WHERE outcome <> 'redefined'"
    mailing.until(lambda: mailing.database.scalar(gap), 10, "some seconds to pass without a worker")
    mailing.instance(env=env)
    skipped = f"SELECT max(due_at) FROM leasequeue_tick WHERE outcome = '{outcome}'"
    ran_after = f"SELECT count(*) FROM leasequeue_tick WHERE outcome = 'fired' AND due_at > ({skipped})"
    mailing.until(lambda: mailing.count(ran_after) >= 1, 20, "ticks to run again")
    mailing.pause()

    assert mailing.check() == []
    ledger = mailing.ledger()
    assert Counter(outcome for _, outcome, _ in ledger).keys() == {"fired", outcome, "paused"}
    reasons = {reason for _, found, reason in ledger if found == outcome}
    assert reasons
    assert all(reason and reason.endswith(words) and reason.split()[0].isdigit() for reason in reasons), reasons
    assert {reason for _, found, reason in ledger if found == "paused"} == {"the schedule was paused"}
