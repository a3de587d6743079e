"""Candidates that are processes of their own: killed, stopped, forked, cut off from a promoted standby."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import pytest

from tests.support.databases import Database
from tests.support.waiting import until

pytestmark = pytest.mark.process
TTL = 3.0


class Candidate:
    def __init__(self, url: str, mode: str = "lead", ttl: float = TTL) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.lease.candidate", url, mode, str(ttl)],
            stdout=subprocess.PIPE,
        )
        assert self.process.stdout is not None
        os.set_blocking(self.process.stdout.fileno(), False)
        self._text = ""

    @property
    def lines(self) -> list[str]:
        assert self.process.stdout is not None
        with contextlib.suppress(BlockingIOError):
            while piece := os.read(self.process.stdout.fileno(), 65536):
                self._text += piece.decode()
        return self._text.splitlines()

    def said(self, word: str) -> list[list[str]]:
        return [line.split() for line in self.lines if line.split()[:1] == [word]]

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.fixture
def candidate() -> Iterator[Callable[..., Candidate]]:
    made: list[Candidate] = []

    def start(*args: object) -> Candidate:
        made.append(Candidate(*args))  # type: ignore[arg-type]
        return made[-1]

    yield start
    for each in made:
        each.close()


CREATE = (
    "CREATE TABLE written (id bigint GENERATED ALWAYS AS IDENTITY, term bigint, pid int, "
    "at timestamptz DEFAULT clock_timestamp())"
)


def test_a_killed_leader_is_followed_within_the_ttl(database: Database, candidate: Callable[..., Candidate]) -> None:
    database.execute(CREATE)
    first = candidate(database.url)
    until(lambda: first.said("leads"), 10)
    second = candidate(database.url)
    asked = "SELECT count(*) FROM leasequeue_lease_event WHERE event = 'refused'"
    until(lambda: database.scalar(asked) > 0, 10, "the second to stand")
    until(lambda: database.scalar("SELECT count(*) FROM written") > 0, 10, "the first to write")
    first.process.kill()
    at = time.time()
    (line,) = until(lambda: second.said("leads"), 10)
    took = float(line[-1]) - at
    print(f"led {took:.2f} s after the kill, with a ttl of {TTL:g} s ({database.via})")
    assert took < TTL + 1.0
    assert database.scalar("SELECT count(*) FROM leasequeue_lease_event WHERE event = 'taken over'") == 1
    until(lambda: database.scalar("SELECT count(DISTINCT term) FROM written") == 2, 10, "the second to write")
    assert_ordered(database)


def leading(database: Database, *candidates: Candidate) -> tuple[Candidate, Candidate]:
    """Who leads now, by the row, and the other; on a loaded machine it may not be the one that led first."""

    def owner() -> Candidate | None:
        rows = database.execute("SELECT owner FROM leasequeue_lease WHERE expires_at > clock_timestamp()")
        return next((each for each in candidates for (name,) in rows if name.endswith(f":{each.process.pid}")), None)

    leader = until(owner, 10, "one of them to lead")
    assert leader is not None
    return leader, next(each for each in candidates if each is not leader)


def assert_ordered(database: Database) -> None:
    """No write of a term came after one of a later term, and no process shares a term with another."""
    rows = database.execute("SELECT term, pid FROM written ORDER BY id")
    terms = [term for term, _ in rows]
    assert rows
    assert terms == sorted(terms)
    assert len(set(rows)) == len(set(terms))


def test_a_stopped_leader_wakes_and_changes_nothing(database: Database, candidate: Callable[..., Candidate]) -> None:
    database.execute(CREATE)
    first, second = candidate(database.url), candidate(database.url)
    leader, other = leading(database, first, second)
    until(lambda: database.scalar("SELECT count(*) FROM written") > 20, 10)
    leader.process.send_signal(signal.SIGSTOP)
    until(lambda: leading(database, leader, other)[0] is other, 10, "the other to lead")
    new = int(until(lambda: other.said("leads"), 5)[-1][1])
    until(lambda: database.scalar("SELECT count(*) FROM written WHERE term = %s", (new,)) > 20, 10)
    leader.process.send_signal(signal.SIGCONT)
    until(lambda: leader.said("lost") or leader.said("refused") or leader.said("failed"), 10, "the first to know")
    until(lambda: leader.said("lost"), 10)
    until(lambda: database.scalar("SELECT count(*) FROM leasequeue_lease_event WHERE event = 'lost'") >= 1, 10)
    assert_ordered(database)
    assert database.scalar("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'") == 0


def test_two_on_one_host_are_two_holders(database: Database, candidate: Callable[..., Candidate]) -> None:
    database.execute(CREATE)
    first, second = candidate(database.url), candidate(database.url)
    leader, other = leading(database, first, second)
    leader.process.terminate()
    leader.process.wait()
    until(lambda: leading(database, leader, other)[0] is other, 10)
    holders = database.execute(
        "SELECT DISTINCT owner, holder FROM leasequeue_lease_event WHERE event IN ('acquired', 'taken over')"
    )
    assert len({owner for owner, _ in holders}) == 2
    assert len({holder for _, holder in holders}) == len(holders)
    until(lambda: database.scalar("SELECT count(*) FROM written") > 0, 10)
    assert_ordered(database)


def test_what_a_process_holds_its_fork_does_not(database: Database, candidate: Callable[..., Candidate]) -> None:
    forking = candidate(database.url, "fork")
    assert forking.process.wait(20) == 0
    said = [line.split()[:-1] for line in forking.lines]
    assert said == [["child-refuses"], ["child-holds", "True", "True"], ["parent-holds"]]
