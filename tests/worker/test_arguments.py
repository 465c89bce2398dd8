"""Arguments of tasks: bound and checked at push, decoded and checked at the worker."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from datetime import UTC, datetime
from typing import Annotated, Any

import msgspec
import pytest

from hark.errors import InvalidInput
from hark.worker.arguments import Signature, WrongArguments


class Address(msgspec.Struct):
    """A nested argument."""

    street: str
    number: int = 1


async def send(to: str, subject: str = "hi", *, copies: Annotated[int, msgspec.Meta(ge=1)] = 1) -> None:
    """A task."""


def deliver(address: Address, when: datetime, tags: list[str] | None = None) -> None:
    """A task with rich types."""


def test_arguments_by_position_and_by_name_are_the_same_message() -> None:
    signature = Signature("send", send)
    assert bytes(signature.encode(("a", "b"), {})) == bytes(signature.encode((), {"to": "a", "subject": "b"}))


def test_what_is_left_to_its_default_is_not_sent() -> None:
    signature = Signature("send", send)
    encoded = signature.encode(("a",), {})
    assert bytes(encoded) == b'{"to":"a"}'
    assert signature.decode(encoded) == {"to": "a"}


def test_rich_types_arrive_as_they_were_sent() -> None:
    signature = Signature("deliver", deliver)
    when = datetime(2030, 1, 2, tzinfo=UTC)
    encoded = signature.encode((Address("Main", 7), when), {"tags": ["x"]})
    assert signature.decode(encoded) == {"address": Address("Main", 7), "when": when, "tags": ["x"]}


@pytest.mark.parametrize(
    ("args", "kwargs", "text"),
    [
        ((), {}, "argument 'to' is missing"),
        ((), {"to": 5}, "argument 'to': expected `str`, got `int`"),
        ((), {"to": "a", "topic": "b"}, "there is no argument 'topic'; it takes to, subject, copies"),
        (("a",), {"to": "b"}, "argument 'to' was given twice"),
        (("a", "b", 3), {}, "takes 2 positional arguments, 3 were given"),
        ((), {"to": "a", "copies": 0}, "argument 'copies': expected `int` >= 1"),
        ((), {"to": object()}, "argument 'to' can't be sent as JSON"),
        ((), {"to": None}, "argument 'to': expected `str`, got `null`"),
    ],
    ids=["missing", "type", "unknown", "twice", "too-many", "bound", "not-json", "null"],
)
def test_wrong_arguments_are_named(args: tuple[Any, ...], kwargs: dict[str, Any], text: str) -> None:
    with pytest.raises(WrongArguments) as caught:
        Signature("send", send).encode(args, kwargs)
    assert text in str(caught.value)
    assert "'send'" in str(caught.value)
    assert isinstance(caught.value, TypeError)


def test_a_nested_value_of_a_wrong_type_names_its_argument() -> None:
    with pytest.raises(WrongArguments, match="argument 'address'"):
        Signature("deliver", deliver).encode((), {"address": {"street": 1}, "when": datetime.now(UTC)})


def test_arguments_that_came_and_do_not_fit_are_refused() -> None:
    with pytest.raises(WrongArguments, match="argument 'to' is missing"):
        Signature("send", send).decode(b"{}")
    with pytest.raises(WrongArguments, match="can't be read"):
        Signature("send", send).decode(b"[1]")


def _many(*values: int) -> None: ...
def _any(**values: int) -> None: ...
def _delayed(delay: int) -> None: ...
def _generator() -> Iterator[int]:
    yield 1


async def _async_generator() -> AsyncIterator[int]:
    yield 1


def _unresolved(value: Missing) -> None: ...  # type: ignore[name-defined]  # noqa: F821  # That is the point.


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (_many, "values can't be a parameter"),
        (_any, "values can't be a parameter"),
        (_delayed, "'delay' is an option of push; give it another name"),
        (_unresolved, "an annotation can't be resolved"),
        (_generator, "a generator does nothing when it is called"),
        (_async_generator, "a generator does nothing when it is called"),
    ],
    ids=["args", "kwargs", "delay", "annotation", "generator", "async-generator"],
)
def test_functions_that_can_be_no_task_are_refused_when_they_are_made_one(
    function: Callable[..., object], text: str
) -> None:
    with pytest.raises(InvalidInput, match=text):
        Signature("task", function)


def test_positional_only_parameters_are_called_by_position() -> None:
    def add(first: int, second: int = 10, /, *, third: int = 100) -> int:
        return first + second + third

    signature = Signature("add", add)
    encoded = signature.encode((1,), {"third": 3})
    assert signature.call(add, signature.decode(encoded)) == 14
    with pytest.raises(WrongArguments, match="'first' is positional only"):
        signature.encode((), {"first": 1})


def test_a_unique_key_depends_on_the_values_and_not_on_how_they_were_given() -> None:
    signature = Signature("send", send)

    def key(*args: Any, **kwargs: Any) -> str:
        return signature.unique_key(signature.encode(args, kwargs), signature.names)

    assert key("a") == key(to="a", subject="hi") == key("a", copies=1)
    assert key("a") != key("b")
    assert key("a") != key("a", "ho")
    assert signature.unique_key(signature.encode(("a", "x"), {}), ("to",)) == signature.unique_key(
        signature.encode(("a", "y"), {}), ("to",)
    )


def test_a_unique_key_belongs_to_its_task() -> None:
    first, second = Signature("one", send), Signature("two", send)
    encoded = first.encode(("a",), {})
    assert first.unique_key(encoded, ("to",)) != second.unique_key(encoded, ("to",))
