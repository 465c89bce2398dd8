"""Rule 21: moving a group through the history."""

from __future__ import annotations

from hark.clock import FakeClock
from hark.engine.api import Engine
from hark.errors import NotFound
from hark.model import Seek, SeekOutcome

from .driver import Driver, payloads, settlement


async def history(q: Driver, *partitions: str, each: int = 4) -> int:
    """Push messages 1 ... `each` to each partition, ten seconds apart; the time of the first."""
    start = q.clock.now()
    for number in range(1, each + 1):
        for name in partitions:
            await q.push("orders", name, number)
        q.clock.advance(10)
    return start


async def test_rule_21_seek_to_the_end(q: Driver) -> None:
    await history(q, "p1")
    await q.ack_all(await q.pop("orders"))
    outcome = await q.seek("orders", to_end=True)
    assert outcome == SeekOutcome(partitions=1, next_offset=5)
    assert await q.pop("orders") == []
    await q.push("orders", "p1", 5)
    assert await q.drain("orders") == [5]


async def test_rule_21_seek_to_a_time_goes_on_after_it(q: Driver) -> None:
    start = await history(q, "p1")
    await q.drain("orders")
    for moment, wanted in (
        (start - 1, [1, 2, 3, 4]),
        (start, [2, 3, 4]),
        (start + 15_000_000, [3, 4]),
        (start + 30_000_000, []),
    ):
        assert (await q.seek("orders", timestamp=moment)).partitions == 1
        assert await q.drain("orders") == wanted


async def test_rule_21_seek_to_an_offset_delivers_that_message_next(q: Driver) -> None:
    await history(q, "p1")
    await q.drain("orders")
    for offset in (3, 1, 4):
        outcome = await q.seek("orders", "p1", offset=offset)
        assert outcome == SeekOutcome(partitions=1, next_offset=offset)
        assert await q.drain("orders") == list(range(offset, 5))


async def test_rule_21_seek_forward_skips(q: Driver) -> None:
    await history(q, "p1")
    await q.pop("orders", auto_ack=True)
    await q.seek("orders", offset=4)
    assert await q.cursor("orders", "p1") == 3
    assert await q.drain("orders") == [4]


async def test_rule_21_seek_one_partition_or_all(q: Driver) -> None:
    await history(q, "p1", "p2", "p3")
    await q.drain("orders")
    assert (await q.seek("orders", "p2", offset=4)).partitions == 1
    assert await q.drain("orders") == [4]
    assert (await q.seek("orders", offset=4)).partitions == 3
    assert await q.drain("orders") == [4, 4, 4]


async def test_rule_21_open_leases_of_the_group_are_void(q: Driver) -> None:
    await history(q, "p1", "p2")
    mine, second = await q.pop("orders", "p1"), await q.pop("orders", "p2")
    [theirs] = await q.pop("orders", "p1", group="other")
    await q.seek("orders", "p1", offset=1)
    assert not (await q.ack(mine[0])).success
    assert not (await q.renew(mine.lease)).success
    assert (await q.ack(second[0])).success, "another partition"
    assert (await q.ack(theirs)).success, "another group"
    assert payloads(await q.pop("orders", "p1", batch=10)) == [1, 2, 3, 4]


async def test_rule_21_a_void_lease_settles_nothing_even_past_the_cursor(q: Driver) -> None:
    await history(q, "p1")
    got = await q.pop("orders", batch=3)
    await q.seek("orders", offset=2)
    outcomes = await q.settle(*(settlement(one, "failed") for one in got))
    assert [one.success for one in outcomes] == [False, False, False]
    assert payloads(await q.pop("orders", batch=10)) == [2, 3, 4]


async def test_rule_21_seek_forgets_what_was_settled_beyond_the_new_place(q: Driver) -> None:
    await history(q, "p1")
    got = await q.pop("orders", batch=4)
    await q.ack(got[1])
    await q.ack(got[3])
    await q.seek("orders", offset=1)
    assert await q.drain("orders") == [1, 2, 3, 4]


async def test_rule_21_seek_is_for_one_group(q: Driver) -> None:
    await history(q, "p1")
    for group in ("a", "b"):
        await q.drain("orders", group=group)
    await q.seek("orders", group="a", offset=1)
    assert await q.drain("orders", group="a") == [1, 2, 3, 4]
    assert await q.drain("orders", group="b") == []


async def test_rule_21_after_a_seek_batches_are_whole_again(q: Driver, clock: FakeClock) -> None:
    await history(q, "p1")
    await q.pop("orders", batch=4)
    clock.advance(300)
    await q.drain("orders")
    await q.seek("orders", offset=1)
    assert len(await q.pop("orders", batch=4)) == 4


async def test_rule_21_a_message_that_waits_for_its_retry_can_be_skipped(q: Driver) -> None:
    await q.configure("orders", retry_delay=60_000)
    await history(q, "p1")
    [held] = await q.pop("orders")
    await q.fail(held)
    assert await q.pop("orders") == []
    await q.seek("orders", offset=2)
    assert await q.drain("orders") == [2, 3, 4]


async def test_rule_21_what_does_not_exist_is_not_found_in_place(q: Driver, engine: Engine) -> None:
    await history(q, "p1")
    await q.drain("orders", group="g")
    wishes = [
        Seek(queue="nowhere", group="g", to_end=True),
        Seek(queue="orders", group="g", partition="p9", to_end=True),
        Seek(queue="orders", group="g", offset=3),
    ]
    nowhere, no_partition, moved = await engine.seek(wishes)
    assert isinstance(nowhere, NotFound) and isinstance(no_partition, NotFound)
    assert moved == SeekOutcome(partitions=1, next_offset=3)
    assert await q.drain("orders", group="g") == [3, 4]
