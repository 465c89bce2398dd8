"""Hints of shared groups: whoever waits is told where messages are, and how many; a settlement frees nobody."""

from __future__ import annotations

from hark.clock import SECOND, FakeClock
from hark.engine.api import Engine

from .driver import Driver, message, payloads, settlement
from .workers import Workers


def counted(q: Driver, group: str = "workers") -> dict[str, int]:
    """How many messages the hints of a group name, by partition; a hint without counts is one look."""
    found: dict[str, int] = {}
    for hint in q.hints_for("orders", group):
        assert hint.partitions is not None, "anywhere"
        for name, number in zip(hint.partitions, hint.counts or [1] * len(hint.partitions), strict=True):
            found[name] = found.get(name, 0) + number
    return found


async def known(q: Driver, workers: Workers) -> None:
    """The group has met its queue, and nothing was told yet."""
    await q.configure("orders")
    assert await workers.take() == []
    q.hints.clear()


async def test_a_push_tells_how_many(q: Driver, workers: Workers) -> None:
    await known(q, workers)
    await q.push_messages(*(message("orders", name, 1) for name in ("p1", "p2", "p1", "p1")))
    assert counted(q) == {"p1": 3, "p2": 1}


async def test_a_push_beside_what_is_held_is_news(q: Driver, workers: Workers) -> None:
    await q.push("orders", "p1", 1)
    await workers.take()
    q.hints.clear()
    await q.push("orders", "p1", 2)
    assert counted(q) == {"p1": 1}


async def test_a_delayed_push_is_news_if_it_is_the_earliest(q: Driver, workers: Workers, clock: FakeClock) -> None:
    await known(q, workers)
    await q.push("orders", "p1", *range(5), delay_ms=5000)
    assert counted(q) == {"p1": 1}, "one look, to learn the time"
    assert (await workers.take()).look_again_at == clock.now() + 5 * SECOND
    q.hints.clear()
    await q.push("orders", "p1", 6, delay_ms=9000)
    assert counted(q) == {}, "there is an earlier one"
    await q.push("orders", "p1", 7, delay_ms=2000)
    assert counted(q) == {"p1": 1}


async def test_a_settlement_frees_nobody_but_ends_the_lease(q: Driver, workers: Workers) -> None:
    await q.push("orders", "p1", 1, 2, 3)
    got = await workers.take(2)
    q.hints.clear()
    await q.ack(got[0])
    assert (counted(q), q.ended) == ({}, set())
    await q.ack(got[1])
    assert (counted(q), q.ended) == ({}, {got.lease})


async def test_what_is_given_back_is_news(q: Driver, workers: Workers) -> None:
    await q.push("orders", "p1", 1, 2, 3)
    got = await workers.take(3)
    q.hints.clear()
    await q.settle(settlement(got[0], "failed"), settlement(got[1], "retry"))
    assert (counted(q), q.ended) == ({"p1": 2}, set())


async def test_a_retry_that_waits_is_news_if_it_is_the_earliest(q: Driver, workers: Workers, clock: FakeClock) -> None:
    await q.push("orders", "p1", 1, 2, 3)
    got = await workers.take(3)
    q.hints.clear()
    await q.retry(got[0], delay_ms=5000)
    assert counted(q) == {"p1": 1}
    assert (await workers.take()).look_again_at == clock.now() + 5 * SECOND
    q.hints.clear()
    await q.retry(got[1], delay_ms=9000)
    assert counted(q) == {}
    await q.retry(got[2], delay_ms=1000)
    assert counted(q) == {"p1": 1}


async def test_a_release_and_an_expiry_tell_how_many(
    q: Driver, workers: Workers, engine: Engine, clock: FakeClock
) -> None:
    await q.push("orders", "p1", 1, 2, 3)
    got = await workers.take(2)
    q.hints.clear()
    await engine.release([got.lease])
    assert (counted(q), q.ended) == ({"p1": 2}, {got.lease})
    got = await workers.take(3)
    clock.advance(300)
    q.hints.clear()
    await engine.expire()
    assert (counted(q), q.ended) == ({"p1": 3}, {got.lease})


async def test_an_expiry_that_buries_ends_the_lease_only(
    q: Driver, workers: Workers, engine: Engine, clock: FakeClock
) -> None:
    await q.push("orders", "p1", 1, backoff_ms=())
    got = await workers.take()
    clock.advance(300)
    q.hints.clear()
    await engine.expire()
    assert (counted(q), q.ended) == ({}, {got.lease})


async def test_the_first_pop_tells_of_what_it_left(q: Driver, workers: Workers) -> None:
    await q.push("orders", "p1", 1, 2, 3)
    q.hints.clear()
    await workers.take()
    told = q.hints_for("orders", "workers")
    assert told, "nobody of the group had been told"


async def test_a_pop_tells_of_what_fell_due_and_was_left(q: Driver, workers: Workers, clock: FakeClock) -> None:
    await q.push("orders", "p1", 1, 2, 3, delay_ms=1000)
    assert await workers.take() == []
    clock.advance(1)
    q.hints.clear()
    await workers.take()
    assert counted(q) == {"p1": 2}


async def test_a_pop_that_took_what_was_told_tells_nothing(q: Driver, workers: Workers) -> None:
    await known(q, workers)
    await q.push("orders", "p1", 1, 2, 3)
    q.hints.clear()
    for _ in range(4):
        await workers.take()
    assert q.hints == []


async def test_a_seek_and_a_requeue_tell_how_many(q: Driver, workers: Workers) -> None:
    await q.push("orders", "p1", 1, 2, 3)
    letter = await workers.take_and_kill()
    await workers.drain()
    q.hints.clear()
    await q.requeue(letter)
    assert counted(q) == {"p1": 1}
    await workers.drain()
    q.hints.clear()
    await q.seek("orders", "p1", group="workers", offset=2)
    assert sum(counted(q).values()) >= 2


async def test_a_cancelled_or_deleted_message_is_no_news_for_a_shared_group(
    q: Driver, workers: Workers, engine: Engine
) -> None:
    ids = [one.message_id or "" for one in await q.push("orders", "p1", 1, 2, delay_ms=1000)]
    await workers.take()
    q.hints.clear()
    assert await engine.cancel(ids[:1]) == ["cancelled"]
    assert await engine.delete_messages(ids[1:]) == [True]
    assert counted(q) == {}


async def test_an_ordered_group_beside_it_has_a_hint_of_its_own(q: Driver, workers: Workers) -> None:
    await known(q, workers)
    await q.pop("orders", group="ordered")
    await q.push("orders", "p1", 1, 2)
    assert q.told("orders", "ordered") == {"p1"}
    assert counted(q) == {"p1": 2}
    got = await q.pop("orders", group="ordered")
    q.hints.clear()
    await q.push("orders", "p1", 3)
    assert q.told("orders", "ordered") == set(), "it holds the partition"
    assert counted(q) == {"p1": 1}
    q.hints.clear()
    await q.ack_all(got)
    assert (q.told("orders", "ordered"), counted(q)) == ({"p1"}, {})


async def test_a_look_at_a_named_time_finds_what_was_promised(q: Driver, workers: Workers, clock: FakeClock) -> None:
    await q.push("orders", "p1", 1, delay_ms=3000)
    await q.push("orders", "p2", 2, delay_ms=1000)
    for wanted in (2, 1):
        empty = await workers.take()
        assert empty.look_again_at is not None
        clock.advance((empty.look_again_at - clock.now()) / SECOND)
        assert payloads(await workers.take()) == [wanted]
