"""Running a program of ``ops`` on a command's own connection."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from leasequeue.errors import ConfigurationError

if TYPE_CHECKING:
    from leasequeue.db.connect import Execute
    from leasequeue.db.statement import Params, Program, Rows, Statement, Target
    from leasequeue.ops.asking import Desk

T = TypeVar("T")


def target() -> Target:
    """The connection as a program sees it."""
    from leasequeue.db.statement import Target

    return Target("the command line")


def carry_out(desk: Desk, program: Program[T]) -> T:
    """Run it, in one transaction.

    Raises:
        ConfigurationError: the database refuses it, as only the server can judge.
        DatabaseUnavailable, OutcomeUnknown: see ``Link``.
    """
    import psycopg

    from leasequeue.db.statement import drive

    def steps(execute: Execute) -> T:
        def one(statement: Statement, params: Params) -> Rows:
            return execute(statement.text, params)

        return drive(program, one)

    try:
        return desk.link.transact(steps)
    except (psycopg.DataError, psycopg.IntegrityError, psycopg.errors.InsufficientPrivilege) as error:
        first_line = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ConfigurationError(f"the database refuses it: {first_line}") from error
