"""Where the database is: what was configured, else what the environment says. Resolved at first use."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from leasequeue import naming
from leasequeue.db.urls import Settings
from leasequeue.errors import ConfigurationError

if TYPE_CHECKING:
    from sqlalchemy import Engine
    from sqlalchemy.ext.asyncio import AsyncEngine

_NOTHING_SET = (
    "no database is configured: call lq.configure(url=...) or lq.configure(engine=...) in the application; "
    "or set LEASEQUEUE_URL (or LEASEQUEUE_URL_FILE, the path of a file that holds it); or set DATABASE_URL"
)


GIVEN: dict[str, str] = {}
"""What a worker was given on its command line; it comes before the environment's variable of the same name."""


class Config:
    """The settings of one LeaseQueue. Thread-safe; a callable is called once."""

    def __init__(self, schema: str | None) -> None:
        self._given_schema = None if schema is None else check_schema(schema)
        self._call: tuple[Any, Any, Any] | None = None
        self._resolving = threading.RLock()  # a callable may ask for the schema
        self._engine: Any = None
        self._engine_known = False
        self._settings: Settings | None = None
        self._schema: str | None = None

    def configure(self, url: Any, engine: Any, schema: Any) -> None:
        """See ``LeaseQueue.configure``."""
        call = (url, engine, schema)
        if call == (None, None, None):
            raise ConfigurationError("configure() was given nothing: pass url=, engine= or schema=")
        if url is not None and not isinstance(url, str) and not callable(url):
            url = url.render_as_string(hide_password=False)  # a sqlalchemy.URL
            call = (url, engine, schema)
        with self._resolving:
            if self._call is not None:
                if self._call != call:
                    raise ConfigurationError(
                        "this LeaseQueue is configured already, and differently: call configure() once, in "
                        "one place (an application factory that runs twice may repeat the same call)"
                    )
                return
            if self._settings is not None or self._engine_known or (schema is not None and self._schema is not None):
                raise ConfigurationError(
                    "configure() came after the first use of this LeaseQueue, which took its settings from "
                    "the environment: call it before anything is enqueued"
                )
            if isinstance(schema, str):
                check_schema(schema)
                if self._given_schema is not None and schema != self._given_schema:
                    raise ConfigurationError(
                        f"LeaseQueue(schema={self._given_schema!r}) and configure(schema={schema!r}) differ: keep one"
                    )
            self._call = call

    @property
    def schema(self) -> str:
        """Unquoted; ``public`` where nothing says otherwise."""
        found = self._schema
        if found is None:
            with self._resolving:
                configured = self._call[2] if self._call else None
                configured = configured() if callable(configured) else configured
                found = configured or self._given_schema or _variable("LEASEQUEUE_SCHEMA") or "public"
                found = self._schema = check_schema(found)
        return found

    def engine(self) -> Engine | AsyncEngine | None:
        """The configured engine, or None."""
        with self._resolving:
            if not self._engine_known:
                configured = self._call[1] if self._call else None
                # An engine is not callable, a factory is.
                self._engine = configured() if callable(configured) else configured
                self._engine_known = True
            return self._engine  # type: ignore[no-any-return]  # what the application gave

    def settings(self) -> Settings:
        """How to reach the database.

        Raises:
            ConfigurationError: nothing says where it is.
        """
        with self._resolving:
            if self._settings is None:
                url = self._url()
                if url is not None:
                    self._settings = Settings.parse(url)
                else:
                    engine = self.engine()
                    if engine is None:
                        self._engine_known = False  # still to be configured
                        raise ConfigurationError(_NOTHING_SET)
                    self._settings = Settings.from_engine(engine)
            return self._settings

    def _url(self) -> str | None:
        if self._call is not None:
            configured = self._call[0]
            if configured is not None:
                return str(configured() if callable(configured) else configured)
            if self._call[1] is not None:
                return None
        for name in ("LEASEQUEUE_URL", "LEASEQUEUE_URL_FILE", "DATABASE_URL"):
            value = _variable(name).strip()
            if value and name == "LEASEQUEUE_URL_FILE":
                try:
                    value = Path(value).read_text().strip()
                except (OSError, UnicodeDecodeError) as error:
                    raise ConfigurationError(f"LEASEQUEUE_URL_FILE={value!r} cannot be read: {error}") from error
                if not value:
                    raise ConfigurationError("the file that LEASEQUEUE_URL_FILE names is empty: write the URL into it")
            if value:
                return value
        return None


def _variable(name: str) -> str:
    return GIVEN.get(name) or os.environ.get(name, "")


def check_schema(schema: object) -> str:
    """A schema's name, unquoted, when it can be one: an identifier has at most 63 bytes."""
    text = naming.check("a schema's name", schema)
    if len(text.encode()) > 63:
        raise ConfigurationError(f"schema {text!r} is longer than PostgreSQL's 63 bytes")
    return text
