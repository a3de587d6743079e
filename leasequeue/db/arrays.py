"""Arrays as parameters of our own statements, written as text: psycopg takes several times as long, element by element.

Each is cast where it stands in the statement (``%(ids)s::bigint[]``). Pure.
"""

from __future__ import annotations

from collections.abc import Iterable


def numbers(values: Iterable[float | None]) -> str:
    """For arrays of integers, floats and booleans."""
    return "{" + ",".join(["NULL" if value is None else str(value) for value in values]) + "}"


def texts(values: Iterable[str | None]) -> str:
    """For arrays of text, or of what is cast from text."""
    return "{" + ",".join([_quoted(value) for value in values]) + "}"


def _quoted(value: str | None) -> str:
    if value is None:
        return "NULL"
    if "\\" in value:
        value = value.replace("\\", "\\\\")
    if '"' in value:
        value = value.replace('"', '\\"')
    return f'"{value}"'
