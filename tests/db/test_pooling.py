"""What stands before the server is told by real poolers, idle and busy."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator

import psycopg
import pytest

from leasequeue.db.pooling import Kind, arrives, detect
from leasequeue.db.urls import Settings
from tests.db.conftest import Execute, MakeLink
from tests.support.pgbouncer import PgBouncer

MakePgBouncer = Callable[..., PgBouncer]


@pytest.fixture
def behind(make_pgbouncer: MakePgBouncer, direct_url: str) -> Callable[..., Settings]:
    def make(**options: object) -> Settings:
        return Settings.parse(make_pgbouncer(**options).url(direct_url.rpartition("/")[2]))

    return make


@contextlib.contextmanager
def _load(settings: Settings, clients: int) -> Iterator[None]:
    """Other clients with short statements."""
    stop = threading.Event()

    def work() -> None:
        with psycopg.connect(
            **settings.params(),  # type: ignore[arg-type]
            autocommit=True,
            prepare_threshold=None,
        ) as conn:
            while not stop.wait(0.002):
                conn.execute("SELECT pg_sleep(0.001)")

    threads = [threading.Thread(target=work) for _ in range(clients)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def test_direct(direct_url: str) -> None:
    found = detect(Settings.parse(direct_url))
    assert (found.kind, found.keeps_session) == (Kind.DIRECT, True)
    assert str(found).startswith("direct (")


@pytest.mark.parametrize(
    ("mode", "size", "kind"),
    [
        ("session", 5, Kind.SESSION),
        ("transaction", 1, Kind.TRANSACTION),
        ("transaction", 2, Kind.TRANSACTION),
        ("transaction", 10, Kind.TRANSACTION),
        ("statement", 2, Kind.STATEMENT),
    ],
)
def test_poolers(behind: Callable[..., Settings], mode: str, size: int, kind: Kind) -> None:
    settings = behind(pool_mode=mode, pool_size=size)
    for _ in range(3):
        assert detect(settings).kind is kind
    with _load(settings, 4 if mode != "session" else 2):
        for _ in range(5):
            started = time.monotonic()
            found = detect(settings)
            assert found.kind is kind, found
            assert found.keeps_session is (mode == "session")
            assert time.monotonic() - started < 2


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
@pytest.mark.parametrize("mode", ["session", "transaction", "statement"])
def test_poolers_before_a_database_with_a_stricter_default(
    behind: Callable[..., Settings], execute: Execute, mode: str, level: str
) -> None:
    dbname = execute("SELECT current_database()")[0][0]
    execute(f"ALTER DATABASE \"{dbname}\" SET default_transaction_isolation = '{level}'")
    assert detect(behind(pool_mode=mode, pool_size=3)).kind.value == mode


def test_no_answer_is_unknown(behind: Callable[..., Settings]) -> None:
    """A session pooler whose only slot we take ourselves; and nobody at all."""
    started = time.monotonic()
    settings = behind(pool_mode="session", pool_size=1)
    short = Settings.parse(settings.url().render_as_string(hide_password=False) + "?connect_timeout=1")
    found = detect(short, bound_seconds=0.5)
    assert (found.kind, found.keeps_session) == (Kind.UNKNOWN, False)
    assert "no statement was answered" in found.why
    assert time.monotonic() - started < 5
    nobody = detect(Settings.parse("postgresql://u:Zq9-secret@127.0.0.1:1/d"))
    assert nobody.kind is Kind.UNKNOWN
    assert "Zq9-secret" not in str(nobody)


def test_no_channel_is_left_listening(behind: Callable[..., Settings], execute: Execute, make_link: MakeLink) -> None:
    """A session pooler's server connections go to other clients later."""
    settings = behind(pool_mode="session", pool_size=2)
    assert detect(settings).kind is Kind.SESSION
    link = make_link(settings.url().render_as_string(hide_password=False))
    assert link.run("SELECT pg_listening_channels()") == []


def test_arrival_is_proven_with_two_connections(
    make_link: MakeLink, direct_url: str, behind: Callable[..., Settings]
) -> None:
    listener, notifier = make_link(direct_url), make_link(direct_url)
    listener.run("LISTEN c")
    assert arrives(listener, notifier, channel="c", seconds=5)
    listener.run("UNLISTEN c")
    assert not arrives(listener, notifier, channel="c", seconds=0.1)
    url = behind(pool_size=2).url().render_as_string(hide_password=False)
    listener, notifier = make_link(url), make_link(url)
    listener.run("LISTEN c")
    assert not arrives(listener, notifier, channel="c", seconds=0.2)
