"""Every kind of value comes back as exactly what it was, and stands in the row as a person would write it."""

import collections.abc
import contextlib
import dataclasses
import datetime as dt
import decimal
import enum
import json
import typing
import uuid
from decimal import Decimal
from typing import Annotated, Any, Literal, NewType, NotRequired, TypedDict

import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from leasequeue.codec import Signature
from leasequeue.errors import InvalidArguments, Undecodable


class Size(enum.Enum):
    SMALL = 1
    LARGE = 2


class Mood(enum.StrEnum):
    GOOD = "good"


class Days(enum.Flag):
    SATURDAY = 1
    SUNDAY = 2


class Box(enum.Enum):
    FLAT = (1, 2)
    DAY = dt.date(2024, 1, 2)


@dataclasses.dataclass
class Point:
    x: int
    y: Decimal = Decimal("0.10")
    length: float = dataclasses.field(default=0.0, init=False)


@dataclasses.dataclass
class Point3(Point):
    z: int = 0


@dataclasses.dataclass(frozen=True)
class Tree:
    name: str
    children: "list[Tree]" = dataclasses.field(default_factory=list)
    parent: "Tree | None" = None


@dataclasses.dataclass
class Positive:
    n: int

    def __post_init__(self) -> None:
        if self.n < 0:
            raise LookupError("negative")


class Letter(TypedDict):
    to: str
    at: NotRequired[dt.datetime]


class Order(pydantic.BaseModel):
    id: uuid.UUID
    when: dt.date
    lines: list[Decimal] = []
    kind: str = pydantic.Field("plain", alias="type")


class Strict(pydantic.BaseModel, strict=True):
    when: dt.date
    tags: set[str]


class Outsider: ...


UserId = NewType("UserId", int)
UTC_PLUS = dt.timezone(dt.timedelta(hours=5, minutes=30, seconds=7))
NAIVE = dt.datetime(2024, 1, 2, 3, 4, 5, 6)  # noqa: DTZ001  # naive stays naive


def signature(annotation: Any) -> Signature:
    def task(value: Any) -> None: ...

    task.__annotations__["value"] = annotation
    return Signature.of(task)


def there_and_back(annotation: Any, value: Any) -> Any:
    one = signature(annotation)
    return one.decode(one.bind("t", (value,), {}))["value"]


CASES: list[tuple[Any, Any, Any]] = [
    (dt.datetime, NAIVE, "2024-01-02T03:04:05.000006"),
    (dt.datetime, NAIVE.replace(tzinfo=dt.UTC), "2024-01-02T03:04:05.000006+00:00"),
    (dt.datetime, NAIVE.replace(tzinfo=UTC_PLUS), "2024-01-02T03:04:05.000006+05:30:07"),
    (dt.date, dt.date(2024, 1, 2), "2024-01-02"),
    (dt.time, dt.time(1, 2, 3, tzinfo=dt.UTC), "01:02:03+00:00"),
    (dt.timedelta, dt.timedelta(minutes=1.5), 90),
    (dt.timedelta, dt.timedelta(microseconds=-1), -0.000001),
    (dt.timedelta, dt.timedelta.max, "86399999999999.999999"),
    (uuid.UUID, uuid.UUID(int=5), "00000000-0000-0000-0000-000000000005"),
    (Decimal, Decimal("1.500"), "1.500"),
    (Decimal, Decimal("1E+30"), "1E+30"),
    (bytes, b"\x00\xff", "AP8="),
    (Size, Size.LARGE, 2),
    (Mood, Mood.GOOD, "good"),
    (Days, Days.SATURDAY | Days.SUNDAY, 3),
    (Box, Box.FLAT, [1, 2]),
    (Box, Box.DAY, "2024-01-02"),
    (list[dt.date], [dt.date(2024, 1, 2)], ["2024-01-02"]),
    (tuple[int, str], (1, "a"), [1, "a"]),
    (tuple[Decimal, ...], (Decimal(1), Decimal(2)), ["1", "2"]),
    (set[int], {3, 1, 2}, [1, 2, 3]),
    (frozenset[uuid.UUID], frozenset({uuid.UUID(int=2)}), ["00000000-0000-0000-0000-000000000002"]),
    (collections.abc.Sequence[int], [1], [1]),
    (collections.abc.Mapping[str, Decimal], {"a": Decimal(1)}, {"a": "1"}),
    (dict[int, str], {1: "a", -2: "b"}, {"1": "a", "-2": "b"}),
    (dict[float, str], {1.5: "a"}, {"1.5": "a"}),
    (dict[uuid.UUID, int], {uuid.UUID(int=2): 1}, {"00000000-0000-0000-0000-000000000002": 1}),
    (dict[Size, bool], {Size.SMALL: True}, {"1": True}),
    (dict[bool, int], {True: 1}, {"true": 1}),
    (dict, {"a": [1]}, {"a": [1]}),
    (list, [1, "a", None], [1, "a", None]),
    (Literal["a", 1, True], True, True),
    (Literal[Size.SMALL, None], Size.SMALL, 1),
    (UserId, UserId(5), 5),
    (Annotated[dt.date, "due"], dt.date(2024, 1, 2), "2024-01-02"),
    (typing.Optional[dt.date], None, None),  # noqa: UP045  # the old spelling is a case of its own
    (int | None, 5, 5),
    (int | float, 5, 5),
    (float | int, 5, 5),
    (float | int, 5.5, 5.5),
    (str | uuid.UUID, uuid.UUID(int=2), "00000000-0000-0000-0000-000000000002"),
    (str | uuid.UUID, "x", "x"),
    (dt.datetime | dt.date, dt.date(2024, 1, 2), "2024-01-02"),
    (dt.datetime | dt.date, NAIVE, "2024-01-02T03:04:05.000006"),
    (Point, Point(1), {"x": 1, "y": "0.10"}),
    (Point | Positive, Positive(1), {"n": 1}),
    (Tree, Tree("a", [Tree("b")]), {"name": "a", "children": [{"name": "b", "children": [], "parent": None}], "parent": None}),
    (Letter, {"to": "x"}, {"to": "x"}),
    (Letter, {"to": "x", "at": NAIVE}, {"to": "x", "at": "2024-01-02T03:04:05.000006"}),
    (Order, Order(id=uuid.UUID(int=1), when=dt.date(2024, 1, 2), lines=[Decimal("1.50")], type="x"),
     {"id": "00000000-0000-0000-0000-000000000001", "when": "2024-01-02", "lines": ["1.50"], "type": "x"}),
    (Strict, Strict(when=dt.date(2024, 1, 2), tags={"a"}), {"when": "2024-01-02", "tags": ["a"]}),
    (list[Order] | None, [], []),
    (Any, {"a": None}, {"a": None}),
]  # fmt: skip


@pytest.mark.parametrize(("annotation", "value", "stored"), CASES, ids=str)
def test_stored_plainly_and_back_exactly(annotation: Any, value: Any, stored: Any) -> None:
    one = signature(annotation)
    text = one.bind("t", (value,), {})
    assert json.loads(text) == {"value": stored}
    back = one.decode(text)["value"]
    assert back == value
    assert type(back) is type(value)


@pytest.mark.parametrize(
    ("annotation", "value", "part"),
    [
        (Decimal, Decimal("NaN"), "no number"),
        (Decimal, 1.5, "expected a Decimal"),
        (Size, 1, "expected a Size"),
        (list[int], (1,), "expected a list"),
        (list[int], [1, "a"], "found str 'a'"),
        (tuple[int, int], (1,), "expected 2 items, found 1"),
        (Point, Point3(1), "expected a Point"),
        (Letter, {"at": NAIVE}, "missing to"),
        (Letter, {"to": "x", "cc": "y"}, "unknown str 'cc'"),
        (Letter, {"to": "x", 5: "y"}, "unknown int 5"),
        (dict[str, int], {1: 1}, "dict[its type, ...]"),
        (dict[int, int], {"1": 1}, "expected a whole number"),
        (dict[int, int], {True: 1}, "expected a whole number"),
        (dict[int | str, int], {1: 1}, "would not come back"),
        (dict[str, str], {"a\0": "b"}, "NUL"),
        (Literal["a"], "b", "one of 'a'"),
        (Literal[1], True, "one of 1"),
        (str | uuid.UUID, str(uuid.UUID(int=2)), "would come back as UUID"),
        (bytes | str, "abcd", "would come back as bytes"),
        (int | str, None, "call session.flush()"),
        (Outsider, Outsider(), "pass its key"),
        (Outsider, None, "call session.flush()"),
        (Positive, {"n": 1}, "expected a Positive"),
        (Order, {"id": 1}, "expected a Order"),
    ],
)
def test_refused_at_enqueue(annotation: Any, value: Any, part: str) -> None:
    with pytest.raises(InvalidArguments) as caught:
        signature(annotation).bind("t", (value,), {})
    assert part in str(caught.value)
    assert caught.value.argument == "value"


STORED: list[Any] = [
    None, True, -1, 1.5, 10**400, 1e300, "", "x", "nan", "1e999999999", "9" * 5000, [], [[]], [None], [1, 2, 3],
    {}, {"x": []}, {"n": -1}, {"a": {"b": 1}}, "9999-99-99", "99999999999999999999", "0001-01-01T00:00:00+23:59",
]  # fmt: skip


@pytest.mark.parametrize("annotation", [case[0] for case in CASES], ids=str)
def test_anything_stored_ends_in_a_value_or_a_named_error(annotation: Any) -> None:
    one = signature(annotation)
    for stored in STORED:
        with contextlib.suppress(Undecodable):
            one.decode(json.dumps({"value": stored}))


def test_the_application_s_own_refusal_is_named() -> None:
    with pytest.raises(Undecodable, match="does not fit Positive: negative"):
        signature(Positive).decode('{"value": {"n": -1}}')


def test_a_very_deep_value_is_refused() -> None:
    tree = Tree("leaf")
    for _ in range(150):
        tree = Tree("node", [tree])
    with pytest.raises(InvalidArguments, match="nested"):
        signature(Tree).bind("t", (tree,), {})
    for _ in range(5000):
        tree = Tree("node", parent=tree)
    with pytest.raises(InvalidArguments, match="nested"):
        signature(Tree).bind("t", (tree,), {})


def test_a_class_made_inside_a_function_may_name_itself() -> None:
    @dataclasses.dataclass
    class Node:
        next: "Node | None" = None
        ghost: "Missing" = 5  # type: ignore[name-defined]  # pyright: ignore[reportUndefinedVariable]  # noqa: F821

    assert there_and_back(Node, Node(Node())) == Node(Node())


_zones = st.none() | st.integers(-86_399, 86_399).map(lambda offset: dt.timezone(dt.timedelta(seconds=offset)))


@given(st.datetimes(timezones=_zones))
def test_datetimes(value: dt.datetime) -> None:
    back = there_and_back(dt.datetime, value)
    assert back == value
    assert back.utcoffset() == value.utcoffset()


@given(st.timedeltas())
def test_timedeltas_to_the_microsecond(value: dt.timedelta) -> None:
    assert there_and_back(dt.timedelta, value) == value


@given(st.decimals(allow_nan=False, allow_infinity=False))
def test_decimals_keep_their_digits(value: Decimal) -> None:
    assert there_and_back(Decimal, value).as_tuple() == value.as_tuple()


def test_a_decimal_does_not_depend_on_the_context() -> None:
    long = Decimal("1." + "3" * 60)
    with decimal.localcontext(decimal.Context(prec=3)):
        assert there_and_back(Decimal, long) == long
        assert there_and_back(dt.timedelta, dt.timedelta.max) == dt.timedelta.max


@given(st.binary(), st.floats(allow_nan=False, allow_infinity=False), st.times(), st.sets(st.dates()))
def test_the_others(data: bytes, number: float, time: dt.time, days: set[dt.date]) -> None:
    assert there_and_back(bytes, data) == data
    assert there_and_back(float, number) == number
    assert there_and_back(dt.time, time) == time
    assert there_and_back(set[dt.date], days) == days


_any_of: Any = int | float | str | bool | bytes | dt.date | dt.datetime | list[int] | None


@given(st.integers() | st.floats() | st.text() | st.booleans() | st.binary() | st.dates() | st.lists(st.integers()))
def test_a_union_brings_back_what_it_took(value: Any) -> None:
    try:
        back = there_and_back(_any_of, value)
    except InvalidArguments:
        return
    assert back == value
    assert type(back) is type(value)


@given(st.dictionaries(st.integers() | st.booleans() | st.text() | st.dates(), st.none()))
def test_keys_come_back_or_are_refused(value: Any) -> None:
    try:
        back = there_and_back(dict[int | bool | str | dt.date, None], value)
    except InvalidArguments:
        return
    assert back == value
    assert list(map(type, back)) == list(map(type, value))
