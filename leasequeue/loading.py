"""What a worker process loads of an application: its task modules and its lifespan."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from fnmatch import fnmatchcase
from types import ModuleType
from typing import Any

from leasequeue.errors import ConfigurationError


def load(patterns: Iterable[str]) -> list[str]:
    """Import every module that a pattern matches; see ``LeaseQueue(imports=...)``.

    Raises:
        ConfigurationError: a pattern matches nothing, or an import fails.
    """
    loaded: dict[str, None] = {}
    for pattern in patterns:
        first, *rest = pattern.split(".")
        if not first or "*" in first or "" in rest:
            raise ConfigurationError(
                f"imports={pattern!r}: give a dotted module name whose first part is no pattern, as 'app.tasks.*'"
            )
        found = [module.__name__ for module in _match(first, rest, pattern)]
        if not found:
            raise ConfigurationError(f"imports={pattern!r} matches no module")
        loaded.update(dict.fromkeys(found))
    return list(loaded)


def _match(name: str, rest: list[str], pattern: str) -> Iterator[ModuleType]:
    module = _import(name, pattern)
    if not rest:
        yield module
        return
    head, *tail = rest
    if "*" not in head:
        yield from _match(f"{name}.{head}", tail, pattern)
        return
    path = getattr(module, "__path__", None)
    if path is None:
        raise ConfigurationError(f"imports={pattern!r}: {name} is a module, not a package, and has nothing below it")
    for entry in sorted(pkgutil.iter_modules(path), key=lambda entry: entry.name):
        # __main__ would start the program that it stands for.
        if fnmatchcase(entry.name, head) and entry.name != "__main__" and (not tail or entry.ispkg):
            yield from _match(f"{name}.{entry.name}", tail, pattern)


def _import(name: str, pattern: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except Exception as error:
        raise ConfigurationError(
            f"cannot import {name} (from imports={pattern!r}): {type(error).__name__}: {error}"
        ) from error


class Lifespan:
    """One entering and leaving of an application's resources per process. Not thread-safe."""

    def __init__(self, factory: Callable[..., Any] | None) -> None:
        if factory is not None and not callable(factory):
            raise ConfigurationError(f"lifespan is a function that is called with the LeaseQueue, not {factory!r}")
        if inspect.isasyncgenfunction(factory):
            factory = asynccontextmanager(factory)
        elif inspect.isgeneratorfunction(factory):
            factory = contextmanager(factory)
        self._factory = factory
        self._entered: Any = None
        self.is_async: bool | None = None

    def enter(self, argument: object) -> Any:
        """The value, or a coroutine of it."""
        if self._factory is None:
            return None
        if self._entered is not None:
            raise ConfigurationError("the lifespan is entered already in this process")
        manager = self._factory(argument)
        if hasattr(manager, "__aenter__"):
            self._entered, self.is_async = manager, True
            return self._aenter(manager)
        if not hasattr(manager, "__enter__"):
            raise ConfigurationError(
                f"lifespan returned {manager!r}, which is no context manager: decorate the function with "
                f"@contextmanager or @asynccontextmanager"
            )
        value = manager.__enter__()
        self._entered, self.is_async = manager, False
        return value

    async def _aenter(self, manager: Any) -> Any:
        try:
            return await manager.__aenter__()
        except BaseException:
            self._entered = self.is_async = None  # what did not come up is not taken down
            raise

    def exit(self) -> Any:
        """None, or a coroutine."""
        manager, self._entered = self._entered, None
        if manager is None:
            return None
        if self.is_async:
            return self._aexit(manager)
        self.is_async = None
        manager.__exit__(None, None, None)
        return None

    async def _aexit(self, manager: Any) -> None:
        self.is_async = None
        await manager.__aexit__(None, None, None)
