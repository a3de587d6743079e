"""Finding an application's LeaseQueue by the words of a command line. Only worker processes do: it runs its code."""

from __future__ import annotations

import importlib
import logging
import sys
import traceback
from types import ModuleType

from leasequeue import config
from leasequeue.db.urls import Settings
from leasequeue.errors import ConfigurationError
from leasequeue.queue import LeaseQueue
from leasequeue.worker.options import WorkerOptions

log = logging.getLogger("leasequeue.worker")

_FORM = "APP is module:attr or module:factory(), for example app.jobs:lq"


def application(options: WorkerOptions, *, quiet: bool = False) -> tuple[LeaseQueue, Settings]:
    """The LeaseQueue that a worker process was asked to serve, its imports loaded, and where it works.

    Args:
        quiet: say nothing of what is worth a line at start.

    Raises:
        ConfigurationError: it cannot be loaded, or not be served; the message says why and what to do.
    """
    if options.url:
        config.GIVEN["LEASEQUEUE_URL"] = options.url  # not the environment: programs that a job starts would inherit it
    if options.schema:
        config.GIVEN["LEASEQUEUE_SCHEMA"] = options.schema
    lq = load_app(options.app)
    lq.load_imports()
    if not lq.registry.names:
        raise ConfigurationError(
            f"{options.app} registers no task, so there is nothing to run: name the modules that define tasks, "
            f'LeaseQueue(imports=["app.tasks.*"]), or import them where the LeaseQueue is made'
        )
    for problem in () if quiet else lq.check():
        log.warning("%s", problem)
    return lq, _settings(lq, options)


def _settings(lq: LeaseQueue, options: WorkerOptions) -> Settings:
    """Where this process works.

    The names of the databases are compared, not their addresses: the way of the application may lead through a pooler and
    that of the worker past it.

    Raises:
        ConfigurationError: the application configures another database than --url names: its handlers would write there,
            and complete their jobs here.
    """
    if not options.url:
        return lq.settings()
    asked = Settings.parse(options.url)
    own = lq.settings()  # that of --url too, unless the application configures one
    if (own.dbname or own.user) != (asked.dbname or asked.user):
        raise ConfigurationError(
            f"the application configures {own.masked} and --url names {asked.masked}, another database: handlers would "
            f"write to the one and complete their jobs in the other; leave --url out, or let the application take its URL "
            f"from LEASEQUEUE_URL"
        )
    return asked


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
