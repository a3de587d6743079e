from __future__ import annotations

import json

from tests.cli.conftest import Run
from tests.ops.conftest import Rows
from tests.support.databases import Database

_HOSTILE = "\\u001b]0;owned\\u0007\\u001b[31mred\\u202e"


def test_a_list_for_people_and_for_programs(run: Run, database: Database, rows: Rows) -> None:
    first = rows.job("mail", args='{"user": 7}', priority=3)
    second = rows.job("report", available_at="2030-01-01 00:00:00Z")
    done = run("jobs", "list", "--url", database.url)
    assert (done.exit_code, done.stderr) == (0, "")
    assert "\x1b" not in done.stdout
    lines = done.stdout.splitlines()
    assert [word.strip() for word in lines[0].split()] == [
        "id",
        "state",
        "queue",
        "task",
        "priority",
        "attempt",
        "due",
        "on",
        "arguments",
    ]
    assert lines[2].split()[:7] == [str(second), "scheduled", "default", "report", "0", "0", "2030-01-01"]
    assert '{"user": 7}' in lines[3]
    found = json.loads(run("jobs", "list", "--json", "--url", database.url).stdout)
    assert found["complete"] is True
    assert [job["id"] for job in found["jobs"]] == [second, first]
    assert found["jobs"][0]["available_at"] == "2030-01-01T00:00:00+00:00"
    assert (found["jobs"][1]["state"], found["jobs"][1]["priority"]) == ("ready", 3)
    few = run("jobs", "list", "--limit", "1", "--url", database.url)
    assert few.stderr == "There may be more: the first 1.\n"


def test_nothing_to_list(run: Run, database: Database) -> None:
    assert "--state succeeded" in run("jobs", "list", "--url", database.url).stdout
    assert run("jobs", "list", "--state", "failed", "--url", database.url).stdout == "No such job.\n"
    assert json.loads(run("jobs", "list", "--json", "--url", database.url).stdout)["jobs"] == []


def test_one_job_with_its_tracebacks(run: Run, database: Database, rows: Rows) -> None:
    rows.finished(77, "failed", error="ValueError: no", meta='{"retry_of": 5}')
    rows.failure("t", job=77)
    done = run("jobs", "show", "77", "--url", database.url)
    assert done.exit_code == 0
    for line in ("state      failed", "error      ValueError: no", "retry of   5", "    Traceback ..."):
        assert f"\n{line}" in done.stdout
    found = json.loads(run("jobs", "show", "77", "--json", "--url", database.url).stdout)
    assert found["row"]["state"] == "failed"
    assert found["args"] == {"n": 1}
    assert found["failures"][0]["error_type"] == "ValueError"


def test_there_is_no_such_job(run: Run, database: Database) -> None:
    for words in (("show", "77"), ("retry", "77"), ("cancel", "--", "-1")):
        done = run("jobs", *words[:1], "--url", database.url, *words[1:])
        assert done.exit_code == 1
        assert "no live job and no finished one has that id" in done.stderr


def test_each_id_is_acted_on_and_a_refusal_is_an_exit_status(run: Run, database: Database, rows: Rows) -> None:
    later = rows.job(available_at="=now() + interval '1 hour'")
    ready = rows.job()
    done = run("jobs", "retry", str(ready), str(later), str(later), "--url", database.url)
    assert done.exit_code == 1
    assert done.stderr.startswith(f"leasequeue: cannot retry job {ready}: it is ready already")
    assert done.stdout.startswith(f"job {later} is ready now; it was due at ")
    assert len(done.stdout.splitlines()) == 1
    done = run("jobs", "cancel", str(ready), str(later), "--url", database.url)
    assert (done.exit_code, done.stderr) == (0, "")
    assert done.stdout == f"job {ready} is cancelled; it will not run\njob {later} is cancelled; it will not run\n"
    assert "cancelled by " in database.scalar("SELECT min(error) FROM leasequeue_finished")
    done = run("jobs", "retry", str(ready), "9999", "--json", "--url", database.url)
    assert done.exit_code == 1
    first, second = json.loads(done.stdout)
    assert (first["id"], first["change"]) == (ready, "enqueued again")
    assert first["new_id"] > later
    assert (second["id"], second["change"], second["state"]) == (9999, None, None)


def test_what_anybody_wrote_is_shown_and_never_sent_to_the_terminal(run: Run, database: Database, rows: Rows) -> None:
    id = rows.job("[red]mail[/red]\x1b[2J\r", queue="a\nb")
    database.execute(f'UPDATE leasequeue_job SET args = \'{{"x": "{_HOSTILE}"}}\'')
    rows.failure("\x1b[31m", job=id, message="\x9b2J\nsecond line")
    for words in (("jobs", "list"), ("jobs", "show", str(id)), ("status",)):
        done = run(*words, "--url", database.url)
        assert done.exit_code == 0
        assert not set(done.stdout) & {"\x1b", "\x07", "\x9b", "\r", "\u202e"}, words
    listed = run("jobs", "list", "--url", database.url).stdout
    assert "[red]mail[/red]\\x1b[2J\\x0d" in listed
    assert "a\\nb" in listed


def test_a_terminal_of_eighty_columns(run: Run, database: Database, rows: Rows) -> None:
    rows.job("a.very.long.module.name.of.an.application.tasks.send_reminder", args='{"text": "' + "word " * 40 + '"}')
    done = run("jobs", "list", "--url", database.url, COLUMNS="80")
    assert max(map(len, done.stdout.splitlines())) <= 80
