"""Tasks pushed: arguments are bound and checked, what is refused sends nothing, and what is sent only once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import UTC, datetime
from typing import Annotated, Any

import msgspec
import pytest

from hark.client.client import Client
from hark.client.http import HttpTransport
from hark.errors import HarkError, InvalidInput
from hark.worker import RetryPolicy, Worker, WrongArguments
from hark.worker.task import Signature
from tests.client.transports import Recorder, sizes
from tests.worker.workers import SECONDS, ask, burst, running


def print_nothing() -> None:
    """A task."""


async def test_a_task_called_is_the_function_itself(worker: Worker) -> None:

    @worker.task
    async def double(value: int) -> int:
        return 2 * value

    @worker.task
    def triple(value: int) -> int:
        return 3 * value

    assert await double(2) == 4
    assert triple(2) == 6
    assert sorted(worker.tasks) == ["double", "triple"]


async def test_wrong_arguments_send_nothing(server_url: str, queue: str) -> None:
    async with Worker(server_url, queue=queue) as worker:

        @worker.task
        async def greet(name: str) -> None: ...

        with pytest.raises(WrongArguments, match="'name'"):
            await greet.push(name=5)  # type: ignore[call-overload]  # That is the point.
        with pytest.raises(WrongArguments, match="'nome'"):
            await greet.push(delay=1, nome="x")
        assert (await burst(worker)).totals.done == 0
        # Not even the queue was made.
        assert queue not in [one["name"] for one in (await ask(server_url, "resources/queues"))["queues"]]


async def test_tasks_that_can_not_be_are_refused_when_they_are_made(worker: Worker) -> None:
    worker.task("same")(print_nothing)
    with pytest.raises(InvalidInput, match="already has a task 'same'"):
        worker.task("same")(print_nothing)
    with pytest.raises(InvalidInput, match="task 'greet': unique includes 'name', whose default cannot be"):

        @worker.task(unique=True)
        async def greet(name: object = object()) -> None: ...

    with pytest.raises(InvalidInput, match="unique contains 'nome', expected one of name"):

        @worker.task(unique=("nome",))
        async def invite(name: str) -> None: ...


async def test_a_push_can_have_a_policy_of_its_own(worker: Worker) -> None:

    @worker.task(retry=RetryPolicy.schedule([3600]))
    async def explode() -> None:
        raise ValueError

    await explode.options(retry=RetryPolicy.schedule([0])).push()
    summary = await burst(worker)
    assert (summary.totals.failed, summary.totals.dead) == (2, 1)


async def test_a_delayed_task_waits_on_the_server(worker: Worker) -> None:
    worker.task("later")(print_nothing)
    await worker.tasks["later"].push(delay=3600)
    await worker.tasks["later"].options(delay=3600).push()
    assert (await burst(worker)).totals.done == 0


async def test_unique_tasks_are_pushed_once_until_they_are_done(worker: Worker) -> None:

    @worker.task(unique=True)
    async def greet(name: str, times: int = 1) -> None: ...

    @worker.task(unique=("name",))
    async def invite(name: str, day: int) -> None: ...

    clean_up = worker.task("clean_up", unique=True)(print_nothing)
    assert [(await clean_up.push()).status for _ in range(2)] == ["queued", "duplicate"]
    assert (await greet.push("Ada")).status == "queued"
    assert (await greet.push(name="Ada", times=1)).status == "duplicate"
    assert (await greet.push("Ada", times=2)).status == "queued"
    assert (await invite.push("Ada", 1)).status == "queued"
    assert (await invite.push("Ada", 2)).status == "duplicate"
    assert (await burst(worker)).totals.done == 4
    again = await greet.push("Ada")
    assert again.status == "queued", "the first one is done"
    second = await greet.push("Ada")
    assert (second.status, second.id, second.transaction_id) == ("duplicate", again.id, again.transaction_id)


async def test_unique_tasks_are_free_again_when_they_are_dead_started_or_removed(worker: Worker) -> None:
    started = asyncio.Event()

    @worker.task(unique=True, retry=RetryPolicy.never())
    async def fail() -> None:
        raise ValueError("no")

    @worker.task(unique=True, unique_until="started")
    async def start() -> None:
        started.set()
        await asyncio.Event().wait()

    @worker.task(unique=True, unique_until="retained")
    async def keep() -> None: ...

    assert [(await keep.push()).status for _ in range(2)] == ["queued", "duplicate"]
    await fail.push()
    assert (await burst(worker)).totals.dead == 1
    assert (await fail.push()).status == "queued"
    assert (await keep.push()).status == "duplicate"
    await start.push()
    async with running(worker, grace_seconds=0):
        await asyncio.wait_for(started.wait(), SECONDS)
        assert [(await start.push(delay=60)).status for _ in range(2)] == ["queued", "duplicate"]


async def test_a_unique_key_of_one_push_and_an_idempotency_key_replace_that_of_the_task(worker: Worker) -> None:
    @worker.task(unique=True)
    async def greet(name: str) -> None: ...

    assert (await greet.options(unique_key="k").push("Ada")).status == "queued"
    assert (await greet.options(unique_key="k").push("Bob")).status == "duplicate"
    assert (await greet.options(key="t").push("Ada")).status == "queued"
    assert (await greet.push("Ada")).status == "queued"
    with pytest.raises(InvalidInput, match="unique_until: expected done or started or retained, got 'ever'"):
        worker.task("ever", unique=True, unique_until="ever")(print_nothing)  # type: ignore[call-overload]


async def test_many_pushes_share_requests_and_return_their_handles(worker: Worker) -> None:
    seen: list[tuple[int, int]] = []

    @worker.task(result=True)
    async def add(a: int, b: int = 0) -> int:
        seen.append((a, b))
        return a + b

    handles = await add.push_many([(1, 2), {"a": 3}, {"a": 4, "b": 5}])
    async with running(worker):
        assert [await handle.result(timeout=SECONDS) for handle in handles] == [3, 3, 9]
        assert [handle.status for handle in await add.options(priority=3).push_many([(1,)])] == ["queued"]
    assert len(seen) >= 3
    assert await add.push_many([]) == []


async def test_wrong_arguments_of_many_pushes_name_the_item_and_send_nothing(worker: Worker) -> None:
    @worker.task
    async def add(a: int, b: int = 0) -> None: ...

    with pytest.raises(WrongArguments, match=r"item 1: task 'add': argument 'a' is missing"):
        await add.push_many([(1,), {"b": 2}])
    with pytest.raises(WrongArguments, match=r"item 0: expected a tuple or a dict of arguments, such as \(1,\), got 1"):
        await add.push_many([1])  # type: ignore[list-item]
    with pytest.raises(WrongArguments, match="push_many takes a list of tuples or dicts, got 'ab'"):
        await add.push_many("ab")  # type: ignore[arg-type]
    assert (await burst(worker)).totals.done == 0


async def test_a_request_carries_up_to_a_thousand_tasks(server_url: str, queue: str) -> None:
    recorder = Recorder(HttpTransport(server_url))
    async with Client(recorder) as client:
        worker = Worker(queue=queue, client=client)

        @worker.task
        async def count(number: int) -> None: ...

        handles = await count.push_many((number,) for number in range(2001))
    assert [len({handle.id for handle in handles}), *sorted(sizes(recorder.requests))] == [2001, 1, 1000, 1000]


async def test_priority_goes_first(server_url: str, queue: str) -> None:
    worker = Worker(server_url, queue=queue, concurrency=1)
    seen: list[str] = []

    @worker.task
    async def low(name: str) -> None:
        seen.append(name)

    @worker.task(priority=5)
    async def high(name: str) -> None:
        seen.append(name)

    await low.push("low")
    await high.push("high")
    await low.options(priority=9).push("highest")
    await burst(worker)
    assert seen == ["highest", "high", "low"]


async def test_a_function_in_a_thread_can_push(worker: Worker) -> None:
    seen: list[int] = []

    @worker.task
    def count(left: int) -> None:
        seen.append(left)
        if left:
            count.options(priority=1).push_sync(left - 1)

    await asyncio.to_thread(count.push_sync, 2)  # No worker runs yet: a connection of its own.
    await burst(worker)
    assert seen == [2, 1, 0]
    with pytest.raises(HarkError, match=r"await task\.push"):
        count.push_sync(1)


# Arguments: bound and checked at push, decoded and checked at the worker ---------------------------------------


class Address(msgspec.Struct):
    """A nested argument."""

    street: str
    number: int = 1


async def send(to: str, subject: str = "hi", *, copies: Annotated[int, msgspec.Meta(ge=1)] = 1) -> None:
    """A task."""


def deliver(address: Address, when: datetime, tags: list[str] | None = None) -> None:
    """A task with rich types."""


def test_arguments_arrive_as_they_were_sent() -> None:
    signature = Signature("send", send)
    assert bytes(signature.encode(("a", "b"), {})) == bytes(signature.encode((), {"to": "a", "subject": "b"}))
    encoded = signature.encode(("a",), {})
    assert bytes(encoded) == b'{"to":"a"}', "what is left to its default is not sent"
    assert signature.decode(encoded) == {"to": "a"}
    signature = Signature("deliver", deliver)
    when = datetime(2030, 1, 2, tzinfo=UTC)
    encoded = signature.encode((Address("Main", 7), when), {"tags": ["x"]})
    assert signature.decode(encoded) == {"address": Address("Main", 7), "when": when, "tags": ["x"]}


@pytest.mark.parametrize(
    ("args", "kwargs", "text"),
    [
        ((), {}, "argument 'to' is missing"),
        ((), {"to": 5}, "argument 'to': expected `str`, got `int`"),
        ((), {"to": "a", "topic": "b"}, "unknown argument 'topic'; it takes to, subject, copies"),
        (("a",), {"to": "b"}, "argument 'to' was given twice"),
        (("a", "b", 3), {}, "takes 2 positional arguments, 3 were given"),
        ((), {"to": "a", "copies": 0}, "argument 'copies': expected `int` >= 1"),
        ((), {"to": object()}, "argument 'to' cannot be encoded as JSON"),
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


def test_nested_values_and_arguments_that_came_and_do_not_fit_are_refused() -> None:
    with pytest.raises(WrongArguments, match="argument 'address'"):
        Signature("deliver", deliver).encode((), {"address": {"street": 1}, "when": datetime.now(UTC)})
    with pytest.raises(WrongArguments, match="argument 'to' is missing"):
        Signature("send", send).decode(b"{}")
    with pytest.raises(WrongArguments, match="cannot be decoded"):
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
        (_many, "values cannot be a parameter"),
        (_any, "values cannot be a parameter"),
        (_delayed, "'delay' is an option of push; rename it"),
        (_unresolved, "cannot resolve an annotation"),
        (_generator, "a task cannot be a generator function"),
        (_async_generator, "a task cannot be a generator function"),
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


def test_a_unique_key_depends_on_the_task_and_the_values_and_not_on_how_they_were_given() -> None:
    signature = Signature("send", send)

    def key(*args: Any, **kwargs: Any) -> str:
        return signature.unique_key(signature.encode(args, kwargs), signature.names)

    assert key("a") == key(to="a", subject="hi") == key("a", copies=1)
    assert key("a") != key("b")
    assert key("a") != key("a", "ho")
    x, y = signature.encode(("a", "x"), {}), signature.encode(("a", "y"), {})
    assert signature.unique_key(x, ("to",)) == signature.unique_key(y, ("to",))
    assert signature.unique_key(x, ("to",)) != Signature("other", send).unique_key(x, ("to",))


async def test_each_of_many_tasks_with_a_result_has_its_own_key_and_a_unique_one_that_of_the_first(
    worker: Worker,
) -> None:
    @worker.task(result=True, unique=True)
    async def double(number: int) -> int:
        return 2 * number

    handles = await double.push_many([(1,), (2,), (1,)])
    assert [handle.status for handle in handles] == ["queued", "queued", "duplicate"]
    keys = [handle.transaction_id for handle in handles]
    assert keys == [keys[0], keys[1], keys[0]]
    assert keys[0] != keys[1]
    async with running(worker):
        assert [await handle.result(timeout=SECONDS) for handle in handles] == [2, 4, 2]


async def test_a_step_of_a_flow_has_no_unique_key(worker: Worker) -> None:
    @worker.task(unique=True)
    async def double(number: int) -> int:
        return 2 * number

    with pytest.raises(InvalidInput, match="a step of a flow has no unique_key"):
        await double.options(unique_key="k").s(1).push()
    async with running(worker):
        assert await (await (double.s(1) | double.s() | double.s()).push()).result(timeout=SECONDS) == 8
