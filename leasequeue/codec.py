"""A task's arguments and results as JSON text, and back. Pure.

At enqueue everything is checked before anything is written; on the worker anything may stand in the row, for any SQL may
have written it, and each fault there has one of two names: DoesNotBind (another release may take it) or Undecodable.
"""

from __future__ import annotations

import collections.abc
import functools
import inspect
import json
import sys
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from leasequeue.annotations import resolve
from leasequeue.errors import ConfigurationError, DoesNotBind, InvalidArguments, ResultNotStorable, Undecodable
from leasequeue.shapes import converter, key_text
from leasequeue.values import DEPTH_MAX, NATIVE, Converter, Mismatch, shown, too_deep

MAX_BYTES = 1024 * 1024
"""The most that one job's arguments, or one result, take as JSON: bytes of UTF-8."""

_FLUSH = "; is it the id of an object that has not been flushed? call session.flush() before enqueueing"
_Parameter = inspect.Parameter

_FITTING_MAX = 64
"""Sets of names, in their order, that are known to fit a signature."""


def _writer() -> Callable[[Any], str]:
    encoder = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"), check_circular=False)
    try:
        # encode() makes this object anew for each text, which takes longer than to write a small one.
        make: Any = json.encoder.c_make_encoder  # type: ignore[attr-defined]  # CPython's, unknown to typeshed
        chunks = make(None, encoder.default, json.encoder.encode_basestring, None, ":", ",", False, False, False)
        if "".join(chunks({"a": [1, None, "é"]}, 0)) != '{"a":[1,null,"é"]}':
            return encoder.encode
    except (AttributeError, TypeError):
        return encoder.encode
    return lambda value: "".join(chunks(value, 0))


_write = _writer()


def _no_number(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON number")


_decoder = json.JSONDecoder(parse_constant=_no_number)
_raw_decode = _decoder.raw_decode


def _read(text: str) -> Any:
    # The text of a jsonb has no white space around it, which decode() takes longer to look for than to read a small one.
    try:
        value, end = _raw_decode(text)
    except ValueError:
        return _decoder.decode(text)
    return value if end == len(text) else _decoder.decode(text)


class Signature:
    """The parameters of one task: how its arguments are checked, encoded and decoded. Thread-safe.

    Annotations are resolved at first use, so that they may name what is defined further down; one that cannot be resolved
    (it is imported for type checkers only) counts as not given.
    """

    def __init__(self, function: Callable[..., Any], signature: inspect.Signature) -> None:
        self._fitting: set[tuple[str, ...]] = set()
        parameters = list(signature.parameters.values())
        self._function = function
        self._signature = signature
        self._names = tuple(parameter.name for parameter in parameters)
        self._positional = tuple(p.name for p in parameters if p.kind is not _Parameter.KEYWORD_ONLY)
        self._known = frozenset(self._names)
        self._required = frozenset(p.name for p in parameters if p.default is _Parameter.empty)

    @classmethod
    def of(cls, function: Callable[..., Any]) -> Signature:
        """Read a function's parameters.

        Raises:
            ConfigurationError: it has ``*args``, ``**kwargs`` or positional-only parameters, or no signature; it is
                a class, a generator, or a method that nobody would call on an object.
        """
        name = getattr(function, "__qualname__", repr(function))
        if inspect.isclass(function):
            raise ConfigurationError(f"{name} is a class: a task is a function, write one that makes the object")
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise ConfigurationError(
                f"task {name} is a generator, whose body nobody would run: return instead of yield"
            )
        try:
            signature = _signature(function)
        except (TypeError, ValueError) as error:
            raise ConfigurationError(f"task {name} has no signature to read: {error}") from None
        parameters = list(signature.parameters.values())
        if inspect.isfunction(function) and parameters and parameters[0].name in ("self", "cls") and _in_class(name):
            raise ConfigurationError(
                f"task {name} is a method, and no object is stored to call it on: make it a function, or put "
                f"@staticmethod above @lq.task() and leave out {parameters[0].name}"
            )
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
        return cls(function, signature)

    @property
    def parameters(self) -> Mapping[str, inspect.Parameter]:
        """The function's parameters by name."""
        return self._signature.parameters

    def arguments(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """All arguments of a call that :meth:`bind` accepted, defaults included."""
        bound = self._signature.bind(*args, **kwargs)
        bound.apply_defaults()
        return bound.arguments

    @functools.cached_property
    def returns(self) -> Any:
        """What the function is annotated to return, for :func:`decode_result`; Any where that is not known."""
        return self._hints.get("return", Any)

    @functools.cached_property
    def _hints(self) -> dict[str, Any]:
        annotations = {p.name: p.annotation for p in self._signature.parameters.values()}
        annotations["return"] = self._signature.return_annotation
        given = {name: one for name, one in annotations.items() if one is not _Parameter.empty}
        return resolve(given, _globals(self._function))

    @functools.cached_property
    def _converters(self) -> dict[str, Converter]:
        found = {}
        for parameter in self._signature.parameters.values():
            annotation = self._hints.get(parameter.name, Any)
            if parameter.default is None and annotation is not Any:
                annotation = _or_none(annotation)
            found[parameter.name] = converter(annotation)
            if parameter.annotation is not _Parameter.empty and parameter.name not in self._hints:
                found[parameter.name] = Converter(_unknown(parameter.annotation), NATIVE.decode)
        return found

    @functools.cached_property
    def _rebuilt(self) -> tuple[tuple[str, Callable[[Any], Any]], ...]:
        """The parameters whose stored values are checked or rebuilt: all that are annotated."""
        return tuple((name, found.decode) for name, found in self._converters.items() if found is not NATIVE)

    @functools.cached_property
    def _text(self) -> str:
        try:
            return str(self._signature.replace(return_annotation=inspect.Signature.empty))
        except Exception:  # noqa: BLE001  # the repr of a default is the application's
            return f"({', '.join(self._names)})"

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
        at: str | None = None
        try:
            for at, value in given.items():
                values[at] = converters[at].encode(value)
            at = None
            text = _write(values)
            if text.count("[") + text.count("{") > DEPTH_MAX:
                at = next((one for one, value in values.items() if too_deep(value)), None)
                if at is not None:
                    raise Mismatch(f"nested deeper than {DEPTH_MAX}")
        except Mismatch as error:
            hint = _FLUSH if error.none else ""
            raise InvalidArguments(task_name, at, f"{error}{hint}") from None
        except RecursionError:
            raise InvalidArguments(task_name, at, "nested too deep, or in itself") from None
        except ValueError as error:
            # The interpreter's own limit of digits may be set lower than ours.
            raise InvalidArguments(task_name, at, f"cannot be written as JSON: {error}") from None
        if len(text) * 4 > max_bytes and (size := len(text.encode())) > max_bytes:
            raise InvalidArguments(
                task_name,
                None,
                f"the arguments take {size:,} bytes as JSON, the limit is {max_bytes:,}; "
                f"store what is large elsewhere and enqueue its key",
            )
        return text

    def _refuse_names(self, task_name: str, given: dict[str, Any]) -> None:
        missing = [name for name in self._names if name in self._required and name not in given]
        unknown = [name for name in given if name not in self._known]
        faults = [f"{name} is missing" for name in missing] + [f"{name} is no parameter" for name in unknown]
        first = (missing + unknown)[0]
        reason = "; ".join(faults).removeprefix(f"{first} ")
        raise InvalidArguments(task_name, first, f"{reason}; the signature is {self._text}")

    def decode(self, text: str) -> dict[str, Any]:
        """Turn a row's arguments into those of a call.

        Raises:
            DoesNotBind: the names do not fit this signature.
            Undecodable: the text is no JSON object, or a value does not fit its annotation.
        """
        values = _loads(text, "arguments")
        if type(values) is not dict:
            raise Undecodable(f"the stored arguments are no JSON object but {shown(values)}")
        if tuple(values) not in self._fitting:
            names = values.keys()
            if not (self._required <= names <= self._known):
                raise DoesNotBind(tuple(sorted(self._required - names)), tuple(sorted(names - self._known)))
            if len(self._fitting) < _FITTING_MAX:
                self._fitting.add(tuple(values))
        for name, decode in self._rebuilt:
            if name in values:
                try:
                    values[name] = decode(values[name])
                except Mismatch as error:
                    raise Undecodable(f"the stored argument {name}: {error}") from None
                except RecursionError:
                    raise Undecodable(f"the stored argument {name} is nested too deep") from None
        return values


def _in_class(qualname: str) -> bool:
    return qualname.rpartition(".")[0].rpartition(".")[2] not in ("", "<locals>")


def _signature(function: Callable[..., Any]) -> inspect.Signature:
    if sys.version_info >= (3, 14):
        # There, names that only type checkers know raise unless they may stay forward references.
        import annotationlib

        return inspect.signature(function, annotation_format=annotationlib.Format.FORWARDREF)
    return inspect.signature(function)


def _globals(function: Any) -> dict[str, Any]:
    """What the names in a function's annotations mean; its wrappers may stand in other modules."""
    function = inspect.unwrap(function)
    while isinstance(function, functools.partial):
        function = inspect.unwrap(function.func)
    if not hasattr(function, "__globals__"):  # an object with a __call__ of its class
        function = vars(type(function)).get("__call__", function)
    return getattr(function, "__globals__", {})


def _unknown(annotation: Any) -> Callable[[Any], Any]:
    """Encodes what counts as not annotated, and says why it does where that is in the way."""

    def encode(value: Any) -> Any:
        try:
            return NATIVE.encode(value)
        except Mismatch as error:
            raise Mismatch(
                f"{error} (its annotation {annotation!r:.100} names what is not found at run time, perhaps for an import "
                f"under TYPE_CHECKING or a class made inside a function, so it counts as not annotated)"
            ) from None

    return encode


def _or_none(annotation: Any) -> Any:
    try:
        return annotation | None
    except TypeError:
        return annotation


def _loads(text: str, what: str) -> Any:
    try:
        value = _read(text)
    except (ValueError, TypeError, RecursionError, MemoryError) as error:
        raise Undecodable(f"the stored {what} cannot be read as JSON: {error}") from None
    if len(text) > DEPTH_MAX and text.count("[") + text.count("{") > DEPTH_MAX and any(map(too_deep, _items(value))):
        raise Undecodable(f"the stored {what} are nested deeper than {DEPTH_MAX}")
    return value


def _items(value: Any) -> collections.abc.Iterable[Any]:
    return value.values() if type(value) is dict else [value]


def encode_result(value: object) -> str | None:
    """A result as JSON text; None stays None and stores nothing.

    A value is encoded by its own type: what an annotation would rebuild is written plainly (a UUID as text). A NUL or a
    lone surrogate in a text is shown as an escape: the work is done, and one character is no reason to do it again.

    Raises:
        ResultNotStorable: it cannot be carried, or takes more than 1 MiB.
    """
    if value is None:
        return None
    try:
        stored = _plain(value)
        text = _write(stored)
    except (Mismatch, RecursionError, ValueError) as error:
        raise ResultNotStorable(f"what the task returned cannot be stored: {error}") from None
    if text.count("[") + text.count("{") > DEPTH_MAX and too_deep(stored):
        raise ResultNotStorable(f"what the task returned is nested deeper than {DEPTH_MAX}")
    if (size := len(text.encode())) > MAX_BYTES:
        raise ResultNotStorable(
            f"what the task returned takes {size:,} bytes as JSON, the limit is {MAX_BYTES:,}; "
            f"store what is large elsewhere and return its key"
        )
    return text


def _plain(value: Any) -> Any:
    kind = type(value)
    if kind is str:
        return _visible(value)
    if kind is int or kind is bool or kind is float:
        return NATIVE.encode(value)
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, (set, frozenset)):
        return converter(frozenset).encode(frozenset(map(_plain, value)))
    if isinstance(value, dict):
        found = {key_text(_plain(key)): _plain(item) for key, item in value.items()}
        if len(found) < len(value):
            raise Mismatch("two keys of a dict are the same text in JSON")
        return found
    return converter(kind).encode(value)


def decode_result(text: str | None, annotation: Any) -> Any:
    """A result from its JSON text, rebuilt by the task's return annotation.

    Raises:
        Undecodable: it does not fit the annotation.
    """
    if text is None:
        return None
    try:
        return converter(annotation).decode(_loads(text, "result"))
    except Mismatch as error:
        raise Undecodable(f"the stored result: {error}") from None
    except RecursionError:
        raise Undecodable("the stored result is nested too deep") from None


def safe_text(text: str, limit: int) -> str:
    """A text that the database can hold: NUL and lone surrogates shown as escapes, a long one cut in the middle.

    Args:
        limit: the most characters to keep, beside the note of how many were cut.
    """
    text = _visible(text)
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}\n... {len(text) - 2 * half:,} characters cut ...\n{text[len(text) - half :]}"


def _visible(text: str) -> str:
    """What PostgreSQL's text cannot hold, as escapes."""
    if "\0" in text:
        text = text.replace("\0", "\\x00")
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()
