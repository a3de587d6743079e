"""Where the database is: every usual way to write it, in one form. Pure: nothing is dialled here.

Accepted: ``postgres://`` and ``postgresql://`` URLs as libpq takes them, SQLAlchemy's ``postgresql+psycopg://``,
``+psycopg2://``, ``+asyncpg://`` and their like, libpq's ``host=... dbname=...``; several hosts in each form
(``//a:5432,b:5433/db``, ``?host=a:5432&host=b:5433``, ``host=a,b port=5432,5433``); socket directories.

A password leaves this module only through :meth:`Settings.params`, :meth:`Settings.url` and
:meth:`Settings.to_json`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import quote

from psycopg import pq

from leasequeue.db.url_text import EXAMPLE, Host, pair, read
from leasequeue.errors import ConfigurationError

if TYPE_CHECKING:
    from sqlalchemy import URL, Engine
    from sqlalchemy.ext.asyncio import AsyncEngine

__all__ = ["EXAMPLE", "Host", "Settings", "default_hosts"]

HIDDEN = "***"

_SECRETS = ("password", "sslpassword", "scram_client_key", "scram_server_key", "oauth_client_secret")
# What asyncpg.connect() has an argument for and SQLAlchemy passes on from a URL.
_ASYNCPG = {"sslmode": "ssl", "target_session_attrs": "target_session_attrs", "passfile": "passfile"}
# Security that asyncpg cannot be told by a URL is not dropped in silence.
_ASYNCPG_REFUSED = ("sslrootcert", "sslcert", "sslkey", "sslcrl", "sslpassword", "channel_binding", "options")


@dataclass(frozen=True, repr=False)
class Settings:
    """How to reach the database. Immutable, hashable; ``repr`` and ``str`` hide what is secret.

    Attributes:
        hosts: in the order given; empty where libpq is to decide (``PGHOST``, else the local socket).
        dbname: None: libpq's default (``PGDATABASE``, else the user's name).
        user: None: libpq's default.
        password: None: none given (libpq may find one in ``PGPASSWORD`` or a password file).
        options: every other parameter, by libpq's names, sorted.
    """

    hosts: tuple[Host, ...] = ()
    dbname: str | None = None
    user: str | None = None
    password: str | None = None
    options: tuple[tuple[str, str], ...] = ()

    @classmethod
    def parse(cls, url: str) -> Settings:
        """Read a URL or a libpq connection string.

        Raises:
            ConfigurationError: it is none, or of another database; the message shows no password.
        """
        if not isinstance(url, str):  # what an application configured need not be one
            raise ConfigurationError(f"a database URL is a string such as {EXAMPLE}, not {type(url).__qualname__}")
        hosts, options = read(url)
        return cls(
            hosts=tuple(hosts),
            dbname=options.pop("dbname", None),
            user=options.pop("user", None),
            password=options.pop("password", None),
            options=tuple(sorted(options.items())),
        )

    @classmethod
    def from_engine(cls, engine: Engine | AsyncEngine) -> Settings:
        """From the URL of a SQLAlchemy engine, with its password.

        What an engine was given beside the URL (``connect_args``, ``creator``, events) is not seen.

        Raises:
            ConfigurationError: the engine is not one for PostgreSQL.
        """
        if engine.dialect.name != "postgresql":
            raise ConfigurationError(
                f"the engine is for {engine.dialect.name}; leasequeue needs PostgreSQL, "
                f'such as create_engine("postgresql+psycopg://user:password@host/dbname")'
            )
        return cls.parse(engine.url.render_as_string(hide_password=False))

    @property
    def target_session_attrs(self) -> str:
        """``any`` where nothing was said."""
        return self.option("target_session_attrs") or "any"

    def option(self, name: str) -> str | None:
        """A parameter by libpq's name, or None."""
        return dict(self.options).get(name)

    def params(self) -> dict[str, str | int]:
        """Keyword arguments for ``psycopg.connect``, the password among them."""
        found: dict[str, str | int] = dict(self.options)
        if self.hosts:
            found["host"] = ",".join(host.name for host in self.hosts)
            if len(self.hosts) == 1 and self.hosts[0].port is not None:
                found["port"] = self.hosts[0].port
            elif any(host.port is not None for host in self.hosts):
                found["port"] = ",".join("" if h.port is None else str(h.port) for h in self.hosts)
        for name, value in (("dbname", self.dbname), ("user", self.user), ("password", self.password)):
            if value is not None:
                found[name] = value
        return found

    def url(self, driver: str = "psycopg") -> URL:
        """A SQLAlchemy URL for ``psycopg``, ``psycopg2`` or ``asyncpg``, with the password.

        Its ``repr`` hides the password, but no other secret (``sslpassword``).

        Raises:
            ConfigurationError: a parameter that guards the connection cannot be given to that driver by a URL.
        """
        from sqlalchemy import URL  # half of what a supervisor would import, which never comes here

        options = dict(self.options)
        if driver == "asyncpg":
            refused = [name for name in _ASYNCPG_REFUSED if name in options]
            if refused:
                raise ConfigurationError(
                    f"asyncpg cannot be given {', '.join(refused)} by a URL: use the psycopg driver, or pass an "
                    f"engine of your own with connect_args"
                )
            options = {_ASYNCPG[name]: value for name, value in options.items() if name in _ASYNCPG}
        query: dict[str, str | tuple[str, ...]] = dict(options)
        host, port = None, None
        sockets = any(each.name.startswith(("/", "@")) or not each.name for each in self.hosts)
        if len(self.hosts) == 1 and not sockets:
            host, port = self.hosts[0]
        elif self.hosts:
            # SQLAlchemy splits "name:port" at its colon, so what has colons of its own goes into two lists.
            names = [each.name for each in self.hosts]
            ports = [each.port for each in self.hosts]
            if len(names) > 1 and not sockets and not any(":" in name for name in names):
                query["host"] = tuple(f"{n}:{p or 5432}" for n, p in zip(names, ports, strict=True))
            else:
                query["host"] = ",".join(names)
                if any(ports):
                    query["port"] = ",".join(str(p or 5432) for p in ports)
        user = self.user
        if user is None and self.password is not None:
            user = _default("user")  # SQLAlchemy drops a password that stands without a user
        return URL.create(f"postgresql+{driver}", user, self.password, host, port, self.dbname, query)

    @property
    def masked(self) -> str:
        """A ``postgresql://`` URL for people to read: secrets are hidden, defaults are left out."""
        user = "" if self.user is None else quote(self.user, safe="")
        if self.password is not None:
            user += f":{HIDDEN}"
        hosts = ",".join(quote(str(host), safe="[]:.-_") for host in self.hosts)
        shown = {name: HIDDEN if name in _SECRETS else quote(value, safe="/:,") for name, value in self.options}
        query = "&".join(f"{name}={value}" for name, value in shown.items())
        path = "" if self.dbname is None else "/" + quote(self.dbname, safe="")
        return f"postgresql://{user}{'@' if user else ''}{hosts}{path}{'?' if query else ''}{query}"

    def hide(self, text: str) -> str:
        """The same text without any of these settings' secrets, as plain or percent-encoded text."""
        secrets = [self.password, *(value for name, value in self.options if name in _SECRETS)]
        forms = {form for s in secrets if s for form in (s, quote(s, safe=""), quote(s))}
        for form in sorted(forms, key=len, reverse=True):  # one may begin with another
            text = text.replace(form, HIDDEN)
        return text

    def to_json(self) -> str:
        """For a child process, through a pipe: the password is in it."""
        return json.dumps(
            {
                "hosts": self.hosts,
                "dbname": self.dbname,
                "user": self.user,
                "password": self.password,
                "options": dict(self.options),
            }
        )

    @classmethod
    def from_json(cls, text: str) -> Settings:
        """The inverse of :meth:`to_json`."""
        found = json.loads(text)
        return cls(
            hosts=tuple(Host(name, port) for name, port in found["hosts"]),
            dbname=found["dbname"],
            user=found["user"],
            password=found["password"],
            options=tuple(found["options"].items()),
        )

    def __repr__(self) -> str:
        return f"Settings({self.masked!r})"

    def __str__(self) -> str:
        return self.masked


def _default(name: str) -> str | None:
    """What libpq takes where nothing is said: from the environment, or compiled in."""
    for option in pq.Conninfo.get_defaults():
        if option.keyword == name.encode():
            return option.val.decode() if option.val else None
    return None


def default_hosts(settings: Settings) -> tuple[Host, ...]:
    """The hosts that the environment names (``PGHOST``, ``PGPORT``), for settings without any.

    Empty where a service file is to say them, or nothing does.
    """
    names = None if settings.option("service") or settings.option("hostaddr") else _default("host")
    return tuple(pair(names, _default("port"))) if names else ()
