"""Streams: credit, what they hold and when that ends, pauses, drains, and connections that break."""

from __future__ import annotations

import asyncio
from typing import Any, Literal, get_args

import msgspec
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
    Status,
    Transaction,
)
from hark.settings import Limits, Settings

from .bench import EMPTY, Bench, result
from .harness import ANY, GROUP, QUEUE, Server, SharedEngine, named, outbox, serving, settlement, turns, written

BATCH = PopRequest(queue=QUEUE, group=GROUP, batch=3)
SHARED = PopRequest(queue=QUEUE, group=GROUP, group_mode="shared", batch=3)
both_modes = pytest.mark.parametrize("request_", [BATCH, SHARED], ids=["ordered", "shared"])
Way = Literal[
    "lease", "no lease", "id alone", "transaction", "transaction without lease", "transaction of an old client"
]
WAYS: tuple[Way, ...] = get_args(Way)


async def push(server: Server, number: int) -> None:
    """Messages into one partition, with transaction ids of their own."""
    items = [NewMessage(QUEUE, "p", str(one).encode(), transaction_id=f"t{one}") for one in range(number)]
    await server.broker.push(items)
    await server.quiet()


async def leased_stream(
    server: Server, credit: int = 3, request: PopRequest = BATCH, **options: int
) -> tuple[Stream, Arrival]:
    """A stream that holds three messages of one partition."""
    await server.broker.configure(QueueSpec(name=QUEUE, options=QueueOptions(**options)))  # type: ignore[arg-type]  # of ints
    await push(server, 3)
    stream = await server.stream(credit, request)
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


# What it holds ----------------------------------------------------------------------------------------------


@both_modes
@pytest.mark.parametrize("way", WAYS)
async def test_each_ack_makes_room_for_one_however_it_names_its_message(
    server: Server, way: Way, request_: PopRequest
) -> None:
    stream, arrival = await leased_stream(server, request=request_)
    for left, index in ((2, 1), (1, 2), (0, 0)) if request_ is SHARED else ((2, 0), (1, 1), (0, 2)):
        await complete(server, arrival, index, way)
        assert stream.unsettled == left
    assert not server.delivery.streams.by_lease


async def test_a_nack_gives_up_the_rest_of_the_batch_of_its_partition_which_comes_again(server: Server) -> None:
    stream, arrival = await leased_stream(server)
    await server.broker.settle([settlement(arrival.result, arrival.result.messages[1], "failed")])
    await server.quiet()
    again = await written(stream)
    assert [bytes(message.payload) for message in again.result.messages] == [b"0", b"1", b"2"]
    assert stream.unsettled == 3


async def test_a_discarded_message_of_a_shared_group_gives_up_that_message_only(server: Server) -> None:
    """I6: the others are still held, so there is room for one and not for three."""
    stream, arrival = await leased_stream(server, request=SHARED, retry_limit=0, dead_letter_queue=False)
    await server.push("q", "r", "s")
    await server.broker.settle([settlement(arrival.result, arrival.result.messages[0], "failed")])
    await server.quiet()
    assert stream.unsettled == 3
    assert sum(len(one.result.messages) for one in outbox(stream)) == 1


@both_modes
@pytest.mark.parametrize(
    ("status", "options"),
    [("dlq", {}), ("failed", {"retry_limit": 0}), ("failed", {"retry_limit": 0, "dead_letter_queue": False})],
)
async def test_after_a_dead_letter_the_rest_of_an_ordered_batch_comes_again_and_that_of_a_shared_one_stays(
    server: Server, status: Status, options: dict[str, Any], request_: PopRequest
) -> None:
    stream, arrival = await leased_stream(server, request=request_, **options)
    await server.broker.settle([settlement(arrival.result, arrival.result.messages[0], status)])
    await server.quiet()
    again = [bytes(message.payload) for one in outbox(stream) for message in one.result.messages]
    assert again == ([] if request_ is SHARED else [b"1", b"2"])
    assert stream.unsettled == 2
    assert (await server.engine.dead_letters(DeadLetterFilter())).total == (0 if "dead_letter_queue" in options else 1)


@both_modes
@pytest.mark.parametrize("how", ["transaction", "seek", "settlements told late"])
async def test_a_transaction_and_a_seek_make_room_for_all_and_a_late_hint_of_settlements_for_no_more(
    server: Server, how: str, request_: PopRequest
) -> None:
    stream, arrival = await leased_stream(server, request=request_)
    if how == "seek":
        await server.engine.seek([Seek(queue=QUEUE, group=GROUP, to_end=True)])
    elif how == "transaction":
        items = [settlement(arrival.result, one) for one in arrival.result.messages]
        assert (await server.broker.transact(Transaction(items, (arrival.result.lease_id,)))).success
    else:
        await server.settle(arrival.result)
        server.delivery.hint([Hint(QUEUE, GROUP, (), "free", (), (arrival.result.lease_id,))])
    await server.quiet()
    assert stream.unsettled == 0


@pytest.mark.parametrize("renewed", [False, True])
async def test_the_end_of_a_lease_makes_room_and_a_renewed_one_is_leased_on(server: Server, renewed: bool) -> None:
    stream, arrival = await leased_stream(server, lease_time=2)
    stream.spoke()
    if renewed:
        await server.advance(1)
        assert (await server.broker.renew(Renewal(arrival.result.lease_id, 10))).success
    await server.advance(9.999 if renewed else 1.999)
    assert stream.unsettled == 3
    await server.advance(0.001)
    assert stream.unsettled == 0
    stream.spoke()
    await server.quiet()
    assert stream.unsettled == 1  # It came again, one at a time now.
    assert len(outbox(stream)) == 1


Sign = Literal[
    "frame", "ack", "ack without a lease", "ack by the id alone", "renewal", "transaction", "ack of another lease"
]


@both_modes
@pytest.mark.parametrize("sign", get_args(Sign))
async def test_rule_16_a_stream_whose_lease_expired_gets_nothing_until_its_client_gives_a_sign(
    server: Server, request_: PopRequest, sign: Sign
) -> None:
    """A client that is frozen would turn messages that it never reads into dead letters."""
    stream, arrival = await leased_stream(server, credit=4, request=request_, lease_time=2, retry_limit=2)
    kept = await server.stream(1, named("q"))
    await server.push("q")
    other = await server.stream(0, ANY) if sign == "ack of another lease" else None
    for _ in range(5):
        await server.advance(15)
        assert (stream.unsettled, outbox(stream)) == (0, [])
    assert (await server.engine.dead_letters(DeadLetterFilter())).total == 0
    item = settlement(arrival.result, arrival.result.messages[0])
    if sign == "frame":
        stream.spoke()
    elif sign == "renewal":
        assert not (await server.broker.renew(Renewal(arrival.result.lease_id))).success
    elif sign == "transaction":
        assert not (await server.broker.transact(Transaction([item]))).success
    elif sign == "ack without a lease":
        assert not (await server.broker.settle([msgspec.structs.replace(item, lease_id=None)]))[0].success
    elif sign == "ack by the id alone":
        [outcome] = await server.broker.settle([Settlement(arrival.result.messages[0].id, group=GROUP)])
        assert not outcome.success
    elif sign == "ack":
        assert not (await server.broker.settle([item]))[0].success
    else:
        assert other is not None
        other.grant(1)
        await server.quiet()
        await server.settle((await written(other)).result)
        await server.quiet()
        assert (stream.unsettled, outbox(stream)) == (0, []), "that was another consumer"
        return
    await server.quiet()
    assert stream.unsettled > 0
    assert kept.unsettled in (0, 1)
    stream.close()
    kept.close()
    await server.quiet()
    assert not server.delivery.streams._expired and not server.delivery.streams._expired_of


async def test_an_event_stream_that_stays_silent_is_ended_because_its_client_may_speak_to_another_server(
    server: Server,
) -> None:
    await server.broker.configure(QueueSpec(name=QUEUE, options=QueueOptions(lease_time=2)))
    stream = server.delivery.streams.open(1, mute=True)
    stream.subscribe("s", ANY)
    await server.push("p")
    await server.quiet()
    await written(stream)
    await server.advance(31.9)
    assert not stream.closed
    await server.advance(0.2)
    assert stream.closed
    assert await stream.next() is None
    server.is_clean()


async def test_a_lease_that_ends_while_what_it_holds_is_on_its_way_is_not_counted(bench: Bench) -> None:
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
        stream, arrival = await leased_stream(server)
        server.engine.is_silent = True
        await server.engine.settle([[settlement(arrival.result, one) for one in arrival.result.messages]])
        await server.quiet()
        assert stream.unsettled == 3
        await server.advance(0.2)
        assert stream.unsettled == 0


@pytest.mark.parametrize("away", [False, True])
async def test_a_lease_that_was_renewed_on_another_server_is_checked_at_its_end_and_again_if_the_store_was_away(
    server: Server, away: bool
) -> None:
    stream, arrival = await leased_stream(server, credit=10, lease_time=2)
    await server.engine.renew([Renewal(arrival.result.lease_id, 10)])  # Past the broker.
    server.engine.failure = EngineFailure("the store is away") if away else None
    await server.advance(2.5)
    assert server.engine.questions == 1, "again, but not at once"
    server.engine.failure = None
    await server.advance(7.4)
    assert stream.unsettled == 3
    await server.advance(1)
    assert stream.leases() == []


# Credit -----------------------------------------------------------------------------------------------------


async def test_credit_is_shared_by_all_subscriptions_of_a_connection(server: Server) -> None:
    stream = server.delivery.streams.open(3)
    for name in ("a", "b"):
        stream.subscribe(name, PopRequest(queue=name, group=GROUP, batch=2))
        await server.broker.push([NewMessage(name, "p") for _ in range(5)])
    leased = 0
    for _ in range(6):
        await server.quiet()
        leased += sum([len((await written(stream)).result.messages) for _ in outbox(stream)])
    assert leased == stream.unsettled == 3


async def test_credit_says_how_much_in_all_so_saying_it_twice_grants_nothing_more(server: Server) -> None:
    stream = await server.stream(0)
    await server.push("p", "q", "r")
    stream.grant(1)
    stream.grant(1)
    await server.quiet()
    assert stream.unsettled == 1


async def test_a_client_that_does_not_read_holds_one_batch(server: Server) -> None:
    stream = await server.stream(1000)
    await server.push(*map(str, range(50)))
    await server.quiet()
    assert stream.unsettled == 1
    other = await server.broker.pop(ANY)
    assert len(other.messages) == 1


async def test_drain_hands_over_what_is_on_its_way_and_no_more(bench: Bench) -> None:
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
async def test_a_connection_that_breaks_at_any_moment_leaves_nothing_behind(server: Server, step: int) -> None:
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
async def test_what_could_not_be_written_is_free_again_and_uncounted(server: Server, lost_first: bool) -> None:
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
    assert not server.delivery.streams.by_lease
    await server.quiet()
    server.is_clean()
    assert [message.attempt for message in (await server.broker.pop(ANY)).messages] == [1]


async def test_a_name_that_is_used_again_does_not_get_what_was_meant_for_the_one_before(bench: Bench) -> None:
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


async def test_a_refused_subscription_ends_alone(bench: Bench) -> None:
    stream = bench.delivery.streams.open(5)
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


async def test_a_second_subscription_of_the_same_name_too_many_streams_and_too_many_browsers_are_refused() -> None:
    async with serving(Settings(limits=Limits(max_streams=1))) as server:
        stream = await server.stream(1)
        with pytest.raises(Conflict):
            stream.subscribe("s", ANY)
        with pytest.raises(Overloaded):
            server.delivery.streams.open(1)
        assert server.numbers()["subscriptions"] == 1
        await server.delivery.browsers.open(QUEUE, None, "tail")
        with pytest.raises(Overloaded):
            await server.delivery.browsers.open("another", None, "tail")
        assert len(server.delivery.browsers) == 1


async def test_an_idle_stream_that_settled_all_sets_no_more_timers(server: Server) -> None:
    stream, arrival = await leased_stream(server, credit=10, lease_time=2)
    await server.settle(arrival.result)
    await server.advance(5)
    before = server.timers.set, server.engine.pops[:]
    await server.advance(3600)
    assert (server.timers.set, server.engine.pops) == before
    assert stream.unsettled == 0


# Shared groups -----------------------------------------------------------------------------------------------


async def test_several_streams_work_on_one_partition_at_once(server: Server) -> None:
    streams = [await server.stream(3, SHARED) for _ in range(3)]
    await push(server, 9)
    assert [stream.unsettled for stream in streams] == [3, 3, 3]
    seen = {one.offset for stream in streams for one in outbox(stream)[0].result.messages}
    assert seen == set(range(1, 10))


async def test_a_nack_makes_room_for_that_message_only_and_others_may_get_it(server: Server) -> None:
    stream, arrival = await leased_stream(server, request=SHARED)
    other = await server.stream(1, SHARED)
    await server.broker.settle([settlement(arrival.result, arrival.result.messages[1], "failed", delay_ms=0)])
    assert stream.unsettled == 2
    await server.quiet()
    again = [one for each in (stream, other) for one in outbox(each)]
    assert [message.offset for one in again for message in one.result.messages] == [2]
    assert again[0].result.messages[0].attempt == 2


async def test_what_makes_room_is_filled_with_what_came_meanwhile(server: Server) -> None:
    stream, arrival = await leased_stream(server, request=SHARED)
    await server.push("p", "p")
    await server.quiet()
    assert stream.unsettled == 3
    await complete(server, arrival, 0, "no lease")
    await server.quiet()
    assert stream.unsettled == 3
    assert [message.offset for message in (await written(stream)).result.messages] == [4]


async def test_the_end_of_a_lease_makes_room_and_costs_each_message_an_attempt(server: Server) -> None:
    stream, arrival = await leased_stream(server, request=SHARED, lease_time=2)
    await complete(server, arrival, 0, "lease")
    await server.advance(2)
    stream.spoke()
    await server.quiet()
    again = list((await written(stream)).result.messages)
    await server.quiet()
    again += [message for one in outbox(stream) for message in one.result.messages]
    assert [(message.offset, message.attempt) for message in again] == [(2, 2), (3, 2)]
    assert stream.unsettled == 2


async def test_only_what_was_not_written_is_released_when_a_connection_breaks(server: Server) -> None:
    stream, arrival = await leased_stream(server, credit=5, request=SHARED, lease_time=2)
    await server.push("p", "p")
    await server.quiet()
    assert stream.unsettled == 5
    other = await server.stream(5, SHARED)
    stream.close()
    await server.quiet()
    released = await written(other)
    assert [(one.offset, one.attempt) for one in released.result.messages] == [(4, 1), (5, 1)]
    await server.settle(released.result)
    await server.advance(2)
    ran_out = await written(other)
    assert [(one.offset, one.attempt) for one in ran_out.result.messages] == [(1, 2), (2, 2), (3, 2)]
    assert arrival.result.lease_id != ran_out.result.lease_id


# Streams that end --------------------------------------------------------------------------------------------


@both_modes
async def test_rule_17_what_a_closed_stream_holds_expires_after_the_grace(server: Server, request_: PopRequest) -> None:
    stream, arrival = await leased_stream(server, request=request_)
    stream.close()
    await server.advance(29.9)
    await complete(server, arrival, 0, "lease")
    assert not (await server.broker.pop(request_)).messages
    await server.advance(0.2)
    again = (await server.broker.pop(request_)).messages
    if request_ is SHARED:
        assert [(one.offset, one.attempt) for one in again] == [(2, 2), (3, 2)]
    else:
        assert [(one.offset, one.attempt) for one in again] == [(2, 1)]


async def test_rule_17_a_renewal_after_the_end_of_a_stream_gives_the_whole_time_back(server: Server) -> None:
    stream, arrival = await leased_stream(server)
    stream.close()
    await server.advance(29)
    assert (await server.broker.renew(Renewal(arrival.result.lease_id, 5))).success
    await server.advance(270.9)
    assert not (await server.broker.pop(BATCH)).messages
    await server.advance(0.2)
    assert (await server.broker.pop(BATCH)).messages


@pytest.mark.parametrize("store_away", [False, True])
async def test_rule_17_a_stream_that_the_server_ends_starts_no_grace(server: Server, store_away: bool) -> None:
    stream, _ = await leased_stream(server)
    if store_away:
        server.engine.failure = EngineFailure("the store is away")
        stream.close()
        await server.quiet()
        server.engine.failure = None
    else:
        stream.end()
    await server.advance(299.9)
    assert not (await server.broker.pop(BATCH)).messages


async def test_rule_17_what_reaches_the_socket_after_its_stream_was_closed_expires_after_the_grace(
    server: Server,
) -> None:
    await push(server, 1)
    stream = await server.stream(1)
    assert await stream.next() is not None
    stream.close()
    stream.written()
    await server.advance(29.9)
    assert not (await server.broker.pop(ANY)).messages
    await server.advance(0.2)
    assert [one.attempt for one in (await server.broker.pop(ANY)).messages] == [2]
