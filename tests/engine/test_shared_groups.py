"""Shared groups beside others: the mode is fixed at first contact, each has a place of its own, and a seek moves it."""

from __future__ import annotations

import pytest

from hark.engine.api import Engine
from hark.errors import Conflict
from hark.model import QUEUE_MODE, GroupMode, PopRequest, PopResult

from .driver import Driver, message, payloads
from .workers import Workers, attempts


@pytest.mark.parametrize("group", ["workers", QUEUE_MODE])
async def test_the_mode_is_stored_at_first_contact_even_when_nothing_was_there(q: Driver, group: str) -> None:
    assert await q.pop("orders", group=group, group_mode="shared") == []
    [stats] = await q.engine.group_stats(group, "orders")
    assert stats.mode == "shared"
    await q.push("orders", "p1", 1, 2)
    first, second = [await q.pop("orders", group=group) for _ in range(2)]
    assert (payloads(first), payloads(second)) == ([1], [2]), "absent means: as stored"
    await q.ack_all([*first, *second])


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


async def test_every_group_sees_every_message_whatever_its_mode(q: Driver, workers: Workers) -> None:
    await q.push("orders", "p1", 1, 2, 3)
    await q.ack_all(await workers.take())
    [held] = await workers.take()
    assert await Workers(q, group="others").drain() == [1, 2, 3], "also what another group holds or has settled"
    assert await q.drain("orders", group="ordered") == [1, 2, 3]
    assert await q.drain("orders") == [1, 2, 3]
    assert await workers.drain() == [3]
    assert (await q.ack(held)).success


async def test_an_ordered_group_beside_a_shared_one_keeps_its_order(q: Driver, workers: Workers) -> None:
    await q.push("orders", "p1", 1)
    await q.push("orders", "p1", 2, priority=9)
    await q.push("orders", "p1", 3)
    held = [await workers.take() for _ in range(3)]
    assert [payloads(one) for one in held] == [[2], [1], [3]]
    assert payloads(await q.pop("orders", group="ordered", batch=10)) == [1, 2, 3]


async def test_a_deleted_group_starts_again_and_a_forgotten_one_may_have_another_mode(
    q: Driver, workers: Workers, engine: Engine
) -> None:
    await q.push("orders", "p1", 1, 2, 3)
    got = await workers.take(2)
    await q.ack(got[0])
    await q.fail(got[1])
    for forget in (False, True):
        await engine.delete_group("workers", "orders", forget)
        assert attempts(await workers.take(10)) == [(1, 1), (2, 1), (3, 1)]
        assert not (await q.ack(got[0])).lease_released
    await engine.delete_group("workers", "orders", True)
    assert payloads(await q.pop("orders", group="workers", group_mode="ordered")) == [1]
    assert await q.pop("orders", group="workers") == []


async def test_the_mode_and_the_place_survive_a_restart(q: Driver, workers: Workers) -> None:
    await q.push("orders", "p1", 1, 2, 3, 4)
    got = await workers.take(3)
    await q.ack_all(got)
    await q.reopen()
    assert (await workers.stats()).mode == "shared"
    assert payloads(await q.pop("orders", group="workers", batch=10)) == [4]
    with pytest.raises(Conflict):
        await q.pop("orders", group="workers", group_mode="ordered")


# Seek ------------------------------------------------------------------------------------------------------


async def test_rule_21_attempts_and_waits_are_forgotten(q: Driver, workers: Workers) -> None:
    await q.push("orders", "p1", 1, 2, 3)
    for held in await workers.take(2):
        await q.fail(held, delay_ms=60_000)
    await q.seek("orders", group="workers", offset=1)
    got = await workers.take(10)
    assert attempts(got) == [(1, 1), (2, 1), (3, 1)]
    await q.fail(got[0], delay_ms=1000)
    await q.seek("orders", group="workers", offset=2)
    q.clock.advance(10)
    assert await workers.drain() == [2, 3], "a retry can be skipped"


async def test_rule_21_delayed_messages_beyond_the_target_come_at_their_time_again(q: Driver, workers: Workers) -> None:
    await q.push_messages(
        message("orders", "p1", "first", delay_ms=1000),
        message("orders", "p1", "second", delay_ms=3000),
        message("orders", "p1", "plain"),
    )
    await workers.take(1, "nowhere")
    await q.seek("orders", group="workers", offset=2)
    q.clock.advance(1)
    assert await workers.drain() == ["plain"], "one before the target is skipped"
    assert (await workers.stats()).lag == 1
    await q.seek("orders", group="workers", offset=1)
    assert await workers.drain() == ["plain", "first"]
    q.clock.advance(2)
    assert await workers.drain() == ["second"]
    await q.seek("orders", group="workers", offset=2)
    assert await workers.drain() == ["plain", "second"]
    await q.seek("orders", group="workers", to_end=True)
    assert await workers.drain() == []


async def test_rule_21_every_priority_begins_again(q: Driver, workers: Workers) -> None:
    start = q.clock.now()
    for priority in (0, 9, 4, 0, 9):
        await q.push("orders", "p1", priority, priority=priority)
        q.clock.advance(10)
    await workers.drain()
    await q.seek("orders", group="workers", offset=3)
    assert await workers.drain() == [9, 4, 0]
    await q.seek("orders", group="workers", timestamp=start + 15_000_000)
    assert await workers.drain() == [9, 4, 0], "also behind a time"
