"""How long a failed job waits. Pure.

The default is exponential with full jitter (tenacity's ``wait_random_exponential``): jobs that failed together, because
a service they all need was down, do not come back together.
"""

from __future__ import annotations

from typing import cast

from tenacity import RetryCallState, wait_random_exponential
from tenacity.wait import wait_base

DEFAULT_WAIT: wait_base = wait_random_exponential(multiplier=2, max=3600, min=1)


class _Attempts:
    """The one thing that a wait strategy of tenacity asks of its state."""

    def __init__(self, attempt_number: int) -> None:
        self.attempt_number = attempt_number


def delay_seconds(attempt: int, wait: wait_base = DEFAULT_WAIT) -> float:
    """Seconds until the next attempt.

    Args:
        attempt: the number of the attempt that failed, from 1.
        wait: tenacity's strategy; one that only looks at the number of the attempt.
    """
    return float(wait(cast(RetryCallState, _Attempts(attempt))))
