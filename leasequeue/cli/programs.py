"""Running a program of ``ops`` on a command's own connection."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from leasequeue.errors import ConfigurationError

if TYPE_CHECKING:
    from leasequeue.db.program import Params, Program, Rows, Statement, Target
    from leasequeue.ops.asking import Desk

T = TypeVar("T")


def target() -> Target:
    """The connection as a program sees it."""
    from leasequeue.db.program import Target

    return Target("the command line", None)


def carry_out(desk: Desk, program: Program[T]) -> T:
    """Run it.

    Raises:
        ConfigurationError: the database refuses it, as only the server can judge.
        DatabaseUnavailable, OutcomeUnknown: see ``Link``.
    """
    import psycopg

    from leasequeue.db.program import drive

    def execute(statement: Statement, params: Params) -> Rows:
        return desk.link.run(statement.text, params)

    try:
        return drive(program, execute)
    except (psycopg.DataError, psycopg.IntegrityError, psycopg.errors.InsufficientPrivilege) as error:
        first_line = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ConfigurationError(f"the database refuses it: {first_line}") from error
