"""Pages of messages by state and of queues: search, labels, order, and how many there are in all."""

from __future__ import annotations

from typing import get_args

import msgspec

from hark.clock import FakeClock
from hark.engine.api import Engine
from hark.model import MessageFilter, MessageState, MessageView, QueueFilter, QueueOptions, Subscription

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
    leased = await q.pop("orders", "p2", group="g", batch=4)
    await q.ack(leased[1])
    await q.kill(leased[2])
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
    for queue, partition in (("orders", "p2"), ("orders", "p3"), ("bills", "p1"), ("untouched", "p1")):
        await q.push(queue, partition, 9, delay_ms=60_000, priority=2)
    [later] = await q.pop("orders", "p4", group="g")
    await q.fail(later, delay_ms=60_000)
    [later] = await q.pop("orders", "p3", group="shared", group_mode="shared")
    await q.fail(later, delay_ms=60_000)


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


async def test_the_messages_of_a_state_are_those_that_say_so(q: Driver, engine: Engine, clock: FakeClock) -> None:
    await variety(q, clock)
    everything = await engine.messages(WHERE[0])
    states: tuple[MessageState, ...] = get_args(MessageState)
    assert {view.state for view in everything} == set(states)
    for where in WHERE:
        chosen = [view for view in everything if _fits(view, where)]
        assert ids(await engine.messages(where)) == ids(chosen)
        for state in states:
            expected = ids([view for view in chosen if view.state == state])
            for limit, offset in ((1000, 0), (2, 0), (2, 1), (1, 3)):
                page = msgspec.structs.replace(where, state=state, limit=limit, offset=offset)
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


# Queues ----------------------------------------------------------------------------------------------------


async def found(engine: Engine, where: QueueFilter) -> tuple[list[str], int]:
    """The names on a page, and the total."""
    page = await engine.queue_stats(where)
    return [one.info.name for one in page.items], page.total


async def test_queues_are_listed_newest_first_or_by_name_with_how_many_there_are(q: Driver, engine: Engine) -> None:
    for name in ("b", "a", "B", "c", "d"):
        await q.push(name, "p1", 1)
        q.clock.advance(1)
    assert await found(engine, QueueFilter()) == (["d", "c", "B", "a", "b"], 5)
    assert await found(engine, QueueFilter(sort="name")) == (["B", "a", "b", "c", "d"], 5)
    assert await found(engine, QueueFilter(sort="name", limit=2)) == (["B", "a"], 5)
    assert await found(engine, QueueFilter(sort="name", limit=2, offset=4)) == (["d"], 5)
    assert await found(engine, QueueFilter(limit=2, offset=1)) == (["c", "B"], 5)
    assert await found(engine, QueueFilter(limit=2, offset=5)) == ([], 5)


async def test_queues_are_found_by_a_part_of_their_name(q: Driver, engine: Engine) -> None:
    for name in ("orders", "old-orders", "Orders", "a_b", "axb", "100%"):
        await q.push(name, "p1", 1)
    assert await found(engine, QueueFilter(search="orders", sort="name")) == (["old-orders", "orders"], 2)
    assert await found(engine, QueueFilter(search="a_b")) == (["a_b"], 1), "no character stands for another"
    assert await found(engine, QueueFilter(search="%")) == (["100%"], 1)
    assert await found(engine, QueueFilter(search="rder", sort="name", limit=1, offset=1)) == (["old-orders"], 3)
    assert await found(engine, QueueFilter(search="nothing like it")) == ([], 0)


async def test_queues_are_found_by_their_labels_and_by_their_names(q: Driver, engine: Engine) -> None:
    for name, namespace, task in (("a", "shop", "ship"), ("b", "shop", "pay"), ("c", "bank", "pay")):
        await q.configure(name, namespace=namespace, task=task)
    assert await found(engine, QueueFilter(namespace="shop", sort="name")) == (["a", "b"], 2)
    assert await found(engine, QueueFilter(task="pay", sort="name")) == (["b", "c"], 2)
    assert await found(engine, QueueFilter(namespace="shop", task="pay")) == (["b"], 1)
    assert await found(engine, QueueFilter(names=["c", "nowhere", "a"], sort="name")) == (["a", "c"], 2)
    assert await found(engine, QueueFilter(names=[])) == ([], 0)
    assert await found(engine, QueueFilter(names=["a"], namespace="bank")) == ([], 0)


async def test_queues_are_found_by_whether_they_are_paused(q: Driver, engine: Engine) -> None:
    for name in ("a", "b", "c"):
        await q.push(name, "p1", 1)
    await engine.pause("b", None, True)
    assert await found(engine, QueueFilter(paused=True)) == (["b"], 1)
    assert await found(engine, QueueFilter(paused=False, sort="name")) == (["a", "c"], 2)


async def test_counts_on_a_page_are_those_of_each_queue(q: Driver, engine: Engine) -> None:
    await q.configure("a", retry_limit=9, namespace="shop")
    await q.push("a", "p1", 1, 2, 3)
    await q.push("b", "p1", 4)
    await q.push("b", "p2", 5)
    leased = await q.pop("a", batch=2)
    await q.ack(leased[0])
    await q.drain("b", group="one")
    a, b = (await engine.queue_stats(QueueFilter(sort="name"))).items
    assert (a.info.namespace, a.info.options.retry_limit, a.info.paused) == ("shop", 9, False)
    assert (a.partitions, a.counts.total, a.counts.pending, a.counts.processing) == (2, 3, 1, 1)
    assert (b.info.options, b.partitions) == (QueueOptions(), 2)
    assert (b.counts.total, b.counts.pending, b.counts.completed) == (2, 0, 2)
