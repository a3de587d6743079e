"""Tasks: their names, options and registry."""

from __future__ import annotations

import asyncio
import datetime as dt
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from leasequeue import ConfigurationError, DuplicateTask, InvalidArguments, LeaseQueue, UnknownTask
from leasequeue.task import AsyncTask


@pytest.fixture
def lq() -> LeaseQueue:
    return LeaseQueue()


@pytest.fixture
def send(lq: LeaseQueue) -> Any:
    @lq.task(name="send", aliases=["old_send"], queue="mail")
    def send(user_id: int, channel: str = "email") -> str:
        """Send it."""
        return f"{user_id} by {channel}"

    return send


def test_a_task_is_still_its_function(lq: LeaseQueue, send: Any) -> None:
    assert send(7, channel="sms") == "7 by sms"
    assert (send.__name__, send.__doc__, send.__module__) == ("send", "Send it.", __name__)

    @lq.task(name="coroutine")
    async def coroutine(n: int) -> int:
        return n + 1

    assert isinstance(coroutine, AsyncTask)
    assert coroutine.is_async
    assert asyncio.run(coroutine(1)) == 2


def test_the_registry(lq: LeaseQueue, send: Any) -> None:
    assert lq.registry.get("send") is lq.registry.get("old_send") is send
    assert lq.registry.get("other") is None
    assert lq.registry.names == ("old_send", "send")
    assert list(lq.registry) == [send]
    with pytest.raises(UnknownTask, match="old_send, send"):
        lq.registry["other"]


@pytest.mark.parametrize("names", [{"name": "send"}, {"name": "x", "aliases": "send"}, {"name": "old_send"}])
def test_two_of_one_name(lq: LeaseQueue, send: Any, names: Any) -> None:
    with pytest.raises(DuplicateTask, match="send"):

        @lq.task(**names)
        def again() -> None: ...

    assert lq.registry.get("x") is None, "half registered"


def test_options_make_a_copy(send: Any) -> None:
    job = send.options(priority=3).options(delay=dt.timedelta(seconds=2), max_attempts=1).call(7).job
    assert (job.priority, job.delay_seconds, job.max_attempts, job.queue) == (3, 2.0, 1, "mail")
    moved = send.options(delay=dt.timedelta(1)).options(run_at=dt.datetime(2099, 1, 1, tzinfo=dt.UTC))
    assert moved.call(7).job.delay_seconds == 0
    plain = send.call(7).job
    assert (plain.priority, plain.delay_seconds, plain.run_at, plain.max_attempts) == (0, 0.0, None, None)
    assert send.options(queue="slow").call(1).job.queue == "slow"
    assert send.options(queue="slow")(1) == "1 by email"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"priority": 101}, "priority"),
        ({"priority": -101}, "priority"),
        ({"priority": 1.5}, "priority"),
        ({"priority": True}, "priority"),
        ({"delay": dt.timedelta(seconds=-1)}, "delay"),
        ({"delay": 5}, "delay"),
        ({"run_at": dt.datetime(2030, 1, 1)}, "aware"),  # noqa: DTZ001  # what is refused
        ({"run_at": "tomorrow"}, "aware"),
        ({"delay": dt.timedelta(1), "run_at": dt.datetime.now(dt.UTC)}, "not both"),
        ({"max_attempts": 0}, "max_attempts"),
        ({"max_attempts": 2**31}, "max_attempts"),
        ({"unique_key": ""}, "unique_key"),
        ({"unique_key": "ä" * 257}, "514 bytes"),
        ({"unique_key": "a\0b"}, "NUL"),
        ({"unique_key": "\ud800"}, "surrogate"),
        ({"queue": "x" * 513}, "queue"),
        ({"queue": 5}, "queue"),
    ],
)
def test_options_out_of_range(send: Any, options: Any, says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        send.options(**options)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"name": ""}, "name"),
        ({"name": "t", "aliases": ["x" * 513]}, "name"),
        ({"name": "t", "max_attempts": 0}, "max_attempts"),
        ({"name": "t", "timeout": dt.timedelta(0)}, "timeout"),
        ({"name": "t", "timeout": 5}, "timeout"),
        ({"name": "t", "queue": ""}, "queue"),
    ],
)
def test_decorations_out_of_range(lq: LeaseQueue, options: Any, says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):

        @lq.task(**options)
        def refused() -> None: ...

    assert len(lq.registry) == 0


def test_what_cannot_be_decorated(lq: LeaseQueue, send: Any) -> None:
    with pytest.raises(ConfigurationError, match="parentheses"):
        lq.task(lambda: None)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="above a function"):
        lq.task()(send)
    with pytest.raises(ConfigurationError, match="name of its own"):
        lq.task()(lambda: None)


def test_wrong_arguments_are_found_at_the_call(lq: LeaseQueue, send: Any) -> None:
    with pytest.raises(InvalidArguments) as wrong:
        send.call(7, colour="red")
    assert wrong.value.task == "send"
    with pytest.raises(ConfigurationError, match=r"number 1 .*\.call"):
        lq.enqueue_many(lq, [send.call(1), send])


# Names in __main__: a worker imports the module under its real name.

SCRIPT = """
import sys
from leasequeue import LeaseQueue, ConfigurationError
lq = LeaseQueue()
try:
    @lq.task()
    def send(): ...
    print(send.name)
except ConfigurationError as error:
    print("refused", "name=" in str(error))
"""


def run(cwd: Path, *argv: str) -> str:
    done = subprocess.run([sys.executable, *argv], cwd=cwd, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_the_name_of_a_task_in_main(tmp_path: Path) -> None:
    package = tmp_path / "shop" / "tasks"
    package.mkdir(parents=True)
    loose = tmp_path / "loose"
    loose.mkdir()
    for folder in (package, package.parent):
        (folder / "__init__.py").touch()
    for folder in (package, loose, tmp_path):
        (folder / "mail.py").write_text(SCRIPT)

    assert run(tmp_path, "-m", "shop.tasks.mail") == "shop.tasks.mail.send"
    assert run(tmp_path, "shop/tasks/mail.py") == "shop.tasks.mail.send"
    assert run(tmp_path, "mail.py") == "mail.send"
    assert run(tmp_path, "loose/mail.py") == "refused True", "loose.mail, or mail?"
    assert run(tmp_path, "-c", SCRIPT) == "refused True"
