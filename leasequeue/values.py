"""How single values become JSON and come back; what is built of them is in shapes.py. Pure.

What stands in the database is plain: ISO 8601 for dates and times, strings for UUID and Decimal, base64 for bytes, seconds
for a timedelta. A converter has both ways:

    encode(value) -> JSON value      raises Mismatch: the value is not what the annotation says
    decode(json)  -> value           raises Mismatch: what is stored is not
"""

from __future__ import annotations

import base64
import binascii
import datetime as dt
import decimal
import inspect
import json
import math
import reprlib
import uuid
from collections.abc import Callable
from typing import Any, NamedTuple

DEPTH_MAX = 200
DIGITS_MAX = 4300
"""The longest whole number that Python reads back without being told to."""

_INT_MAX = 10**DIGITS_MAX


class Mismatch(Exception):
    """A value does not fit; the text says what was expected and what was found.

    Attributes:
        none: None was found where a value is wanted.
    """

    def __init__(self, reason: str, *, none: bool = False) -> None:
        super().__init__(reason)
        self.none = none


class Converter(NamedTuple):
    """Both ways of one annotation."""

    encode: Callable[[Any], Any]
    decode: Callable[[Any], Any]


def shown(value: object) -> str:
    """A value in an error: its type, and a short repr where that cannot show what an application keeps secret."""
    if value is None:
        return "None"
    kind = type(value)
    if kind.__module__ not in ("builtins", "datetime", "decimal", "uuid"):
        return f"a {kind.__module__}.{kind.__qualname__}"
    try:
        text = reprlib.repr(value)
    except Exception:  # noqa: BLE001  # the repr of what is inside is the application's
        return f"a {kind.__qualname__}"
    return f"{kind.__qualname__} {text[:60]}{'...' if len(text) > 60 else ''}"


def expected(what: str, value: object) -> Mismatch:
    return Mismatch(f"expected {what}, found {shown(value)}", none=value is None)


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
    if kind is list:
        return [check_native(item, depth + 1) for item in value]
    if kind is dict:
        return {check_key(key): check_native(item, depth + 1) for key, item in value.items()}
    raise Mismatch(
        f"{shown(value)} is not of JSON's own types; annotate the parameter with its type, so that it is rebuilt"
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


def check_key(key: object) -> str:
    """Refuse a key that is not text: JSON has no other, and would give it back as text."""
    if not isinstance(key, str):
        raise Mismatch(f"a key of an object is text in JSON, found {shown(key)}; annotate it as dict[its type, ...]")
    return check_text(str.__str__(key))


def _check_int(value: int) -> int:
    if not -_INT_MAX < value < _INT_MAX:
        raise Mismatch(f"the number has more than {DIGITS_MAX} digits")
    return value


def _check_float(value: float) -> float:
    if not math.isfinite(value):
        raise Mismatch(f"{value} is no JSON number")
    return value


def too_deep(value: Any) -> bool:
    """Whether a JSON value is nested deeper than is carried. Without recursion: it may be very deep."""
    level = [value] if type(value) in (dict, list) else []
    for _ in range(DEPTH_MAX):
        if not level:
            return False
        level = [
            child
            for node in level
            for child in (node.values() if type(node) is dict else node)
            if type(child) is dict or type(child) is list
        ]
    return bool(level)


def _str(value: Any) -> str:
    if type(value) is str:
        return check_text(value)
    if not isinstance(value, str):
        raise expected("text", value)
    # A subclass, such as a StrEnum's member, is carried as the text that it is.
    return check_text(str.__str__(value))


def _int(value: Any) -> int:
    if type(value) is int:
        return _check_int(value)
    if not isinstance(value, int) or isinstance(value, bool):
        raise expected("a whole number", value)
    return _check_int(int(value))


def _bool(value: Any) -> bool:
    if not isinstance(value, bool):
        raise expected("true or false", value)
    return value


def _float(value: Any) -> float:
    found = _float_back(value)
    if found != value:
        raise Mismatch(f"a float cannot hold {shown(value)} to its last digit; annotate it as int or Decimal")
    return found


def _float_back(value: Any) -> float:
    if isinstance(value, float):
        return _check_float(float(value))
    if isinstance(value, int) and not isinstance(value, bool):
        try:
            # jsonb writes a large float as a whole number, of more digits than the float has.
            return float(value)
        except OverflowError:
            raise Mismatch("the number is too large for a float") from None
    raise expected("a number", value)


def _none(value: Any) -> None:
    if value is not None:
        raise expected("None", value)


NATIVE = Converter(check_native, lambda value: value)

_EXACT_MICROSECONDS = 2**50
"""Below it (35 years) a float of seconds comes back to the same microsecond; a longer duration goes as text."""

_DELTA_CONTEXT = decimal.Context(prec=40, Emax=99, traps=[decimal.InvalidOperation, decimal.Overflow])

# Text on the way


def _by_text(kind: type, name: str, write: Callable[[Any], str], read: Callable[[str], Any]) -> Converter:
    def encode(value: Any) -> str:
        # A datetime is a date for isinstance; storing it as one would lose its time.
        if not isinstance(value, kind) or (kind is dt.date and isinstance(value, dt.datetime)):
            raise expected(name, value)
        return write(value)

    def decode(value: Any) -> Any:
        if not isinstance(value, str):
            raise expected(f"{name} as text", value)
        try:
            return read(value)
        except (ValueError, ArithmeticError, binascii.Error):
            raise expected(f"{name} as text", value) from None

    return Converter(encode, decode)


def _datetime_text(value: dt.datetime) -> str:
    _check_offset(value.utcoffset())
    return dt.datetime.isoformat(value)


def _time_text(value: dt.time) -> str:
    offset = value.utcoffset()
    if offset is None and value.tzinfo is not None:
        raise Mismatch("the time is in a zone whose offset depends on the day, so it would come back without one")
    _check_offset(offset)
    return dt.time.isoformat(value)


def _check_offset(offset: dt.timedelta | None) -> None:
    # Python reads an offset of less than a second back as UTC.
    if offset is not None and offset.microseconds:
        raise Mismatch(f"its offset from UTC, {offset}, is not in whole seconds")


def _decimal_back(text: str) -> decimal.Decimal:
    value = decimal.Decimal(text)
    if not value.is_finite():
        raise ValueError(text)
    return value


def _decimal_text(value: decimal.Decimal) -> str:
    if not value.is_finite():
        raise Mismatch(f"{value} is no number")
    return str(value)


def _delta(value: Any) -> Any:
    if not isinstance(value, dt.timedelta):
        raise expected("a timedelta", value)
    micros = value // dt.timedelta(microseconds=1)
    if micros % 1_000_000 == 0:
        return micros // 1_000_000
    if abs(micros) < _EXACT_MICROSECONDS:
        return micros / 1_000_000
    sign, micros = ("-" if micros < 0 else ""), abs(micros)
    return f"{sign}{micros // 1_000_000}.{micros % 1_000_000:06}"


def _delta_back(value: Any) -> dt.timedelta:
    try:
        if isinstance(value, float):
            return dt.timedelta(microseconds=round(value * 1_000_000))
        if isinstance(value, str):
            # timedelta takes no Decimal, and whole microseconds keep it exact.
            return dt.timedelta(microseconds=int(_DELTA_CONTEXT.multiply(decimal.Decimal(value), 1_000_000)))
        return dt.timedelta(seconds=_int(value))
    except (ValueError, ArithmeticError):
        raise expected("a duration in seconds", value) from None


SIMPLE: dict[Any, Converter] = {
    Any: NATIVE,
    object: NATIVE,
    inspect.Parameter.empty: NATIVE,
    str: Converter(_str, _str),
    int: Converter(_int, _int),
    bool: Converter(_bool, _bool),
    float: Converter(_float, _float_back),
    type(None): Converter(_none, _none),
    None: Converter(_none, _none),
    dt.datetime: _by_text(dt.datetime, "a datetime", _datetime_text, dt.datetime.fromisoformat),
    dt.date: _by_text(dt.date, "a date", dt.date.isoformat, dt.date.fromisoformat),
    dt.time: _by_text(dt.time, "a time", _time_text, dt.time.fromisoformat),
    dt.timedelta: Converter(_delta, _delta_back),
    uuid.UUID: _by_text(uuid.UUID, "a UUID", str, uuid.UUID),
    decimal.Decimal: _by_text(decimal.Decimal, "a Decimal", _decimal_text, _decimal_back),
    bytes: _by_text(
        bytes, "bytes", lambda v: base64.b64encode(v).decode(), lambda t: base64.b64decode(t, validate=True)
    ),
}


def pydantic_model(kind: Any) -> Converter:
    """By what a model of pydantic 2 can do itself; nothing is imported for it."""
    name = kind.__qualname__

    def encode(value: Any) -> Any:
        if type(value) is not kind:
            raise expected(f"a {name}", value)
        try:
            # round_trip leaves out computed fields, which a model that forbids extra ones would not take back.
            dumped = check_native(value.model_dump(mode="json", by_alias=True, round_trip=True))
        except Mismatch:
            raise
        except Exception as error:  # noqa: BLE001  # serializers are the application's
            raise Mismatch(f"{name} cannot be written as JSON: {_told(error)}") from None
        # A secret is dumped as stars, an excluded field not at all, and an alias may differ for reading and writing.
        if decode(dumped) != value:
            raise Mismatch(f"a {name} does not come back as it was: a field is secret, excluded or private")
        return dumped

    def decode(value: Any) -> Any:
        try:
            # By way of text: a strict model takes a date from JSON's text, but not from Python's.
            return kind.model_validate_json(json.dumps(value))
        except Exception as error:  # noqa: BLE001  # validators are the application's
            raise Mismatch(f"does not fit {name}: {_told(error)}") from None

    return Converter(encode, decode)


def _told(error: Any) -> str:
    """An error of pydantic's without the values in it, which may be secrets."""
    if not hasattr(error, "errors"):
        return f"{type(error).__name__}: {str(error)[:200]}"
    found = error.errors(include_url=False, include_context=False, include_input=False)
    told = [f"{'.'.join(map(str, one['loc'])) or 'the model'}: {one['msg']}" for one in found[:3]]
    return "; ".join(told)[:500] + (f"; and {len(found) - 3} more" if len(found) > 3 else "")
