"""What the words of ``leasequeue worker`` become; no process is started."""

from __future__ import annotations

from typing import Any

import pytest

from leasequeue.worker import supervisor
from leasequeue.worker.options import WorkerOptions
from tests.cli.conftest import Run


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> list[WorkerOptions]:
    """The options that the supervisor was started with."""
    got: list[WorkerOptions] = []

    def main(options: WorkerOptions) -> int:
        got.append(options)
        return 0

    monkeypatch.setattr(supervisor, "main", main)
    monkeypatch.delenv("LEASEQUEUE_CONTROL_URL", raising=False)
    return got


def test_the_defaults(run: Run, given: list[WorkerOptions]) -> None:
    assert run("worker", "app:lq").exit_code == 0
    assert given == [WorkerOptions(app="app:lq")]


def test_all_words(run: Run, given: list[WorkerOptions]) -> None:
    words = (
        "worker app.jobs:make() --queues mail=10:high=2,a=b=3,default --processes 2 --shutdown-timeout 5.5 --ttl 3 --poll-only "
        "--http 127.0.0.1:9101 --schema S --url postgresql://u:pw@h/d --control-url postgresql://h2/d --log-format json "
        "--log-level DEBUG --max-abandoned 5"
    )
    assert run(*words.split()).exit_code == 0
    assert given == [
        WorkerOptions(
            app="app.jobs:make()", queues=(("mail", 10), ("a=b", 3), ("default", 10)), reserved=(("mail", 2),), processes=2,
            ttl_seconds=3.0,
            shutdown_timeout_seconds=5.5, http=("127.0.0.1", 9101), schema="S", url="postgresql://u:pw@h/d",
            control_url="postgresql://h2/d", log_format="json", log_level="debug", poll_only=True, max_abandoned=5,
        )
    ]  # fmt: skip
    assert "pw" not in repr(given[0])
    assert WorkerOptions.from_json(given[0].to_json()) == given[0]


def test_the_environment(run: Run, given: list[WorkerOptions]) -> None:
    done = run("worker", LEASEQUEUE_APP="app:lq", LEASEQUEUE_CONTROL_URL="postgresql://h2/d")
    assert done.exit_code == 0
    assert given == [WorkerOptions(app="app:lq", control_url="postgresql://h2/d")]


@pytest.mark.parametrize(
    ("text", "address"),
    [
        (":9101", ("127.0.0.1", 9101)),
        ("9101", ("127.0.0.1", 9101)),
        ("box:0", ("box", 0)),
        ("[::1]:80", ("::1", 80)),
    ],
)
def test_addresses(run: Run, given: list[WorkerOptions], text: str, address: tuple[str, int]) -> None:
    run("worker", "app:lq", "--http", text)
    assert given[0].http == address


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--queues", "mail=many"], "'mail=many': write name=slots"),
        (["--queues", "mail=0"], "a queue has 1 to 10000 slots"),
        (["--queues", "mail=²"], "write name=slots"),
        (["--queues", "mail=10:high=many"], "write name=slots:high=reserved"),
        (["--queues", "mail=10:high=10"], "of 10 slots at most 9 are for jobs of a priority above 0 alone"),
        (["--queues", "a=1,a=2"], "queue 'a' is named twice"),
        (["--queues", "a=1,"], "a queue's name has 1 to 512 bytes"),
        (["--queues", "=3"], "a queue's name has 1 to 512 bytes"),
        (["--http", "localhost"], "write host:port"),
        (["--http", "h:99999"], "write host:port"),
        (["--processes", "0"], "not in the range"),
        (["--ttl", "0"], "not in the range"),
        (["--log-level", "loud"], "is not one of"),
        ([], "Missing argument 'APP'"),
    ],
)
def test_words_that_make_no_sense(run: Run, given: list[WorkerOptions], words: list[str], why: str) -> None:
    done = run("worker", *words, *(["app:lq"] if words else []))
    assert done.exit_code == 64
    assert why in " ".join(done.stderr.split())
    assert given == []


@pytest.mark.parametrize(
    "words",
    [["--url", "mysql://u:secret@h/d"], ["--control-url", "postgresql://u:secret@h:x/d"], ["--schema", "s" * 64]],
)
def test_settings_that_cannot_be(run: Run, given: list[WorkerOptions], words: list[str]) -> None:
    done = run("worker", "app:lq", *words)
    assert done.exit_code == 78
    assert "secret" not in done.stderr
    assert given == []


def test_an_address_that_is_taken(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def main(options: Any) -> int:
        raise OSError(98, "Address already in use")

    monkeypatch.setattr(supervisor, "main", main)
    done = run("worker", "app:lq", "--http", ":9101")
    assert done.exit_code == 78
    assert "cannot serve health on 127.0.0.1:9101 (Address already in use): choose another address" in done.stderr


def test_the_supervisors_status_is_the_commands(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "main", lambda options: 78)
    assert run("worker", "app:lq").exit_code == 78


def test_dev_does_not_take_the_place_of_a_database_that_was_named(run: Run, given: list[WorkerOptions]) -> None:
    done = run("dev", "app:lq", LEASEQUEUE_URL="postgresql://prod/d")
    assert done.exit_code == 78
    assert "LEASEQUEUE_URL names a database already" in done.stderr
    assert given == []
