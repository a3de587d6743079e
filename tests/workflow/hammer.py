"""The hammer: random workflows, players that misbehave, and a checker that goes by what was observed."""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import psycopg

from leasequeue.db.program import Checked, run
from leasequeue.db.workflows import Plan, enqueue_workflow
from leasequeue.job import NewJob
from tests.support.databases import Database
from tests.support.herd import herd

STEPS = 24
UNHAPPY = ("failed", "cancelled", "expired")


class Verdict(NamedTuple):
    """What the checker found; all but the counts must be empty."""

    early: list[Any]
    doubled: list[Any]
    stuck: list[Any]
    wronged: list[Any]
    runs: int
    counts: dict[str, int]
    seconds: float

    @property
    def violations(self) -> int:
        return len(self.early) + len(self.doubled) + len(self.stuck) + len(self.wronged)


def random_plan(rng: random.Random, fail: float, fires: float) -> Plan:
    """Layers, diamonds and joins; each step of one kind of edges: cascade and continue, or fire."""
    jobs = [NewJob("flow", "default", json.dumps({"fail": rng.random() < fail})) for _ in range(STEPS)]
    edges: list[tuple[int, int, str]] = []
    conditional: set[int] = set()
    for child in range(1, STEPS):
        if rng.random() < 0.2:
            continue
        parents = rng.sample(range(child), min(child, rng.randint(1, 4)))
        plain = [parent for parent in parents if parent not in conditional]
        if plain and rng.random() < fires:
            conditional.add(child)
            edges += [(parent, child, "f") for parent in plain]
            continue
        kinds = {parent: rng.choice("xxc") for parent in parents}
        if any(kind == "x" and parent in conditional for parent, kind in kinds.items()):
            conditional.add(child)
        edges += [(parent, child, kind) for parent, kind in kinds.items()]
    return Plan(None, [f"s{place}" for place in range(STEPS)], jobs, edges)


def hammer(
    database: Database,
    folder: Path,
    *,
    workflows: int,
    players: int = 4,
    broken: str = "",
    seconds: float = 60.0,
    **chances: Any,
) -> Verdict:
    """Enqueue, play, and check.

    Args:
        broken: the safeguard that is taken out; "" for none.
        seconds: after which what is left counts as stuck.
        chances: of the players' misbehaviour; see ``player.py``.
    """
    orders: dict[str, Any] = {
        "url": database.url, "broken": broken, "batch": 8, "ttl": 1.0, "steps": STEPS, "fail": 0.1, "fires": 0.15,
        "crash": 0.02, "slow": 0.002, "hold": 0.03, "hold_seconds": 0.03, "add": 0.08, "cancel": 0.01, **chances,
    }  # fmt: skip
    rng = random.Random(workflows)  # noqa: S311  # a game
    conn = psycopg.connect(database.direct_url)
    checked = Checked()
    edges: list[tuple[int, int, str]] = []
    for _ in range(workflows):
        plan = random_plan(rng, float(orders["fail"]), float(orders["fires"]))
        _, ids = run(conn, enqueue_workflow, "public", plan, checked)
        edges += [(ids[parent], ids[child], kind) for parent, child, kind in plan.edges]
    conn.commit()
    conn.close()
    database.execute("VACUUM ANALYZE leasequeue_job, leasequeue_edge, leasequeue_step")
    stop = folder / f"stop-{time.monotonic_ns()}"
    with herd("tests.workflow.player", players) as started:
        for seed, member in enumerate(started):
            member.tell(json.dumps(orders | {"seed": seed, "stop": str(stop), "sweeps": seed == 0}))
        for member in started:
            assert member.stdout.readline() == "ready\n"
        begun = time.monotonic()
        for member in started:
            member.tell("go")
        _wait(database, begun + seconds)
        took = time.monotonic() - begun
        stop.touch()
        answers = [json.loads(member.stdout.readline()) for member in started]
    events = [event for answer in answers for event in answer["log"]]
    counts: Counter[str] = Counter()
    for answer in answers:
        counts.update(answer["counts"])
    for event in events:
        if event[0] == "added":
            flow, after = event[2], event[3]
            steps = dict(database.execute("SELECT name, job_id FROM leasequeue_step WHERE workflow = %s", (flow,)))
            edges += [(steps[parent], event[1], kind) for parent, kind in after.items()]
    return check(database, edges, events, dict(counts), took)


def _wait(database: Database, deadline: float) -> None:
    """Until nothing is left; or nothing happens any more that could still change something."""
    before, quiet = -1, 0
    while time.monotonic() < deadline:
        left = database.scalar("SELECT count(*) FROM leasequeue_job")
        if not left:
            return
        busy = database.scalar("SELECT count(*) FROM leasequeue_job WHERE state <> 'b'")
        quiet = quiet + 1 if left == before and not busy else 0
        if quiet > 10:
            return
        before = left
        time.sleep(0.05)


def check(
    database: Database, edges: list[tuple[int, int, str]], events: list[Any], counts: dict[str, int], seconds: float
) -> Verdict:
    """Judge by starts and ends as the players saw them, and by the history."""
    starts: dict[int, list[float]] = {}
    ends: dict[int, list[float]] = {}
    for event in events:
        if event[0] == "start":
            starts.setdefault(event[1], []).append(event[3])
        elif event[0] == "end":
            ends.setdefault(event[1], []).append(event[3])
    outcome: dict[int, str] = {}
    outside: set[int] = set()
    for id, found, error in database.execute("SELECT id, outcome, error FROM leasequeue_finished"):
        outcome[id] = found
        if error == "operator":
            outside.add(id)
    stuck = database.execute("SELECT id, state::text, pending, children FROM leasequeue_job ORDER BY id")
    live = {row[0] for row in stuck}
    doubled = [id for id, at in ends.items() if len(at) > 1]
    # An end is noted before its statement is sent, so a start after it, by the same clock, is one too many only if later.
    doubled += [id for id, at in ends.items() if id in outcome and max(starts.get(id, [0.0])) > at[0]]
    early = [
        (parent, child)
        for parent, child, kind in edges
        if kind != "f" and child in starts and parent in ends and min(starts[child]) < ends[parent][0]
    ]
    parents: dict[int, list[tuple[int, str]]] = {}
    for parent, child, kind in edges:
        parents.setdefault(child, []).append((parent, kind))
    wronged = []
    for child, above in parents.items():
        if child in outside or child in live or any(parent in live for parent, _ in above):
            continue
        ended = {parent: outcome.get(parent) for parent, _ in above}
        if any(kind == "f" for _, kind in above):
            should = any(found in UNHAPPY for found in ended.values())
        else:
            should = all(
                ended[parent] == "succeeded" if kind == "x" else ended[parent] is not None for parent, kind in above
            )
        ran = child in starts
        if ran != should or (outcome.get(child) == "cancelled") == should:
            wronged.append((child, outcome.get(child), ran, should, above, ended))
    runs = sum(len(at) for at in starts.values())
    return Verdict(early, doubled, stuck, wronged, runs, counts, seconds)
