"""A psycopg connection on which something else can be done while the server works on a statement.

psycopg waits for an answer by stepping a generator: its first step sends, each later one looks whether the answer is there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar, cast

import psycopg

if TYPE_CHECKING:
    from psycopg.abc import PQGen

T = TypeVar("T")


class Connection(psycopg.Connection[tuple[Any, ...]]):
    """``meanwhile`` is called once, by the next statement, when that is under way."""

    meanwhile: Callable[[], object] | None = None

    def wait(self, gen: PQGen[T], *args: Any, **kwargs: Any) -> T:
        meanwhile, self.meanwhile = self.meanwhile, None
        return super().wait(gen if meanwhile is None else _with(gen, meanwhile), *args, **kwargs)


def _with(gen: PQGen[T], meanwhile: Callable[[], object]) -> PQGen[T]:
    try:
        wanted = next(gen)
        meanwhile()
        while True:
            wanted = gen.send((yield wanted))
    except StopIteration as end:
        return cast("T", end.value)
