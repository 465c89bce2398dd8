"""Cancel: a message is taken back only if it has been given to no consumer."""

from __future__ import annotations

import asyncio

from hark.clock import FakeClock
from hark.engine.api import Engine
from hark.model import MessageFilter

from .driver import NEVER_GIVEN, NEW, Driver, payloads
from .workers import Workers


async def test_a_delayed_message_that_was_cancelled_never_comes(q: Driver, workers: Workers, engine: Engine) -> None:
    first = await q.push_id("orders", "p1", 1, delay_ms=1000)
    await q.push("orders", "p1", 2, delay_ms=1000)
    assert await workers.take() == []
    assert await engine.cancel([first]) == ["cancelled"]
    q.clock.advance(1)
    assert await workers.drain() == [2]
    assert await q.drain("orders", group="ordered") == [2]
    assert len(await engine.messages(MessageFilter(queue="orders"))) == 1


async def test_answers_are_by_position(q: Driver, engine: Engine, either: Workers) -> None:
    ids = [one.message_id or "" for one in await q.push("orders", "p1", 1, 2, 3, 4)]
    got = await either.take(2)
    await q.ack(got[1])
    answers = await engine.cancel([ids[1], NEVER_GIVEN, ids[0], "no id", ids[2], ids[2], ""])
    assert answers == ["settled", "not_found", "leased", "not_found", "cancelled", "not_found", "not_found"]
    assert await engine.cancel([]) == []
    assert (await q.ack(got[0])).success
    assert await either.drain() == [4]


async def test_what_some_group_holds_is_leased_for_all(q: Driver, workers: Workers, engine: Engine) -> None:
    first = await q.push_id("orders", "p1", 1)
    await Workers(q, group="others").take(1, "nowhere")
    [leased] = await workers.take()
    assert await engine.cancel([first]) == ["leased"]
    assert (await q.ack(leased)).success
    assert await engine.cancel([first]) == ["settled"]
    assert await Workers(q, group="others").drain() == [1]


async def test_what_has_used_attempts_is_leased_and_a_dead_letter_settled(q: Driver, workers: Workers) -> None:
    dead = await q.push_id("orders", "p1", 1)
    await workers.take_and_kill()
    failed = await q.push_id("orders", "p2", 2)
    await q.fail((await workers.take())[0], delay_ms=60_000)
    expired = await q.push_id("orders", "p3", 3)
    await workers.take()
    q.clock.advance(300)
    assert await q.engine.cancel([dead, failed, expired]) == ["settled", "leased", "leased"]
    assert len(await q.dead_letters()) == 1


async def test_what_was_released_was_never_handed_out_and_what_a_group_skipped_is_settled(
    q: Driver, workers: Workers
) -> None:
    first, second = await q.push_id("orders", "p1", 1), await q.push_id("orders", "p1", 2)
    got = await workers.take()
    await q.engine.release([got.lease])
    assert await q.engine.cancel([first]) == ["cancelled"]
    assert payloads(await workers.take()) == [2]
    third = await q.push_id("skipped", "p1", 3)
    await Workers(q, "skipped").take(subscription=NEW)
    assert await q.engine.cancel([second, third]) == ["leased", "settled"]


async def test_a_cancelled_message_makes_room_and_frees_its_transaction_id(q: Driver, engine: Engine) -> None:
    await q.configure("orders", max_size=1)
    first = await q.push_id("orders", "p1", 1, transaction_id="t1")
    assert await engine.cancel([first, first]) == ["cancelled", "not_found"], "without groups too"
    second = await q.push_id("orders", "p1", 2, transaction_id="t1")
    assert first != second
    assert await q.drain("orders") == [2]


async def test_cancel_frees_what_waited_behind_it_in_an_ordered_group(q: Driver, engine: Engine) -> None:
    first = await q.push_id("orders", "p1", 1, delay_ms=60_000)
    await q.push("orders", "p1", 2)
    assert await q.pop("orders") == []
    q.hints.clear()
    assert await engine.cancel([first]) == ["cancelled"]
    assert q.announced("orders") == {"p1"}
    assert payloads(await q.pop("orders")) == [2]


async def test_a_race_with_a_consumer_has_one_winner(q: Driver, workers: Workers, engine: Engine) -> None:
    for number in range(20):
        first = await q.push_id("orders", "p1", number)
        taking, cancelling = (workers.take(), engine.cancel([first]))
        if number % 2:
            got, [outcome] = await asyncio.gather(taking, cancelling)
        else:
            [outcome], got = await asyncio.gather(cancelling, taking)
        assert (outcome, payloads(got)) in [("cancelled", []), ("leased", [number])]
        await q.ack_all(got)
    assert (await workers.stats()).lag == 0


async def test_a_race_of_two_cancellations_has_one_winner(q: Driver, engine: Engine) -> None:
    first = await q.push_id("orders", "p1", 1, delay_ms=1000)
    answers = [one for [one] in await asyncio.gather(*(engine.cancel([first]) for _ in range(5)))]
    assert sorted(answers) == ["cancelled"] + ["not_found"] * 4


async def test_a_cancelled_message_stays_away_after_a_restart(q: Driver, workers: Workers, clock: FakeClock) -> None:
    first = await q.push_id("orders", "p1", 1, delay_ms=1000)
    await q.push("orders", "p1", 2)
    await q.engine.cancel([first])
    await q.reopen()
    clock.advance(10)
    assert await workers.drain() == [2]
