"""Names: which are allowed, and which a task gets when it is given none. Pure."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from leasequeue.errors import ConfigurationError
from leasequeue.job import NAME_BYTES_MAX


def check(what: str, text: object) -> str:
    """``text`` itself, when it can stand in a row as a name or key.

    Raises:
        ConfigurationError: it is no text, empty, longer than 512 bytes of UTF-8, or holds what PostgreSQL's
        text
            cannot (NUL, a lone surrogate).
    """
    if not isinstance(text, str):
        raise ConfigurationError(f"{what} is text, not {text!r}")
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise ConfigurationError(f"{what} holds a lone surrogate, which is no valid text: {text!r}") from None
    if not 1 <= size <= NAME_BYTES_MAX or "\x00" in text:
        shown = text if size <= 80 else text[:80] + "..."
        raise ConfigurationError(
            f"{what} has 1 to {NAME_BYTES_MAX} bytes and no NUL; {shown!r} has {size} bytes"
            + (", hash what it is made of" if size > NAME_BYTES_MAX else "")
        )
    return text


def check_id(what: str, id: object) -> int:
    """``id`` itself, when it can be one of a row.

    Raises:
        ConfigurationError: it is something else, such as the job itself.
    """
    if isinstance(id, int) and not isinstance(id, bool) and -(2**63) <= id < 2**63:
        return id
    hint = ": give its .id" if hasattr(id, "id") else ""
    raise ConfigurationError(f"{what} is a whole number of at most 64 bits, not {id!r}{hint}")


def whereabouts(function: Callable[..., Any]) -> str:
    """``module.qualname`` of a function, for messages."""
    return f"{function.__module__}.{getattr(function, '__qualname__', repr(function))}"


def default(function: Callable[..., Any]) -> str:
    """The name of a task that is given none: ``module.qualname``.

    The worker imports the module under its real name, so ``__main__`` would name a task that no worker knows.

    Raises:
        ConfigurationError: the real name cannot be known, or the function has none.
    """
    qualname = getattr(function, "__qualname__", None)
    module = function.__module__
    if qualname is None or "<lambda>" in qualname:
        raise ConfigurationError(f'{function!r} has no name of its own: pass one, @lq.task(name="...")')
    if module == "__main__":
        real = _main_module()
        if real is None:
            raise ConfigurationError(
                f"{qualname} is defined in __main__, whose importable name cannot be known here, so that no "
                f'worker would know the task: pass a name, @lq.task(name="..."), or move it into a module'
            )
        module = real
    return f"{module}.{qualname}"


def _main_module() -> str | None:
    main = sys.modules.get("__main__")
    spec = getattr(main, "__spec__", None)
    if spec is not None:  # python -m app.tasks
        return str(spec.name)
    file = getattr(main, "__file__", None)
    if not file:
        return None
    path = Path(file).resolve()
    parts, folder = [path.stem], path.parent
    while (folder / "__init__.py").is_file():
        parts.insert(0, folder.name)
        folder = folder.parent
    # A script outside of a package is importable by its bare name only from its own folder: elsewhere
    # `python jobs/tasks.py` may be jobs.tasks as well as tasks.
    known = len(parts) > 1 or folder == Path.cwd()
    return ".".join(parts) if known and all(part.isidentifier() for part in parts) else None
