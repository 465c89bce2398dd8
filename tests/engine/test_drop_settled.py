"""Queues that keep nothing: a message is removed as soon as every group has settled it."""

from __future__ import annotations

import pytest

from hark.clock import FakeClock
from hark.engine.api import Engine
from hark.model import GroupMode, MessageFilter

from .driver import Driver, Got, message, payloads, settlement
from .workers import Workers


@pytest.fixture
async def dropping(q: Driver) -> Driver:
    """The queue "orders", which keeps nothing."""
    await q.configure("orders", drop_settled=True)
    return q


async def left(q: Driver) -> list[int]:
    """The offsets of what is stored, in order."""
    return sorted(one.offset for one in await q.engine.messages(MessageFilter(queue="orders", limit=1000)))


async def take(q: Driver, mode: GroupMode, batch: int = 1, auto_ack: bool = False) -> Got:
    """Pop of the only group, of either kind."""
    return await q.pop("orders", group="g", group_mode=mode, batch=batch, auto_ack=auto_ack)


@pytest.mark.parametrize("mode", ["ordered", "shared"])
async def test_what_the_only_group_settled_is_gone_at_once(dropping: Driver, mode: GroupMode) -> None:
    q = dropping
    await q.push("orders", "p1", 1, 2, 3, 4)
    got = await take(q, mode, 3)
    await q.ack(got[0])
    assert await left(q) == [2, 3, 4]
    await q.settle(settlement(got[2]), settlement(got[1]))
    assert await left(q) == [4]
    counts = (await q.stats("orders")).counts
    assert (counts.total, counts.pending, counts.processing, counts.completed) == (1, 1, 0, 0)


async def test_settled_out_of_order(dropping: Driver, workers: Workers) -> None:
    q = dropping
    await q.push("orders", "p1", 1, 2, 3)
    got = await workers.take(3)
    await q.ack(got[1])
    assert await left(q) == [1, 3]
    await q.fail(got[0])
    await q.ack(got[2])
    assert await left(q) == [1]
    assert (await workers.stats()).lag == 1
    assert await workers.drain() == [1]
    assert await left(q) == []


@pytest.mark.parametrize("mode", ["ordered", "shared"])
async def test_auto_ack_and_dead_letters_settle(dropping: Driver, mode: GroupMode) -> None:
    q = dropping
    await q.push("orders", "p1", 1, 2, 3)
    await take(q, mode, auto_ack=True)
    [held] = await take(q, mode)
    await q.kill(held)
    assert await left(q) == [3]
    [letter] = await q.dead_letters("orders")
    assert bytes(letter.payload) == b"2"


async def test_a_transaction_settles(dropping: Driver, workers: Workers) -> None:
    q = dropping
    await q.push("orders", "p1", 1, 2)
    got = await workers.take(2)
    assert (await q.transact(settlement(got[0]), message("bills", "p1", 1))).success
    assert await left(q) == [2]


async def test_exhausted_by_expiry_it_is_gone(dropping: Driver, workers: Workers, clock: FakeClock) -> None:
    q = dropping
    await q.push("orders", "p1", 1, backoff_ms=())
    await workers.take()
    clock.advance(300)
    assert len(await q.dead_letters("orders")) == 1
    assert await left(q) == []


async def test_completed_of_what_is_gone_is_a_success(dropping: Driver, workers: Workers) -> None:
    q = dropping
    await q.push("orders", "p1", 1, 2, 3)
    got = await workers.take(2)
    await q.ack(got[1])
    for lease in (got.lease, None):
        [outcome] = await q.settle(settlement(got[1], lease=lease, named="id alone"))
        assert (outcome.success, outcome.lease_id) == (True, None)
    [outcome] = await q.settle(settlement(got[1], "failed", named="id alone"))
    assert not outcome.success
    assert await workers.drain() == [3]


async def test_a_dead_letter_that_is_gone_is_still_refused(dropping: Driver, workers: Workers) -> None:
    q = dropping
    await q.push("orders", "p1", 1)
    [held] = await workers.take()
    await q.kill(held)
    assert (await q.ack(held)).code == "dead_lettered"


async def test_it_is_kept_until_every_group_has_settled_it(dropping: Driver, workers: Workers) -> None:
    q = dropping
    await q.push("orders", "p1", 1, 2)
    await q.pop("orders", "nowhere", group="ordered")
    await workers.drain()
    await q.collect()
    assert await left(q) == [1, 2]
    await q.ack_all(await q.pop("orders", group="ordered"))
    await q.collect()
    assert await left(q) == [2]


async def test_a_late_group_finds_only_what_is_left(dropping: Driver, workers: Workers) -> None:
    q = dropping
    await q.push("orders", "p1", 1, 2, 3)
    got = await workers.take(2)
    await q.ack(got[0])
    assert await Workers(q, group="late").drain() == [2, 3]
    assert await q.drain("orders", group="late and ordered") == [2, 3]


async def test_a_seek_back_finds_only_what_is_left(dropping: Driver, workers: Workers) -> None:
    q = dropping
    await q.push("orders", "p1", 1, 2, 3)
    got = await workers.take(2)
    await q.ack(got[0])
    await q.seek("orders", group="workers", offset=1)
    assert await workers.drain() == [2, 3]


async def test_a_transaction_id_is_free_again(dropping: Driver, workers: Workers) -> None:
    q = dropping
    await q.push("orders", "p1", 1, transaction_id="t1")
    await workers.drain()
    assert [one.status for one in await q.push("orders", "p1", 2, transaction_id="t1")] == ["queued"]
    assert await workers.drain() == [2]


async def test_offsets_go_on(dropping: Driver, workers: Workers) -> None:
    q = dropping
    for number in range(1, 4):
        await q.push("orders", "p1", number)
        [held] = await workers.take()
        assert held.message.offset == number
        await q.ack(held)


async def test_a_requeued_dead_letter_comes_and_is_gone(dropping: Driver, workers: Workers) -> None:
    q = dropping
    await q.push("orders", "p1", 1, priority=3, backoff_ms=(1000,))
    await q.requeue(await workers.take_and_kill())
    [held] = await workers.take()
    assert (held.payload, held.message.priority, held.message.attempt) == (1, 3, 1)
    await q.ack(held)
    assert await left(q) == []
    assert await workers.take() == []


async def test_without_groups_nothing_is_settled(dropping: Driver) -> None:
    q = dropping
    await q.push("orders", "p1", 1)
    await q.collect()
    assert await left(q) == [1]


async def test_max_size_and_counts_stay_right(q: Driver, workers: Workers, engine: Engine) -> None:
    await q.configure("orders", drop_settled=True, max_size=2)
    for number in range(10):
        await q.push("orders", "p1", number, f"{number} again")
        assert [one.code for one in await q.push("orders", "p1", "too many")] == ["queue_full"]
        got = await workers.take(2)
        assert len(got) == 2
        await q.ack_all(reversed(got))
        stats = await workers.stats()
        assert (stats.lag, stats.in_flight) == (0, 0)
    assert (await q.stats("orders")).counts.total == 0
    [partition] = [one for one in await engine.partition_stats("orders") if one.name == "p1"]
    assert partition.counts.total == 0


async def test_what_is_gone_stays_away_over_a_restart(durable: Driver) -> None:
    q, workers = durable, Workers(durable)
    await q.configure("orders", drop_settled=True)
    await q.push("orders", "p1", 1, 2, 3, 4)
    got = await workers.take(3)
    await q.ack(got[1])
    await q.fail(got[2])
    await q.reopen()
    assert await left(q) == [1, 3, 4]
    q.clock.advance(300)
    assert sorted(map(str, payloads(await workers.take(10)))) == ["1", "3", "4"]
    await q.push("orders", "p1", 5)
    assert payloads(await workers.take()) == [5]
