"""Arguments become a payload that the worker can read, or an error that says what is wrong."""

import json
import uuid
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any, Literal, Optional

import msgspec
import pydantic
import pytest

from hourbell import App, Codec, Context
from hourbell.errors import InvalidArguments, InvalidTask
from hourbell.sdk.signature import Mismatch
from hourbell.sdk.tasks import Task


class Colour(Enum):
    RED = "red"


@dataclass
class Money:
    cents: int
    currency: str = "EUR"


class Point(msgspec.Struct):
    x: float
    y: float


class Order(pydantic.BaseModel):
    number: int
    money: Money


class Reading(pydantic.BaseModel):
    value: float | None


class Anything(pydantic.BaseModel):
    value: Any


class Root(pydantic.RootModel[float | None]):
    pass


class Weird:
    def __init__(self, text: str) -> None:
        self.text = text


def task(fn: Any, **options: Any) -> Task[..., Any]:
    app = App("shop", codec=options.pop("codec", None))
    made: Task[..., Any] = app.task(**{"name": "f"} | options)(fn)
    return made


def payload(of: Task[..., Any], *args: Any, **kwargs: Any) -> Any:
    return json.loads(of.bind(*args, **kwargs)._planned.payload)


def called(of: Task[..., Any], payload: object) -> Any:
    found = of._signature.arguments(payload)
    return of.fn(*found.args, **found.kwargs)


async def rich(
    count: int,
    when: datetime,
    key: uuid.UUID,
    colour: Colour,
    price: Money,
    at: Point,
    order: Order,
    total: Decimal,
    day: date,
    every: timedelta,
    tags: list[str],
    by_id: dict[int, Money],
    raw: bytes,
    maybe: Optional[int],  # noqa: UP045
    mode: Literal["a", "b"] = "a",
) -> None: ...


def test_rich_types_arrive_as_they_were_sent() -> None:
    sent = {
        "count": 7,
        "when": datetime(2031, 5, 6, 10, tzinfo=UTC),
        "key": uuid.UUID(int=7),
        "colour": Colour.RED,
        "price": Money(300),
        "at": Point(1.5, 2),
        "order": Order(number=1, money=Money(5)),
        "total": Decimal("1.10"),
        "day": date(2031, 5, 6),
        "every": timedelta(hours=1),
        "tags": ["a"],
        "by_id": {1: Money(1)},
        "raw": b"\x00\xff",
        "maybe": None,
    }
    of = task(rich)
    arrived = of._signature.arguments(payload(of, **sent))
    assert arrived.kwargs == sent
    assert payload(of, **sent)["price"] == {"cents": 300, "currency": "EUR"}


def test_positional_arguments_travel_by_name_and_defaults_are_not_stored() -> None:
    def f(cart_id: int, lang: str = "en", *, urgent: bool = False) -> object:
        return cart_id, lang, urgent

    of = task(f)
    assert payload(of, 7) == {"cart_id": 7}
    assert payload(of, 7, "de", urgent=True) == {"cart_id": 7, "lang": "de", "urgent": True}
    assert called(of, {"cart_id": 7, "urgent": True}) == (7, "en", True)


def test_star_arguments_travel_too() -> None:
    def f(first: int, /, second: int = 2, *ids: int, **named: str) -> object:
        return first, second, ids, named

    of = task(f)
    assert payload(of, 1, 2, 3, 4, a="b") == {"first": 1, "second": 2, "ids": [3, 4], "a": "b"}
    assert called(of, payload(of, 1, 2, 3, 4, a="b")) == (1, 2, (3, 4), {"a": "b"})
    assert called(of, payload(of, 1)) == (1, 2, (), {})


def test_an_error_names_the_parameter_of_a_value_that_an_enum_does_not_have() -> None:
    def paint(colour: Colour, others: list[Colour]) -> None: ...

    of = task(paint)
    for given, said in (
        (("blue", []), r"shop\.f: colour: Invalid enum value 'blue'\. Nothing was enqueued\."),
        ((Colour.RED, ["blue"]), r"shop\.f: others\[0\]: Invalid enum value 'blue'\. Nothing"),
    ):
        with pytest.raises(InvalidArguments, match=said):
            payload(of, *given)


@pytest.mark.parametrize(
    "stored", [{"n": True, "s": "x"}, {"n": 1.0, "s": "x"}, {"n": 1, "t": "x"}]
)
def test_a_stored_payload_is_checked_as_strictly_as_an_argument(stored: dict[str, object]) -> None:
    def f(n: int, s: str) -> object:
        return n, s

    of = task(f)
    assert called(of, {"s": "x", "n": 1}) == (1, "x")
    with pytest.raises(Mismatch):
        of._signature.arguments(stored)


def test_a_context_is_no_argument() -> None:
    async def f(ctx: Context, cart_id: int) -> None: ...

    assert payload(task(f), 7) == {"cart_id": 7}


async def send_reminder(ctx: Context, cart_id: int, price: Money | None = None) -> None: ...


@pytest.mark.parametrize(
    ("args", "kwargs", "text"),
    [
        (
            ("7",),
            {},
            "shop.f: cart_id must be int, not str '7' (argument 1). Nothing was enqueued.",
        ),
        (
            (True,),
            {},
            "shop.f: cart_id must be int, not bool True (argument 1). Nothing was enqueued.",
        ),
        (
            (7.0,),
            {},
            "shop.f: cart_id must be int, not float 7.0 (argument 1). Nothing was enqueued.",
        ),
        (
            (None,),
            {},
            "shop.f: cart_id must be int, not None. An object that SQLAlchemy has not flushed has no id "
            "yet; flush before you enqueue.",
        ),
        (
            (7,),
            {"delay": 60},
            "shop.f has no parameter delay. Options go into configure: send_reminder.configure(delay=…)"
            ".enqueue(…). Nothing was enqueued.",
        ),
        ((7,), {"lang": "de"}, "shop.f has no parameter lang. Nothing was enqueued."),
        ((), {}, "shop.f: cart_id is missing. Nothing was enqueued."),
        ((7,), {"cart_id": 7}, "shop.f: cart_id was given twice. Nothing was enqueued."),
        ((7, None, 3), {}, "shop.f takes 2 positional arguments but got 3. Nothing was enqueued."),
        (
            (7, Money("3")),  # type: ignore[arg-type]
            {},
            "shop.f: price.cents must be int: Expected `int`, got `str`. Nothing was enqueued.",
        ),
    ],
)
def test_a_wrong_argument_is_refused_in_the_caller(
    args: tuple[Any, ...], kwargs: dict[str, Any], text: str
) -> None:
    with pytest.raises(InvalidArguments) as refused:
        payload(task(send_reminder), *args, **kwargs)
    assert str(refused.value) == text


def test_one_positional_argument_is_counted_in_the_singular() -> None:
    def one(number: int) -> None: ...

    with pytest.raises(InvalidArguments, match=r"takes 1 positional argument but got 2\. Nothing"):
        payload(task(one), 7, 8)


@pytest.mark.parametrize(
    "value",
    [
        float("nan"),
        {"a": [float("inf")]},
        datetime(2031, 5, 6),  # noqa: DTZ001
        Money(float("nan")),  # type: ignore[arg-type]
        Reading(value=float("nan")),
        [Reading(value=float("-inf"))],
        Anything(value={"a": [float("nan")]}),
        Root(float("nan")),
    ],
)
def test_values_that_would_arrive_as_others_are_refused(value: object) -> None:
    def f(value: Any) -> None: ...

    with pytest.raises(InvalidArguments, match=r"which JSON cannot represent|has no time zone"):
        payload(task(f), value)


@pytest.mark.parametrize("value", [b"\xff", Anything, object()])
def test_a_model_that_pydantic_cannot_encode_is_refused_in_the_caller(value: object) -> None:
    def f(value: Anything) -> None: ...

    with pytest.raises(InvalidArguments, match=r"shop\.f: value cannot be sent to a worker"):
        payload(task(f), Anything(value=value))


def test_what_is_no_model_of_pydantic_is_refused_in_the_caller() -> None:
    def f(order: Order) -> None: ...

    with pytest.raises(InvalidArguments, match=r"(?s)shop\.f: .*number.*Nothing was enqueued"):
        payload(task(f), {"number": "one", "money": Money(5)})


@pytest.mark.parametrize("value", ["a\0b", {"deep": ["\0"]}, {"\0": 1}])
def test_a_character_that_postgresql_cannot_store_is_named(value: object) -> None:
    def f(first: int, value: Any) -> None: ...

    with pytest.raises(InvalidArguments, match=r"shop\.f: value contains the character U\+0000"):
        payload(task(f), 1, value)
    assert (
        payload(task(f), 1, r"a\u0000b")["value"] == r"a\u0000b"
    )  # a backslash is no character U+0000


def test_a_row_is_passed_by_its_id() -> None:
    class Row:
        __mapper__ = object()

    def f(value: Any) -> None: ...

    with pytest.raises(InvalidArguments, match="Pass its id"):
        payload(task(f), Row())


def test_a_type_that_nothing_can_encode_is_refused_before_the_first_job() -> None:
    def f(value: Weird) -> None: ...

    with pytest.raises(InvalidTask, match="a Weird \\(value\\) cannot be sent to a worker"):
        task(f)._signature.check()


def test_a_codec_brings_types_of_the_user() -> None:
    def f(value: Weird) -> str:
        return value.text

    codec = Codec(enc_hook=lambda weird: weird.text, dec_hook=lambda kind, text: kind(text))
    of = task(f, codec=codec)
    assert called(of, payload(of, Weird("x"))) == "x"


def test_a_payload_of_older_code_loses_unknown_names_and_gets_new_defaults() -> None:
    def f(cart_id: int, lang: str = "en") -> object:
        return cart_id, lang

    of = task(f)
    assert of._signature.arguments({"cart_id": 7, "colour": "red"}).dropped == ("colour",)
    assert called(of, {"cart_id": 7, "colour": "red"}) == (7, "en")
    with pytest.raises(Mismatch, match=r"does not match the parameters of shop\.f"):
        called(of, {"cart_id": "seven"})
    with pytest.raises(Mismatch, match="missing required field"):
        called(of, {})


def test_a_name_that_only_the_type_checker_imports_is_explained() -> None:
    def f(value: "Nowhere") -> None: ...  # type: ignore[name-defined] # noqa: F821

    with pytest.raises(InvalidTask, match="the type 'Nowhere' of a parameter cannot be found"):
        payload(task(f), 1)


def test_arguments_that_are_too_large_are_refused() -> None:
    def f(text: str) -> None: ...

    with pytest.raises(InvalidArguments, match="Store the data elsewhere and pass its id"):
        payload(task(f), "x" * 300_000)


@pytest.mark.parametrize("kind", [object, dict[str, object], list[object], object | None])
def test_object_is_any_json_value_for_arguments_and_results(kind: Any) -> None:
    def f(value: Any) -> Any:
        return value

    f.__annotations__ = {"value": kind, "return": kind}
    of = task(f)
    for value in ({"a": [1, None]}, [1, {"b": 2}]):
        if kind in (object, object | None) or type(value) is kind.__origin__:
            assert called(of, payload(of, value)) == value
            assert of._signature.result(value) == value


@pytest.mark.parametrize(("kind", "why"), [(int, "Expected `int`, got `str`"), (Weird, "Weird")])
def test_a_result_that_does_not_fit_the_return_type_is_explained(kind: Any, why: str) -> None:
    def f() -> Any: ...

    f.__annotations__ = {"return": kind}
    with pytest.raises(InvalidTask, match=f"shop.f: the stored result does not fit .*{why}"):
        task(f)._signature.result("x")


def test_a_result_has_the_type_that_the_function_returns() -> None:
    def f() -> Money: ...

    of = task(f)
    stored = json.loads(msgspec.json.encode(of._signature.storable(Money(3))))
    assert of._signature.result(stored) == Money(3)
    model = Order(number=1, money=Money(1))
    assert of._signature.storable(model) == {"number": 1, "money": {"cents": 1, "currency": "EUR"}}
