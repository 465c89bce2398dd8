"""Rule 23: what leaves by itself, and what never does, in ordered and in shared groups."""

from __future__ import annotations

from hark.clock import FakeClock
from hark.engine.api import Engine
from hark.model import QUEUE_MODE, MessageFilter

from .driver import Driver, message, payloads
from .workers import TICK, Workers

HOUR = 3600
DAY = 86400


async def stored(q: Driver, queue: str = "orders") -> int:
    """How many messages of a queue are in the store."""
    return len(await q.engine.messages(MessageFilter(queue=queue, limit=10_000)))


# Time to live ----------------------------------------------------------------------------------------------


async def test_rule_23_the_queue_s_ttl_ends_exactly(q: Driver, either: Workers) -> None:
    await q.configure("orders", ttl=10)
    await q.push("orders", "p1", 1, 2)
    q.clock.advance(10 - TICK)
    assert payloads(await either.take(auto_ack=True)) == [1]
    q.clock.advance(TICK)
    assert await either.take() == []
    assert await either.take(1, "p1") == []


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


async def test_rule_23_expired_messages_are_stepped_over_and_counted(q: Driver, either: Workers) -> None:
    await q.push_messages(
        message("orders", "p1", 1),
        message("orders", "p1", 2, ttl_ms=1000, priority=9),
        message("orders", "p1", 3, ttl_ms=1000),
        message("orders", "p1", 4),
    )
    q.clock.advance(1)
    assert payloads(await either.take(10, auto_ack=True)) == [1, 4]
    await q.collect()
    assert (await q.stats("orders")).expired == 2
    assert await q.dead_letters() == []
    assert (await either.stats()).lag == 0


async def test_rule_23_an_expired_head_does_not_block_its_partition(q: Driver, clock: FakeClock) -> None:
    await q.push("orders", "p1", 1, ttl_ms=1000, delay_ms=60_000)
    await q.push("orders", "p1", 2)
    assert await q.pop("orders") == []
    clock.advance(1)
    assert payloads(await q.pop("orders")) == [2]


async def test_rule_23_a_leased_message_does_not_expire(q: Driver, either: Workers) -> None:
    await q.configure("orders", ttl=10, lease_time=60)
    await q.push("orders", "p1", 1)
    [leased] = await either.take()
    q.clock.advance(11)
    await q.collect()
    assert (await q.ack(leased)).success
    assert (await either.stats()).lag == 0


async def test_rule_23_a_retry_whose_time_to_live_is_over_does_not_come(q: Driver, either: Workers) -> None:
    await q.push("orders", "p1", 1, ttl_ms=2000)
    await q.push("orders", "p1", 2)
    [leased] = await either.take()
    await q.fail(leased, delay_ms=3000)
    q.clock.advance(3)
    assert await either.drain() == [2]
    assert await either.take() == []


# Retention -------------------------------------------------------------------------------------------------


async def test_rule_23_unconsumed_messages_are_never_removed_by_default(q: Driver, clock: FakeClock) -> None:
    await q.push("untouched", "p1", 0)
    await q.push("orders", "p1", 1, 2, 3)
    got = await q.pop("orders", batch=2)
    await q.ack(got[0])
    clock.advance(20 * DAY)
    assert await q.collect() == 1
    assert await q.drain("orders") == [2, 3]
    clock.advance(1000 * DAY)
    await q.collect()
    assert payloads(await q.pop("untouched")) == [0]


async def test_rule_23_nor_what_a_shared_group_holds_or_waits_for(q: Driver) -> None:
    workers = Workers(q)
    await q.configure("orders", lease_time=100 * DAY)
    await q.push("orders", "p1", 1, 2, 3, 4)
    await q.push("orders", "p1", 5, delay_ms=1000 * DAY)
    got = await workers.take(3)
    await q.ack(got[1])
    await q.retry(got[2], delay_ms=1000 * 20 * DAY)
    q.clock.advance(20 * DAY)
    assert await q.collect() == 1
    assert sorted(map(str, await workers.drain())) == ["3", "4", "5"]
    assert (await q.ack(got[0])).success


async def test_rule_23_settled_messages_are_kept_seven_days_by_default(q: Driver, either: Workers) -> None:
    await q.push("orders", "p1", 1, 2)
    await either.drain()
    q.clock.advance(7 * DAY - 1)
    assert await q.collect() == 0
    assert await Workers(q, group="late", mode=either.mode).drain() == [1, 2]
    q.clock.advance(2)
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


async def test_rule_23_a_message_is_kept_until_every_group_has_settled_it(q: Driver, either: Workers) -> None:
    await q.push("orders", "p1", 1, 2, 3, 4)
    await q.drain("orders", group="fast")
    got = await either.take(4)
    await q.ack_all([got[0], got[2]])
    await q.engine.release([got.lease])
    q.clock.advance(8 * DAY)
    # Behind its cursor an ordered group keeps what it has settled.
    assert await q.collect() == (1 if either.mode == "ordered" else 2)
    assert await either.drain() == [2, 4]
    assert (await either.stats()).lag == 0


async def test_rule_23_a_group_holds_partitions_that_it_has_not_changed_yet(q: Driver, either: Workers) -> None:
    await q.push("orders", "p1", 1)
    await q.push("orders", "p2", 2)
    await either.take(1, "p1", auto_ack=True)
    await q.drain("orders", group="fast")
    q.clock.advance(8 * DAY)
    await q.collect()
    assert await either.drain() == [2]


async def test_rule_23_an_idle_group_no_longer_holds_retention(q: Driver, either: Workers) -> None:
    await q.push("orders", "p1", 1)
    idle = Workers(q, group="idle", mode=either.mode)
    await idle.take()
    await either.drain()
    for days, removed in ((29, 0), (2, 1)):
        q.clock.advance(days * DAY)
        await either.take()
        assert await q.collect() == removed
    assert await idle.take() == []


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


async def test_rule_23_max_wait_time_removes_what_some_group_has_not_settled(q: Driver, either: Workers) -> None:
    await q.configure("orders", max_wait_time_seconds=HOUR)
    await q.push("orders", "p1", 1, 2, 3)
    await Workers(q, group="faster", mode=either.mode).take(2, auto_ack=True)
    await either.take(auto_ack=True)
    [leased] = await either.take()
    await q.retry(leased, delay_ms=1000 * DAY)
    q.clock.advance(HOUR - 1)
    assert await q.collect() == 0
    q.clock.advance(2)
    assert await q.collect() == 2
    q.clock.advance(DAY)
    assert await either.take() == []
    assert (await either.stats()).lag == 0
    assert await stored(q) == 1, "what everybody settled stays for late groups"


async def test_rule_23_max_wait_time_removes_what_waits_before_later_settled_messages(q: Driver) -> None:
    await q.configure("orders", max_wait_time_seconds=60)
    await q.push("orders", "p1", 1)
    leased = await q.pop("orders", "p1", group_mode="shared")
    await q.push("orders", "p1", 2, priority=5)
    await q.ack_all(leased)
    q.clock.advance(60)
    assert await q.collect() == 1
    assert await q.pop("orders", "p1", batch=10) == []


async def test_rule_23_max_wait_time_removes_a_requeued_message_before_later_settled_ones(q: Driver) -> None:
    await q.configure("orders", max_wait_time_seconds=60)
    await q.push("orders", "p1", 1, 2)
    await q.kill((await q.pop("orders", "p1"))[0])
    [letter] = await q.dead_letters()
    await q.requeue(letter)
    await q.push("orders", "p1", 3)
    again, *others = await q.pop("orders", "p1", batch=10)
    assert (again.payload, payloads(others)) == (1, [2, 3])
    await q.ack_all(others)
    await q.fail(again, delay_ms=1000_000)
    q.clock.advance(60)
    assert await q.collect() == 1
    assert await stored(q) == 3


async def test_rule_23_never_a_leased_message_except_by_purge(q: Driver, either: Workers) -> None:
    await q.configure(
        "orders", lease_time=100 * DAY, retention_enabled=True, retention_seconds=HOUR, max_wait_time_seconds=HOUR
    )
    await q.push("orders", "p1", 1, 2)
    await q.push("orders", "p1", 3, delay_ms=1000 * DAY)
    [leased] = await either.take()
    q.clock.advance(2 * DAY)
    await q.collect()
    assert (await stored(q), await either.take(10)) == (1, [])
    assert (await q.fail(leased)).success
    [again] = await either.take(10)
    assert again.payload == 1
    assert await q.engine.purge("orders") >= 1
    assert not (await q.fail(again)).success


async def test_rule_23_after_everything_was_removed_offsets_go_on_and_transaction_ids_are_free(q: Driver) -> None:
    await q.push("orders", "p1", 1, transaction_id="t1")
    await q.push("orders", "p1", 2)
    await q.drain("orders")
    q.clock.advance(8 * DAY)
    assert await q.collect() == 2
    assert [one.status for one in await q.push("orders", "p1", 3, transaction_id="t1")] == ["queued"]
    for group in ("late", QUEUE_MODE):
        [leased] = await q.pop("orders", group=group)
        assert (leased.payload, leased.message.offset) == (3, 3)


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
