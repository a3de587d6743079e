from __future__ import annotations

from typing import Any

import pytest

from leasequeue.ops import workflows
from leasequeue.ops.asking import Desk
from tests.support.databases import Database
from tests.workflow.hands import flow


def test_a_list_is_one_statement_that_looks_at_so_many_steps(
    desk: Desk, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workflows, "COUNT_BUDGET", 6)
    monkeypatch.setattr(workflows, "COUNT_FLOOR", 1)
    wide, _ = flow(database, {f"s{n}": {} for n in range(8)})
    small, _ = flow(database, {"a": {}, "b": {"a": "x"}})
    bare = database.scalar("INSERT INTO leasequeue_workflow (created_at) VALUES (now() + interval '1 s') RETURNING id")
    asked: list[str] = []
    ask = desk.ask

    def noted(name: str, params: dict[str, object]) -> list[tuple[Any, ...]]:
        asked.append(name)
        return ask(name, params)

    monkeypatch.setattr(desk, "ask", noted)
    rows = workflows.list_workflows(desk, limit=3)
    assert asked == ["workflow_recent"]
    assert [(row.id, row.state, row.counts, row.capped) for row in rows] == [
        (bare, "succeeded", {}, False),
        (small, "running", {"ready": 1, "waiting": 1}, False),
        (wide, "running", {"ready": 3}, True),
    ]
