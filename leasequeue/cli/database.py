"""Which database and schema a command works on, and the connection to it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from leasequeue.db.urls import Settings
    from leasequeue.ops.asking import Desk

F = TypeVar("F", bound=Callable[..., Any])

BOUND_SECONDS = 10.0


def database_options(function: F) -> F:
    """Add ``--url``, ``--schema`` and, so that it may stand anywhere, ``--debug``."""
    for option in (
        click.option("--debug", is_flag=True, expose_value=False, help="Show tracebacks."),
        click.option("--schema", metavar="NAME", help="Schema of the tables; else LEASEQUEUE_SCHEMA, else public."),
        click.option(
            "--url",
            metavar="URL",
            help="The database. Others on this machine can read a password that is given here: prefer LEASEQUEUE_URL "
            "or LEASEQUEUE_URL_FILE.",
        ),
    ):
        function = option(function)
    return function


def where(url: str | None, schema: str | None) -> tuple[Settings, str]:
    """The database and the schema, from the options, else from the environment.

    Raises:
        ConfigurationError: nothing says where the database is, or what does cannot be read.
    """
    from leasequeue.config import Config
    from leasequeue.errors import ConfigurationError

    config = Config(schema)
    if url is None and not _said_by_environment():
        raise ConfigurationError(
            "no database is named: give --url, or set LEASEQUEUE_URL (or LEASEQUEUE_URL_FILE, the path of a file that "
            "holds it), or DATABASE_URL"
        )
    if url is not None:
        config.configure(url, None, None)
    return config.settings(), config.schema


def _said_by_environment() -> bool:
    import os

    return any(os.environ.get(name, "").strip() for name in ("LEASEQUEUE_URL", "LEASEQUEUE_URL_FILE", "DATABASE_URL"))


@contextlib.contextmanager
def desk(url: str | None, schema: str | None) -> Iterator[Desk]:
    """A connection for the length of a command, to a schema whose version was checked.

    Raises:
        ConfigurationError, DatabaseUnavailable, SchemaMismatch: each says what to do.
    """
    settings, name = where(url, schema)
    with desk_at(settings, name) as found:
        yield found


@contextlib.contextmanager
def desk_at(settings: Settings, schema: str) -> Iterator[Desk]:
    """The same, for a database that is known; raises as :func:`desk` does."""
    from leasequeue.db.connect import Link
    from leasequeue.ops.asking import Desk

    link = Link(settings, application_name="leasequeue cli", bound_seconds=BOUND_SECONDS)
    try:
        link.connect()
        yield Desk(link, schema)
    finally:
        link.close()
