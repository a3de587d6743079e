"""Whether a candidate may lead, by the application's own answer. One that does not come is a no."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

log = logging.getLogger("leasequeue.lease")

_SAY_EVERY_SECONDS = 60.0


class Health:
    """The application's own answer whether it may lead, asked in a thread: one that hangs is a no.

    Args:
        ask: None: always.
    """

    def __init__(self, ask: Callable[[], bool] | None) -> None:
        self._ask = ask
        self._asking: threading.Thread | None = None
        self._good = False
        self._said = float("-inf")

    def is_good(self, name: str, bound_seconds: float) -> bool:
        """Used by one thread."""
        if self._ask is None:
            return True
        if self._asking is None or not self._asking.is_alive():
            self._good = False
            self._asking = threading.Thread(target=self._answer, args=(name,), name="leasequeue-eligible", daemon=True)
            self._asking.start()
        self._asking.join(bound_seconds)
        if self._asking.is_alive():
            self._say(f"whether the candidate for {name!r} is eligible is not answered: it does not lead")
            return False
        return self._good

    def _answer(self, name: str) -> None:
        assert self._ask is not None
        try:
            self._good = bool(self._ask())
        except Exception as error:  # noqa: BLE001  # the application's own code
            self._say(f"whether the candidate for {name!r} is eligible cannot be told, so it does not lead: {error!r}")

    def _say(self, sentence: str) -> None:
        if time.monotonic() - self._said > _SAY_EVERY_SECONDS:
            self._said = time.monotonic()
            log.error("%s", sentence)
