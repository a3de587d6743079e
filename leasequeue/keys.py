"""Keys that a task makes of its arguments: ``limit_key=lambda user_id: f"user:{user_id}"``. Pure."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeAlias

from leasequeue.errors import ConfigurationError, InvalidArguments

_Text: TypeAlias = str | None


class _OfAll(Protocol):
    def __call__(self, **arguments: Any) -> _Text: ...


# Spelled out: of a lambda that is given for Callable[..., str] pyright knows no parameter, and its strict mode says so.
KeyLike: TypeAlias = (
    str
    | Callable[[], _Text]
    | Callable[[Any], _Text]
    | Callable[[Any, Any], _Text]
    | Callable[[Any, Any, Any], _Text]
    | Callable[[Any, Any, Any, Any], _Text]
    | _OfAll
)


class Key:
    """A key as a task declares it: a text, or a function of some of the task's arguments, taken by their names.

    Args:
        option: ``limit_key``, ``fair_key`` or ``unique_key``, for the errors.
        check: refuses a text that cannot be a key; raises ConfigurationError.

    Raises:
        ConfigurationError: the function asks for a parameter that the task does not have, or is asynchronous.
    """

    def __init__(
        self,
        option: str,
        task: str,
        given: KeyLike,
        parameters: Mapping[str, inspect.Parameter],
        check: Callable[[Any], str],
    ) -> None:
        self._option = option
        self._task = task
        self._check = check
        self._text: str | None = None
        self._function: Callable[..., Any] | None = None
        if isinstance(given, str):
            self._text = check(given)
            return
        function: object = given  # an application without a type checker gets a sentence
        if not callable(function) or inspect.iscoroutinefunction(function):
            raise ConfigurationError(
                f"{task}: {option} is a text or a plain function of the task's arguments, not {given!r}"
            )
        self._function = function
        wanted = inspect.signature(function).parameters.values()
        self._all = any(each.kind is inspect.Parameter.VAR_KEYWORD for each in wanted)
        self._names = [each.name for each in wanted if each.kind is not inspect.Parameter.VAR_KEYWORD]
        unknown = [each.name for each in wanted if each.name not in parameters and each.default is each.empty]
        unknown = [name for name in unknown if name in self._names]
        if unknown:
            raise ConfigurationError(
                f"{task}: {option} asks for {', '.join(unknown)}, and the task has no such parameter "
                f"(it has {', '.join(parameters) or 'none'})"
            )
        self._names = [name for name in self._names if name in parameters]

    @property
    def needs_arguments(self) -> bool:
        """Whether it is made of a call's arguments; one that is a text is the same for every call."""
        return self._function is not None

    def text(self, arguments: Mapping[str, Any]) -> str | None:
        """The key of a call.

        Args:
            arguments: all of the task's, defaults included.

        Returns:
            None where the function gives None: the call has no key.

        Raises:
            InvalidArguments: the function raised, or gave something that cannot be a key.
        """
        function = self._function
        if function is None:
            return self._text
        given = arguments if self._all else {name: arguments[name] for name in self._names}
        try:
            found = function(**given)
        except Exception as error:
            raise InvalidArguments(
                self._task, None, f"{self._option} raised {type(error).__name__}: {error}"
            ) from error
        if found is None:
            return None
        try:
            return self._check(found)
        except ConfigurationError as error:
            raise InvalidArguments(self._task, None, f"{self._option}: {error}") from None
