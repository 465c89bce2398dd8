"""Streams: credit, what they hold and when that ends, pauses, drains, and connections that break."""

from __future__ import annotations

import asyncio

import pytest

from hark.broker.delivery.stream import Arrival, Stream
from hark.errors import Conflict, EngineFailure, Overloaded
from hark.model import (
    DeadLetterFilter,
    Hint,
    NewMessage,
    PopRequest,
    QueueOptions,
    QueueSpec,
    Renewal,
    Seek,
    Settlement,
    Transaction,
)
from hark.settings import Limits, Settings

from .bench import EMPTY, Bench, result
from .harness import (
    ANY,
    GROUP,
    QUEUE,
    Server,
    SharedEngine,
    named,
    outbox,
    serving,
    settlement,
    turns,
    written,
)

BATCH = PopRequest(queue=QUEUE, group=GROUP, batch=3)


async def holding(server: Server, credit: int = 3, messages: int = 3, **options: int) -> tuple[Stream, Arrival]:
    """A stream that holds a batch of one partition."""
    await server.broker.configure(QueueSpec(name=QUEUE, options=QueueOptions(**options)))  # type: ignore[arg-type]  # of ints
    await server.broker.push([NewMessage(QUEUE, "p", str(number).encode()) for number in range(messages)])
    stream = await server.stream(credit, BATCH)
    arrival = await written(stream)
    assert stream.unsettled == min(credit, messages)
    return stream, arrival


# What it holds ----------------------------------------------------------------------------------------------


async def test_each_ack_makes_room_for_one() -> None:
    async with serving() as server:
        stream, arrival = await holding(server)
        for left, message in zip((2, 1, 0), arrival.result.messages, strict=True):
            await server.broker.settle([settlement(arrival.result, message)])
            assert stream.unsettled == left
        assert not server.delivery.streams._by_lease


async def test_a_nack_gives_up_the_rest_of_the_batch_of_its_partition_which_comes_again() -> None:
    async with serving() as server:
        stream, arrival = await holding(server)
        await server.broker.settle([settlement(arrival.result, arrival.result.messages[1], "failed")])
        await server.quiet()
        again = await written(stream)
        assert [bytes(message.payload) for message in again.result.messages] == [b"0", b"1", b"2"]
        assert stream.unsettled == 3


async def test_a_failure_without_attempts_left_gives_up_that_message_only() -> None:
    async with serving() as server:
        stream, arrival = await holding(server, retry_limit=0)
        await server.broker.settle([settlement(arrival.result, arrival.result.messages[0], "failed")])
        assert stream.unsettled == 2


async def test_a_message_that_is_discarded_gives_up_that_message_only() -> None:
    """I6: the others are still held, so there is room for one and not for three."""
    async with serving() as server:
        stream, arrival = await holding(server, retry_limit=0, dead_letter_queue=False)
        await server.push("q", "r", "s")
        await server.broker.settle([settlement(arrival.result, arrival.result.messages[0], "failed")])
        await server.quiet()
        assert stream.unsettled == 3
        assert sum(len(one.result.messages) for one in outbox(stream)) == 1


async def test_a_dead_letter_gives_up_that_message_only() -> None:
    async with serving() as server:
        stream, arrival = await holding(server)
        await server.broker.settle([settlement(arrival.result, arrival.result.messages[0], "dlq")])
        assert stream.unsettled == 2
        assert (await server.engine.dead_letters(DeadLetterFilter())).total == 1


@pytest.mark.parametrize("with_lease_id", [True, False])
async def test_a_transaction_makes_room(with_lease_id: bool) -> None:
    async with serving() as server:
        stream, arrival = await holding(server)
        items: list[NewMessage | Settlement] = [settlement(arrival.result, one) for one in arrival.result.messages]
        if not with_lease_id:  # As old clients do it.
            for item in items:
                assert isinstance(item, Settlement)
                item.lease_id = None
        outcome = await server.broker.transact(Transaction(items, (arrival.result.lease_id,)))
        assert outcome.success
        await server.quiet()
        assert stream.unsettled == 0


async def test_a_transaction_of_an_old_client_makes_room_for_each_message() -> None:
    async with serving() as server:
        stream, arrival = await holding(server)
        item = settlement(arrival.result, arrival.result.messages[0])
        item.lease_id = None
        assert (await server.broker.transact(Transaction([item], (arrival.result.lease_id,)))).success
        await server.quiet()
        assert stream.unsettled == 2


async def test_the_end_of_a_lease_makes_room() -> None:
    async with serving() as server:
        stream, _ = await holding(server, lease_time=2)
        await server.advance(1.999)
        assert stream.unsettled == 3
        await server.advance(0.001)
        assert stream.unsettled == 1  # It came again, one at a time now.
        assert len(outbox(stream)) == 1


async def test_a_renewed_lease_is_held_on() -> None:
    async with serving() as server:
        stream, arrival = await holding(server, lease_time=2)
        await server.advance(1)
        assert (await server.broker.renew(Renewal(arrival.result.lease_id, 10))).success
        await server.advance(9.999)
        assert stream.unsettled == 3
        await server.advance(0.001)
        assert outbox(stream)


async def test_a_lease_that_a_seek_ends_makes_room() -> None:
    async with serving() as server:
        stream, _ = await holding(server)
        await server.engine.seek([Seek(queue=QUEUE, group=GROUP, to_end=True)])
        await server.quiet()
        assert stream.unsettled == 0


async def test_a_lease_that_ends_while_what_it_holds_is_on_its_way_is_not_counted() -> None:
    bench = Bench()
    stream = await bench.stream(1)
    bench.push("p")
    await turns()
    bench.delivery.hint([Hint(QUEUE, GROUP, ("p",), "free", (), ("lease",))])  # A seek.
    bench.pops.answer(result("lease", "p"))
    await turns()
    assert stream.unsettled == 0
    assert bench.pops.open == 1  # It looks for what the seek made ready.


async def test_what_another_server_settled_without_a_word_makes_room_when_the_stream_is_full() -> None:
    async with serving(engine=SharedEngine) as server:
        stream, arrival = await holding(server)
        server.engine.is_silent = True
        await server.engine.settle([[settlement(arrival.result, one) for one in arrival.result.messages]])
        await server.quiet()
        assert stream.unsettled == 3
        await server.advance(0.2)
        assert stream.unsettled == 0


async def test_a_lease_that_was_renewed_on_another_server_is_asked_about_at_its_end() -> None:
    async with serving() as server:
        stream, arrival = await holding(server, credit=10, lease_time=2)
        await server.engine.renew([Renewal(arrival.result.lease_id, 10)])  # Past the broker.
        await server.advance(9.9)
        assert stream.unsettled == 3
        await server.advance(1)
        assert stream.leases() != [arrival.result.lease_id]


async def test_leases_that_can_not_be_asked_about_are_asked_about_again_but_not_at_once() -> None:
    async with serving() as server:
        stream, arrival = await holding(server, credit=10, lease_time=2)
        await server.engine.renew([Renewal(arrival.result.lease_id, 3)])
        server.engine.failure = EngineFailure("the store is away")
        await server.advance(2.5)
        assert server.engine.questions == 1
        server.engine.failure = None
        assert stream.unsettled == 3
        await server.advance(5)
        assert stream.leases() != [arrival.result.lease_id]


async def test_a_late_hint_of_a_lease_that_is_settled_already_changes_nothing() -> None:
    async with serving() as server:
        stream, arrival = await holding(server)
        await server.settle(arrival.result)
        server.delivery.hint([Hint(QUEUE, GROUP, (), "free", (), (arrival.result.lease_id,))])
        assert stream.unsettled == 0


# Credit -----------------------------------------------------------------------------------------------------


async def test_credit_is_shared_by_all_subscriptions_of_a_connection() -> None:
    async with serving() as server:
        stream = server.delivery.open_stream(3)
        for name in ("a", "b"):
            stream.subscribe(name, PopRequest(queue=name, group=GROUP, batch=2))
            await server.broker.push([NewMessage(name, "p") for _ in range(5)])
        held = 0
        for _ in range(6):
            await server.quiet()
            held += sum([len((await written(stream)).result.messages) for _ in outbox(stream)])
        assert held == stream.unsettled == 3


async def test_credit_says_how_much_in_all_so_saying_it_twice_grants_nothing_more() -> None:
    async with serving() as server:
        stream = await server.stream(0)
        await server.push("p", "q", "r")
        stream.grant(1)
        stream.grant(1)
        await server.quiet()
        assert stream.unsettled == 1


async def test_a_client_that_does_not_read_holds_one_batch() -> None:
    async with serving() as server:
        stream = await server.stream(1000)
        await server.push(*map(str, range(50)))
        await server.quiet()
        assert stream.unsettled == 1
        other = await server.broker.pop(ANY)
        assert len(other.messages) == 1


async def test_drain_hands_over_what_is_on_its_way_and_no_more() -> None:
    bench = Bench()
    stream = await bench.stream(5)
    bench.push("p")
    await turns()
    stream.drain()
    assert not stream.drained
    bench.pops.answer(result("lease", "p"))
    arrival = await stream.next()
    assert arrival is not None
    assert not stream.drained
    stream.written()
    assert await stream.next() is None
    assert stream.drained
    bench.push("q")
    await turns()
    assert bench.pops.open == 0
    stream.resume()
    await turns()
    assert bench.pops.open == 1


# Connections ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", range(8))
async def test_a_connection_that_breaks_at_any_moment_leaves_nothing_behind(step: int) -> None:
    async with serving() as server:
        stream = await server.stream(5)
        other = await server.parked()
        push = asyncio.create_task(server.push("p"))
        await turns(step)
        stream.close()
        await push
        await server.quiet()
        assert [message.attempt for message in (await other).messages] == [1]
        server.is_clean()


@pytest.mark.parametrize("lost_first", [True, False])
async def test_what_could_not_be_written_is_free_again_and_uncounted(lost_first: bool) -> None:
    async with serving() as server:
        await server.push("p")
        stream = await server.stream(5)
        arrival = await stream.next()
        assert arrival is not None
        if lost_first:
            stream.lost(arrival)
            stream.close()
        else:
            stream.close()
            stream.lost(arrival)
        assert not server.delivery.streams._by_lease
        await server.quiet()
        server.is_clean()
        assert [message.attempt for message in (await server.broker.pop(ANY)).messages] == [1]


async def test_a_name_that_is_used_again_does_not_get_what_was_meant_for_the_one_before() -> None:
    bench = Bench()
    stream = await bench.stream(5)
    bench.push("p")
    await turns()
    stream.unsubscribe("s")
    stream.subscribe("s", PopRequest(queue="another", group=GROUP))
    bench.pops.answer(result("lease", "p"))
    await turns()
    assert bench.pops.given_back == ["lease"]
    assert not outbox(stream)
    assert stream.unsettled == 0


async def test_a_refused_subscription_ends_alone() -> None:
    bench = Bench()
    stream = bench.delivery.open_stream(5)
    stream.subscribe("bad", ANY)
    await turns()
    bench.pops.answer(Conflict("no", code="group_mode_conflict"))
    await turns()
    arrival = await stream.next()
    assert arrival is not None
    assert isinstance(arrival.error, Conflict)
    stream.written()
    assert not stream.consumers
    stream.subscribe("good", named("p"))
    await turns()
    bench.pops.answer(EMPTY)
    await turns()
    bench.push("p")
    await turns()
    assert bench.pops.open == 1


async def test_a_second_subscription_of_the_same_name_and_too_many_streams_are_refused() -> None:
    async with serving(Settings(limits=Limits(max_streams=1))) as server:
        stream = await server.stream(1)
        with pytest.raises(Conflict):
            stream.subscribe("s", ANY)
        with pytest.raises(Overloaded):
            server.delivery.open_stream(1)
        assert server.numbers()["subscriptions"] == 1


async def test_an_idle_stream_that_settled_all_sets_no_more_timers() -> None:
    async with serving() as server:
        stream, arrival = await holding(server, credit=10, lease_time=2)
        await server.settle(arrival.result)
        await server.advance(5)
        before = server.timers.set, server.engine.pops[:]
        await server.advance(3600)
        assert (server.timers.set, server.engine.pops) == before
        assert stream.unsettled == 0
