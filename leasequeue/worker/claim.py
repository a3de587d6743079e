"""The claimer: takes leases on ready jobs, no more than will start soon, best priority first.

It polls, 20 ms after the last job and up to 100 ms apart when idle, up to a second where notifications are proven to arrive. A
notification only ends such a pause early; nothing depends on it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from leasequeue.db.connect import readable
from leasequeue.db.jobs import JobStatements
from leasequeue.loop import Loop, Outage
from leasequeue.worker.floor import Lane, aged, best_first
from leasequeue.worker.gate import GATE_MAX, Gate
from leasequeue.worker.hand import Claimed, Ended, Hand, Holder, Outcome, Slots
from leasequeue.worker.lanes import Lanes, of_lane
from leasequeue.worker.relay import FEW_PER_SECOND
from leasequeue.worker.rest import Rest

if TYPE_CHECKING:
    import uuid

    from leasequeue.db.connect import Link
    from leasequeue.worker.execute import Executor
    from leasequeue.worker.page import Page
    from leasequeue.worker.relay import Relay
    from leasequeue.worker.strays import Strays
    from leasequeue.worker.wake import WakeMode

log = logging.getLogger("leasequeue.worker")

LANES_EVERY_SECONDS = 1.0
STALE_SECONDS = 0.250
"""What has waited this long for a slot goes back untouched, so that another worker may have it."""


class Claimer(Loop):
    """One thread that claims for all queues of this process.

    Args:
        task_of: the registered task of a name, or None.
        finish: the completer's intake, for what is put back.
        strays: told of a holder whose last claim has an unknown outcome.
        wake_mode: proves and listens for notifications on this loop's connection.
        gate: claims the jobs that are under a limit.
        relay: ends that are written here, with the claim of the next job of their key.
        idle: the statement by which it looks around while there is nothing to do.

    ``claims`` and ``claim_seconds`` count the claim statements, and the looks in their place while there is nothing to do, and
    the time that they took; not the claims that came with an end.
    """

    def __init__(
        self,
        link: Link,
        outage: Outage,
        sql: JobStatements,
        page: Page,
        hand: Hand,
        holder: Holder,
        slots: list[Slots],
        executor: Executor,
        task_of: Callable[[str], Any],
        finish: Callable[[Ended], None],
        strays: Strays,
        wake_mode: WakeMode,
        gate: Gate,
        relay: Relay,
        idle: str,
        ttl_seconds: float,
    ) -> None:
        super().__init__("claimer", link, outage)
        self._sql = sql
        self._page = page
        self._hand = hand
        self._holder = holder
        self._slots = slots
        self._executor = executor
        self._task_of = task_of
        self._finish = finish
        self._strays = strays
        self._wake_mode = wake_mode
        self._gate = gate
        self._relay = relay
        relay.wake = self.wake
        self._gate_first = {slots.name: False for slots in slots}
        self._full = False
        self._freed = False
        self._staged: tuple[Slots, list[Claimed]] | None = None
        self._ttl_seconds = ttl_seconds
        self._lanes = Lanes(sql, [each.name for each in slots])
        self._lanes_due = 0.0
        self._rules_due = False
        self._rest = Rest(idle, self._lanes, gate)
        self.claims = 0
        self.claim_seconds = 0.0
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_read, False)
        os.set_blocking(self._wake_write, False)

    # Waking

    def wake(self) -> None:
        super().wake()
        try:
            os.write(self._wake_write, b"w")
        except BlockingIOError:
            return  # it is full of wake-ups already

    def rescan(self) -> None:
        """Old rows became ready (a sweep, a dead process): scan from the beginning once. Any thread."""
        self._lanes.rescan()
        self._gate.rescan()
        self.wake()

    def released(self) -> None:
        """Rows became ready that are due since a moment ago: look a little below the floors at once. Any thread."""
        self._lanes.look()
        self.wake()

    def freed(self) -> None:
        """A job under a limit has ended here: its key may have a slot for the next. Any thread."""
        self._freed = True
        self.wake()

    def pause(self, seconds: float) -> None:
        self._hand_out()
        if self.link.connected:
            heard = self._wake_mode.wait(self.link, seconds, self._wake_read)
        else:
            heard = False
            readable([self._wake_read], seconds)
        with contextlib.suppress(BlockingIOError):
            heard = bool(os.read(self._wake_read, 4096)) or heard
        if heard:
            # Others may have been quiet because of this one: what they brought is found by a poll.
            self._rest.over()

    # The turn

    def connected(self) -> None:
        # Terms may come again after a failover; and what the last claim on the old connection took may be unknown.
        if self.link.generation > 1:
            self._strays.suspect(self._holder.renew())
        self._lanes_due = 0.0
        self._lanes.forget_probe()
        self._gate.connected()
        self._wake_mode.begin(self.link)

    def interrupted(self) -> None:
        self._page.rest("claim_turn")

    def turn(self) -> None:
        try:
            self._turn()
        except BaseException:
            # The next turn may come late, or break off in the same place: the completer need not wait for it.
            self._relay.close()
            self._hand_out()
            raise

    def _turn(self) -> None:
        self._page.stamp("claim_turn")
        now = time.monotonic()
        self._wake_mode.take(self.link)
        if now >= self._lanes_due:
            self._lanes.read(self._ask, now)
            self._rules_due = True
            self._lanes_due = now + LANES_EVERY_SECONDS
        if not self._resting():
            self._read_rules()
        self._give_back_stale(now)
        for slots in self._slots:
            slots.measure(now)
            slots.ready.nudge(now)
        # Not where handlers end so fast that the completer is wanted beside, or ready jobs wait that want the next slot.
        few = not self._full and all(slots.rate < FEW_PER_SECOND for slots in self._slots)
        self._relay.open({slots.name for slots in self._slots if few and self._may_follow(slots)})
        got = self._follow(now) + self._claim_all(now)
        self._page.stamp("claim_ok")
        self._page.rest("claim_turn")
        if got:
            self._rest.over()
            if any(slots.room() for slots in self._slots):
                return
            self.pause(self._busy_pause())
            return
        if all(slots.room() == 0 for slots in self._slots):
            self.pause(self._busy_pause())
            return
        # A slot that becomes free says nothing: where a queue has none, its jobs may wait for one.
        rest = self._rest.seconds(self._wake_mode.arrives and all(slots.room() for slots in self._slots))
        self.pause(min(rest, max(0.0, self._lanes_due - time.monotonic())))  # a queue that is resumed is seen in time

    def _resting(self) -> bool:
        """Whether there was nothing to do for a while, and nobody has said that there is: it looks before it claims."""
        return self._rest.is_long and not self._freed and not self._relay

    def _read_rules(self) -> None:
        """Read the limits, if that is due. Who rests has no need of them."""
        if self._rules_due:
            self._gate.read_rules(self.link)
            self._rules_due = False

    def _busy_pause(self) -> float:
        """While every slot is taken: until one is likely to be free."""
        return min(slots.seconds_to_room() for slots in self._slots)

    def _claim_all(self, now: float) -> int:
        """Fill the free slots of every queue; the jobs got."""
        roomy = [s for s in self._slots if s.name not in self._lanes.paused and s.room() > 0]
        names = [slots.name for slots in roomy]
        if self._resting():
            quiet = self._rest.is_quiet(self._ask, names, now)
            self.claims += 1
            self.claim_seconds += time.monotonic() - now
            if quiet:
                return 0
            self._read_rules()
        # A look at the gates comes last, where ready jobs have left room, so that it delays none; and now and then first, or
        # when there may be something.
        gates: set[str] = set()
        freed, self._freed = self._freed, False
        if freed:
            gates = self._gate.used(names)  # a wake is there for certain: no look is needed
        elif self._full:
            # Not with what was claimed handed out meanwhile: its answer is there at once, and would wait for the handlers.
            gates = self._gate.due(self.link.run, names, now, self._lanes.database_now, hurried=True)
        ready = {slots.name for slots in self._with_ready(now, roomy)}
        if roomy and not ready:
            self._full = False
        got = 0
        for slots in roomy:
            got += self._fill(slots, slots.name in ready, slots.name in gates)
        # After a claim that was full there are more ready jobs, however much room is left: the next claim is for those.
        left = [] if self._full else [slots for slots in roomy if slots.name not in gates and slots.room() > 0]
        if left:
            gates = self._gate.due(self._ask, [s.name for s in left], now, self._lanes.database_now, hurried=False)
            got += sum(self._claim_gated(slots, slots.room()) for slots in left if slots.name in gates)
        return got

    def _fill(self, slots: Slots, ready: bool, gated: bool) -> int:
        """Ready jobs and those under limits share the free slots half and half while there are both, in turns."""
        room = slots.room()
        if not gated:
            return self._claim(slots, room) if ready and room else 0
        if not ready:
            return self._claim_gated(slots, room)
        turns = [self._claim, self._claim_gated]
        if self._gate_first[slots.name]:
            turns.reverse()
        self._gate_first[slots.name] = not self._gate_first[slots.name]
        got = turns[0](slots, (room + 1) // 2)
        got += turns[1](slots, room - got) if room > got else 0
        return got + (turns[0](slots, room - got) if room > got else 0)

    def _follow(self, now: float) -> int:
        """Write the ends that wait here, with the claim of what comes after them."""
        if not self._relay:
            return 0
        self._hand_out()
        room = {slots.name: slots.size - slots.in_hand() - 1 for slots in self._slots if self._may_follow(slots)}
        me = self._holder.current
        followed = self._relay.write(self.link, self._gate, me, room, now)
        if followed.woken:
            self._freed = True
        return sum(self._take_in(slots, followed.rows.get(slots.name, []), me, now) for slots in self._slots)

    def _may_follow(self, slots: Slots) -> bool:
        # One slot stays free: where keys went on in all of them, no ready job would ever have a turn.
        allowed = slots.size > 1 and not slots.high and slots.name not in self._lanes.paused
        return allowed and self._gate.follows(slots.name)

    def _claim_gated(self, slots: Slots, k: int) -> int:
        if slots.high:
            k = min(k, self._low_room(slots))  # of whatever priority they are
        if k <= 0:
            return 0
        self._hand_out()
        now = time.monotonic()
        me = self._holder.current
        free = max(0, slots.size - slots.in_hand())
        rows = self._gate.claim(self.link, slots.name, min(k, GATE_MAX), me, now, free)
        self.claims += 1
        self.claim_seconds += time.monotonic() - now
        return self._take_in(slots, rows, me, now)

    def _take_in(self, slots: Slots, rows: list[tuple[Any, ...]], me: uuid.UUID, now: float) -> int:
        """Hand rows of a gate to their slots."""
        if not rows:
            return 0
        rows.sort(key=_order)
        jobs = [Claimed(row, me, slots.name, self._task_of(row[2]), now) for row in rows]
        self._hand.add(jobs)
        slots.claimed += len(jobs)
        self._executor.submit(slots, jobs)
        return len(jobs)

    def _with_ready(self, now: float, wanted: list[Slots]) -> list[Slots]:
        if len(wanted) <= 1:
            return wanted
        lanes = [lane for s in wanted for lane in self._lanes.of(s.name) if lane.priority > 0 or self._takes_low(s)]
        found = self._lanes.with_ready(self._ask, lanes, now)
        return [s for s in wanted if s.name in found]

    def _claim(self, slots: Slots, k: int) -> int:
        now = time.monotonic()
        if slots.ageing_seconds is None:
            lanes = best_first(self._lanes.of(slots.name))
        else:
            lanes = aged(
                self._lanes.of(slots.name),
                slots.ageing_seconds,
                self._lanes.database_now + now - self._lanes.database_read,
            )
        if not slots.high:
            return self._claim_lanes(slots, lanes, k, now)
        # Twice where the reserved slots make a difference: of the high ones as many as there is room, then of the others.
        low, got = self._low_room(slots), 0
        if low < k:
            got = self._claim_lanes(slots, [lane for lane in lanes if lane.priority > 0], k, now)
            lanes = [lane for lane in lanes if lane.priority <= 0]
        return got + self._claim_lanes(slots, lanes, min(low, k - got), now)

    def _low_room(self, slots: Slots) -> int:
        """How many jobs of priority 0 or below may be claimed beside those that are in hand."""
        mine = (job for job in self._hand.jobs() if job.queue == slots.name and job.priority <= 0 and not job.ended)
        return max(0, slots.size - slots.high - sum(1 for _ in mine))

    def _takes_low(self, slots: Slots) -> bool:
        return not slots.high or self._low_room(slots) > 0

    def _claim_lanes(self, slots: Slots, lanes: list[Lane], k: int, now: float) -> int:
        """Claim from these lanes, in this order."""
        if not lanes or k <= 0:
            return 0
        starts = [lane.start(now) for lane in lanes]
        me = self._holder.current
        rows = self._ask(
            self._sql.claim,
            {
                "me": me,
                "ttl": self._ttl_seconds,
                "queue": slots.name,
                "priorities": [lane.priority for lane in lanes],
                "floors": [start[0] for start in starts],
                "floor_ids": [start[1] for start in starts],
                "k": k,
            },
        )
        self.claims += 1
        self.claim_seconds += time.monotonic() - now
        self._full = len(rows) >= k
        if not rows:
            self._lanes.moved(lanes, starts, rows, k, now)
            return 0
        if len(lanes) == 1:
            rows.sort(key=of_lane)
        else:
            rank = {lane.priority: place for place, lane in enumerate(lanes)}
            rows.sort(key=lambda row: (rank[row[8]], row[7], row[0]))
        slots.claimed += len(rows)
        self._lanes.moved(lanes, starts, rows, k, now)
        jobs = [Claimed(row, me, slots.name, self._task_of(row[2]), now) for row in rows]
        self._hand.add(jobs)
        self._staged = slots, self._gate.divert(jobs, self._put_to_gate)
        if not self._full:
            self._hand_out()  # nothing is in a hurry behind them
        return len(rows)

    def _ask(self, sql: str, params: Mapping[str, object] | None = None, /) -> list[tuple[Any, ...]]:
        """Run a statement, and hand out what was claimed before while the server works on it.

        Handlers keep the interpreter to themselves for some milliseconds at a time. Handed their jobs before the next
        statement is sent, they would run all of them, and then wait for the database as it waited for them.
        """
        rows = self.link.run(sql, params, meanwhile=self._hand_out if self._staged else None)
        self._hand_out()  # before anything else is staged
        return rows

    def _hand_out(self) -> None:
        """Give the jobs of the last claim to their slots."""
        staged, self._staged = self._staged, None
        if staged is not None:
            self._executor.submit(*staged)

    def _put_to_gate(self, slots_name: str, ended: Ended) -> None:
        next(slots for slots in self._slots if slots.name == slots_name).claimed -= 1
        self._finish(ended)

    # What waited too long

    def _give_back_stale(self, now: float) -> None:
        for slots in self._slots:
            if slots.waiting() and now - slots.last_start > STALE_SECONDS:
                self._give_back(slots)

    def _give_back(self, slots: Slots) -> None:
        for job in slots.take_unstarted():
            slots.claimed -= 1
            self._finish(Ended(job, Outcome.UNSTARTED))

    def ended(self) -> None:
        self._relay.close()
        self._hand_out()
        for slots in self._slots:
            self._give_back(slots)


def _order(row: tuple[Any, ...]) -> tuple[int, float, int]:
    return (-row[8], row[7], row[0])
