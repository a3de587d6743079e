"""Converters for annotations: unions, containers, enums, dataclasses, TypedDicts, pydantic models. Pure.

A converter is built once per annotation. What it stores it reads back as the same value; where a union leaves open which of
its types a stored value was, the value is refused at enqueue rather than brought back as another one.
"""

from __future__ import annotations

import abc
import collections.abc
import contextlib
import dataclasses
import enum
import functools
import inspect
import json
import types
import typing
from collections.abc import Callable
from datetime import date
from typing import Any

from leasequeue.annotations import class_hints, filled
from leasequeue.values import (
    NATIVE,
    SIMPLE,
    Converter,
    Mismatch,
    check_key,
    check_native,
    expected,
    pydantic_model,
    shown,
)

_SEQUENCES: dict[Any, tuple[tuple[type, ...], Callable[[list[Any]], Any]]] = {
    list: ((list,), list),
    tuple: ((tuple,), tuple),
    set: ((set,), set),
    frozenset: ((frozenset,), frozenset),
    collections.abc.Sequence: ((list, tuple), list),
    collections.abc.MutableSequence: ((list,), list),
    collections.abc.Collection: ((list, tuple), list),
    collections.abc.Iterable: ((list, tuple), list),
    collections.abc.Set: ((set, frozenset), frozenset),
    collections.abc.MutableSet: ((set,), set),
}
_MAPPINGS = (dict, collections.abc.Mapping, collections.abc.MutableMapping)


def converter(annotation: Any) -> Converter:
    """The converter of an annotation; one that means nothing to us is carried as JSON's own types."""
    try:
        return _cached(annotation)
    except TypeError:  # an annotation that cannot be hashed
        return _build(annotation)


def _build(annotation: Any) -> Converter:
    try:
        if (simple := SIMPLE.get(annotation)) is not None:
            return simple
    except TypeError:
        pass
    origin, args = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (typing.Annotated, typing.Required, typing.NotRequired):
        return converter(args[0])
    if origin in (typing.Union, types.UnionType):
        return _union(args, str(annotation).replace("typing.", ""))
    if origin is typing.Literal:
        return _literal(args)
    if isinstance(annotation, typing.NewType):
        return converter(annotation.__supertype__)
    if type(annotation).__name__ == "TypeAliasType":  # `type X = ...`, from Python 3.12 on; it may name itself
        return Converter(
            lambda value: converter(annotation.__value__).encode(value),
            lambda value: converter(annotation.__value__).decode(value),
        )
    base: Any = origin or annotation
    if base in _SEQUENCES:
        return _sequence(base, args)
    if base in _MAPPINGS:
        return _mapping(args)
    return _of_class(base, args) if isinstance(base, type) else NATIVE


_cached = functools.lru_cache(maxsize=4096)(_build)


def _of_class(kind: type, args: tuple[Any, ...]) -> Converter:
    if issubclass(kind, enum.Enum):
        return _enum(kind)
    if hasattr(kind, "__required_keys__"):
        return _typed_dict(kind)
    if hasattr(kind, "model_validate_json") and hasattr(kind, "model_dump"):
        return pydantic_model(kind)
    if dataclasses.is_dataclass(kind):
        return _dataclass(kind, args)
    if isinstance(kind, abc.ABCMeta):  # says what a value can do, not what it is; protocols are of it too
        return NATIVE
    return _refused(kind)


def _refused(kind: type) -> Converter:
    name = kind.__qualname__

    def encode(value: Any) -> Any:
        if not isinstance(value, kind):
            raise expected(f"a {name}", value)
        raise Mismatch(f"a {name} cannot be carried as JSON; pass its key and load it in the task, or pass a dataclass")

    def decode(value: Any) -> Any:
        raise Mismatch(f"nothing turns JSON into a {name}")

    return Converter(encode, decode)


# Unions

_RANK: dict[Any, int] = {date: 0, float: 2, str: 3, Any: 4, object: 4}
"""Narrow before wide: any text is a str, every date is the text of a datetime, every whole number a float."""


def _union(args: tuple[Any, ...], name: str) -> Converter:
    rest = [arg for arg in args if arg is not type(None)]
    # The order must not come from the source: Python takes A | B and B | A for equal, and so does the cache.
    rest.sort(key=lambda arg: (_RANK.get(arg, 1) if isinstance(arg, collections.abc.Hashable) else 1, str(arg)))
    inner = converter(rest[0]) if len(rest) == 1 else _choice([converter(arg) for arg in rest], name)
    if len(rest) == len(args):
        return inner
    return Converter(
        lambda value: None if value is None else inner.encode(value),
        lambda value: None if value is None else inner.decode(value),
    )


def _choice(arms: list[Converter], name: str) -> Converter:
    def read(stored: Any) -> tuple[int, Any]:
        for number, arm in enumerate(arms):
            try:
                return number, arm.decode(stored)
            except Mismatch:
                continue
        raise expected(name, stored)

    def encode(value: Any) -> Any:
        near: list[Any] = []
        wrong: Mismatch | None = None
        for number, arm in enumerate(arms):
            try:
                stored = arm.encode(value)
                reader, back = read(stored)
            except Mismatch:
                continue
            if type(back) is type(value) and back == value:
                return stored
            if reader == number:
                near.append(stored)
            else:
                wrong = Mismatch(f"{shown(value)} would come back as {shown(back)} from {name}; annotate one type")
        if near:
            return near[0]
        raise wrong or expected(name, value)

    return Converter(encode, lambda stored: read(stored)[1])


def _literal(allowed: tuple[Any, ...]) -> Converter:
    stored = [converter(type(one)).encode(one) for one in allowed]
    name = "one of " + ", ".join(map(repr, allowed))

    def pick(value: Any, keys: list[Any], values: list[Any]) -> Any:
        for key, found in zip(keys, values, strict=True):
            if type(key) is type(value) and key == value:
                return found
        raise expected(name, value)

    return Converter(
        lambda value: pick(value, list(allowed), stored),
        lambda value: pick(value, stored, list(allowed)),
    )


# Containers


def _sequence(kind: Any, args: tuple[Any, ...]) -> Converter:
    accepted: Any
    accepted, build = _SEQUENCES[kind]
    is_set = bool({set, frozenset} & set(accepted))
    fixed = kind is tuple and bool(args) and Ellipsis not in args
    items = [converter(arg) for arg in args if arg is not Ellipsis] or [NATIVE]
    write, read = items[0]
    name = f"a {kind.__name__}"

    def check_length(value: collections.abc.Sized) -> None:
        if len(value) != len(items):
            raise Mismatch(f"expected {len(items)} items, found {len(value)}")

    def encode(value: Any) -> list[Any]:
        if not isinstance(value, accepted):
            raise expected(name, value)
        if fixed:
            check_length(value)
            return [item.encode(one) for item, one in zip(items, value, strict=True)]
        found = [write(one) for one in value]
        if is_set:
            # Objects, say, have no order, and none is needed to read them back.
            with contextlib.suppress(TypeError):
                found.sort()
        return found

    def decode(value: Any) -> Any:
        if not isinstance(value, list):
            raise expected(f"{name} as a JSON array", value)
        if fixed:
            check_length(value)
            return build([item.decode(one) for item, one in zip(items, value, strict=True)])
        try:
            return build([read(one) for one in value])
        except TypeError:  # a set of what cannot be hashed
            raise expected(name, value) from None

    return Converter(encode, decode)


def _mapping(args: tuple[Any, ...]) -> Converter:
    keys, items = (converter(args[0]), converter(args[1])) if args else (SIMPLE[str], NATIVE)
    plain = not args or args[0] in (str, Any)

    def encode(value: Any) -> dict[str, Any]:
        if not isinstance(value, collections.abc.Mapping):
            raise expected("a dict", value)
        found = {}
        for key, item in value.items():
            text = check_key(key) if plain else key_text(keys.encode(key))
            if not plain and (text in found or _key_back(keys, text) != key):
                raise Mismatch(f"the key {shown(key)} would not come back; annotate keys of one type")
            found[text] = items.encode(item)
        return found

    def decode(value: Any) -> dict[Any, Any]:
        if not isinstance(value, dict):
            raise expected("a JSON object", value)
        if plain:
            return {key: items.decode(item) for key, item in value.items()}
        try:
            return {_key_back(keys, key): items.decode(item) for key, item in value.items()}
        except TypeError:  # a key that cannot be hashed
            raise expected("a JSON object", value) from None

    return Converter(encode, decode)


def key_text(key: Any) -> str:
    """An encoded value as the key of a JSON object."""
    if isinstance(key, bool):
        return "true" if key else "false"
    if isinstance(key, (int, float)):
        return json.dumps(check_native(key))
    return check_key(key)


def _key_back(keys: Converter, key: str) -> Any:
    try:
        return keys.decode(key)
    except Mismatch:
        for read in (int, float, {"true": True, "false": False}.__getitem__):
            try:
                return keys.decode(read(key))
            except (ValueError, KeyError, Mismatch):
                continue
        raise


# Classes


def _enum(kind: type[enum.Enum]) -> Converter:
    def stored(member: enum.Enum) -> Any:
        value = member.value
        return [check_native(one) for one in value] if type(value) is tuple else converter(type(value)).encode(value)

    def encode(value: Any) -> Any:
        if not isinstance(value, kind):
            raise expected(f"a {kind.__qualname__}", value)
        return stored(value)

    def decode(value: Any) -> enum.Enum:
        for member in kind:
            try:
                if stored(member) == value:
                    return member
            except Mismatch:
                continue
        try:
            return kind(value)  # several flags at once, or what the enum's own _missing_ knows
        except Exception:  # noqa: BLE001  # _missing_ is the application's
            raise expected(f"a value of {kind.__qualname__}", value) from None

    return Converter(encode, decode)


def _check_names(name: str, found: dict[Any, Any], hints: dict[str, Any], required: frozenset[str]) -> None:
    lacking = sorted(required - found.keys())
    unknown = [field for field in found if field not in hints]
    if lacking or unknown:
        raise Mismatch(
            f"does not fit {name}: missing {', '.join(lacking) or 'nothing'}, "
            f"unknown {', '.join(map(shown, unknown[:5])) or 'nothing'}{' ...' if len(unknown) > 5 else ''}"
        )


def _fields(
    kind: Any, hints: dict[str, Any], required: frozenset[str], read: Callable[[Any], dict[str, Any]], make: Any
) -> Converter:
    """An object with named fields. Those are looked up late, so that a type may refer to itself."""
    name = kind.__qualname__

    def encode(value: Any) -> dict[str, Any]:
        found = read(value)
        _check_names(name, found, hints, required)
        return {field: converter(hints[field]).encode(item) for field, item in found.items()}

    def decode(value: Any) -> Any:
        if not isinstance(value, dict):
            raise expected(f"a {name} as a JSON object", value)
        _check_names(name, value, hints, required)
        found = {field: converter(hints[field]).decode(item) for field, item in value.items()}
        try:
            return make(**found)
        except Exception as error:  # noqa: BLE001  # __post_init__ is the application's
            raise Mismatch(f"does not fit {name}: {error}") from None

    return Converter(encode, decode)


def _typed_dict(kind: Any) -> Converter:
    try:
        hints = typing.get_type_hints(kind, include_extras=True)
    except Exception:  # noqa: BLE001  # as in resolve()
        hints = {**dict.fromkeys(kind.__annotations__, Any), **class_hints(kind)}
    # Of annotations that are texts the class itself does not know which are NotRequired.
    marks = {field: typing.get_origin(hint) for field, hint in hints.items()}
    required = frozenset(field for field in kind.__required_keys__ if marks.get(field) is not typing.NotRequired)
    required |= {field for field, mark in marks.items() if mark is typing.Required}

    def read(value: Any) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise expected(f"a dict as {kind.__qualname__}", value)
        return value

    return _fields(kind, hints, required, read, dict)


def _dataclass(kind: Any, args: tuple[Any, ...]) -> Converter:
    try:
        hints = typing.get_type_hints(kind)
    except Exception:  # noqa: BLE001  # as in resolve()
        hints = class_hints(kind)
    fields = [field for field in dataclasses.fields(kind) if field.init]
    missing = dataclasses.MISSING
    required = frozenset(one.name for one in fields if one.default is missing and one.default_factory is missing)
    given = dict(zip(getattr(kind, "__parameters__", ()), args, strict=False))
    names = {field.name: filled(hints.get(field.name, Any), given) for field in fields}

    def read(value: Any) -> dict[str, Any]:
        if type(value) is not kind:  # a subclass would come back without what it adds
            raise expected(f"a {kind.__qualname__}", value)
        return {name: getattr(value, name) for name in names}

    made = _fields(kind, names, required, read, kind)
    # What __init__ takes and gives must be the fields, or what was stored cannot be made again, or comes back changed.
    if dataclasses.fields(kind) == tuple(fields) and set(inspect.signature(kind).parameters) == set(names):
        return made

    def encode(value: Any) -> Any:
        stored = made.encode(value)
        if made.decode(stored) != value:
            raise Mismatch(f"a {kind.__qualname__} does not come back as it was: its __init__ does not take all fields")
        return stored

    return Converter(encode, made.decode)
