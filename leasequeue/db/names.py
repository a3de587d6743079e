"""Names that go into statements: quoted, never interpolated raw."""

from __future__ import annotations

import hashlib

_CHANNEL = "leasequeue:"
_NAME_BYTES_MAX = 63
"""The longest identifier of PostgreSQL."""


def qualify(schema: str) -> str:
    """The quoted identifier of a schema, for ``{s}`` in the statements."""
    return '"' + schema.replace('"', '""') + '"'


def channel(schema: str) -> str:
    """The channel on which enqueues are announced for one schema; a name too long for it is replaced by its hash."""
    name = _CHANNEL + schema
    if len(name.encode()) <= _NAME_BYTES_MAX:
        return name
    return _CHANNEL + hashlib.sha256(schema.encode()).hexdigest()[:32]
