"""How long a claimer rests that has found nothing, and its look before it claims again."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from leasequeue.db.connect import Execute
    from leasequeue.worker.gate import Gate
    from leasequeue.worker.lanes import Lanes

POLL_MIN_SECONDS = 0.020
POLL_MAX_SECONDS = 0.100
HEARD_MAX_SECONDS = 1.000
"""Where a notification ends the rest. What comes without one, such as plain SQL, waits no longer than this."""

_GROWTH = 1.25
_LATE_SECONDS = 0.001
"""What is due at a moment is looked for a little after it: the two clocks are read at different times."""


class Rest:
    """The pauses of one claimer. For one thread.

    Args:
        idle: the statement of ``db/peek.py``.
    """

    def __init__(self, idle: str, lanes: Lanes, gate: Gate) -> None:
        self._idle = idle
        self._lanes = lanes
        self._gate = gate
        self._pause = POLL_MIN_SECONDS
        self._next = float("inf")
        self._quiet = False

    def over(self) -> None:
        """There was work, or somebody said so: look again soon."""
        self._pause = POLL_MIN_SECONDS
        self._next = float("inf")

    @property
    def is_long(self) -> bool:
        """Whether the pauses have become long: one look at everything is then worth its while, in place of a claim for each
        queue and a look at the gates."""
        return self._pause >= POLL_MAX_SECONDS

    def is_quiet(self, run: Execute, queues: list[str], now: float) -> bool:
        """Whether nothing is due in them for certain: one statement.

        Args:
            queues: those that have room, and are not paused.
            now: of ``time.monotonic``, from before this call.
        """
        self._next = float("inf")
        self._quiet = False
        if not queues:
            return True
        jobs, wakes = self._lanes.look_from(queues, now), self._gate.look_from(queues, now)
        params = {
            "queues": [lane.queue for lane, _ in jobs], "priorities": [lane.priority for lane, _ in jobs],
            "floors": [start[0] for _, start in jobs], "floor_ids": [start[1] for _, start in jobs],
            "wake_queues": [lane.queue for lane, _ in wakes], "wake_floors": [start[0] for _, start in wakes],
            "wake_floor_ids": [start[1] for _, start in wakes], "ahead": HEARD_MAX_SECONDS,
        }  # fmt: skip
        ((due, seconds),) = run(self._idle, params)
        if due:
            return False
        for lane, start in [*jobs, *wakes]:
            lane.scanned(now, start)
            lane.missed(start, self._lanes.database_now)
        if seconds is not None:
            self._next = time.monotonic() + seconds + _LATE_SECONDS
        self._quiet = True
        return True

    def seconds(self, heard: bool) -> float:
        """The next pause: a little longer each time.

        Args:
            heard: a notification would end it, as has been proven, and nothing else is waited for.
        """
        # What is due and was not got (others have it locked, a reserved slot is not for it) may be free at any moment, and
        # nobody says so.
        longest = HEARD_MAX_SECONDS if heard and self._quiet else POLL_MAX_SECONDS
        pause = min(self._pause, longest, max(0.0, self._next - time.monotonic()))
        self._pause = min(longest, self._pause * _GROWTH)
        return pause
