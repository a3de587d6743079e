"""The protocol of a named lease: how it is bid for, renewed, released, and when it is trusted no more.

    bidding ──the row is free──> held ──every third of the trusted time──> renewed
       │                          │ │
       │                          │ ├── the row names another term or holder ───────────> lost, for certain
       │                          │ ├── no answer, an error, a locked row: unknown ─────> tried again, trust not extended
       │                          │ └── trust ends ────────────────────────────────────> lost, in doubt
       └── the row is held ──> refused: who, in which term, since when, until when

Trust ends at *the clock before the request was sent + ttl - margin*, on a clock of this machine that runs on while it is
suspended. The row lasts from when the server read *its* clock, which was later, so trust always ends before the row does,
by the margin at least; the clocks of two machines are never compared.

A reply that never came settles nothing. The next question is asked with the same holder, so that a row that was taken by
the lost one is found to be ours.

Everything here runs on whatever the caller gives it to run statements with, and reads whatever clock it is given.
"""

from __future__ import annotations

import datetime as dt
import shlex
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Literal

from leasequeue.db.leases import LeaseStatements
from leasequeue.errors import ConfigurationError
from leasequeue.moment import moment, say

Run = Callable[[str, Mapping[str, object]], list[tuple[Any, ...]]]
Clock = Callable[[], float]

TTL_MIN_SECONDS = 2.0
TTL_MAX_SECONDS = 86_400.0
MARGIN_MIN_SECONDS = 1.0
SLOTS_MAX = 10_000

HELD = "held"
BUSY = "busy in a fenced transaction"
INELIGIBLE = "ineligible"

_SHOWN = 5
_ROUNDS = 3
_PAUSE_SECONDS = 0.01
"""How often a row that looks free is tried, and how far apart: another taker may have it locked for a moment."""


def boottime() -> float:
    """Seconds on a clock of this machine that never steps and runs on while it is suspended, where there is one."""
    return time.clock_gettime(_BOOTTIME) if _BOOTTIME is not None else time.monotonic()


_BOOTTIME: int | None = getattr(time, "CLOCK_BOOTTIME", None)


def margin_seconds(ttl_seconds: float) -> float:
    """How long before the row's end trust ends."""
    return max(MARGIN_MIN_SECONDS, ttl_seconds / 5)


@dataclass(frozen=True, slots=True)
class Occupant:
    """Who holds a slot, as the row said. Times are the database's."""

    slot: int
    owner: str
    term: int
    since: dt.datetime | None
    until: dt.datetime | None

    def __str__(self) -> str:
        if not self.owner:
            return f"nobody: it was taken away in term {self.term}, and is free at {say(self.until, precise=True)}"
        return f"{self.owner} in term {self.term}, since {say(self.since, precise=True)}, until {say(self.until, precise=True)}"


@dataclass(frozen=True, slots=True)
class Refused:
    """A definite no. It is falsy, so that ``if lease := lq.try_lease(...)`` cannot take it for a lease.

    Attributes:
        name: the lease.
        reason: ``held``, ``busy in a fenced transaction`` (it is free or expired, and its row is locked by a transaction
            that has fenced with it), or ``ineligible``.
        occupants: who holds it, a row for each slot that is taken.
    """

    name: str
    reason: str
    occupants: tuple[Occupant, ...] = ()
    slots: int = 1

    def __bool__(self) -> Literal[False]:
        return False

    def __str__(self) -> str:
        if self.reason == INELIGIBLE:
            return f"the lease {self.name!r} is not asked for: this candidate is not eligible"
        what = f"the lease {self.name!r}" if self.slots == 1 else f"each of the {self.slots} slots of {self.name!r}"
        if self.reason == BUSY:
            last = f" (last held by {self.occupants[0]})" if self.occupants else ""
            return (
                f"{what} is free, and its row is locked by another transaction: busy in a fenced transaction, or being "
                f"taken{last}"
            )
        shown = "; ".join(map(str, self.occupants[:_SHOWN]))
        more = f"; and {len(self.occupants) - _SHOWN} others" if len(self.occupants) > _SHOWN else ""
        return f"{what} is held by {shown}{more}"


class Renewal(Enum):
    """What became of a renewal that was answered."""

    DONE = "renewed"
    LOCKED = "still held, and its row is locked: to be tried again"
    LOST = "lost"


@dataclass(slots=True)
class Hold:
    """A row that was taken in one term. Used by one thread at a time, but for ``trusted_until``, which any may read."""

    name: str
    slot: int
    term: int
    holder: uuid.UUID
    owner: str
    ttl_seconds: float
    margin_seconds: float
    trusted_until: float
    found: str = field(default="")
    """What the row said when it was found to be lost."""

    @property
    def _key(self) -> dict[str, object]:
        return {"name": self.name, "slot": self.slot, "term": self.term, "holder": self.holder}

    def renew(self, run: Run, sql: LeaseStatements, clock: Clock) -> Renewal:
        """Renew; trust is extended only by an answer, and from before the question."""
        sent = clock()
        if run(sql.renew, self._key | {"ttl": self.ttl_seconds}):
            self.trusted_until = sent + self.ttl_seconds - self.margin_seconds
            return Renewal.DONE
        return Renewal.LOCKED if self.is_ours(run, sql) else Renewal.LOST

    def release(self, run: Run, sql: LeaseStatements, channel: str, reason: str | None = None) -> bool:
        """Give it back and announce that; False when the row was locked, or is not ours any more: see :meth:`is_ours`."""
        return bool(run(sql.release, self._key | {"channel": channel, "reason": reason}))

    def is_ours(self, run: Run, sql: LeaseStatements) -> bool:
        """Whether the row still is ours, by a plain read, which sees it also while it is locked. ``found`` says why not."""
        row = next((row for row in _rows(run, sql, self.name) if row.slot == self.slot), None)
        if row is None:
            self.found = "its row is gone"
        elif row.holder == self.holder and row.term == self.term:
            if not row.free:
                return True
            self.found = f"it expired at {say(row.until, precise=True)}, by the database's clock"
        elif row.holder is None:
            self.found = "it was released by an operator"
        else:
            self.found = f"held by {row.occupant}"
        return False

    def note_lost(self, run: Run, sql: LeaseStatements, reason: str) -> None:
        """Write the loss down. Not fenced: it is an event, and says whose."""
        run(sql.note_lost, self._key | {"owner": self.owner, "reason": reason})


class Bid:
    """One wish to hold a lease. It keeps its holder until it is answered, over replies that were lost.

    Args:
        slots: how many may hold it at once; the row's own number must be the same.
        owner: the readable name that others are shown.
    """

    def __init__(
        self,
        sql: LeaseStatements,
        name: str,
        *,
        slots: int,
        owner: str,
        ttl_seconds: float,
        clock: Clock = boottime,
        margin: Callable[[float], float] = margin_seconds,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        self.name = name
        self.slots = slots
        self._sleep = sleep
        self.owner = owner
        self.holder = uuid.uuid4()
        self._sql = sql
        self._ttl_seconds = ttl_seconds
        self._margin_seconds = margin(ttl_seconds)
        self._clock = clock
        self._first_sent: float | None = None

    def ask(self, run: Run) -> Hold | Refused:
        """Ask once. Reads first: a refusal writes nothing.

        Raises:
            ConfigurationError: the lease has another number of slots.
            whatever ``run`` raises: the outcome is then unknown, and the next ``ask`` settles it.
        """
        params = {"name": self.name, "slots": self.slots, "holder": self.holder, "owner": self.owner}
        mine: list[_Row] = []
        for _ in range(_ROUNDS):
            rows = _rows(run, self._sql, self.name)
            for row in rows:
                if row.slots != self.slots:
                    raise ConfigurationError(
                        f"the lease {self.name!r} has {row.slots} slot{'s' if row.slots != 1 else ''} and {self.slots} "
                        f"were asked for: use the same number everywhere, or change it with "
                        f"`leasequeue leases resize {shlex.quote(self.name)} {self.slots}`"
                    )
                if row.holder == self.holder and self._first_sent is not None:
                    # A question whose answer was lost was answered after all. Trusted from the first such question on,
                    # and renewed at once, as that may be long ago.
                    hold = self._hold(row.slot, row.term, self._first_sent)
                    if hold.renew(run, self._sql, self._clock) is Renewal.DONE or self._clock() < hold.trusted_until:
                        return hold
            mine = [row for row in rows if row.slot < self.slots]
            if len(mine) == self.slots and not any(row.free for row in mine):
                return Refused(self.name, HELD, tuple(row.occupant for row in mine), self.slots)
            for statement, wanted in (
                (self._sql.take, any(row.free for row in mine)),
                (self._sql.create, len(mine) < self.slots),
            ):
                taken = self._try(run, statement, params) if wanted else None
                if taken is not None:
                    return taken
            self._sleep(_PAUSE_SECONDS)
        return Refused(self.name, BUSY, tuple(row.occupant for row in mine if row.term), self.slots)

    def _try(self, run: Run, statement: str, params: dict[str, object]) -> Hold | None:
        sent = self._clock()
        unknown, self._first_sent = self._first_sent, self._first_sent or sent
        taken = run(statement, params | {"ttl": self._ttl_seconds})
        if not taken:
            self._first_sent = unknown  # a definite no: only a question without an answer may turn out to be ours
            return None
        ((slot, term),) = taken
        hold = self._hold(slot, term, sent)
        if self._clock() < hold.trusted_until or hold.renew(run, self._sql, self._clock) is Renewal.DONE:
            return hold
        return None  # its answer took so long that it cannot be trusted; the next round may find it ours

    def _hold(self, slot: int, term: int, sent: float) -> Hold:
        until = sent + self._ttl_seconds - self._margin_seconds
        return Hold(self.name, slot, term, self.holder, self.owner, self._ttl_seconds, self._margin_seconds, until)

    def note_refused(self, run: Run, refused: Refused, count: int) -> None:
        """Write ``count`` refusals down: one row per owner, reason and minute, however many of us there are."""
        first = refused.occupants[0] if refused.occupants else None
        run(
            self._sql.note_refused,
            {
                "name": self.name,
                "owner": self.owner,
                "reason": refused.reason,
                "holder": None,
                "term": first.term if first else None,
                "count": count,
            },
        )


@dataclass(frozen=True, slots=True)
class _Row:
    slot: int
    slots: int
    holder: uuid.UUID | None
    term: int
    owner: str | None
    since: dt.datetime | None
    until: dt.datetime | None
    free: bool

    @property
    def occupant(self) -> Occupant:
        return Occupant(self.slot, self.owner or "", self.term, self.since, self.until)


def _rows(run: Run, sql: LeaseStatements, name: str) -> list[_Row]:
    return [
        _Row(slot, slots, _uuid(holder), term, owner, moment(since), moment(until), free)
        for slot, slots, holder, term, owner, since, until, free, _ in run(sql.read, {"name": name})
    ]


def _uuid(value: object) -> uuid.UUID | None:
    return value if value is None or isinstance(value, uuid.UUID) else uuid.UUID(str(value))
