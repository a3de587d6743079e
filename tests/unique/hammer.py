"""Processes that fight over a dozen unique keys, and a checker that believes none of them.

    main()      reads {"role": "enqueue", ...}, and prints what it did, a JSON list a line

The checker knows only what was called, what was answered, and what ran, by one clock (CLOCK_MONOTONIC, the same in all
processes of a machine). It compares times so that no verdict depends on who was slow: a job is *certainly* live from the
moment when its creation was known to be committed until the moment before its completion was sent.
"""

from __future__ import annotations

import json
import random
import select
import sys
import time
import uuid
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import psycopg

from leasequeue import DuplicateJob, LeaseQueue
from leasequeue.db.jobs import job_statements
from tests.support.herd import Member, herd
from tests.unique import broken

PERIOD_SECONDS = 0.25
KEYS = 12


class Call(NamedTuple):
    """What a call was answered.

    Attributes:
        way: ``f`` until finished, ``s`` until started, ``p`` for a period, ``b`` both ``f`` and ``p``.
        n: the argument that tells this call from all others.
        before, after: around the call itself.
        known: when its transaction was known to be committed; None: it was rolled back.
    """

    key: str
    way: str
    id: int
    created: bool
    replaced: bool
    n: int
    before: float
    after: float
    known: float | None


class Run(NamedTuple):
    """A job that a worker ran: ``n`` is what it found as its argument."""

    id: int
    n: int
    claim_sent: float
    claimed: float
    done_sent: float
    done: float


# Processes


class _Enqueuer:
    def __init__(self, url: str, seed: int, control: str) -> None:
        self.random = random.Random(seed)  # noqa: S311  # to be repeated, not to be secret
        self.numbers = iter(range(seed * 10_000_000, (seed + 1) * 10_000_000))
        self.lq = LeaseQueue()
        self.lq.configure(url=url)
        self.raw = psycopg.connect(url, prepare_threshold=None)
        self.control = control

        @self.lq.task(name="work", unique_key=lambda key: key)
        def work(key: str, n: int) -> None: ...

        self.work: Any = work
        if control:
            broken.break_it(control, skew_seconds=0.2 if seed % 2 else -0.2)

    def turn(self) -> Iterator[Call]:
        dice = self.random.random()
        held = 0.0
        if dice < 0.1:
            held = self.random.uniform(0.0, 0.01)
        rolled_back = dice < 0.05
        many = self.random.random() < 0.3
        plans = self._plans(many)
        # Over SQLAlchemy and over a bare connection in turn; a control is made for the latter.
        bare = bool(self.control) or self.random.random() < 0.5
        with self._transaction(bare, rolled_back) as conn:
            calls = self._call(conn, plans, many)
            if held:
                time.sleep(held)
        known = None if rolled_back else time.monotonic()
        for call in calls:
            yield call._replace(known=known)

    def _plans(self, many: bool) -> list[tuple[str, str, Any, int]]:
        how: dict[str, Any] = {}
        plans = []
        for _ in range(self.random.randint(2, 8) if many else 1):
            way = self.random.choice("ffssppb")
            key = f"{way if way in 'pb' else 'k'}{self.random.randrange(KEYS)}"
            if key not in how:
                conflict = self.random.choice(("existing", "existing", "replace", "existing" if many else "raise"))
                how[key] = way, conflict
            way, conflict = how[key]
            options: dict[str, Any] = {
                "unique": {"f": "until_finished", "s": "until_started", "b": "until_finished"}.get(way)
            }
            if way in "pb":
                options["unique_for"] = broken.PERIOD
            delay = broken.DELAY if self.random.random() < (0.8 if conflict == "replace" else 0.3) else None
            plans.append(
                (key, way, self.work.options(**options, on_conflict=conflict, delay=delay), next(self.numbers))
            )
        return plans

    def _call(self, conn: Any, plans: list[tuple[str, str, Any, int]], many: bool) -> list[Call]:
        before = time.monotonic()
        try:
            if many:
                jobs = self.lq.enqueue_many(conn, [task.call(key, n) for key, _, task, n in plans])
            else:
                ((key, _, task, n),) = plans
                jobs = [task.enqueue(conn, key, n)]
        except DuplicateJob as error:
            ((key, way, _, n),) = plans
            return [Call(key, way, error.job_id, False, False, n, before, time.monotonic(), None)]
        after = time.monotonic()
        return [
            Call(key, way, job.id, job.created, job.replaced, n, before, after, None)
            for (key, way, _, n), job in zip(plans, jobs, strict=True)
        ]

    @contextmanager
    def _transaction(self, bare: bool, rolled_back: bool) -> Iterator[Any]:
        if bare:
            with self.raw.transaction(force_rollback=rolled_back):
                yield self.raw
            return
        with self.lq.engine.connect() as conn:
            yield conn
            conn.rollback() if rolled_back else conn.commit()


class _Worker:
    """Claims and completes by the statements of a real worker."""

    def __init__(self, url: str, seed: int, control: str) -> None:
        self.random = random.Random(seed)  # noqa: S311  # to be repeated, not to be secret
        self.sql = job_statements("public")
        self.conn = psycopg.connect(url, autocommit=True, prepare_threshold=None)
        self.me = uuid.uuid4()
        self.held: dict[int, tuple[Any, float, float]] = {}

    def turn(self) -> Iterator[Run]:
        claim_sent = time.monotonic()
        params = {"queue": "default", "priorities": [0], "floors": [0.0], "floor_ids": [0], "k": 3}
        found = self.conn.execute(self._text("claim"), params | {"me": self.me, "ttl": 60.0}).fetchall()
        claimed = time.monotonic()
        time.sleep(self.random.uniform(0.0, 0.002))
        # With those whose rows were locked before, by a call that found them just as they were claimed.
        self.held |= {row[0]: (row, claim_sent, claimed) for row in found}
        if not self.held:
            return
        done_sent = time.monotonic()
        ids, terms = list(self.held), [row[1] for row, _, _ in self.held.values()]
        ended = self.conn.execute(self._text("complete"), {"ids": ids, "terms": terms, "me": self.me}).fetchall()
        done = time.monotonic()
        for (id,) in ended:
            row, sent, got = self.held.pop(id)
            yield Run(id, json.loads(row[3])["n"], sent, got, done_sent, done)

    def _text(self, name: str) -> Any:
        return getattr(self.sql, name)


def main() -> None:
    orders = json.loads(sys.stdin.readline())
    role: Any = {"enqueue": _Enqueuer, "work": _Worker}[orders["role"]]
    each = role(orders["url"], orders["seed"], orders["control"])
    print("ready", flush=True)
    sys.stdin.readline()
    until, errors, out = time.monotonic() + orders["seconds"], Counter[str](), sys.stdout
    turns = 0
    while (time.monotonic() < until or turns < orders["turns"]) and not select.select([sys.stdin], [], [], 0)[0]:
        turns += 1
        try:
            for event in each.turn():
                out.write(json.dumps([orders["role"], *event]) + "\n")
        except psycopg.Error as error:
            errors[type(error).__name__] += 1
        except Exception as error:  # noqa: BLE001  # SQLAlchemy's, around the driver's
            errors[type(getattr(error, "orig", error)).__name__] += 1
    out.write(json.dumps(["errors", errors]) + "\n")


# The fight, and its judge


class Fight(NamedTuple):
    calls: list[Call]
    runs: list[Run]
    errors: Counter[str]


def fight(url: str, seconds: float, control: str = "", enqueuers: int = 4, workers: int = 2, seed: int = 1) -> Fight:
    """Let processes fight for so long, and for 60 turns of each on a machine that is slow; gather what they say."""
    roles = ["enqueue"] * enqueuers + ["work"] * workers
    made: Fight = Fight([], [], Counter())
    with herd(__name__, len(roles)) as members:
        for number, (role, member) in enumerate(zip(roles, members, strict=True)):
            orders: dict[str, Any] = {"role": role, "url": url, "seed": seed * 100 + number, "control": control}
            # The workers go on until the last enqueuer has ended.
            orders |= {"seconds": seconds, "turns": 60} if role == "enqueue" else {"seconds": seconds + 60, "turns": 0}
            member.tell(json.dumps(orders))
        for member in members:
            assert member.stdout.readline() == "ready\n"
        for member in members:
            member.tell("go")
        _read_all(members, made, enqueuers)
    return made


def _read_all(members: list[Member], made: Fight, enqueuers: int) -> None:
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(len(members)) as pool:
        reading = [pool.submit(member.stdout.readlines) for member in members]
        for each in reading[:enqueuers]:
            each.result()
        for member in members[enqueuers:]:
            member.tell("stop")
        for each in reading:
            for kind, *event in map(json.loads, each.result()):
                if kind == "enqueue":
                    made.calls.append(Call(*event))
                elif kind == "work":
                    made.runs.append(Run(*event))
                else:
                    made.errors.update(event[0])


def violations(fought: Fight, existing: set[int]) -> Counter[str]:
    """What must not be, counted.

    Args:
        existing: the ids of all live and finished jobs.
    """
    found: Counter[str] = Counter(fought.errors)
    committed = [call for call in fought.calls if call.known is not None]
    created = [call for call in committed if call.created]
    ids = {call.id for call in created}
    found["created twice"] = len(created) - len(ids)
    found["reported as created, and absent"] = len(ids - existing)
    found["there, and reported as created by nobody"] = len(existing - ids)
    found["rolled back, and there"] = len(
        {call.id for call in fought.calls if call.created and not call.known} & existing
    )
    found["the id of another that never was"] = sum(
        call.id not in existing for call in fought.calls if not call.created and (call.known or not call.replaced)
        and call.id not in _own(fought.calls, call)
    )  # fmt: skip
    runs = {run.id: run for run in fought.runs}
    found["run twice"] = len(fought.runs) - len(runs)
    found["two live at once"] = _overlaps(committed, runs)
    found["found a job that had ended"] = sum(_had_ended(call, runs.get(call.id)) for call in fought.calls)
    found["a period cut short"] = _short_periods(created)
    found["ran with what was replaced"] = _superseded(committed, runs)
    return +found


def _own(calls: list[Call], call: Call) -> set[int]:
    """A call may find what its own transaction created and rolled back: the calls of one bulk have one time."""
    return _by_time(calls)[call.before]


_TIMES: dict[int, dict[float, set[int]]] = {}


def _by_time(calls: list[Call]) -> dict[float, set[int]]:
    if id(calls) not in _TIMES:
        times = _TIMES[id(calls)] = defaultdict(set)
        for call in calls:
            if call.created:
                times[call.before].add(call.id)
    return _TIMES[id(calls)]


def _overlaps(committed: list[Call], runs: dict[int, Run]) -> int:
    by_key: dict[str, list[tuple[float, float]]] = defaultdict(list)
    # A call that replaces a job also says until when that one has its key.
    until_started = {call.id for call in committed if call.way == "s" and (call.created or call.replaced)}
    for call in committed:
        if call.way == "p" or not call.created:
            continue
        run = runs.get(call.id)
        end = float("inf") if run is None else run.claim_sent if call.id in until_started else run.done_sent
        if call.known is not None and call.known < end:
            by_key[call.key].append((call.known, end))
    found = 0
    for intervals in by_key.values():
        intervals.sort()
        latest = 0.0
        for begin, end in intervals:
            found += begin < latest
            latest = max(latest, end)
    return found


def _had_ended(call: Call, run: Run | None) -> bool:
    return call.way in "fs" and not call.created and run is not None and run.done < call.before


def _short_periods(created: list[Call]) -> int:
    by_key: dict[str, list[Call]] = defaultdict(list)
    for call in created:
        if call.way in "pb":
            by_key[call.key].append(call)
    found = 0
    for calls in by_key.values():
        calls.sort(key=lambda call: call.before)
        # Each took the key somewhere between its two times, and who began first may have taken it last.
        found += sum(
            max(b.after - a.before, a.after - b.before) < PERIOD_SECONDS
            for place, a in enumerate(calls)
            for b in calls[place + 1 : place + 10]
        )
    return found


def _superseded(committed: list[Call], runs: dict[int, Run]) -> int:
    """A job must run with the arguments of a call after which no other replaced it."""
    writes: dict[int, list[Call]] = defaultdict(list)
    for call in committed:
        if call.created or call.replaced:
            writes[call.id].append(call)
    found = 0
    for id, run in runs.items():
        mine = [call for call in writes[id] if call.n == run.n]
        if not mine or mine[0].known is None:
            found += 1
            continue
        found += any(call.before > mine[0].known for call in writes[id])
    return found
