"""Messages over a WebSocket: credit, settlements on the same way, what nobody took."""

from __future__ import annotations

import asyncio

import pytest

from hark.client.calling import Caller, path
from hark.client.delivery.frames import Error, decode_frame, error_in
from hark.client.delivery.settling import Settled, Verdict
from hark.client.delivery.socket import SocketSource
from hark.client.delivery.sources import PollSource, Wish
from hark.client.transport.api import Answer, Request
from hark.client.transport.http import HttpTransport
from hark.errors import Conflict, HarkError, InvalidInput, Unavailable
from tests.client.lossy import LossyTransport, push
from tests.client.sockets import PATIENCE, payloads, source_of, streams, until, until_room

ACK = path("ack", "batch")


async def test_messages_come_as_a_poll_gives_them(caller: Caller, queue: str) -> None:
    await push(caller, queue, [{"n": 1}], partition="a/b")
    async with source_of(caller, Wish(queue=queue, partition="a/b", group="g")) as source:
        [message] = await source.take(1)
    [polled] = await PollSource(caller, Wish(queue=queue, group="other", wait=False)).take(1)
    assert payloads([message]) == [{"n": 1}]
    assert (message.consumer_group, bool(message.lease_id)) == ("g", True)
    for field in ("id", "transaction_id", "queue", "partition", "partition_id", "offset", "created_at", "priority"):
        assert getattr(message, field) == getattr(polled, field)


async def test_a_waiting_take_gets_what_is_pushed_meanwhile(caller: Caller, queue: str) -> None:
    async with source_of(caller, Wish(queue=queue)) as source:
        waiting = asyncio.create_task(source.take(1))
        await until_room(caller, queue)
        await push(caller, queue, ["now"])
        assert payloads(await waiting) == ["now"]


async def test_a_take_whose_time_is_up_gives_nothing_and_takes_nothing(caller: Caller, queue: str) -> None:
    async with source_of(caller, Wish(queue=queue, timeout_ms=50)) as source:
        assert await source.take(1) == []

        async def is_paused() -> bool:
            return [one.paused for one in await streams(caller, queue)] == [True]

        await until(is_paused)
        await push(caller, queue, ["later"])
        assert payloads(await PollSource(caller, Wish(queue=queue, wait=False)).take(1)) == ["later"]


async def test_no_more_is_delivered_than_was_asked_for(caller: Caller, queue: str) -> None:
    await push(caller, queue, list(range(10)), partition="p")
    async with source_of(caller, Wish(queue=queue, batch=5, group="g", group_mode="shared")) as source:
        first = await source.take(3)
        assert payloads(first) == [0, 1, 2]
        assert [one.unsettled for one in await streams(caller, queue)] == [3]
        second = await source.take(9)
        assert payloads(second) == [3, 4, 5, 6, 7], "the batch of the wish is the most, whatever there is room for"
        # Room that settlements make is no wish for more.
        await source.settler.settle_many([Verdict(message) for message in first + second])

        async def is_settled() -> bool:
            return [one.unsettled for one in await streams(caller, queue)] == [0]

        await until(is_settled)
        rest = await PollSource(caller, Wish(queue=queue, batch=9, group="g", wait=False)).take(9)
        assert payloads(rest) == [8, 9]


async def test_what_was_settled_in_another_way_makes_no_difference_to_the_room(caller: Caller, queue: str) -> None:
    await push(caller, queue, list(range(6)), partition="p")
    async with source_of(caller, Wish(queue=queue, batch=9, group="g", group_mode="shared")) as source:
        for expected in ([0, 1], [2, 3], [4, 5]):
            messages = await source.take(2)
            assert payloads(messages) == expected
            acks = [{"transactionId": one.id, "leaseId": one.lease_id} for one in messages]
            await caller.call("POST", ACK, body={"acknowledgments": acks, "consumerGroup": "g"})
        assert [one.unsettled for one in await streams(caller, queue)] == [0]


async def test_settlements_go_over_the_socket(url: str, queue: str) -> None:
    transport = LossyTransport(HttpTransport(url))
    caller = Caller(transport)
    await push(caller, queue, list(range(4)), partition="p")
    async with source_of(caller, Wish(queue=queue, batch=4, group="g", group_mode="shared")) as source:
        messages = await source.take(4)
        verdicts = [
            Verdict(messages[0]),
            Verdict(messages[1], "dlq", "broken"),
            Verdict(messages[2], "retry", None, 3_600_000),
            Verdict(messages[3]),
        ]
        settled = await source.settler.settle_many(verdicts)
        assert settled == [Settled(True), Settled(True, dead_lettered=True), Settled(True), Settled(True)]
        again = await source.settler.settle(Verdict(messages[1]))
        assert (again.success, again.code) == (False, "dead_lettered")
    assert transport.asked(ACK) == 0
    await transport.close()


async def test_settlements_go_by_requests_while_there_is_no_socket(url: str, queue: str) -> None:
    transport = LossyTransport(HttpTransport(url))
    caller = Caller(transport)
    await push(caller, queue, [1])
    [message] = await PollSource(caller, Wish(queue=queue, wait=False)).take(1)
    async with source_of(caller, Wish(queue=queue)) as source:
        assert not source.connected
        assert await source.settler.settle(Verdict(message)) == Settled(True)
    assert transport.asked(ACK) == 1
    await transport.close()


async def test_automatic_acks_settle_what_is_taken_and_nothing_else(caller: Caller, queue: str) -> None:
    await push(caller, queue, list(range(3)), partition="p")
    async with source_of(caller, Wish(queue=queue, batch=9, auto_ack=True)) as source:
        taken = await source.take(2)
        assert (payloads(taken), [message.lease_id for message in taken]) == ([0, 1], ["", ""])
        assert [one.unsettled for one in await streams(caller, queue)] == [0]
    assert payloads(await PollSource(caller, Wish(queue=queue, batch=9, wait=False)).take(9)) == [2]


async def test_closing_gives_back_what_nobody_took_uncounted(caller: Caller, queue: str) -> None:
    await push(caller, queue, list(range(3)), partition="p")
    wish = Wish(queue=queue, batch=3, group="g", group_mode="shared")
    source = SocketSource(caller, wish, linger=3600)
    taken = await source.take(3)
    source._receive(taken[1:])  # As if they had come when nobody asked.
    await source.close()
    messages = await PollSource(caller, Wish(queue=queue, batch=3, group="g", wait=False)).take(3)
    assert [(message.offset, message.delivery_attempt) for message in messages] == [(2, 1), (3, 1)]
    assert await source.take(1) == []


async def test_what_came_too_late_goes_back_when_nobody_comes_for_it(caller: Caller, queue: str) -> None:
    wish = Wish(queue=queue, batch=2, group="g", group_mode="shared")
    async with source_of(caller, wish, linger=0.0) as source:
        await push(caller, queue, [1, 2], partition="p")
        await source.take(1)
        late = Wish(queue=queue, group="g", timeout_ms=20_000)
        [other] = await PollSource(caller, late).take(1)
        source._receive([other])
        [again] = await PollSource(caller, late).take(1)
        assert (again.id, again.delivery_attempt) == (other.id, 1)


async def test_what_waits_behind_a_failure_goes_back_too(caller: Caller, queue: str) -> None:
    await push(caller, queue, [1, 2], partition="p")
    async with source_of(caller, Wish(queue=queue, batch=2), linger=3600) as source:
        first, second = await source.take(2)
        source._receive([second])
        await source.settler.settle(Verdict(first, "failed"))
        assert not source._came
        [again, behind] = await source.take(2)
        assert [(again.id, again.delivery_attempt), (behind.id, behind.delivery_attempt)] == [
            (first.id, 2),
            (second.id, 1),
        ]


async def test_a_take_that_is_cancelled_leaves_nothing_behind(caller: Caller, queue: str) -> None:
    async with source_of(caller, Wish(queue=queue)) as source:
        waiting = asyncio.create_task(source.take(1))
        await until_room(caller, queue)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)

        async def is_paused() -> bool:
            return [one.paused for one in await streams(caller, queue)] == [True]

        await until(is_paused)
        await push(caller, queue, [1])
        assert payloads(await source.take(1)) == [1]


async def test_takes_at_the_same_time_have_their_turns(caller: Caller, queue: str) -> None:
    async with source_of(caller, Wish(queue=queue)) as source:
        waiting = [asyncio.create_task(source.take(1)) for _ in range(3)]
        await until_room(caller, queue)
        await push(caller, queue, [1, 2, 3])
        assert {str(payloads(taken)) for taken in await asyncio.gather(*waiting)} == {"[1]", "[2]", "[3]"}
        assert [one.unsettled for one in await streams(caller, queue)] == [3]


async def test_closing_ends_a_take_that_waits(caller: Caller, queue: str) -> None:
    source = SocketSource(caller, Wish(queue=queue, timeout_ms=600_000))
    waiting = asyncio.create_task(source.take(1))
    await until_room(caller, queue)
    async with asyncio.timeout(PATIENCE):
        await source.close()
        assert await waiting == []
        await source.close()


async def test_a_subscription_that_can_not_be_is_refused_with_its_reason(caller: Caller, queue: str) -> None:
    await push(caller, queue, [1])
    await PollSource(caller, Wish(queue=queue, group="g", group_mode="shared", wait=False)).take(1)
    async with source_of(caller, Wish(queue=queue, group="g", group_mode="ordered")) as source:
        with pytest.raises(Conflict) as refusal:
            await source.take(1)
        assert refusal.value.code == "group_mode_conflict"
    async with source_of(caller, Wish(queue=queue, subscription_mode="odd")) as source:
        with pytest.raises(InvalidInput, match="subscriptionMode"):
            await source.take(1)


async def test_the_lease_time_of_the_wish_counts(caller: Caller, queue: str) -> None:
    await push(caller, queue, [1])
    async with source_of(caller, Wish(queue=queue, lease_seconds=1)) as source:
        [first] = await source.take(1)
        [second] = await source.take(1)
        assert (second.id, second.delivery_attempt) == (first.id, 2)


async def test_labels_are_a_subscription_too(caller: Caller, queue: str) -> None:
    await push(caller, f"{queue}.mail.today", [1])
    async with source_of(caller, Wish(namespace=queue, task="mail")) as source:
        assert payloads(await source.take(1)) == [1]


class _InPlace:
    """A server in this process."""

    url = "in place"

    async def send(self, _request: Request) -> Answer:
        """Answer."""
        return Answer(200, b"")

    def fork(self) -> None:
        """There is no other way to it."""

    async def close(self) -> None:
        """Nothing to close."""


def test_what_has_no_sockets_or_does_not_wait_is_refused() -> None:
    with pytest.raises(InvalidInput, match="in this process has no WebSockets"):
        SocketSource(Caller(_InPlace()), Wish(queue="q"))
    with pytest.raises(InvalidInput, match="wait: over a WebSocket messages are waited for"):
        SocketSource(Caller(HttpTransport("http://127.0.0.1:1")), Wish(queue="q", wait=False))


def test_frames_of_kinds_that_are_not_known_are_passed_over() -> None:
    assert decode_frame('{"type": "weather", "rain": true}') is None
    for text in ('{"type": "drained"}', '{"rain": true}', "<html>", "[]"):
        with pytest.raises(HarkError, match="not Hark's"):
            decode_frame(text)


def test_errors_of_the_store_pass_and_those_of_the_request_do_not() -> None:
    assert isinstance(error_in(Error("away", "engine_failure")), Unavailable)
    assert not error_in(Error("wrong", "invalid_input")).retryable
