"""Questions about leases, and what an operator does to one. Plain data comes out, no words."""

from __future__ import annotations

import datetime as dt
import time
from dataclasses import dataclass

from leasequeue.errors import ConfigurationError, LeaseNotTaken
from leasequeue.ops.asking import Desk, moment

CONTENDERS_SECONDS = 600.0
LIMIT = 1000
EVENTS_SHOWN = 20
LOCKED_SECONDS = 2.0
_PAUSE_SECONDS = 0.05
_ROUNDS = 10


@dataclass(frozen=True, slots=True)
class LeaseRow:
    """A slot of a lease.

    Attributes:
        held: by the database's clock.
        holder: None: nobody has it. Where an operator took it away, nobody can have it for ``left_seconds`` yet.
        left_seconds: negative where it expired; None where it is free.
    """

    name: str
    slot: int
    slots: int
    held: bool
    owner: str | None
    holder: str | None
    term: int
    acquired_at: dt.datetime | None
    renewed_at: dt.datetime | None
    expires_at: dt.datetime | None
    age_seconds: float | None
    left_seconds: float | None


@dataclass(frozen=True, slots=True)
class Contender:
    """Somebody who asked within the last minutes and was told no.

    Attributes:
        refusals: how often, within that time.
        term: of the holder that stood in the way of the last one.
    """

    name: str
    owner: str
    reason: str
    term: int | None
    at: dt.datetime | None
    refusals: int


@dataclass(frozen=True, slots=True)
class LeaseEvent:
    """What happened to a lease."""

    event: str
    slot: int
    term: int | None
    owner: str | None
    at: dt.datetime | None
    count: int
    reason: str | None


@dataclass(frozen=True, slots=True)
class LeaseDetail:
    """Everything that is known of one lease; ``events`` newest first."""

    name: str
    slots: tuple[LeaseRow, ...]
    contenders: tuple[Contender, ...]
    events: tuple[LeaseEvent, ...]


@dataclass(frozen=True, slots=True)
class Released:
    """A slot that an operator took from its holder; nobody can have it before ``free_at``."""

    name: str
    slot: int
    term: int
    owner: str | None
    free_at: dt.datetime | None
    left_seconds: float


def list_leases(desk: Desk, name: str | None = None) -> tuple[LeaseRow, ...]:
    """All slots, by name; at most ``LIMIT``."""
    found = []
    for row in desk.ask("leases", {"name": name, "limit": LIMIT}):
        name_, slot, slots, holder, term, owner, acquired, renewed, expires, held, now = row
        age = now - acquired if held and acquired is not None else None
        left = None if expires is None or (holder is None and expires <= now) else expires - now
        found.append(
            LeaseRow(
                name_,
                slot,
                slots,
                held,
                owner,
                holder,
                term,
                moment(acquired),
                moment(renewed),
                moment(expires),
                age,
                left,
            )
        )
    return tuple(found)


def contenders(desk: Desk, name: str | None = None) -> tuple[Contender, ...]:
    """Who was refused within the last ten minutes, each with the last refusal."""
    rows = desk.ask("contenders", {"name": name, "seconds": CONTENDERS_SECONDS, "limit": LIMIT})
    return tuple(Contender(row[0], row[1], row[2], row[3], moment(row[4]), row[5]) for row in rows)


def show_lease(desk: Desk, name: str) -> LeaseDetail:
    """One lease, with who asks for it and what happened to it.

    Raises:
        ConfigurationError: there is none, and nothing is known of one.
    """
    slots = list_leases(desk, name)
    rows = desk.ask("lease_events", {"name": name, "limit": EVENTS_SHOWN})
    events = tuple(LeaseEvent(row[0], row[1], row[2], row[3], moment(row[4]), row[5], row[6]) for row in rows)
    if not slots and not events:
        raise ConfigurationError(f"there is no lease {name!r}; `leasequeue leases list` lists them")
    return LeaseDetail(name, slots, contenders(desk, name), events)


def force_release(desk: Desk, name: str, *, slot: int | None, by: str) -> tuple[Released, ...]:
    """Take a lease from its holder. The holder learns it with its next renewal; nobody else has it before its time is over,
    so that there are never two.

    Args:
        slot: None: all slots.
        by: who does it; written into the history.

    Raises:
        LeaseNotTaken: nobody holds it, or the row of one that holds it stays locked.
    """
    taken: list[Released] = []
    deadline = time.monotonic() + LOCKED_SECONDS
    while True:
        rows = desk.ask("force", {"name": name, "slot": slot, "reason": f"taken away by {by}"})
        taken += [Released(name, row[0], row[1], row[2], moment(row[3]), row[4]) for row in rows]
        left = [row for row in list_leases(desk, name) if row.held and slot in (None, row.slot)]
        if not left:
            break
        if time.monotonic() > deadline:
            which = ", ".join(f"slot {row.slot + 1} of {row.owner}" for row in left)
            raise LeaseNotTaken(
                name, f"{which} stays: its row is locked by another transaction (see pg_stat_activity)", len(taken)
            )
        time.sleep(_PAUSE_SECONDS)  # it was locked a moment ago: being renewed, most likely
    if not taken:
        raise LeaseNotTaken(name, "nobody holds it", 0)
    return tuple(taken)


def resize(desk: Desk, name: str, slots: int) -> int:
    """Give a semaphore another number of slots. Who holds one beyond that keeps it until it is released.

    Returns:
        The number before.

    Raises:
        ConfigurationError: there is no such lease; the first who asks for it decides.
        LeaseNotTaken: others change it all the time.
    """
    before = list_leases(desk, name)
    if not before:
        raise ConfigurationError(
            f"there is no lease {name!r} yet: the first who asks for it decides how many slots it has"
        )
    # Again while a slot that was being created meanwhile still says the old number.
    for _ in range(_ROUNDS):
        if all(row.slots == slots for row in list_leases(desk, name)):
            return before[0].slots
        desk.ask("resize", {"name": name, "slots": slots})
    raise LeaseNotTaken(name, "somebody else changes its slots at the same time: see `leasequeue leases`", 0)
