"""Which version the tables have: a comment on the table of jobs, read by name without ever failing."""

from __future__ import annotations

import re

from leasequeue.errors import SchemaMismatch

VERSION = 1
"""The version this code was written for. It also works with the next one: migrate first, then roll."""

PROBE = "SELECT obj_description(to_regclass(quote_ident(CAST(:schema AS text)) || '.leasequeue_job'), 'pg_class')"
"""The comment, or NULL where there is no such table; ``:schema`` is the unquoted name."""

LINK_PROBE = PROBE.replace(":schema", "%(schema)s")
"""The same in psycopg's form."""

_MARK = "leasequeue schema version "
_COMMENT = re.compile(_MARK + r"(\d+)")


def comment(number: int) -> str:
    """The comment that the tables of a version carry."""
    return f"{_MARK}{number}"


def statements(schema: str) -> dict[str, str]:
    """Name and text of each statement, for the golden files; the schema is a parameter."""
    return {"probe": LINK_PROBE}


def parse(comment: str | None) -> int | None:
    """The version that a comment says; None where there are no tables."""
    found = _COMMENT.search(comment or "")
    return int(found.group(1)) if found else None


def check(found: int | None, schema: str) -> None:
    """Accept this version and the next.

    Raises:
        SchemaMismatch: it says what to run.
    """
    if found not in (VERSION, VERSION + 1):
        raise SchemaMismatch(schema, found, VERSION)
