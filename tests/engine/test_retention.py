"""Rule 23: what leaves by itself, and what never does."""

from __future__ import annotations

from hark.clock import FakeClock
from hark.engine.api import Engine
from hark.model import MessageFilter

from .driver import Driver, message, payloads, settlement

TICK = 0.000_001
HOUR = 3600
DAY = 86400


async def stored(q: Driver, queue: str = "orders") -> int:
    """How many messages of a queue are in the store."""
    return len(await q.engine.messages(MessageFilter(queue=queue, limit=10_000)))


# Time to live ----------------------------------------------------------------------------------------------


async def test_rule_23_by_default_messages_live_for_ever(q: Driver, clock: FakeClock) -> None:
    await q.push("orders", "p1", 1)
    clock.advance(1000 * DAY)
    assert await q.collect() == 0
    assert payloads(await q.pop("orders")) == [1]


async def test_rule_23_the_queue_s_ttl_ends_exactly(q: Driver, clock: FakeClock) -> None:
    await q.configure("orders", ttl=10)
    await q.push("orders", "p1", 1)
    clock.advance(10 - TICK)
    got = await q.pop("orders", group="in time")
    assert payloads(got) == [1]
    clock.advance(TICK)
    assert await q.pop("orders", group="late") == []
    assert await q.pop("orders", "p1", group="late") == []


async def test_rule_23_the_message_s_ttl_wins(q: Driver, clock: FakeClock) -> None:
    await q.configure("orders", ttl=10)
    await q.push("orders", "short", 1, ttl_ms=5000)
    await q.push("orders", "long", 2, ttl_ms=20_000)
    clock.advance(5)
    assert [one.payload for one in await q.pop("orders", "short", group="a")] == []
    clock.advance(14)
    assert payloads(await q.pop("orders", "long", group="a")) == [2]
    clock.advance(1)
    assert await q.pop("orders", "long", group="b") == []


async def test_rule_23_expired_messages_are_stepped_over_and_counted(q: Driver, clock: FakeClock) -> None:
    await q.push_messages(
        message("orders", "p1", 1),
        message("orders", "p1", 2, ttl_ms=1000),
        message("orders", "p1", 3, ttl_ms=1000),
        message("orders", "p1", 4),
    )
    clock.advance(1)
    assert payloads(await q.pop("orders", batch=10, auto_ack=True)) == [1, 4]
    await q.collect()
    assert (await q.stats("orders")).expired == 2
    assert await q.dead_letters() == []


async def test_rule_23_an_expired_head_does_not_block_its_partition(q: Driver, clock: FakeClock) -> None:
    await q.push("orders", "p1", 1, ttl_ms=1000, delay_ms=60_000)
    await q.push("orders", "p1", 2)
    assert await q.pop("orders") == []
    clock.advance(1)
    assert payloads(await q.pop("orders")) == [2]


async def test_rule_23_a_leased_message_does_not_expire(q: Driver, clock: FakeClock) -> None:
    await q.configure("orders", ttl=10)
    await q.push("orders", "p1", 1)
    [held] = await q.pop("orders")
    clock.advance(11)
    await q.collect()
    assert (await q.ack(held)).success
    assert await q.cursor("orders", "p1") == 1


# Retention -------------------------------------------------------------------------------------------------


async def test_rule_23_unconsumed_messages_are_never_removed_by_default(q: Driver, clock: FakeClock) -> None:
    await q.push("orders", "p1", 1, 2, 3)
    got = await q.pop("orders", batch=2)
    await q.ack(got[0])
    clock.advance(20 * DAY)
    assert await q.collect() == 1
    assert await q.drain("orders") == [2, 3]


async def test_rule_23_settled_messages_are_kept_seven_days_by_default(q: Driver, clock: FakeClock) -> None:
    await q.push("orders", "p1", 1, 2)
    await q.drain("orders")
    clock.advance(7 * DAY - 1)
    assert await q.collect() == 0
    assert await q.drain("orders", group="late") == [1, 2]
    clock.advance(2)
    assert await q.collect() == 2
    assert await stored(q) == 0


async def test_rule_23_a_queue_may_keep_settled_messages_shorter_or_longer(q: Driver, clock: FakeClock) -> None:
    await q.configure("short", retention_enabled=True, completed_retention_seconds=HOUR)
    await q.configure("long", retention_enabled=True, completed_retention_seconds=20 * DAY)
    await q.configure("disabled", completed_retention_seconds=HOUR)
    for name in ("short", "long", "disabled"):
        await q.push(name, "p1", 1)
        await q.drain(name)
    clock.advance(2 * HOUR)
    assert await q.collect() == 1
    clock.advance(10 * DAY)
    assert await q.collect() == 1
    assert [await stored(q, name) for name in ("short", "long", "disabled")] == [0, 1, 0]
    clock.advance(10 * DAY)
    assert await q.collect() == 1


async def test_rule_23_a_message_is_kept_until_every_group_has_settled_it(q: Driver, clock: FakeClock) -> None:
    await q.push("orders", "p1", 1, 2)
    await q.drain("orders", group="fast")
    [held] = await q.pop("orders", group="slow")
    await q.ack(held)
    clock.advance(8 * DAY)
    assert await q.collect() == 1
    assert await q.drain("orders", group="slow") == [2]


async def test_rule_23_a_group_holds_partitions_that_it_has_not_touched_yet(q: Driver, clock: FakeClock) -> None:
    await q.push("orders", "p1", 1)
    await q.push("orders", "p2", 2)
    await q.pop("orders", "p1", group="slow", auto_ack=True)
    await q.drain("orders", group="fast")
    clock.advance(8 * DAY)
    await q.collect()
    assert await q.drain("orders", group="slow") == [2]


async def test_rule_23_settled_beyond_the_cursor_is_settled(q: Driver, clock: FakeClock) -> None:
    await q.push("orders", "p1", 1, 2, 3)
    got = await q.pop("orders", batch=3)
    await q.ack(got[1])
    clock.advance(8 * DAY)
    await q.collect()
    assert await q.drain("orders") == [1, 3]
    assert await q.cursor("orders", "p1") == 3


async def test_rule_23_an_idle_group_no_longer_holds_retention(q: Driver, clock: FakeClock) -> None:
    await q.push("orders", "p1", 1)
    await q.pop("orders", group="idle")
    await q.drain("orders", group="busy")
    clock.advance(29 * DAY)
    await q.pop("orders", group="busy")
    assert await q.collect() == 0
    clock.advance(2 * DAY)
    await q.pop("orders", group="busy")
    assert await q.collect() == 1
    assert await q.pop("orders", group="idle") == []


async def test_rule_23_retention_seconds_removes_by_age_consumed_or_not(q: Driver, clock: FakeClock) -> None:
    await q.configure("orders", retention_enabled=True, retention_seconds=HOUR)
    await q.configure("disabled", retention_seconds=HOUR)
    for name in ("orders", "disabled"):
        await q.push(name, "p1", 1, 2)
        await q.pop(name, auto_ack=True)
    clock.advance(HOUR - 1)
    assert await q.collect() == 0
    clock.advance(2)
    await q.push("orders", "p1", 3)
    assert await q.collect() == 2
    assert await q.drain("orders") == [3]
    assert await q.drain("disabled") == [2]


async def test_rule_23_max_wait_time_removes_what_some_group_has_not_settled(q: Driver, clock: FakeClock) -> None:
    await q.configure("orders", max_wait_time_seconds=HOUR)
    await q.push("orders", "p1", 1, 2, 3)
    await q.pop("orders", group="a", auto_ack=True)
    await q.pop("orders", group="b", batch=2, auto_ack=True)
    clock.advance(HOUR - 1)
    assert await q.collect() == 0
    clock.advance(2)
    assert await q.collect() == 2
    assert await q.pop("orders", group="a") == []
    assert await stored(q) == 1, "what everybody settled stays for late groups"


async def test_rule_23_never_a_leased_message_except_by_purge(q: Driver, engine: Engine, clock: FakeClock) -> None:
    await q.configure(
        "orders",
        lease_time=100 * DAY,
        retention_enabled=True,
        retention_seconds=HOUR,
        max_wait_time_seconds=HOUR,
    )
    await q.push("orders", "p1", 1, 2)
    [held] = await q.pop("orders")
    clock.advance(10 * DAY)
    await q.collect()
    assert (await q.settle(settlement(held, "failed")))[0].success
    [again] = await q.pop("orders")
    assert again.payload == 1
    assert await engine.purge("orders") >= 1
    assert (await q.settle(settlement(again)))[0].code == "not_found"


async def test_rule_23_offsets_go_on_after_everything_was_removed(q: Driver, clock: FakeClock) -> None:
    await q.push("orders", "p1", 1, 2)
    await q.drain("orders")
    clock.advance(8 * DAY)
    assert await q.collect() == 2
    await q.push("orders", "p1", 3)
    [held] = await q.pop("orders")
    assert (held.payload, held.message.offset) == (3, 3)
    [late] = await q.pop("orders", group="late")
    assert late.payload == 3


async def test_rule_23_retention_ends_the_life_of_a_transaction_id(q: Driver, clock: FakeClock) -> None:
    await q.push("orders", "p1", 1, transaction_id="t1")
    await q.drain("orders")
    clock.advance(8 * DAY)
    await q.collect()
    assert [one.status for one in await q.push("orders", "p1", 2, transaction_id="t1")] == ["queued"]
    assert await q.drain("orders") == [2]


async def test_rule_23_collect_takes_bounded_steps(q: Driver, engine: Engine, clock: FakeClock) -> None:
    for name in ("p1", "p2", "p3"):
        await q.push("orders", name, *range(20))
    await q.drain("orders")
    clock.advance(8 * DAY)
    removed, steps = 0, 0
    while True:
        step = await engine.collect(limit=7)
        assert step.removed <= step.examined
        removed, steps = removed + step.removed, steps + 1
        if not step.more:
            break
        assert steps < 1000
    assert removed == 60
    assert steps > 1
    assert await stored(q) == 0
