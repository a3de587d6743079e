"""JSON as the database holds it, which anybody may have written. Pure."""

from __future__ import annotations

import json
from typing import Any


def from_json(text: str | None) -> Any:
    """The value of a JSON text, or the text itself where Python refuses to read it (too deep, 5,000 digits)."""
    if text is None:
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text
