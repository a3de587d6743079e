"""A task's arguments and results as JSON text, and back. Pure.

At enqueue everything is checked before anything is written; on the worker anything may stand in the row, for any SQL may
have written it, and each fault there has one of two names: DoesNotBind (another release may take it) or Undecodable.
"""

from __future__ import annotations

import functools
import inspect
import json
import typing
from collections.abc import Callable
from typing import Any

from leasequeue.errors import ConfigurationError, DoesNotBind, InvalidArguments, ResultNotStorable, Undecodable
from leasequeue.values import NATIVE, Converter, Mismatch, check_native, converter, shown

MAX_BYTES = 1024 * 1024
_Parameter = inspect.Parameter
_dumps = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"), check_circular=False).encode


class Signature:
    """The parameters of one task: how its arguments are checked, encoded and decoded. Thread-safe.

    Annotations are resolved at first use, so that they may name what is defined further down; one that cannot be resolved
    (it is imported for type checkers only) counts as not given.
    """

    def __init__(self, function: Callable[..., Any], parameters: list[_Parameter]) -> None:
        self._function = function
        self._names = tuple(parameter.name for parameter in parameters)
        self._positional = tuple(p.name for p in parameters if p.kind is not _Parameter.KEYWORD_ONLY)
        self._known = frozenset(self._names)
        self._required = frozenset(p.name for p in parameters if p.default is _Parameter.empty)
        self._text = f"({', '.join(str(p) for p in parameters)})"

    @classmethod
    def of(cls, function: Callable[..., Any]) -> Signature:
        """Read a function's parameters.

        Raises:
            ConfigurationError: it has ``*args``, ``**kwargs`` or positional-only parameters, or no signature.
        """
        name = getattr(function, "__qualname__", repr(function))
        try:
            parameters = list(inspect.signature(function).parameters.values())
        except (TypeError, ValueError) as error:
            raise ConfigurationError(f"task {name} has no signature to read: {error}") from None
        for parameter in parameters:
            if parameter.kind in (_Parameter.VAR_POSITIONAL, _Parameter.VAR_KEYWORD):
                stars = "*" if parameter.kind is _Parameter.VAR_POSITIONAL else "**"
                raise ConfigurationError(
                    f"task {name} takes {stars}{parameter.name}: its arguments are stored by name, so name each of them "
                    f"(a dict or a list may carry what varies)"
                )
            if parameter.kind is _Parameter.POSITIONAL_ONLY:
                raise ConfigurationError(
                    f"task {name} takes {parameter.name} by position only: its arguments are stored by name, so leave "
                    f"out the / in its signature"
                )
        return cls(function, parameters)

    @functools.cached_property
    def _converters(self) -> dict[str, Converter]:
        hints = _hints(self._function)
        return {name: converter(hints.get(name, Any)) for name in self._names}

    @functools.cached_property
    def _rebuilt(self) -> dict[str, Converter]:
        """The parameters whose values are more than what JSON reads."""
        return {name: found for name, found in self._converters.items() if found is not NATIVE}

    def bind(self, task_name: str, args: tuple[Any, ...], kwargs: dict[str, Any], max_bytes: int = MAX_BYTES) -> str:
        """Check the arguments of a call and encode them.

        Returns:
            JSON text, an object of only the arguments that were given.

        Raises:
            InvalidArguments: one is wrong, missing, unknown or cannot be carried.
        """
        given = kwargs
        if args:
            if len(args) > len(self._positional):
                raise InvalidArguments(
                    task_name,
                    None,
                    f"takes {len(self._positional)} arguments by position {self._text}, {len(args)} given",
                )
            given = dict(zip(self._positional, args, strict=False))
            for name in kwargs:
                if name in given:
                    raise InvalidArguments(task_name, name, "is given twice, by position and by name")
            given.update(kwargs)
        if not (self._required <= given.keys() <= self._known):
            self._refuse_names(task_name, given)
        converters = self._converters
        values = {}
        for name, value in given.items():
            try:
                values[name] = converters[name].encode(value)
            except Mismatch as error:
                raise InvalidArguments(task_name, name, str(error)) from None
            except RecursionError:
                raise InvalidArguments(task_name, name, "is nested too deep, or in itself") from None
        text = _dumps(values)
        if len(text) * 4 > max_bytes and (size := len(text.encode())) > max_bytes:
            raise InvalidArguments(
                task_name, None, f"the arguments take {size:,} bytes as JSON, the limit is {max_bytes:,}; "
                f"store what is large beside the job and enqueue its key",
            )  # fmt: skip
        return text

    def _refuse_names(self, task_name: str, given: dict[str, Any]) -> None:
        for name in self._names:
            if name in self._required and name not in given:
                raise InvalidArguments(task_name, name, f"is missing; the signature is {self._text}")
        for name in given:
            if name not in self._known:
                raise InvalidArguments(task_name, name, f"is no parameter; the signature is {self._text}")

    def decode(self, text: str) -> dict[str, Any]:
        """Turn a row's arguments into those of a call.

        Raises:
            DoesNotBind: the names do not fit this signature.
            Undecodable: the text is no JSON object, or a value does not fit its annotation.
        """
        values = _loads(text)
        if type(values) is not dict:
            raise Undecodable(f"the stored arguments are no JSON object but {shown(values)}")
        names = values.keys()
        if not (self._required <= names <= self._known):
            raise DoesNotBind(tuple(sorted(self._required - names)), tuple(sorted(names - self._known)))
        for name, found in self._rebuilt.items():
            if name in values:
                try:
                    values[name] = found.decode(values[name])
                except Mismatch as error:
                    raise Undecodable(f"the stored argument {name}: {error}") from None
                except RecursionError:
                    raise Undecodable(f"the stored argument {name} is nested too deep") from None
        return values


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    try:
        return typing.get_type_hints(function, include_extras=True)
    except Exception:  # noqa: BLE001  # evaluating annotations runs the application's names
        found = {}
        for name, annotation in getattr(function, "__annotations__", {}).items():
            try:
                holder = type("one", (), {"__annotations__": {name: annotation}, "__module__": function.__module__})
                found.update(typing.get_type_hints(holder, vars(inspect.getmodule(function)), include_extras=True))
            except Exception:  # noqa: BLE001, S112  # as if it were not annotated: see Signature
                continue
        return found


def _loads(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError, MemoryError) as error:
        raise Undecodable(f"the stored arguments cannot be read as JSON: {error}") from None


def encode_result(value: object) -> str | None:
    """A result as JSON text; None stays None and stores nothing.

    A value is encoded by its own type: what an annotation would rebuild is written plainly (a UUID as text).

    Raises:
        ResultNotStorable: it cannot be carried, or takes more than 1 MiB.
    """
    if value is None:
        return None
    try:
        text = _dumps(_plain(value))
    except (Mismatch, RecursionError) as error:
        raise ResultNotStorable(f"what the task returned cannot be stored: {error}") from None
    if len(text.encode()) > MAX_BYTES:
        raise ResultNotStorable(
            f"what the task returned takes {len(text.encode()):,} bytes, the limit is {MAX_BYTES:,}"
        )
    return text


def _plain(value: Any, depth: int = 0) -> Any:
    if depth > 200:
        raise Mismatch("it is nested too deep")
    if type(value) in (list, tuple, set, frozenset):
        return [_plain(item, depth + 1) for item in value]
    if type(value) is dict:
        return check_native({key: _plain(item, depth + 1) for key, item in value.items()})
    kind: Any = type(value)
    return converter(kind).encode(value)


def decode_result(text: str | None, annotation: Any) -> Any:
    """A result from its JSON text, rebuilt by the task's return annotation.

    Raises:
        Undecodable: it does not fit the annotation.
    """
    if text is None:
        return None
    try:
        return converter(annotation).decode(_loads(text))
    except Mismatch as error:
        raise Undecodable(f"the stored result: {error}") from None


def safe_text(text: str, limit: int) -> str:
    """A text that the database can hold: NUL and lone surrogates shown as escapes, a long one cut in the middle.

    Args:
        limit: the most characters to keep, beside the note of how many were cut.
    """
    if "\0" in text:
        text = text.replace("\0", "\\x00")
    if not text.isascii():
        text = text.encode("utf-8", "backslashreplace").decode()
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}\n... {len(text) - 2 * half} characters cut ...\n{text[-half:]}"
