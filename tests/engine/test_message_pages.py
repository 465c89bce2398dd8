"""Pages of messages by state: the same messages that say so of themselves, wherever they are looked for."""

from __future__ import annotations

from typing import get_args

import pytest

from hark.clock import FakeClock
from hark.engine.api import Engine
from hark.model import MessageFilter, MessageState, MessageView, Subscription

from .driver import Driver, given


async def variety(q: Driver, clock: FakeClock) -> None:
    """Queues whose messages are in all states, for groups of all kinds."""
    await q.push("untouched", "p1", 1, 2)
    for partition in ("p1", "p2", "p3"):
        await q.push("orders", partition, *range(6), priority=0)
        clock.advance(1)
    await q.pop("orders", group="late", subscription=Subscription("new"))
    clock.advance(1)
    await q.push("orders", "p4", 6)
    await q.drain("orders", "p1", group="g")
    held = await q.pop("orders", "p2", group="g", batch=4)
    await q.ack(held[1])
    await q.kill(held[2])
    await q.pop("orders", "p3", group="shared", group_mode="shared", batch=2)
    done = await q.pop("orders", "p3", group="shared", group_mode="shared", batch=2)
    await q.ack(done[0])
    await q.kill(done[1])
    dead = await q.dead_letters()
    [requeued] = await q.engine.requeue([dead[0].id])
    assert given(requeued)
    await q.drain("bills", group="g")
    await q.push("bills", "p1", 7, 8)
    await q.drain("bills", group="g")


WHERE = [
    MessageFilter(limit=1000),
    MessageFilter(queue="orders", limit=1000),
    MessageFilter(queue="orders", partition="p2", limit=1000),
    MessageFilter(queue="orders", partition="p3", limit=1000),
    MessageFilter(partition="p1", limit=1000),
    MessageFilter(queue="bills", limit=1000),
    MessageFilter(queue="untouched", limit=1000),
    MessageFilter(queue="nowhere", limit=1000),
]


@pytest.mark.parametrize("state", get_args(MessageState))
async def test_the_messages_of_a_state_are_those_that_say_so(
    q: Driver, engine: Engine, clock: FakeClock, state: MessageState
) -> None:
    await variety(q, clock)
    everything = await engine.messages(WHERE[0])
    assert state in {view.state for view in everything}
    for where in WHERE:
        chosen = [view for view in everything if _fits(view, where)]
        assert ids(await engine.messages(where)) == ids(chosen)
        expected = ids([view for view in chosen if view.state == state])
        for limit, offset in ((1000, 0), (2, 0), (2, 1), (1, 3)):
            page = MessageFilter(queue=where.queue, partition=where.partition, state=state, limit=limit, offset=offset)
            assert ids(await engine.messages(page)) == expected[offset : offset + limit], page


async def test_pages_of_a_queue_are_in_order_over_its_partitions(q: Driver, engine: Engine, clock: FakeClock) -> None:
    start = clock.now()
    for number in range(12):
        await q.push("orders", f"p{number % 3}", number, transaction_id=f"t{number}")
        await q.push("other", "p1", number)
        clock.advance(1)
    names = [f"t{number}" for number in range(11, -1, -1)]
    for limit, offset in ((3, 0), (3, 3), (1, 5), (5, 8), (3, 12)):
        views = await engine.messages(MessageFilter(queue="orders", limit=limit, offset=offset))
        assert [view.transaction_id for view in views] == names[offset : offset + limit]
    late = MessageFilter(queue="orders", since=start + 2_000_000, until=start + 8_000_000, limit=3, offset=1)
    assert [view.transaction_id for view in await engine.messages(late)] == ["t7", "t6", "t5"]


def ids(views: list[MessageView]) -> list[str]:
    """Which messages."""
    return [view.id for view in views]


def _fits(view: MessageView, where: MessageFilter) -> bool:
    return where.queue in (None, view.queue) and where.partition in (None, view.partition)
