"""The verbs read and offsets: browsers see every stored message once, in order, and change nothing."""

from __future__ import annotations

import asyncio

import msgspec

from hark.clock import SECOND, FakeClock
from hark.engine.api import Engine
from hark.model import BrowseFrom, Delivery, PartitionOffset, QueueFilter, Read, ReadResult

from .driver import Driver, given, message, payloads, settlement

HALF_MIB = 1 << 19


class Browser:
    """Somebody who reads one partition from where he stands."""

    def __init__(self, engine: Engine, queue: str = "orders", partition: str = "p1", offset: int = 1) -> None:
        self._engine = engine
        self._queue = queue
        self._partition = partition
        self.offset = offset

    async def read(self, limit: int = 100) -> ReadResult:
        """One answer, and on to where it ends."""
        request = Read(queue=self._queue, partition=self._partition, offset=self.offset, limit=limit)
        [answer] = await self._engine.read([request])
        result = given(answer)
        self.offset = result.next_offset
        return result

    async def see(self, limit: int = 100) -> list[object]:
        """The payloads of all that is there now."""
        found: list[object] = []
        more = True
        while more:
            result = await self.read(limit)
            found += contents(result)
            more = result.more
        return found


def contents(result: ReadResult) -> list[object]:
    """The payloads, in order."""
    return [msgspec.json.decode(bytes(one.payload)) for one in result.messages]


async def everything(q: Driver) -> tuple[object, ...]:
    """All that an engine says about its queues, partitions and groups."""
    engine = q.engine
    groups, positions = await engine.group_stats(), await engine.position_stats()
    return await engine.queue_stats(QueueFilter()), await engine.partition_stats("orders"), groups, positions


# What is seen ----------------------------------------------------------------------------------------------


async def test_h7_browsers_see_what_was_in_flight_when_they_passed(q: Driver) -> None:
    await q.push("orders", "p1", 1, 2, 3)
    leased = await q.pop("orders", batch=2)
    browser = Browser(q.engine)
    assert await browser.see() == [1, 2, 3]
    await q.fail(leased[0])
    assert await browser.see() == [], "it comes again to consumers, but was seen"
    assert await q.drain("orders") == [1, 2, 3]
    await q.push("orders", "p1", 4)
    assert await browser.see() == [4]
    assert await Browser(q.engine).see() == [1, 2, 3, 4], "those who come later see what is settled"


async def test_a_browser_sees_each_message_once_in_order_while_many_producers_push(q: Driver) -> None:
    browser, seen = Browser(q.engine), 0
    pushes = asyncio.gather(*(q.push("orders", "p1", n, n) for n in range(100)))
    while seen < 200:
        result = await browser.read(limit=7)
        assert [one.offset for one in result.messages] == list(range(seen + 1, result.next_offset))
        seen += len(result.messages)
    await pushes
    assert await browser.see() == []


async def test_a_browser_gets_what_a_consumer_gets_but_no_attempt(q: Driver, clock: FakeClock) -> None:
    clock.advance(1)
    await q.push("orders", "p1", {"n": 1}, transaction_id="t", trace_id="trace", producer="me", priority=3)
    await q.push("orders", "p1", {"n": 2})
    read = (await Browser(q.engine).read()).messages
    popped = [leased.message for leased in await q.pop("orders", batch=2)]
    assert [_fields(one) for one in read] == [_fields(one) for one in popped]
    assert [one.attempt for one in read] == [0, 0]


def _fields(one: Delivery) -> dict[str, object]:
    known = {field: getattr(one, field) for field in Delivery.__struct_fields__}
    return known | {"payload": bytes(one.payload), "attempt": None}


async def test_a_browser_sees_what_a_message_was_pushed_with(q: Driver, clock: FakeClock) -> None:
    await q.push("orders", "p1", 1)
    await q.push(
        "orders", "p1", 2, delay_ms=60_000, ttl_ms=90_000, backoff_ms=(1000, 0), undelivered_keys=(("failed", 7, True),)
    )
    plain, special = (await Browser(q.engine).read()).messages
    assert (plain.deliver_at, plain.expires_at, plain.backoff_ms, plain.undelivered_keys) == (None, None, None, ())
    assert special.deliver_at == clock.now() + 60 * SECOND
    assert special.expires_at == clock.now() + 90 * SECOND
    assert (special.backoff_ms, special.undelivered_keys) == ((1000, 0), (("failed", 7, True),))
    await q.configure("secret", encryption_enabled=True)
    await q.push("secret", "p1", "ciphertext", sealed=True)
    [one] = (await Browser(q.engine, "secret").read()).messages
    assert (bytes(one.payload), one.sealed) == (b'"ciphertext"', True)


async def test_what_consumers_can_not_get_now_or_have_settled_in_any_way_is_seen(q: Driver, clock: FakeClock) -> None:
    await q.push("orders", "p1", 1, 2, 3, 4)
    [first, second, third] = await q.pop("orders", batch=3)
    await q.settle(settlement(first), settlement(second, "dlq"), settlement(third, "retry"))
    assert payloads(await q.pop("orders", batch=10, auto_ack=True)) == [3, 4]
    await q.configure("orders", delayed_processing=5, window_buffer=5)
    await q.push_messages(
        message("orders", "p1", "delayed", delay_ms=60_000),
        message("orders", "p1", "expired", ttl_ms=1000),
        message("orders", "p1", "plain"),
    )
    await q.engine.pause("orders", None, True)
    clock.advance(1)
    assert await q.pop("orders") == []
    assert await Browser(q.engine).see() == [1, 2, 3, 4, "delayed", "expired", "plain"]


# What is not there -----------------------------------------------------------------------------------------


async def test_deleted_messages_are_stepped_over(q: Driver) -> None:
    ids = [await q.push_id("orders", "p1", n) for n in range(1, 7)]
    await q.engine.delete_messages([ids[n - 1] for n in (1, 3, 4, 6)])
    browser = Browser(q.engine)
    result = await browser.read(limit=1)
    assert (contents(result), result.next_offset, result.more) == ([2], 3, True)
    result = await browser.read(limit=2)
    assert (contents(result), result.next_offset, result.more) == ([5], 6, False)
    whole = await Browser(q.engine).read()
    assert (contents(whole), whole.next_offset) == ([2, 5], 6)
    await q.push("orders", "p1", 7)
    assert await browser.see() == [7]


async def test_a_requeued_dead_letter_is_for_its_group_and_not_seen_again(q: Driver) -> None:
    await q.push("orders", "p1", 1)
    [leased] = await q.pop("orders", group="g")
    await q.kill(leased)
    browser = Browser(q.engine)
    assert await browser.see() == [1]
    [letter] = await q.dead_letters()
    await q.requeue(letter)
    assert await browser.see() == []
    assert browser.offset == 3, "it is not looked at again either"
    await q.push("orders", "p1", 2)
    assert await browser.see(limit=1) == [2]
    assert await Browser(q.engine).see(limit=1) == [1, 2]
    assert await q.drain("orders", group="g") == [1, 2]


async def test_a_purge_leaves_nothing_to_see_but_what_comes_after_it(q: Driver) -> None:
    await q.push("orders", "p1", 1, 2)
    passed, new = Browser(q.engine, offset=2), Browser(q.engine)
    await q.engine.purge("orders")
    assert await new.see() == []
    await q.push("orders", "p1", 3)
    assert await new.see() == [3]
    assert await passed.see() == [3]


async def test_a_browser_begins_behind_what_retention_removed(q: Driver, clock: FakeClock) -> None:
    await q.configure("orders", retention_enabled=True, retention_seconds=60)
    await q.push("orders", "p1", 1, 2)
    clock.advance(60)
    await q.push("orders", "p1", 3)
    assert await q.collect() == 2
    assert await Browser(q.engine).see() == [3]
    assert await q.engine.offsets("orders", "head") == [PartitionOffset("Default", 1), PartitionOffset("p1", 3)]


async def test_where_there_is_nothing_a_browser_stays_where_it_is(q: Driver) -> None:
    await q.push("orders", "p1", 1)
    for queue, partition in (("orders", "p2"), ("bills", "p1"), ("orders", "\0"), ("orders", "p1")):
        result = await Browser(q.engine, queue, partition, offset=7).read()
        assert (list(result.messages), result.next_offset, result.more) == ([], 7, False)
    await q.engine.delete_queues(["orders"])
    assert await Browser(q.engine).see() == []
    assert await q.engine.offsets("orders", "head") == []


# Bounds ----------------------------------------------------------------------------------------------------


async def test_a_limit_makes_pages(q: Driver) -> None:
    await q.push("orders", "p1", *range(10))
    for limit in (1, 3, 10, 11):
        browser = Browser(q.engine)
        result = await browser.read(limit)
        assert (contents(result), result.more) == (list(range(10))[:limit], limit <= 10)
        assert await browser.see(limit) == list(range(10))[limit:]


async def test_an_answer_ends_with_the_message_that_takes_it_to_a_mebibyte(q: Driver) -> None:
    large, huge = "x" * (HALF_MIB + 1), "x" * (3 * HALF_MIB)
    await q.push("orders", "p1", large, large, large, 1)
    browser = Browser(q.engine)
    assert [len((await browser.read()).messages) for _ in range(3)] == [2, 2, 0]
    await q.push("orders", "p2", huge, 2)
    browser = Browser(q.engine, partition="p2")
    result = await browser.read()
    assert (contents(result), result.more) == ([huge], True), "alone, though it is beyond all bounds"
    assert await browser.see() == [2]
    spaced = msgspec.structs.replace(message("orders", "p3", 0), payload=b"1" + b" " * 2 * HALF_MIB)
    await q.push_messages(spaced, message("orders", "p3", 2))
    assert await Browser(q.engine, partition="p3").see() == [1, 2], "spaces do not hide that there is more"


async def test_each_of_several_requests_has_its_own_answer(q: Driver) -> None:
    await q.push("orders", "p1", 1, 2, 3)
    await q.push("orders", "p2", 4)
    await q.push("bills", "p1", 5)
    wanted = [
        ("orders", "p1", 2, 10, [2, 3], 4),
        ("bills", "p1", 1, 10, [5], 2),
        ("nowhere", "p1", 1, 10, [], 1),
        ("orders", "p1", 1, 1, [1], 2),
        ("orders", "p1\0", 1, 1, [], 1),
        ("orders", "p2", 1, 10, [4], 2),
        ("orders", "p1", 1, 10, [1, 2, 3], 4),
    ]
    requests = [Read(queue=one[0], partition=one[1], offset=one[2], limit=one[3]) for one in wanted]
    results = [given(answer) for answer in await q.engine.read(requests)]
    assert [(contents(one), one.next_offset) for one in results] == [(one[4], one[5]) for one in wanted]
    assert await q.engine.read([]) == []


# Nothing changes -------------------------------------------------------------------------------------------


async def test_i5_browsers_change_nothing(q: Driver, clock: FakeClock) -> None:
    await q.configure("orders", ttl=5)
    await q.push("orders", "p1", 1, 2, 3)
    await q.push("orders", "p2", 4, delay_ms=1000)
    await q.pop("orders", "p1", group="g")
    clock.advance(10)
    before = await everything(q)
    q.hints.clear()
    clock.advance(10)
    assert await Browser(q.engine).see(limit=1) == [1, 2, 3]
    assert await Browser(q.engine, "unheard-of").see() == []
    starts: list[BrowseFrom] = ["head", "tail", clock.now()]
    for start in starts:
        await q.engine.offsets("orders", start)
        await q.engine.offsets("unheard-of", start)
    assert await everything(q) == before
    assert await q.engine.queue_infos(["unheard-of"]) == []
    assert q.hints == []


# Where browsers begin --------------------------------------------------------------------------------------


async def test_the_head_is_the_first_message_and_the_tail_is_behind_the_last(q: Driver) -> None:
    offsets = q.engine.offsets
    await q.push("orders", "p2", 1, 2)
    last = await q.push_id("orders", "p1", 3)
    await q.push("bills", "p3", 4)
    assert await offsets("orders", "head") == [PartitionOffset("p1", 1), PartitionOffset("p2", 1)]
    assert await offsets("orders", "tail") == [PartitionOffset("p1", 2), PartitionOffset("p2", 3)]
    assert await offsets("orders", "tail", "p2") == [PartitionOffset("p2", 3)]
    assert await offsets("orders", "head", "p3") == []
    assert await offsets("nowhere", "tail") == []
    assert await offsets("nowhere\0", "tail") == []
    await q.engine.delete_messages([last])
    assert await offsets("orders", "tail") == [PartitionOffset("p1", 2), PartitionOffset("p2", 3)], (
        "though they are removed"
    )
    await q.engine.purge("orders")
    assert await offsets("orders", "tail") == [PartitionOffset("p1", 2), PartitionOffset("p2", 3)]
    assert await offsets("orders", "head") == [PartitionOffset("p1", 2), PartitionOffset("p2", 3)]


async def test_a_time_is_before_the_first_message_created_after_it(q: Driver, clock: FakeClock) -> None:
    times = []
    for n in range(5):
        clock.advance(10)
        times.append(clock.now())
        await q.push("orders", "p1", n, n)
    await q.push("orders", "p2", 5)
    ids = [one.id for one in (await Browser(q.engine, offset=5).read(limit=2)).messages]
    assert await q.engine.delete_messages(ids) == [True, True]

    async def start(time: int) -> list[int]:
        return [one.offset for one in await q.engine.offsets("orders", time)]

    assert await start(times[0] - 1) == [1, 1]
    assert await start(times[0]) == [3, 1]
    assert await start(times[1] - 1) == [3, 1]
    [between, _] = await start(times[1])
    assert await Browser(q.engine, offset=between).see() == [3, 3, 4, 4]
    assert await start(times[3]) == [9, 1]
    assert await start(times[4]) == [11, 2]
    assert await q.engine.offsets("orders", times[3], "p1") == [PartitionOffset("p1", 9)]


async def test_partitions_changed_since_a_time_are_among_the_positions(q: Driver, clock: FakeClock) -> None:
    await q.push("orders", "old", 1)
    clock.advance(3600)
    await q.push("orders", "new", 2)
    assert PartitionOffset("new", 1) in await q.engine.offsets("orders", "head", changed_since=clock.now())
