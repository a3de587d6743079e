"""Arguments are checked at enqueue, stored plainly, and whatever stands in a row ends in a named error."""

from __future__ import annotations

import contextlib
import datetime as dt
import decimal
import enum
import json
import timeit
import uuid
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leasequeue.codec import MAX_BYTES, Signature, decode_result, encode_result, safe_text
from leasequeue.errors import ConfigurationError, DoesNotBind, InvalidArguments, ResultNotStorable, Undecodable

if TYPE_CHECKING:
    from nowhere import Ghost  # type: ignore[import-not-found]  # pyright: ignore[reportMissingImports]


class Color(enum.StrEnum):
    RED = "red"


def plain(a, b=2, *, c=3):  # type: ignore[no-untyped-def]  # a task without annotations is the point
    ...


def typed(user_id: int, at: dt.datetime | None = None, ratio: float = 1.0, name: str = "") -> uuid.UUID | None: ...


PLAIN = Signature.of(plain)
TYPED = Signature.of(typed)


def reason(signature: Signature, *args: Any, **kwargs: Any) -> InvalidArguments:
    with pytest.raises(InvalidArguments) as caught:
        signature.bind("t", args, kwargs)
    return caught.value


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


def brief(value: Any) -> str:
    """A test's id; pytest's own fails on whole numbers that are too long to show."""
    return value if isinstance(value, str) and value.isascii() and "\0" not in value else type(value).__name__


# Signatures


def test_star_arguments_are_refused_by_name() -> None:
    def stars(*rest: int) -> None: ...
    def keys(**rest: int) -> None: ...
    def slash(first: int, /) -> None: ...

    for function, name in ((stars, r"\*rest"), (keys, r"\*\*rest"), (slash, "first by position only")):
        with pytest.raises(ConfigurationError, match=name):
            Signature.of(function)
    with pytest.raises(ConfigurationError, match="no signature"):
        Signature.of(5)  # type: ignore[arg-type]  # what an application may try


def test_an_annotation_for_type_checkers_only_counts_as_none() -> None:
    def haunted(ghost: Ghost, at: dt.date) -> None: ...

    signature = Signature.of(haunted)
    text = signature.bind("t", ({"a": 1}, dt.date(2024, 1, 2)), {})
    assert text == '{"ghost":{"a":1},"at":"2024-01-02"}'
    assert signature.decode(text) == {"ghost": {"a": 1}, "at": dt.date(2024, 1, 2)}


def test_the_return_annotation_is_known() -> None:
    assert TYPED.returns == uuid.UUID | None
    assert PLAIN.returns is Any


def test_callable_objects_and_methods() -> None:
    class Sender:
        def __call__(self, at: dt.date) -> None: ...
        def send(self, at: dt.date) -> None: ...

    for function in (Sender(), Sender().send):
        assert Signature.of(function).bind("t", (dt.date(2024, 1, 2),), {}) == '{"at":"2024-01-02"}'


# Binding


def test_only_what_is_given_is_stored() -> None:
    assert PLAIN.bind("t", (1,), {}) == '{"a":1}'
    assert PLAIN.bind("t", (1,), {"c": None}) == '{"a":1,"c":null}'


def test_names_that_do_not_fit() -> None:
    assert reason(PLAIN).argument == "a"
    assert "missing" in str(reason(PLAIN))
    assert reason(PLAIN, 1, d=1).argument == "d"
    assert "(a, b=2, *, c=3)" in str(reason(PLAIN, 1, d=1))
    assert "2 arguments by position" in str(reason(PLAIN, 1, 2, 3))
    assert "twice" in str(reason(PLAIN, 1, a=1))


def test_none_asks_for_a_flush() -> None:
    error = reason(TYPED, None)
    assert error.argument == "user_id"
    assert "is it the id of an object that has not been flushed? call session.flush() before enqueueing" in str(error)
    assert TYPED.bind("t", (1, None), {}) == '{"user_id":1,"at":null}'


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        ({"user_id": True}, "expected a whole number, found bool True"),
        ({"user_id": "7"}, "expected a whole number, found str '7'"),
        ({"user_id": 1.0}, "found float"),
        ({"user_id": 1, "ratio": True}, "expected a number"),
        ({"user_id": 1, "ratio": 10**400}, "too large for a float"),
        ({"user_id": 1, "ratio": float("nan")}, "no JSON number"),
        ({"user_id": 1, "ratio": float("inf")}, "no JSON number"),
        ({"user_id": 1, "name": "a\0b"}, "NUL"),
        ({"user_id": 1, "name": "\ud800"}, "surrogate"),
        ({"user_id": 1, "name": b"x"}, "expected text"),
        ({"user_id": 10**4300}, "4300 digits"),
        ({"user_id": 1, "at": dt.date(2024, 1, 1)}, "expected a datetime"),
    ],
)
def test_values_that_do_not_fit(arguments: dict[str, Any], part: str) -> None:
    assert part in str(reason(TYPED, **arguments))


@pytest.mark.parametrize(
    ("value", "part"),
    [
        ({"a\0": 1}, "NUL"),
        ({"\udfff": 1}, "surrogate"),
        ([["\0"]], "NUL"),
        ({1: 2}, "dict[its type, ...]"),
        (nested(201), "deeper than 200"),
        (10**4300, "4300 digits"),
        (float("-inf"), "no JSON number"),
        (dt.datetime(2024, 1, 1), "annotate"),  # noqa: DTZ001  # naive is meant
        (Color.RED, "annotate"),
        ((1, 2), "annotate"),
        (object(), "annotate"),
    ],
    ids=brief,
)
def test_what_an_unannotated_argument_cannot_carry(value: Any, part: str) -> None:
    error = reason(PLAIN, value)
    assert error.argument == "a"
    assert part in str(error)


def test_depth_is_the_same_on_both_sides() -> None:
    text = PLAIN.bind("t", (nested(200),), {})
    assert PLAIN.decode(text) == {"a": nested(200)}
    with pytest.raises(Undecodable, match="deeper than 200"):
        PLAIN.decode(json.dumps({"a": nested(201)}))
    many: list[Any] = [[] for _ in range(500)]
    assert PLAIN.decode(PLAIN.bind("t", (many,), {})) == {"a": many}


def test_what_holds_itself_is_refused() -> None:
    loop: list[Any] = []
    loop.append(loop)
    assert "deeper" in str(reason(PLAIN, loop))


def test_size_is_that_of_utf8() -> None:
    assert len(PLAIN.bind("t", ("x" * 10,), {}, max_bytes=18)) == 18
    with pytest.raises(InvalidArguments, match="take 19 bytes as JSON, the limit is 18"):
        PLAIN.bind("t", ("x" * 11,), {}, max_bytes=18)
    with pytest.raises(InvalidArguments, match="take 20 bytes"):
        PLAIN.bind("t", ("€" * 4,), {}, max_bytes=18)
    assert "1,048,576" in str(reason(PLAIN, "x" * MAX_BYTES))


def test_an_error_shows_no_secret_of_an_object_and_no_long_value() -> None:
    class Account:
        def __repr__(self) -> str:
            return "password=hunter2"

    assert "hunter2" not in str(reason(TYPED, Account()))
    assert len(str(reason(TYPED, "x" * 10_000))) < 200


def test_int_is_taken_for_float_and_comes_back_as_one() -> None:
    back = TYPED.decode(TYPED.bind("t", (1,), {"ratio": 2}))
    assert back == {"user_id": 1, "ratio": 2.0}
    assert type(back["ratio"]) is float
    # jsonb writes 1e22 without a point.
    assert type(TYPED.decode('{"user_id": 1, "ratio": 10000000000000000000000}')["ratio"]) is float


def test_none_is_taken_where_it_is_the_default() -> None:
    def old(a: int = None) -> None: ...  # type: ignore[assignment]  # noqa: RUF013  # as it was written before Optional

    signature = Signature.of(old)
    assert signature.decode(signature.bind("t", (None,), {})) == {"a": None}


# Decoding


def test_names_decide_whether_a_row_binds() -> None:
    with pytest.raises(DoesNotBind) as caught:
        TYPED.decode('{"b": 1, "a": "not looked at"}')
    assert caught.value.missing == ("user_id",)
    assert caught.value.unknown == ("a", "b")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "1",
        "null",
        '"text"',
        "{",
        "\0",
        '{"a": NaN}',
        '{"a": -Infinity}',
        '{"a": ' + "9" * 5000 + "}",
        '{"a": ' + "[" * 3000 + "]" * 3000 + "}",
        '{"a": ' + "[" * 300 + "]" * 300 + "}",
        "[" * 100_000,
        '{"a":' * 3000 + "1" + "}" * 3000,
    ],
    ids=lambda text: text[:12],
)
def test_whatever_stands_there_is_undecodable(text: str) -> None:
    with pytest.raises(Undecodable):
        PLAIN.decode(text)


def test_a_text_that_is_none() -> None:
    with pytest.raises(Undecodable):
        PLAIN.decode(None)  # type: ignore[arg-type]  # what a column may hold


@pytest.mark.parametrize(
    "stored",
    [
        {"user_id": "7"},
        {"user_id": None},
        {"user_id": True},
        {"user_id": [1]},
        {"user_id": 1, "at": 5},
        {"user_id": 1, "at": "yesterday"},
        {"user_id": 1, "ratio": "x"},
        {"user_id": 1, "ratio": 10**400},
        {"user_id": 1, "name": {}},
    ],
)
def test_wrong_types_are_undecodable(stored: dict[str, Any]) -> None:
    with pytest.raises(Undecodable, match="the stored argument"):
        TYPED.decode(json.dumps(stored))


_text = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))
_json: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | _text,
    lambda inner: st.lists(inner) | st.dictionaries(_text, inner),
    max_leaves=20,
)


@given(_json)
def test_json_comes_back(value: Any) -> None:
    assert PLAIN.decode(PLAIN.bind("t", (value,), {})) == {"a": value}


@given(st.text() | _json.map(json.dumps))
def test_any_text_ends_in_a_named_error(text: str) -> None:
    for signature in (PLAIN, TYPED):
        with contextlib.suppress(Undecodable, DoesNotBind):
            signature.decode(text)


# Results


@pytest.mark.parametrize(
    ("value", "text", "annotation"),
    [
        (5, "5", int),
        ("é", '"é"', str),
        (uuid.UUID(int=1), '"00000000-0000-0000-0000-000000000001"', uuid.UUID),
        ((1, decimal.Decimal("1.50")), '[1,"1.50"]', tuple[int, decimal.Decimal]),
        ({3, 1, 2}, "[1,2,3]", set[int]),
        ({1: "a"}, '{"1":"a"}', dict[int, str]),
        ({Color.RED: [Color.RED]}, '{"red":["red"]}', dict[Color, list[Color]]),
        ([None, {"a": dt.timedelta(seconds=1.5)}], '[null,{"a":1.5}]', list[dict[str, dt.timedelta] | None]),
    ],
)
def test_results_come_back_by_the_return_annotation(value: Any, text: str, annotation: Any) -> None:
    assert encode_result(value) == text
    assert decode_result(text, annotation) == value


def test_none_is_no_result() -> None:
    assert encode_result(None) is None
    assert decode_result(None, int) is None


@pytest.mark.parametrize(
    "value",
    [object(), float("nan"), nested(201), nested(5000), {None: 1}, {1: 1, "1": 2}, 10**4300,
     "x" * MAX_BYTES, [lambda: 1]],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_results_that_cannot_be_stored(value: Any) -> None:
    with pytest.raises(ResultNotStorable, match="what the task returned"):
        encode_result(value)


def test_a_character_that_cannot_be_stored_is_shown_in_a_result() -> None:
    text = encode_result({"a\0": ["b\0c", "d\ud800"], "plain": "é"})
    assert decode_result(text, dict) == {"a\\x00": ["b\\x00c", "d\\ud800"], "plain": "é"}


@pytest.mark.parametrize("text", ["", "[" * 5000, '"x"', "[1]"])
def test_results_that_cannot_be_read(text: str) -> None:
    with pytest.raises(Undecodable, match="the stored result"):
        decode_result(text, int)


# Texts


def test_safe_text_shows_what_cannot_be_stored() -> None:
    assert safe_text("a\0b\ud800c é", 100) == "a\\x00b\\ud800c é"


def test_safe_text_cuts_in_the_middle() -> None:
    cut = safe_text("a" * 5000 + "z" * 5000, 100)
    assert cut == "a" * 50 + "\n... 9,900 characters cut ...\n" + "z" * 50
    assert safe_text("abc", 3) == "abc"
    assert safe_text("abc", 0) == "\n... 3 characters cut ...\n"


@given(st.text(st.characters(exclude_categories=[])), st.integers(0, 50))
def test_safe_text_can_always_be_stored(text: str, limit: int) -> None:
    found = safe_text(text, limit)
    assert "\0" not in found
    assert len(found) <= limit + 60
    found.encode()


# Speed


def test_small_jobs_are_cheap() -> None:
    # Bounds far above what is measured (1 to 3 us): they find a lost fast path, not a busy machine.
    def one(i: int) -> None: ...

    signature = Signature.of(one)
    text = signature.bind("t", (), {"i": 1})
    count = 2000
    assert min(timeit.repeat(lambda: signature.decode(text), number=count, repeat=7)) / count < 20e-6
    assert min(timeit.repeat(lambda: signature.bind("t", (), {"i": 1}), number=count, repeat=7)) / count < 20e-6
