"""Shared groups: any number of consumers work on one partition at once, and each message goes to one of them."""

from __future__ import annotations

import asyncio

from hark.clock import SECOND, FakeClock
from hark.engine.api import Engine

from .driver import Driver, message, offsets, payloads
from .workers import Workers, attempts


async def test_two_consumers_hold_messages_of_one_partition_at_the_same_time(q: Driver, workers: Workers) -> None:
    await q.push("orders", "p1", 1, 2, 3)
    first, second = await workers.take(), await workers.take()
    assert (payloads(first), payloads(second)) == ([1], [2])
    assert first.lease != second.lease


async def test_a_message_that_is_held_is_given_to_nobody_else(q: Driver, workers: Workers) -> None:
    await q.push("orders", "p1", 1, 2)
    assert len(await workers.take(10)) == 2
    assert await workers.take(10) == []
    assert await workers.take(10, "p1") == []


async def test_many_pops_of_one_call_get_different_messages_of_one_partition(q: Driver, workers: Workers) -> None:
    await q.push("orders", "p1", *range(10))
    everything = await workers.take_together(1, 3, 1, 2, 4, 1)
    assert [payloads(got) for got in everything] == [[0], [1, 2, 3], [4], [5, 6], [7, 8, 9], []]
    assert len({got.lease for got in everything[:5]}) == 5


async def test_many_pops_of_one_call_that_name_the_partition(q: Driver, workers: Workers) -> None:
    await q.push("orders", "p1", 1, 2, 3)
    everything = await workers.take_together(1, 1, 1, 1, partition="p1")
    assert [payloads(got) for got in everything] == [[1], [2], [3], []]


async def test_sixty_four_consumers_share_a_partition_without_a_message_lost_or_given_twice(
    q: Driver, workers: Workers
) -> None:
    await q.push("orders", "p1", *range(256))
    taken: list[object] = []

    async def consume() -> None:
        while got := await workers.take():
            taken.extend(payloads(got))
            await q.ack_all(got)

    await asyncio.gather(*(consume() for _ in range(64)))
    assert sorted(map(str, taken)) == sorted(map(str, range(256)))
    assert (await workers.stats()).lag == 0


async def test_a_batch_is_of_one_partition_unless_more_are_asked_for(q: Driver, workers: Workers) -> None:
    await q.push_messages(*(message("orders", name, f"{name}{n}") for name in ("p1", "p2") for n in (1, 2)))
    got = await workers.take(10)
    assert (payloads(got), got.partitions) == (["p11", "p12"], 1)
    await q.engine.release([got.lease])
    got = await workers.take(10, partitions=2)
    assert sorted(map(str, payloads(got))) == ["p11", "p12", "p21", "p22"]
    assert got.partitions == 2


async def test_partitions_are_served_in_turn(q: Driver, workers: Workers) -> None:
    await q.push_messages(*(message("orders", name, name) for name in ("p1", "p2", "p3") for _ in range(3)))
    order = [payloads(await workers.take())[0] for _ in range(9)]
    assert order == ["p1", "p2", "p3"] * 3


async def test_partitions_are_served_in_turn_by_pops_of_one_call(q: Driver, workers: Workers) -> None:
    await q.push_messages(*(message("orders", name, name) for name in ("p1", "p2") for _ in range(2)))
    everything = await workers.take_together(1, 1, 1, 1)
    assert [one for got in everything for one in payloads(got)] == ["p1", "p2", "p1", "p2"]


async def test_a_pop_names_its_partition(q: Driver, workers: Workers) -> None:
    await q.push_messages(message("orders", "p1", 1), message("orders", "p2", 2))
    assert payloads(await workers.take(10, "p2")) == [2]


async def test_what_comes_later_is_taken_beside_what_is_held(q: Driver, workers: Workers) -> None:
    await q.push("orders", "p1", 1)
    await workers.take()
    await q.push("orders", "p1", 2)
    got = await workers.take()
    assert (payloads(got), offsets(got)) == ([2], [2])


async def test_pops_over_a_namespace_take_from_shared_groups(q: Driver) -> None:
    for name in ("a", "b"):
        await q.configure(name, namespace="ns")
        await q.push(name, "p1", name, name)
    got = await q.pop(namespace="ns", group="workers", group_mode="shared", batch=10, partitions=2)
    assert sorted(map(str, payloads(got))) == ["a", "a", "b", "b"]
    await q.ack_all(got)


async def test_one_lease_may_be_of_a_shared_and_of_an_ordered_group(q: Driver) -> None:
    """The same name may share one queue and be ordered in the other."""
    for name in ("a", "b"):
        await q.configure(name, namespace="ns", retry_limit=5)
        await q.push(name, "p1", name, name)
    await q.pop("a", "nowhere", group="g", group_mode="shared")
    await q.pop("b", "nowhere", group="g", group_mode="ordered")
    got = await q.pop(namespace="ns", group="g", batch=10, partitions=2)
    assert sorted(map(str, payloads(got))) == ["a", "a", "b", "b"]
    q.clock.advance(300)
    again = [*await q.pop("a", group="g", batch=10), *await q.pop("b", group="g", batch=10)]
    assert attempts(again) == [("a", 2), ("a", 2), ("b", 1)], "each pays in a shared group, none in an ordered one"
    await q.ack_all(again)


async def test_auto_ack_settles_at_delivery(q: Driver, workers: Workers, clock: FakeClock) -> None:
    await q.push("orders", "p1", 1, 2, 3)
    got = await workers.take(2, auto_ack=True)
    assert (payloads(got), got.expires_at) == ([1, 2], None)
    clock.advance(1000)
    assert await workers.drain() == [3]
    assert (await workers.stats()).lag == 0


async def test_auto_ack_beside_leases(q: Driver, workers: Workers, clock: FakeClock) -> None:
    await q.push("orders", "p1", 1, 2, 3)
    await workers.take()
    assert payloads(await workers.take(auto_ack=True)) == [2]
    clock.advance(300)
    assert attempts(await workers.take(10)) == [(3, 1), (1, 2)]


async def test_an_empty_pop_says_why(q: Driver, workers: Workers, clock: FakeClock) -> None:
    assert (await workers.take(1, "p1")).reason == "partition_not_found"
    await q.push("orders", "p1", 1)
    [held] = await workers.take()
    empty = await workers.take(1, "p1")
    assert (empty.reason, empty.look_again_at) == ("lease_held", clock.now() + 300 * SECOND)
    await q.retry(held, delay_ms=1000)
    empty = await workers.take(1, "p1")
    assert (empty.reason, empty.look_again_at) == ("waiting", clock.now() + SECOND)
    clock.advance(1)
    await q.ack_all(await workers.take())
    empty = await workers.take(1, "p1")
    assert (empty.reason, empty.look_again_at) == ("nothing_ready", None)


async def test_a_pop_says_when_its_lease_ends(q: Driver, workers: Workers, engine: Engine, clock: FakeClock) -> None:
    await q.configure("orders", lease_time=20)
    await q.push("orders", "p1", 1, 2)
    got = await workers.take(2)
    assert got.expires_at == clock.now() + 20 * SECOND
    assert await engine.lease_ends([got.lease]) == [got.expires_at]


async def test_a_paused_queue_or_group_gives_nothing(q: Driver, workers: Workers, engine: Engine) -> None:
    await q.push("orders", "p1", 1, 2)
    [held] = await workers.take()
    for group in (None, "workers"):
        assert await engine.pause("orders", group, True)
        assert (await workers.take()).reason == "paused"
        assert (await workers.take(1, "p1")).reason == "paused"
        assert await engine.pause("orders", group, False)
    assert payloads(await workers.take()) == [2]
    assert (await q.ack(held)).success


async def test_what_is_held_can_be_settled_while_the_queue_is_paused(
    q: Driver, workers: Workers, engine: Engine
) -> None:
    await q.push("orders", "p1", 1)
    [held] = await workers.take()
    await engine.pause("orders", None, True)
    assert (await q.ack(held)).success


async def test_a_window_buffer_holds_the_partition_back(q: Driver, workers: Workers, clock: FakeClock) -> None:
    await q.configure("orders", window_buffer=5)
    await q.push("orders", "p1", 1)
    clock.advance(4)
    await q.push("orders", "p1", 2)
    empty = await workers.take(10, "p1")
    assert (empty.reason, empty.look_again_at) == ("window_buffer", clock.now() + 5 * SECOND)
    got = await workers.arrive_at(clock.now() + 5 * SECOND)
    assert payloads(got) == [1]
    assert payloads(await workers.take(10)) == [2]


async def test_a_window_buffer_opens_at_the_longest_after_ten_times(
    q: Driver, workers: Workers, clock: FakeClock
) -> None:
    await q.configure("orders", window_buffer=1)
    start = clock.now()
    for number in range(11):
        await q.push("orders", "p1", number)
        assert await workers.take() == []
        clock.advance(0.9)
    await q.push("orders", "p1", 11)
    got = await workers.arrive_at(start + 10 * SECOND)
    assert payloads(got) == [0]


async def test_delayed_processing_waits_until_each_message_is_old_enough(
    q: Driver, workers: Workers, clock: FakeClock
) -> None:
    await q.configure("orders", delayed_processing=10)
    start = clock.now()
    await q.push("orders", "p1", 1)
    clock.advance(4)
    await q.push("orders", "p1", 2, priority=9)
    empty = await workers.take(10, "p1")
    assert (empty.reason, empty.look_again_at) == ("waiting", start + 10 * SECOND)
    got = await workers.arrive_at(start + 10 * SECOND)
    assert payloads(got) == [1], "a higher priority makes nobody older"
    assert payloads(await workers.arrive_at(start + 14 * SECOND)) == [2]


async def test_delayed_processing_and_a_delay_wait_for_the_later_of_the_two(
    q: Driver, workers: Workers, clock: FakeClock
) -> None:
    await q.configure("orders", delayed_processing=10)
    start = clock.now()
    await q.push_messages(
        message("orders", "p1", "short", delay_ms=3000), message("orders", "p1", "long", delay_ms=20_000)
    )
    assert payloads(await workers.arrive_at(start + 10 * SECOND)) == ["short"]
    assert payloads(await workers.arrive_at(start + 20 * SECOND)) == ["long"]


async def test_max_size_counts_what_a_shared_group_has_not_settled(q: Driver, workers: Workers) -> None:
    await q.configure("orders", max_size=3)
    await q.push("orders", "p1", 1, 2, 3)
    got = await workers.take(3)
    assert [one.code for one in await q.push("orders", "p1", 4)] == ["queue_full"], "held is not settled"
    await q.ack(got[1])
    assert [one.status for one in await q.push("orders", "p1", 5, 6)] == ["queued", "failed"]


async def test_a_pop_ends_after_64_mib_whatever_its_batch(q: Driver, workers: Workers) -> None:
    big = "x" * (30 * 1024 * 1024)
    for number in range(4):
        await q.push("orders", "p1", [number, big])
    sizes = [len(await workers.take(10)) for _ in range(2)]
    assert sizes == [3, 1]
