"""Reading a database URL or a libpq connection string into its parts; the accepted forms are listed in ``urls``.

An error shows no part of the text that might be a piece of a password.
"""

from __future__ import annotations

import difflib
import re
from functools import cache
from typing import NamedTuple, TypeAlias
from urllib.parse import unquote

import psycopg
from psycopg import pq
from psycopg.conninfo import conninfo_to_dict

from leasequeue.errors import ConfigurationError

EXAMPLE = "postgresql://user:password@host:5432/dbname?sslmode=require"

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+._:\-]*)://")
_BACKENDS = ("postgresql", "postgres", "pgsql")
_DRIVERS = ("", "psycopg", "psycopg_async", "psycopg2", "psycopg2cffi", "asyncpg", "pg8000", "aiopg")
_ATTRS = ("any", "read-write", "read-only", "primary", "standby", "prefer-standby")

# Arguments of drivers, frameworks and hosting providers that say nothing to libpq. Any other unknown argument is
# dropped too, unless it looks like a slip of the pen for one that matters (``sslmod=verify-full``).
_OTHERS = frozenset(
    """async_fallback autocommit binary charset command_timeout connection_limit context cursor_factory
    json_serializer max_cacheable_statement_size max_cached_statement_lifetime pgbouncer pool_timeout
    prepare_threshold prepared_statement_cache_size prepared_statement_name_func row_factory schema
    server_settings socket_timeout sslaccept statement_cache_size statement_timeout timeout unix_sock
    use_native_hstore""".split()  # noqa: SIM905 - a list literal would be one word a line
)


class Host(NamedTuple):
    """One host: a name, an address or the directory of a Unix socket. ``port`` None: libpq's default."""

    name: str
    port: int | None

    def __str__(self) -> str:
        name = f"[{self.name}]" if ":" in self.name else self.name
        return name if self.port is None else f"{name}:{self.port}"


Parts: TypeAlias = tuple[list[Host], dict[str, str]]
"""The hosts, and everything else by libpq's names, ``dbname``, ``user`` and ``password`` among it."""


def read(text: str) -> Parts:
    """Read a URL or a connection string.

    Raises:
        ConfigurationError: it is none, or of another database.
    """
    text = text.strip()
    if not text:
        raise ConfigurationError(f"the database URL is empty; write one such as {EXAMPLE}")
    if "\0" in text:
        raise ConfigurationError("the database URL contains a NUL character, which none can")
    scheme = _SCHEME.match(text)
    hosts, options = (
        _from_conninfo(text) if scheme is None else _from_url(text[scheme.end() :], _driver(scheme.group(1)))
    )
    attrs = options.get("target_session_attrs")
    if attrs and attrs not in _ATTRS:
        raise ConfigurationError(
            f"target_session_attrs={attrs!r} is none of {', '.join(_ATTRS)}; a queue wants read-write"
        )
    return hosts, {name: value for name, value in options.items() if value}


def _driver(scheme: str) -> str:
    """The driver of a URL's scheme; refuses those of other databases."""
    backend, _, driver = scheme.lower().partition("+")
    if backend.startswith("jdbc:"):
        raise ConfigurationError(f"{scheme}:// is a URL for Java; write it as {EXAMPLE}")
    if backend not in _BACKENDS:
        raise ConfigurationError(
            f"{scheme}:// is not a PostgreSQL URL, and leasequeue keeps its rows in PostgreSQL only; "
            f"give it a URL such as {EXAMPLE}"
        )
    if driver not in _DRIVERS:
        raise ConfigurationError(
            f"{scheme}:// names the driver {driver!r}, which is not known; leasequeue connects with psycopg "
            f"whatever is written there, so leave it out: {EXAMPLE}"
        )
    return driver


def _from_conninfo(text: str) -> Parts:
    if "=" not in text:
        raise ConfigurationError(
            f"the database URL has no scheme (its text is not shown, it may hold a password); write {EXAMPLE}"
        )
    try:
        found = conninfo_to_dict(text)
    except psycopg.Error:
        # libpq's message quotes the text, password and all.
        raise ConfigurationError(
            "libpq cannot read the connection string (its text is not shown, it may hold a password); write "
            f'{EXAMPLE} or "host=... port=5432 dbname=... user=... password=..."'
        ) from None
    options = {name: str(value) for name, value in found.items()}
    return pair(options.pop("host", None), options.pop("port", None)), options


def _from_url(rest: str, driver: str) -> Parts:
    authority, slash, tail = _cut(rest, "/?")
    path, _, query = (tail if slash == "/" else "?" + tail).partition("?")
    userinfo, at, where = authority.rpartition("@")
    if not at and ("@" in path or any("@" in part.partition("=")[0] for part in query.split("&"))):
        raise ConfigurationError(
            "the database URL has an @ after its first / or ?: these, # and @ must be percent-encoded in a "
            "password (/ as %2F, ? as %3F, # as %23, @ as %40)"
        )
    hosts = [_host(unquote(each)) for each in where.split(",")] if where else []
    arguments = _arguments(query, plus_is_space=bool(driver))
    if "host" in arguments:
        # They stand in for the authority's: the usual way to write a socket directory or several hosts.
        listed = arguments.pop("host")
        ports = arguments.pop("port", [])
        if len(listed) > 1 or (not ports and ":" in listed[0] and not listed[0].startswith("/")):
            hosts = [_host(each) for each in ",".join(listed).split(",")]
        else:
            hosts = pair(listed[0], ports[-1] if ports else None)
    elif "port" in arguments:
        hosts = pair(",".join(host.name for host in hosts) or None, arguments.pop("port")[-1])
    options = {name: values[-1] for name, values in arguments.items()}
    if path:
        options.setdefault("dbname", unquote(path))
    if at:
        user, colon, password = userinfo.partition(":")
        if user:
            options["user"] = unquote(user)
        if colon:
            options["password"] = unquote(password)
    return hosts, options


def _cut(text: str, marks: str) -> tuple[str, str, str]:
    """Cut at the first of these characters: before, the character or nothing, after."""
    places = [place for mark in marks if (place := text.find(mark)) >= 0]
    if not places:
        return text, "", ""
    return text[: min(places)], text[min(places)], text[min(places) + 1 :]


def _arguments(query: str, plus_is_space: bool) -> dict[str, list[str]]:
    """The query's arguments by libpq's names. A plus is a space where SQLAlchemy reads it as one."""
    found: dict[str, list[str]] = {}
    for part in query.split("&"):
        name, _, value = part.partition("=")
        if not name:
            continue
        if plus_is_space:
            value = value.replace("+", " ")
        found.setdefault(unquote(name), []).append(unquote(value))
    for name, wanted in (("ssl", "sslmode"), ("database", "dbname")):
        if name in found:
            found.setdefault(wanted, found.pop(name))
    if "sslmode" in found:
        modes = {"true": "require", "1": "require", "false": "disable", "0": "disable", "no-verify": "require"}
        found["sslmode"] = [modes.get(value.lower(), value) for value in found["sslmode"]]
    return {name: values for name, values in found.items() if _is_known(name)}


def _is_known(name: str) -> bool:
    if name in _keywords():
        return True
    if name not in _OTHERS and (near := difflib.get_close_matches(name, _keywords(), n=1, cutoff=0.85)):
        raise ConfigurationError(f"the database URL has the argument {name!r}; is {near[0]!r} meant?")
    return False


@cache
def _keywords() -> frozenset[str]:
    """What this libpq takes."""
    return frozenset(option.keyword.decode() for option in pq.Conninfo.get_defaults())


def _host(text: str) -> Host:
    """``name``, ``name:port``, ``[v6]:port`` or a directory."""
    if text.startswith(("/", "@")):
        directory, colon, port = text.rpartition(":")
        return Host(directory, int(port)) if colon and port.isdigit() else Host(text, None)
    if text.startswith("["):
        name, _, port = text[1:].partition("]")
        return Host(name, _port(port.removeprefix(":")))
    name, _, port = text.partition(":")
    return Host(name, _port(port))


def _port(text: str) -> int | None:
    text = text.strip()
    if not text:
        return None
    if not text.isascii() or not text.isdigit() or not 0 < int(text) < 65536:
        raise ConfigurationError(
            "the database URL has a port that is no number from 1 to 65535 (not shown, it may be a piece of a "
            "password: there / ? # @ must be percent-encoded as %2F %3F %23 %40)"
        )
    return int(text)


def pair(names: str | None, ports: str | None) -> list[Host]:
    """Hosts from libpq's two comma-separated lists."""
    if names is None and ports is None:
        return []
    name_list = [""] if names is None else names.split(",")
    port_list = [_port(each) for each in ports.split(",")] if ports else [None]
    if len(port_list) == 1:
        port_list *= len(name_list)
    if len(port_list) != len(name_list):
        raise ConfigurationError(
            f"the database URL names {len(name_list)} hosts and {len(port_list)} ports: give one port for all, or "
            f"one for each host, such as postgresql://user:password@a:5432,b:5433/dbname"
        )
    return [Host(name, port) for name, port in zip(name_list, port_list, strict=True)]
