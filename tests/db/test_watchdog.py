"""The watchdog alone: it shuts what is overdue, nothing else, and its thread comes and goes."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator

import pytest

from leasequeue.db import watchdog as module
from leasequeue.db.watchdog import Watchdog
from tests.support.waiting import until


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    ours.settimeout(5)
    with ours, theirs:
        yield ours, theirs


Pair = tuple[socket.socket, socket.socket]


def test_an_overdue_socket_is_shut(pair: Pair) -> None:
    dog = Watchdog()
    watch = dog.watch(pair[0].fileno())
    started = time.monotonic()
    dog.arm(watch, 0.2)
    assert pair[0].recv(1) == b"", "the waiting side sees the end"
    assert 0.2 <= time.monotonic() - started < 1
    assert dog.disarm(watch) is True
    dog.forget(watch)
    assert pair[0].fileno() >= 0, "the descriptor itself is its owner's"


def test_a_disarmed_one_is_not(pair: Pair) -> None:
    dog = Watchdog()
    watch = dog.watch(pair[0].fileno())
    for _ in range(1000):
        dog.arm(watch, 0.05)
        assert dog.disarm(watch) is False
    other_ours, other_theirs = socket.socketpair()
    with other_ours, other_theirs:
        other_ours.settimeout(5)
        other = dog.watch(other_ours.fileno())
        dog.arm(other, 0.15)  # by its end the first one's deadlines are long past
        assert other_ours.recv(1) == b""
        pair[1].send(b"x")
        assert pair[0].recv(1) == b"x"
        dog.forget(other)
    dog.forget(watch)


def test_a_nearer_deadline_wakes_it(pair: Pair) -> None:
    dog = Watchdog()
    watch = dog.watch(pair[0].fileno())
    dog.arm(watch, 60)
    until(lambda: dog._next > time.monotonic() + 0.5, 5, "the thread to settle")
    dog.arm(watch, 0.1)
    started = time.monotonic()
    assert pair[0].recv(1) == b""
    assert time.monotonic() - started < 1
    dog.forget(watch)


def test_its_thread_sleeps_when_idle_and_is_woken(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_LINGER_SECONDS", 0.05)
    dog = Watchdog()
    watch = dog.watch(pair[0].fileno())
    until(lambda: dog._next == float("inf"), 5, "the thread to sleep for good")
    dog.arm(watch, 0.1)
    assert pair[0].recv(1) == b""
    dog.forget(watch)


def test_its_thread_ends_with_the_last_watch_and_comes_back(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_LINGER_SECONDS", 0.02)
    dog = Watchdog()
    watch = dog.watch(pair[0].fileno())
    thread = dog._thread
    assert thread is not None
    dog.forget(watch)
    until(lambda: not thread.is_alive(), 5, "the thread to end")
    watch = dog.watch(pair[0].fileno())
    dog.arm(watch, 0.05)
    assert pair[0].recv(1) == b""
    dog.forget(watch)


def test_many_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Arming, disarming, forgetting from several threads: only what stays armed is shut."""
    dog = Watchdog()
    wrong: list[str] = []

    def work(index: int) -> None:
        for turn in range(20):
            ours, theirs = socket.socketpair()
            with ours, theirs:
                ours.settimeout(5)
                watch = dog.watch(ours.fileno())
                for _ in range(50):
                    dog.arm(watch, 5.0)
                    dog.disarm(watch)
                if turn % 10 == index:
                    dog.arm(watch, 0.02)
                    if ours.recv(1) != b"":
                        wrong.append("not shut")
                theirs.send(b"x") if turn % 10 != index else None
                if turn % 10 != index and ours.recv(1) != b"x":
                    wrong.append("shut without cause")
                dog.forget(watch)

    threads = [threading.Thread(target=work, args=(index,)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert wrong == []
