"""The hammer, on ours and on each broken variant."""

from __future__ import annotations

import pytest

from tests.limits.hammer import VARIANTS, hammer, seconds_of_a_run
from tests.support.databases import Database


@pytest.mark.parametrize("alone", [False, True])
def test_no_limit_is_exceeded_and_no_wake_is_lost(database: Database, alone: bool) -> None:
    faults, counts, intervals = hammer(database.url, database.direct_url, seconds=seconds_of_a_run(4.0), alone=alone)
    print(f"{intervals:,} intervals, {dict(counts)}")
    assert faults == {}
    assert counts["stale tried"] or counts["crashes"]
    assert not alone or counts["followed"], "no job followed another in one transaction"
    assert intervals > 100


@pytest.mark.direct_only  # the order is the statements' own
def test_serial_keys_keep_their_order(database: Database) -> None:
    faults, _, intervals = hammer(database.url, database.direct_url, seconds=seconds_of_a_run(2.5), calm=True)
    print(f"{intervals:,} intervals in order")
    assert faults == {}


_CAUGHT_BY = {
    "no bucket lock": {"more than the limit at once"},
    "any order": {"out of order"},
}


@pytest.mark.direct_only  # a broken variant is broken on either way
@pytest.mark.parametrize("variant", VARIANTS)
def test_the_checker_sees(database: Database, variant: str) -> None:
    faults, _, intervals = hammer(
        database.url, database.direct_url, seconds=3.0, variant=variant, calm=variant == "any order"
    )
    print(f"{variant}: {dict(faults)} in {intervals:,} intervals")
    assert set(faults) & _CAUGHT_BY[variant], f"not seen: {VARIANTS[variant]}"
