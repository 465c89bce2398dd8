"""Hints: the listener is told after whatever may have made work ready."""

from __future__ import annotations

from hark.clock import FakeClock
from hark.engine.api import Engine

from .driver import Driver, message, settlement


async def test_a_push_is_news_for_all_groups(q: Driver) -> None:
    await q.push("orders", "p1", 1)
    await q.hinted("orders", "any group at all")


async def test_a_push_to_several_queues_is_news_of_each(q: Driver) -> None:
    await q.push_messages(message("orders", "p1", 1), message("bills", "p1", 2))
    await q.hinted("orders")
    await q.hinted("bills")


async def test_a_push_inside_a_transaction_is_news(q: Driver) -> None:
    await q.transact(message("orders", "p1", 1))
    await q.hinted("orders")


async def test_the_end_of_a_lease_by_settlement_is_news(q: Driver) -> None:
    await q.push("orders", "p1", 1, 2, 3)
    got = await q.pop("orders", batch=2)
    await q.ack(got[0])
    q.hints.clear()
    await q.ack(got[1])
    await q.hinted("orders")


async def test_the_end_of_a_lease_inside_a_transaction_is_news(q: Driver) -> None:
    await q.push("orders", "p1", 1, 2)
    [held] = await q.pop("orders")
    q.hints.clear()
    await q.transact(settlement(held))
    await q.hinted("orders")


async def test_a_message_given_back_at_once_is_news(q: Driver) -> None:
    await q.push("orders", "p1", 1)
    [held] = await q.pop("orders")
    q.hints.clear()
    await q.fail(held)
    await q.hinted("orders")
    [held] = await q.pop("orders")
    q.hints.clear()
    await q.retry(held)
    await q.hinted("orders")


async def test_a_release_is_news(q: Driver, engine: Engine) -> None:
    await q.push("orders", "p1", 1)
    got = await q.pop("orders")
    q.hints.clear()
    await engine.release([got.lease])
    await q.hinted("orders")


async def test_an_expiry_is_news(q: Driver, engine: Engine, clock: FakeClock) -> None:
    await q.push("orders", "p1", 1)
    await q.pop("orders", group="g")
    q.hints.clear()
    clock.advance(300)
    await engine.expire()
    await q.hinted("orders", "g")


async def test_a_seek_is_news(q: Driver) -> None:
    await q.push("orders", "p1", 1)
    await q.drain("orders", group="g")
    q.hints.clear()
    await q.seek("orders", group="g", offset=1)
    await q.hinted("orders", "g")


async def test_a_requeue_is_news(q: Driver) -> None:
    await q.push("orders", "p1", 1)
    [held] = await q.pop("orders", group="g")
    await q.kill(held)
    [letter] = await q.dead_letters()
    q.hints.clear()
    await q.requeue(letter)
    await q.hinted("orders", "g")


async def test_a_resumed_queue_or_group_is_news(q: Driver, engine: Engine) -> None:
    await q.push("orders", "p1", 1)
    await q.retry((await q.pop("orders", group="g"))[0])
    for group in (None, "g"):
        await engine.pause("orders", group, True)
        q.hints.clear()
        await engine.pause("orders", group, False)
        await q.hinted("orders", "g")


async def test_changed_options_are_news(q: Driver) -> None:
    """A shorter delay may make messages ready that were not."""
    await q.configure("orders", delayed_processing=100)
    await q.push("orders", "p1", 1)
    q.hints.clear()
    await q.configure("orders")
    await q.hinted("orders")


async def test_a_refused_push_is_no_news(q: Driver) -> None:
    await q.configure("orders", max_size=1)
    await q.push("orders", "p1", 1)
    await q.hinted("orders")
    q.hints.clear()
    await q.push("orders", "p1", 2)
    await q.push("bills", "p1", 3)
    await q.hinted("bills")
    assert {hint.queue for hint in q.hints} == {"bills"}
