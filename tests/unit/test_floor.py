"""Floors and the ladder, on a hand-driven clock."""

from __future__ import annotations

from leasequeue.worker.floor import BEGINNING, RUNGS, Ladder, Lane, aged, best_first

WHOLE = 2 * RUNGS[-1]


def lane(floor: tuple[float, int] = (1000.0, 7)) -> Lane:
    return Lane("default", 0, Ladder(0.0), floor)


def test_a_new_lane_begins_at_the_beginning_and_moves_with_its_batches() -> None:
    one = Lane("default", 0, Ladder(0.0))
    assert one.start(0.1) == BEGINNING
    one.took(BEGINNING, (1000.0, 7), (1000.5, 9), full=True)
    assert one.start(0.2) == (1000.0, 7)


def test_an_empty_lane_has_its_floor_at_a_time_from_before_the_claim() -> None:
    one = Lane("default", 0, Ladder(0.0))
    one.missed(BEGINNING, 990.0)
    assert one.start(0.1) == (990.0, 0)


def test_each_rung_scans_twice_its_length_once_in_its_length_and_the_first_twice() -> None:
    one = lane()
    seen: dict[float, int] = {}
    now = 0.0
    while now < 64.0:
        now += 0.25
        start = one.start(now)
        if start < one.floor:
            seen[one.floor[0] - start[0]] = seen.get(one.floor[0] - start[0], 0) + 1
        one.scanned(now, start)
        one.missed(start, 0.0)
    # The longest rung that is due covers the shorter ones, so 2 s windows are half of the 64 seconds' and the 64 half seconds
    # between them, 4 s ones a quarter ...
    assert seen == {2.0: 96, 4.0: 16, 8.0: 8, 16.0: 4, 32.0: 2, 64.0: 1, 128.0: 1}


def test_a_rung_is_done_only_where_the_lane_was_read() -> None:
    """A lane behind one that filled the claim was not read: its rung stays due."""
    one = lane()
    assert one.start(1.5) == (998.0, 0)
    assert one.start(1.6) == (998.0, 0)
    one.scanned(1.6, (998.0, 0))
    assert one.start(1.7) == (1000.0, 7)


def test_a_late_row_does_not_move_the_floor_and_full_batches_go_on_below_it() -> None:
    one = lane()
    start = one.start(1.5)
    one.scanned(1.5, start)
    one.took(start, (998.5, 3), (998.9, 4), full=True)
    assert one.start(1.6) == (998.5, 3)
    one.took((998.5, 3), (998.95, 5), (999.0, 6), full=False)
    assert one.start(1.7) == (1000.0, 7)


def test_a_rescan_is_from_the_beginning_and_only_once() -> None:
    one = lane()
    one.rescan()
    assert one.start(0.1) == (float("-inf"), 0)
    one.scanned(0.1, (float("-inf"), 0))
    assert one.start(0.2) == (1000.0, 7)


def test_a_rescan_that_is_asked_for_during_another_is_not_lost() -> None:
    one = lane()
    one.rescan()
    start = one.start(0.1)
    one.rescan()  # by the sweep, while the claim is on the wire
    one.scanned(0.1, start)
    assert one.start(0.2) == (float("-inf"), 0)


def test_a_rescan_that_is_asked_for_during_a_shallow_scan_is_not_lost() -> None:
    one = lane()
    start = one.start(1.5)
    one.rescan()
    one.scanned(1.5, start)
    assert one.start(1.6) == (float("-inf"), 0)


def test_the_whole_lane_is_scanned_in_the_end() -> None:
    one = lane()
    assert one.start(WHOLE) == (float("-inf"), 0)
    one.scanned(WHOLE, (float("-inf"), 0))
    assert one.start(WHOLE + 0.1) == (1000.0, 7)


def test_a_lane_rises_by_one_for_each_span_that_its_oldest_job_has_waited() -> None:
    high, low, unknown = (Lane("default", priority, Ladder(0.0)) for priority in (10, 0, -5))
    assert best_first([low, high, unknown]) == [high, low, unknown]
    high.missed(BEGINNING, 1000.0)
    low.missed(BEGINNING, 1000.0)
    # What is not known may have waited for ever; one look tells.
    assert aged([high, low, unknown], 60.0, 1000.0) == [unknown, high, low]
    unknown.missed(BEGINNING, 1000.0)
    assert aged([high, low, unknown], 60.0, 1000.0) == [high, low, unknown]
    # A flood: the high lane moves on with each batch, the low one is not read and stays where it was.
    for now in (1100.0, 1500.0, 1599.0):
        high.took(high.floor, (now, 1), (now, 2), full=True)
        assert aged([high, low, unknown], 60.0, now) == [high, low, unknown]
    high.took(high.floor, (1601.0, 1), (1601.0, 2), full=True)
    assert aged([high, low, unknown], 60.0, 1601.0) == [low, high, unknown]
    low.took(low.floor, (1001.0, 3), (1001.0, 3), full=False)
    low.missed(low.floor, 1601.0)
    assert aged([high, low, unknown], 60.0, 1601.0) == [high, unknown, low]
