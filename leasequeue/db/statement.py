"""Statements, what a program is, and the driver that runs one over a connection of our own.

SQLAlchemy is imported only where a Core construct is asked for: a process whose statements are written as text, such as
the supervisor, never loads it. The kinds of connection that callers bring are in ``program.py``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, cast

if TYPE_CHECKING:
    from sqlalchemy import Executable
    from sqlalchemy.sql.elements import ClauseElement

T = TypeVar("T")

Rows: TypeAlias = list[tuple[Any, ...]]
Params: TypeAlias = dict[str, Any]
Program: TypeAlias = "Generator[tuple[Statement, Params], Rows, T]"

_SPECIAL = re.compile(r"%%|:|%\((\w+)\)s")


class Statement:
    """One statement: a Core construct, and the same as text with ``%(name)s`` for DBAPI cursors.

    Made once per schema and shape and kept, so that SQLAlchemy's cache key and the text are computed once. Each form is
    made of the other when it is first asked for. Thread-safe: two threads may both make it, and both forms are right.

    Args:
        form: a Core construct; or text as psycopg takes it, with ``%(name)s``, and ``%%`` for a percent sign. Each
            parameter is to be cast there: some drivers ask the server for its type.
    """

    __slots__ = ("_core", "_text")

    def __init__(self, form: Executable | str) -> None:
        self._core = None if isinstance(form, str) else form
        self._text = form if isinstance(form, str) else None

    @property
    def core(self) -> Executable:
        if self._core is None:
            from sqlalchemy import text

            plain = {"%%": "%", ":": "\\:"}
            form = cast(str, self._text)
            self._core = text(_SPECIAL.sub(lambda found: plain.get(found[0]) or f":{found[1]}", form))
        return self._core

    @property
    def text(self) -> str:
        if self._text is None:
            from sqlalchemy.dialects.postgresql.psycopg2 import dialect

            # The dialect of psycopg2 writes no ::TYPE behind parameters; it is only a renderer here.
            renderer = dialect()  # type: ignore[no-untyped-call]  # its constructor is
            self._text = str(cast("ClauseElement", self._core).compile(dialect=renderer))
        return self._text


class Copy(Statement):
    """A ``COPY ... FROM STDIN``: what is sent is the parameter ``data``, an iterator of text. Only where
    :attr:`Target.copies` says so.
    """

    __slots__ = ()


class Target:
    """What a program may know of the connection that it runs over."""

    __slots__ = ("copies", "database")

    def __init__(self, database: object, copies: bool = False) -> None:
        self.copies = copies
        """Whether a :class:`Copy` can be run there."""
        self.database = database
        """A tuple, a name, or an object that can be referred to weakly; equal for connections of one database, as far as can be
        told without asking it."""

    def may_notify(self, channel: str, queue: str) -> bool:
        """Whether a NOTIFY for the queue belongs into this transaction; True also notes that it is in it."""
        return True  # the commit of a DBAPI connection cannot be seen, so nothing can be saved

    def doom(self) -> None:
        """See that nothing of the present transaction can be committed, as far as the connection lets us.

        The server's error aborts no more than the innermost savepoint.
        """


def drive(program: Program[T], execute: Callable[[Statement, Params], Rows]) -> T:
    """Run a program by a function that executes one statement; our own connections have one.

    Each error goes through the program, which may know better what it means.
    """
    try:
        statement, params = next(program)
        while True:
            try:
                rows = execute(statement, params)
            except Exception as error:  # noqa: BLE001  # handed to the program, which raises it or a better one
                statement, params = program.throw(error)
            else:
                statement, params = program.send(rows)
    except StopIteration as stop:
        return cast(T, stop.value)
