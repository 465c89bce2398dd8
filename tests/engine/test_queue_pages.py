"""Pages of queues: search, labels, order, and how many there are in all."""

from __future__ import annotations

from hark.clock import FakeClock
from hark.engine.api import Engine
from hark.model import QueueFilter, QueueOptions

from .driver import Driver


async def found(engine: Engine, where: QueueFilter) -> tuple[list[str], int]:
    """The names on a page, and the total."""
    page = await engine.queue_stats(where)
    return [one.info.name for one in page.items], page.total


async def test_queues_are_listed_newest_first_or_by_name(q: Driver, engine: Engine, clock: FakeClock) -> None:
    for name in ("b", "a", "B", "c"):
        await q.push(name, "p1", 1)
        clock.advance(1)
    assert await found(engine, QueueFilter()) == (["c", "B", "a", "b"], 4)
    assert await found(engine, QueueFilter(sort="name")) == (["B", "a", "b", "c"], 4)


async def test_a_page_of_queues_says_how_many_there_are_in_all(q: Driver, engine: Engine) -> None:
    for number in range(5):
        await q.push(f"q{number}", "p1", number)
    assert await found(engine, QueueFilter(sort="name", limit=2)) == (["q0", "q1"], 5)
    assert await found(engine, QueueFilter(sort="name", limit=2, offset=4)) == (["q4"], 5)
    assert await found(engine, QueueFilter(limit=2, offset=1)) == (["q3", "q2"], 5)
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
    held = await q.pop("a", batch=2)
    await q.ack(held[0])
    await q.drain("b", group="one")
    a, b = (await engine.queue_stats(QueueFilter(sort="name"))).items
    assert (a.info.namespace, a.info.options.retry_limit, a.info.paused) == ("shop", 9, False)
    assert (a.partitions, a.counts.total, a.counts.pending, a.counts.processing) == (2, 3, 1, 1)
    assert (b.info.options, b.partitions) == (QueueOptions(), 2)
    assert (b.counts.total, b.counts.pending, b.counts.completed) == (2, 0, 2)
