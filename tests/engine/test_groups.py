"""Groups: what an ordered one promises, where a new one starts and how it is moved (rules 20 and 21).

Shared groups have files of their own (`test_shared_...`).
"""

from __future__ import annotations

import pytest

from hark.clock import SECOND, FakeClock
from hark.engine.api import Engine
from hark.errors import NotFound
from hark.model import QUEUE_MODE, GroupMode, PopRequest, Seek, SeekOutcome, Subscription

from .driver import ALL, NEW, Driver, message, offsets, payloads, settlement
from .workers import Workers


async def test_ordered_at_most_one_live_lease_per_partition_and_group(q: Driver) -> None:
    await q.push("orders", "p1", 1, 2, 3)
    assert payloads(await q.pop("orders", group="a")) == [1]
    assert await q.pop("orders", group="a") == []
    assert await q.pop("orders", "p1", group="a") == []
    assert payloads(await q.pop("orders", group="b")) == [1]


async def test_ordered_two_pops_of_one_call_never_share_a_partition(q: Driver) -> None:
    await q.push_messages(*(message("orders", name, name) for name in ("p1", "p2")))
    params = PopRequest(queue="orders", batch=10)
    first, second, third = await q.pop_requests(params, params, params)
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


# Rule 20: where a new group starts -----------------------------------------------------------------------


def since(moment: int) -> Subscription:
    """A group that starts after that time."""
    return Subscription("timestamp", moment)


async def test_rule_20_all_is_the_default_and_starts_at_the_first_message(q: Driver) -> None:
    await q.push("orders", "p1", 1, 2)
    for group in ("g", QUEUE_MODE):
        assert payloads(await q.pop("orders", group=group, batch=10)) == [1, 2]


async def test_rule_20_a_timestamp_starts_after_that_time(q: Driver, mode: GroupMode, clock: FakeClock) -> None:
    times = []
    for number in (1, 2, 3):
        times.append(clock.now())
        await q.push("orders", "p1", number, priority=9 - number)
        clock.advance(10)
    for group, start, wanted in (
        ("exactly", times[1], [3]),
        ("just before", times[1] - 1, [2, 3]),
        ("long before", times[1] - 3600 * SECOND, [1, 2, 3]),
        ("after all", times[2], []),
    ):
        assert payloads(await Workers(q, group=group, mode=mode).take(10, subscription=since(start))) == wanted


async def test_rule_20_new_is_fixed_by_a_first_contact_that_returns_nothing(q: Driver, clock: FakeClock) -> None:
    await q.push("orders", "p1", 1, 2)
    clock.advance(1)
    assert await q.pop("orders", group="g", subscription=NEW) == []
    clock.advance(1)
    await q.push("orders", "p1", 3)
    [leased] = await q.pop("orders", group="g", batch=10, subscription=ALL)
    assert leased.payload == 3
    await q.ack(leased)
    await q.push("orders", "p1", 4)
    clock.advance(1)
    assert payloads(await q.pop("orders", group="g", subscription=NEW)) == [4], "a later wish changes nothing"


async def test_rule_20_the_first_contact_may_be_with_a_queue_that_is_not_there_yet(q: Driver, clock: FakeClock) -> None:
    assert await q.pop("orders", group="new", subscription=NEW) == []
    assert await q.pop("orders", "p1", group="new too", subscription=NEW) == []
    assert await q.pop("orders", group="all", subscription=ALL) == []
    clock.advance(1)
    await q.push("orders", "p1", 1)
    clock.advance(1)
    for group in ("new", "new too", "all"):
        assert payloads(await q.pop("orders", group=group, subscription=NEW)) == [1], group


async def test_rule_20_what_was_pushed_before_the_contact_is_old_even_in_its_microsecond(
    q: Driver, either: Workers
) -> None:
    await q.push("orders", "p1", 1)
    assert await either.take(subscription=NEW) == []
    await q.push("orders", "p1", 2)
    await q.push("orders", "p2", 3)
    assert await Workers(q, group="later", mode=either.mode).take(subscription=NEW) == []
    assert await either.drain() == [2, 3], "what was pushed after it is new"
    assert (await either.stats()).lag == 0


@pytest.mark.parametrize("partition", [None, "p1"], ids=["with all partitions", "with one"])
async def test_rule_20_the_start_is_for_all_partitions(q: Driver, clock: FakeClock, partition: str | None) -> None:
    for name in ("p1", "p2", "p3"):
        await q.push("orders", name, f"{name} old")
    clock.advance(1)
    assert await q.pop("orders", partition, group="g", batch=10, partitions=10, subscription=NEW) == []
    clock.advance(1)
    for name in ("p1", "p2", "p3", "newer"):
        await q.push("orders", name, f"{name} new", f"{name} too")
    got = await q.pop("orders", group="g", batch=10, partitions=10)
    assert sorted(map(str, payloads(got))) == sorted(
        f"{n} {x}" for n in ("p1", "p2", "p3", "newer") for x in ("new", "too")
    )


async def test_rule_20_the_start_is_per_queue_and_group(q: Driver, clock: FakeClock) -> None:
    for name in ("orders", "bills"):
        await q.push(name, "p1", 1)
    clock.advance(1)
    assert await q.pop("orders", group="g", subscription=NEW) == []
    assert payloads(await q.pop("bills", group="g")) == [1]
    assert payloads(await q.pop("orders", group="h")) == [1]


async def test_rule_20_a_namespace_pop_is_a_contact_with_each_of_its_queues(q: Driver, clock: FakeClock) -> None:
    """The group was there before the later queue: whatever is pushed to it comes later than the first contact."""
    for name in ("ns.a", "ns.b"):
        await q.push(name, "p1", f"{name} old")
    clock.advance(1)
    for namespace in ("ns", "empty"):
        assert await q.pop(namespace=namespace, group="g", subscription=NEW) == []
    clock.advance(1)
    for name in ("ns.a", "ns.b", "ns.later", "empty.a"):
        await q.push(name, "p1", f"{name} new")
    clock.advance(1)
    for namespace, wanted in (("ns", ["ns.a new", "ns.b new", "ns.later new"]), ("empty", ["empty.a new"])):
        got = await q.pop(namespace=namespace, group="g", batch=10, partitions=10, subscription=NEW)
        assert payloads(got) == wanted


@pytest.mark.parametrize("forget", [True, False])
async def test_rule_20_a_deleted_group_starts_again(q: Driver, engine: Engine, clock: FakeClock, forget: bool) -> None:
    """Without its subscription as a new one; with it, where it once started."""
    await q.push("orders", "p1", 1)
    clock.advance(1)
    assert await q.pop("orders", group="g", subscription=NEW) == []
    clock.advance(1)
    await q.push("orders", "p1", 2)
    assert await q.drain("orders", group="g") == [2]
    deletion = await engine.delete_group("g", "orders", forget)
    assert (deletion.partitions, deletion.subscriptions) == (1, int(forget))
    clock.advance(1)
    again = await q.pop("orders", group="g", batch=10, subscription=ALL)
    assert payloads(again) == ([1, 2] if forget else [2])


async def test_rule_20_deleting_a_group_voids_its_leases(q: Driver, engine: Engine) -> None:
    await q.push("orders", "p1", 1)
    await q.push("bills", "p1", 2)
    [leased], [other] = await q.pop("orders", group="g"), await q.pop("bills", group="g")
    await engine.delete_group("g", "orders", True)
    assert not (await q.ack(leased)).success
    assert (await q.ack(other)).success
    assert payloads(await q.pop("orders", group="g")) == [1]


async def test_rule_20_a_group_can_be_deleted_everywhere(q: Driver, engine: Engine) -> None:
    for name in ("orders", "bills"):
        await q.push(name, "p1", 1)
        await q.drain(name, group="g")
        await q.drain(name, group="h")
    deletion = await engine.delete_group("g", None, True)
    assert (deletion.partitions, deletion.subscriptions) == (2, 2)
    assert {one.group for one in await engine.group_stats()} == {"h"}
    assert (await engine.delete_group("g", None, True)).partitions == 0
    for name in ("orders", "bills"):
        assert await q.drain(name, group="g") == [1]
        assert await q.drain(name, group="h") == []


async def test_rule_20_resubscribing_moves_the_start_but_no_cursor(q: Driver, engine: Engine, clock: FakeClock) -> None:
    await q.push("orders", "p1", 1)
    clock.advance(10)
    await q.push("orders", "p1", 2)
    assert await q.drain("orders", "p1", group="g") == [1, 2]
    assert await engine.resubscribe("g", clock.now() - 5 * SECOND) == 1
    assert await q.pop("orders", group="g") == []
    [group] = await engine.group_stats("g")
    assert group.subscription == since(clock.now() - 5 * SECOND)
    await engine.delete_group("g", "orders", False)
    assert await q.drain("orders", group="g") == [2]
    assert await engine.resubscribe("unknown", clock.now()) == 0


# Rule 21: moving a group through the history -------------------------------------------------------------


async def history(q: Driver, *partitions: str, each: int = 4) -> int:
    """Push messages 1 ... `each` to each partition, ten seconds apart; the time of the first."""
    start = q.clock.now()
    for number in range(1, each + 1):
        for name in partitions:
            await q.push("orders", name, number)
        q.clock.advance(10)
    return start


async def test_rule_21_seek_to_the_end(q: Driver, either: Workers) -> None:
    await history(q, "p1")
    await q.ack_all(await either.take())
    outcome = await q.seek("orders", group="workers", to_end=True)
    assert outcome == SeekOutcome(partitions=1, next_offset=5)
    assert (await either.take(), (await either.stats()).lag) == ([], 0)
    await q.push("orders", "p1", 5)
    assert await either.drain() == [5]


async def test_rule_21_seek_to_a_time_goes_on_after_it(q: Driver, either: Workers) -> None:
    start = await history(q, "p1")
    await either.drain()
    for moment, wanted in (
        (start - 1, [1, 2, 3, 4]),
        (start, [2, 3, 4]),
        (start + 15_000_000, [3, 4]),
        (start + 30_000_000, []),
    ):
        assert (await q.seek("orders", group="workers", timestamp=moment)).partitions == 1
        assert await either.drain() == wanted


async def test_rule_21_seek_to_an_offset_delivers_that_message_next(q: Driver, either: Workers) -> None:
    await history(q, "p1")
    await either.take(auto_ack=True)
    for offset in (4, 3, 1, 1, 2):
        outcome = await q.seek("orders", "p1", group="workers", offset=offset)
        assert outcome == SeekOutcome(partitions=1, next_offset=offset)
        position = await either.position()
        assert (position.cursor, position.lag) == (offset - 1, 5 - offset)
        assert await either.drain() == list(range(offset, 5))


async def test_rule_21_seek_one_partition_or_all_for_one_group(q: Driver) -> None:
    await history(q, "p1", "p2", "p3")
    for group in ("a", "b"):
        await q.drain("orders", group=group)
    assert (await q.seek("orders", "p2", group="a", offset=4)).partitions == 1
    assert await q.drain("orders", group="a") == [4]
    assert (await q.seek("orders", group="a", offset=4)).partitions == 3
    assert await q.drain("orders", group="a") == [4, 4, 4]
    assert await q.drain("orders", group="b") == []


async def test_rule_21_open_leases_of_the_group_are_void(q: Driver, either: Workers) -> None:
    await history(q, "p1", "p2")
    mine, second = await either.take(2, "p1"), await either.take(1, "p2")
    [theirs] = await Workers(q, group="other", mode=either.mode).take(1, "p1")
    await q.seek("orders", "p1", group="workers", offset=1)
    assert [(await q.ack(leased)).success for leased in mine] == [False, False]
    assert not (await q.renew(mine.lease)).success
    assert await q.engine.lease_ends([mine.lease]) == [None]
    assert (await q.ack(second[0])).success, "another partition"
    assert (await q.ack(theirs)).success, "another group"
    assert payloads(await either.take(10, "p1")) == [1, 2, 3, 4]


async def test_rule_21_a_void_lease_settles_nothing_even_past_the_cursor(q: Driver) -> None:
    await history(q, "p1")
    got = await q.pop("orders", batch=3)
    await q.seek("orders", offset=2)
    outcomes = await q.settle(*(settlement(one, "failed") for one in got))
    assert [one.success for one in outcomes] == [False, False, False]
    assert payloads(await q.pop("orders", batch=10)) == [2, 3, 4]


@pytest.mark.parametrize("before", ["a batch ran out", "some were settled"])
async def test_rule_21_after_a_seek_batches_are_whole_again(q: Driver, clock: FakeClock, before: str) -> None:
    await history(q, "p1")
    got = await q.pop("orders", batch=4)
    if before == "some were settled":
        await q.ack_all([got[1], got[3]])
    else:
        clock.advance(300)
        await q.drain("orders")
    await q.seek("orders", offset=1)
    assert payloads(await q.pop("orders", batch=4)) == [1, 2, 3, 4]


async def test_rule_21_a_message_that_waits_for_its_retry_can_be_skipped(q: Driver) -> None:
    await q.configure("orders", retry_delay=60_000)
    await history(q, "p1")
    [leased] = await q.pop("orders")
    await q.fail(leased)
    assert await q.pop("orders") == []
    await q.seek("orders", offset=2)
    assert await q.drain("orders") == [2, 3, 4]


async def test_rule_21_what_does_not_exist_is_not_found_in_place(q: Driver, engine: Engine) -> None:
    await history(q, "p1")
    await q.drain("orders", group="g")
    seeks = [
        Seek(queue="nowhere", group="g", to_end=True),
        Seek(queue="orders", group="g", partition="p9", to_end=True),
        Seek(queue="orders", group="g", offset=3),
    ]
    nowhere, no_partition, moved = await engine.seek(seeks)
    assert isinstance(nowhere, NotFound) and isinstance(no_partition, NotFound)
    assert moved == SeekOutcome(partitions=1, next_offset=3)
    assert await q.drain("orders", group="g") == [3, 4]
