"""The lease protocol under every order of events that Hypothesis thinks of, on real connections; and its broken variants.

Three candidates, their fenced transactions, a stranger's locks, an operator, lost requests and replies, slow replies, and a
clock that is moved. See ``world`` for what is asserted.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import psycopg
import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from leasequeue.lease.hold import Hold, Refused
from tests.lease.world import BROKEN, RIGHT, SETUP, TTL, Actor, Variant, World
from tests.support.databases import Templates
from tests.support.server import Server

RUNS = int(os.environ.get("LEASEQUEUE_LEASE_RUNS", "220"))
"""Stories of the right variant, of 50 steps each; ``LEASEQUEUE_LEASE_RUNS=5000`` makes a long run."""
RUNS_TO_FIND = 1_100
"""At most, for a broken variant to be caught. The seeds below go with this number: another one makes other stories."""
STEPS = 50


@pytest.fixture(scope="module")
def url(server: Server, templates: Templates) -> Iterator[str]:
    """One database for all runs: emptied by each."""
    name = templates.migrated()
    found = server.url(name)
    with psycopg.connect(found, autocommit=True) as conn:
        conn.execute(SETUP)
    yield found
    server.drop_database(name)


WHICH = st.integers(0, 5)
LOSE = st.sampled_from(["request", "reply"])
LASTS = st.sampled_from([1.0, 3.0, 9.0, 25.0])
PAUSE = st.sampled_from([0.001, 1.9, 7.9, 8.1, 9.99, 10.0, 11.0, 30.0])


def machine(world: World) -> type[RuleBasedStateMachine]:
    """The rules over one world, which each run begins anew. A rule that does not apply to the actor drawn takes another."""

    class Leases(RuleBasedStateMachine):
        def __init__(self) -> None:
            super().__init__()
            world.begin()

        @initialize()
        def begin(self) -> None:
            world.ask(world.actors[0])

        def without(self, which: int) -> Actor | None:
            return self.one(which, [actor for actor in world.actors if actor.hold is None])

        def holding(self, which: int) -> Actor | None:
            return self.one(which, [actor for actor in world.actors if actor.hold is not None])

        def one(self, which: int, actors: list[Actor]) -> Actor | None:
            return actors[which % len(actors)] if actors else None

        @rule(seconds=PAUSE)
        def time_passes(self, seconds: float) -> None:
            world.advance(seconds)

        @precondition(lambda self: any(actor.hold is None for actor in world.actors))
        @rule(which=WHICH)
        def ask(self, which: int) -> None:
            if (actor := self.without(which)) is not None:
                world.ask(actor)

        @precondition(lambda self: any(actor.hold is None for actor in world.actors))
        @rule(which=WHICH, lose=LOSE)
        def ask_in_vain(self, which: int, lose: str) -> None:
            if (actor := self.without(which)) is not None:
                world.ask(actor, lose=lose)

        @precondition(lambda self: any(actor.hold for actor in world.actors))
        @rule(which=WHICH)
        def renew(self, which: int) -> None:
            if (actor := self.holding(which)) is not None:
                world.renew(actor)

        @precondition(lambda self: any(actor.hold for actor in world.actors))
        @rule(which=WHICH, lose=LOSE)
        def renew_in_vain(self, which: int, lose: str) -> None:
            if (actor := self.holding(which)) is not None:
                world.renew(actor, lose=lose)

        @precondition(lambda self: any(actor.hold for actor in world.actors))
        @rule(which=WHICH, lasts=LASTS)
        def renew_slowly(self, which: int, lasts: float) -> None:
            if (actor := self.holding(which)) is not None:
                world.renew(actor, lasts=lasts)

        @precondition(lambda self: any(actor.hold for actor in world.actors))
        @rule(which=WHICH, lose=st.sampled_from(["", "", "request", "reply"]))
        def release(self, which: int, lose: str) -> None:
            if (actor := self.holding(which)) is not None:
                world.release(actor, lose=lose)

        @precondition(lambda self: any(actor.hold for actor in world.actors))
        @precondition(lambda self: not world.locked)
        @rule(which=WHICH)
        def fence_and_write(self, which: int) -> None:
            actor = self.holding(which)
            if actor is not None and actor.hold is not None and actor.fenced_in is None and not world.locked:
                left = world.left(actor.hold)
                passed = world.fence(actor)
                assert passed == (left > 0), f"a fence with {left:.3f} s left {'passed' if passed else 'was refused'}"

        @precondition(lambda self: any(actor.fenced_in for actor in world.actors))
        @rule(which=WHICH, commit=st.booleans())
        def end_work(self, which: int, commit: bool) -> None:
            actor = self.one(which, [actor for actor in world.actors if actor.fenced_in is not None])
            if actor is not None:
                world.end_work(actor, commit=commit)

        @precondition(lambda self: any(actor.hold for actor in world.actors) and not world.locked)
        @rule(which=WHICH)
        def outlive_and_be_followed(self, which: int) -> None:
            """Whoever holds it lets it expire, and another asks."""
            world.advance(TTL + 0.001)
            if (actor := self.without(which)) is not None:
                world.ask(actor)

        @precondition(lambda self: not world.locked)
        @rule()
        def lock(self) -> None:
            world.lock()

        @precondition(lambda self: world.locked)
        @rule()
        def unlock(self) -> None:
            world.unlock()

        @precondition(lambda self: any(actor.hold is None for actor in world.actors))
        @precondition(lambda self: not world.locked)
        @rule(which=WHICH, seconds=PAUSE)
        def ask_behind_a_lock(self, which: int, seconds: float) -> None:
            actor = self.without(which)
            if actor is not None and not world.locked:
                world.behind_a_lock(lambda: world.ask(actor), seconds)

        @precondition(lambda self: any(actor.hold for actor in world.actors))
        @precondition(lambda self: not world.locked)
        @rule(which=WHICH, seconds=PAUSE)
        def fence_behind_a_lock(self, which: int, seconds: float) -> None:
            actor = self.holding(which)
            if actor is None or actor.hold is None or actor.fenced_in is not None or world.locked:
                return
            hold = actor.hold
            passed = world.behind_a_lock(lambda: world.fence(actor), seconds)
            left = world.left(hold)
            assert not passed or left > 0, f"a fence with {left:.3f} s left passed after a wait"

        @precondition(lambda self: not world.locked)
        @rule(prune=st.sampled_from([True, True, True, False]))
        def operator(self, prune: bool) -> None:
            world.prune() if prune else world.force()

        @invariant()
        def holds(self) -> None:
            world.check()

    return Leases


_FOUND_SOON = {
    "fence without the row's lock": 2,
    "identity is the host's name": 6,
    "trust counted from the reply": 8,
}
"""Seeds from which the machine comes upon these faults within seconds; from elsewhere it takes up to a minute."""


def run(url: str, variant: Variant, *, slots: int = 1, runs: int = RUNS) -> None:
    world = World(url, variant, slots)
    number = _FOUND_SOON.get(variant.name)
    made = machine(world)
    try:
        run_state_machine_as_test(
            made if number is None else seed(number)(made),
            settings=settings(
                max_examples=runs,
                stateful_step_count=STEPS,
                deadline=None,
                derandomize=number is None,
                database=None,
                phases=[Phase.generate],
                suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
                report_multiple_bugs=False,
            ),
        )
    finally:
        world.close()
    assert world.runs >= runs


def test_terms_grow_trust_never_overlaps_and_no_stale_write_commits(url: str) -> None:
    run(url, RIGHT)


def test_a_semaphore_never_has_more_holders_than_slots(url: str) -> None:
    run(url, RIGHT, slots=2, runs=60)


@pytest.mark.parametrize("variant", BROKEN, ids=lambda variant: variant.name)
def test_a_broken_variant_is_caught(url: str, variant: Variant) -> None:
    with pytest.raises(AssertionError, match=variant.caught) as caught:
        run(url, variant, runs=RUNS_TO_FIND)
    print(f"{variant.name}: {str(caught.value).splitlines()[0]}")


# The interleavings that each fault needs, written down; the machine above finds them among many others.


@pytest.fixture(params=[RIGHT, *BROKEN], ids=lambda variant: variant.name)
def world(request: pytest.FixtureRequest, url: str) -> Iterator[World]:
    made = World(url, request.param)
    made.begin()
    yield made
    made.close()


def _hold(answer: Hold | Refused | None) -> Hold:
    assert isinstance(answer, Hold)
    return answer


def test_each_fault_in_its_own_interleaving(world: World) -> None:
    first, second, third = world.actors
    right = world.variant is RIGHT

    def story() -> None:
        # Two ask, and the second's question is lost on the way; then it is told no.
        world.ask(second, lose="request")
        one = _hold(world.ask(first))
        world.ask(second)
        world.check()
        # A stranger has the free row locked: busy, and whoever asked then holds nothing once another has it.
        world.release(first)
        world.behind_a_lock(lambda: world.ask(third), 2 * TTL)
        if third.hold is not None:
            world.release(third)
        two = _hold(world.ask(first))
        assert two.term > one.term, "a term did not grow"
        world.ask(third)
        world.check()
        # Renewed in the middle of its own fenced transaction; a reply that takes long extends nothing.
        assert world.fence(first)
        world.renew(first)
        world.renew(first, lasts=9.0)
        world.check()
        # Expired, and kept from others until that transaction ends.
        world.advance(2 * TTL)
        world.ask(second)
        world.end_work(first, commit=True)
        # The old holder's renewal after another has taken over.
        if second.hold is None:
            _hold(world.ask(second))
        if first.hold is not None:
            world.renew(first)
        world.check()
        # Trusted from the question on: nine of ten seconds went by before the answer.
        world.renew(second, lasts=9.0)
        world.advance(1.5)
        world.ask(third)
        world.check()
        # The clock after the lock: its lease expires while the fence waits for a stranger.
        holder = next(actor for actor in world.actors if actor.hold is not None and world.left(actor.hold) > 0)
        held = _hold(holder.hold)
        passed = world.behind_a_lock(lambda: world.fence(holder), 2 * TTL)
        assert not passed or world.left(held) > 0, "a fence passed after a wait"

    if right:
        story()
        return
    with pytest.raises(AssertionError, match=world.variant.caught):
        story()
