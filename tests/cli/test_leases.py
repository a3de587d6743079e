from __future__ import annotations

import getpass
import json
import socket
from collections.abc import Callable
from typing import Any

import pytest

from leasequeue import LeaseQueue
from leasequeue.lease import Lease as Held
from tests.cli.conftest import Run
from tests.support.databases import Database
from tests.support.waiting import until

WHO = f"{getpass.getuser()}@{socket.gethostname()}"
OTHER = "2eb6f7a2-5e0c-4a0e-9c86-1d5a5b2d9f10"

Lease = Callable[..., None]


@pytest.fixture
def lease(database: Database) -> Lease:
    """``lease("report", ttl=30, ago=90)``: a row as a holder writes it; ``owner=None``: as one leaves it."""

    def write(
        name: str,
        owner: str | None = "box:7",
        *,
        slot: int = 0,
        slots: int = 1,
        ttl: float = 30,
        ago: float = 90,
        term: int = 41,
    ) -> None:
        database.execute(
            "INSERT INTO leasequeue_lease (name, slot, slots, term, owner, holder, acquired_at, renewed_at, expires_at) "
            "SELECT %(name)s, %(slot)s, %(slots)s, %(term)s, owner, CASE WHEN owner IS NOT NULL THEN %(holder)s::uuid END, "
            "now() - %(ago)s * interval '1 second', now(), "
            "CASE WHEN owner IS NOT NULL THEN now() + %(ttl)s * interval '1 second' END "
            "FROM (SELECT %(owner)s::text AS owner) AS given",
            {"name": name, "slot": slot, "slots": slots, "term": term, "owner": owner, "holder": OTHER, "ago": ago,
             "ttl": ttl},
        )  # fmt: skip

    return write


def refusal(
    database: Database, name: str, owner: str, *, reason: str = "held", count: int = 1, ago: int = 5, term: int | None = 41
) -> None:  # fmt: skip
    database.execute(
        "INSERT INTO leasequeue_lease_event (name, slot, event, owner, reason, count, term, at) "
        "VALUES (%s, 0, 'refused', %s, %s, %s, %s, now() - %s * interval '1 second')",
        [name, owner, reason, count, term, ago],
    )


def asked(run: Run, database: Database, *words: str) -> Any:
    done = run("leases", *words, "--json", "--url", database.url)
    assert (done.exit_code, done.stderr) == (0, "")
    return json.loads(done.stdout)


def test_nothing_was_ever_held(run: Run, database: Database) -> None:
    done = run("leases", "list", "--url", database.url)
    assert (done.exit_code, done.stdout) == (0, "No lease was ever held here.\n")
    assert asked(run, database, "list") == {"leases": [], "contenders": []}
    done = run("leases", "show", "report", "--url", database.url)
    assert (done.exit_code, done.stdout) == (78, "")
    assert "there is no lease 'report'; `leasequeue leases list` lists them" in done.stderr


def test_leases_for_programs(run: Run, database: Database, lease: Lease) -> None:
    lease("report")
    lease("sem", slots=3, slot=0, term=7)
    lease("sem", None, slots=3, slot=1, term=6)
    lease("sem", slots=3, slot=2, ttl=-5, term=5)
    refusal(database, "report", "box:8", count=4, ago=200)
    refusal(database, "report", "box:8", count=2, ago=20, reason="busy in a fenced transaction")
    refusal(database, "report", "box:9", ago=60, reason="ineligible", term=None)
    refusal(database, "report", "box:1", ago=700)  # too long ago
    refusal(database, "sem", "box:8", ago=100, term=7)
    found = asked(run, database, "list")
    report, first, second, third = found["leases"]
    assert (report["name"], report["held"], report["owner"], report["term"]) == ("report", True, "box:7", 41)
    assert report["holder"] == OTHER
    assert 90 <= report["age_seconds"] < 120
    assert 0 < report["left_seconds"] <= 30
    assert [(each["slot"], each["slots"], each["term"]) for each in (first, second, third)] == [
        (0, 3, 7),
        (1, 3, 6),
        (2, 3, 5),
    ]
    assert (second["held"], second["owner"], second["left_seconds"], second["age_seconds"]) == (False, None, None, None)
    assert (third["held"], third["owner"], third["age_seconds"]) == (False, "box:7", None)
    assert third["left_seconds"] <= -5
    assert [
        (each["name"], each["owner"], each["reason"], each["term"], each["refusals"]) for each in found["contenders"]
    ] == [
        ("report", "box:8", "busy in a fenced transaction", 41, 6),
        ("report", "box:9", "ineligible", None, 1),
        ("sem", "box:8", "held", 7, 1),
    ]


def test_leases_for_people(run: Run, database: Database, lease: Lease) -> None:
    lease("report", ago=3700, ttl=25)
    lease("sem", None, slots=2)
    lease("sem", slots=2, slot=1, ttl=-5)
    refusal(database, "report", "box:8", count=1234)
    done = run("leases", "list", "--url", database.url)
    assert (done.exit_code, done.stderr) == (0, "")
    lines = [line.split() for line in done.stdout.splitlines() if line.strip()]
    assert ["lease", "slot", "state", "owner", "term", "held", "for", "left"] in lines
    (report,) = (line for line in lines if line[:2] == ["report", "1/1"])
    assert report[2:8] == ["held", "box:7", "41", "1", "h", "1"]
    assert ["sem", "1/2", "free", "41"] in lines
    (expired,) = (line for line in lines if line[:2] == ["sem", "2/2"])
    assert expired[2:4] == ["EXPIRED", "box:7"]
    assert "Refused within the last ten minutes" in done.stdout
    (refused,) = (line for line in lines if line[:2] == ["report", "box:8"])
    assert refused[2] == "1,234"
    assert refused[-4:] == ["held", "in", "term", "41"]


def test_one_lease_with_its_history(run: Run, database: Database, lease: Lease) -> None:
    lease("report")
    lease("other")
    refusal(database, "report", "box:8", count=3)
    for event, reason in (
        ("acquired", None),
        ("taken over", "from box:5, whose term 40 expired"),
        ("lost", "in doubt"),
    ):
        database.execute(
            "INSERT INTO leasequeue_lease_event (name, slot, event, owner, term, reason) VALUES ('report', 0, %s, %s, 41, %s)",
            [event, "box:7", reason],
        )
    found = asked(run, database, "show", "report")
    assert [each["name"] for each in found["slots"]] == ["report"]
    assert [each["owner"] for each in found["contenders"]] == ["box:8"]
    assert [(each["event"], each["count"]) for each in found["events"]] == [
        ("lost", 1),
        ("taken over", 1),
        ("acquired", 1),
        ("refused", 3),
    ]
    done = run("leases", "show", "report", "--url", database.url)
    assert (done.exit_code, done.stderr) == (0, "")
    for said in ("held", "box:8", "taken over", "from box:5, whose term 40 expired", "in doubt"):
        assert said in done.stdout
    assert "other" not in done.stdout
    # Of one whose row was pruned, the history tells.
    database.execute("DELETE FROM leasequeue_lease WHERE name = 'report'")
    assert asked(run, database, "show", "report")["slots"] == []


def test_release_wants_to_be_forced(run: Run, database: Database, lease: Lease) -> None:
    lease("it's")
    done = run("leases", "release", "it's", "--url", database.url)
    assert (done.exit_code, done.stdout) == (64, "")
    assert 'say --force to take "it\'s" from its holder' in done.stderr
    assert """`leasequeue leases show 'it'"'"'s'`""" in done.stderr
    assert asked(run, database, "list")["leases"][0]["held"]


def test_a_forced_release_is_written_down_and_nobody_has_it_earlier(run: Run, database: Database, lease: Lease) -> None:
    lease("report", ttl=2.5)
    done = run("leases", "release", "report", "--force", "--url", database.url)
    assert (done.exit_code, done.stderr) == (0, "")
    assert done.stdout.startswith("slot 1 of 'report' is taken from box:7 (term 41); free for others in 2.")
    ends = database.scalar("SELECT expires_at FROM leasequeue_lease")
    (row,) = asked(run, database, "list")["leases"]
    assert (row["held"], row["holder"], row["owner"]) == (False, None, None)
    assert 0 < row["left_seconds"] <= 2.5
    assert "taken away" in run("leases", "list", "--url", database.url).stdout
    (event,) = asked(run, database, "show", "report")["events"]
    assert (event["event"], event["owner"], event["term"]) == ("released", "box:7", 41)
    assert event["reason"] == f"taken away by {WHO}"

    lq = LeaseQueue()
    lq.configure(url=database.url)
    assert not lq.try_lease("report")
    got = until(lambda: lq.try_lease("report"), 10, "the lease")
    assert database.scalar("SELECT acquired_at >= %s FROM leasequeue_lease", [ends])
    assert isinstance(got, Held)
    assert got.term > 41
    got.release()

    again = run("leases", "release", "report", "--force", "--url", database.url)
    assert again.exit_code == 1
    assert "the lease 'report': nothing was changed: nobody holds it" in again.stderr
    assert run("leases", "release", "none", "--force", "--url", database.url).exit_code == 1


def test_one_slot_is_released_and_the_others_are_not(run: Run, database: Database, lease: Lease) -> None:
    for slot in range(3):
        lease("sem", slot=slot, slots=3)
    (taken,) = asked(run, database, "release", "sem", "--slot", "2", "--force")
    assert (taken["slot"], taken["owner"]) == (1, "box:7")
    assert [row["held"] for row in asked(run, database, "list")["leases"]] == [True, False, True]
    assert len(asked(run, database, "release", "sem", "--force")) == 2


def test_a_row_that_is_locked_is_said_to_be(run: Run, database: Database, lease: Lease) -> None:
    lease("report")
    conn = database.connect()
    conn.execute("SELECT FROM leasequeue_lease FOR UPDATE")
    done = run("leases", "release", "report", "--force", "--url", database.url)
    conn.rollback()
    assert done.exit_code == 1
    assert "nothing was changed: slot 1 of box:7 stays: its row is locked by another transaction" in done.stderr
    assert asked(run, database, "list")["leases"][0]["held"]


def test_resize(run: Run, database: Database, lease: Lease) -> None:
    for slot in range(2):
        lease("sem", slot=slot, slots=2)
    done = run("leases", "resize", "sem", "1", "--url", database.url)
    assert (done.exit_code, done.stdout) == (0, "'sem' has 1 slots; before, it had 2\n")
    assert [(row["slots"], row["held"]) for row in asked(run, database, "list")["leases"]] == [(1, True), (1, True)]
    assert run("leases", "resize", "sem", "5", "--url", database.url).stdout == "'sem' has 5 slots; before, it had 1\n"
    missing = run("leases", "resize", "none", "5", "--url", database.url)
    assert missing.exit_code == 78
    assert "the first who asks for it decides how many slots it has" in missing.stderr
    for wrong in ("0", "10001", "many"):
        assert run("leases", "resize", "sem", wrong, "--url", database.url).exit_code == 64


@pytest.mark.direct_only  # it is about what is shown
@pytest.mark.parametrize(
    "name", ['it\'s "x"', "a\nb", "[red]x[/red]", "\x1b[2J\u202e", "Bericht ä 報告", "n" * 512, "list", "-x"]
)
def test_names_of_any_kind(run: Run, database: Database, lease: Lease, name: str) -> None:
    lease(name, name)
    refusal(database, name, name)
    assert asked(run, database, "list")["leases"][0]["name"] == name
    for words in (("list",), ("show", "--", name), ("release", "--force", "--", name)):
        done = run("leases", *words[:1], "--url", database.url, *words[1:])
        assert done.exit_code == 0
        assert not set(done.stdout) & {"\x1b", "\u202e"}
    shown = run("leases", "show", "--url", database.url, "--", name).stdout
    assert "a\nb" not in shown
    if name.isprintable():
        assert name in shown
    done = run("leases", "resize", "--url", database.url, "--", name, "3")
    assert (done.exit_code, done.stdout) == (0, f"{name!r} has 3 slots; before, it had 1\n")


@pytest.mark.parametrize("words", [(), ("list",), ("show",), ("release",), ("resize",), ("run",)])
def test_every_command_has_help(run: Run, words: tuple[str, ...]) -> None:
    done = run("leases", *words, "--help")
    assert done.exit_code == 0
    assert done.stdout.startswith(f"Usage: {' '.join(['leasequeue', 'leases', *words])} ")
    assert "..." not in done.stdout.partition("Commands:")[2]  # no sentence is cut off


def test_leases_alone_lists_and_a_name_shows(run: Run, database: Database, lease: Lease) -> None:
    lease("report")
    assert "report" in run("leases", "--url", database.url).stdout
    assert "History" in run("leases", "report", "--url", database.url).stdout
