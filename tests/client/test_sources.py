"""Where messages come from: polls, and WebSockets with their credit, whose servers may come and go."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from hark.api.types.frames import Error
from hark.client.calling import Caller
from hark.client.delivery.settling import Settled, SettleDecision
from hark.client.delivery.socket import SocketSource, decode_frame, error_in
from hark.client.delivery.sources import PollSource, PopParams, Source
from hark.client.transport.api import Answer, ConnectionFailed
from hark.client.transport.http import FailoverTransport, HttpTransport
from hark.errors import Conflict, HarkError, InvalidInput, Unavailable
from tests.client.deliveries import (
    WAIT_SECONDS,
    configure,
    payloads,
    push,
    source_of,
    spread,
    streams,
    until,
    until_paused,
    until_room,
)
from tests.client.transports import Recorder, Script, first_of, no_sleep, path
from tests.crash.server import Server, running

ACK = path("ack", "batch")
BOTH = pytest.mark.parametrize("way", ["poll", "socket"])


@asynccontextmanager
async def source_in(way: str, caller: Caller, params: PopParams) -> AsyncIterator[Source]:
    """A source of one kind, closed at the end."""
    if way == "poll":
        yield PollSource(caller, params)
    else:
        async with source_of(caller, params) as source:
            yield source


class _Consumer(msgspec.Struct):
    state: str


class _Waiting(msgspec.Struct):
    consumers: list[_Consumer]


async def until_polled(caller: Caller, queue: str, number: int = 1) -> None:
    """Ask who waits until so many do, and have looked."""

    async def is_so() -> bool:
        waiting = await caller.read(_Waiting, "GET", path("consumers"), query={"queue": queue})
        return [consumer.state for consumer in waiting.consumers] == ["interested"] * number

    await until(is_so)


def once(queue: str, batch: int = 1, **fields: object) -> PopParams:
    """What does not wait."""
    return PopParams(queue=queue, batch=batch, wait=False, **fields)  # type: ignore[arg-type]  # As they are given.


# Both ways -----------------------------------------------------------------------------------------------------


async def test_messages_come_over_a_socket_as_a_poll_gives_them(caller: Caller, queue: str) -> None:
    item = {"queue": queue, "partition": "a/b", "payload": {"n": [1, "ü"]}, "transactionId": "t 1", "priority": 3}
    await caller.call("POST", path("push"), body={"items": [item]})
    [polled] = await PollSource(caller, once(queue, partition="a/b", group="g")).take(5)
    async with source_of(caller, PopParams(queue=queue, partition="a/b", group="other")) as source:
        [message] = await source.take(1)
    assert bytes(polled.data) == b'{"n":[1,"\xc3\xbc"]}'
    assert (polled.transaction_id, polled.queue, polled.partition) == ("t 1", queue, "a/b")
    assert (polled.consumer_group, polled.offset, polled.priority, polled.delivery_attempt) == ("g", 1, 3, 1)
    assert polled.id and polled.lease_id and polled.partition_id and polled.created_at.endswith("Z")
    assert message.lease_id != polled.lease_id
    assert msgspec.structs.replace(message, lease_id=polled.lease_id, consumer_group="g") == polled


@BOTH
async def test_a_waiting_take_gets_what_is_pushed_meanwhile(caller: Caller, queue: str, way: str) -> None:
    async with source_in(way, caller, PopParams(queue=queue)) as source:
        waiting = asyncio.create_task(source.take(1))
        await (until_polled if way == "poll" else until_room)(caller, queue)
        await push(caller, queue, "now")
        assert payloads(await waiting) == ["now"]


@BOTH
async def test_a_take_that_is_cancelled_or_whose_time_is_up_takes_nothing(caller: Caller, queue: str, way: str) -> None:
    async with source_in(way, caller, PopParams(queue=queue, timeout_ms=600_000)) as source:
        waiting = asyncio.create_task(source.take(1))
        await (until_polled if way == "poll" else until_room)(caller, queue)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        await (until_polled(caller, queue, 0) if way == "poll" else until_paused(caller, queue))
        await push(caller, queue, 1)
        assert payloads(await source.take(1)) == [1]
    other = f"{queue}-2"
    async with source_in(way, caller, PopParams(queue=other, timeout_ms=50)) as source:
        assert await source.take(1) == []
        await (until_polled(caller, other, 0) if way == "poll" else until_paused(caller, other))
        await push(caller, other, "later")
        assert payloads(await PollSource(caller, once(other)).take(1)) == ["later"]


@BOTH
async def test_a_take_gives_no_more_than_the_request_and_the_parameters_allow(
    caller: Caller, queue: str, way: str
) -> None:
    await push(caller, queue, *range(10))
    async with source_in(way, caller, PopParams(queue=queue, batch=3, auto_ack=True)) as source:
        assert payloads(await source.take(2)) == [0, 1]
        assert payloads(await source.take(9)) == [2, 3, 4]
        with pytest.raises(InvalidInput, match="most: expected at least 1, got 0"):
            await source.take(0)


@BOTH
async def test_labels_modes_and_lease_times_are_requested(caller: Caller, queue: str, way: str) -> None:
    await push(caller, f"{queue}.mail.today", 1)
    async with source_in(way, caller, PopParams(namespace=queue, task="mail")) as source:
        assert payloads(await source.take(1)) == [1]
    await push(caller, queue, 1, 2)
    async with source_in(way, caller, PopParams(queue=queue, group="g", group_mode="shared")) as source:
        assert payloads(await source.take(1) + await source.take(1)) == [1, 2]
    async with source_in(way, caller, PopParams(queue=queue, group="g", group_mode="ordered")) as source:
        with pytest.raises(Conflict) as refusal:
            await source.take(1)
        assert refusal.value.code == "group_mode_conflict"
    async with source_in(way, caller, PopParams(queue=queue, subscription_mode="odd")) as source:
        with pytest.raises(InvalidInput, match="subscriptionMode"):
            await source.take(1)
    # The queue's own lease time is 300 seconds: only the wish lets it come again within the time of this take.
    async with source_in(way, caller, PopParams(queue=queue, group="h", lease_seconds=1, timeout_ms=20_000)) as source:
        [first] = await source.take(1)
        [second] = await source.take(1)
        assert (second.id, second.delivery_attempt) == (first.id, 2)


# Polls ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("auto_ack", [False, True])
async def test_a_poll_whose_answer_was_lost_is_requested_again_unless_it_settles(
    url: str, queue: str, auto_ack: bool
) -> None:
    transport = Recorder(HttpTransport(url), lose=first_of(path("pop", "queue", queue)))
    caller = Caller(transport, sleep=no_sleep)
    await spread(caller, queue, "lost", "found")
    source = PollSource(caller, once(queue, auto_ack=auto_ack))
    if auto_ack:
        with pytest.raises(ConnectionFailed):
            await source.take(1)
    assert payloads(await source.take(1)) == ["found"]
    await transport.close()


async def test_an_answer_that_is_not_harks_is_a_clear_error() -> None:
    with pytest.raises(HarkError, match="does not come from a Hark server"):
        await PollSource(Caller(Script(Answer(200, b"<html>"))), PopParams(queue="q")).take(1)


# WebSockets: room, and settlements on the same way -------------------------------------------------------------


async def test_no_more_is_delivered_than_was_requested(caller: Caller, queue: str) -> None:
    await push(caller, queue, *range(14))
    async with source_of(caller, PopParams(queue=queue, batch=5, group="g", group_mode="shared")) as source:
        for expected in ([0, 1], [2, 3]):
            messages = await source.take(2)
            assert payloads(messages) == expected
            # What is settled in another way makes no difference to the room.
            acks = [{"transactionId": one.id, "leaseId": one.lease_id} for one in messages]
            await caller.call("POST", ACK, body={"acknowledgments": acks, "consumerGroup": "g"})
        assert [one.unsettled for one in await streams(caller, queue)] == [0]
        first = await source.take(3)
        assert payloads(first) == [4, 5, 6]
        assert [one.unsettled for one in await streams(caller, queue)] == [3]
        second = await source.take(9)
        assert payloads(second) == [7, 8, 9, 10, 11], "the batch of the wish is the most, whatever there is room for"
        # Room that settlements make is no wish for more.
        await source.settler.settle_many([SettleDecision(message) for message in first + second])

        async def is_settled() -> bool:
            return [one.unsettled for one in await streams(caller, queue)] == [0]

        await until(is_settled)
        assert payloads(await PollSource(caller, once(queue, 9, group="g")).take(9)) == [12, 13]


async def test_settlements_go_over_the_socket_and_by_requests_while_there_is_none(url: str, queue: str) -> None:
    transport = Recorder(HttpTransport(url))
    caller = Caller(transport)
    await push(caller, queue, *range(5))
    params = PopParams(queue=queue, batch=4, group="g", group_mode="shared")
    [polled] = await PollSource(caller, once(queue, group="g", group_mode="shared")).take(1)
    async with source_of(caller, params) as source:
        assert not source.connected
        assert await source.settler.settle(SettleDecision(polled)) == Settled(True)
        assert transport.count(ACK) == 1
        messages = await source.take(4)
        decisions = [
            SettleDecision(messages[0]),
            SettleDecision(messages[1], "dlq", "broken"),
            SettleDecision(messages[2], "retry", None, 3_600_000),
            SettleDecision(messages[3]),
        ]
        settled = await source.settler.settle_many(decisions)
        assert settled == [Settled(True), Settled(True, dead_lettered=True), Settled(True), Settled(True)]
        again = await source.settler.settle(SettleDecision(messages[1]))
        assert (again.success, again.code) == (False, "dead_lettered")
    assert transport.count(ACK) == 1
    await transport.close()


async def test_automatic_acks_settle_what_is_taken_and_nothing_else(caller: Caller, queue: str) -> None:
    await push(caller, queue, *range(3))
    async with source_of(caller, PopParams(queue=queue, batch=9, auto_ack=True)) as source:
        taken = await source.take(2)
        assert (payloads(taken), [message.lease_id for message in taken]) == ([0, 1], ["", ""])
        assert [one.unsettled for one in await streams(caller, queue)] == [0]
    assert payloads(await PollSource(caller, once(queue, 9)).take(9)) == [2]


async def test_closing_gives_back_what_no_one_took_uncounted(caller: Caller, queue: str) -> None:
    await push(caller, queue, *range(3))
    source = SocketSource(caller, PopParams(queue=queue, batch=3, group="g", group_mode="shared"), linger=3600)
    taken = await source.take(3)
    source._receive(taken[1:])  # As if they had come when nobody asked.
    await source.close()
    messages = await PollSource(caller, once(queue, 3, group="g")).take(3)
    assert [(message.offset, message.delivery_attempt) for message in messages] == [(2, 1), (3, 1)]
    assert await source.take(1) == []


async def test_what_came_too_late_goes_back_when_no_one_comes_for_it(caller: Caller, queue: str) -> None:
    params = PopParams(queue=queue, batch=2, group="g", group_mode="shared")
    async with source_of(caller, params, linger=0.0) as source:
        await push(caller, queue, 1, 2)
        await source.take(1)
        late = PopParams(queue=queue, group="g", timeout_ms=20_000)
        [other] = await PollSource(caller, late).take(1)
        source._receive([other])
        [again] = await PollSource(caller, late).take(1)
        assert (again.id, again.delivery_attempt) == (other.id, 1)


async def test_what_waits_behind_a_failure_goes_back_too(caller: Caller, queue: str) -> None:
    await push(caller, queue, 1, 2)
    async with source_of(caller, PopParams(queue=queue, batch=2), linger=3600) as source:
        first, second = await source.take(2)
        source._receive([second])
        await source.settler.settle(SettleDecision(first, "failed"))
        assert not source._came
        again = await source.take(2)
        assert [(one.id, one.delivery_attempt) for one in again] == [(first.id, 2), (second.id, 1)]


async def test_takes_at_the_same_time_have_their_turns(caller: Caller, queue: str) -> None:
    async with source_of(caller, PopParams(queue=queue)) as source:
        waiting = [asyncio.create_task(source.take(1)) for _ in range(3)]
        await until_room(caller, queue)
        await spread(caller, queue, 1, 2, 3)
        assert {str(payloads(taken)) for taken in await asyncio.gather(*waiting)} == {"[1]", "[2]", "[3]"}
        assert [one.unsettled for one in await streams(caller, queue)] == [3]


async def test_closing_ends_a_take_that_waits(caller: Caller, queue: str) -> None:
    source = SocketSource(caller, PopParams(queue=queue, timeout_ms=600_000))
    waiting = asyncio.create_task(source.take(1))
    await until_room(caller, queue)
    async with asyncio.timeout(WAIT_SECONDS):
        await source.close()
        assert await waiting == []
        await source.close()


def test_frames_of_kinds_that_are_not_known_are_passed_over_and_errors_of_the_store_pass() -> None:
    assert decode_frame('{"type": "weather", "rain": true}') is None
    for text in ('{"type": "drained"}', '{"rain": true}', "<html>", "[]"):
        with pytest.raises(HarkError, match="does not come from a Hark server"):
            decode_frame(text)
    assert isinstance(error_in(Error(error="away", code="engine_failure")), Unavailable)
    assert not error_in(Error(error="wrong", code="invalid_input")).retryable


# WebSockets whose servers come and go --------------------------------------------------------------------------


async def test_without_a_server_the_time_is_up_with_the_reason() -> None:
    times = iter([0.0, 0.0, 0.3, 1.1])
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    caller = Caller(HttpTransport("http://127.0.0.1:1"))
    source = SocketSource(caller, PopParams(queue="q", timeout_ms=1000), monotonic=lambda: next(times), sleep=sleep)
    with pytest.raises(ConnectionFailed, match="cannot connect to"):
        await source.take(1)
    assert len(pauses) == 2
    assert pauses[0] < pauses[1]
    await source.close()


async def test_a_route_that_is_no_websocket_is_no_reason_to_wait(url: str) -> None:
    async with source_of(Caller(HttpTransport(f"{url}/elsewhere")), PopParams(queue="q")) as source:
        with pytest.raises(HarkError, match="404"):
            await source.take(1)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM], ids=["killed", "stopped"])
async def test_a_consumer_outlives_its_server(tmp_path: Path, queue: str, how: signal.Signals) -> None:
    server = Server("--data", str(tmp_path / "data"))
    transport = HttpTransport(server.url)
    caller = Caller(transport)
    async with running(server), source_of(caller, PopParams(queue=queue, batch=2, timeout_ms=60_000)) as source:
        await spread(caller, queue, "before")
        [before] = await source.take(1)
        assert await source.settler.settle(SettleDecision(before)) == Settled(True)
        waiting = asyncio.create_task(source.take(1))
        await until_room(caller, queue)
        await server.end(how)

        async def is_over() -> bool:
            await asyncio.sleep(0)
            return not source.connected

        await until(is_over)
        await server.start()
        await spread(caller, queue, "after")
        [after] = await waiting
        assert payloads([after]) == ["after"]
        assert await source.settler.settle(SettleDecision(after)) == Settled(True)
    await transport.close()


async def test_what_is_leased_outlives_the_connection(caller: Caller, queue: str) -> None:
    await spread(caller, queue, "held", "next")
    async with source_of(caller, PopParams(queue=queue)) as source:
        [taken] = await source.take(1)
        assert source._connection is not None
        await source._connection.close()
        assert not source.connected
        [other] = await source.take(1)
        assert source.connected
        assert {*payloads([taken]), *payloads([other])} == {"held", "next"}
        assert await PollSource(caller, once(queue)).take(1) == []
        assert await source.settler.settle_many([SettleDecision(taken), SettleDecision(other)]) == [Settled(True)] * 2


async def test_the_one_that_renews_leases_notices_a_connection_that_broke_and_of_no_other(
    caller: Caller, queue: str
) -> None:
    await spread(caller, queue, "held")
    broken: list[str] = []
    source = SocketSource(caller, PopParams(queue=queue), disconnected=lambda: broken.append("broken"))
    [taken] = await source.take(1)
    assert source._connection is not None
    await source._connection.close()
    assert broken == ["broken"]
    await source.settler.settle(SettleDecision(taken))
    await spread(caller, queue, "next")
    await source.take(1)
    await source.close()
    assert broken == ["broken"]


async def test_a_consumer_of_two_servers_goes_to_the_other_one(tmp_path: Path, url: str, queue: str) -> None:
    first = Server("--data", str(tmp_path / "data"))
    transport = FailoverTransport([first.url, url])
    caller, there = Caller(transport, sleep=no_sleep), HttpTransport(url)
    async with running(first), source_of(caller, PopParams(queue=queue, timeout_ms=60_000)) as source:
        await configure(caller, queue)
        waiting = asyncio.create_task(source.take(1))
        await until_room(caller, queue)
        await first.end(signal.SIGKILL)
        await push(Caller(there), queue, "elsewhere")
        assert payloads(await waiting) == ["elsewhere"]
    await there.close()
    await transport.close()
