"""What broke an earlier codec: values that were taken at enqueue and came back changed, or not at all."""

from __future__ import annotations

import dataclasses
import datetime as dt
import enum
import functools
import uuid
import zoneinfo
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import pydantic
import pytest

from leasequeue.codec import Signature
from leasequeue.errors import ConfigurationError, DoesNotBind, InvalidArguments, Undecodable

if TYPE_CHECKING:
    from nowhere import Ghost  # type: ignore[import-not-found]  # pyright: ignore[reportMissingImports]

T = TypeVar("T")


@dataclasses.dataclass
class Box(Generic[T]):
    inside: T
    more: list[T] = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class Counter:
    start: int
    now: int = dataclasses.field(default=0, init=False)


@dataclasses.dataclass
class Salted:
    value: int
    salt: dataclasses.InitVar[int]


class Login(pydantic.BaseModel):
    password: pydantic.SecretStr


class Renamed(pydantic.BaseModel):
    number: int = pydantic.Field(validation_alias="read", serialization_alias="written")


class Area(pydantic.BaseModel, extra="forbid"):
    side: int

    @pydantic.computed_field  # type: ignore[prop-decorator]  # mypy: decorated property
    @property
    def area(self) -> int:
        return self.side**2


class Later(enum.Enum):
    NOW = 1


def taking(annotation: Any) -> Signature:
    def task(value: Any) -> None: ...

    task.__annotations__["value"] = annotation
    return Signature.of(task)


def refusal(annotation: Any, value: Any) -> str:
    with pytest.raises(InvalidArguments) as caught:
        taking(annotation).bind("t", (value,), {})
    assert caught.value.argument == "value"
    return str(caught.value)


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (Box[dt.date], Box(dt.date(2024, 1, 2), [dt.date(2024, 1, 3)])),
        (list[Box[uuid.UUID]], [Box(uuid.UUID(int=1))]),
        (Box, Box("plain")),
        (Counter, Counter(3)),
        (Area, Area(side=2)),
    ],
    ids=str,
)
def test_comes_back(annotation: Any, value: Any) -> None:
    signature = taking(annotation)
    assert signature.decode(signature.bind("t", (value,), {})) == {"value": value}


def test_what_would_come_back_changed_is_refused() -> None:
    counted = Counter(3)
    counted.now = 5
    assert "does not come back as it was" in refusal(Counter, counted)
    assert "missing" in refusal(Salted, Salted(1, 2)) or "does not" in refusal(Salted, Salted(1, 2))
    assert "secret" in refusal(Login, Login(password=pydantic.SecretStr("hunter2")))
    assert "read: Field required" in refusal(Renamed, Renamed(read=1))  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    assert "zone" in refusal(dt.time, dt.time(1, tzinfo=zoneinfo.ZoneInfo("Europe/Kyiv")))
    split = dt.timezone(dt.timedelta(microseconds=1))
    assert "whole seconds" in refusal(dt.time, dt.time(1, tzinfo=split))
    assert "whole seconds" in refusal(dt.datetime, dt.datetime(2024, 1, 2, tzinfo=split))
    assert "last digit" in refusal(float, 2**53 + 1)


def test_a_model_that_refuses_does_not_show_the_value() -> None:
    with pytest.raises(Undecodable) as caught:
        taking(Area).decode('{"value": {"side": "hunter2"}}')
    assert "side: " in str(caught.value)
    assert "hunter2" not in str(caught.value)


def test_a_row_is_not_told_to_flush() -> None:
    with pytest.raises(Undecodable) as caught:
        taking(int).decode('{"value": null}')
    assert "flush" not in str(caught.value)


def test_names_of_megabytes_give_a_short_message() -> None:
    with pytest.raises(DoesNotBind) as caught:
        taking(int).decode('{"value": 1, "' + "k" * 1_000_000 + '": 2}')
    assert len(str(caught.value)) < 200
    assert len(caught.value.unknown[0]) == 1_000_000
    many = ", ".join(f'"{number}": 1' for number in range(100_000))
    with pytest.raises(DoesNotBind, match="and 99990 more"):
        taking(int).decode(f'{{"value": 1, {many}}}')


def test_every_fault_of_a_call_is_named() -> None:
    def send(user_id: int, text: str, *, colour: str = "") -> None: ...

    with pytest.raises(InvalidArguments) as caught:
        Signature.of(send).bind("send", (), {"color": "red"})
    assert caught.value.argument == "user_id"
    for part in ("is missing; text is missing; color is no parameter", "(user_id: 'int', text: 'str', *, colour"):
        assert part in str(caught.value)


def test_an_annotation_that_is_found_nowhere_is_said_where_it_is_in_the_way() -> None:
    def haunted(ghost: Ghost) -> None: ...
    def plain(at: Any) -> None: ...

    with pytest.raises(InvalidArguments, match="'Ghost' names what is not found at run time"):
        Signature.of(haunted).bind("t", (uuid.UUID(int=1),), {})
    with pytest.raises(InvalidArguments) as caught:
        Signature.of(plain).bind("t", (uuid.UUID(int=1),), {})
    assert "run time" not in str(caught.value)


def test_functions_that_cannot_be_tasks() -> None:
    class Mailer:
        def send(self, user_id: int) -> None: ...

        @staticmethod
        def still(user_id: int) -> None: ...

    def stream(user_id: int) -> Any:
        yield user_id

    async def astream(user_id: int) -> Any:
        yield user_id

    for function, part in (
        (Mailer, "is a class"),
        (Mailer.send, "@staticmethod"),
        (stream, "generator"),
        (astream, "generator"),
        (functools.partial(lambda *rest: rest, 1), r"\*rest"),
    ):
        with pytest.raises(ConfigurationError, match=part):
            Signature.of(function)
    for fine in (Mailer.still, Mailer().send, functools.partial(Mailer.still), lambda self: self):
        Signature.of(fine)
