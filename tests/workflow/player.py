"""A worker of the hammer, as a process of its own: ``python -m tests.workflow.player`` with its orders on stdin.

It claims and ends jobs by the statements of production, and does on purpose what workers and applications do by accident:
it abandons rows, ends them late, holds completing transactions open, rolls them back, adds steps, cancels. Everything that
it did is printed at its end, with times; the checker believes nothing else.
"""

from __future__ import annotations

import json
import random
import sys
import time
import uuid
from pathlib import Path
from typing import Any

import psycopg

from leasequeue.db.complete import complete_held
from leasequeue.db.connect import Link
from leasequeue.db.ends import EndStatements, end_statements
from leasequeue.db.jobs import job_statements
from leasequeue.db.program import Checked, run
from leasequeue.db.urls import Settings
from leasequeue.db.workflows import Late, add_steps
from leasequeue.errors import LeaseLost, LeaseQueueError
from leasequeue.job import Held, NewJob
from leasequeue.worker.hand import Claimed, Ended, Failure, Outcome
from leasequeue.worker.joins import Joins
from tests.workflow.broken import BROKEN

CONTENDED = (psycopg.errors.DivisionByZero, psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected)


class Player:
    """One claimer and completer, with a second connection for what applications do."""

    def __init__(self, orders: dict[str, Any]) -> None:
        self.orders = orders
        self.rng = random.Random(orders["seed"])  # noqa: S311  # a game
        self.link = Link(Settings.parse(orders["url"]), application_name="player", bound_seconds=10.0)
        self.link.connect()
        self.conn = psycopg.connect(orders["url"], prepare_threshold=None)
        self.sql = job_statements("public")
        self.ends: EndStatements = end_statements("public")
        if orders["broken"]:
            changed = {name: text.format(s='"public"') for name, text in BROKEN[orders["broken"]].items()}
            self.ends = self.ends._replace(**changed)
        # A moment between a statement's snapshot and its first lock, for others to commit something in.
        pause = f"WHERE (SELECT pg_sleep({orders['slow']})) IS NOT NULL AND id = ANY(%(ids)s::bigint[]) AND state = 'l'"
        slowed = {
            name: getattr(self.ends, name).replace("WHERE id = ANY(%(ids)s::bigint[]) AND state = 'l'", pause)
            for name in ("succeed_plainly", "succeed", "fail")
        }
        self.ends = self.ends._replace(**slowed)
        self.joins = Joins(self.ends)
        self.me = uuid.uuid4()
        self.checked = Checked()
        self.log: list[tuple[Any, ...]] = []
        self.counts: dict[str, int] = {}
        self.abandoned: list[tuple[float, Claimed]] = []
        self.again: list[Ended] = []
        self.swept = 0.0
        self.added = 0

    def note(self, what: str, by: int = 1) -> None:
        self.counts[what] = self.counts.get(what, 0) + by

    def chance(self, name: str) -> bool:
        return self.rng.random() < float(self.orders.get(name, 0.0))

    def play(self) -> None:
        stop = Path(self.orders["stop"])
        while not stop.exists():
            self.look_after()
            again, self.again = self.again, []
            group = [*again, *self.joins.due(), *self.claim()]
            if not group:
                time.sleep(0.002)
                continue
            self.end(Outcome.SUCCEEDED, [ended for ended in group if ended.outcome is Outcome.SUCCEEDED])
            self.end(Outcome.FAILED_FOR_GOOD, [ended for ended in group if ended.outcome is Outcome.FAILED_FOR_GOOD])

    # Claiming

    def claim(self) -> list[Ended]:
        now = time.monotonic()
        rows = self.link.run(
            self.sql.claim,
            {
                "me": self.me, "ttl": self.orders["ttl"], "queue": "default", "priorities": [0],
                "floors": [float("-inf")], "floor_ids": [0], "k": self.rng.randint(1, int(self.orders["batch"])),
            },
        )  # fmt: skip
        if not rows or self.rng.random() < 0.05:
            rows += self.link.run(
                self.sql.claim_suspect, {"me": self.me, "ttl": self.orders["ttl"], "queues": ["default"]}
            )
        found: list[Ended] = []
        for row in rows:
            job = Claimed(row, self.me, "default", None, now)
            at = time.monotonic()
            if at - now > float(self.orders["ttl"]):
                self.note("not started: its lease is over")  # as a worker would not
                continue
            self.log.append(("start", job.id, job.attempt, at))
            args = json.loads(job.text)
            if self.chance("add"):
                self.add(job)
            if self.chance("crash"):
                self.note("abandoned")
                self.abandon(job)
            elif self.chance("hold") and not args.get("fail"):
                self.hold(job)
            elif args.get("fail"):
                found.append(Ended(job, Outcome.FAILED_FOR_GOOD, failure=Failure("Asked", "as asked", None)))
            else:
                found.append(Ended(job, Outcome.SUCCEEDED, result="1"))
        return found

    # Ending

    def end(self, outcome: Outcome, group: list[Ended]) -> None:
        newest: dict[int, Ended] = {}
        for ended in sorted(group, key=lambda ended: ended.job.term):
            newest[ended.job.id] = ended  # an older claim of the same row is lost
        group = list(newest.values())
        if not group:
            return
        at = time.monotonic()

        def write(some: list[Ended]) -> set[int]:
            params: dict[str, Any] = {
                "ids": [e.job.id for e in some],
                "terms": [e.job.term for e in some],
                "me": self.me,
            }
            try:
                if outcome is Outcome.SUCCEEDED:
                    params |= {"results": ["1" for _ in some], "kept": [True for _ in some]}
                    rows = self.link.run(self.ends.succeed_plainly, params)
                    rest = {row[0] for row in rows if row[3] is None}
                    if rest:
                        fires = [e for e in some if e.job.id in rest]
                        params |= {"ids": [e.job.id for e in fires], "terms": [e.job.term for e in fires]}
                        params |= {"results": ["1" for _ in fires], "kept": [True for _ in fires]}
                        rows += self.link.run(self.ends.succeed, params)
                else:
                    params |= {
                        "types": ["Asked" for _ in some], "messages": ["as asked" for _ in some],
                        "tracebacks": [None for _ in some], "worker": "player", "outcome": "failed",
                    }  # fmt: skip
                    rows = self.link.run(self.ends.fail, params)
            except CONTENDED as error:
                self.note(type(error).__name__)
                raise
            return {row[0] for row in rows if row[3]}

        tried, done = self.joins.write(self.link, group, write, deep=outcome is not Outcome.SUCCEEDED)
        self.note("set aside", len(group) - len(tried))
        missing = [ended for ended in tried if ended.job.id not in done]
        self.log += [("end", e.job.id, e.job.attempt, at) for e in tried if e.job.id in done]
        if missing:
            params = {"ids": [e.job.id for e in missing], "terms": [e.job.term for e in missing], "me": self.me}
            held = {row[0] for row in self.link.run(self.sql.read_held, params)}
            # As the completer does: locked by somebody, most likely by who adds a step behind it.
            self.again += [ended for ended in missing if ended.job.id in held]
            self.note("locked", len(held))
            self.note("refused", len(missing) - len(held))

    def hold(self, job: Claimed) -> None:
        """A handler that completes in a transaction of its own, and takes its time."""
        held = Held(job.id, job.term, self.me)
        at = time.monotonic()
        try:
            run(self.conn, complete_held, "public", held, "1", True, True)
            time.sleep(self.rng.uniform(0, float(self.orders["hold_seconds"])))
            if self.rng.random() < 0.3:
                self.conn.rollback()
                self.note("rolled back")
                self.abandon(job)
                return
            self.conn.commit()
        except (LeaseLost, psycopg.Error, LeaseQueueError) as error:
            self.note(f"held: {type(error).__name__}")
            self.recover()
            self.abandon(job)
            return
        self.note("held")
        self.log.append(("end", job.id, job.attempt, at))

    def abandon(self, job: Claimed) -> None:
        self.abandoned.append((time.monotonic() + self.rng.uniform(0.0, 2.0) * float(self.orders["ttl"]), job))

    # What else happens

    def add(self, job: Claimed) -> None:
        """Steps behind others of the same workflow: alive, ending at this moment, or ended."""
        assert job.workflow is not None
        flow = json.loads(job.workflow)["id"]
        names = [f"s{self.rng.randrange(int(self.orders['steps']))}" for _ in range(self.rng.randint(1, 2))]
        kind = self.rng.choice("xxcf" if self.orders["fires"] else "xxc")
        self.added += 1
        late = Late(
            f"late-{self.orders['seed']}-{self.added}",
            NewJob("flow", "default", json.dumps({"fail": self.rng.random() < float(self.orders["fail"])})),
            {name: kind if kind == "f" else self.rng.choice("xc") for name in names},
        )
        try:
            ids = run(self.conn, add_steps, "public", flow, [late], self.checked, False)
            time.sleep(self.rng.uniform(0, 0.004))
            self.conn.commit()
        except (psycopg.Error, LeaseQueueError) as error:
            self.note(f"add: {type(error).__name__}")
            self.recover()
            return
        self.note("added")
        self.log.append(("added", ids[late.name], flow, late.after))

    def recover(self) -> None:
        if self.conn.closed:
            self.conn = psycopg.connect(self.orders["url"], prepare_threshold=None)
        else:
            self.conn.rollback()

    def look_after(self) -> None:
        now = time.monotonic()
        if self.orders["sweeps"] and now - self.swept > 0.1:
            self.swept = now
            self.note("swept", len(self.link.run(self.sql.sweep, {"max_abandoned": 1000})))
            self.contended(self.ends.bury, {"max_abandoned": 3}, "buried")
        if self.chance("cancel"):
            rows = self.link.run("SELECT id FROM leasequeue_job WHERE state IN ('b', 'r') ORDER BY random() LIMIT 1")
            for (id,) in rows:
                self.contended(self.ends.cancel, {"id": id, "reason": "operator"}, "cancelled")
        if self.abandoned and self.abandoned[0][0] < now:
            job = self.abandoned.pop(0)[1]
            # Whoever comes back too late: the row may be in other hands by now, and then this must not count.
            args = json.loads(job.text)
            if not args.get("fail"):
                self.end(Outcome.SUCCEEDED, [Ended(job, Outcome.SUCCEEDED, result="1")])

    def contended(self, sql: str, params: dict[str, Any], what: str) -> None:
        try:
            self.note(what, len(self.link.run(sql, params)))
        except CONTENDED as error:
            self.note(f"{what}: {type(error).__name__}")


def main() -> None:
    player = Player(json.loads(sys.stdin.readline()))
    print("ready", flush=True)
    sys.stdin.readline()  # all begin together
    player.play()
    print(json.dumps({"log": player.log, "counts": player.counts}))
