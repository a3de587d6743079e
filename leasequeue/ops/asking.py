"""How questions and actions reach the database: statements by name, and errors that say what to do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import psycopg

from leasequeue.db import admin, inspect, leases, ledger, workflows
from leasequeue.db.ends import end_statements
from leasequeue.db.version import LINK_PROBE, VERSION, check, parse
from leasequeue.errors import ConfigurationError, SchemaMismatch
from leasequeue.moment import moment

if TYPE_CHECKING:
    from leasequeue.db.connect import Link

__all__ = ["Desk", "moment"]


class Desk:
    """A connected Link, the schema, and the version of its tables. Used by one thread at a time.

    Making one reads the version.

    Raises:
        SchemaMismatch: the tables are missing or of another version; it says what to run.
        DatabaseUnavailable: see ``Link.run``.
    """

    def __init__(self, link: Link, schema: str) -> None:
        self.link = link
        self.schema = schema
        found = parse(link.run(LINK_PROBE, {"schema": schema})[0][0])
        check(found, schema)
        self.version: int = found or VERSION
        self._statements = (
            inspect.statements(schema)
            | admin.statements(schema)
            | ledger.statements(schema)
            | {f"workflow_{name}": text for name, text in workflows.statements(schema).items()}
            | {"cancel_joined": end_statements(schema).cancel}
            | {name: getattr(leases.lease_statements(schema), name) for name in ("force", "resize")}
        )

    def ask(
        self, name: str, params: Mapping[str, object] | None = None, *, bound_seconds: float | None = None
    ) -> list[tuple[Any, ...]]:
        """Run a statement of ``db.inspect``, ``db.ledger``, ``db.admin`` (or an operator's of ``db.leases``) by its name.

        Raises:
            SchemaMismatch: the tables went away.
            ConfigurationError: this user may not do it.
            DatabaseUnavailable, OutcomeUnknown: see ``Link.run``.
        """
        try:
            # Always with parameters, if empty: the texts are written for it (a literal % is doubled).
            return self.link.run(self._statements[name], params or {}, bound_seconds=bound_seconds)
        except (psycopg.errors.UndefinedTable, psycopg.errors.UndefinedColumn) as error:
            raise SchemaMismatch(self.schema, None, VERSION) from error
        except psycopg.errors.InsufficientPrivilege as error:
            raise ConfigurationError(
                f"the database refuses it to this user ({_first_line(error)}): GRANT what is missing on the tables "
                f"leasequeue_* of schema {self.schema!r} (and USAGE on the schema), or use another user"
            ) from error


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
