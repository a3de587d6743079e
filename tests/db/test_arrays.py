"""Arrays written as text mean to the server what the values mean here."""

from __future__ import annotations

import math

import pytest

from leasequeue.db.arrays import numbers, texts
from leasequeue.db.connect import Link

TEXTS = [
    "",
    " ",
    "NULL",
    "null",
    None,
    'say "a"',
    "back\\slash",
    '\\"',
    "{a,b}",
    "a,b",
    "\n\t",
    "ünï",
    "\U0001f600",
    "'; --",
    "%s",
]


@pytest.mark.parametrize("values", [TEXTS, [], [None], [""]], ids=["nasty", "none", "null", "empty"])
def test_texts_come_back_as_they_were(link: Link, values: list[str | None]) -> None:
    assert link.run("SELECT %(them)s::text[]", {"them": texts(values)}) == [(values,)]


def test_integers_and_booleans_come_back_as_they_were(link: Link) -> None:
    big = [2**63 - 1, -(2**63), 0, None]
    assert link.run(
        "SELECT %(a)s::bigint[], %(b)s::boolean[]", {"a": numbers(big), "b": numbers([True, False, None])}
    ) == [(big, [True, False, None])]
    assert link.run("SELECT %(a)s::bigint[]", {"a": numbers([])}) == [([],)]


def test_floats_come_back_as_they_were(link: Link) -> None:
    values = [0.1, 1e300, 5e-324, -0.0, math.inf, -math.inf, 1764541234.123457]
    ((found,),) = link.run("SELECT %(them)s::float8[]", {"them": numbers(values)})
    assert list(map(repr, found)) == list(map(repr, values))
