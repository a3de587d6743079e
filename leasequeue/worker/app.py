"""Finding an application's LeaseQueue by the words of a command line. Only worker processes do: it runs its code."""

from __future__ import annotations

import importlib
import sys
import traceback
from types import ModuleType

from leasequeue.errors import ConfigurationError
from leasequeue.queue import LeaseQueue

_FORM = "APP is module:attr or module:factory(), for example app.jobs:lq"


def load_app(text: str) -> LeaseQueue:
    """Import a LeaseQueue.

    Args:
        text: ``module:attr``, or ``module:factory()`` for a function without arguments that returns one.

    Raises:
        ConfigurationError: it says what was found and what to write.
    """
    module_name, separator, attribute = text.partition(":")
    if not separator or not module_name or not attribute:
        raise ConfigurationError(f"{text!r} does not name an application: {_FORM}")
    if "" not in sys.path:
        sys.path.insert(0, "")  # the current directory, as `python -m` has it
    module = _import(module_name)
    is_factory = attribute.endswith("()")
    found: object = module
    for part in attribute.removesuffix("()").split("."):
        if not hasattr(found, part):
            raise ConfigurationError(f"module {module_name} has no {part!r}{_candidates(module, module_name)}; {_FORM}")
        found = getattr(found, part)
    if is_factory:
        if not callable(found):
            raise ConfigurationError(
                f"{attribute.removesuffix('()')} in {module_name} is no function; leave out the ()"
            )
        try:
            found = found()
        except Exception as error:  # it is the application's own code
            raise ConfigurationError(f"the factory {text} failed:\n{_trace(error)}") from error
    if not isinstance(found, LeaseQueue):
        hint = (
            f"; add () to call it: {text}()" if callable(found) and not is_factory else _candidates(module, module_name)
        )
        raise ConfigurationError(f"{text} is a {type(found).__qualname__}, not a LeaseQueue{hint}")
    return found


def _import(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(error.name + ".")):
            raise ConfigurationError(
                f"there is no module {error.name!r} here: run from the directory that holds it, or install it; {_FORM}"
            ) from error
        raise ConfigurationError(f"importing {name} failed:\n{_trace(error)}") from error
    except Exception as error:
        raise ConfigurationError(f"importing {name} failed:\n{_trace(error)}") from error


def _candidates(module: ModuleType, name: str) -> str:
    there = [attr for attr, value in vars(module).items() if isinstance(value, LeaseQueue)]
    return f"; there is {', '.join(f'{name}:{attr}' for attr in there)}" if there else ""


def _trace(error: BaseException) -> str:
    return "".join(traceback.format_exception(error)).rstrip()
