"""How the steps of a workflow stand: plain data, and what follows from it. Pure."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from leasequeue.moment import moment

LIVE = ("running", "suspect", "waiting", "ready", "scheduled")


@dataclass(frozen=True, slots=True)
class WorkflowStatus:
    """How a workflow stands.

    Attributes:
        state: ``running`` while a step has not ended; then ``failed`` if one has failed or expired, else ``gone`` if the
            history of one is gone, so that nobody knows, else ``cancelled`` if one was cancelled, else ``succeeded``.
        counts: steps by their state: scheduled, ready, waiting, running, suspect; succeeded, failed, cancelled, expired,
            skipped (it was to run on a failure, and there was none), gone (its history is no more: it is kept as long as the
            workflow is, but somebody may delete it).
    """

    state: str
    counts: dict[str, int]


@dataclass(frozen=True, slots=True)
class StepRow:
    """One step as it stands.

    Attributes:
        after: names of the steps that it comes after, with ``x``, ``c`` or ``f`` for what their failure means.
        error: the beginning of it.
    """

    name: str
    job_id: int
    task: str | None
    state: str
    attempt: int | None
    after: dict[str, str]
    error: str | None
    finished_at: dt.datetime | None


def state_of(counts: dict[str, int]) -> str:
    """The state of the whole, by the counts of its steps."""
    if counts.keys() & set(LIVE):
        return "running"
    if counts.keys() & {"failed", "expired"}:
        return "failed"
    if "gone" in counts:
        return "gone"
    return "cancelled" if "cancelled" in counts else "succeeded"


def step_rows(steps: list[tuple[Any, ...]], edges: list[tuple[Any, ...]]) -> list[StepRow]:
    """From what ``list_steps`` and ``list_edges`` return."""
    names = {row[1]: row[0] for row in steps}
    after: dict[int, dict[str, str]] = {}
    for parent, child, kind in edges:
        if parent in names:
            after.setdefault(child, {})[names[parent]] = kind
    return [
        StepRow(name, id, task, state, attempt, after.get(id, {}), error, moment(finished))
        for name, id, task, state, attempt, error, finished in steps
    ]


class Line(NamedTuple):
    """A line of the tree: how deep it stands, and a step, or a word for those that are left out.

    Attributes:
        last: for each level from the top, whether it is the last one there.
    """

    last: tuple[bool, ...]
    step: StepRow | None
    more: str = ""


CHILDREN_SHOWN = 12
"""Of each step; those that have not simply succeeded come first."""


def tree(steps: Sequence[StepRow]) -> Iterator[Line]:
    """The steps as a tree, each once: under the last of those that it comes after."""
    place = {step.name: number for number, step in enumerate(steps)}
    behind: dict[str | None, list[StepRow]] = {}
    for step in steps:
        above = max(step.after, key=place.__getitem__, default=None)
        behind.setdefault(above, []).append(step)
    stack: list[tuple[StepRow | str, tuple[bool, ...]]]
    stack = [(step, (last,)) for step, last in reversed(_shown(behind.get(None, [])))]
    while stack:
        step_or_word, levels = stack.pop()
        if isinstance(step_or_word, str):
            yield Line(levels, None, step_or_word)
            continue
        yield Line(levels, step_or_word)
        stack += [(below, (*levels, ends)) for below, ends in reversed(_shown(behind.get(step_or_word.name, [])))]


def _shown(steps: list[StepRow]) -> list[tuple[StepRow | str, bool]]:
    shown: list[StepRow | str] = list(steps)
    if len(steps) > CHILDREN_SHOWN:
        notable = [step for step in steps if step.state not in ("succeeded", "waiting", "skipped")][:CHILDREN_SHOWN]
        names = {step.name for step in (notable + steps)[:CHILDREN_SHOWN]}
        shown = [step for step in steps if step.name in names]
        left = Counter(step.state for step in steps if step.name not in names)
        shown.append("and " + ", ".join(f"{count:,} {state}" for state, count in left.most_common()))
    return [(step, number == len(shown) - 1) for number, step in enumerate(shown)]
