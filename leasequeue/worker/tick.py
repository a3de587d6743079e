"""The ticker: writes the schedules of the code once, then fires every schedule in time, whoever's it is.

One in each supervisor, on a connection of its own: it needs no application code, and no handler can keep it from the
interpreter. All of them look at all schedules; whoever is first settles a due time, the others find it settled.

It never fires early: the database's clock is taken to be no further than it was when its answer came, plus what went by
here since. And the statement asks that clock once more.
"""

from __future__ import annotations

import datetime as dt
import json
import logging
import os
import random
import socket
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from leasequeue.cron import Spec
from leasequeue.db.schedules import Definition, fire_params, schedule_statements
from leasequeue.db.statement import Params, Program, Rows, Statement, Target, drive
from leasequeue.errors import ConfigurationError, DatabaseUnavailable
from leasequeue.loop import Loop, Outage
from leasequeue.ops.release import Release
from leasequeue.ops.schedules import sync
from leasequeue.tick import Policy, settle

if TYPE_CHECKING:
    from leasequeue.db.connect import Link

log = logging.getLogger("leasequeue.ticker")

POLL_SECONDS = 1.0
AHEAD_SECONDS = 3.0
WRITE_AGAIN_SECONDS = 5.0
OVERDUE_SECONDS = 5.0
AGAIN_MAX_SECONDS = 2.0
SAY_EVERY_SECONDS = 60.0


@dataclass(slots=True)
class Upcoming:
    """A schedule that is due soon, as it was read."""

    name: str
    spec: Spec
    policy: Policy
    version: int
    next_at: dt.datetime
    paused: bool
    task: str
    decorated: bool
    served: bool


class Ticker(Loop):
    """One thread that fires schedules.

    Args:
        definitions: the schedules of the code, to be written first.
    """

    def __init__(
        self, link: Link, outage: Outage, schema: str, definitions: list[Definition], release: Release
    ) -> None:
        super().__init__("ticker", link, outage)
        self._sql = schedule_statements(schema)
        self._schema = schema
        self._unwritten = [(0.0, definition) for definition in definitions]
        self._release = release
        self._by = f"{socket.gethostname()}:{os.getpid()}"
        self._upcoming: dict[str, Upcoming] = {}
        self._poll_due = 0.0
        self._clock = (dt.datetime.fromtimestamp(0, dt.UTC), 0.0)
        self._overdue: dict[str, tuple[dt.datetime, float]] = {}
        self._said: dict[str, float] = {}
        self._misses: dict[str, tuple[dt.datetime, float, float]] = {}
        self.answered = time.monotonic()
        """When the database last told what is due; for the health of the supervisor."""

    def turn(self) -> None:
        if time.monotonic() >= self._poll_due:
            self._poll()
        # Not in one order: where many supervisors fire many schedules of one minute, they meet at fewer of them.
        due = [each for each in self._upcoming.values() if each.next_at <= self._now() and not self._rests(each)]
        random.shuffle(due)
        for each in due:
            self._survived(each.name, lambda each=each: self._fire(each))  # type: ignore[misc]
        self._write_one()
        waits = [self._seconds_until(each.next_at) for each in self._upcoming.values() if not self._rests(each)]
        waits += [self._poll_due - time.monotonic(), *(at - time.monotonic() for at, _ in self._unwritten)]
        self.pause(max(0.0, min(waits)))

    def _survived(self, name: str, step: Callable[[], None]) -> bool:
        """Whether it went well. Whatever is wrong with one schedule must keep no other from being fired."""
        try:
            step()
        except DatabaseUnavailable:
            raise
        except Exception as error:  # noqa: BLE001  # said, and tried again
            self._upcoming.pop(name, None)
            self._say(name, f"schedule {name!r} could not be dealt with, trying again: {type(error).__name__}: {error}")
            return False
        return True

    @property
    def unwritten(self) -> int:
        """How many schedules of the code are not written yet."""
        return len(self._unwritten)

    # The database's clock

    def _now(self) -> dt.datetime:
        at, when = self._clock
        return at + dt.timedelta(seconds=time.monotonic() - when)

    def _seconds_until(self, at: dt.datetime) -> float:
        return (at - self._now()).total_seconds()

    # Writing

    def _write_one(self) -> None:
        """One that is due in each turn, so that firing goes on between them."""
        now = time.monotonic()
        place = next((place for place, (at, _) in enumerate(self._unwritten) if at <= now), None)
        if place is None:
            return
        _, definition = self._unwritten.pop(place)
        try:
            if self._survived(definition.name, lambda: self._write(definition)):
                return
        except DatabaseUnavailable:
            self._unwritten.append((now + WRITE_AGAIN_SECONDS, definition))
            raise
        self._unwritten.append((now + WRITE_AGAIN_SECONDS, definition))

    def _write(self, definition: Definition) -> None:
        try:
            done = self._drive(sync(self._target, self._schema, definition, self._release, self._by))
        except ConfigurationError as error:
            log.error("schedule %r is not written: %s", definition.name, error)
            return
        if done.change == "kept":
            log.warning("%s", done.message)
        elif done.change != "unchanged":
            log.info("%s", done.message)
            self._poll_due = 0.0

    @property
    def _target(self) -> Target:
        return Target("ours")

    def _drive(self, program: Program[Any]) -> Any:
        def execute(statement: Statement, params: Params) -> Rows:
            return self.link.run(statement.text, params)

        return drive(program, execute)

    # Reading

    def _poll(self) -> None:
        rows = self.link.run(self._sql.upcoming.text, {"within": AHEAD_SECONDS})
        came = self.answered = time.monotonic()
        self._poll_due = came + POLL_SECONDS * random.uniform(0.8, 1.0)  # noqa: S311
        if rows:
            self._clock = (rows[0][11].astimezone(dt.UTC), came)
        found: dict[str, Upcoming] = {}
        for row in rows:

            def read(row: tuple[Any, ...] = row) -> None:
                each = self._read(row)
                if each is not None:
                    found[each.name] = each

            self._survived(str(row[0]), read)
        self._upcoming = found
        self._misses = {name: miss for name, miss in self._misses.items() if name in found}
        self._look_for_overdue()

    def _read(self, row: tuple[Any, ...]) -> Upcoming | None:
        name, text, version, next_at, paused, task, catch_up, within, jitter, decorated, served, _ = row
        try:
            spec = Spec.from_json(json.loads(text))
        except (ConfigurationError, ValueError, RecursionError) as error:
            self._say(name, f"schedule {name!r} cannot be read, and is not due for that long: {error}")
            return None
        if next_at is None:
            next_at = spec.after(self._now())
            self.link.run(self._sql.begin.text, {"name": name, "version": version, "next_at": next_at})
            if next_at is None:
                return None  # it has ended
        return Upcoming(
            name,
            spec,
            Policy(catch_up, within, jitter),
            version,
            next_at.astimezone(dt.UTC),
            paused,
            task,
            decorated,
            served,
        )

    def _look_for_overdue(self) -> None:
        """What is due and is not fired, poll after poll, has a reason that somebody should hear."""
        now = time.monotonic()
        overdue = {each.name: each for each in self._upcoming.values() if each.next_at <= self._now()}
        self._overdue = {
            name: known if known is not None and known[0] == each.next_at else (each.next_at, now)
            for name, each in overdue.items()
            for known in (self._overdue.get(name),)
        }
        for name, (_, since) in self._overdue.items():
            each = overdue[name]
            if now - since < OVERDUE_SECONDS:
                continue
            if each.served or each.paused:
                why = "most likely its row is locked by another transaction (see pg_stat_activity)"
            elif each.decorated:
                why = (
                    "no live worker registers it: its code is gone, or its worker is; remove it, or bring the code back"
                )
            else:
                why = f"no live worker knows its task {each.task!r}"
            self._say(name, f"schedule {name!r} is due since {each.next_at:%Y-%m-%d %H:%M:%SZ} and is not fired: {why}")

    def _say(self, name: str, sentence: str) -> None:
        now = time.monotonic()
        if now - self._said.get(name, float("-inf")) >= SAY_EVERY_SECONDS:
            self._said[name] = now
            log.warning("%s", sentence)

    # Firing

    def _fire(self, each: Upcoming) -> None:
        """Settle what is due of one schedule; of a long backlog a piece, so that the others have their turn."""
        if not (each.served or each.paused):
            self._upcoming.pop(each.name, None)  # until the next poll finds somebody who knows it
            return
        settled = settle(each.name, each.spec, each.policy, each.next_at, self._now(), paused=each.paused)
        words = fire_params(
            self._schema, each.name, each.version, each.next_at, settled, paused=each.paused, by=self._by
        )
        rows = self.link.run(self._sql.fire.text, words)
        if not rows:
            # Another was first, most likely; the next poll tells what there is to do. Or its row is locked.
            self._miss(each)
            return
        self._misses.pop(each.name, None)
        self._tell(each, rows)
        if settled.next_at is None:
            self._upcoming.pop(each.name, None)
        else:
            each.next_at = settled.next_at

    def _miss(self, each: Upcoming) -> None:
        """Not at once again: hundreds of locked rows would cost as many statements in each turn."""
        self._upcoming.pop(each.name, None)
        seen, pause, _ = self._misses.get(each.name, (each.next_at, 0.1, 0.0))
        pause = min(AGAIN_MAX_SECONDS, 2 * pause) if seen == each.next_at else 0.2
        now = time.monotonic()
        self._misses[each.name] = (each.next_at, pause, now + pause)
        self._poll_due = min(self._poll_due, now + 0.2)

    def _rests(self, each: Upcoming) -> bool:
        seen, _, until = self._misses.get(each.name, (None, 0.0, 0.0))
        return seen == each.next_at and time.monotonic() < until

    def _tell(self, each: Upcoming, rows: list[tuple[Any, ...]]) -> None:
        outcomes = Counter(outcome for _, outcome, _ in rows if outcome is not None)
        if set(outcomes) <= {"fired"}:
            log.debug("schedule %r: jobs %s", each.name, [job for _, _, job in rows if job is not None])
        else:
            log.info(
                "schedule %r: %s of its due times up to %s",
                each.name, ", ".join(f"{count} {outcome}" for outcome, count in sorted(outcomes.items())),
                max(at for at, _, _ in rows if at is not None),
            )  # fmt: skip
