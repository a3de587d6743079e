"""Random workflows under everything that goes wrong: none early, none doubled, none stuck, cancelled exactly where due.

``LEASEQUEUE_FLOWS=4500`` workflows make a long run of more than 100,000 intervals.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.databases import Database
from tests.workflow.broken import BROKEN
from tests.workflow.hammer import STEPS, hammer

WORKFLOWS = int(os.environ.get("LEASEQUEUE_FLOWS", "40"))


def test_nothing_is_early_doubled_stuck_or_wronged(database: Database, tmp_path: Path) -> None:
    seconds = 30 + WORKFLOWS / 4
    found = hammer(database, tmp_path, workflows=WORKFLOWS, seconds=seconds)
    print(f"{found.runs:,} runs in {found.seconds:.1f} s through {database.via}: {found.counts}")
    assert (found.early, found.doubled, found.stuck, found.wronged) == ([], [], [], [])
    assert found.runs > WORKFLOWS * STEPS / 4
    for what in ("added", "abandoned", "swept", "held", "rolled back"):
        assert found.counts.get(what), f"the hammer did not hit: {what}"


@pytest.mark.direct_only  # a broken statement is broken through any connection
@pytest.mark.parametrize("broken", BROKEN)
def test_a_missing_safeguard_is_noticed(database: Database, tmp_path: Path, broken: str) -> None:
    chances = {"slow": 0.03, "add": 0.5, "crash": 0.0, "hold": 0.0, "cancel": 0.0, "fail": 0.0, "ttl": 30.0}
    if broken == "a cascade without the check":
        chances["fail"] = 0.5
    if broken == "NOT EXISTS without a lock":
        chances["fires"] = 0.0  # it knows only of successes
    runs = 0
    for round in range(4):  # a race may be missed once
        found = hammer(database, tmp_path, workflows=40 * (round + 1), players=3, broken=broken, seconds=15, **chances)
        runs += found.runs
        kinds = {name: len(getattr(found, name)) for name in ("early", "doubled", "stuck", "wronged")}
        assert found.runs > 0
        print(f"{broken}, round {round}: {kinds} in {found.runs} runs, {found.seconds:.1f} s, {found.counts}")
        if found.violations:
            return
        database.execute("TRUNCATE leasequeue_job, leasequeue_finished, leasequeue_edge, leasequeue_step")
    pytest.fail(f"{broken}: no violation in {runs} runs")
