"""Labels, stops, outages and stores of several servers: those who wait get through all of it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from hark.broker.broker import POP_MAINTENANCE
from hark.clock import SECOND
from hark.errors import EngineFailure, Overloaded
from hark.model import Hint, PopRequest, QueueInfo, QueueOptions, QueueSpec, Seek

from .bench import EMPTY, Bench, result
from .harness import ANY, GROUP, QUEUE, Server, SharedEngine, WatchedEngine, named, outbox, payloads, serving, turns

AUTO_ACK = PopRequest(queue=QUEUE, group=GROUP, auto_ack=True)
AWAY = EngineFailure("the store is away")
UNKNOWN = EngineFailure("the way to the store broke", code="outcome_unknown")

# Labels -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "request_",
    [
        PopRequest(namespace="shop", group=GROUP),
        PopRequest(task="new", group=GROUP),
        PopRequest(namespace="shop", task="new", group=GROUP),
    ],
)
async def test_a_pop_by_label_waits_for_queues_that_do_not_exist_yet_and_for_those_that_it_knows(
    server: Server, request_: PopRequest
) -> None:
    pop = await server.parked(request_)
    await server.push("p", queue="other.old.a")
    await server.quiet()
    assert not pop.done()
    await server.push("p", queue="shop.new.a")
    await server.quiet()
    assert pop.result().messages[0].queue == "shop.new.a"
    pop, leased = await server.parked(request_), pop.result()
    await server.settle(leased)
    await server.push("p", queue="shop.new.a")
    await server.quiet()
    assert len(pop.result().messages) == 1


async def test_a_queue_whose_labels_change_is_one_of_those_that_are_waited_for(server: Server) -> None:
    await server.broker.configure(QueueSpec(name=QUEUE, namespace="old"))
    old = await server.parked(PopRequest(namespace="old", group="another"))
    await server.push("p")
    assert len((await old).messages) == 1  # So the labels are known.
    pop = await server.parked(PopRequest(namespace="new", group=GROUP))
    await server.broker.configure(QueueSpec(name=QUEUE, namespace="new"))
    await server.quiet()
    assert len(pop.result().messages) == 1
    old = await server.parked(PopRequest(namespace="old", group="another"))
    await server.push("q")
    await server.quiet()
    assert not old.done()


class ForgetfulEngine(WatchedEngine):
    """One that can't say anything about queues at first."""

    async def queue_infos(self, names: Sequence[str] | None = None) -> list[QueueInfo]:
        """Fail if the test wants it."""
        if self.failure is not None:
            raise self.failure
        return await super().queue_infos(names)


async def test_a_queue_whose_labels_can_not_be_requested_is_checked_again() -> None:
    async with serving(engine=ForgetfulEngine) as server:
        pop = await server.parked(PopRequest(namespace="shop", group=GROUP))
        server.engine.failure = AWAY
        await server.push("p", queue="shop.new.a")
        await server.quiet()
        server.engine.failure = None
        await server.advance(1)
        assert len(pop.result().messages) == 1


# Stops ------------------------------------------------------------------------------------------------------


async def test_maintenance_answers_those_who_wait_and_streams_go_on_after_it(server: Server) -> None:
    pop, stream = await server.parked(), await server.stream(5)
    await server.broker.set_maintenance(POP_MAINTENANCE, True)
    assert (await pop).reason == "paused"
    await server.push("p")
    await server.quiet()
    assert not outbox(stream)
    looks = len(server.engine.pops)
    await server.advance(100)
    assert len(server.engine.pops) == looks
    await server.broker.set_maintenance(POP_MAINTENANCE, False)
    await server.quiet()
    assert len(outbox(stream)) == 1


async def test_one_that_was_notified_in_the_turn_of_a_stop_is_answered_and_one_that_is_searched_gets_what_comes() -> (
    None
):
    notified, looked_for = Bench(), Bench()
    pop = await notified.parked()
    notified.push("p")
    notified.delivery.suspend()
    await turns()
    assert pop.result().reason == "paused"
    assert notified.pops.open == 0
    first, second = await looked_for.parked(), await looked_for.parked()
    looked_for.push("p", "q")
    await turns()
    looked_for.delivery.suspend()
    await turns()
    looked_for.pops.answer(result("lease", "p"))
    looked_for.pops.answer(EMPTY)
    assert (await first).lease_id == "lease"
    assert (await second).reason == "paused"


async def test_closing_answers_everyone(server: Server) -> None:
    pops = [await server.parked(), await server.parked(named("p")), await server.parked(PopRequest(namespace="n"))]
    stream = await server.stream(5)
    browser = await server.delivery.browsers.open(QUEUE, None, "tail")
    server.broker.stop_waiting()
    await server.quiet()
    assert [(await pop).messages for pop in pops] == [(), (), ()]
    assert await stream.next() is None
    assert await browser.next() == ()
    server.is_clean()


async def test_a_resumed_queue_a_seek_and_a_delay_that_is_taken_back_reach_those_who_wait(server: Server) -> None:
    await server.push("p")
    await server.engine.pause(QUEUE, None, True)
    pop = await server.parked()
    await server.engine.pause(QUEUE, None, False)
    await server.quiet()
    await server.settle(await pop)
    again = await server.parked()
    await server.engine.seek([Seek(queue=QUEUE, group=GROUP, offset=1)])
    await server.quiet()
    assert payloads(await again) == [b"null"]
    await server.broker.configure(QueueSpec(name=QUEUE, options=QueueOptions(delayed_processing=10)))
    delayed = await server.parked()
    await server.push("q")
    await server.quiet()
    assert not delayed.done()
    await server.broker.configure(QueueSpec(name=QUEUE))
    await server.quiet()
    assert len(delayed.result().messages) == 1


# A store that is away ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", [WatchedEngine, SharedEngine])
async def test_those_who_wait_survive_an_outage(engine: type[WatchedEngine]) -> None:
    async with serving(engine=engine) as server:
        pop = await server.parked()
        server.engine.failure = AWAY
        await server.push("p")
        await server.advance(20)
        assert not pop.done()
        server.engine.failure = None
        await server.advance(10)
        assert len((await pop).messages) == 1
        looks = len(server.engine.pops)
        await server.parked()
        await server.advance(30)
        assert engine.shared or len(server.engine.pops) == looks + 1, "it is still polled"


async def test_one_whose_deadline_comes_during_an_outage_is_notified_why_and_so_is_one_at_a_stop(
    server: Server,
) -> None:
    server.engine.failure = AWAY
    with pytest.raises(EngineFailure):
        await server.broker.pop(ANY)
    assert server.engine.pops == [1], "one that does not wait fails at once"
    first, second = await server.parked(seconds=3), await server.parked(named("p"))
    await server.advance(3)
    with pytest.raises(EngineFailure):
        await first
    server.broker.stop_waiting()
    with pytest.raises(EngineFailure):
        await second
    server.is_clean()


async def test_a_hint_ends_the_wait_of_one_whose_look_failed(server: Server) -> None:
    await server.push("p")
    server.engine.failure = AWAY
    pop = await server.parked()
    server.engine.failure = None
    server.delivery.hint([Hint(QUEUE)])
    await server.quiet()
    assert len(pop.result().messages) == 1


async def test_auto_ack_with_an_unknown_outcome_is_notified_at_once(bench: Bench) -> None:
    first = bench.wait(AUTO_ACK)
    await turns()
    bench.pops.answer(UNKNOWN)
    with pytest.raises(EngineFailure):
        await first
    pop = await bench.parked(AUTO_ACK)
    bench.push("p")
    await turns()
    bench.pops.answer(UNKNOWN)
    with pytest.raises(EngineFailure):
        await pop


@pytest.mark.parametrize("refused", [False, True], ids=["outcome-unknown", "too-much-work"])
async def test_a_lease_with_an_unknown_outcome_is_waited_for_and_so_is_a_store_with_too_much_work(
    bench: Bench, refused: bool
) -> None:
    pop = await bench.parked()
    bench.pops.refusal = Overloaded("too much") if refused else None
    bench.push("p")
    await turns()
    bench.pops.refusal = None
    if not refused:
        bench.pops.answer(UNKNOWN)
        await turns()
    assert not pop.done()
    bench.timers.advance(0.2)
    await turns()
    bench.pops.answer(result("lease", "p"))
    assert (await pop).lease_id == "lease"


# A store of several servers ---------------------------------------------------------------------------------


async def test_a_lane_that_closes_while_it_is_polled_disturbs_no_one() -> None:
    bench = Bench(shared=True)
    failures: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: failures.append(context))
    one, first, second = await bench.parked(named("p")), await bench.parked(), await bench.parked()
    bench.timers.advance(0.2)
    await turns()
    assert bench.pops.open == 2  # Both lanes are polled.
    one.cancel()
    await turns()
    bench.push("q", "r")
    await turns()
    for lease in ("p", "q", "r"):
        bench.pops.answer(result(lease, lease))
        await turns()
    assert bench.pops.given_back == ["p"]
    assert ((await first).lease_id, (await second).lease_id) == ("q", "r")
    assert failures == []


async def test_a_store_of_our_own_is_not_looked_at_again_and_again(server: Server) -> None:
    for queue in (QUEUE, "second", "third"):
        await server.parked(PopRequest(queue=queue, group=GROUP), seconds=7200)
    await server.advance(3600)
    assert server.engine.pops == [1, 1, 1]


async def test_pops_that_wait_for_the_same_take_turns_to_look_and_those_who_leave_pass_the_turn_on() -> None:
    async with serving(engine=SharedEngine) as server:
        pops = [server.pop() for _ in range(50)]
        await server.advance(2)
        assert server.engine.pops == [50, 1, 1, 1, 1, 1]
        for pop in pops[:10]:
            pop.cancel()
        server.engine.is_silent = True
        await server.push(*map(str, range(40)))
        due = server.timers.next_due()
        assert due is not None
        await server.advance((due - server.clock.now()) / SECOND)
        assert all(len(pop.result().messages) == 1 for pop in pops[10:]), "a find lets the next in line look at once"


@pytest.mark.parametrize("request_", [ANY, named("p"), PopRequest(namespace=QUEUE, group=GROUP)])
@pytest.mark.parametrize("by", ["poll", "peer"])
async def test_what_came_without_a_word_is_found_by_a_poll_or_by_the_hint_of_a_peer(
    request_: PopRequest, by: str
) -> None:
    async with serving(engine=SharedEngine) as server:
        pop = await server.parked(request_)
        server.engine.is_silent = True
        await server.push("p")
        await server.quiet()
        assert not pop.done()
        if by == "peer":
            server.delivery.hint([Hint(QUEUE, None, ("p",), "message")], "peer")
            await server.quiet()
        else:
            await server.advance(0.2)
        assert len(pop.result().messages) == 1
        assert server.numbers()["wakes"]["peer"] == (by == "peer")
