"""The two forms of a statement."""

from __future__ import annotations

from sqlalchemy.dialects import postgresql

from leasequeue.db.names import fill
from leasequeue.db.statement import Statement


def test_text_becomes_a_core_construct() -> None:
    """Whatever characters the name of a schema brings in: a percent sign before what looks like a parameter, colons."""
    (text,) = fill("50%(a)s:b", {"one": "SELECT %(a)s::text || ':c', 7 %% 2 FROM {s}.t WHERE x = %(b1)s::int"}).values()
    core = Statement(text).core
    compiled = core.compile(dialect=postgresql.dialect(paramstyle="named"))  # type: ignore[attr-defined,no-untyped-call]
    assert str(compiled) == "SELECT :a::text || ':c', 7 % 2 FROM \"50%(a)s:b\".t WHERE x = :b1::int"
    assert set(compiled.params) == {"a", "b1"}
