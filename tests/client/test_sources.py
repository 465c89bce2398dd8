"""Messages by polling."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from hark.client.calling import Caller, path
from hark.client.delivery.sources import Delivered, PollSource, Wish
from hark.client.transport.api import Answer, ConnectionFailed, Request
from hark.client.transport.http import HttpTransport
from hark.errors import Conflict, HarkError, InvalidInput
from tests.client.lossy import LossyTransport, first_of, no_sleep, push


def payloads(messages: list[Delivered]) -> list[object]:
    """What the messages say."""
    return [msgspec.json.decode(message.data) for message in messages]


async def test_a_poll_gives_messages_with_all_that_was_said_of_them(caller: Caller, queue: str) -> None:
    item = {"queue": queue, "partition": "a/b", "payload": {"n": [1, "ü"]}, "transactionId": "t 1", "priority": 3}
    await caller.call("POST", path("push"), body={"items": [item]})
    [message] = await PollSource(caller, Wish(queue=queue, partition="a/b", group="g", wait=False)).take(5)
    assert bytes(message.data) == b'{"n":[1,"\xc3\xbc"]}'
    assert (message.transaction_id, message.queue, message.partition) == ("t 1", queue, "a/b")
    assert (message.consumer_group, message.offset, message.priority, message.delivery_attempt) == ("g", 1, 3, 1)
    assert message.id and message.lease_id and message.partition_id and message.created_at.endswith("Z")


async def test_a_poll_takes_no_more_than_the_consumer_can_and_no_more_than_the_wish_says(
    caller: Caller, queue: str
) -> None:
    await push(caller, queue, list(range(10)), partition="p")
    source = PollSource(caller, Wish(queue=queue, batch=3, wait=False, auto_ack=True))
    assert payloads(await source.take(2)) == [0, 1]
    assert payloads(await source.take(9)) == [2, 3, 4]


async def test_an_empty_poll_that_does_not_wait_gives_nothing_at_once(caller: Caller, queue: str) -> None:
    assert await PollSource(caller, Wish(queue=queue, wait=False)).take(1) == []


async def test_a_poll_whose_time_is_up_gives_nothing(caller: Caller, queue: str) -> None:
    assert await PollSource(caller, Wish(queue=queue, timeout_ms=10)).take(1) == []


async def test_a_waiting_poll_gets_what_is_pushed_meanwhile(caller: Caller, queue: str) -> None:
    waiting = asyncio.create_task(PollSource(caller, Wish(queue=queue)).take(1))
    await until_somebody_waits(caller, queue)
    await push(caller, queue, ["now"])
    assert payloads(await waiting) == ["now"]


async def test_a_poll_that_is_cancelled_takes_nothing(caller: Caller, queue: str) -> None:
    source = PollSource(caller, Wish(queue=queue, timeout_ms=600_000))
    waiting = asyncio.create_task(source.take(1))
    await until_somebody_waits(caller, queue)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    await until_somebody_waits(caller, queue, nobody=True)
    await push(caller, queue, [1])
    assert payloads(await source.take(1)) == [1]


async def test_labels_are_polled_too(caller: Caller, queue: str) -> None:
    await push(caller, f"{queue}.mail.today", [1])
    assert payloads(await PollSource(caller, Wish(namespace=queue, task="mail", wait=False)).take(1)) == [1]
    assert payloads(await PollSource(caller, Wish(namespace=queue, task="other", wait=False)).take(1)) == []


async def test_many_partitions_come_in_one_poll(caller: Caller, queue: str) -> None:
    await push(caller, queue, [1, 2, 3])
    wish = Wish(queue=queue, batch=3, partitions=2, wait=False)
    assert len(await PollSource(caller, wish).take(3)) == 2


async def test_the_start_of_a_new_group_is_asked_for(caller: Caller, queue: str) -> None:
    await push(caller, queue, ["old"], partition="p")
    by_mode = PollSource(caller, Wish(queue=queue, group="a", subscription_mode="new", wait=False))
    by_time = PollSource(caller, Wish(queue=queue, group="b", subscription_from="now", wait=False))
    assert await by_mode.take(1) == await by_time.take(1) == []
    await push(caller, queue, ["new"], partition="p")
    assert payloads(await by_mode.take(9)) == payloads(await by_time.take(9)) == ["new"]


async def test_the_mode_of_a_group_is_asked_for(caller: Caller, queue: str) -> None:
    await push(caller, queue, [1, 2], partition="p")
    shared = PollSource(caller, Wish(queue=queue, group="g", group_mode="shared", wait=False))
    assert payloads(await shared.take(1) + await shared.take(1)) == [1, 2]
    with pytest.raises(Conflict) as refusal:
        await PollSource(caller, Wish(queue=queue, group="g", group_mode="ordered", wait=False)).take(1)
    assert refusal.value.code == "group_mode_conflict"


async def test_a_lease_lasts_as_long_as_the_wish_says(caller: Caller, queue: str) -> None:
    await push(caller, queue, [1], partition="p")
    [first] = await PollSource(caller, Wish(queue=queue, lease_seconds=1, wait=False)).take(1)
    # The queue's own lease time is 300 seconds: only the wish lets it come again within the time of this poll.
    [second] = await PollSource(caller, Wish(queue=queue, timeout_ms=20_000)).take(1)
    assert (second.id, second.delivery_attempt) == (first.id, 2)


async def test_the_priority_of_a_consumer_decides_who_is_served_first(caller: Caller, queue: str) -> None:
    low = asyncio.create_task(PollSource(caller, Wish(queue=queue)).take(1))
    await until_somebody_waits(caller, queue)
    high = asyncio.create_task(PollSource(caller, Wish(queue=queue, consumer_priority=5)).take(1))
    await until_somebody_waits(caller, queue, number=2)
    await push(caller, queue, ["first"], partition="p")
    assert payloads(await high) == ["first"]
    await push(caller, queue, ["second"], partition="q")
    assert payloads(await low) == ["second"]


async def test_a_poll_whose_answer_was_lost_is_asked_again(url: str, queue: str) -> None:
    transport = LossyTransport(HttpTransport(url), lose=first_of(path("pop", "queue", queue)))
    caller = Caller(transport, sleep=no_sleep)
    await push(caller, queue, ["lost", "found"])
    assert payloads(await PollSource(caller, Wish(queue=queue, wait=False)).take(1)) == ["found"]
    await transport.close()


async def test_a_poll_with_automatic_acks_whose_answer_was_lost_is_an_error(url: str, queue: str) -> None:
    transport = LossyTransport(HttpTransport(url), lose=first_of(path("pop", "queue", queue)))
    caller = Caller(transport, sleep=no_sleep)
    await push(caller, queue, ["lost", "found"])
    source = PollSource(caller, Wish(queue=queue, wait=False, auto_ack=True))
    with pytest.raises(ConnectionFailed):
        await source.take(1)
    assert payloads(await source.take(1)) == ["found"]
    await transport.close()


class _Stranger:
    """A server that is not Hark."""

    url = "http://stranger"

    async def send(self, _request: Request) -> Answer:
        """Say something else."""
        return Answer(200, b"<html>")

    def fork(self) -> None:
        """There is no other way to it."""

    async def close(self) -> None:
        """Nothing to close."""


async def test_an_answer_that_is_not_harks_is_a_clear_error() -> None:
    with pytest.raises(HarkError, match="not Hark's"):
        await PollSource(Caller(_Stranger()), Wish(queue="q")).take(1)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({}, "queue, namespace or task is required"),
        ({"partition": "p", "task": "t"}, "partition: only with a queue"),
        ({"queue": "q", "batch": 0}, "batch: expected an integer from 1 on, got 0"),
        ({"queue": "q", "partitions": 0}, "partitions: expected an integer from 1 on"),
        ({"queue": "q", "timeout_ms": -1}, "timeout_ms: expected an integer from 0 on"),
        ({"queue": "q", "lease_seconds": 0.5}, "lease_seconds: expected an integer from 1 on, got 0.5"),
        ({"queue": "q", "group_mode": "odd"}, "group_mode: expected ordered or shared, got 'odd'"),
    ],
)
def test_a_wish_that_can_not_be_is_refused_by_field(fields: dict[str, object], words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        Wish(**fields)  # type: ignore[arg-type]  # Wrong on purpose.


async def test_nobody_may_take_nothing(caller: Caller, queue: str) -> None:
    with pytest.raises(InvalidInput, match="most: expected at least 1, got 0"):
        await PollSource(caller, Wish(queue=queue)).take(0)


class _Consumer(msgspec.Struct):
    state: str


class _Waiting(msgspec.Struct):
    consumers: list[_Consumer]


async def until_somebody_waits(caller: Caller, queue: str, number: int = 1, nobody: bool = False) -> None:
    """Ask who waits until so many do, and have looked."""
    wanted = [] if nobody else ["interested"] * number
    async with asyncio.timeout(20):
        while True:
            waiting = await caller.read(_Waiting, "GET", path("consumers"), query={"queue": queue})
            if [consumer.state for consumer in waiting.consumers] == wanted:
                return
            await asyncio.sleep(0)
