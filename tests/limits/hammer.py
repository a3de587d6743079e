"""A hammer for limits: claimers that crash, pause and finish late; enqueuers, held transactions, locked rows; a checker.

Each process writes, on the one monotonic clock of this machine, when it held which job under which key. The checker reads
these intervals, the rows at the end, and nothing of the package. Variants break one thing each; the checker must see it.

A job's interval begins after its claim has returned and ends before its completion is sent; a crash ends it there and then, a
pause when its lease ends: what comes after is refused by the fence, and the checker counts whether it was.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import multiprocessing as mp
import os
import random
import time
import uuid
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from multiprocessing.synchronize import Event
from typing import Any

import psycopg

from leasequeue.db.connect import Link
from leasequeue.db.enqueue import enqueue_many
from leasequeue.db.gates import GateStatements, gate_statements
from leasequeue.db.jobs import JobStatements, job_statements
from leasequeue.db.program import Checked, run
from leasequeue.db.urls import Settings
from leasequeue.job import NewJob
from leasequeue.worker.gate import Gate, claim_suspect
from leasequeue.worker.relay import FEW
from tests.support.waiting import until

TTL = 0.8

# Key prefix -> jobs of one key that may run at once.
LIMITS = {"one": 1, "three": 3, "many": 1, "moved": 4}
RATE = (20, 0.5)
"""Of the keys that begin with ``rated``."""

TASK_LIMIT, QUEUE_LIMIT = 6, 10
"""Of the task ``bounded``, whose jobs have keys too, and of the queue ``narrow``."""

LEAST_CLAIMS = 400
"""That found something. A run on a machine that is busy elsewhere is longer, not emptier."""

_CONTEXT = mp.get_context("forkserver")
_CONTEXT.set_forkserver_preload([__name__])  # six processes that import everything take as long as the run

VARIANTS = {
    "no bucket lock": "two claimers of one key count at the same time",
    "any order": "serial keys run out of order",
}


@dataclasses.dataclass
class Tally:
    """What one process saw: intervals of (job, key, task, queue, begin, end), and counts."""

    intervals: list[tuple[int, str, str, str, float, float]] = dataclasses.field(default_factory=list)
    counts: Counter[str] = dataclasses.field(default_factory=Counter)


def _broken(variant: str | None, sql: JobStatements, gate: GateStatements) -> tuple[JobStatements, GateStatements]:
    """The statements of a variant: each differs from ours in one place, which must be there to be replaced."""

    def swap(text: str, old: str, new: str) -> str:
        assert old in text, (variant, old)
        return text.replace(old, new)

    if variant == "no bucket lock":
        old, new = "ORDER BY id FOR UPDATE SKIP LOCKED\n), gone AS", "ORDER BY id\n), gone AS"
        gate = gate._replace(
            take_wakes=swap(gate.take_wakes, old, new), take_wakes_under=swap(gate.take_wakes_under, old, new)
        )
    elif variant == "any order":
        old, new = "ORDER BY available_at, id{} LIMIT", "ORDER BY available_at DESC, id DESC{} LIMIT"
        fuller = (old.format(""), new.format(""))
        one = (old.format("\n   "), new.format("\n   "))
        gate = gate._replace(
            admit=swap(gate.admit, *fuller), admit_under=swap(gate.admit_under, *fuller),
            admit_one=swap(gate.admit_one, *one), admit_next=swap(gate.admit_next, *fuller),
        )  # fmt: skip
    else:
        assert variant is None, variant
    return sql, gate


class Claimer:
    """A claimer at the gates of two queues, with the statements of a variant."""

    def __init__(self, url: str, seed: int, variant: str | None) -> None:
        self.random = random.Random(seed)  # noqa: S311
        self.link = Link(Settings.parse(url), application_name="hammer", bound_seconds=20.0)
        self.link.connect()
        self.sql, self.gate_sql = _broken(variant, job_statements("public"), gate_statements("public"))
        self.gate = Gate(self.gate_sql, ["default", "narrow"], True, TTL)
        self.gate.connected()
        self.gate.read_rules(self.link)
        self.me = uuid.uuid4()

    def claim(self, k: int, *, hold: float = 0.0, roll_back: bool = False) -> list[tuple[Any, ...]]:
        link: Any = self.link
        if hold or roll_back:
            link = _Held(self.link, hold, roll_back)
        queue = self.random.choice(("default", "narrow"))
        with contextlib.suppress(_RolledBack, psycopg.errors.SerializationFailure):
            return self.gate.claim(link, queue, k, self.me, time.monotonic())
        return []

    def complete(self, rows: list[tuple[Any, ...]], me: uuid.UUID | None = None) -> int:
        params = {
            "ids": [row[0] for row in rows], "terms": [row[1] for row in rows], "me": me or self.me,
            "results": [None] * len(rows), "kept": [True] * len(rows),
        }  # fmt: skip
        return len(self.link.run(self.sql.complete_linked, params))

    def follow(self, rows: list[tuple[Any, ...]]) -> tuple[int, list[tuple[Any, ...]]]:
        """Complete and claim what comes after in one transaction; how many were completed, and the rows."""
        ends: dict[str, Any] = {"ids": [row[0] for row in rows], "terms": [row[1] for row in rows]}
        ends |= {"results": [None] * len(rows), "kept": [True] * len(rows)}
        found = self.gate.follow(self.link, ends, self.me, {"default": FEW, "narrow": FEW}, time.monotonic())
        return len(found.done), [row for each in found.rows.values() for row in each]

    def suspect(self) -> list[tuple[Any, ...]]:
        """One that was abandoned twice, as the process that runs those claims it; made to look like the others."""
        params = {"me": self.me, "ttl": TTL, "queues": ["default", "narrow"]}
        rows, _ = claim_suspect(self.link, self.gate_sql, params)
        keys = "SELECT limit_key FROM leasequeue_job WHERE id = %(id)s"
        return [(*row, self.link.run(keys, {"id": row[0]})[0][0]) for row in rows]

    def retry(self, row: tuple[Any, ...], delay: float) -> None:
        params = {"ids": [row[0]], "terms": [row[1]], "me": self.me, "delays": [delay], "types": ["E"]}
        self.link.run(self.sql.retry, params | {"messages": ["m"], "tracebacks": [None], "worker": "hammer"})


class _RolledBack(Exception):
    pass


class _Held:
    """A link whose transaction is held open before its commit, or rolled back: the claim that nobody heard of."""

    def __init__(self, link: Link, hold: float, roll_back: bool) -> None:
        self._link, self._hold, self._roll_back = link, hold, roll_back

    def transact(self, steps: Any) -> Any:
        def held(execute: Any) -> Any:
            found = steps(execute)
            time.sleep(self._hold)
            if self._roll_back:
                raise _RolledBack
            return found

        return self._link.transact(held)


def _chance(dice: random.Random, claims: int) -> float:
    """What becomes of a claim: below 0.01 a crash, below 0.02 a pause. One of each is certain, however short the run."""
    certain = {50: 0.0, 60: 0.01}
    return certain[claims] if claims in certain else dice.random()


def _work(url: str, seed: int, variant: str | None, calm: bool, claims: Any, stop: Event, out: Any) -> None:
    claimer, tally = Claimer(url, seed, variant), Tally()
    dice, counts = claimer.random, tally.counts
    late: list[tuple[float, list[tuple[Any, ...]], uuid.UUID]] = []
    rules_due = 0.0
    followers: tuple[list[tuple[Any, ...]], float] = [], 0.0
    while not stop.is_set() or followers[0]:
        if time.monotonic() > rules_due:
            claimer.gate.read_rules(claimer.link)
            rules_due = time.monotonic() + 0.05
        wild = not calm and dice.random() < 0.06
        rows, before = followers if followers[0] else ([], time.monotonic())
        followers = [], 0.0
        rows = rows or claimer.claim(
            dice.choice((1, 3, 20)), hold=dice.choice((0.0, 0.0, dice.uniform(0.05, 0.3))) if wild else 0.0,
            roll_back=wild and dice.random() < 0.5,
        )  # fmt: skip
        rows = rows or (claimer.suspect() if dice.random() < 0.1 else [])
        after = time.monotonic()
        if not calm and dice.random() < 0.1:
            claimer.link.run(claimer.sql.sweep, {"max_abandoned": 1000})
        while late and late[0][0] < time.monotonic():
            _, old, holder = late.pop(0)
            claimer.link.run(
                claimer.sql.sweep, {"max_abandoned": 1000}
            )  # a lease that is over, but that nobody has swept, may still be ended
            counts["stale tried"] += len(old)
            counts["stale accepted"] += claimer.complete(old, holder)
        if not rows:
            time.sleep(dice.uniform(0.0, 0.003))
            continue
        with claims:
            claims.value += 1
            chance = 1.0 if calm else _chance(dice, claims.value)
        if chance < 0.01:  # a crash: the lease goes on, nobody works
            end = time.monotonic()
            claimer.me = uuid.uuid4()
            counts["crashes"] += 1
        elif chance < 0.02:  # a pause beyond the lease, and a late finish
            end = before + TTL
            late.append((time.monotonic() + TTL * 1.6, rows, claimer.me))
            claimer.me = uuid.uuid4()
            counts["pauses"] += 1
        else:
            if dice.random() < 0.5:
                time.sleep(dice.uniform(0.0, 0.004))
            end = time.monotonic()
            rest = rows
            if chance < 0.08:
                claimer.retry(rows[0], dice.choice((0.0, 0.05)))
                rest = rows[1:]
            if rest and len(rest) <= FEW and dice.random() < 0.5 and not stop.is_set():
                sent = time.monotonic()
                done, came = claimer.follow(rest)
                followers = came, sent
                counts["completed"] += done
                counts["followed"] += len(came)
            elif rest:
                counts["completed"] += claimer.complete(rest)
        # A lease that was over before its end was written counts no further than its term of life.
        tally.intervals += [(row[0], row[14], row[2], row[9], after, min(end, before + TTL)) for row in rows]
    out.put(tally)


def _new_job(dice: random.Random) -> NewJob:
    kind = dice.choice(("one", "three", "many", "moved", "rated"))
    key = f"{kind}:{dice.randrange(200 if kind == 'many' else 6)}"
    rated = RATE if kind == "rated" else (None, None)
    return NewJob(
        dice.choice(("free", "free", "bounded")), dice.choice(("default", "default", "narrow")), "{}",
        priority=dice.choice((0, 0, 0, 5)), limit_key=key, limit_max=None if kind in ("moved", "rated") else LIMITS[kind],
        rate_max=rated[0], rate_seconds=rated[1], delay_seconds=dice.choice((0.0, 0.0, 0.0, 0.1)),
    )  # fmt: skip


def _enqueue(url: str, seed: int, calm: bool, alone: bool, stop: Event, out: Any) -> None:
    dice, tally = random.Random(seed), Tally()  # noqa: S311
    with psycopg.connect(url, prepare_threshold=None) as conn:
        while not stop.is_set():
            (waiting,) = conn.execute(
                "SELECT count(*) FROM (SELECT FROM leasequeue_job LIMIT 2000) AS x"
            ).fetchone() or (0,)
            conn.rollback()
            if waiting >= 600:
                time.sleep(0.003)
                continue
            jobs = [_new_job(dice) for _ in range(dice.choice((1, 1, 10, 40)))]
            if alone:
                jobs = [dataclasses.replace(job, priority=0) for job in jobs]
            if calm:
                jobs = [dataclasses.replace(job, priority=0, delay_seconds=0.0, queue="default") for job in jobs]
            run(conn, enqueue_many, "public", jobs, Checked())
            chance = dice.random()
            if chance < 0.03 and not calm:
                time.sleep(dice.uniform(0.1, 0.5))
            if 0.03 < chance < 0.06 and not calm:
                conn.rollback()
            else:
                conn.commit()
                tally.counts["enqueued"] += len(jobs)
    out.put(tally)


def _disturb(url: str, seed: int, stop: Event, out: Any) -> None:
    """Locks waiting rows and lets go of them, committed or not; moves a limit up and down."""
    dice = random.Random(seed)  # noqa: S311
    with psycopg.connect(url, prepare_threshold=None) as conn:
        while not stop.is_set():
            conn.execute(
                "UPDATE leasequeue_job SET priority = priority WHERE id IN (SELECT id FROM leasequeue_job "
                "WHERE state = 'g' ORDER BY random() LIMIT 30 FOR UPDATE SKIP LOCKED)"
            )
            time.sleep(dice.uniform(0.0, 0.1))
            conn.rollback() if dice.random() < 0.6 else conn.commit()
            conn.execute("UPDATE leasequeue_limit SET max_running = %s WHERE name = 'moved'", (dice.choice((1, 2, 4)),))
            conn.execute(
                "INSERT INTO leasequeue_wake (queue, key) "
                "SELECT DISTINCT queue, limit_key FROM leasequeue_job WHERE state = 'g' AND limit_key LIKE 'moved:%'"
            )
            conn.commit()
            time.sleep(0.02)
    out.put(Tally())


def _rules(url: str, above: bool) -> None:
    higher = [("task:bounded", TASK_LIMIT), ("queue:narrow", QUEUE_LIMIT)] if above else []
    with psycopg.connect(url, autocommit=True, prepare_threshold=None) as conn:
        for name, limit in [("moved", LIMITS["moved"]), *higher]:
            conn.execute(
                "INSERT INTO leasequeue_limit (name, declared, max_running) VALUES (%s, false, %s)", (name, limit)
            )


def _begin(ready: Any, target: Callable[..., None], *args: Any) -> None:
    """Nobody begins before all have their imports behind them."""
    ready.wait(60)
    target(*args)


@contextlib.contextmanager
def _processes(targets: list[tuple[Any, tuple[Any, ...]]], claims: Any, seconds: float) -> Iterator[list[Tally]]:
    stop, out = _CONTEXT.Event(), _CONTEXT.Queue()
    ready = _CONTEXT.Barrier(len(targets) + 1)
    started = [
        _CONTEXT.Process(target=_begin, args=(ready, target, *args, stop, out), daemon=True) for target, args in targets
    ]
    for process in started:
        process.start()
    try:
        ready.wait(60)
        time.sleep(seconds)  # the run
        until(lambda: claims.value >= LEAST_CLAIMS, 60.0, "as many claims as it takes to see something")
        stop.set()
        yield [out.get(timeout=30) for _ in started]
    finally:
        for process in started:
            process.join(10)
            process.kill()


def _most(events: list[tuple[float, int]]) -> int:
    running = most = 0
    for _, step in sorted(events):
        running += step
        most = max(most, running)
    return most


def _faults(intervals: list[tuple[int, str, str, str, float, float]], calm: bool, above: bool) -> Counter[str]:
    found: Counter[str] = Counter()
    by: dict[str, list[tuple[float, int]]] = defaultdict(list)
    starts: dict[str, list[tuple[float, int]]] = defaultdict(list)
    for id, key, task, queue, begin, end in intervals:
        if end <= begin:
            continue
        names = [key]
        if above:
            names += ["task:bounded"] * (task == "bounded") + ["queue:narrow"] * (queue == "narrow")
        for name in names:
            by[name] += [(begin, 1), (end, -1)]
        starts[key].append((begin, id))
    limits = {"task:bounded": TASK_LIMIT, "queue:narrow": QUEUE_LIMIT}
    for name, events in by.items():
        limit = limits.get(name, LIMITS.get(name.partition(":")[0], 10**9))
        if _most(events) > limit:
            found["more than the limit at once"] += 1
    if calm:
        for key, each in starts.items():
            if LIMITS.get(key.partition(":")[0]) == 1:
                ids = [id for _, id in sorted(each)]
                found["out of order"] += sum(later < first for first, later in itertools.pairwise(ids))
    return found


def hammer(
    url: str,
    direct_url: str,
    *,
    seconds: float,
    processes: int = 6,
    variant: str | None = None,
    calm: bool = False,
    alone: bool = False,
    seed: int = 1,
) -> tuple[Counter[str], Counter[str], int]:
    """Run it; returns the faults, the counts, and how many intervals there were.

    Args:
        url: of the claimers; ``direct_url``: of everything else.
        calm: no crashes, no pauses, no priorities, no limits above: serial keys must then run in order of id.
        alone: no priorities and no limits above the keys, as it must be for one job to follow another in one transaction.
    """
    above = not (alone or calm)
    _rules(direct_url, above)
    claims = _CONTEXT.Value("q", 0)
    targets: list[tuple[Any, tuple[Any, ...]]] = [
        (_work, (url, seed + n, variant, calm, claims)) for n in range(processes)
    ]
    targets += [(_enqueue, (direct_url, seed + 100 + n, calm, alone)) for n in range(1 if calm else 2)]
    targets += [] if calm else [(_disturb, (direct_url, seed + 200))]
    with _processes(targets, claims, seconds) as tallies:
        intervals = [interval for tally in tallies for interval in tally.intervals]
        counts = sum((tally.counts for tally in tallies), Counter[str]())
    faults = _faults(intervals, calm, above)
    faults["stale finish accepted"] += counts["stale accepted"]
    if variant is not None:
        return +faults, counts, len(intervals)  # what it breaks is seen in these
    _drain(url, direct_url, faults)
    with psycopg.connect(direct_url, autocommit=True, prepare_threshold=None) as conn:
        finished, distinct = conn.execute(
            "SELECT count(*), count(DISTINCT id) FROM leasequeue_finished"
        ).fetchone() or (0, 0)
        faults["finished twice"] += finished - distinct
        faults["finished, but not enqueued, or the reverse"] += (
            abs(finished - counts["enqueued"]) if not faults["left over"] else 0
        )
        window = (
            "SELECT max(spent) FROM (SELECT sum(count) OVER (PARTITION BY name ORDER BY at "
            "RANGE BETWEEN %s PRECEDING AND CURRENT ROW) AS spent FROM leasequeue_admission) AS x"
        )
        (spent,) = conn.execute(window, (f"{RATE[1] - 0.001} seconds",)).fetchone() or (0,)
        faults["more starts than the rate in a window"] += int((spent or 0) > RATE[0])
    return +faults, counts, len(intervals)


def _drain(url: str, direct_url: str, faults: Counter[str]) -> None:
    """With one calm claimer everything must end within the bounds that a lost wake has: none is lost."""
    claimer = Claimer(url, 0, None)
    try:
        _drain_by(claimer, direct_url, faults)
    finally:
        claimer.link.close()


def _drain_by(claimer: Claimer, direct_url: str, faults: Counter[str]) -> None:
    end = time.monotonic() + 120.0
    idle_since = time.monotonic()
    with psycopg.connect(direct_url, autocommit=True, prepare_threshold=None) as conn:
        while time.monotonic() < end:
            claimer.link.run(claimer.sql.sweep, {"max_abandoned": 1000})
            claimer.gate.read_rules(claimer.link)
            got = 0
            for _ in range(4):
                rows = claimer.claim(200) or claimer.suspect()
                got += claimer.complete(rows) if rows else 0
            if got:
                idle_since = time.monotonic()
                continue
            left = conn.execute("SELECT count(*) FROM leasequeue_job").fetchone() or (0,)
            if not left[0]:
                return
            if time.monotonic() - idle_since > 8.0:
                break
            time.sleep(0.01)
        left = conn.execute("SELECT count(*) FROM leasequeue_job").fetchone() or (0,)
        faults["left over"] += int(left[0])


def seconds_of_a_run(default: float) -> float:
    """How long a run is: ``LEASEQUEUE_HAMMER_SECONDS`` makes it a long one."""
    return float(os.environ.get("LEASEQUEUE_HAMMER_SECONDS", default))
