"""Messages in hand, one by one, against a real server."""

from __future__ import annotations

import asyncio
import gc
from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from hark.client.client import Client
from hark.client.delivery.leases import Cancelled, Lost
from hark.errors import InvalidInput, LeaseLost
from hark.polling import PollingStrategy
from tests.client.deliveries import attempts, taken
from tests.client.transports import Recorder, until_waiting


class Order(msgspec.Struct):
    """What the tests push."""

    id: int


# What can be read -----------------------------------------------------------------------------------------


async def test_a_message_says_where_it_comes_from_and_decodes_its_data_once_and_into_types(
    client: Client, queue: str
) -> None:
    trace = "7f3b1c1e-33cf-4f4a-9a1e-1d2c3b4a5f60"
    pushed = await client.queue(queue).partition("p").push({"id": 7}, key="k", priority=2, trace_id=trace)
    [message] = await client.queue(queue).group("g").pop()
    assert (message.id, message.transaction_id, message.trace_id) == (pushed.id, "k", trace)
    assert (message.queue, message.partition, message.offset, message.group) == (queue, "p", 1, "g")
    assert (message.priority, message.attempt, message.raw) == (2, 1, b'{"id":7}')
    assert message.created_at.tzinfo is not None
    assert message.lease_id
    assert repr(message) == f"Message({queue}/p#1, attempt=1, open)"
    assert message.data is message.data
    assert message.decode(Order) == Order(7)
    with pytest.raises(InvalidInput, match=r"cannot be decoded as int: Expected `int`, got `object`"):
        message.decode(int)
    await message.trace({"step": 1}, event="begin", names=[queue])
    [trace_of_it] = (await client.traces.by_name(queue)).items
    assert (trace_of_it.data, trace_of_it.event_type, trace_of_it.consumer_group) == ({"step": 1}, "begin", "g")


async def test_push_many_takes_data_and_messages_with_options(client: Client, queue: str) -> None:
    orders = client.queue(queue)
    pushed = await orders.push_many([1, orders.message(2, key="two", priority=3), msgspec.Raw(b"[ 3 ]")])
    assert [one.status for one in pushed] == ["queued"] * 3
    messages = await orders.batch(10).pop()
    assert [(message.raw, message.priority) for message in messages] == [(b"1", 0), (b"2", 3), (b"[ 3 ]", 0)]
    assert messages[1].transaction_id == "two"


async def test_a_lease_may_be_renewed_and_what_was_settled_at_delivery_needs_none(client: Client, queue: str) -> None:
    await client.queue(queue).push_many([1, 2])
    [message] = await client.queue(queue).lease(5).pop()
    assert await client.queue(queue).pop() == []
    until = await message.renew(60)
    assert timedelta(seconds=30) < until - datetime.now(UTC) < timedelta(seconds=90)
    [message] = await client.queue(queue).group("g").auto_ack().pop()
    async with message:
        assert message.lease_id == ""
    with pytest.raises(InvalidInput, match="received with auto_ack"):
        await message.renew(10)
    assert await taken(client, queue, "g") == [2]


# How they are settled -------------------------------------------------------------------------------------


async def test_a_block_that_ends_well_acks_unless_it_was_settled_inside(client: Client, queue: str) -> None:
    await client.queue(queue).push_many([1, 2])
    for inside, settled in (("retry", "retry"), ("ack", "completed"), (None, "completed")):
        [message] = await client.queue(queue).group("g").pop()
        async with message:
            assert message.settled is None
            if inside is not None:
                await getattr(message, inside)()
        assert message.settled == settled
    assert (await client.queue(queue).group("g").depth()).pending == 0


async def test_a_block_that_raises_nacks_with_the_traceback_and_lets_the_error_go_on(
    client: Client, queue: str
) -> None:
    def dig(depth: int) -> None:
        if not depth:
            raise ValueError("x" * 6000)
        dig_on(depth)

    def dig_on(depth: int) -> None:  # Two that take turns: repeated lines would be folded.
        dig(depth - 1)

    await client.queue(queue).configure(retry_limit=0)
    await client.queue(queue).push_many([1, 2])
    [message] = await client.queue(queue).pop()
    with pytest.raises(ValueError, match="no such customer"):
        async with message:
            raise ValueError("no such customer")
    [message] = await client.queue(queue).pop()
    with pytest.raises(ValueError, match="xxx"):
        async with message:
            dig(100)
    long, short = [letter.error async for letter in client.queue(queue).dlq()]
    assert short.startswith("ValueError: no such customer\n")
    assert 'raise ValueError("no such customer")' in short
    assert "test_messages.py" in short
    assert len(long) <= 10_000
    assert long.startswith("ValueError: xxx")
    assert long.rstrip().endswith('raise ValueError("x" * 6000)'), "of a long one the end is kept"


async def test_a_failure_counts_may_be_delayed_and_may_be_the_last(client: Client, queue: str) -> None:
    await client.queue(queue).push(1)
    [message] = await client.queue(queue).group("g").pop()
    await message.nack("not now", delay=0)
    [again] = await client.queue(queue).group("g").pop()
    assert again.attempt == 2
    await again.nack("later", delay=3600)
    assert await client.queue(queue).group("g").pop() == []
    [other] = await client.queue(queue).pop()
    assert (await other.dead_letter("nobody wants it")).dead_lettered
    assert [letter.error async for letter in client.queue(queue).dlq()] == ["nobody wants it"]


async def test_settling_twice_is_no_error_and_no_request(recorder: Recorder, queue: str) -> None:
    async with Client(recorder) as client:
        await client.queue(queue).push(1)
        [message] = await client.queue(queue).pop()
        assert (await message.ack()).success
        before = len(recorder.requests)
        assert (await message.ack()).success
        assert (await message.nack("too late")).success
        assert len(recorder.requests) == before


async def test_a_lost_lease_makes_the_ack_fail_and_a_block_is_not_begun_and_its_own_error_wins(
    client: Client, queue: str
) -> None:
    await client.queue(queue).push(1)
    [message] = await client.queue(queue).group("g").pop()
    await client.groups.seek("g", queue, offset=1)
    for _ in range(2):
        with pytest.raises(LeaseLost) as lost:
            await message.ack()
        assert lost.value.code == "lease_lost"
    [message] = await client.queue(queue).group("g").pop()
    with pytest.raises(ValueError, match="mine") as raised:
        async with message:
            await client.groups.seek("g", queue, offset=1)
            raise ValueError("mine")
    assert "could not be settled" in raised.value.__notes__[0]
    [message] = await client.queue(queue).group("g").pop()
    await client.groups.seek("g", queue, to_end=True)
    with pytest.raises(LeaseLost):
        async with message:
            pytest.fail("it was begun")


# One by one -----------------------------------------------------------------------------------------------


async def test_messages_end_at_the_limit_or_when_nothing_came_for_the_idle_time(client: Client, queue: str) -> None:
    await client.queue(queue).push_many(range(9))
    seen = []
    async for message in client.queue(queue).group("g").batch(4).limit(6).messages():
        async with message:
            seen.append(message.data)
    assert seen == [0, 1, 2, 3, 4, 5]
    rest = client.queue(queue).group("g").idle(20).auto_ack()
    assert [message.data async for message in rest.messages()] == [6, 7, 8]


async def test_messages_wait_for_what_comes_and_a_wait_that_is_cancelled_takes_nothing(
    client: Client, queue: str
) -> None:
    messages = client.queue(queue).group("g").messages()
    cancelled = asyncio.ensure_future(anext(messages))
    await until_waiting(client.caller.transport, queue)
    cancelled.cancel()
    with pytest.raises(asyncio.CancelledError):
        await cancelled
    step = asyncio.ensure_future(anext(messages))
    await until_waiting(client.caller.transport, queue)
    await client.queue(queue).push("hello")
    assert attempts([await step]) == [("hello", 1)]
    await messages.aclose()


@pytest.mark.parametrize("how", ["break", "exception", "cancellation"])
async def test_however_an_iteration_is_left_what_was_not_begun_is_handed_back(
    client: Client, queue: str, how: str
) -> None:
    await client.queue(queue).configure(retry_max_delay=0)
    await client.queue(queue).push_many(range(3))
    began = asyncio.Event()

    async def consume() -> None:
        async for message in client.queue(queue).group("g").batch(3).messages():
            async with message:
                began.set()
                if how == "break":
                    break
                if how == "exception":
                    raise ValueError
                await asyncio.Event().wait()

    task = asyncio.create_task(consume())
    await began.wait()
    if how == "cancellation":
        task.cancel()
    [ended] = await asyncio.gather(task, return_exceptions=True)
    assert type(ended) is {"break": type(None), "exception": ValueError, "cancellation": asyncio.CancelledError}[how]
    del task, ended
    gc.collect()
    async with asyncio.timeout(30):  # Until what was not begun is handed back.
        while sum(group.in_flight for group in await client.groups.list(queue) if group.name == "g"):
            pass
    left = {"break": [(1, 1), (2, 1)], "exception": [(0, 2), (1, 1), (2, 1)], "cancellation": [(0, 1), (1, 1), (2, 1)]}
    assert attempts(await client.queue(queue).group("g").batch(9).pop()) == left[how]


async def test_closing_an_iteration_hands_back_at_once(client: Client, queue: str) -> None:
    await client.queue(queue).push_many(range(3))
    async with client.queue(queue).group("g").batch(3).messages() as messages:
        await (await anext(messages)).ack()
    assert attempts(await client.queue(queue).group("g").batch(9).pop()) == [(1, 1), (2, 1)]


async def test_what_follows_a_failure_comes_again_in_order(client: Client, queue: str) -> None:
    await client.queue(queue).partition("a").push_many(["a1", "a2", "a3"])
    await client.queue(queue).partition("b").push("b1")
    seen = []
    async for message in client.queue(queue).group("g").batch(4).partitions(2).limit(5).messages():
        seen.append((message.data, message.attempt))
        await (message.nack("no") if message.data == "a1" and message.attempt == 1 else message.ack())
    expected = [("a1", 2), ("a2", 1), ("a3", 1)]
    assert [one for one in seen if one[0] != "b1" and one != ("a1", 1)] == expected
    assert seen.count(("b1", 1)) == 1
    seen.clear()
    shared = client.queue(queue).partition("a").group("s", "shared").batch(3).limit(3)
    async for message in shared.messages():  # In a shared group a failure holds nothing up.
        seen.append((message.data, message.attempt))
        await (message.nack("no") if message.data == "a1" else message.ack())
    assert seen == [("a1", 1), ("a2", 1), ("a3", 1)]


async def test_a_message_that_was_dropped_is_not_leased_any_longer(client: Client, queue: str) -> None:
    await client.queue(queue).push(1)
    messages = client.queue(queue).group("g").messages()
    message = await anext(messages)
    keeper = client._holds.keeper()
    assert keeper.kept == 1
    del message
    gc.collect()
    await asyncio.sleep(0)
    assert keeper.kept == 0
    await messages.aclose()


@pytest.mark.parametrize(("renew", "expected"), [(True, [2, 0.4]), (False, [])], ids=["renewed", "not-renewed"])
async def test_renewing_can_be_switched_off_and_its_interval_reaches_the_keeper(
    client: Client, queue: str, renew: bool, expected: list[float]
) -> None:
    holds: list[float | None] = []
    keeper = client._holds.keeper()
    hold = keeper.hold

    def spy(
        lease_id: str,
        seconds: float,
        lost: Lost | None = None,
        every: float | None = None,
        cancelled: Cancelled | None = None,
    ) -> None:
        holds.extend((seconds, every))
        hold(lease_id, seconds, lost, every, cancelled)

    keeper.hold = spy  # type: ignore[method-assign]  # To see what it is told.
    await client.queue(queue).push(1)
    choices = client.queue(queue).renew_lease(renew, interval_ms=400)
    async with choices.messages() as messages, await anext(messages):
        assert (holds, keeper.kept) == (expected, renew)


async def test_plain_polling_does_not_wait_at_the_server(recorder: Recorder, queue: str) -> None:
    async with Client(recorder) as client:
        await client.queue(queue).push(1)
        polling = client.queue(queue).polling(True).poll_interval(5).idle(20)
        assert [message.data async for message in polling.auto_ack().messages()] == [1]
    pops = [request for request in recorder.requests if "pop" in request.path]
    assert len(pops) >= 3
    assert not any("wait" in (request.query or {}) for request in pops)


async def test_the_strategy_of_the_client_governs_empty_answers(recorder: Recorder, queue: str) -> None:
    strategy = PollingStrategy.fixed(interval_ms=60_000)
    async with Client(recorder, polling=strategy) as client:
        step = asyncio.ensure_future(anext(client.queue(queue).timeout(1).messages()))
        done, _ = await asyncio.wait([step], timeout=0.1)
        assert not done
        step.cancel()
    assert len(recorder.requests) == 1
