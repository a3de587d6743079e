"""A database for one test: made from a template in some 30 ms, dropped after it."""

from __future__ import annotations

import itertools
import os
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

import psycopg
import sqlalchemy

from tests.support.server import Server

_RUN = f"{os.getpid()}_{secrets.token_hex(3)}"
_count = itertools.count(1)


class Database:
    """A fresh database that only one test uses.

    Attributes:
        url: what the code under test is given: straight to the server or through pgbouncer (see ``via``).
        direct_url: always straight to the server.
        via: ``direct`` or ``pgbouncer``.
        schema: the schema that holds the leasequeue tables.
    """

    def __init__(self, server: Server, name: str, url: str, via: str, schema: str = "public") -> None:
        self.server = server
        self.name = name
        self.url = url
        self.direct_url = server.url(name)
        self.via = via
        self.schema = schema
        self._conn: psycopg.Connection[tuple[Any, ...]] | None = None
        self._opened: list[psycopg.Connection[tuple[Any, ...]]] = []

    def execute(self, statement: str, params: Sequence[Any] | Mapping[str, Any] | None = None) -> list[tuple[Any, ...]]:
        """Run one statement on a connection of the test's own, straight to the server, and commit it.

        Returns all rows, or an empty list where the statement yields none. Survives a restart of the server
        between two calls.
        """
        conn = self._conn
        if conn is None or conn.closed:
            conn = self._conn = psycopg.connect(
                self.direct_url, autocommit=True, prepare_threshold=None, connect_timeout=10
            )
        try:
            cursor = conn.execute(statement, params)  # type: ignore[call-overload,unused-ignore]
        except psycopg.OperationalError:
            if not conn.broken:
                raise
            conn.close()  # the server was restarted since the last call
            return self.execute(statement, params)
        return list(cursor.fetchall()) if cursor.description else []

    def scalar(self, statement: str, params: Sequence[Any] | Mapping[str, Any] | None = None) -> Any:
        """The first column of the only row."""
        ((value, *_),) = self.execute(statement, params)
        return value

    def connect(self, *, autocommit: bool = False, direct: bool = True) -> psycopg.Connection[tuple[Any, ...]]:
        """A psycopg connection that is closed with the test."""
        conn = psycopg.connect(
            self.direct_url if direct else self.url,
            autocommit=autocommit,
            prepare_threshold=None,
            connect_timeout=10,
        )
        self._opened.append(conn)
        return conn

    def close(self) -> None:
        for conn in [*self._opened, *([self._conn] if self._conn else [])]:
            conn.close()
        self.server.drop_soon(self.name)


class Templates:
    """Makes databases; keeps the migrated template of the run."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self._migrated: str | None = None

    def empty(self) -> str:
        """The name of a new empty database."""
        name = f"lqtest_{_RUN}_{next(_count)}"
        self.server.create_database(name)
        return name

    def migrated(self) -> str:
        """The name of a new database with the leasequeue tables in schema public."""
        if self._migrated is None:
            self._migrated = self._make_template()
        name = f"lqtest_{_RUN}_{next(_count)}"
        self.server.create_database(name, self._migrated)
        return name

    def close(self) -> None:
        self.server.drop_the_rest()
        if self._migrated is not None:
            self.server.drop_database(self._migrated)

    def _make_template(self) -> str:
        from leasequeue import schema

        name = f"lqtest_{_RUN}_template"
        self.server.create_database(name)
        url = self.server.url(name).replace("postgresql://", "postgresql+psycopg://", 1)
        engine = sqlalchemy.create_engine(url, poolclass=sqlalchemy.NullPool)
        try:
            with engine.begin() as conn:
                schema.install(conn)
        finally:
            engine.dispose()
        return name
