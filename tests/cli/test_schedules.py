from __future__ import annotations

import getpass
import json
import re
import shlex
import socket
from collections.abc import Callable
from typing import Any

import pytest
from click.testing import Result

from tests.cli.conftest import Run
from tests.ops.conftest import Rows
from tests.support.databases import Database

WHO = f"{getpass.getuser()}@{socket.gethostname()}"
APP = "tests.cli.schedules_app:make()"

Schedules = Callable[..., Result]


@pytest.fixture
def schedules(run: Run, database: Database) -> Schedules:
    """``schedules("add", "nightly", ...)``, on the test's database."""
    return lambda *words, **env: run("schedules", *words, LEASEQUEUE_URL=database.url, **env)


def good(done: Result) -> str:
    assert (done.exit_code, done.stderr) == (0, "")
    return str(done.stdout)


def row(database: Database, name: str, columns: str) -> tuple[Any, ...]:
    (found,) = database.execute(f"SELECT {columns} FROM leasequeue_schedule WHERE name = %s", [name])
    return found


def test_there_is_none(schedules: Schedules) -> None:
    assert "There is no schedule: write @lq.schedule(...)" in good(schedules())
    assert json.loads(good(schedules("--json"))) == []
    for words in (
        ("nightly",),
        ("remove", "x"),
        ("pause", "x"),
        ("resume", "x"),
        ("run", "x"),
        ("update", "x", "--priority=1"),
    ):
        done = schedules(*words)
        assert (done.exit_code, done.stdout) == (1, "")
        assert "there is none of that name; `leasequeue schedules` lists them" in done.stderr


def test_all_and_one(schedules: Schedules, database: Database, rows: Rows) -> None:
    rows.worker()
    good(
        schedules(
            "add", "nightly", "--task", "t", "--cron", "0 21 * * *", "--tz", "Europe/Kyiv", "--args", '{"n": [1]}'
        )
    )
    good(schedules("add", "often", "--task", "t", "--every", "15m", "--queue", "mail", "--priority", "-5"))
    listed = json.loads(good(schedules("--json")))
    assert [(each["name"], each["state"], each["when"], each["args"]) for each in listed] == [
        ("nightly", "live", "0 21 * * * Europe/Kyiv", {"n": [1]}),
        ("often", "live", "every 15 min", {}),
    ]
    assert [each["name"] for each in json.loads(good(schedules("list", "--json")))] == ["nightly", "often"]
    text = good(schedules())
    lines = [line.split() for line in text.splitlines() if line.strip()]
    assert lines[0] == ["schedule", "state", "next", "fired", "started", "succeeded", "late", "missed", "when"]
    assert ["nightly", "live", "in"] in [line[:3] for line in lines]
    id = int(good(schedules("run", "often")).split()[-1])
    database.execute("UPDATE leasequeue_tick SET decided_at = due_at + interval '3 s'")
    detail = json.loads(good(schedules("often", "--json")))
    assert detail["row"]["name"] == "often"
    assert detail["row"]["late_seconds"] == 3.0
    tick = detail["ticks"][0]
    assert (tick["outcome"], tick["job_id"], tick["job"], tick["reason"]) == ("fired", id, "ready", "run by hand")
    assert tick["decided_by"] == WHO
    shown = good(schedules("often"))
    facts = dict(re.split("  +", line, maxsplit=1) for line in shown.partition("Ledger")[0].splitlines() if line)
    assert facts["state"] == "live"
    assert facts["when"] == "every 15 min"
    assert (facts["queue"], facts["priority"], facts["late at most"]) == ("mail", "-5", "3.0 s")
    assert facts["defined"] == "at run time, version 1"
    assert "run by hand" in shown
    assert '"n": [' in good(schedules("nightly"))


@pytest.mark.direct_only  # it is about the words
def test_options_may_stand_anywhere(schedules: Schedules, database: Database, run: Run, rows: Rows) -> None:
    rows.worker()
    good(schedules("add", "nightly", "--task", "t", "--cron", "@daily"))
    for words in (
        ("--url", database.url, "nightly", "--json"),
        ("--url", database.url, "--ticks", "5", "nightly"),
        ("--json", "show", "nightly"),
        ("--url", database.url, "list"),
        ("--url", database.url, "--json"),
        (f"--url={database.url}", "pause", "nightly"),
    ):
        done = run("schedules", *words, LEASEQUEUE_URL=database.url)
        assert done.exit_code == 0, done.stderr


def test_states_that_want_a_look(schedules: Schedules, run: Run, database: Database) -> None:
    """Written by plain SQL, as anybody may."""
    for name, spec, task in (
        ("zone", '{"cron": "0 0 * * *", "tz": "Mars/Olympus"}', "t"),
        ("cron", '{"cron": "61 * * * *", "tz": "UTC"}', "t"),
        ("task", '{"every": 60}', "gone"),
    ):
        database.execute("INSERT INTO leasequeue_schedule (name, spec, task) VALUES (%s, %s, %s)", [name, spec, task])
    done = schedules()
    assert done.exit_code == 0
    cron, task, zone = done.stderr.splitlines()  # by name
    assert zone.startswith(
        "! schedule 'zone': its times cannot be read, so it does not run: the time zone 'Mars/Olympus'"
    )
    assert cron.startswith("! schedule 'cron': its times cannot be read")
    assert task.startswith("! schedule 'task': no live worker knows its task 'gone'")
    states = {each["name"]: each["state"] for each in json.loads(schedules("--json").stdout)}
    assert states == {"zone": "broken", "cron": "broken", "task": "vanished"}
    shown = schedules("zone")
    assert shown.exit_code == 0
    assert shown.stderr.startswith("! schedule 'zone'")
    overall = run("status", "--url", database.url)
    assert "! schedule 'task': no live worker knows its task 'gone'" in overall.stdout
    assert overall.exit_code == 0


@pytest.mark.direct_only  # hardly any of it gets to the database
def test_add_says_what_cannot_be(schedules: Schedules, database: Database) -> None:
    add = ("add", "x", "--task", "t")
    for words, status, said in (
        (("add", "x", "--every", "5m"), 64, "Missing option '--task'"),
        (add, 64, "give one of --cron and --every"),
        ((*add, "--cron", "@daily", "--every", "5m"), 64, "give one of --cron and --every"),
        ((*add, "--cron", "61 * * * *"), 78, "61"),
        ((*add, "--cron", "@daily", "--tz", "Mars/Olympus"), 78, "the time zone 'Mars/Olympus' is not known here"),
        ((*add, "--every", "500ms"), 78, ""),
        ((*add, "--every", "soon"), 64, "write a duration such as 30s"),
        ((*add, "--every", "99999999999d"), 64, "write a duration such as 30s"),
        ((*add, "--every", "5m", "--args", "{"), 64, "--args is no JSON"),
        ((*add, "--every", "5m", "--args", "[" * 100_000), 64, "--args is no JSON"),
        ((*add, "--every", "5m", "--args", "[1]"), 64, "--args is an object"),
        ((*add, "--every", "5m", "--args", '{"a": "\\u0000"}'), 78, "the database refuses it"),
        ((*add, "--every", "5m", "--args", '{"a": NaN}'), 78, "the database refuses it"),
        ((*add, "--every", "5m", "--priority", "101"), 64, "101"),
        ((*add, "--every", "5m", "--jitter", "2d"), 64, "--jitter is at most a day"),
        ((*add, "--every", "5m", "--queue", "q" * 513), 78, "--queue has 1 to 512 bytes"),
        ((*add, "--every", "5m", "--catch-up", "all", "--overlap", "skip"), 64, "--overlap skip none beside another"),
        (("add", "x", "--task", "", "--every", "5m"), 78, "--task has 1 to 512 bytes"),
        (("add", "", "--task", "t", "--every", "5m"), 78, "a schedule's name has 1 to 512 bytes"),
        (("add", "n" * 513, "--task", "t", "--every", "5m"), 78, "a schedule's name has 1 to 512 bytes"),
    ):
        done = schedules(*words)
        assert (done.exit_code, done.stdout) == (status, ""), (words, done.stderr)
        assert said in done.stderr, words
        assert "Traceback" not in done.stderr
    assert database.scalar("SELECT count(*) FROM leasequeue_schedule") == 0
    good(schedules(*add, "--every", "5m"))
    done = schedules(*add, "--every", "6m")
    assert done.exit_code == 78
    assert "there is a schedule 'x' already (added at run time): give this one another name" in done.stderr
    assert row(database, "x", "spec->>'every'") == ("300",)


def test_update_changes_what_is_named(schedules: Schedules, database: Database) -> None:
    columns = "task, args::text, queue, priority, spec::text, catch_up, catch_up_seconds, overlap, jitter_seconds"
    good(schedules("add", "x", "--task", "t", "--cron", "0 9 * * *", "--tz", "Europe/Kyiv", "--args", '{"n": 1}'))
    before = row(database, "x", columns)
    assert good(schedules("update", "x", "--queue", "mail", "--jitter", "5m")) == "schedule 'x' is changed\n"
    assert row(database, "x", columns) == (*before[:2], "mail", *before[3:8], 300.0)
    good(schedules("update", "x", "--cron", "0 10 * * *"))
    # Its local times stay those of its zone.
    assert row(database, "x", "spec") == ({"cron": "0 10 * * *", "tz": "Europe/Kyiv"},)
    good(schedules("update", "x", "--tz", "Europe/Paris"))
    assert row(database, "x", "spec") == ({"cron": "0 10 * * *", "tz": "Europe/Paris"},)
    good(schedules("update", "x", "--every", "90s", "--task", "u"))
    assert row(database, "x", "spec->>'every', task, version") == ("90", "u", 5)
    reasons = [tick["reason"] for tick in json.loads(schedules("x", "--json").stdout)["ticks"]]
    assert len(reasons) == 5
    assert all(reason.startswith("redefined: ") for reason in reasons[:-1])
    assert reasons[-1] == "added"
    assert "task was 't', is 'u'" in reasons[0]
    # Limits that only an application gives are kept as well.
    database.execute("""UPDATE leasequeue_schedule SET spec = spec || '{"end": "2099-01-01T00:00:00+00:00"}'""")
    good(schedules("update", "x", "--cron", "@daily", "--tz", "UTC"))
    assert row(database, "x", "spec") == ({"cron": "@daily", "tz": "UTC", "end": "2099-01-01T00:00:00+00:00"},)
    # A spec that nobody can read stays as it is, until a whole one mends it.
    database.execute("UPDATE leasequeue_schedule SET spec = '[]'")
    good(schedules("update", "x", "--priority", "1"))
    assert row(database, "x", "spec") == ([],)
    good(schedules("update", "x", "--cron", "@hourly"))
    assert row(database, "x", "spec") == ({"cron": "@hourly", "tz": "UTC"},)


def test_update_says_what_cannot_be(schedules: Schedules, database: Database) -> None:
    good(schedules("add", "x", "--task", "t", "--every", "5m", "--overlap", "skip"))
    database.execute(
        "INSERT INTO leasequeue_schedule (name, spec, task, decorated) VALUES ('code', '{\"every\": 60}', 't', true)"
    )
    for words, status, said in (
        (("update", "x"), 64, "name something to change"),
        (("update", "x", "--task", ""), 78, "--task has 1 to 512 bytes"),
        (("update", "x", "--catch-up", "all"), 78, "change both"),
        (("update", "x", "--cron", "nix"), 78, "nix"),
        (("update", "code", "--queue", "mail"), 1, "it stands in the code: change it there, or pause it here"),
    ):
        done = schedules(*words)
        assert (done.exit_code, done.stdout) == (status, ""), (words, done.stderr)
        assert said in done.stderr
    assert row(database, "x", "version, catch_up") == (1, "latest")
    good(schedules("update", "x", "--catch-up", "all", "--overlap", "queue"))


def test_pause_resume_and_run(schedules: Schedules, database: Database, rows: Rows) -> None:
    rows.worker()
    good(schedules("add", "x", "--task", "t", "--every", "5m", "--args", '{"n": 7}', "--queue", "mail"))
    assert good(schedules("pause", "x")) == "schedule 'x' is paused\n"
    assert good(schedules("pause", "x")) == "schedule 'x' was already paused\n"
    assert json.loads(good(schedules("x", "--json")))["row"]["state"] == "paused"
    assert "paused" in good(schedules("x"))
    # By hand it runs all the same.
    id = int(good(schedules("run", "x")).removeprefix("schedule 'x': job "))
    assert database.execute("SELECT id, task, args, queue FROM leasequeue_job") == [(id, "t", {"n": 7}, "mail")]
    assert good(schedules("resume", "x")) == "schedule 'x' is running\n"
    assert good(schedules("resume", "x")) == "schedule 'x' was already running\n"
    assert json.loads(good(schedules("x", "--json")))["row"]["state"] == "live"


def test_remove(schedules: Schedules, database: Database, rows: Rows) -> None:
    rows.worker()
    database.execute('UPDATE leasequeue_worker SET schedules = \'["code", "ended"]\'')
    good(schedules("add", "x", "--task", "t", "--every", "5m"))
    good(schedules("run", "x"))
    assert good(schedules("remove", "x")) == "schedule 'x' is removed\n"
    assert schedules("x").exit_code == 1
    assert database.scalar("SELECT count(*) FROM leasequeue_tick WHERE schedule = 'x'") == 3  # its ledger stays
    for name, paused in (("code", None), ("left", None), ("left and paused", "now"), ("ended", None)):
        database.execute(
            "INSERT INTO leasequeue_schedule (name, spec, task, decorated, paused_at) "
            "VALUES (%s, '{\"every\": 60}', 't', true, %s)",
            [name, paused],
        )
    for name in ("code", "ended"):
        done = schedules("remove", name)
        assert (done.exit_code, done.stdout) == (1, "")
        assert "it stands in the code of a live worker and would come back with its next start" in done.stderr
    for name in ("left", "left and paused"):
        good(schedules("remove", name))


def test_sync_writes_the_code_whatever_is_there(schedules: Schedules, database: Database) -> None:
    assert good(schedules("sync", APP, LEASEQUEUE_RELEASE="1")).startswith("schedule 'nightly': added, first due ")
    assert good(schedules("sync", APP, LEASEQUEUE_RELEASE="1")) == "schedule 'nightly': unchanged\n"
    assert row(database, "nightly", "spec, args, task, decorated, release") == (
        {"cron": "0 21 * * *", "tz": "Europe/Kyiv"}, {"n": 2}, "report", True, "1",
    )  # fmt: skip
    # A newer release says otherwise; by hand, the code that is given decides.
    database.execute(
        """UPDATE leasequeue_schedule SET spec = '{"every": 60}', release = '2', deployed_at = now() + interval '1 hour',
        meta = meta || '{"releases": {"2": 4000000000}}'"""
    )
    said = good(schedules("sync", APP, LEASEQUEUE_RELEASE="1"))
    assert said.startswith("schedule 'nightly': redefined by release 1: spec was ")
    assert row(database, "nightly", "spec->>'cron', release") == ("0 21 * * *", "1")
    assert json.loads(schedules("nightly", "--json").stdout)["ticks"][0]["outcome"] == "redefined"
    # Also over one of that name that was added at run time, and over what plain SQL left in its row.
    database.execute("""UPDATE leasequeue_schedule SET decorated = false, task = 'other', meta = '{"releases": 7}'""")
    good(schedules("sync", APP))
    assert row(database, "nightly", "task, decorated") == ("report", True)


def test_sync_says_what_is_wrong(schedules: Schedules, run: Run, database: Database, direct_url: str) -> None:
    for words, env, said in (
        (("sync", "tests.cli.schedules_app:bare()"), {}, "has no schedule: write @lq.schedule(...)"),
        (("sync", "tests.cli.nowhere:lq"), {}, "there is no module 'tests.cli.nowhere'"),
        (("sync", APP), {"LEASEQUEUE_DEPLOYED_AT": "yesterday"}, "LEASEQUEUE_DEPLOYED_AT='yesterday' is no time"),
        (("sync", APP, "--schema", "nix"), {}, "leasequeue migrate --schema nix"),
    ):
        done = schedules(*words, **env)
        assert (done.exit_code, done.stdout) == (78, ""), done.stderr
        assert said in done.stderr
    assert run("schedules", "sync", APP, "--url", direct_url).exit_code == 78
    # The schema is the application's, also where the database is said here.
    elsewhere = run("schedules", "sync", "tests.cli.schedules_app:in_a_schema()", "--url", database.url)
    assert "leasequeue migrate --schema jobs" in elsewhere.stderr
    assert schedules("sync").exit_code == 64
    good(schedules("sync", LEASEQUEUE_APP=APP))


@pytest.mark.direct_only  # it is about what is shown
@pytest.mark.parametrize(
    "name",
    [
        'it\'s "x"',
        "a\nstate  live",
        "[red]x[/red]",
        "\x1b[2J\u202e",
        "Bericht ä 報告",
        "n" * 512,
        "list",
        "add",
        "-x",
        "--json",
        " ",
    ],
)
def test_names_of_any_kind(schedules: Schedules, database: Database, rows: Rows, name: str) -> None:
    rows.worker()
    added = good(schedules("add", "--task", "t", "--every", "5m", "--", name))
    assert added.startswith(f"schedule {name!r} is added; first due 2")
    (listed,) = json.loads(good(schedules("--json")))
    assert listed["name"] == name
    detail = json.loads(good(schedules("show", "--json", "--", name)))
    assert detail["row"]["name"] == name
    for text in (good(schedules()), good(schedules("show", "--", name))):
        assert not set(text) & {"\x1b", "\u202e"}
        assert "\nstate  live" not in text
        if name.isprintable():
            assert name in text
    # What a message says to type reaches it.
    database.execute("DELETE FROM leasequeue_worker")
    problem = json.loads(schedules("--json").stdout)[0]["problem"]
    words = shlex.split(problem.partition("`leasequeue schedules ")[2][:-1])
    assert words[0] == "remove"
    for hand in ("pause", "resume", "run"):
        good(schedules(hand, *words[1:]))
    good(schedules(*words))
    assert database.scalar("SELECT count(*) FROM leasequeue_schedule") == 0


@pytest.mark.parametrize(
    "words",
    [(), ("list",), ("show",), ("add",), ("update",), ("remove",), ("pause",), ("resume",), ("run",), ("sync",)],
)
def test_every_command_has_help(run: Run, words: tuple[str, ...]) -> None:
    done = run("schedules", *words, "--help")
    assert done.exit_code == 0
    assert done.stdout.startswith(f"Usage: {' '.join(['leasequeue', 'schedules', *words])} ")
    assert "..." not in done.stdout.partition("Commands:")[2]  # no sentence is cut off
    if not words:
        assert "`leasequeue schedules show NAME`" in done.stdout
