"""``leasequeue leases run``: what it answers, what it hands on, and that its command never outlives the lease."""

from __future__ import annotations

import getpass
import os
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from leasequeue import LeaseQueue
from leasequeue.lease import Lease
from tests.cli.conftest import Run
from tests.cli.test_processes import ROOT, Command
from tests.support.databases import Database
from tests.support.server import Server
from tests.support.waiting import until

pytestmark = pytest.mark.process

OTHER = "2eb6f7a2-5e0c-4a0e-9c86-1d5a5b2d9f10"

Start = Callable[..., Command]

# A command that goes on whatever it is told, and writes down each time that it was still there. Not for ever: where a test
# fails, it is left behind.
STUBBORN = "trap '' TERM; i=0; while [ $((i += 1)) -lt 2000 ]; do date +%s.%N >> {beats}; sleep 0.02; done"


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    made: list[Command] = []

    def make(url: str, *words: str, **env: str) -> Command:
        made.append(Command(tmp_path / f"log{len(made)}", ("leases", "run", *words), {"LEASEQUEUE_URL": url, **env}))
        return made[-1]

    yield make
    for each in made:
        if each.process.poll() is None:
            each.process.terminate()  # it ends its command; a SIGKILL would leave what that has started
            each.process.wait(30)


def call(url: str, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("LEASEQUEUE_", "DATABASE_URL"))}
    return subprocess.run(
        [sys.executable, "-m", "leasequeue.cli.main", "leases", "run", *words],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, cwd=ROOT, env={**clean, "LEASEQUEUE_URL": url, **env},
        timeout=60, check=False,
    )  # fmt: skip


def occupy(
    database: Database, name: str = "report", seconds: float = 60.0, owner: str = "box:7", slots: int = 1
) -> None:
    """Another holder, by its row."""
    for slot in range(slots):
        database.execute(
            "INSERT INTO leasequeue_lease "
            "(name, slot, slots, holder, term, owner, acquired_at, renewed_at, expires_at) VALUES "
            "(%s, %s, %s, %s, 41, %s, now(), now(), now() + %s * interval '1 second')",
            [name, slot, slots, OTHER, owner, seconds],
        )


def held(database: Database, name: str = "report") -> bool:
    statement = "SELECT count(*) FROM leasequeue_lease WHERE name = %s AND holder IS NOT NULL"
    return bool(database.scalar(statement, [name]))


def expiry(database: Database, name: str = "report") -> float:
    statement = "SELECT extract(epoch FROM expires_at)::float8 FROM leasequeue_lease WHERE name = %s"
    return float(database.scalar(statement, [name]))


def history(database: Database, name: str = "report") -> list[tuple[Any, ...]]:
    return database.execute("SELECT event, reason FROM leasequeue_lease_event WHERE name = %s ORDER BY id", [name])


def is_gone(pid: int) -> bool:
    """Dead, or dead and not yet waited for."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def last_beat(beats: Path) -> float:
    """When it was last seen alive; it must have been, at first."""
    # Killed in the middle of a write, it leaves half of a line.
    return float(beats.read_text().splitlines(keepends=True)[-2])


# What it answers


@pytest.mark.direct_only  # the command is what differs
@pytest.mark.parametrize(
    ("command", "status"),
    [
        (["true"], 0),
        (["sh", "-c", "exit 3"], 3),
        (["sh", "-c", "kill -TERM $$"], 128 + signal.SIGTERM),
        (["/none/such"], 127),
        (["/"], 126),
    ],
    ids=["0", "3", "SIGTERM", "missing", "a folder"],
)
def test_the_exit_status_is_that_of_the_command(database: Database, command: list[str], status: int) -> None:
    done = call(database.url, "report", "--", *command)
    assert done.returncode == status
    assert len(done.stderr.splitlines()) == (status in (126, 127))
    assert "Traceback" not in done.stderr
    assert not held(database)
    assert [event for event, _ in history(database)] == ["acquired", "released"]


LOADED = """
import atexit, sys
from leasequeue.cli.main import main
heavy = {"alembic", "leasequeue.queue", "rich", "sqlalchemy"}
atexit.register(lambda: print(*sorted(heavy & set(sys.modules))))
main()
"""


@pytest.mark.direct_only  # what is imported is the same
def test_it_starts_without_what_it_does_not_need(database: Database) -> None:
    """Cron calls it every minute on every machine: SQLAlchemy and the rest of a queue would double what a call costs."""
    done = subprocess.run(
        [sys.executable, "-c", LOADED, "leases", "run", "report", "--", "true"],
        capture_output=True, text=True, cwd=ROOT, env={**os.environ, "LEASEQUEUE_URL": database.url}, check=True,
    )  # fmt: skip
    assert done.stdout.split() == []
    assert [event for event, _ in history(database)] == ["acquired", "released"]


def test_who_is_refused_is_told_why_in_one_line(database: Database, tmp_path: Path) -> None:
    occupy(database, owner="box:7\n[red]\x1b[2J")
    ran = tmp_path / "ran"
    done = call(database.url, "report", "--", "touch", str(ran), "--token=hidden")
    assert (done.returncode, done.stdout) == (75, "")
    (line,) = done.stderr.splitlines()
    since, until_ = database.execute(
        "SELECT to_char(acquired_at AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS'), "
        "to_char(expires_at AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS') FROM leasequeue_lease"
    )[0]
    assert line.startswith(r"leasequeue: the lease 'report' is held by box:7\n[red]\x1b[2J in term 41, since ")
    assert f"since {since}." in line
    assert f"until {until_}." in line
    assert line.endswith("; touch was not run")  # without its arguments
    assert not ran.exists()
    ((owner, reason, term),) = database.execute(
        "SELECT owner, reason, term FROM leasequeue_lease_event WHERE event = 'refused'"
    )
    assert (owner, reason, term) == (f"{getpass.getuser()}@{socket.gethostname()} (touch)", "held", 41)


@pytest.mark.direct_only  # it is about a server that is not there
def test_a_database_that_cannot_be_asked_is_no_refusal(own_database: Database, own_server: Server) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        nobody = call(f"postgresql://u:hidden@127.0.0.1:{closed.getsockname()[1]}/d", "report", "--", "true")
    url = own_database.url
    occupy(own_database)
    assert call(url, "report", "--", "true").returncode == 75
    own_server.stop()
    stopped = call(url, "report", "--wait", "1s", "--", "true")
    own_server.start()
    for done in (nobody, stopped):
        assert done.returncode == 69
        assert "held by" not in done.stderr
        assert "Check that the server is up" in done.stderr
        assert "Traceback" not in done.stderr
    assert "u:***@127.0.0.1" in nobody.stderr
    assert "hidden" not in nobody.stderr
    password = own_server.params()["password"]
    assert password not in stopped.stderr


@pytest.mark.direct_only  # nothing is asked, or nothing is there to ask
def test_what_cannot_be_is_said_before_anything_runs(run: Run, database: Database, direct_url: str) -> None:
    for words, status, said in (
        (("report", "true"), 64, "write -- before the command"),
        (("report", "--"), 64, "Missing argument"),
        (("report", "--wiat", "5s", "--", "true"), 64, "No such option"),
        (("report", "--ttl", "soon", "--", "true"), 64, "write a duration such as 30s"),
        (("report", "--ttl", "1s", "--", "true"), 78, "the ttl of a lease is 2 s to a day"),
        (("n" * 513, "--", "true"), 78, "has 1 to 512 bytes"),
    ):
        done = run("leases", "run", *words, LEASEQUEUE_URL=database.url)
        assert (done.exit_code, done.stdout) == (status, ""), words
        assert said in done.stderr
        assert "Traceback" not in done.stderr
    assert call(direct_url, "report", "--", "true").returncode == 78  # no tables
    assert history(database) == []


@pytest.mark.direct_only  # the question is the one of every test here
def test_another_number_of_slots_is_an_error_and_no_refusal(database: Database) -> None:
    occupy(database, slots=2)
    done = call(database.url, "report", "--", "true")
    assert done.returncode == 78
    assert "`leasequeue leases resize report 1`" in done.stderr
    assert history(database) == []
    database.execute("UPDATE leasequeue_lease SET holder = NULL, expires_at = NULL WHERE slot = 1")
    assert call(database.url, "report", "--slots", "2", "--", "true").returncode == 0


# What it hands on


@pytest.mark.direct_only  # nothing of it is seen by the database
def test_the_environment_and_the_words_of_the_command(database: Database) -> None:
    show = "import os, sys; print([os.environ['LEASEQUEUE_LEASE'], os.environ['LEASEQUEUE_TERM'], *sys.argv[1:]])"
    words = ["-x", "--ttl", "7", "--wait", "--", "--help", "--url=x", "ä\n"]
    name = "Bericht 'ä'\n[red]"
    done = call(database.url, "--ttl", "5s", name, "--", sys.executable, "-c", show, *words)
    assert done.returncode == 0, done.stderr
    term = database.scalar("SELECT term FROM leasequeue_lease WHERE name = %s", [name])
    assert done.stdout == f"{[name, str(term), *words]}\n"
    assert done.stderr == ""


def test_it_waits_for_the_lease_and_then_runs(database: Database, start: Start) -> None:
    occupy(database)
    waiting = start(database.url, "report", "--wait", "30s", "--", "echo", "it ran")
    until(lambda: history(database), 20, "it to be refused at first")
    assert waiting.process.poll() is None
    database.execute("UPDATE leasequeue_lease SET holder = NULL, owner = NULL, expires_at = NULL")
    assert waiting.process.wait(20) == 0
    assert waiting.log == "it ran\n"


@pytest.mark.direct_only  # another pace of the same questions
def test_a_wait_that_is_over_is_a_refusal(database: Database) -> None:
    occupy(database)
    done = call(database.url, "report", "--wait", "1200ms", "--", "true")
    assert done.returncode == 75
    assert len(done.stderr.splitlines()) == 1
    count = database.scalar("SELECT sum(count) FROM leasequeue_lease_event WHERE event = 'refused'")
    assert 2 <= count <= 10


@pytest.mark.direct_only  # what is looked at are processes of this machine
def test_a_signal_goes_to_the_command_and_the_lease_is_free_at_once(database: Database, start: Start) -> None:
    script = "trap 'echo told; exit 7' TERM; echo ready; while :; do sleep 0.02; done"
    running = start(database.url, "report", "--ttl", "1h", "--", "sh", "-c", script)
    running.said("ready")
    assert held(database)
    running.process.send_signal(signal.SIGTERM)
    assert running.process.wait(20) == 7
    assert "told" in running.log
    assert not held(database)
    # It is free: the next does not wait for the hour.
    assert call(database.url, "report", "--", "true").returncode == 0


@pytest.mark.direct_only  # nothing of it is seen by the database
def test_what_is_ignored_stays_ignored(database: Database) -> None:
    words = [sys.executable, "-m", "leasequeue.cli.main", "leases", "run", "--url", database.url, "report"]
    inner = shlex.join([*words, "--", "sh", "-c", "kill -HUP $PPID $$; echo survived"])
    done = subprocess.run(
        ["sh", "-c", f"trap '' HUP; exec {inner}"], capture_output=True, text=True, check=False, cwd=ROOT
    )
    assert (done.returncode, done.stdout) == (0, "survived\n")


@pytest.mark.direct_only  # nothing of it is seen by the database
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="elsewhere a file's name may have to be UTF-8")
def test_a_command_of_any_name_and_no_stdin(database: Database, tmp_path: Path) -> None:
    odd = os.path.join(os.fsencode(tmp_path), b"x\xff")
    with open(odd, "w") as file:
        file.write("#!/bin/sh\nexit 9\n")
    os.chmod(odd, 0o755)  # noqa: S103 - a script of our own
    words = [
        sys.executable,
        "-m",
        "leasequeue.cli.main",
        "leases",
        "run",
        "--url",
        database.url,
        "report",
        "--",
        os.fsdecode(odd),
    ]
    script = f"exec {shlex.join(words)} <&-"
    assert subprocess.run(["sh", "-c", script], check=False, cwd=ROOT).returncode == 9


# What becomes of the command when the lease is lost


def _background(beats: Path, more: Path, pids: Path) -> list[str]:
    """A script that ignores SIGTERM, and a child of it in the background that does so too."""
    stubborn = STUBBORN.format(beats=shlex.quote(str(more)))
    script = f"echo $$ > {pids}; ({stubborn}) & echo $! >> {pids}; {STUBBORN.format(beats=shlex.quote(str(beats)))}"
    return ["sh", "-c", script]


def _running(paths: list[Path]) -> None:
    for path in paths:
        until(lambda path=path: path.stat().st_size > 40, 20, f"{path.name} to beat")  # type: ignore[misc]


@pytest.mark.direct_only  # what is looked at are processes of this machine, and seconds
def test_a_lease_that_an_operator_took_is_over_before_anybody_has_it(
    database: Database, start: Start, tmp_path: Path
) -> None:
    beats, more, pids = tmp_path / "beats", tmp_path / "more", tmp_path / "pids"
    running = start(database.url, "report", "--ttl", "3s", "--", *_background(beats, more, pids))
    _running([beats, more])
    words = [
        sys.executable,
        "-m",
        "leasequeue.cli.main",
        "leases",
        "release",
        "report",
        "--force",
        "--url",
        database.url,
    ]
    taken = subprocess.run(words, capture_output=True, text=True, check=True, cwd=ROOT)
    assert "free for others in" in taken.stdout
    ends = expiry(database)  # as it was promised; nothing extends it any more
    waiting = start(database.url, "report", "--ttl", "3s", "--wait", "30s", "--", "true")
    assert running.process.wait(20) == 128 + signal.SIGKILL
    # Gone themselves, and not only silent. When this test learns of it says how busy the machine is; their last beats, and
    # below the time when another has it, say when it was.
    for pid in map(int, pids.read_text().split()):
        until(lambda pid=pid: is_gone(pid), 5, "its processes to be gone")  # type: ignore[misc]
    ahead = (
        database.scalar("SELECT extract(epoch FROM clock_timestamp())::float8") - time.time()
    )  # of the database's clock
    assert max(last_beat(beats), last_beat(more)) + ahead < ends
    assert waiting.process.wait(20) == 0
    events = history(database)
    acquired = database.scalar(
        "SELECT extract(epoch FROM max(at))::float8 FROM leasequeue_lease_event WHERE event = 'acquired'"
    )
    assert acquired >= ends
    assert ("released", f"taken away by {getpass.getuser()}@{socket.gethostname()}") in events
    assert ("lost", "it was released by an operator") in events
    assert "is lost: the command is told to stop" in running.log
    assert "did not stop in time: it is killed" in running.log


@pytest.mark.direct_only  # the server behind it is stopped
def test_a_database_that_goes_away_ends_the_command_in_time(
    own_database: Database, own_server: Server, start: Start, tmp_path: Path
) -> None:
    database = own_database
    beats, more, pids = tmp_path / "beats", tmp_path / "more", tmp_path / "pids"
    running = start(database.url, "report", "--ttl", "4s", "--", *_background(beats, more, pids))
    _running([beats, more])
    seen = expiry(database)
    until(lambda: expiry(database) > seen, 10, "a renewal: the next is a second away")
    ends = expiry(database)
    own_server.stop()
    assert running.process.wait(20) == 128 + signal.SIGKILL
    for pid in map(int, pids.read_text().split()):
        until(lambda pid=pid: is_gone(pid), 5, "its processes to be gone")  # type: ignore[misc]
    assert max(last_beat(beats), last_beat(more)) < ends
    own_server.start()
    assert call(database.url, "report", "--wait", "10s", "--", "true").returncode == 0


@pytest.mark.direct_only  # what is looked at are processes of this machine
def test_what_the_command_left_behind_ends_as_well(database: Database, start: Start, tmp_path: Path) -> None:
    """The script itself obeys SIGTERM; what it has started does not."""
    beats = tmp_path / "beats"
    script = f"({STUBBORN.format(beats=shlex.quote(str(beats)))}) & echo $! ; wait"
    running = start(database.url, "report", "--ttl", "2s", "--", "sh", "-c", script)
    _running([beats])
    ends = _take(database)
    assert running.process.wait(20) == 128 + signal.SIGTERM
    until(lambda: is_gone(int(running.log.splitlines()[0])), 5, "its child to be gone")
    assert last_beat(beats) < ends


def _take(database: Database) -> float:
    """As ``leases release --force`` does; returns until when it was promised."""
    statement = """UPDATE leasequeue_lease SET holder = NULL, owner = NULL WHERE holder IS NOT NULL
        RETURNING extract(epoch FROM expires_at)::float8"""
    return float(database.scalar(statement))


@pytest.mark.direct_only  # as the tests of a loss above
@pytest.mark.parametrize(("ends_with", "status"), [(0, 76), (5, 5)])
def test_a_command_that_ended_after_a_loss(database: Database, start: Start, ends_with: int, status: int) -> None:
    script = f"trap 'exit {ends_with}' TERM; echo ready; while :; do sleep 0.02; done"
    running = start(database.url, "report", "--ttl", "2s", "--", "sh", "-c", script)
    running.said("ready")
    _take(database)
    assert running.process.wait(20) == status
    assert "did not stop in time" not in running.log


@pytest.mark.direct_only  # what is looked at are processes of this machine
def test_one_that_was_suspended_beyond_its_ttl_stops_and_another_has_it(
    database: Database, start: Start, tmp_path: Path
) -> None:
    beats = tmp_path / "beats"
    command = ["sh", "-c", STUBBORN.format(beats=shlex.quote(str(beats)))]
    running = start(database.url, "report", "--ttl", "2s", "--", *command)
    _running([beats])
    (child,) = Path(f"/proc/{running.process.pid}/task/{running.process.pid}/children").read_text().split()
    for pid in (running.process.pid, int(child)):
        os.kill(pid, signal.SIGSTOP)  # a machine that is suspended stops both
    other = start(database.url, "report", "--wait", "30s", "--", "sh", "-c", "echo $LEASEQUEUE_TERM; sleep 60")
    until(lambda: other.log, 20, "the other to have it")
    for pid in (running.process.pid, int(child)):
        os.kill(pid, signal.SIGCONT)
    assert running.process.wait(60) == 128 + signal.SIGKILL
    assert is_gone(int(child))
    assert "is lost: the command is told to stop" in running.log
    # The other has it still, in its own term.
    term, has = database.execute("SELECT term, holder IS NOT NULL AND expires_at > now() FROM leasequeue_lease")[0]
    assert (str(term), has) == (other.log.strip(), True)


@pytest.mark.direct_only  # what is looked at are processes of this machine
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux tells a process of its parent's death")
def test_a_command_dies_with_the_one_who_holds_its_lease(database: Database, start: Start) -> None:
    running = start(database.url, "report", "--ttl", "2s", "--", "sleep", "60")
    children = Path(f"/proc/{running.process.pid}/task/{running.process.pid}/children")
    until(lambda: children.read_text().split(), 20, "the command to be started")
    (child,) = map(int, children.read_text().split())
    until(lambda: b"sleep" in Path(f"/proc/{child}/cmdline").read_bytes()[:6], 5, "it to be the command")
    running.process.kill()
    running.process.wait()
    until(lambda: is_gone(child), 5, "the command to be gone")
    assert held(database)  # nobody could give it back: it expires
    assert call(database.url, "report", "--wait", "10s", "--", "true").returncode == 0


# Refusals


def _processes(url: str, count: int) -> list[int]:
    """That many ``leases run`` side by side; their exit statuses."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("LEASEQUEUE_", "DATABASE_URL"))}
    words = [sys.executable, "-m", "leasequeue.cli.main", "leases", "run", "report", "--", "true"]
    made = [
        subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=ROOT, env={**clean, "LEASEQUEUE_URL": url}
        )
        for _ in range(count)
    ]
    return [each.wait(60) for each in made]


@pytest.mark.direct_only  # what is counted are rows, and a thousand take seconds
def test_a_thousand_refusals_are_one_row_a_minute(database: Database) -> None:
    occupy(database, seconds=600.0)
    began = database.scalar("SELECT clock_timestamp()")
    assert _processes(database.url, 10) == [75] * 10
    owner = f"{getpass.getuser()}@{socket.gethostname()} (true)"
    wrong: list[object] = []

    def ask() -> None:
        lq = LeaseQueue()
        lq.configure(url=database.url)
        for _ in range(250):
            answer = lq.try_lease("report", owner=owner)
            if isinstance(answer, Lease) or answer.reason != "held":
                wrong.append(answer)

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert not wrong
    minutes, rows, total, owners = database.execute(
        "SELECT (extract(epoch FROM date_trunc('minute', clock_timestamp()) - date_trunc('minute', %s::timestamptz)) / 60)::int"
        " + 1, count(*), sum(count)::int, count(DISTINCT owner) FROM leasequeue_lease_event WHERE event = 'refused'",
        [began],
    )[0]
    assert (total, owners) == (1010, 1)
    assert rows <= minutes
    # Refused by a lease that nobody renewed or touched.
    with psycopg.connect(database.direct_url) as conn:
        assert conn.execute("SELECT term FROM leasequeue_lease").fetchall() == [(41,)]
