"""Rule 20: where a new group starts."""

from __future__ import annotations

import pytest

from hark.clock import SECOND, FakeClock
from hark.engine.api import Engine
from hark.model import Subscription

from .driver import ALL, NEW, Driver, payloads


def since(moment: int) -> Subscription:
    """A group that starts after that time."""
    return Subscription("timestamp", moment)


async def test_rule_20_all_is_the_default_and_starts_at_the_first_message(q: Driver) -> None:
    await q.push("orders", "p1", 1, 2)
    assert payloads(await q.pop("orders", group="g", batch=10)) == [1, 2]


async def test_rule_20_new_starts_after_what_is_there(q: Driver, clock: FakeClock) -> None:
    await q.push("orders", "p1", 1, 2)
    clock.advance(1)
    assert await q.pop("orders", group="g", subscription=NEW) == []
    clock.advance(1)
    await q.push("orders", "p1", 3)
    assert payloads(await q.pop("orders", group="g", batch=10)) == [3]


async def test_rule_20_a_timestamp_starts_after_that_time(q: Driver, clock: FakeClock) -> None:
    await q.push("orders", "p1", 1)
    clock.advance(10)
    await q.push("orders", "p1", 2)
    at_second = clock.now()
    clock.advance(10)
    await q.push("orders", "p1", 3)
    for group, start, wanted in (
        ("exactly", at_second, [3]),
        ("just before", at_second - 1, [2, 3]),
        ("long before", at_second - 3600 * SECOND, [1, 2, 3]),
        ("after all", clock.now(), []),
    ):
        assert payloads(await q.pop("orders", group=group, batch=10, subscription=since(start))) == wanted


async def test_rule_20_the_start_is_fixed_by_a_first_contact_that_returns_nothing(q: Driver, clock: FakeClock) -> None:
    await q.push("orders", "p1", 1)
    assert await q.pop("orders", group="g", subscription=NEW) == []
    clock.advance(1)
    await q.push("orders", "p1", 2)
    [held] = await q.pop("orders", group="g", batch=10, subscription=ALL)
    assert held.payload == 2
    await q.ack(held)
    await q.push("orders", "p1", 3)
    clock.advance(1)
    assert payloads(await q.pop("orders", group="g", subscription=NEW)) == [3], "a later wish changes nothing"


async def test_rule_20_the_first_contact_may_be_with_a_queue_that_does_not_exist_yet(
    q: Driver, clock: FakeClock
) -> None:
    assert await q.pop("orders", group="new", subscription=NEW) == []
    assert await q.pop("orders", "p1", group="new too", subscription=NEW) == []
    assert await q.pop("orders", group="all", subscription=ALL) == []
    clock.advance(1)
    await q.push("orders", "p1", 1)
    clock.advance(1)
    for group in ("new", "new too", "all"):
        assert payloads(await q.pop("orders", group=group, subscription=NEW)) == [1], group


async def test_rule_20_pushes_in_the_microsecond_of_the_contact_are_delivered(q: Driver) -> None:
    await q.push("orders", "p1", 1)
    assert await q.pop("orders", group="g", subscription=NEW) == []
    await q.push("orders", "p1", 2)
    await q.push("orders", "p2", 3)
    assert await q.drain("orders", group="g") == [2, 3]


async def test_rule_20_what_was_pushed_before_the_contact_is_old_even_in_its_microsecond(q: Driver) -> None:
    await q.push("orders", "p1", 1)
    assert await q.pop("orders", group="g", subscription=NEW) == []
    await q.push("orders", "p1", 2)
    assert await q.pop("orders", group="h", subscription=NEW) == []
    assert await q.drain("orders", group="g") == [2]


async def test_rule_20_newer_partitions_start_at_their_first_message(q: Driver, clock: FakeClock) -> None:
    await q.push("orders", "old", 1)
    clock.advance(1)
    assert await q.pop("orders", group="g", subscription=NEW) == []
    clock.advance(1)
    await q.push("orders", "newer", 2, 3)
    assert await q.drain("orders", group="g") == [2, 3]


async def test_rule_20_a_contact_with_one_partition_fixes_the_start_in_all(q: Driver, clock: FakeClock) -> None:
    await q.push("orders", "p1", 1)
    await q.push("orders", "p2", 2)
    clock.advance(1)
    assert await q.pop("orders", "p1", group="g", subscription=NEW) == []
    clock.advance(1)
    await q.push("orders", "p2", 3)
    assert await q.drain("orders", group="g") == [3]


async def test_rule_20_old_partitions_are_resolved_by_the_time_of_the_contact(q: Driver, clock: FakeClock) -> None:
    for name in ("p1", "p2", "p3"):
        await q.push("orders", name, f"{name} old")
    clock.advance(1)
    assert await q.pop("orders", group="g", batch=10, partitions=10, subscription=NEW) == []
    clock.advance(1)
    for name in ("p1", "p2", "p3"):
        await q.push("orders", name, f"{name} new")
    got = await q.pop("orders", group="g", batch=10, partitions=10)
    assert payloads(got) == ["p1 new", "p2 new", "p3 new"]


async def test_rule_20_the_start_is_per_queue_and_group(q: Driver, clock: FakeClock) -> None:
    for name in ("orders", "bills"):
        await q.push(name, "p1", 1)
    clock.advance(1)
    assert await q.pop("orders", group="g", subscription=NEW) == []
    assert payloads(await q.pop("bills", group="g")) == [1]
    assert payloads(await q.pop("orders", group="h")) == [1]


async def test_rule_20_a_namespace_pop_is_a_contact_with_each_of_its_queues(q: Driver, clock: FakeClock) -> None:
    for name in ("ns.a", "ns.b"):
        await q.push(name, "p1", f"{name} old")
    clock.advance(1)
    assert await q.pop(namespace="ns", group="g", subscription=NEW) == []
    clock.advance(1)
    for name in ("ns.a", "ns.b"):
        await q.push(name, "p1", f"{name} new")
    got = await q.pop(namespace="ns", group="g", batch=10, partitions=10, subscription=NEW)
    assert payloads(got) == ["ns.a new", "ns.b new"]


async def test_rule_20_a_queue_that_joins_a_namespace_later_is_all_new(q: Driver, clock: FakeClock) -> None:
    """The group was there before the queue: whatever is pushed to it comes later than the first contact."""
    assert await q.pop(namespace="ns", group="g", subscription=NEW) == []
    clock.advance(1)
    await q.push("ns.a", "p1", 1)
    clock.advance(1)
    assert payloads(await q.pop(namespace="ns", group="g", subscription=NEW)) == [1]


async def test_rule_20_the_default_group_starts_like_any_other(q: Driver) -> None:
    await q.push("orders", "p1", 1, 2)
    assert payloads(await q.pop("orders", batch=10)) == [1, 2]


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
    [held], [other] = await q.pop("orders", group="g"), await q.pop("bills", group="g")
    await engine.delete_group("g", "orders", True)
    assert not (await q.ack(held)).success
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
