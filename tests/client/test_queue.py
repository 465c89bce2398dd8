"""Queues as producers and administrators see them, against a real server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import msgspec
import pytest

import hark
from hark.client.client import Client
from hark.errors import Conflict, InvalidInput
from tests.client.deliveries import taken


@pytest.fixture
async def client(url: str) -> AsyncIterator[Client]:
    async with hark.connect(url) as opened:
        yield opened


async def test_a_push_with_a_key_is_stored_once(client: Client, queue: str) -> None:
    first = await client.queue(queue).push({"id": 1}, key="order-1")
    second = await client.queue(queue).push({"id": 1}, key="order-1")
    assert (first.status, second.status, second.id) == ("queued", "duplicate", first.id)
    assert first.transaction_id == "order-1"


async def test_push_many_takes_data_and_messages_with_options(client: Client, queue: str) -> None:
    orders = client.queue(queue)
    pushed = await orders.push_many([1, orders.message(2, key="two", priority=3), msgspec.Raw(b"[ 3 ]")])
    assert [one.status for one in pushed] == ["queued"] * 3
    messages = await orders.batch(10).pop()
    assert [(message.raw, message.priority) for message in messages] == [(b"1", 0), (b"2", 3), (b"[ 3 ]", 0)]
    assert messages[1].transaction_id == "two"


async def test_a_partition_is_pushed_to_and_popped_from(client: Client, queue: str) -> None:
    await client.queue(queue).partition("a").push(1)
    await client.queue(queue).partition("b").push(2)
    [message] = await client.queue(queue).partition("b").batch(10).pop()
    assert (message.data, message.partition, message.offset) == (2, "b", 1)


async def test_delayed_messages_do_not_come_yet(client: Client, queue: str) -> None:
    await client.queue(queue).push(1, delay=timedelta(hours=1))
    await client.queue(queue).push(2, deliver_at=datetime.now(UTC) + timedelta(hours=1))
    assert await client.queue(queue).batch(10).pop() == []
    assert (await client.queue(queue).depth()).pending == 2


async def test_an_unknown_option_is_refused_before_anything_is_sent(client: Client, queue: str) -> None:
    with pytest.raises(TypeError, match="priorty"):
        await client.queue(queue).push(1, priorty=1)  # type: ignore[call-arg]  # On purpose.
    with pytest.raises(InvalidInput, match="priority: expected an integer from 0 to 9"):
        await client.queue(queue).push(1, priority=10)
    assert await taken(client, queue) == []


async def test_a_pop_does_not_wait_unless_it_is_told_to(client: Client, queue: str) -> None:
    assert await client.queue(queue).pop() == []
    assert await client.queue(queue).wait().timeout(10).pop() == []


async def test_queues_are_found_by_their_labels(client: Client, queue: str) -> None:
    for name in ("a", "b"):
        await client.queue(f"{queue}-{name}").namespace(queue).task(name).create()
        await client.queue(f"{queue}-{name}").push(name)
    assert [message.data for message in await client.queue().namespace(queue).task("b").batch(9).pop()] == ["b"]
    messages = await client.queue().namespace(queue).group("all").batch(9).partitions(9).pop()
    assert sorted(message.queue for message in messages) == [f"{queue}-a", f"{queue}-b"]


async def test_a_new_group_starts_where_it_says(client: Client, queue: str) -> None:
    orders = client.queue(queue)
    await orders.push("old")
    late = orders.group("late").subscription_mode("new")
    assert await late.pop() == []
    await orders.push("new")
    assert [message.data for message in await late.batch(9).pop()] == ["new"]
    everything = orders.group("replay").subscription_from(datetime(2020, 1, 1, tzinfo=UTC))
    assert [message.data for message in await everything.batch(9).pop()] == ["old", "new"]


async def test_the_mode_of_a_group_is_fixed_at_first_use(client: Client, queue: str) -> None:
    orders = client.queue(queue)
    await orders.push_many([1, 2])
    assert len(await orders.group("g", "shared").pop()) == 1
    assert len(await orders.group("g", "shared").pop()) == 1
    with pytest.raises(Conflict) as refused:
        await orders.group("g", "ordered").pop()
    assert refused.value.code == "group_mode_conflict"


async def test_a_lease_may_be_shorter_than_the_queue_says(client: Client, queue: str) -> None:
    await client.queue(queue).push(1)
    [message] = await client.queue(queue).lease(5).pop()
    assert await client.queue(queue).pop() == []
    until = await message.renew(60)
    assert timedelta(seconds=30) < until - datetime.now(UTC) < timedelta(seconds=90)


async def test_the_verbs_of_an_administrator(client: Client, queue: str) -> None:
    orders = client.queue(queue).namespace("shop").group("g")
    made = await orders.configure(retry_limit=7, max_in_flight=5)
    assert (made.namespace, made.options.retry_limit) == ("shop", 7)
    assert (await orders.limits()).max_in_flight == 5
    await orders.push_many([1, 2, 3])
    await orders.pause()
    assert await orders.pop() == []
    await orders.resume()
    [message] = await orders.pop()
    await message.dead_letter("no such customer")
    [letter] = [letter async for letter in orders.dlq()]
    assert letter.error == "no such customer"
    assert (await orders.depth()).pending == 2
    assert (await orders.stats()).name == queue
    assert await orders.purge() == 3
    assert await orders.delete() is True
    assert await orders.delete() is False
