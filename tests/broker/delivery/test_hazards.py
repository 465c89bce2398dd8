"""The hazards of the broker that Hark's design began from, each as it would look here."""

from __future__ import annotations

import asyncio

import pytest

from hark.clock import MILLISECOND, SECOND
from hark.errors import Conflict, EngineFailure
from hark.model import DeadLetterFilter, GroupMode, NewMessage, PopRequest, PopResult, QueueOptions, QueueSpec

from .bench import EMPTY, Bench, result
from .harness import ANY, GROUP, QUEUE, Server, named, outbox, payloads, serving, turns, written

# H1: lost wake-ups ------------------------------------------------------------------------------------------


async def test_h1_a_notified_consumer_that_loses_its_credit_leaves_the_work_to_one_of_lower_priority() -> None:
    async with serving() as server:
        high = await server.stream(1, priority=5)
        low = await server.parked()
        push = asyncio.create_task(server.push("p"))
        while not server.delivery.subscription(ANY).is_notified(next(iter(high.consumers.values()))):
            await turns(1)
        high.pause()  # In the turn in which it was told, before anybody looked.
        await push
        assert len((await low).messages) == 1
        assert not outbox(high)


@pytest.mark.parametrize("step", range(8))
async def test_h1_whenever_a_notified_consumer_leaves_the_other_gets_the_message(server: Server, step: int) -> None:
    first = await server.parked(priority=5)
    second = await server.parked()
    await server.push("p")
    await turns(step)
    first.cancel()
    await server.quiet()
    got = (await second) if second.done() else first.result()
    assert len(got.messages) == 1


@pytest.mark.parametrize(("leaves", "stays"), [(ANY, named("p")), (named("p"), ANY)], ids=["wildcard", "named"])
async def test_h1_one_is_notified_of_a_delay_that_only_another_knew_of_who_left(
    server: Server, leaves: PopRequest, stays: PopRequest
) -> None:
    leaver = await server.parked(leaves, priority=5, seconds=0.01)
    stayer = await server.parked(stays)
    await server.push("p", delay_ms=50)
    await server.advance(0.02)
    assert not (await leaver).messages
    await server.advance(0.03)
    assert len(stayer.result().messages) == 1


async def test_h1_a_named_consumer_that_came_while_a_wildcard_waited_does_not_depend_on_it(server: Server) -> None:
    await server.push("p", delay_ms=50)
    wildcard = await server.stream(1)
    one = await server.parked(named("p"))
    wildcard.pause()
    await server.advance(0.05)
    assert len(one.result().messages) == 1


async def test_h1_one_that_failed_and_left_does_not_take_the_changes_along(server: Server) -> None:
    wildcard = await server.parked(priority=5)
    one = await server.parked(named("p"))
    server.engine.failure = EngineFailure("the store is away")
    await server.push("p")
    await server.quiet()
    server.engine.failure = None
    wildcard.cancel()
    await server.advance(5)
    assert len(one.result().messages) == 1


# H2: two who may not take the message wake each other for ever -----------------------------------------------


async def test_h2_consumers_of_other_partitions_are_not_notified_and_an_idle_pump_schedules_nothing(
    server: Server,
) -> None:
    pops = [await server.parked(named(name), seconds=3600) for name in ("p1", "p2")]
    looks = len(server.engine.pops)
    await server.push("p3")
    await server.quiet()
    assert len(server.engine.pops) == looks
    assert not any(pop.done() for pop in pops)
    assert sum(server.numbers()["wakes"].values()) == 0
    before = server.engine.calls, server.timers.set
    await turns(200)
    assert (server.engine.calls, server.timers.set) == before
    assert server.timers.armed == 2  # The deadlines of those who wait.


async def test_h2_a_look_that_no_one_wants_is_not_given_to_those_who_can_not_make_it(bench: Bench) -> None:
    """A stream of one partition without credit: somebody should look there, but not a wildcard again and again."""
    stream = bench.delivery.streams.open(0)
    stream.subscribe("s", named("p1"))
    await bench.parked()
    looks = len(bench.pops.requests)
    await turns(50)
    for _ in range(5):
        while bench.pops.open:
            bench.pops.answer(EMPTY)
        await turns()
    assert len(bench.pops.requests) <= looks + 1


async def test_h2_a_low_priority_look_at_a_partition_does_not_keep_a_high_wildcard_busy(bench: Bench) -> None:
    await bench.parked(priority=5)
    low = await bench.parked(named("p1"))
    due = bench.timers.now() + 50 * MILLISECOND
    bench.delivery.subscription(ANY).note_empty("p1", due)
    bench.timers.advance(0.05)
    looks = len(bench.pops.requests)
    for _ in range(20):
        await turns()
        while bench.pops.open:
            bench.pops.answer(EMPTY)
    assert len(bench.pops.requests) <= looks + 2
    low.cancel()


async def test_h2_a_consumer_whose_pull_is_refused_is_not_requested_again_and_the_next_one_gets_the_work() -> None:
    bench = Bench()
    refused, second = await bench.parked(), await bench.parked()
    bench.push("p")
    await turns()
    bench.pops.answer(Conflict("no", code="group_mode_conflict"))
    await turns()
    bench.pops.answer(result("lease", "p"))
    with pytest.raises(Conflict):
        await refused
    assert (await second).lease_id == "lease"
    assert bench.pops.open == 0


# H3: too little credit -----------------------------------------------------------------------------------------


async def test_h3_a_stream_with_credit_for_one_gets_a_batch_of_ten_one_by_one(server: Server) -> None:
    stream = await server.stream(1, PopRequest(queue=QUEUE, group=GROUP, batch=10))
    await server.broker.push([NewMessage(QUEUE, "p", str(number).encode()) for number in range(10)])
    got = []
    for number in range(10):
        await server.quiet()
        before = len(server.engine.pops)
        await turns(50)
        assert len(server.engine.pops) == before, "it looks without credit"
        assert stream.unsettled == 1
        arrival = await written(stream)
        got += payloads(arrival.result)
        assert len(arrival.result.messages) == 1, number
        await server.settle(arrival.result)
    assert got == [str(number).encode() for number in range(10)]


# H4: a released message wakes everybody ------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["ordered", "shared"])
@pytest.mark.parametrize("nack", [False, True])
async def test_h4_a_released_message_and_a_nack_wake_exactly_one(server: Server, mode: GroupMode, nack: bool) -> None:
    request = PopRequest(queue=QUEUE, group=GROUP, group_mode=mode)
    await server.push("p")
    holder = await server.broker.pop(request)
    pops = [await server.parked(request) for _ in range(20)]
    looks = sum(server.engine.pops)
    if nack:
        await server.settle(holder, "retry")
    else:
        server.broker.give_back(holder)
    await server.quiet()
    assert [pop.done() for pop in pops] == [True] + [False] * 19
    assert sum(server.numbers()["wakes"].values()) == server.numbers()["wakes"]["settle"] == 1
    assert (sum(server.engine.pops), server.empty_wakes()) == (looks + 1, 0)
    assert nack or pops[0].result().messages[0].attempt == 1


# H5: expiry and overflow take a message that is in flight -------------------------------------------------------
# At the engine: test_rule_23_a_leased_message_does_not_expire, test_rule_23_never_a_leased_message_except_by_purge.


@pytest.mark.parametrize(
    "options",
    [
        QueueOptions(ttl=2, lease_time=60),
        QueueOptions(retention_enabled=True, retention_seconds=1, max_wait_time_seconds=1, lease_time=60),
        QueueOptions(max_size=1, lease_time=60),
    ],
    ids=["ttl", "retention", "full queue"],
)
async def test_h5_what_a_stream_holds_outlives_its_time_to_live_retention_and_a_full_queue(
    server: Server, options: QueueOptions
) -> None:
    await server.broker.configure(QueueSpec(name=QUEUE, options=options))
    await server.push("p")
    stream = await server.stream(5)
    arrival = await written(stream)
    await server.advance(10)
    await server.engine.collect()
    if options.max_size:
        assert (await server.broker.push([NewMessage(QUEUE, "p")]))[0].code == "queue_full"
    assert stream.unsettled == 1
    assert [one.success for one in await server.settle(arrival.result)] == [True]
    assert stream.unsettled == 0


# H6: delays are exact to the timer -----------------------------------------------------------------------------


async def delivered_after(server: Server, pop: asyncio.Task[PopResult], microseconds: int) -> None:
    """Assert that a waiting pop gets something at a time, and not a microsecond before."""
    others = [
        await server.parked(PopRequest(queue="another", group=GROUP)),
        await server.parked(PopRequest(queue=QUEUE, group="another", partition="elsewhere")),
    ]
    looks = len(server.engine.pops)
    await server.advance((microseconds - 1) / SECOND)
    assert not pop.done()
    assert len(server.engine.pops) == looks, "somebody looked before the time"
    await server.advance(1 / SECOND)
    assert len(pop.result().messages) == 1
    assert sum(server.engine.pops[looks:]) == 1, "others looked too"
    assert not any(other.done() for other in others)


@pytest.mark.parametrize("request_", [ANY, named("p")])
@pytest.mark.parametrize("first", ["consumer", "message"])
async def test_h6_a_delay_of_50_ms_is_over_after_50_ms(server: Server, request_: PopRequest, first: str) -> None:
    if first == "message":
        await server.push("p", delay_ms=50)
    pop = await server.parked(request_)
    if first == "consumer":
        await server.push("p", delay_ms=50)
    await delivered_after(server, pop, 50 * MILLISECOND)


@pytest.mark.parametrize("first", ["consumer", "lease"])
async def test_h6_the_end_of_a_lease_that_was_made_before_or_while_the_consumer_waited(
    server: Server, first: str
) -> None:
    await server.broker.configure(QueueSpec(name=QUEUE, options=QueueOptions(lease_time=1)))
    holder = server.pop()
    if first == "consumer":
        await server.quiet()
        pop = await server.parked()
        await server.push("p")
    else:
        await server.push("p")
        await server.quiet()
        pop = await server.parked()
    assert len((await holder).messages) == 1
    await delivered_after(server, pop, SECOND)


@pytest.mark.parametrize("retry", [True, False], ids=["retry", "delayed processing"])
async def test_h6_a_retry_that_falls_due_and_delayed_processing(server: Server, retry: bool) -> None:
    options = QueueOptions(retry_delay=50) if retry else QueueOptions(delayed_processing=2)
    await server.broker.configure(QueueSpec(name=QUEUE, options=options))
    if retry:
        await server.push("p")
        holder = await server.broker.pop(ANY)
    pop = await server.parked()
    if retry:
        await server.settle(holder, "failed")
    else:
        await server.push("p")
    await server.quiet()
    await delivered_after(server, pop, 50 * MILLISECOND if retry else 2 * SECOND)


async def test_h6_a_window_buffer(server: Server) -> None:
    await server.broker.configure(QueueSpec(name=QUEUE, options=QueueOptions(window_buffer=1)))
    pop = await server.parked()
    await server.push("p")
    await server.advance(0.5)
    await server.push("p")
    await server.advance(0.999999)
    assert not pop.done()
    await server.advance(0.000001)
    assert pop.done()


# H7: browsers miss what was in flight when they passed ----------------------------------------------------------


async def test_h7_a_browser_sees_what_was_in_flight_when_it_passed(server: Server) -> None:
    await server.broker.push([NewMessage(QUEUE, "p", str(number).encode()) for number in range(6)])
    leased = await server.broker.pop(PopRequest(queue=QUEUE, group=GROUP, batch=3))
    browser = await server.delivery.browsers.open(QUEUE, None, "head")
    seen = [bytes(message.payload) for message in await browser.next()]
    await server.settle(leased, "retry")  # It comes back behind the browser, which has seen it.
    await server.push("p", payload=b"6")
    while len(seen) < 7:
        seen += [bytes(message.payload) for message in await browser.next()]
    assert seen == [str(number).encode() for number in range(7)]
    browser.close()


# H8: a message that kills its connection ------------------------------------------------------------------------


async def test_h8_a_message_that_kills_its_connection_ends_in_the_dead_letters(server: Server) -> None:
    options = QueueOptions(lease_time=1, retry_limit=2)
    await server.broker.configure(QueueSpec(name=QUEUE, options=options))
    await server.push("p", payload=b'"poison"')
    await server.push("p", payload=b'"fine"')
    got = []
    for _ in range(5):
        stream = await server.stream(1)
        arrival = await written(stream)
        got.append((payloads(arrival.result)[0], arrival.result.messages[0].attempt))
        if got[-1][0] == b'"fine"':
            await server.settle(arrival.result)
            stream.close()
            break
        stream.close()  # It was written, and its client died of it.
        await server.advance(1)
    assert got == [(b'"poison"', 1), (b'"poison"', 2), (b'"poison"', 3), (b'"fine"', 1)]
    dead = await server.engine.dead_letters(DeadLetterFilter())
    assert [(bytes(one.payload), one.attempts) for one in dead.items] == [(b'"poison"', 3)]
    await server.quiet()
    server.is_clean()
