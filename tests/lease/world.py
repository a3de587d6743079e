"""A small world for the lease protocol: real connections, real rows and locks, and a clock that the test moves.

The database's clock is a sequence (milliseconds; not transactional, so a statement that waits sees it move), the one by
which trust is judged the same number. So a run needs no waiting, and "the ttl went by while the statement waited" is one
call. The broken variants change one thing each; the same rules must catch every one of them.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, cast

import psycopg

from leasequeue.db.fence import statements
from leasequeue.db.leases import LeaseStatements, lease_statements
from leasequeue.errors import OutcomeUnknown
from leasequeue.lease.hold import Bid, Hold, Refused, Renewal, Run

NAME = "leader"
TTL = 10.0
MARGIN = 2.0
CLOCK = "lease_clock()"

SETUP = """
CREATE SEQUENCE lease_ms START 1700000000000;
CREATE FUNCTION lease_clock() RETURNS timestamptz LANGUAGE sql VOLATILE
    AS 'SELECT to_timestamp(last_value / 1000.0) FROM lease_ms';
CREATE TABLE written (id bigint GENERATED ALWAYS AS IDENTITY, term bigint, actor int);
"""


@dataclass
class Variant:
    """How leases are held here. The one of the package is ``RIGHT``; each other has one fault."""

    name: str
    caught: str = ""
    """What the rules must say of it."""
    statements: Callable[[LeaseStatements], LeaseStatements] = lambda sql: sql
    fence: Callable[[str], str] = lambda text: text
    clock: str = CLOCK
    holder: Callable[[int], uuid.UUID] | None = None
    trust_from_reply: bool = False
    truthy: bool = False


@dataclass
class Actor:
    """One candidate, with a connection for the protocol and one for its work."""

    number: int
    control: psycopg.Connection[Any]
    work: psycopg.Connection[Any]
    bid: Bid | None = None
    hold: Hold | None = None
    fenced_in: int | None = None
    """The term that its open transaction has fenced with."""
    believes: bool = field(default=False)
    """It took a refusal for a lease."""


class World:
    """The state of one run."""

    def __init__(self, url: str, variant: Variant, slots: int = 1, actors: int = 3) -> None:
        self.variant = variant
        self.slots = slots
        self.sql = variant.statements(lease_statements("public", variant.clock))
        self.fence_text = variant.fence(statements("public", variant.clock)["fence"])
        self.ms = 1_700_000_000_000
        # Nothing of the right one waits; a broken one that does must not wait for this very thread.
        bound = "-c lock_timeout=300ms"
        self._connections = [psycopg.connect(url, prepare_threshold=None, options=bound) for _ in range(2 * actors + 2)]
        for conn in self._connections[::2]:
            conn.autocommit = True
        self.actors = [Actor(n, self._connections[2 * n], self._connections[2 * n + 1]) for n in range(actors)]
        self.boss, self.stranger = self._connections[-2:]
        self.locked = False
        self.terms: list[int] = []
        self.runs = 0

    def begin(self) -> None:
        """A new run: nothing is left of the last one."""
        self.runs += 1
        for conn in self._connections:
            conn.rollback()
        for actor in self.actors:
            actor.bid = actor.hold = actor.fenced_in = None
            actor.believes = False
        self.locked = False
        self.terms = []
        for table in ("leasequeue_lease", "leasequeue_lease_event", "written"):
            self.boss.execute(f"DELETE FROM {table}".encode())
        self._set_clock()

    def close(self) -> None:
        for conn in self._connections:
            conn.close()

    # The clock

    def _set_clock(self) -> None:
        self.boss.execute("SELECT setval('lease_ms', %s)", (self.ms,))

    def advance(self, seconds: float) -> None:
        self.ms += round(seconds * 1000)
        self._set_clock()

    def now(self) -> float:
        return self.ms / 1000

    # Statements

    def run(self, actor: Actor, *, lose: str = "", lasts: float = 0.0) -> Run:
        """How the actor's statements are run.

        Args:
            lose: ``reply``: it is carried out, and its answer never comes; ``request``: it is not.
            lasts: the time that passes before the answer comes.
        """

        def run(sql: str, params: Mapping[str, object]) -> list[tuple[Any, ...]]:
            writes = not sql.startswith("SELECT")
            if lose == "request" and writes:
                raise OutcomeUnknown("the request was lost")
            words = {"now": self.boss_clock(), **params} if "%(now)s" in sql else dict(params)
            try:
                cursor = actor.control.execute(cast(Any, sql), words)
            except psycopg.errors.LockNotAvailable as error:
                raise OutcomeUnknown("it waited for a lock") from error
            rows = cursor.fetchall() if cursor.description else []
            if lasts and writes:
                self.advance(lasts)
            if lose == "reply" and writes:
                raise OutcomeUnknown("the reply was lost")
            return rows

        return run

    def boss_clock(self) -> object:
        row = self.boss.execute("SELECT lease_clock()").fetchone()
        assert row is not None
        return row[0]

    # What an actor does

    def ask(self, actor: Actor, **how: Any) -> Hold | Refused | None:
        """Bid for the lease; None: the outcome is unknown."""
        again = actor.bid is not None
        if actor.bid is None:
            actor.bid = Bid(
                self.sql, NAME, slots=self.slots, owner=f"actor {actor.number}", ttl_seconds=TTL, clock=self.now,
                margin=lambda _: MARGIN, sleep=lambda _: None,
            )  # fmt: skip
            if self.variant.holder is not None:
                actor.bid.holder = self.variant.holder(actor.number)
        try:
            answer = actor.bid.ask(self.run(actor, **how))
        except OutcomeUnknown:
            return None
        if isinstance(answer, Refused):
            # What a caller writes: `if lease := ...`.
            actor.believes = bool(answer) or self.variant.truthy
            return answer
        actor.bid = None
        actor.hold = answer
        if self.variant.trust_from_reply:
            answer.trusted_until = self.now() + TTL - MARGIN
        self.terms.append(answer.term)
        left = self.left(answer) + how.get("lasts", 0.0)
        # One that an earlier question took, whose reply was lost, may be as old as that.
        assert again or left > 0, f"a lease was given that had {left:.3f} s left"
        return answer

    def left(self, hold: Hold) -> float:
        """What the row says that is left of a lease; minus infinity where it is not held any more."""
        row = self.boss.execute(
            "SELECT extract(epoch FROM expires_at - lease_clock())::float8 FROM leasequeue_lease "
            "WHERE name = %s AND slot = %s AND term = %s AND holder = %s",
            (NAME, hold.slot, hold.term, hold.holder),
        ).fetchone()
        return row[0] if row is not None and row[0] is not None else float("-inf")

    def renew(self, actor: Actor, **how: Any) -> Renewal | None:
        hold = actor.hold
        assert hold is not None
        before = self.left(hold)
        trusted = hold.trusted_until
        try:
            answer = hold.renew(self.run(actor, **how), self.sql, self.now)
        except OutcomeUnknown:
            assert hold.trusted_until == trusted, "an unknown outcome extended trust"
            return None
        if answer is Renewal.DONE and self.variant.trust_from_reply:
            hold.trusted_until = self.now() + TTL - MARGIN
        if before > 0 and not self.locked:
            assert answer is Renewal.DONE, f"a lease with {before:.3f} s left was not renewed: {answer}, {hold.found}"
        if answer is Renewal.LOST:
            actor.hold = None
        return answer

    def release(self, actor: Actor, **how: Any) -> None:
        hold, actor.hold = actor.hold, None
        assert hold is not None
        try:
            hold.release(self.run(actor, **how), self.sql, "channel")
        except OutcomeUnknown:
            return

    def trusts(self, actor: Actor) -> bool:
        return actor.believes or (actor.hold is not None and self.now() < actor.hold.trusted_until)

    # Its work

    def fence(self, actor: Actor, hold: Hold | None = None) -> bool:
        """Open a transaction, fence and write in it; False where it was refused."""
        hold = hold or actor.hold
        assert hold is not None
        words: dict[str, Any] = {"name": NAME, "slot": hold.slot, "term": hold.term, "holder": str(hold.holder)}
        if "%(now)s" in self.fence_text:
            words["now"] = self.boss_clock()
        try:
            actor.work.execute(cast(Any, self.fence_text), words)
        except (psycopg.errors.DivisionByZero, psycopg.errors.LockNotAvailable):
            actor.work.rollback()
            return False
        actor.work.execute("INSERT INTO written (term, actor) VALUES (%s, %s)", (hold.term, actor.number))
        actor.fenced_in = hold.term
        return True

    def end_work(self, actor: Actor, *, commit: bool) -> None:
        term, actor.fenced_in = actor.fenced_in, None
        assert term is not None
        if not commit:
            actor.work.rollback()
            return
        later = max(self.terms, default=0)
        actor.work.commit()
        assert self.slots > 1 or term >= later, f"a write of term {term} was committed after term {later} had begun"

    # Others

    def lock(self) -> None:
        """A stranger locks the row, as a backup tool or a curious operator may."""
        rows = self.stranger.execute(
            "SELECT FROM leasequeue_lease WHERE name = %s FOR UPDATE SKIP LOCKED", (NAME,)
        ).rowcount
        self.locked = rows > 0
        if not self.locked:
            self.stranger.rollback()

    def unlock(self) -> None:
        self.stranger.rollback()
        self.locked = False

    def behind_a_lock(self, act: Callable[[], Any], seconds: float) -> Any:
        """Do it while a stranger has the row locked, and let time pass if it waits for that; then the stranger rolls back."""
        self.lock()
        answers: list[Any] = []

        def doing() -> None:
            try:
                answers.append(act())
            except BaseException as error:  # noqa: BLE001  # handed over
                answers.append(error)

        thread = threading.Thread(target=doing)
        thread.start()
        # By what the server says, not by how long it takes: a busy machine is slow without any lock.
        while thread.is_alive():
            if self._waits():
                self.advance(seconds)
                break
            thread.join(0.002)
        self.unlock()
        thread.join(30)
        (answer,) = answers
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def _waits(self) -> bool:
        row = self.boss.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND pid = ANY(%s)",
            ([conn.info.backend_pid for conn in self._connections],),
        ).fetchone()
        return row is not None and row[0] > 0

    def force(self) -> None:
        words = {"name": NAME, "slot": None, "reason": "by an operator", "now": self.boss_clock()}
        self.boss.execute(cast(Any, self.sql.force), words)

    def prune(self) -> None:
        """As the purge does: what nobody holds, and nobody has locked."""
        self.boss.execute(
            "DELETE FROM leasequeue_lease WHERE ctid = ANY(ARRAY(SELECT ctid FROM leasequeue_lease "
            "WHERE holder IS NULL AND expires_at IS NULL FOR UPDATE SKIP LOCKED))"
        )
        # What is pruned was long free. Without that, the next term, which is the clock, could be the same.
        self.advance(0.001)

    def check(self) -> None:
        """What must be true at every moment."""
        trusting = [actor.number for actor in self.actors if self.trusts(actor)]
        assert len(trusting) <= self.slots, f"the actors {trusting} trust their leases at the same time"
        # Each was answered once: a reply that was lost told nobody, and an answer ends the bid.
        assert self.slots > 1 or all(one < other for one, other in pairwise(self.terms)), "a term did not grow"
        row = self.boss.execute("SELECT count(*) FROM leasequeue_lease WHERE expires_at > lease_clock()").fetchone()
        assert row is not None
        assert row[0] <= self.slots


def _without_lock(text: str) -> str:
    return text.replace("FOR KEY SHARE", "")


def _share(text: str) -> str:
    return text.replace("FOR KEY SHARE", "FOR SHARE")


def _waits(sql: LeaseStatements) -> LeaseStatements:
    return sql._replace(take=sql.take.replace(" SKIP LOCKED", ""), renew=sql.renew.replace(" SKIP LOCKED", ""))


def _by_name(sql: LeaseStatements) -> LeaseStatements:
    held = "name = %(name)s AND slot = %(slot)s AND term = %(term)s AND holder = %(holder)s"
    assert held in sql.renew
    return sql._replace(renew=sql.renew.replace(held, "name = %(name)s AND slot = %(slot)s"))


def _deletes(sql: LeaseStatements) -> LeaseStatements:
    start = sql.create.index("(extract(epoch")
    end = sql.create.index("::bigint", start) + len("::bigint")
    take = sql.take[sql.take.index("greatest(") :]
    take = take[: take.index("::bigint)") + len("::bigint)")]
    release = (
        "WITH d AS (DELETE FROM public.leasequeue_lease WHERE name = %(name)s AND slot = %(slot)s AND term = %(term)s "
        "AND holder = %(holder)s RETURNING 1) SELECT pg_notify(%(channel)s, %(reason)s) FROM d"
    )
    return sql._replace(
        create=sql.create[:start] + "1" + sql.create[end:],
        take=sql.take.replace(take, "k.term + 1"),
        release=release,
    )


TOGETHER = "trust their leases at the same time"
DEAD = "a lease was given that had"
STALE = "was committed after term"
RIGHT = Variant("right")
_HOST = uuid.uuid5(uuid.NAMESPACE_DNS, "this-host")
BROKEN = (
    Variant("renewal by name only", TOGETHER, statements=_by_name),
    Variant(
        "identity is the host's name", f"{TOGETHER}|{DEAD}|not renewed|a term did not grow", holder=lambda _: _HOST
    ),
    Variant(
        "now() in place of the clock after the lock",
        f"{DEAD}|passed after a wait|a fence with",
        statements=_waits,
        clock="%(now)s::timestamptz",
    ),
    Variant("row deleted on release, terms start again", f"a term did not grow|{STALE}", statements=_deletes),
    Variant("trust counted from the reply", TOGETHER, trust_from_reply=True),
    Variant("fence without the row's lock", STALE, fence=_without_lock),
    Variant("fence FOR SHARE", "was not renewed", fence=_share),
    Variant("a refusal that is truthy", TOGETHER, truthy=True),
)
