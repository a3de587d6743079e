"""Links that are closed with the test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import psycopg
import pytest

from leasequeue.db.connect import Link
from leasequeue.db.urls import Settings

MakeLink: TypeAlias = Callable[..., Link]
Execute: TypeAlias = Callable[..., "list[tuple[Any, ...]]"]


@pytest.fixture
def make_link() -> Iterator[MakeLink]:
    """``make_link(url)``: connected, unless ``connect=False``."""
    made: list[Link] = []

    def make(url: str, *, connect: bool = True, **options: Any) -> Link:
        link = Link(Settings.parse(url), application_name="leasequeue test", **options)
        made.append(link)
        if connect:
            link.connect()
        return link

    yield make
    for link in made:
        link.close()


@pytest.fixture
def link(make_link: MakeLink, direct_url: str) -> Link:
    return make_link(direct_url)


@pytest.fixture
def execute(direct_url: str) -> Iterator[Execute]:
    """Statements on a plain connection of the test's own."""
    with psycopg.connect(direct_url, autocommit=True, prepare_threshold=None) as conn:

        def run(sql: str, params: Any = None) -> list[tuple[Any, ...]]:
            cursor = conn.execute(sql, params)  # type: ignore[call-overload,unused-ignore]
            return [] if cursor.description is None else cursor.fetchall()

        yield run
