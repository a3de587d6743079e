"""Which release of an application writes what its code declares; a worker needs no more than this of schedules."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Release:
    """Who writes the schedules, or the limits, of the code.

    Attributes:
        name: None: not named; each definition is then a release of its own.
        deployed_at: None: the first time that it was seen.
        force: written by hand: it decides, whatever is there.
    """

    name: str | None = None
    deployed_at: dt.datetime | None = None
    force: bool = False
