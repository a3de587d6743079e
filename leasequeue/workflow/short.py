"""Short forms: a chain, a group, a batch with callbacks. Each is a workflow whose steps are numbered for you."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from leasequeue.errors import ConfigurationError
from leasequeue.task import Call
from leasequeue.workflow.build import Node, Workflow, continues, fires

if TYPE_CHECKING:
    from leasequeue.db.kinds import AsyncConn, SyncConn
    from leasequeue.queue import LeaseQueue
    from leasequeue.workflow.handle import WorkflowHandle


class _Short:
    """What the short forms have in common. Immutable; may be enqueued again, as another workflow."""

    def workflow(self, name: str | None = None) -> Workflow:
        """The workflow that it stands for, to be looked at or added to. Steps are named ``1:task``, ``2:task`` ..."""
        made = Workflow(self._home(), name)
        self._place(made, [])
        return made

    def enqueue(self, conn: SyncConn, /) -> WorkflowHandle:
        """Enqueue it in the caller's transaction; see :meth:`Workflow.enqueue`."""
        return self.workflow().enqueue(conn)

    async def aenqueue(self, conn: AsyncConn, /) -> WorkflowHandle:
        """The async twin of :meth:`enqueue`."""
        return await self.workflow().aenqueue(conn)

    def _place(self, made: Workflow, after: list[Node]) -> list[Node]:
        """Add the steps after those; returns the last ones."""
        raise NotImplementedError

    def _calls(self) -> Iterable[Call[Any]]:
        raise NotImplementedError

    def _home(self) -> LeaseQueue:
        first = next(iter(self._calls()), None)
        if first is None:
            raise ConfigurationError("there is nothing in it to enqueue: give it calls")
        return cast("LeaseQueue", first.task.home)


Part: TypeAlias = "Call[Any] | Chain | Group"


def _parts(kind: str, parts: tuple[Any, ...]) -> tuple[Part, ...]:
    flat: list[Any] = []
    for part in parts:
        flat += list(part) if isinstance(part, (list, tuple)) else [part]
    for part in flat:
        if not isinstance(part, (Call, Chain, Group)):
            raise ConfigurationError(f"{kind}() takes task.call(...), chain(...) and group(...), not {part!r}")
    return tuple(flat)


def _place(made: Workflow, part: Part, after: list[Node]) -> list[Node]:
    if isinstance(part, Call):
        return [made.add(f"{len(made) + 1}:{part.task.name}"[:200], part, after=after)]
    return part._place(made, after)


def _calls(parts: Iterable[Part]) -> Iterable[Call[Any]]:
    for part in parts:
        if isinstance(part, Call):
            yield part
        else:
            yield from part._calls()


class Chain(_Short):
    """Parts one after the other, each when the one before has succeeded. Made by :func:`chain`."""

    def __init__(self, parts: tuple[Part, ...]) -> None:
        self.parts = parts

    def _place(self, made: Workflow, after: list[Node]) -> list[Node]:
        for part in self.parts:
            after = _place(made, part, after)
        return after

    def _calls(self) -> Iterable[Call[Any]]:
        return _calls(self.parts)


class Group(_Short):
    """Parts beside each other; what comes after it waits for all of them. Made by :func:`group`."""

    def __init__(self, parts: tuple[Part, ...]) -> None:
        self.parts = parts

    def _place(self, made: Workflow, after: list[Node]) -> list[Node]:
        return [node for part in self.parts for node in _place(made, part, after)] or after

    def _calls(self) -> Iterable[Call[Any]]:
        return _calls(self.parts)


class Batch(_Short):
    """Calls beside each other, with callbacks. Made by :func:`batch`."""

    def __init__(
        self, calls: tuple[Call[Any], ...], on_completed: Call[Any] | None, on_failure: Call[Any] | None
    ) -> None:
        self.calls = calls
        self.on_completed = on_completed
        self.on_failure = on_failure

    def _place(self, made: Workflow, after: list[Node]) -> list[Node]:
        members = [node for call in self.calls for node in _place(made, call, after)]
        if self.on_completed is not None:
            made.add("on_completed", self.on_completed, after=continues(members))
        if self.on_failure is not None:
            made.add("on_failure", self.on_failure, after=fires(members))
        return members

    def _calls(self) -> Iterable[Call[Any]]:
        return self.calls


def chain(*parts: Part | list[Call[Any]]) -> Chain:
    """One after the other: ``chain(fetch.call(), group(a.call(), b.call()), publish.call()).enqueue(conn)``.

    A part that fails cancels those behind it. ``current_job().workflow.results()`` gives a step the results of the part
    before it.

    Raises:
        ConfigurationError: something else than calls, chains and groups.
    """
    return Chain(_parts("chain", parts))


def group(*parts: Part | list[Call[Any]]) -> Group:
    """Beside each other; raises as :func:`chain` does."""
    return Group(_parts("group", parts))


def batch(
    calls: Iterable[Call[Any]], *, on_completed: Call[Any] | None = None, on_failure: Call[Any] | None = None
) -> Batch:
    """Calls beside each other, and callbacks.

    Args:
        on_completed: runs once when all have ended, however each ended.
        on_failure: runs once, as soon as the first has failed for good (or was cancelled, or expired).
    """
    members = _parts("batch", tuple(calls))
    if not all(isinstance(each, Call) for each in members):
        raise ConfigurationError("batch() takes task.call(...); nest chains and groups in chain() and group()")
    return Batch(cast("tuple[Call[Any], ...]", members), on_completed, on_failure)
