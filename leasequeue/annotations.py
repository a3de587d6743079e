"""What annotations mean: names in them looked up, type variables filled in. Pure."""

from __future__ import annotations

import inspect
import sys
import types
import typing
from collections.abc import Mapping
from typing import Any


def resolve(annotations: Mapping[str, Any], known: Mapping[str, Any]) -> dict[str, Any]:
    """Annotations with the names in their texts looked up.

    One that cannot be resolved (it is imported for type checkers only) is left out, as if it were not there.

    Args:
        annotations: as they stand in the source: types, or texts.
        known: what the names mean, such as a module's globals.
    """
    found = {}
    for name, annotation in annotations.items():
        try:
            holder = types.SimpleNamespace(__annotations__={name: annotation})
            found.update(typing.get_type_hints(holder, dict(known), include_extras=True))
        except Exception:  # noqa: BLE001, S112  # evaluating annotations runs the application's names
            continue
    return found


def class_hints(kind: type) -> dict[str, Any]:
    """The annotations of a class's fields, where ``typing.get_type_hints`` gives up because of one of them."""
    found: dict[str, Any] = {}
    for base in reversed(kind.__mro__):
        # The class itself too: one made inside a function is in no module's globals.
        known = {**vars(sys.modules.get(base.__module__, types)), base.__name__: base}
        try:
            found.update(resolve(inspect.get_annotations(base), known))
        except Exception:  # noqa: BLE001, S112  # as in resolve()
            continue
    return found


def filled(hint: Any, given: dict[Any, Any]) -> Any:
    """The annotation of a generic class's field, where it is known what its type variables stand for."""
    if isinstance(hint, typing.TypeVar):
        return given.get(hint, Any)
    inside = getattr(hint, "__parameters__", ())
    return hint[tuple(given.get(one, Any) for one in inside)] if inside and not isinstance(hint, type) else hint
