"""The builder: steps with names, and what each comes after. Nothing is written before :meth:`Workflow.enqueue`."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from leasequeue import naming
from leasequeue.db.program import arun, run
from leasequeue.db.workflows import CONDITIONAL, Plan, enqueue_workflow
from leasequeue.errors import ConfigurationError
from leasequeue.task import Call, Task
from leasequeue.workflow.handle import WorkflowHandle

if TYPE_CHECKING:
    from leasequeue.db.kinds import AsyncConn, SyncConn
    from leasequeue.queue import LeaseQueue

EDGES_MAX = 1_000_000
"""More edges than that are a mistake: two wide fans, one after the other, want a step between them."""


@dataclass(frozen=True, slots=True)
class Node:
    """A step that was added to a workflow: what ``after`` and ``result`` take beside a name."""

    name: str


@dataclass(frozen=True, slots=True)
class Edge:
    """What a step comes after, and what it means if that fails. Made by :func:`continues` and :func:`fires`.

    Attributes:
        kind: ``x`` cascade, ``c`` continue, ``f`` fire.
    """

    name: str
    kind: str


_Parent: TypeAlias = "str | Node | Edge"
After: TypeAlias = "_Parent | Iterable[_Parent | Iterable[_Parent]]"


def continues(*parents: str | Node | Iterable[str | Node]) -> list[Edge]:
    """For ``after``: go on when these have ended, however they ended. Without it a failure cancels what comes after."""
    return [Edge(name, "c") for name in _names(parents)]


def fires(*parents: str | Node | Iterable[str | Node]) -> list[Edge]:
    """For ``after``: run once, as soon as one of these has failed (or was cancelled, or expired); where none does, the
    step is ended as cancelled with the last of them, and shown as ``skipped``.
    """
    return [Edge(name, "f") for name in _names(parents)]


def _names(parents: Iterable[Any]) -> list[str]:
    names: list[str] = []
    for each in parents:
        if isinstance(each, str):
            names.append(each)
        elif isinstance(each, Node):
            names.append(each.name)
        elif isinstance(each, Iterable):
            names += _names(each)
        else:
            raise ConfigurationError(f"a step is named by its name, or by what add() returned, not by {each!r}")
    return names


def edges_of(step: str, after: Any) -> dict[str, str]:
    """The parents' names with the kinds of their edges.

    Raises:
        ConfigurationError: something else than steps is there, one of them twice, or fires() beside other edges.
    """
    if after is None:
        return {}
    found: dict[str, str] = {}
    flat = [after] if isinstance(after, (str, Node, Edge)) else list(_flat(after))
    for each in flat:
        name, kind = (each.name, each.kind) if isinstance(each, Edge) else (_names([each])[0], "x")
        if found.get(name, kind) != kind:
            raise ConfigurationError(f"step {step!r} comes after {name!r} in two ways: say one of them")
        found[name] = kind
    if "f" in found.values() and set(found.values()) != {"f"}:
        raise ConfigurationError(
            f"step {step!r} fires on a failure and comes after other steps too: give it fires(...) alone, and put a step "
            f"between where both are meant"
        )
    if step in found:
        raise ConfigurationError(f"step {step!r} comes after itself")
    return found


def _flat(after: Any) -> Iterable[Any]:
    if not isinstance(after, Iterable):
        raise ConfigurationError(f"after takes names, steps, continues(...) and fires(...), not {after!r}")
    for each in after:
        if isinstance(each, (str, Node, Edge)):
            yield each
        else:
            yield from _flat(each)


class Workflow:
    """Steps that are being put together; made by ``lq.workflow()``. For one thread.

    A step's options (queue, priority, delay, limit, expiry) come with its call: ``task.options(...).call(...)``. A delay
    counts from the enqueue, not from the end of what the step comes after; so does an expiry.

    Attributes:
        name: shown in lists; None shows none. It need not be unique.
    """

    def __init__(self, lq: LeaseQueue, name: str | None = None) -> None:
        if name is not None:
            naming.check("a workflow's name", name)
        self._lq = lq
        self.name = name
        self._calls: dict[str, Call[Any]] = {}
        self._after: dict[str, dict[str, str]] = {}

    def __len__(self) -> int:
        return len(self._calls)

    def add(self, name: str, call: Call[Any], *, after: After = ()) -> Node:
        """Add a step.

        Args:
            name: of the step, unique in this workflow; at most 512 bytes.
            call: ``task.call(...)``.
            after: what must have succeeded before: a name, what ``add`` returned, or several. A parent that ends otherwise
                cancels this step and what comes after it, unless the parent is given as ``continues(parent)``.
                ``fires(parents)`` alone: run once as soon as one fails. Names may be added later.

        Raises:
            ConfigurationError: the name is taken; the call is none, or carries a unique key; see ``after``.
        """
        naming.check("a step's name", name)
        if name in self._calls:
            raise ConfigurationError(f"this workflow has a step {name!r} already: give this one another name")
        check_call(self._lq, name, call)
        self._after[name] = edges_of(name, after)
        self._calls[name] = call
        return Node(name)

    def add_many(self, prefix: str, calls: Iterable[Call[Any]], *, after: After = ()) -> list[Node]:
        """Add a fan of steps ``prefix-0``, ``prefix-1`` ..., all after the same ones; returns them, for ``after`` of a join."""
        parents = edges_of(prefix, after)
        edges = [Edge(name, kind) for name, kind in parents.items()]
        return [self.add(f"{prefix}-{place}", call, after=edges) for place, call in enumerate(calls)]

    def enqueue(self, conn: SyncConn, /) -> WorkflowHandle:
        """Enqueue all steps in the caller's transaction: they exist if and when it commits.

        Five statements, and one more for each 5,000 steps or 20,000 edges. Locks nothing that others wait for. The same
        workflow may be enqueued again: as another one.

        Args:
            conn: as for ``Task.enqueue``, but not in autocommit mode.

        Raises:
            ConfigurationError: there are no steps, one comes after a step that is not there, or after itself in a circle;
                the message says which, and nothing was written. Or ``conn`` is not accepted.
            SchemaMismatch: the tables are missing or of another version.
        """
        plan = self.plan()
        id, ids = run(conn, enqueue_workflow, self._lq.schema, plan, self._lq.checked)
        return WorkflowHandle(self._lq, id, self.name, dict(zip(plan.names, ids, strict=True)))

    async def aenqueue(self, conn: AsyncConn, /) -> WorkflowHandle:
        """The async twin of :meth:`enqueue`."""
        plan = self.plan()
        id, ids = await arun(conn, enqueue_workflow, self._lq.schema, plan, self._lq.checked)
        return WorkflowHandle(self._lq, id, self.name, dict(zip(plan.names, ids, strict=True)))

    def plan(self) -> Plan:
        """The steps, parents before children, otherwise as they were added.

        Raises:
            ConfigurationError: see :meth:`enqueue`.
        """
        if not self._calls:
            raise ConfigurationError("this workflow has no steps: add() some")
        for name, parents in self._after.items():
            for parent in parents:
                if parent not in self._calls:
                    raise ConfigurationError(f"step {name!r} comes after {parent!r}, which is no step of this workflow")
        order = _sorted(self._after)
        edges = sum(len(parents) for parents in self._after.values())
        if edges > EDGES_MAX:
            raise ConfigurationError(
                f"the workflow has {edges:,} edges, the limit is {EDGES_MAX:,}: where many steps come after many, put one "
                f"step between"
            )
        _refuse_conditional(order, self._after)
        place = {name: number for number, name in enumerate(order)}
        return Plan(
            self.name,
            order,
            [self._calls[name].job for name in order],
            [(place[parent], place[name], kind) for name in order for parent, kind in self._after[name].items()],
        )


def check_call(lq: LeaseQueue, name: str, call: Any) -> None:
    """Refuse what cannot be a step."""
    if not isinstance(call, Call):
        hint = " (add .call(...))" if isinstance(call, Task) else ""
        raise ConfigurationError(f"step {name!r} takes task.call(...), not {call!r}{hint}")
    if call.task.home is not lq:
        raise ConfigurationError(f"step {name!r}: its task {call.task.name} belongs to another LeaseQueue")
    if call.job.unique_key is not None or call.job.hold_key is not None:
        raise ConfigurationError(
            f"step {name!r} carries a unique key (or unique_for, which makes one): the job that holds it may be in no "
            f"workflow, or in another one; enqueue the first step's work under a unique key, and the workflow from there"
        )


def _sorted(after: dict[str, dict[str, str]]) -> list[str]:
    """Parents first, otherwise in the order of addition."""
    names = list(after)
    place = {name: number for number, name in enumerate(names)}
    behind: dict[str, list[str]] = {name: [] for name in names}
    open_parents = {name: len(parents) for name, parents in after.items()}
    for name, parents in after.items():
        for parent in parents:
            behind[parent].append(name)
    ready = [place[name] for name, count in open_parents.items() if not count]
    heapq.heapify(ready)
    order: list[str] = []
    while ready:
        name = names[heapq.heappop(ready)]
        order.append(name)
        for child in behind[name]:
            open_parents[child] -= 1
            if not open_parents[child]:
                heapq.heappush(ready, place[child])
    if len(order) < len(names):
        raise ConfigurationError(f"steps come after each other in a circle: {_circle(after, set(names) - set(order))}")
    return order


def _circle(after: dict[str, dict[str, str]], left: set[str]) -> str:
    """One circle among the steps that are in one or behind one, in words."""
    name = min(left)
    seen: list[str] = []
    while name not in seen:
        seen.append(name)
        name = next(parent for parent in after[name] if parent in left)
    circle = seen[seen.index(name) :]
    start = circle.index(min(circle)) + 1
    circle = circle[start:] + circle[:start]
    shown = [repr(each) for each in reversed(circle[:10])]
    return " -> ".join([*shown, shown[0]])


def _refuse_conditional(order: Sequence[str], after: dict[str, dict[str, str]]) -> None:
    conditional: set[str] = set()
    for name in order:
        kinds = after[name]
        if "f" in kinds.values():
            wrong = sorted(parent for parent in kinds if parent in conditional)
            if wrong:
                raise ConfigurationError(f"step {name!r} fires on {wrong[0]!r}: {CONDITIONAL}")
            conditional.add(name)
        elif any(kind == "x" and parent in conditional for parent, kind in kinds.items()):
            conditional.add(name)
