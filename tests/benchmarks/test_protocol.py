"""The protocol of the peers: leasequeue's own drain through it, and a peer's script in its own process."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks import peers
from benchmarks.compare.drain import drained
from benchmarks.compare.workload import Ground, Words
from benchmarks.peers import install, leasequeue
from benchmarks.peers.kinds import NodePeer, PythonPeer
from benchmarks.peers.protocol import Cannot, Peer, Place
from benchmarks.peers.script import client
from tests.support.databases import Database

SCRIPT = """
import contextlib, sys
sys.path.insert(0, {scripts!r})
import talk

async def one(i):
    print("the library's own words")

async def bulk(count):
    raise LookupError("no room for many")

async def stamp(number):
    if number == 13:
        sys.exit("SomeError: thirteen")

@contextlib.asynccontextmanager
async def client():
    yield one, bulk, stamp

talk.main(None, None, client)
"""


class OneDatabase(Ground):
    """The test's database as the ground of a workload."""

    def __init__(self, database: Database) -> None:
        self._place = Place(database.url, database.direct_url, database.via != "direct")

    @contextlib.contextmanager
    def place(self, peer: Peer) -> Iterator[Place]:
        peer.prepare(self._place)
        yield self._place


@pytest.mark.process
def test_leasequeue_drains_by_the_same_protocol(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leasequeue, "REST_SECONDS", 0.0)
    (peer,) = (peer for peer in peers.PEERS if peer.name == peers.REFERENCE)
    assert drained(peer, OneDatabase(database), Words(jobs=500), 1) > 0
    assert database.scalar("SELECT count(*) FROM leasequeue_finished WHERE task = 'noop'") == 500


def test_a_script_answers_and_says_what_went_wrong(tmp_path: Path) -> None:
    script = tmp_path / "run.py"
    script.write_text(SCRIPT.format(scripts=str(install.SCRIPTS)))
    nowhere = Place("postgresql://nowhere", "postgresql://nowhere")
    with client([sys.executable, str(script)], nowhere) as talking:
        assert talking.one(3) >= 0
        with pytest.raises(Cannot, match="LookupError: no room for many"):
            talking.bulk(10)
        assert talking.stamp(1) > 0
        with pytest.raises(Cannot, match="ended with status 1: SomeError: thirteen"):
            talking.stamp(13)


def test_every_peer_has_its_script_and_its_pin() -> None:
    for peer in peers.PEERS:
        if isinstance(peer, PythonPeer):
            assert (install.SCRIPTS / f"run_{peer.name}.py").exists()
            assert "==" in peer.packages[0]
        elif isinstance(peer, NodePeer):
            assert (install.SCRIPTS / f"run_{peer.name}.mjs").exists()
            assert "@" in peer.packages[0]


def test_a_peer_whose_python_is_not_there_is_skipped_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(install, "HOME", tmp_path)
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path))
    with pytest.raises(Cannot, match=r"it needs Python 3\.12 or newer"):
        install.venv("oban", ("oban==0.7.0",), (3, 12), print)
    with pytest.raises(Cannot, match="npm is not installed"):
        install.npm("pg-boss", ("pg-boss@12.38.0",), print)
