"""Queues that keep nothing: a message is removed as soon as every group has settled it."""

from __future__ import annotations

import pytest

from hark.engine.api import Engine
from hark.model import GroupMode, MessageFilter

from .driver import Driver, message, payloads, settlement
from .workers import Workers


@pytest.fixture
async def q(q: Driver) -> Driver:
    """The queue "orders" keeps nothing."""
    await q.configure("orders", drop_settled=True)
    return q


async def left(q: Driver) -> list[int]:
    """The offsets of what is stored, in order."""
    return sorted(one.offset for one in await q.engine.messages(MessageFilter(queue="orders", limit=1000)))


async def test_what_the_only_group_settled_is_gone_at_once(q: Driver, mode: GroupMode) -> None:
    await q.push("orders", "p1", 1, 2, 3, 4)
    got = await Workers(q, mode=mode).take(3)
    await q.ack(got[0])
    assert await left(q) == [2, 3, 4]
    await q.settle(settlement(got[2]), settlement(got[1]))
    assert await left(q) == [4]
    counts = (await q.stats("orders")).counts
    assert (counts.total, counts.pending, counts.processing, counts.completed) == (1, 1, 0, 0)


async def test_settled_out_of_order(q: Driver, workers: Workers) -> None:
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


async def test_auto_ack_dead_letters_and_transactions_settle(q: Driver, either: Workers) -> None:
    await q.push("orders", "p1", 1, 2, 3, 4)
    await either.take(auto_ack=True)
    assert bytes((await either.take_and_kill()).payload) == b"2"
    assert await left(q) == [3, 4]
    [leased] = await either.take()
    assert (await q.transact(settlement(leased), message("bills", "p1", 1))).success
    assert await left(q) == [4]


async def test_completed_of_what_is_gone_is_a_success_unless_it_is_a_dead_letter(q: Driver, workers: Workers) -> None:
    await q.push("orders", "p1", 1, 2, 3)
    got = await workers.take(2)
    await q.ack(got[1])
    for lease in (got.lease, None):
        [outcome] = await q.settle(settlement(got[1], lease=lease, named="id alone"))
        assert (outcome.success, outcome.lease_id) == (True, None)
    [outcome] = await q.settle(settlement(got[1], "failed", named="id alone"))
    assert not outcome.success
    await q.kill(got[0])
    assert (await q.ack(got[0])).code == "dead_lettered"
    assert await workers.drain() == [3]


async def test_it_is_kept_until_every_group_has_settled_it(q: Driver, workers: Workers) -> None:
    await q.push("orders", "p1", 1, 2)
    await q.collect()
    assert await left(q) == [1, 2], "without groups nothing is settled"
    await q.pop("orders", "nowhere", group="ordered")
    await workers.drain()
    await q.collect()
    assert await left(q) == [1, 2]
    await q.ack_all(await q.pop("orders", group="ordered"))
    await q.collect()
    assert await left(q) == [2]


async def test_a_seek_back_and_a_late_group_find_only_what_is_left(q: Driver, workers: Workers) -> None:
    await q.push("orders", "p1", 1, 2, 3)
    got = await workers.take(2)
    await q.ack(got[0])
    await q.seek("orders", group="workers", offset=1)
    assert payloads(await workers.take(10)) == [2, 3]
    assert await Workers(q, group="late").drain() == [2, 3]
    assert await q.drain("orders", group="late and ordered") == [2, 3]


async def test_a_transaction_id_is_free_again_and_offsets_go_on(q: Driver, workers: Workers) -> None:
    for number in range(1, 4):
        assert [one.status for one in await q.push("orders", "p1", number, transaction_id="t1")] == ["queued"]
        [leased] = await workers.take()
        assert leased.message.offset == number
        await q.ack(leased)


async def test_exhausted_by_expiry_it_is_gone_and_requeued_it_comes_and_is_gone(q: Driver, workers: Workers) -> None:
    await q.push("orders", "p1", 1, priority=3, backoff_ms=())
    await workers.take()
    q.clock.advance(300)
    [letter] = await q.dead_letters("orders")
    assert await left(q) == []
    await q.requeue(letter)
    [leased] = await workers.take()
    assert (leased.payload, leased.message.priority, leased.message.attempt) == (1, 3, 1)
    await q.ack(leased)
    assert await left(q) == []
    assert await workers.take() == []


async def test_max_size_and_counts_stay_right(q: Driver, workers: Workers, engine: Engine) -> None:
    await q.configure("orders", drop_settled=True, max_size=2)
    for number in range(3):
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


async def test_what_is_gone_stays_away_over_a_restart(q: Driver, workers: Workers) -> None:
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
