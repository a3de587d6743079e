"""Names that go into statements: quoted, never interpolated raw."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

_CHANNEL = "leasequeue:"
_LEASES = "leasequeue lease:"
CANCEL = "cancel:"
"""What a payload begins with, on the channel of a schema, that names a job which is to be cancelled."""
_NAME_BYTES_MAX = 63
"""The longest identifier of PostgreSQL."""


def qualify(schema: str) -> str:
    """The quoted identifier of a schema, for ``{s}`` in the statements."""
    return '"' + schema.replace('"', '""') + '"'


def fill(schema: str, texts: Mapping[str, str]) -> dict[str, str]:
    """Statements as psycopg takes them: ``{s}`` is the quoted schema, ``{seq}`` the sequence of its terms, in a literal."""
    quoted = qualify(schema)
    literal = f"{quoted}.leasequeue_term".replace("'", "''").replace("%", "%%")
    return {name: text.format(s=quoted.replace("%", "%%"), seq=literal) for name, text in texts.items()}


def channel(schema: str) -> str:
    """The channel on which enqueues are announced for one schema; a name too long for it is replaced by its hash."""
    return _channel(_CHANNEL, schema)


def lease_channel(schema: str) -> str:
    """The channel on which released leases are announced for one schema, likewise."""
    return _channel(_LEASES, schema)


def _channel(prefix: str, schema: str) -> str:
    name = prefix + schema
    if len(name.encode()) <= _NAME_BYTES_MAX:
        return name
    return prefix + hashlib.sha256(schema.encode()).hexdigest()[:32]
