"""Rule 21 in shared groups: a seek forgets all that the group did there, and begins anew at its target."""

from __future__ import annotations

from hark.clock import FakeClock
from hark.engine.api import Engine
from hark.model import SeekOutcome

from .driver import Driver, message, payloads
from .workers import Workers, attempts


async def test_rule_21_back_to_the_beginning(q: Driver, workers: Workers) -> None:
    await q.push("orders", "p1", 1, 2, 3)
    await workers.drain()
    outcome = await q.seek("orders", group="workers", offset=1)
    assert outcome == SeekOutcome(partitions=1, next_offset=1)
    assert (await workers.stats()).lag == 3
    assert await workers.drain() == [1, 2, 3]


async def test_rule_21_forward_skips(q: Driver, workers: Workers) -> None:
    await q.push("orders", "p1", 1, 2, 3, 4)
    await workers.take(auto_ack=True)
    await q.seek("orders", group="workers", offset=4)
    assert (await workers.stats()).lag == 1
    assert await workers.drain() == [4]


async def test_rule_21_to_the_end_and_back_again(q: Driver, workers: Workers) -> None:
    await q.push("orders", "p1", 1, 2, 3)
    await workers.take(auto_ack=True)
    for _ in range(3):
        await q.seek("orders", group="workers", to_end=True)
        assert await workers.take() == []
        assert (await workers.stats()).lag == 0
        await q.seek("orders", group="workers", offset=2)
        assert payloads(await workers.take(10)) == [2, 3]


async def test_rule_21_to_a_time(q: Driver, workers: Workers, clock: FakeClock) -> None:
    start = clock.now()
    for number in range(4):
        await q.push("orders", "p1", number, priority=number)
        clock.advance(10)
    await workers.drain()
    await q.seek("orders", group="workers", timestamp=start + 15_000_000)
    assert await workers.drain() == [3, 2]


async def test_rule_21_open_leases_are_void(q: Driver, workers: Workers, engine: Engine) -> None:
    await q.push("orders", "p1", 1, 2, 3)
    await q.push("orders", "p2", 4)
    got, beside = await workers.take(2, "p1"), await workers.take(1, "p2")
    [theirs] = await Workers(q, group="others").take(1, "p1")
    await q.seek("orders", "p1", group="workers", offset=1)
    assert [(await q.ack(held)).success for held in got] == [False, False]
    assert not (await q.renew(got.lease)).success
    assert await engine.lease_ends([got.lease]) == [None]
    assert (await q.ack(beside[0])).success, "another partition"
    assert (await q.ack(theirs)).success, "another group"
    assert payloads(await workers.take(10)) == [1, 2, 3]


async def test_rule_21_attempts_and_waits_are_forgotten(q: Driver, workers: Workers) -> None:
    await q.push("orders", "p1", 1, 2)
    for held in await workers.take(2):
        await q.fail(held, delay_ms=60_000)
    assert await workers.take() == []
    await q.seek("orders", group="workers", offset=1)
    assert attempts(await workers.take(10)) == [(1, 1), (2, 1)]


async def test_rule_21_a_retry_can_be_skipped(q: Driver, workers: Workers, clock: FakeClock) -> None:
    await q.push("orders", "p1", 1, 2, 3)
    [held] = await workers.take()
    await q.fail(held, delay_ms=1000)
    await q.seek("orders", group="workers", offset=2)
    clock.advance(10)
    assert await workers.drain() == [2, 3]


async def test_rule_21_delayed_messages_beyond_the_target_come_at_their_time_again(
    q: Driver, workers: Workers, clock: FakeClock
) -> None:
    await q.push_messages(
        message("orders", "p1", "first", delay_ms=1000),
        message("orders", "p1", "second", delay_ms=3000),
        message("orders", "p1", "plain"),
    )
    clock.advance(1)
    assert await workers.drain() == ["plain", "first"]
    await q.seek("orders", group="workers", offset=1)
    assert await workers.drain() == ["plain", "first"]
    clock.advance(2)
    assert await workers.drain() == ["second"]
    await q.seek("orders", group="workers", offset=2)
    assert await workers.drain() == ["plain", "second"]
    await q.seek("orders", group="workers", to_end=True)
    assert await workers.drain() == []


async def test_rule_21_a_delayed_message_before_the_target_is_skipped(
    q: Driver, workers: Workers, clock: FakeClock
) -> None:
    await q.push("orders", "p1", "delayed", delay_ms=1000)
    await q.push("orders", "p1", "plain")
    await workers.take(1, "nowhere")
    await q.seek("orders", group="workers", offset=2)
    clock.advance(5)
    assert await workers.drain() == ["plain"]
    assert (await workers.stats()).lag == 0


async def test_rule_21_every_priority_begins_again(q: Driver, workers: Workers) -> None:
    await q.push_messages(*(message("orders", "p1", n, priority=n) for n in (0, 9, 4, 0, 9)))
    await workers.drain()
    await q.seek("orders", group="workers", offset=3)
    assert await workers.drain() == [9, 4, 0]


async def test_rule_21_a_seek_survives_a_restart(durable: Driver) -> None:
    q, workers = durable, Workers(durable)
    await q.push("orders", "p1", 1, 2, 3)
    await workers.drain()
    await q.seek("orders", group="workers", offset=2)
    await q.reopen()
    assert await workers.drain() == [2, 3]
