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
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from leasequeue.cron import Spec
from leasequeue.db.names import channel
from leasequeue.db.program import Params, Program, Rows, Statement, Target, drive
from leasequeue.db.schedules import Definition, schedule_statements
from leasequeue.errors import ConfigurationError, LeaseQueueError
from leasequeue.loop import Loop, Outage
from leasequeue.ops.schedules import Release, sync
from leasequeue.tick import Policy, settle

if TYPE_CHECKING:
    from leasequeue.db.connect import Link

log = logging.getLogger("leasequeue.ticker")

POLL_SECONDS = 1.0
AHEAD_SECONDS = 3.0
EARLY_SECONDS = 0.002
"""After a firing that found the due time not over by the database's clock."""
OVERDUE_SECONDS = 5.0
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
        self._channel = channel(schema)
        self._unwritten = list(definitions)
        self._release = release
        self._by = f"{socket.gethostname()}:{os.getpid()}"
        self._upcoming: dict[str, Upcoming] = {}
        self._poll_due = 0.0
        self._clock = (dt.datetime.fromtimestamp(0, dt.UTC), 0.0)
        self._overdue: dict[str, tuple[dt.datetime, float]] = {}
        self._said: dict[str, float] = {}

    def turn(self) -> None:
        while self._unwritten:
            self._write(self._unwritten[0])
            self._unwritten.pop(0)
        if time.monotonic() >= self._poll_due:
            self._poll()
        # Not in one order: where many supervisors fire many schedules of one minute, they meet at fewer of them.
        due = [each for each in self._upcoming.values() if each.next_at <= self._now()]
        random.shuffle(due)
        for each in due:
            self._fire(each)
        times = [self._seconds_until(each.next_at) for each in self._upcoming.values()]
        self.pause(max(0.0, min([*times, self._poll_due - time.monotonic()])))

    # The database's clock

    def _now(self) -> dt.datetime:
        at, when = self._clock
        return at + dt.timedelta(seconds=time.monotonic() - when)

    def _seconds_until(self, at: dt.datetime) -> float:
        return (at - self._now()).total_seconds()

    # Writing

    def _write(self, definition: Definition) -> None:
        try:
            done = self._drive(sync(self._target, self._schema, definition, self._release, self._by))
        except LeaseQueueError as error:
            if isinstance(error, ConfigurationError):
                log.error("schedule %r is not written: %s", definition.name, error)
                return
            raise
        if done.change == "kept":
            log.warning("%s", done.message)
        elif done.change != "unchanged":
            log.info("%s", done.message)

    @property
    def _target(self) -> Target:
        return Target("ours", None)

    def _drive(self, program: Program[Any]) -> Any:
        def execute(statement: Statement, params: Params) -> Rows:
            return self.link.run(statement.text, params)

        return drive(program, execute)

    # Reading

    def _poll(self) -> None:
        rows = self.link.run(self._sql.upcoming.text, {"within": AHEAD_SECONDS})
        came = time.monotonic()
        self._poll_due = came + POLL_SECONDS * random.uniform(0.8, 1.0)  # noqa: S311
        if rows:
            self._clock = (rows[0][11].astimezone(dt.UTC), came)
        found: dict[str, Upcoming] = {}
        for row in rows:
            each = self._read(row)
            if each is not None:
                found[each.name] = each
        self._upcoming = found
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
            if next_at is None:
                return None  # it has ended
            self.link.run(self._sql.begin.text, {"name": name, "version": version, "next_at": next_at})
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
                why = "its row is locked by another transaction (see pg_stat_activity)"
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
        if not (each.served or each.paused):
            self._upcoming.pop(each.name, None)  # until the next poll finds somebody who knows it
            return
        more = True
        while more and not self.stopping:
            settled = settle(each.name, each.spec, each.policy, each.next_at, self._now(), paused=each.paused)
            dues = settled.dues
            rows = self.link.run(
                self._sql.fire.text,
                {
                    "name": each.name,
                    "seen": each.next_at,
                    "version": each.version,
                    "paused": each.paused,
                    "newest": dues[-1].at,
                    "due_at": [due.at for due in dues],
                    "outcome": [due.outcome for due in dues],
                    "reason": [due.reason for due in dues],
                    "tick": [due.at.isoformat(timespec="microseconds") for due in dues],
                    "runs": [due.runs for due in dues],
                    "delay": [due.delay_seconds for due in dues],
                    "channel": self._channel,
                    "by": self._by,
                    "next_at": settled.next_at,
                },
            )
            if not rows:
                # Another was first, most likely; the next poll tells what there is to do.
                self._upcoming.pop(each.name, None)
                self._poll_due = min(self._poll_due, time.monotonic() + 0.2)
                return
            self._tell(each, rows)
            more = settled.more and settled.next_at is not None
            if settled.next_at is None:
                self._upcoming.pop(each.name, None)
                return
            each.next_at = settled.next_at

    def _tell(self, each: Upcoming, rows: list[tuple[Any, ...]]) -> None:
        outcomes = Counter(outcome for _, outcome, _ in rows if outcome is not None)
        if set(outcomes) <= {"fired"}:
            log.debug("schedule %r fired: job %s", each.name, rows[0][2])
        else:
            log.info(
                "schedule %r: %s of its due times up to %s",
                each.name, ", ".join(f"{count} {outcome}" for outcome, count in sorted(outcomes.items())), each.next_at,
            )  # fmt: skip
