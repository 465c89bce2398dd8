"""Streams of shared groups: several on one partition, each with its own credit, and what makes room in it."""

from __future__ import annotations

from typing import Literal

import msgspec
import pytest

from hark.broker.delivery.stream import Arrival, Stream
from hark.model import NewMessage, PopRequest, QueueOptions, QueueSpec, Seek, Settlement, Transaction

from .harness import GROUP, QUEUE, Server, outbox, serving, settlement, turns, written

THREE = PopRequest(queue=QUEUE, group=GROUP, group_mode="shared", batch=3)
Way = Literal[
    "lease", "no lease", "id alone", "transaction", "transaction without lease", "transaction of an old client"
]
WAYS: list[Way] = [
    "lease",
    "no lease",
    "id alone",
    "transaction",
    "transaction without lease",
    "transaction of an old client",
]


async def push(server: Server, number: int) -> None:
    """Messages into one partition, with transaction ids of their own."""
    items = [NewMessage(QUEUE, "p", str(one).encode(), transaction_id=f"t{one}") for one in range(number)]
    await server.broker.push(items)
    await server.quiet()


async def holding(server: Server, credit: int = 3, **options: int) -> tuple[Stream, Arrival]:
    """A stream that holds three messages of one partition."""
    await server.broker.configure(QueueSpec(name=QUEUE, options=QueueOptions(**options)))  # type: ignore[arg-type]  # of ints
    await push(server, 3)
    stream = await server.stream(credit, THREE)
    arrival = await written(stream)
    assert stream.unsettled == 3
    return stream, arrival


async def complete(server: Server, arrival: Arrival, index: int, way: Way) -> None:
    """Settle one message."""
    message = arrival.result.messages[index]
    item = settlement(arrival.result, message)
    if way == "id alone":
        item = Settlement(message.id, group=GROUP)
    elif way not in ("lease", "transaction"):
        item = msgspec.structs.replace(item, lease_id=None)
    if way.startswith("transaction"):
        leases = [arrival.result.lease_id] if way == "transaction of an old client" else []
        assert (await server.broker.transact(Transaction([item], leases))).success
    else:
        assert (await server.broker.settle([item]))[0].success


async def test_several_streams_work_on_one_partition_at_once() -> None:
    async with serving() as server:
        streams = [await server.stream(3, THREE) for _ in range(3)]
        await push(server, 9)
        assert [stream.unsettled for stream in streams] == [3, 3, 3]
        seen = {one.offset for stream in streams for one in outbox(stream)[0].result.messages}
        assert seen == set(range(1, 10))


@pytest.mark.parametrize("way", WAYS)
async def test_each_settlement_makes_room_for_one_however_it_names_its_message(way: Way) -> None:
    async with serving() as server:
        stream, arrival = await holding(server)
        for left, index in ((2, 1), (1, 2), (0, 0)):
            await complete(server, arrival, index, way)
            assert stream.unsettled == left
        assert not server.delivery.streams._by_lease


async def test_a_nack_makes_room_for_that_message_only_and_others_may_get_it() -> None:
    async with serving() as server:
        stream, arrival = await holding(server)
        other = await server.stream(1, THREE)
        await server.broker.settle([settlement(arrival.result, arrival.result.messages[1], "failed", delay_ms=0)])
        assert stream.unsettled == 2
        await server.quiet()
        again = [one for each in (stream, other) for one in outbox(each)]
        assert [message.offset for one in again for message in one.result.messages] == [2]
        assert again[0].result.messages[0].attempt == 2


async def test_what_makes_room_is_filled_with_what_came_meanwhile() -> None:
    async with serving() as server:
        stream, arrival = await holding(server)
        await server.push("p", "p")
        await server.quiet()
        assert stream.unsettled == 3
        await complete(server, arrival, 0, "no lease")
        await server.quiet()
        assert stream.unsettled == 3
        assert [message.offset for message in (await written(stream)).result.messages] == [4]


async def test_the_end_of_a_lease_makes_room_and_costs_each_message_an_attempt() -> None:
    async with serving() as server:
        stream, arrival = await holding(server, lease_time=2)
        await complete(server, arrival, 0, "lease")
        await server.advance(2)
        again = list((await written(stream)).result.messages)
        await server.quiet()
        again += [message for one in outbox(stream) for message in one.result.messages]
        assert [(message.offset, message.attempt) for message in again] == [(2, 2), (3, 2)]
        assert stream.unsettled == 2


async def test_a_seek_makes_room() -> None:
    async with serving() as server:
        stream, _ = await holding(server)
        await server.engine.seek([Seek(queue=QUEUE, group=GROUP, to_end=True)])
        await server.quiet()
        assert stream.unsettled == 0


async def test_only_what_was_not_written_is_released_when_a_connection_breaks() -> None:
    async with serving() as server:
        stream, arrival = await holding(server, credit=5, lease_time=2)
        await server.push("p", "p")
        await server.quiet()
        assert stream.unsettled == 5
        other = await server.stream(5, THREE)
        stream.close()
        await server.quiet()
        released = await written(other)
        assert [(one.offset, one.attempt) for one in released.result.messages] == [(4, 1), (5, 1)]
        await server.settle(released.result)
        await server.advance(2)
        ran_out = await written(other)
        assert [(one.offset, one.attempt) for one in ran_out.result.messages] == [(1, 2), (2, 2), (3, 2)]
        assert arrival.result.lease_id != ran_out.result.lease_id


async def test_a_late_hint_of_a_lease_that_is_settled_already_changes_nothing() -> None:
    async with serving() as server:
        stream, arrival = await holding(server)
        for index in range(3):
            await complete(server, arrival, index, "lease")
        server.delivery.streams.ended([arrival.result.lease_id])
        await turns()
        assert stream.unsettled == 0
