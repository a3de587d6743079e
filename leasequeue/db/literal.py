"""Statements that are executed as they stand, whatever characters a schema's name brings into them."""

from __future__ import annotations

from typing import Any

from sqlalchemy import TextClause, text
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.schema import ExecutableDDLElement


def literal(sql: str) -> TextClause:
    """A statement without parameters, to be executed: ``:`` and ``%`` in it mean themselves under every driver."""
    return text(sql.replace(":", "\\:"))


class Script(ExecutableDDLElement):
    """A statement to be written to a script, never executed.

    A ``text()`` would come out with every ``%`` doubled when the environment that writes the script (``alembic upgrade
    --sql``) names a driver whose placeholders begin with one.
    """

    def __init__(self, sql: str) -> None:
        self.sql = sql


@compiles(Script)
def _verbatim(element: Script, compiler: Any, **kw: Any) -> str:
    return element.sql
