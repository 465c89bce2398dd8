"""`consume`: loops that take, handle and settle, against a real server; and handlers that can't work."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator

import pytest

import hark
import hark.sync
from hark.client.calling import Answer, CallPolicy, Request
from hark.client.client import Client
from hark.client.delivery.consuming import Budget, Consumed, HandlerCancelled
from hark.client.delivery.message import Message
from hark.client.http import HttpTransport
from hark.errors import Conflict, HarkError, InvalidInput
from tests.client.deliveries import attempts, streams, taken, until
from tests.client.transports import Recorder, problem, until_waiting


def nothing(*_: object) -> None:
    """Handle it by doing nothing."""


def block(seconds: float) -> None:
    """Keep the event loop, and the interpreter as far as it lets one, for longer than a lease lasts."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        pass


# What the handler gets ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("batch", "each", "seen", "nexts", "acks"),
    [
        pytest.param(1, False, [0, 1, 2, 3, 4], 4, 1, id="one message"),
        pytest.param(4, False, [[0, 1, 2, 3], [4]], 1, 1, id="a list"),
        pytest.param(5, True, [0, 1, 2, 3, 4], 0, 5, id="each of a list"),
    ],
)
async def test_a_handler_gets_one_message_or_a_batch_which_is_acked_with_the_next_pop(
    recorder: Recorder, queue: str, batch: int, each: bool, seen: list[object], nexts: int, acks: int
) -> None:
    got: list[object] = []

    async def handle(given: Message | list[Message]) -> None:
        got.append([message.data for message in given] if isinstance(given, list) else given.data)

    async with Client(recorder) as client:
        await client.queue(queue).push_many(range(5))
        done = await client.queue(queue).group("g").batch(batch).each(each).limit(5).consume(handle)
        assert (got, done.succeeded, done.failed) == (seen, 5, 0)
        assert (await client.queue(queue).group("g").depth()).pending == 0
    requests = [recorder.count(f"/api/v1/{route}") for route in (f"pop/queue/{queue}", "next", "ack/batch")]
    assert requests == [1, nexts, acks]


# How it is settled ----------------------------------------------------------------------------------------


async def test_a_handler_that_raises_fails_its_messages_and_the_loop_goes_on(client: Client, queue: str) -> None:
    await client.queue(queue).configure(retry_limit=1)
    await client.queue(queue).push_many(["bad", "good"])
    seen = []

    async def handle(message: Message) -> None:
        seen.append((message.data, message.attempt))
        if message.data == "bad":
            raise ValueError("it is bad")

    done = await client.queue(queue).batch(2).each().limit(3).consume(handle)
    assert seen == [("bad", 1), ("bad", 2), ("good", 1)]
    assert (done.succeeded, done.failed) == (1, 2)
    [letter] = [letter async for letter in client.queue(queue).dlq()]
    assert letter.error.startswith("ValueError: it is bad\n")


async def test_a_handler_may_settle_by_itself_and_auto_ack_settles_at_delivery(client: Client, queue: str) -> None:
    await client.queue(queue).push(1)
    await client.queue(queue).group("g").limit(1).consume(lambda message: message.retry())
    assert attempts(await client.queue(queue).group("g").pop()) == [(1, 1)]

    def handle(*_: object) -> None:
        raise ValueError

    await client.queue(queue).group("h").auto_ack().limit(1).consume(handle)
    assert await taken(client, queue, "h") == []


async def test_on_success_settles_instead(client: Client, queue: str) -> None:
    await client.queue(queue).push_many([1, 2])
    outcomes: list[tuple[object, object]] = []

    async def succeeded(message: Message, result: object) -> None:
        outcomes.append((message.data, result))
        if message.data == 2:
            await message.ack()

    def handle(message: Message) -> str:
        return f"did {message.data}"

    await client.queue(queue).group("g", "shared").limit(2).consume(handle).on_success(succeeded)
    assert outcomes == [(1, "did 1"), (2, "did 2")]
    assert client._holds.keeper().kept == 0
    assert [one.offset for one in await client.admin.messages(queue=queue, status="processing")] == [1]


async def test_on_error_is_requested_first_and_what_it_leaves_is_nacked(client: Client, queue: str) -> None:
    await client.queue(queue).configure(retry_limit=0)
    await client.queue(queue).push_many([1, 2])
    outcomes = []

    async def failed(message: Message, error: Exception) -> None:
        outcomes.append((message.data, str(error)))
        if message.data == 1:
            await message.ack()

    def handle(message: Message) -> None:
        raise ValueError(f"not {message.data}")

    await client.queue(queue).batch(2).each().limit(2).consume(handle).on_error(failed)
    assert outcomes == [(1, "not 1"), (2, "not 2")]
    assert [letter.data async for letter in client.queue(queue).dlq()] == [2]


async def test_errors_of_callbacks_are_failures_and_do_not_hide_the_first(client: Client, queue: str) -> None:
    await client.queue(queue).configure(retry_limit=0)
    await client.queue(queue).push_many([1, 2, 3])

    def fail(*_: object) -> None:
        raise ValueError("first")

    def fail_too(*_: object) -> None:
        raise RuntimeError("second")

    done = await client.queue(queue).limit(1).consume(nothing).on_success(fail_too)
    assert (done.succeeded, done.failed) == (0, 1)
    await client.queue(queue).limit(1).consume(fail).on_error(fail_too)
    await client.queue(queue).limit(1).consume(nothing).on_error(nothing)  # Acked: there is no on_success.
    both, after = [letter.error async for letter in client.queue(queue).dlq()]
    assert after.startswith("RuntimeError: second\n")
    assert both.startswith("ValueError: first\n")
    assert "RuntimeError: second" in both
    assert (await client.queue(queue).depth()).pending == 0


# How it ends ----------------------------------------------------------------------------------------------


async def test_the_limit_is_one_for_all_loops(client: Client, queue: str) -> None:
    for partition in range(10):
        await client.queue(queue).partition(str(partition)).push_many(range(3))
    consuming = client.queue(queue).group("g").batch(3).concurrency(4).limit(20)
    done = await consuming.consume(nothing)
    assert done.succeeded == 20
    assert (await client.queue(queue).group("g").depth()).pending == 10


async def test_handlers_run_at_the_same_time(client: Client, queue: str) -> None:
    for partition in "abc":
        await client.queue(queue).partition(partition).push(partition)
    together = asyncio.Barrier(3)
    done = await client.queue(queue).concurrency(3).limit(3).consume(lambda _: together.wait())
    assert done.succeeded == 3


async def test_stop_lets_handlers_finish_and_ends_waits(client: Client, queue: str) -> None:
    await client.queue(queue).push_many(range(3))
    began, go_on = asyncio.Event(), asyncio.Event()

    async def handle(*_: object) -> None:
        began.set()
        await go_on.wait()

    consumption = client.queue(queue).group("g").batch(3).each().concurrency(2).consume(handle)
    running = asyncio.ensure_future(consumption.run())
    await began.wait()
    await until_waiting(client.caller.transport, queue)
    consumption.stop()
    go_on.set()
    done = await running
    assert done.succeeded == 1
    assert attempts(await client.queue(queue).group("g").batch(9).pop()) == [(1, 1), (2, 1)]


async def test_cancelled_it_hands_everything_back_uncounted(client: Client, queue: str) -> None:
    await client.queue(queue).push_many(range(3))
    began = asyncio.Event()

    async def handle(*_: object) -> None:
        began.set()
        await asyncio.Event().wait()

    running = asyncio.ensure_future(client.queue(queue).group("g").batch(3).each().consume(handle).run())
    await began.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert attempts(await client.queue(queue).group("g").batch(9).pop()) == [(0, 1), (1, 1), (2, 1)]


async def test_what_the_server_refuses_ends_it_and_it_runs_once(client: Client, queue: str) -> None:
    await client.queue(queue).push(1)
    await client.queue(queue).group("g", "ordered").pop()
    with pytest.raises(Conflict):
        await client.queue(queue).group("g", "shared").concurrency(3).consume(nothing)
    consumption = client.queue(queue).group("g").idle(1).consume(nothing)
    await consumption
    with pytest.raises(HarkError, match="was already run"):
        await consumption


class Shaky(Recorder):
    """A way to the server on which the first pops fail."""

    failures = (problem(429, "too_many_waiting", "busy", 0.001), problem(503, "stopping", retry_after=0.001))

    async def send(self, request: Request) -> Answer:
        """Ask once, or fail."""
        pops = [one for one in self.requests if "pop" in one.path]
        self.failure = self.failures[len(pops)] if "pop" in request.path and len(pops) < 2 else None
        return await super().send(request)


async def test_it_outlives_a_server_that_is_away(url: str, queue: str) -> None:
    shaky = Shaky(HttpTransport(url))
    async with Client(shaky, retry=CallPolicy(attempts=1)) as client:
        await client.queue(queue).push(1)
        done = await client.queue(queue).limit(1).consume(nothing)
    assert (done.succeeded, shaky.count(f"/api/v1/pop/queue/{queue}")) == (1, 3)


# Leases ---------------------------------------------------------------------------------------------------


async def test_a_handler_that_blocks_its_loop_for_three_lease_times_keeps_its_message(
    client: Client, url: str, queue: str
) -> None:
    await client.queue(queue).push(1)
    seen: list[object] = []

    def handle(message: Message) -> None:
        seen.append(message.attempt)
        with hark.sync.connect(url) as other:  # Another consumer waits all the time, while this loop is blocked.
            seen.extend(other.queue(queue).group("g").wait().timeout(3100).pop())

    await client.queue(queue).group("g").lease(1).limit(1).consume(handle)
    assert seen == [1]
    assert (await client.queue(queue).group("g").depth()).pending == 0


async def test_a_handler_that_blocks_the_loop_in_its_first_turn_keeps_its_lease(client: Client, queue: str) -> None:
    await client.queue(queue).push(1)
    [message] = await client.queue(queue).group("g").lease(1).pop()
    await message.begin()  # The thread that renews starts here; nothing else of this loop runs before it is blocked.
    block(1.3)
    assert (await message.ack()).success


@pytest.mark.parametrize("scheme", ["http", "ws"])
async def test_a_handler_that_blocks_the_loop_leaves_the_messages_of_the_other_slots_their_leases(
    url: str, queue: str, scheme: str
) -> None:
    seen: list[tuple[object, int]] = []

    async with hark.connect(url.replace("http", scheme)) as client:

        async def slots_wait() -> bool:
            return sum(one.credit > one.unsettled for one in await streams(client.caller, queue)) == 2

        async def handle(message: Message) -> None:
            seen.append((message.data, message.attempt))
            if message.data == 0:
                await (until(slots_wait) if scheme == "ws" else until_waiting(client.caller.transport, queue, 2))
                with hark.sync.connect(url) as other:  # This loop is blocked: it reads nothing of what comes now.
                    other.queue(queue).push_many([1, 2])
                    seen.extend((one.data, -1) for one in other.queue(queue).group("g").wait().timeout(2500).pop())

        await client.queue(queue).push(0)
        consuming = client.queue(queue).group("g", "shared").lease(1).concurrency(3).limit(3)
        done = await consuming.consume(handle)
    assert (sorted(seen), done.succeeded) == ([(0, 1), (1, 1), (2, 1)], 3)


@pytest.mark.parametrize("each", [True, False])
async def test_a_message_whose_lease_ended_before_it_was_read_is_not_begun(url: str, queue: str, each: bool) -> None:
    seen: list[tuple[object, int]] = []
    async with hark.connect(url) as client:

        def handle(given: Message | list[Message]) -> None:
            seen.extend((one.data, one.attempt) for one in ([given] if isinstance(given, Message) else given))

        consuming = client.queue(queue).group("g").batch(2).each(each).lease(1).limit(1).consume(handle)
        running = asyncio.ensure_future(consuming.run())
        await until_waiting(client.caller.transport, queue)
        with hark.sync.connect(url) as other:  # Something else than the handler blocks the loop.
            other.queue(queue).push(1)
            [expired] = other.queue(queue).group("g").wait().pop()
            assert (expired.attempt, seen) == (2, [])
            expired.retry()
        assert (await running).succeeded == 1
    assert seen == [(1, 2)]


# The budget -----------------------------------------------------------------------------------------------


async def test_what_one_loop_does_not_use_is_for_the_others() -> None:
    budget = Budget(10)
    assert await budget.reserve(10) == 10
    waiting = asyncio.ensure_future(budget.reserve(10))
    await asyncio.sleep(0)
    assert not waiting.done()
    budget.used(10, 4)
    assert await waiting == 6
    budget.used(6, 6)
    assert await budget.reserve(10) == 0


async def test_a_handler_that_is_cancelled_from_within_fails_its_message(client: Client, queue: str) -> None:
    async def handle(message: Message) -> None:
        if message.attempt == 1:
            inner = asyncio.ensure_future(asyncio.Event().wait())
            inner.cancel()
            await inner

    errors: list[object] = []
    await client.queue(queue).configure(retry_limit=1)
    await client.queue(queue).push(1)
    consumed = await client.queue(queue).limit(2).consume(handle).on_error(lambda _, error: errors.append(error))
    assert consumed == Consumed(succeeded=1, failed=1)
    assert [type(error) for error in errors] == [HandlerCancelled]


# Handlers that can't work ---------------------------------------------------------------------------------


async def test_a_handler_that_yields_was_not_run_and_its_message_fails(url: str, queue: str) -> None:
    async def steps(_message: Message) -> AsyncIterator[int]:
        yield 1

    def plain_steps(_message: Message) -> Iterator[int]:
        yield 1

    errors: list[str] = []
    async with hark.connect(url) as client:
        await client.queue(queue).configure(retry_limit=5)
        await client.queue(queue).push(1)
        for handler in (steps, plain_steps):
            consuming = client.queue(queue).limit(1).consume(handler)
            consumed = await consuming.on_error(lambda _, error: errors.append(str(error)))
            assert consumed == Consumed(succeeded=0, failed=1)
    assert errors == ["steps is a generator: calling it runs nothing; remove the yield", *errors[1:]]
    assert errors[1].startswith("plain_steps is a generator")


def test_an_async_handler_needs_the_async_client_and_one_that_yields_is_not_run_in_a_thread_either(
    url: str, queue: str
) -> None:
    async def handle(_message: object) -> None: ...

    def steps(_message: object) -> Iterator[int]:
        yield 1

    with hark.sync.connect(url) as client:
        with pytest.raises(InvalidInput, match="handler: handle is async; use a function that is not async"):
            client.queue(queue).consume(handle)
        client.queue(queue).push(1)
        errors: list[str] = []
        hidden = client.queue(queue).limit(1).consume(lambda _: handle(None))
        consumed = hidden.on_error(lambda _, error: errors.append(str(error))).run()
        assert consumed == Consumed(succeeded=0, failed=1)
        assert errors == ["<lambda> is async; use a function that is not async, or the async client (hark.connect)"]
        client.queue(queue).push(2)
        assert client.queue(queue).limit(1).consume(steps).run() == Consumed(succeeded=0, failed=1)
