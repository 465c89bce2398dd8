"""Groups: what an ordered group promises; shared groups have files of their own (`test_shared_...`)."""

from __future__ import annotations

from hark.clock import FakeClock
from hark.model import PopRequest

from .driver import Driver, message, offsets, payloads, settlement


async def test_ordered_every_group_sees_every_message(q: Driver) -> None:
    await q.push("orders", "p1", 1, 2, 3)
    assert await q.drain("orders", group="a") == [1, 2, 3]
    assert await q.drain("orders", group="b") == [1, 2, 3]
    assert await q.drain("orders") == [1, 2, 3]


async def test_ordered_at_most_one_live_lease_per_partition_and_group(q: Driver) -> None:
    await q.push("orders", "p1", 1, 2, 3)
    assert payloads(await q.pop("orders", group="a")) == [1]
    assert await q.pop("orders", group="a") == []
    assert await q.pop("orders", "p1", group="a") == []
    assert payloads(await q.pop("orders", group="b")) == [1]


async def test_ordered_two_pops_of_one_call_never_share_a_partition(q: Driver) -> None:
    await q.push_messages(*(message("orders", name, name) for name in ("p1", "p2")))
    wish = PopRequest(queue="orders", batch=10)
    first, second, third = await q.pop_requests(wish, wish, wish)
    assert (payloads(first), payloads(second), payloads(third)) == (["p1"], ["p2"], [])
    assert first.lease != second.lease


async def test_ordered_nothing_is_handed_out_while_an_earlier_message_is_unsettled(q: Driver) -> None:
    await q.push("orders", "p1", 1, 2, 3, 4)
    got = await q.pop("orders", batch=2)
    assert payloads(got) == [1, 2]
    await q.ack(got[1])
    assert await q.pop("orders") == []
    await q.ack(got[0])
    assert payloads(await q.pop("orders", batch=10)) == [3, 4]


async def test_ordered_the_order_is_that_of_offsets_whatever_the_priority(q: Driver) -> None:
    await q.push_messages(*(message("orders", "p1", n, priority=n) for n in (0, 9, 3, 5)))
    got = await q.pop("orders", batch=10)
    assert (payloads(got), offsets(got)) == ([0, 9, 3, 5], [1, 2, 3, 4])
    assert [one.message.priority for one in got] == [0, 9, 3, 5]


async def test_ordered_partitions_run_in_parallel(q: Driver) -> None:
    await q.push_messages(*(message("orders", name, name) for name in ("p1", "p2", "p3")))
    got = [await q.pop("orders") for _ in range(3)]
    assert [payloads(one) for one in got] == [["p1"], ["p2"], ["p3"]]
    assert len({one.lease for one in got}) == 3
    await q.ack_all(one for each in reversed(got) for one in each)


async def test_ordered_a_slow_partition_blocks_only_itself(q: Driver, clock: FakeClock) -> None:
    await q.push_messages(
        message("orders", "p1", 1, delay_ms=5000), message("orders", "p1", 2), message("orders", "p2", 3)
    )
    assert await q.drain("orders") == [3]
    clock.advance(5)
    assert await q.drain("orders") == [1, 2]


async def test_ordered_is_what_an_absent_group_mode_means(q: Driver) -> None:
    await q.push("orders", "p1", 1, 2)
    await q.ack_all(await q.pop("orders"))
    assert payloads(await q.pop("orders", group_mode="ordered")) == [2]
    [group] = await q.engine.group_stats(queue="orders")
    assert group.mode == "ordered"


async def test_a_settlement_of_one_group_is_not_one_of_another(q: Driver) -> None:
    await q.push("orders", "p1", 1)
    [mine] = await q.pop("orders", group="a")
    [theirs] = await q.pop("orders", group="b")
    [crossed] = await q.settle(settlement(mine, group="b"))
    assert not crossed.success
    assert (await q.ack(mine)).success
    assert (await q.ack(theirs)).success
