"""What a task was given is what it gets, after PostgreSQL has kept it as jsonb."""

from __future__ import annotations

import datetime as dt
import enum
from collections.abc import Iterator
from decimal import Decimal
from typing import Any
from uuid import UUID

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from leasequeue.codec import Signature, encode_result, safe_text
from tests.support.server import Server


class Size(enum.Enum):
    SMALL = 1
    LARGE = "large"


def task(
    free: Any,
    number: float,
    whole: int,
    at: dt.datetime,
    after: dt.timedelta,
    price: Decimal,
    data: bytes,
    keys: dict[int, list[UUID]],
    size: Size | None,
    mixed: int | float | str | dt.date | None,
) -> None: ...


SIGNATURE = Signature.of(task)
_text = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))
# A float of 1e16 and above comes back to a parameter without annotation as the whole number of its value.
_small = st.floats(-9e15, 9e15).filter(lambda number: str(number) != "-0.0")
_json: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | _small | _text,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(_text, inner, max_size=5),
    max_leaves=10,
)
_zones = st.none() | st.integers(-86_399, 86_399).map(lambda offset: dt.timezone(dt.timedelta(seconds=offset)))
_given = st.fixed_dictionaries(
    {
        "free": _json,
        "number": st.floats(allow_nan=False, allow_infinity=False),
        "whole": st.integers(),
        "at": st.datetimes(timezones=_zones),
        "after": st.timedeltas(),
        "price": st.decimals(allow_nan=False, allow_infinity=False),
        "data": st.binary(max_size=100),
        "keys": st.dictionaries(st.integers(), st.lists(st.uuids(), max_size=2), max_size=3),
        "size": st.none() | st.sampled_from(Size),
        "mixed": st.none() | st.integers() | _small | st.dates(),
    }
)


@pytest.fixture(scope="module")
def conn(server: Server) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(server.admin_url, autocommit=True) as opened:
        yield opened


def kept(conn: psycopg.Connection[Any], text: str | None) -> str:
    row = conn.execute("SELECT CAST(%s::text AS jsonb)::text", [text]).fetchone()
    assert row is not None
    return str(row[0])


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(arguments=_given)
def test_arguments_survive_jsonb(conn: psycopg.Connection[Any], arguments: dict[str, Any]) -> None:
    back = SIGNATURE.decode(kept(conn, SIGNATURE.bind("t", (), arguments)))
    assert back == arguments
    assert {name: type(value) for name, value in back.items()} == {n: type(value) for n, value in arguments.items()}
    assert back["price"].as_tuple() == arguments["price"].as_tuple()


def test_the_limits_of_what_is_taken_are_within_those_of_jsonb(conn: psycopg.Connection[Any]) -> None:
    value: Any = 10**4300 - 1
    for _ in range(200):
        value = [value]
    arguments = {"free": value, "number": 1.7976931348623157e308, "whole": 1 - 10**4300}

    def largest(free: Any, number: float, whole: int) -> None: ...

    only = Signature.of(largest)
    assert only.decode(kept(conn, only.bind("t", (), arguments))) == arguments


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.text(st.characters(exclude_categories=[])))
def test_a_safe_text_is_taken(conn: psycopg.Connection[Any], text: str) -> None:
    safe = safe_text(text, 50)
    row = conn.execute("SELECT %s::text", [safe]).fetchone()
    assert row == (safe,)
    kept(conn, encode_result(safe))
