"""Shared groups: as many are told as there are messages, at their time, and not one more than a bound allows."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from hark.errors import Conflict
from hark.model import GroupMode, Hint, NewMessage, PopRequest, PopResult, QueueOptions, QueueSpec

from .harness import GROUP, QUEUE, Server, SharedEngine, WatchedEngine, serving

SHARED = PopRequest(queue=QUEUE, group=GROUP, group_mode="shared")
OF_P = PopRequest(queue=QUEUE, group=GROUP, group_mode="shared", partition="p")
TENS = PopRequest(queue=QUEUE, group=GROUP, group_mode="shared", batch=10)


async def waiting(server: Server, number: int, request: PopRequest = SHARED) -> list[asyncio.Task[PopResult]]:
    """Long polls that have found nothing and wait."""
    pops = [server.pop(request) for _ in range(number)]
    await server.quiet()
    assert not any(pop.done() for pop in pops)
    return pops


async def push(server: Server, number: int, partition: str = "p", **options: int) -> None:
    """Messages into one partition, in one request."""
    await server.broker.push([NewMessage(QUEUE, partition, b"1", **options) for _ in range(number)])  # type: ignore[arg-type]  # of ints
    await server.quiet()


async def bounded(server: Server, **bounds: int) -> None:
    """The queue lets its groups have only so much."""
    options = QueueOptions(**bounds)  # type: ignore[arg-type]  # of ints
    await server.broker.configure(QueueSpec(name=QUEUE, options=options))


def served(pops: list[asyncio.Task[PopResult]]) -> int:
    """How many of them have got something."""
    return sum(pop.done() and bool(pop.result().messages) for pop in pops)


# As many as there are messages ------------------------------------------------------------------------------


async def test_64_waiting_pops_get_the_64_messages_of_one_push_in_one_call(server: Server) -> None:
    pops = await waiting(server, 64)
    server.engine.pops.clear()
    await push(server, 64)
    assert served(pops) == 64
    assert server.engine.pops == [64]
    assert server.broker.batchers.sizes()["pop"].largest == 64
    assert len({pop.result().lease_id for pop in pops}) == 64
    assert server.empty_wakes() == 0


@pytest.mark.parametrize(("wait", "request_", "come", "got"), [(1000, SHARED, 1, [1]), (8, TENS, 30, [10, 10, 10])])
async def test_a_thousand_wait_one_message_comes_one_is_notified_and_30_messages_for_pops_of_ten_are_notified_to_three(
    server: Server, wait: int, request_: PopRequest, come: int, got: list[int]
) -> None:
    pops = await waiting(server, wait, request_)
    server.engine.pops.clear()
    await push(server, come)
    assert [len(pop.result().messages) for pop in pops if pop.done()] == got
    assert server.engine.pops == [len(got)]


async def test_one_who_takes_one_among_those_who_take_ten_holds_no_one_up(server: Server) -> None:
    pops = [*await waiting(server, 2), *await waiting(server, 2, TENS)]
    await push(server, 22)
    assert served(pops) == 4


async def test_those_of_a_partition_and_those_of_any_share_its_messages(server: Server) -> None:
    anyone, named = await waiting(server, 2), await waiting(server, 2, OF_P)
    await push(server, 3)
    assert (served(named), served(anyone)) == (2, 1)
    assert server.empty_wakes() == 0


async def test_a_stream_of_a_partition_goes_on_with_what_was_there_before(server: Server) -> None:
    """Nobody is told of it again: a settlement frees nothing in a shared group."""
    await server.broker.pop(SHARED)
    await push(server, 5)
    stream = await server.stream(1, OF_P)
    for _ in range(5):
        arrival = await stream.next()
        assert arrival is not None
        stream.written()
        await server.settle(arrival.result)
        await server.quiet()
    assert stream.unsettled == 0


async def test_the_one_that_is_notified_of_what_another_took_keeps_its_turn(server: Server) -> None:
    first, second = await waiting(server, 2)
    pushed = asyncio.create_task(push(server, 1))
    thief = asyncio.create_task(server.broker.pop(SHARED))
    await pushed
    await server.quiet()
    assert (await thief).messages
    assert not first.done()
    await push(server, 1)
    assert (first.done(), second.done()) == (True, False)


async def test_the_messages_of_a_lease_that_ran_out_are_notified_to_as_many(server: Server) -> None:
    await bounded(server, lease_time=2)
    await push(server, 3)
    assert len((await server.broker.pop(TENS)).messages) == 3
    pops = await waiting(server, 5)
    await server.advance(1.999)
    assert served(pops) == 0
    await server.advance(0.001)
    assert served(pops) == 3


async def test_a_mode_is_checked_once_and_a_wrong_one_is_refused_at_once(server: Server) -> None:
    pops = [*await waiting(server, 1), *await waiting(server, 20)]
    assert sum(server.engine.pops) == 1
    wrong = server.pop(PopRequest(queue=QUEUE, group=GROUP, group_mode="ordered"))
    await server.quiet()
    with pytest.raises(Conflict, match="shared"):
        await wrong
    assert served(pops) == 0


# At their time ----------------------------------------------------------------------------------------------


async def test_delayed_messages_come_at_their_time_and_one_that_is_due_or_ready_earlier_before_them(
    server: Server,
) -> None:
    first, second, third = await waiting(server, 3)
    await push(server, 1, delay_ms=500)
    await push(server, 1, delay_ms=100)
    await server.advance(0.099)
    assert not first.done()
    await server.advance(0.001)
    assert (first.done(), second.done()) == (True, False)
    await server.advance(0.398)
    await push(server, 1)
    assert (second.done(), third.done()) == (True, False)
    await server.advance(0.001)
    assert not third.done()
    await server.advance(0.001)
    assert third.done()


async def test_thousands_of_due_times_take_one_timer_and_those_that_fall_due_together_are_notified_to_as_many(
    server: Server,
) -> None:
    pops = await waiting(server, 67)
    armed = server.timers.armed
    await server.broker.push([NewMessage(QUEUE, "p", b"1", delay_ms=50 + number) for number in range(3)])
    await server.broker.push([NewMessage(QUEUE, "p", b"1", delay_ms=100) for number in range(64)])
    await server.broker.push([NewMessage(QUEUE, "p", b"1", delay_ms=200 + number) for number in range(3000)])
    await server.quiet()
    assert server.timers.armed == armed + 1
    await server.advance(0.050)
    assert served(pops) == 1
    await server.advance(0.002)
    assert served(pops) == 3
    server.engine.pops.clear()
    await server.advance(0.048)
    assert served(pops) == 67
    assert len(server.engine.pops) < 10


async def test_a_retry_with_a_delay_reaches_a_waiting_consumer_at_its_time(server: Server) -> None:
    await server.broker.pop(SHARED)
    await push(server, 1)
    leased = await server.broker.pop(SHARED)
    [pop] = await waiting(server, 1)
    await server.settle(leased, "failed", delay_ms=70)
    await server.advance(0.069)
    assert not pop.done()
    await server.advance(0.001)
    assert pop.result().messages[0].attempt == 2


@pytest.mark.parametrize(("hinted", "delay_ms"), [(True, 500), (False, 4321)], ids=["hint", "poll"])
async def test_what_another_server_pushed_with_a_delay_is_learned_from_its_hint_or_a_poll_and_comes_at_its_time(
    hinted: bool, delay_ms: int
) -> None:
    async with serving(engine=WatchedEngine if hinted else SharedEngine) as server:
        [pop] = await waiting(server, 1)
        server.engine.is_silent = True
        await push(server, 1, delay_ms=delay_ms)
        if hinted:
            server.engine.is_silent = False
            server.delivery.hint([Hint(QUEUE, GROUP, ("p",), "message", counts=(1,))], "peer")
        await server.advance((delay_ms - 1) / 1000)
        assert not pop.done()
        await server.advance(0.001)
        assert served([pop]) == 1


async def test_a_rate_limit_is_kept_by_the_timer(server: Server) -> None:
    await bounded(server, rate_limit=10, rate_burst=1)
    pops = await waiting(server, 5)
    await push(server, 4)
    for expected in (1, 2, 3, 4):
        assert served(pops) == expected
        await server.advance(0.099)
        assert served(pops) == expected
        await server.advance(0.001)
    assert served(pops) == 4


async def test_a_full_group_waits_for_a_settlement_and_no_one_looks_meanwhile(server: Server) -> None:
    await bounded(server, max_in_flight=2)
    pops = await waiting(server, 3)
    await push(server, 3)
    assert served(pops) == 2
    looks = sum(server.engine.pops)
    await server.advance(1)
    assert sum(server.engine.pops) == looks
    await server.settle(next(pop for pop in pops if pop.done()).result())
    await server.quiet()
    assert served(pops) == 3


@pytest.mark.parametrize(
    ("modes", "number", "got"),
    [(("shared", "shared"), 10, {"shop.a": 10, "shop.b": 10}), (("shared", "ordered"), 3, {"shop.a": 3, "shop.b": 1})],
)
async def test_those_who_wait_by_label_are_notified_of_the_messages_of_all_queues_in_each_in_its_mode(
    server: Server, modes: tuple[GroupMode, GroupMode], number: int, got: dict[str, int]
) -> None:
    queues = ("shop.a", "shop.b")
    for queue, mode in zip(queues, modes, strict=True):
        await server.broker.configure(QueueSpec(name=queue, namespace="shop"))
        await server.broker.pop(PopRequest(queue=queue, group=GROUP, group_mode=mode))
    pops = await waiting(server, 32, PopRequest(namespace="shop", group=GROUP))
    server.engine.pops.clear()
    await server.broker.push([NewMessage(queue, "p") for queue in queues] * number)
    await server.quiet()
    assert Counter(pop.result().messages[0].queue for pop in pops if pop.done()) == got
    assert server.engine.pops == [sum(got.values())]
    assert server.empty_wakes() == 0
