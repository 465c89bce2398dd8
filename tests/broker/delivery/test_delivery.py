"""Who gets what when: the contract's cases on a real engine, and the moments between two awaits on pops held back."""

from __future__ import annotations

import asyncio
from collections import Counter
from itertools import permutations

import pytest

from hark.broker.delivery import delivery
from hark.errors import Overloaded
from hark.model import GroupMode, NewMessage, PopRequest
from hark.settings import Limits, Settings

from .bench import Bench, result
from .harness import ANY, GROUP, QUEUE, Server, SharedEngine, WatchedEngine, named, outbox, serving, turns

AUTO_ACK = PopRequest(queue=QUEUE, group=GROUP, auto_ack=True)

# Turns ------------------------------------------------------------------------------------------------------


async def test_two_idle_consumers_one_push_exactly_one_is_notified_then_the_other(server: Server) -> None:
    first, second = await server.parked(), await server.parked()
    await server.push("p")
    await server.quiet()
    assert (first.done(), second.done()) == (True, False)
    await server.push("q")
    await server.quiet()
    assert second.done()
    assert server.numbers()["wakes"]["push"] == 2
    assert server.empty_wakes() == 0


@pytest.mark.parametrize("mode", ["ordered", "shared"])
async def test_three_consumers_and_bursts_of_four_a_hundred_times(server: Server, mode: GroupMode) -> None:
    """Into partitions of their own, or all into one that the group shares."""
    request = PopRequest(queue=QUEUE, group=GROUP, group_mode=mode)
    streams = [await server.stream(1000, request) for _ in range(3)]
    got: Counter[int] = Counter()

    async def read(index: int) -> None:
        while (arrival := await streams[index].next()) is not None:
            got[index] += len(arrival.result.messages)
            streams[index].written()

    readers = [asyncio.create_task(read(index)) for index in range(3)]
    for burst in range(100):
        await server.push(*("p" if mode == "shared" else f"{burst}-{number}" for number in range(4)))
        await server.quiet()
    for stream in streams:
        stream.close()
    await asyncio.gather(*readers)
    assert sorted(got.values()) == [133, 133, 134]
    assert server.numbers()["empty_wakes"]["push"] == 0


async def test_a_thousand_long_polls_over_ten_rounds_are_served_alike(server: Server) -> None:
    got = Counter(dict.fromkeys(range(1000), 0))
    pops = {server.pop(): number for number in range(1000)}
    await server.quiet()
    for _ in range(10):
        await server.push(*(f"p{number}" for number in range(700)))
        await server.quiet()
        done = [pop for pop in pops if pop.done()]
        assert len(done) == 700
        for pop in done:
            got[pops[pop]] += 1
            await server.settle(await pop)
        await server.quiet()
        for pop in done:
            pops[server.pop()] = pops.pop(pop)
        await server.quiet()
    assert max(got.values()) - min(got.values()) <= 1
    assert server.empty_wakes() == 0


async def test_of_those_who_wait_the_ones_of_higher_priority_are_served_first(server: Server) -> None:
    pops = {priority: await server.parked(priority=priority) for priority in (0, 5, -3, 9)}
    for expected in (9, 5, 0, -3):
        await server.push(f"p{expected}")
        await server.quiet()
        assert [priority for priority, pop in pops.items() if pop.done()] == [expected]
        pops.pop(expected)


async def test_a_low_one_is_notified_and_a_high_one_gains_credit_before_the_look(bench: Bench) -> None:
    low = await bench.parked(priority=1)
    stream = await bench.stream(0, priority=5)
    bench.push("p")
    stream.grant(1)
    await turns()
    assert bench.pops.open == 1
    bench.pops.answer(result("lease", "p"))
    await turns()
    assert [one.result.lease_id for one in outbox(stream)] == ["lease"]
    assert not low.done()
    assert bench.pops.open == 0
    bench.push("q")  # It kept its turn.
    await turns()
    bench.pops.answer(result("second", "q"))
    assert (await low).lease_id == "second"


async def test_a_low_one_that_is_searched_already_gets_it_and_the_high_one_does_not_look_in_vain() -> None:
    bench = Bench()
    low = await bench.parked(priority=1)
    stream = await bench.stream(0, priority=5)
    bench.push("p")
    await turns()
    stream.grant(1)
    await turns()
    bench.pops.answer(result("lease", "p"))
    assert (await low).lease_id == "lease"
    await turns()
    assert bench.pops.open == 0


@pytest.mark.parametrize("how", ["close", "pause", "credit", "drain", "unsubscribe", "block"])
async def test_what_a_notified_stream_can_not_take_goes_to_the_next_in_the_same_turn(bench: Bench, how: str) -> None:
    stream = await bench.stream(2, priority=5)
    other = await bench.parked()
    if how == "block":  # It got something from another subscription and does not read it.
        stream.subscribe("t", PopRequest(queue="another", group=GROUP))
        await turns()
        bench.pops.answer(result("first", "p", queue="another"))
        await turns()
    bench.push("p")
    if how == "credit":
        stream.grant(0)
    elif how == "unsubscribe":
        stream.unsubscribe("s")
    elif how != "block":
        {"close": stream.close, "pause": stream.pause, "drain": stream.drain}[how]()
    await turns()
    assert bench.pops.open == 1
    bench.pops.answer(result("lease", "p"))
    assert (await other).lease_id == "lease"


# Timeouts ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("request_", [ANY, AUTO_ACK], ids=["lease", "auto_ack"])
@pytest.mark.parametrize("steps", list(permutations(["hint", "look", "answer", "deadline"])), ids="-".join)
async def test_a_timeout_in_the_same_turn_as_a_delivery(steps: tuple[str, ...], request_: PopRequest) -> None:
    """Whatever comes first: the message is in the reply or released, never lost, never both."""
    bench = Bench()
    pop = await bench.parked(request_, seconds=1)
    lease = "" if request_.auto_ack else "lease"
    for step in steps:
        if step == "hint":
            bench.push("p")
        elif step == "look":
            await turns(1)
        elif step == "deadline":
            bench.timers.advance(1)
        elif bench.pops.open:
            bench.pops.answer(result(lease, "p"))
    await turns()
    taken = bench.pops.open or any(
        future.done() and not future.cancelled() and future.result().messages for _, future in bench.pops.requests
    )
    if bench.pops.open:
        bench.pops.answer(result(lease, "p"))
    await turns()
    assert pop.done()
    in_the_reply = bool((await pop).messages)
    assert in_the_reply is bool(taken)
    assert bench.pops.given_back == []
    assert bench.timers.armed == 0
    assert bench.delivery.snapshot()["subscriptions"] == 0


async def test_a_notified_one_whose_time_is_up_is_answered_though_a_higher_one_takes_its_turn(bench: Bench) -> None:
    low = await bench.parked(seconds=1)
    high = await bench.stream(0, priority=5)
    bench.push("p")
    bench.timers.advance(1)
    high.grant(1)
    await turns()
    assert not low.result().messages
    bench.pops.answer(result("lease", "p"))
    await turns()
    assert outbox(high)


async def test_an_auto_ack_pop_that_is_under_way_is_not_lost_when_its_turn_is_taken_and_its_time_is_up() -> None:
    bench = Bench()
    low = await bench.parked(AUTO_ACK, seconds=1)
    high = await bench.stream(0, priority=5)
    bench.push("p")
    await turns()
    high.grant(1)  # The low one is told no more, but its pop is on its way.
    bench.timers.advance(1)
    await turns()
    assert not low.done()
    bench.pops.answer(result("", "p"))
    assert len((await low).messages) == 1


async def test_a_timeout_is_exact(server: Server) -> None:
    pop = await server.parked(seconds=2)
    await server.advance(1.999999)
    assert not pop.done()
    await server.advance(0.000001)
    assert pop.result().reason == "nothing_ready"
    server.is_clean()


# Clients that come back -------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", [WatchedEngine, SharedEngine])
async def test_a_consumer_that_comes_back_soon_needs_no_look(engine: type[WatchedEngine]) -> None:
    async with serving(engine=engine) as server:
        for number in range(3):
            pop = await server.parked()
            await server.push(f"p{number}")
            await server.settle(await pop)
            await server.quiet()
        assert len(server.engine.pops) == 1 + 3
        pop = await server.parked()
        pop.cancel()
        await server.push("p")
        await server.quiet()
        assert (await server.pop()).messages, "a hint without a consumer is lost"


async def test_a_consumer_that_comes_back_again_and_again_looks_every_minute(server: Server) -> None:
    for _ in range(10):
        pop = await server.parked(seconds=30)
        await server.advance(30)
        assert pop.done()
    assert 4 <= len(server.engine.pops) <= 6


async def test_a_consumer_that_comes_back_late_looks_in_a_shared_store() -> None:
    async with serving(engine=SharedEngine) as server:
        (await server.parked()).cancel()
        await server.quiet()
        server.engine.is_silent = True
        await server.push("p")
        await server.advance(1)
        assert (await server.pop(seconds=0.001)).messages


async def test_a_consumer_that_comes_back_after_a_due_time_looks(server: Server) -> None:
    pop = await server.parked()
    await server.push("p", delay_ms=5000)
    await server.quiet()
    pop.cancel()
    await server.advance(6)
    assert (await server.pop(seconds=0.001)).messages


async def test_few_subscriptions_without_consumers_are_kept(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivery, "_MOST_KEPT", 3)
    for number in range(10):
        (await server.parked(PopRequest(queue=f"q{number}", group=GROUP))).cancel()
        await server.quiet()
    assert len(server.delivery._subscriptions) == 3
    server.is_clean()


# Clients that leave -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", range(12))
@pytest.mark.parametrize("way", ["cancel", "gone"])
async def test_a_client_that_disconnects_at_any_await_leaves_nothing_behind(step: int, way: str) -> None:
    async with serving() as server:
        left = asyncio.Event()

        async def gone() -> None:
            await left.wait()

        pop = server.pop(gone=gone)
        await turns(step // 2)
        await server.push("p")
        await turns(step)
        if way == "cancel":
            pop.cancel()
        else:
            left.set()
        await server.quiet()
        received = pop.done() and not pop.cancelled() and bool(pop.result().messages)
        if way == "gone" and not pop.done():
            pop.cancel()  # It was on its first look: whoever serves it notices when it answers.
            await server.quiet()
        server.is_clean()
        again = await server.broker.pop(ANY)
        assert bool(again.messages) is not received
        assert all(message.attempt == 1 for message in again.messages)


@pytest.mark.parametrize("auto_ack", [False, True])
async def test_one_that_leaves_while_it_is_searched_gives_back_what_came(bench: Bench, auto_ack: bool) -> None:
    pop = await bench.parked(AUTO_ACK if auto_ack else ANY)
    other = await bench.parked()
    bench.push("p")
    await turns()
    pop.cancel()
    await turns()
    bench.pops.answer(result("lease", "p"))
    await turns()
    assert bench.pops.given_back == ["lease"]
    assert not other.done()
    bench.push("p")  # The hint of its release.
    await turns()
    bench.pops.answer(result("again", "p"))
    assert (await other).lease_id == "again"


async def test_a_refused_newcomer_leaves_no_subscription() -> None:
    async with serving(Settings(limits=Limits(max_waiting=1))) as server:
        await server.parked()
        with pytest.raises(Overloaded) as caught:
            await server.pop(PopRequest(queue="another"))
        assert caught.value.code == "too_many_waiting"
        assert server.numbers()["subscriptions"] == 1
        assert server.numbers()["waiting"] == 1


# Many at once -----------------------------------------------------------------------------------------------


async def test_a_hundred_that_arrive_together_are_served_by_few_calls(server: Server) -> None:
    pops = [server.pop() for _ in range(100)]
    await server.quiet()
    before = len(server.engine.pops)
    await server.push(*(f"p{number}" for number in range(100)))
    await server.quiet()
    assert all(pop.done() for pop in pops)
    assert sum(server.engine.pops[before:]) == 100
    assert min(server.engine.pops[before:]) >= 20
    assert server.empty_wakes() == 0


async def test_each_has_a_batch_and_a_lease_of_its_own(server: Server) -> None:
    pops = [await server.parked(PopRequest(queue=QUEUE, group=GROUP, batch=batch)) for batch in (1, 3, 2)]
    await server.broker.push([NewMessage(QUEUE, f"p{one}", b"1") for one in range(3) for _ in range(5)])
    results = [await pop for pop in pops]
    assert [len(one.messages) for one in results] == [1, 3, 2]
    assert len({one.lease_id for one in results}) == 3
    assert len({one.messages[0].partition for one in results}) == 3


async def test_wildcards_and_named_ones_together(server: Server) -> None:
    anyone, one, two = await server.parked(), await server.parked(named("p1")), await server.parked(named("p2"))
    await server.push("p1", "p3")
    await server.quiet()
    assert (await one).messages[0].partition == "p1"
    assert (await anyone).messages[0].partition == "p3"
    assert not two.done()
    assert server.empty_wakes() == 0
