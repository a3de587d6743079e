"""How single values become JSON and come back, by their annotation. Pure.

What stands in the database is plain: ISO 8601 for dates and times, strings for UUID and Decimal, base64 for bytes, seconds
for a timedelta, the value of an Enum, lists for sets, objects for dataclasses. A converter is built once per annotation:

    encode(value) -> JSON value      raises Mismatch: the value is not what the annotation says
    decode(json)  -> value           raises Mismatch: what is stored is not
"""

from __future__ import annotations

import base64
import binascii
import collections.abc
import dataclasses
import datetime as dt
import decimal
import enum
import functools
import inspect
import math
import operator
import types
import typing
import uuid
from collections.abc import Callable
from typing import Any, NamedTuple

DEPTH_MAX = 200
DIGITS_MAX = 4300
"""The longest whole number that Python reads back without being told to."""

_INT_MAX = 10**DIGITS_MAX


class Mismatch(Exception):
    """A value does not fit; the text says what was expected and what was found."""


class Converter(NamedTuple):
    """Both ways of one annotation; ``native`` when what JSON reads is already the value."""

    encode: Callable[[Any], Any]
    decode: Callable[[Any], Any]
    native: bool = False


_Way = Callable[[Converter], Callable[[Any], Any]]
_ENCODE: _Way = operator.attrgetter("encode")
_DECODE: _Way = operator.attrgetter("decode")


def shown(value: object) -> str:
    """A value in an error: its type and a short repr."""
    if value is None:
        return "None"
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001  # __repr__ is the application's
        text = "?"
    return f"{type(value).__qualname__} {text[:60]}{'...' if len(text) > 60 else ''}"


def _expected(what: str, value: object) -> Mismatch:
    if value is None:
        return Mismatch(
            f"expected {what}, found None; if it is the id of a new object, call session.flush() before enqueueing"
        )
    return Mismatch(f"expected {what}, found {shown(value)}")


# JSON's own


def check_native(value: Any, depth: int = 0) -> Any:
    """A value of JSON's own types, checked all the way down; anything else says to annotate it."""
    kind = type(value)
    if kind is str:
        return check_text(value)
    if kind is int:
        return _check_int(value)
    if value is None or kind is bool:
        return value
    if kind is float:
        return _check_float(value)
    if depth >= DEPTH_MAX:
        raise Mismatch(f"nested deeper than {DEPTH_MAX}")
    if kind is list or kind is tuple:
        return [check_native(item, depth + 1) for item in value]
    if kind is dict:
        return {_check_key(key): check_native(item, depth + 1) for key, item in value.items()}
    raise Mismatch(
        f"a {kind.__qualname__} is not JSON's own; annotate the parameter with its type, so that it is rebuilt"
    )


def check_text(value: str) -> str:
    """Refuse what PostgreSQL's jsonb cannot hold."""
    if "\0" in value:
        raise Mismatch("the text holds a NUL character, which PostgreSQL cannot store")
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise Mismatch("the text holds a lone surrogate, which is no character") from None
    return value


def _check_key(key: object) -> str:
    if not isinstance(key, str):
        raise Mismatch(f"a key of an object is text in JSON, found {shown(key)}")
    return check_text(key)


def _check_int(value: int) -> int:
    if not -_INT_MAX < value < _INT_MAX:
        raise Mismatch(f"the number has more than {DIGITS_MAX} digits")
    return value


def _check_float(value: float) -> float:
    if not math.isfinite(value):
        raise Mismatch(f"{value} is no JSON number")
    return value


def _str(value: Any) -> str:
    if not isinstance(value, str) or isinstance(value, enum.Enum):
        raise _expected("text", value)
    return check_text(value)


def _int(value: Any) -> int:
    if type(value) is int:
        return _check_int(value)
    if not isinstance(value, int) or isinstance(value, (bool, enum.Enum)):
        raise _expected("a whole number", value)
    return _check_int(int(value))


def _bool(value: Any) -> bool:
    if not isinstance(value, bool):
        raise _expected("true or false", value)
    return value


def _float(value: Any) -> float:
    if isinstance(value, float):
        return _check_float(float(value))
    if isinstance(value, int) and not isinstance(value, bool):
        return _check_int(value)
    raise _expected("a number", value)


def _float_back(value: Any) -> float:
    return float(_float(value))


def _none(value: Any) -> None:
    if value is not None:
        raise _expected("None", value)


NATIVE = Converter(check_native, lambda value: value, native=True)

# Text on the way


def _by_text(kind: type, name: str, write: Callable[[Any], str], read: Callable[[str], Any]) -> Converter:
    def encode(value: Any) -> str:
        # A datetime is a date for isinstance; storing it as one would lose its time.
        if not isinstance(value, kind) or (kind is dt.date and isinstance(value, dt.datetime)):
            raise _expected(name, value)
        return write(value)

    def decode(value: Any) -> Any:
        if not isinstance(value, str):
            raise _expected(f"{name} as text", value)
        try:
            return read(value)
        except (ValueError, ArithmeticError, binascii.Error):
            raise _expected(f"{name} as text", value) from None

    return Converter(encode, decode)


def _decimal_back(text: str) -> decimal.Decimal:
    return decimal.Decimal(text)


def _decimal_text(value: decimal.Decimal) -> str:
    if not value.is_finite():
        raise Mismatch(f"{value} is no number")
    return str(value)


def _delta(value: Any) -> Any:
    if not isinstance(value, dt.timedelta):
        raise _expected("a timedelta", value)
    micros = value // dt.timedelta(microseconds=1)
    whole, rest = divmod(micros, 1_000_000)
    # A float of seconds is exact to the microsecond for 285 years; a longer one goes as text.
    return whole if not rest else (micros / 1_000_000 if abs(micros) < 2**53 else f"{micros}us")


def _delta_back(value: Any) -> dt.timedelta:
    try:
        if isinstance(value, str) and value.endswith("us"):
            return dt.timedelta(microseconds=int(value[:-2]))
        if isinstance(value, float):
            return dt.timedelta(microseconds=round(value * 1_000_000))
        return dt.timedelta(seconds=_int(value))
    except (ValueError, OverflowError):
        raise _expected("a duration in seconds", value) from None


_SIMPLE: dict[Any, Converter] = {
    Any: NATIVE,
    object: NATIVE,
    inspect.Parameter.empty: NATIVE,
    str: Converter(_str, _str, native=True),
    int: Converter(_int, _int, native=True),
    bool: Converter(_bool, _bool, native=True),
    float: Converter(_float, _float_back),
    type(None): Converter(_none, _none, native=True),
    None: Converter(_none, _none, native=True),
    dt.datetime: _by_text(dt.datetime, "a datetime", dt.datetime.isoformat, dt.datetime.fromisoformat),
    dt.date: _by_text(dt.date, "a date", dt.date.isoformat, dt.date.fromisoformat),
    dt.time: _by_text(dt.time, "a time", dt.time.isoformat, dt.time.fromisoformat),
    dt.timedelta: Converter(_delta, _delta_back),
    uuid.UUID: _by_text(uuid.UUID, "a UUID", str, uuid.UUID),
    decimal.Decimal: _by_text(decimal.Decimal, "a Decimal", _decimal_text, _decimal_back),
    bytes: _by_text(
        bytes, "bytes", lambda v: base64.b64encode(v).decode(), lambda t: base64.b64decode(t, validate=True)
    ),
}

_SEQUENCES: dict[Any, type] = {
    list: list, tuple: tuple, set: set, frozenset: frozenset,
    collections.abc.Sequence: list, collections.abc.Iterable: list, collections.abc.Collection: list,
    collections.abc.Set: frozenset,
}  # fmt: skip
_MAPPINGS = (dict, collections.abc.Mapping, collections.abc.MutableMapping)


@functools.lru_cache(maxsize=4096)
def converter(annotation: Any) -> Converter:
    """The converter of an annotation; one that means nothing to us is carried as JSON's own types."""
    found = _SIMPLE.get(annotation) if isinstance(annotation, collections.abc.Hashable) else None
    if found is not None:
        return found
    origin, args = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        return converter(args[0])
    if origin in (typing.Union, types.UnionType):
        return _union([converter(arg) for arg in args], annotation)
    if origin is typing.Literal:
        return _literal(args)
    if isinstance(annotation, typing.NewType):
        return converter(annotation.__supertype__)
    base: Any = origin or annotation
    if base in _SEQUENCES:
        return _sequence(_SEQUENCES[base], args)
    if base in _MAPPINGS:
        return _mapping(args)
    if isinstance(annotation, type):
        if issubclass(annotation, enum.Enum):
            return _enum(annotation)
        if typing.is_typeddict(annotation):
            return _fields(dict, typing.get_type_hints(annotation), dict, vars(annotation)["__required_keys__"])
        if hasattr(annotation, "model_validate") and hasattr(annotation, "model_dump"):
            return _pydantic(annotation)
        if dataclasses.is_dataclass(annotation):
            return _dataclass(annotation)
    return NATIVE


def _union(members: list[Converter], annotation: Any) -> Converter:
    name = str(annotation).replace("typing.", "")

    def attempt(way: _Way) -> Callable[[Any], Any]:
        def convert(value: Any) -> Any:
            for member in members:
                try:
                    return way(member)(value)
                except Mismatch:
                    continue
            raise _expected(name, value)

        return convert

    return Converter(attempt(_ENCODE), attempt(_DECODE), all(member.native for member in members))


def _literal(allowed: tuple[Any, ...]) -> Converter:
    def check(value: Any) -> Any:
        for one in allowed:
            if one == value and type(one) is type(value):
                return value
        raise _expected("one of " + ", ".join(map(repr, allowed)), value)

    return Converter(check, check, native=True)


def _sequence(kind: type, args: tuple[Any, ...]) -> Converter:
    fixed = kind is tuple and bool(args) and Ellipsis not in args
    items = [converter(arg) for arg in args if arg is not Ellipsis] or [NATIVE]
    name = f"a {kind.__name__}"

    def convert(value: Any, way: _Way) -> list[Any]:
        if fixed and len(value) != len(items):
            raise Mismatch(f"expected {len(items)} items, found {len(value)}")
        each = items if fixed else items * len(value)
        return [way(item)(one) for item, one in zip(each, value, strict=True)]

    def encode(value: Any) -> list[Any]:
        fits = isinstance(value, (set, frozenset)) if kind in (set, frozenset) else isinstance(value, (list, tuple))
        if not fits:
            raise _expected(name, value)
        if kind in (set, frozenset):
            found = convert(list(value), _ENCODE)
            try:
                return sorted(found)
            except TypeError:
                return found
        return convert(value, _ENCODE)

    def decode(value: Any) -> Any:
        if not isinstance(value, list):
            raise _expected(f"{name} as a JSON array", value)
        try:
            return kind(convert(value, _DECODE))
        except TypeError:
            raise _expected(name, value) from None

    return Converter(encode, decode, native=kind is list and all(item.native for item in items))


def _mapping(args: tuple[Any, ...]) -> Converter:
    keys, items = (converter(args[0]), converter(args[1])) if args else (_SIMPLE[str], NATIVE)

    def encode(value: Any) -> dict[str, Any]:
        if not isinstance(value, collections.abc.Mapping):
            raise _expected("a dict", value)
        return {_key_text(keys.encode(key)): items.encode(item) for key, item in value.items()}

    def decode(value: Any) -> dict[Any, Any]:
        if not isinstance(value, dict):
            raise _expected("a JSON object", value)
        return {_key_back(keys, key): items.decode(item) for key, item in value.items()}

    plain = not args or args[0] in (str, Any)
    return Converter(encode, decode, native=plain and items.native)


def _key_text(key: Any) -> str:
    if isinstance(key, str):
        return key
    if isinstance(key, bool):
        return "true" if key else "false"
    if isinstance(key, (int, float)):
        return str(key)
    raise Mismatch(f"a key of an object is text in JSON, found {shown(key)}")


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


def _enum(kind: type[enum.Enum]) -> Converter:
    def encode(value: Any) -> Any:
        if not isinstance(value, kind):
            raise _expected(f"a {kind.__qualname__}", value)
        return check_native(value.value)

    def decode(value: Any) -> enum.Enum:
        try:
            return kind(tuple(value) if isinstance(value, list) else value)
        except ValueError:
            raise _expected(f"a value of {kind.__qualname__}", value) from None

    return Converter(encode, decode)


def _fields(
    kind: Any, hints: dict[str, Any], read: Callable[[Any], dict[str, Any]], required: collections.abc.Collection[str]
) -> Converter:
    """An object with named fields: a dataclass, a TypedDict. Built late, so that a type may refer to itself."""
    name = getattr(kind, "__qualname__", "object")

    def encode(value: Any) -> dict[str, Any]:
        if not isinstance(value, kind):
            raise _expected(f"a {name}", value)
        found = read(value)
        return {field: converter(hints.get(field, Any)).encode(item) for field, item in found.items()}

    def decode(value: Any) -> Any:
        if not isinstance(value, dict):
            raise _expected(f"a {name} as a JSON object", value)
        lacking = [field for field in required if field not in value]
        unknown = [field for field in value if field not in hints]
        if lacking or unknown:
            raise Mismatch(f"does not fit {name}: missing {lacking or 'nothing'}, unknown {unknown or 'nothing'}")
        found = {field: converter(hints[field]).decode(item) for field, item in value.items()}
        return kind(**found)

    return Converter(encode, decode)


def _dataclass(kind: type) -> Converter:
    fields = [field for field in dataclasses.fields(kind) if field.init]
    hints = typing.get_type_hints(kind)
    required = [
        field.name
        for field in fields
        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
    ]
    names = {field.name: hints.get(field.name, Any) for field in fields}
    return _fields(kind, names, lambda value: {name: getattr(value, name) for name in names}, required)


def _pydantic(kind: Any) -> Converter:
    def encode(value: Any) -> Any:
        if not isinstance(value, kind):
            raise _expected(f"a {kind.__qualname__}", value)
        return check_native(value.model_dump(mode="json", by_alias=True))

    def decode(value: Any) -> Any:
        try:
            return kind.model_validate(value)
        except ValueError as error:  # pydantic's ValidationError is one
            raise Mismatch(f"does not fit {kind.__qualname__}: {error}") from None

    return Converter(encode, decode)
