"""Shared groups beside others: the mode is fixed at first contact, and each group has a state of its own."""

from __future__ import annotations

import pytest

from hark.clock import FakeClock
from hark.engine.api import Engine
from hark.errors import Conflict
from hark.model import GroupMode, PopRequest, PopResult, Subscription

from .driver import NEW, Driver, payloads
from .workers import Workers


async def test_the_mode_is_stored_at_first_contact_even_when_nothing_was_there(
    q: Driver, workers: Workers, engine: Engine
) -> None:
    assert await workers.take() == []
    [group] = await engine.group_stats("workers", "orders")
    assert group.mode == "shared"
    await q.push("orders", "p1", 1, 2)
    first, second = [await q.pop("orders", group="workers") for _ in range(2)]
    assert (payloads(first), payloads(second)) == ([1], [2]), "absent means: as stored"


@pytest.mark.parametrize(("first", "then"), [("shared", "ordered"), ("ordered", "shared"), (None, "shared")])
async def test_another_mode_is_a_conflict_in_place_and_neighbours_are_served(
    q: Driver, engine: Engine, first: GroupMode | None, then: GroupMode
) -> None:
    await q.push("orders", "p1", 1)
    await q.pop("orders", "nowhere", group="g", group_mode=first)
    answers = await engine.pop(
        [
            PopRequest(queue="orders", group="g", group_mode=then),
            PopRequest(queue="orders", group="h", group_mode=then),
            PopRequest(queue="orders", group="g", group_mode=first),
        ]
    )
    assert isinstance(answers[0], Conflict) and answers[0].code == "group_mode_conflict"
    assert [isinstance(one, PopResult) and len(one.messages) for one in answers[1:]] == [1, 1]


async def test_the_same_name_may_have_another_mode_in_another_queue(q: Driver, engine: Engine) -> None:
    for queue, mode in (("a", "shared"), ("b", "ordered")):
        await q.push(queue, "p1", 1, 2)
        await q.pop(queue, group="g", group_mode="shared" if mode == "shared" else None)
    assert payloads(await q.pop("a", group="g")) == [2]
    assert await q.pop("b", group="g") == []
    assert {one.queue: one.mode for one in await engine.group_stats("g")} == {"a": "shared", "b": "ordered"}


async def test_every_group_sees_every_message_whatever_its_mode(q: Driver, workers: Workers) -> None:
    await q.push("orders", "p1", 1, 2, 3)
    assert await workers.drain() == [1, 2, 3]
    assert await Workers(q, group="others").drain() == [1, 2, 3]
    assert await q.drain("orders", group="ordered") == [1, 2, 3]
    assert await q.drain("orders") == [1, 2, 3]


async def test_an_ordered_group_beside_a_shared_one_keeps_its_order(q: Driver, workers: Workers) -> None:
    await q.push("orders", "p1", 1)
    await q.push("orders", "p1", 2, priority=9)
    await q.push("orders", "p1", 3)
    held = [await workers.take() for _ in range(3)]
    assert [payloads(one) for one in held] == [[2], [1], [3]]
    assert payloads(await q.pop("orders", group="ordered", batch=10)) == [1, 2, 3]


async def test_what_one_group_holds_or_settles_is_open_for_the_other(q: Driver, workers: Workers) -> None:
    others = Workers(q, group="others")
    await q.push("orders", "p1", 1, 2)
    await q.ack_all(await workers.take())
    await workers.take()
    got = await others.take(10)
    assert payloads(got) == [1, 2]
    await q.ack_all(got)


async def test_the_default_group_can_be_shared(q: Driver) -> None:
    await q.push("orders", "p1", 1, 2)
    got = [await q.pop("orders", group_mode="shared") for _ in range(2)]
    assert [payloads(one) for one in got] == [[1], [2]]
    await q.ack_all([one for each in got for one in each])


async def test_a_shared_group_starts_at_the_end_if_it_wants_only_new_messages(q: Driver, workers: Workers) -> None:
    await q.push("orders", "p1", 1, 2)
    assert await workers.take(subscription=NEW) == []
    await q.push("orders", "p1", 3)
    await q.push("orders", "p2", 4)
    assert sorted(map(str, await workers.drain())) == ["3", "4"]
    assert (await workers.stats()).lag == 0


async def test_a_shared_group_starts_after_a_time(q: Driver, workers: Workers, clock: FakeClock) -> None:
    start = clock.now()
    for number in range(3):
        await q.push("orders", "p1", number, priority=9 - number)
        clock.advance(10)
    got = await workers.take(10, subscription=Subscription("timestamp", start + 5_000_000))
    assert payloads(got) == [1, 2]


async def test_a_late_group_gets_what_others_have_settled(q: Driver, workers: Workers) -> None:
    await q.push("orders", "p1", 1, 2, 3)
    await workers.drain()
    assert await Workers(q, group="late").drain() == [1, 2, 3]


async def test_a_deleted_group_starts_anew(q: Driver, workers: Workers, engine: Engine) -> None:
    await q.push("orders", "p1", 1, 2, 3)
    got = await workers.take(2)
    await q.ack(got[0])
    await q.fail(got[1])
    for forget in (False, True):
        await engine.delete_group("workers", "orders", forget)
        again = await workers.take(10)
        assert [(one.payload, one.message.attempt) for one in again] == [(1, 1), (2, 1), (3, 1)]
        assert not (await q.ack(got[0])).lease_released


async def test_a_group_that_was_forgotten_may_choose_its_mode_again(
    q: Driver, workers: Workers, engine: Engine
) -> None:
    await q.push("orders", "p1", 1, 2)
    await workers.take()
    await engine.delete_group("workers", "orders", True)
    assert payloads(await q.pop("orders", group="workers", group_mode="ordered")) == [1]
    assert await q.pop("orders", group="workers") == []


async def test_a_purge_for_one_group_settles_all_that_it_has_open(
    q: Driver, workers: Workers, engine: Engine, clock: FakeClock
) -> None:
    await q.push("orders", "p1", 1, 2, 3)
    await q.push("orders", "p1", 4, delay_ms=1000)
    got = await workers.take(2)
    await q.retry(got[0], delay_ms=500)
    assert await engine.purge("orders", "workers") == 4
    clock.advance(1000)
    assert await workers.take(10) == []
    assert (await workers.stats()).lag == 0
    assert not (await q.fail(got[1])).success
    assert len(await Workers(q, group="others").take(10)) == 4
    await q.push("orders", "p1", 5)
    assert await workers.drain() == [5]


async def test_a_purge_of_the_queue_removes_what_is_held_delayed_or_waits(
    q: Driver, workers: Workers, engine: Engine, clock: FakeClock
) -> None:
    await q.push("orders", "p1", 1, 2, 3)
    await q.push("orders", "p1", 4, delay_ms=1000)
    got = await workers.take(2)
    await q.retry(got[0], delay_ms=500)
    assert await engine.purge("orders") == 4
    clock.advance(1000)
    assert await workers.take(10) == []
    await q.push("orders", "p1", 5)
    assert await workers.drain() == [5]
    assert (await workers.stats()).lag == 0


async def test_the_mode_and_the_place_survive_a_restart(durable: Driver) -> None:
    q, workers = durable, Workers(durable)
    await q.push("orders", "p1", 1, 2, 3, 4)
    got = await workers.take(3)
    await q.ack_all(got)
    await q.reopen()
    assert (await workers.stats()).mode == "shared"
    assert payloads(await q.pop("orders", group="workers", batch=10)) == [4]
    with pytest.raises(Conflict):
        await q.pop("orders", group="workers", group_mode="ordered")
