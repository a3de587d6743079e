"""The functions that run around each job, chained once per task. Pure."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeAlias

from leasequeue.errors import ConfigurationError

if TYPE_CHECKING:
    from leasequeue.context import JobContext

Middleware: TypeAlias = "Callable[[JobContext, Callable[[], Any]], Any]"
Handler: TypeAlias = "Callable[[JobContext, dict[str, Any]], Any]"


class Chain:
    """The middleware of one LeaseQueue, outermost first."""

    def __init__(self) -> None:
        self._middleware: list[Middleware] = []
        self._handlers: dict[str, Handler] = {}
        self._building = threading.Lock()

    def add(self, function: Middleware) -> None:
        """Add one inside of those that are there.

        Raises:
            ConfigurationError: it cannot be called with a context and ``call_next``.
        """
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise ConfigurationError(
                f"middleware {_name(function)} is a generator: write `return call_next()` where it yields"
            )
        try:
            inspect.signature(function).bind(None, None)
        except TypeError:
            raise ConfigurationError(f"middleware {_name(function)} must take two arguments: ctx, call_next") from None
        self._middleware.append(function)

    def handler(self, name: str, function: Callable[..., Any], is_async: bool) -> Handler:
        """The function inside the middleware of its own sort; built at the first call for a name."""
        handler = self._handlers.get(name)
        if handler is None:
            with self._building:
                handler = _innermost(function)
                for middleware in reversed(self._middleware):
                    if inspect.iscoroutinefunction(middleware) is is_async:
                        handler = _wrap(middleware, handler)
                self._handlers[name] = handler
        return handler

    def check(self, tasks: Iterable[tuple[str, bool]]) -> list[str]:
        """A sentence for each middleware that some tasks, given by name and sort, run without."""
        listed = list(tasks)
        names = {_name(middleware) for middleware in self._middleware}
        problems = []
        for middleware in self._middleware:
            is_async = inspect.iscoroutinefunction(middleware)
            without = [name for name, sort in listed if sort is not is_async]
            if not without or _twin(middleware, is_async) in names:
                continue
            sort, other = ("an async def", "plain") if is_async else ("a plain function", "async")
            shown = ", ".join(without[:5]) + (f" and {len(without) - 5} more" if len(without) > 5 else "")
            problems.append(
                f"middleware {_name(middleware)} is {sort} and does not run around the {other} tasks "
                f"{shown}: add a middleware {_twin(middleware, is_async).rpartition('.')[2]} of their sort"
            )
        return problems


def _innermost(function: Callable[..., Any]) -> Handler:
    def call(ctx: JobContext, arguments: dict[str, Any]) -> Any:
        return function(**arguments)

    return call


def _wrap(middleware: Middleware, inner: Handler) -> Handler:
    def call(ctx: JobContext, arguments: dict[str, Any]) -> Any:
        # call_next() and call_next(ctx) both work: the second is the habit from web frameworks.
        return middleware(ctx, lambda _ctx=None: inner(ctx, arguments))  # type: ignore[misc]

    return call


def _name(function: Callable[..., Any]) -> str:
    return f"{function.__module__}.{getattr(function, '__qualname__', repr(function))}"


def _twin(function: Callable[..., Any], is_async: bool) -> str:
    """The name of the middleware of the other sort that does the same, after the house's habit: x and ax."""
    path, dot, last = _name(function).rpartition(".")
    return path + dot + (last.removeprefix("a") if is_async else "a" + last)
