"""``leasequeue queues`` and ``leasequeue limits``, in process."""

from __future__ import annotations

import datetime as dt
import getpass
import json
import socket
from collections.abc import Callable

import pytest
from click.testing import Result

from tests.cli.conftest import Run
from tests.ops.conftest import Rows
from tests.support.databases import Database

WHO = f"{getpass.getuser()}@{socket.gethostname()}"

Ask = Callable[..., Result]


@pytest.fixture
def ask(run: Run, database: Database) -> Ask:
    """``ask("queues", "pause", "mail")``, on the test's database."""
    return lambda *words, **env: run(*words, LEASEQUEUE_URL=database.url, COLUMNS="200", **env)


def good(done: Result) -> str:
    assert (done.exit_code, done.stderr) == (0, "")
    return str(done.stdout)


def test_what_queues_hold(ask: Ask, database: Database, rows: Rows) -> None:
    assert "No queue has live jobs" in good(ask("queues"))
    rows.worker('{"mail": 4}')
    for _ in range(3):
        rows.job(queue="mail")
    rows.job(queue="mail", available_at="=now() + interval '1 hour'")
    for _ in range(2):
        rows.job(queue="mail", state="g", limit_key="user:7")
    rows.leased(queue="mail")
    rows.job(queue="lonely", state="g", limit_key="x")
    good(ask("limits", "set", "queue:mail", "5", "--rate", "100/10s"))
    good(ask("limits", "set", "queue:limited", "0"))
    done = ask("queues")
    assert done.exit_code == 0
    assert "queue 'lonely': 1 waiting at a limit, and no live worker serves it" in done.stderr
    lines = {line.split()[0]: " ".join(line.split()) for line in done.stdout.splitlines() if line.strip()}
    assert lines["mail"].startswith("mail 3 1 2 0 1 0 ")
    assert lines["mail"].endswith("5 at once, 100 in any 10 s 1, 4 slots")
    assert lines["lonely"].startswith("lonely 0 0 1 0 0 ")
    assert lines["lonely"].endswith("NONE")
    assert "none runs" in lines["limited"]
    found = json.loads(ask("queues", "--json").stdout)
    assert [(row["queue"]["name"], row["queue"]["waiting"], row["queue"]["workers"]) for row in found["rows"]] == [
        ("limited", 0, 0), ("lonely", 1, 0), ("mail", 2, 1),
    ]  # fmt: skip
    assert [warning["kind"] for warning in found["warnings"]] == ["unserved"]
    one = ask("queues", "mail")
    assert one.exit_code == 0
    assert one.stderr == ""
    assert "mail" in one.stdout
    assert "lonely" not in one.stdout
    assert "NONE" in good(ask("queues", "show", "none such"))


def test_pause_and_resume(ask: Ask, database: Database, rows: Rows) -> None:
    rows.worker('{"mail": 4}')
    assert good(ask("queues", "pause", "mail")) == "queue 'mail' is paused\n"
    assert database.execute("SELECT updated_by, resume_at FROM leasequeue_queue") == [(WHO, None)]
    assert "was already paused; it resumes by itself at" in good(
        ask("queues", "pause", "mail", "--for", "1h", "--by", "ann")
    )
    assert database.execute(
        "SELECT updated_by, round(extract(epoch FROM resume_at - paused_at) / 60) FROM leasequeue_queue"
    ) == [("ann", 60)]
    found = json.loads(good(ask("queues", "show", "mail", "--json")))
    assert found["queue"]["paused_at"]
    assert found["queue"]["resume_at"]
    assert "resumes" in good(ask("queues"))
    answer = json.loads(good(ask("queues", "resume", "mail", "--json")))
    assert answer == {"queue": "mail", "changed": True, "paused": False, "resume_at": None}
    assert good(ask("queues", "resume", "mail")) == "queue 'mail' was not paused\n"
    until = (dt.datetime.now(dt.UTC) + dt.timedelta(hours=2)).isoformat()
    assert json.loads(good(ask("queues", "pause", "mail", "--until", until, "--json")))["changed"] is True
    for words, status, why in (
        (["--for", "1h", "--until", until], 64, "give --for or --until"),
        (["--until", "tomorrow"], 64, "write a time with its zone"),
        (["--until", "2030-01-01T00:00:00"], 64, "write a time with its zone"),
        (["--until", "2020-01-01T00:00:00+00:00"], 78, "is over already by the database's clock"),
        (["--for", "soon"], 64, "write a duration"),
    ):
        done = ask("queues", "pause", "mail", *words)
        assert done.exit_code == status
        assert why in " ".join(done.stderr.split())


def test_limits(ask: Ask, database: Database, rows: Rows) -> None:
    assert "No limit is set or declared" in good(ask("limits"))
    rows.job(state="g", limit_key="user:7", limit_max=3)
    assert good(ask("limits", "set", "user", "5")) == "limit 'user' is set: 5 at once\n"
    assert good(ask("limits", "set", "user:7", "none", "--rate", "100/10s", "--by", "ann")) == (
        "limit 'user:7' is set: any number at once, 100 in any 10 s\n"
    )
    database.execute(
        "INSERT INTO leasequeue_limit (name, declared, max_running, app) VALUES ('user', true, 1, 'app:lq')"
    )
    listed = [" ".join(line.split()) for line in good(ask("limits")).splitlines()]
    assert any(line.startswith(f"user 5 at once yes an operator ({WHO})") for line in listed)
    assert any(line.startswith("user 1 at once no the code of app:lq") for line in listed)
    assert [row["name"] for row in json.loads(good(ask("limits", "list", "--json")))] == ["user", "user", "user:7"]
    shown = good(ask("limits", "user:7"))
    assert "at once  any number at once: an operator (ann), as 'user:7'" in shown
    assert "rate     100 in any 10 s: an operator (ann), as 'user:7'" in shown
    assert "waiting  1" in shown
    answer = json.loads(good(ask("limits", "show", "user:8", "--json")))
    assert (answer["rule"]["limit"], answer["waiting"]) == ([5, None, None], 0)
    good(ask("limits", "unset", "user:7"))
    good(ask("limits", "unset", "user"))
    assert good(ask("limits", "unset", "user")) == "limit 'user' was not set\n"
    database.execute("DELETE FROM leasequeue_limit")
    assert "at once  3 at once: the jobs themselves" in good(ask("limits", "user:7"))
    woken = json.loads(good(ask("limits", "set", "user:7", "0", "--json")))
    assert woken == {"limit": "user:7", "running": 0, "rate": None, "rate_seconds": None, "woken": 1}
    for words, status, why in (
        (["user"], 64, "give a NUMBER of jobs at once, a --rate, or both"),
        (["user", "many"], 64, "is no number of jobs"),
        (["user", "--rate", "fast"], 78, 'as in "100/10s"'),
        (["user:", "5"], 78, "nothing follows its colon"),
    ):
        done = ask("limits", "set", *words)
        assert done.exit_code == status
        assert why in " ".join(done.stderr.split())


def test_limits_of_the_code_are_written_by_hand(ask: Ask, database: Database) -> None:
    app = "tests.cli.limits_app:make()"
    said = good(ask("limits", "sync", app))
    assert said == "limits of the code: 'queue:mail': 4 at once; 'user': 2 at once, 5 in any 60 s\n"
    assert good(ask("limits", "sync", app)) == f"the limits of {app} are as its code says\n"
    assert database.execute("SELECT name, app FROM leasequeue_limit ORDER BY 1") == [("queue:mail", app), ("user", app)]


def test_help(ask: Ask) -> None:
    for words in ([], ["queues"], ["limits"], ["queues", "pause"], ["limits", "set"], ["limits", "sync"]):
        said = good(ask(*words, "--help"))
        assert "Usage: leasequeue" in said
        assert max(map(len, said.splitlines())) <= 102
