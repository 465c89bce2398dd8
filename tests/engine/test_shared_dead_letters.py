"""Rules 18 and 19 in shared groups: buried once; requeued in front of everything, once, with all options."""

from __future__ import annotations

import asyncio

from hark.clock import FakeClock
from hark.engine.api import Engine
from hark.errors import NotFound

from .driver import Driver, message, payloads, settlement
from .workers import Workers, attempts


async def test_rule_18_exactly_once_under_racing_settlements(q: Driver, workers: Workers) -> None:
    await q.push("orders", "p1", 1)
    [held] = await workers.take()
    await asyncio.gather(*(q.kill(held) for _ in range(10)))
    await q.settle(settlement(held, "dlq"), settlement(held, "dlq"))
    assert len(await q.dead_letters()) == 1


async def test_rule_18_it_settles_the_message_for_its_group_only(q: Driver, workers: Workers) -> None:
    await q.push("orders", "p1", 1, 2)
    await workers.take_and_kill()
    assert await workers.drain() == [2]
    assert await Workers(q, group="others").drain() == [1, 2]


async def test_rule_18_a_copy_of_everything(q: Driver, workers: Workers, clock: FakeClock) -> None:
    created = clock.now()
    await q.push("orders", "p1", {"n": 1}, transaction_id="t1", trace_id="x", producer="me", backoff_ms=(1000,))
    await q.fail((await workers.take())[0], "first")
    clock.advance(1)
    [held] = await workers.take()
    await q.fail(held, "second")
    [letter] = await q.dead_letters("orders", "workers")
    assert (letter.message_id, letter.transaction_id, letter.partition) == (held.message.id, "t1", "p1")
    assert (bytes(letter.payload), letter.producer, letter.trace_id) == (b'{"n":1}', "me", "x")
    assert (letter.attempts, letter.error) == (2, "second")
    assert (letter.created_at, letter.failed_at) == (created, clock.now())


async def test_rule_18_a_queue_without_dead_letters_discards_and_counts(
    q: Driver, workers: Workers, clock: FakeClock
) -> None:
    await q.configure("orders", retry_limit=0, lease_time=10, dead_letter_queue=False)
    await q.push("orders", "p1", 1, 2, 3)
    got = await workers.take(3)
    outcome = await q.fail(got[0])
    assert (outcome.success, outcome.dead_lettered) == (True, False)
    clock.advance(10)
    assert await workers.take() == []
    assert await q.dead_letters() == []
    assert (await q.stats("orders")).discarded == 3


async def test_rule_19_a_requeued_message_goes_before_everything(q: Driver, workers: Workers, clock: FakeClock) -> None:
    await q.push("orders", "p1", "dead")
    letter = await workers.take_and_kill()
    await q.push("orders", "p1", "retried")
    [held] = await workers.take()
    await q.retry(held)
    await q.push("orders", "p1", "high", priority=9)
    clock.advance(1)
    new_id = await q.requeue(letter)
    got = await workers.take(10)
    assert payloads(got) == ["dead", "high", "retried"]
    assert (got[0].message.id, got[0].message.attempt) == (new_id, 1)


async def test_rule_19_for_its_group_only(q: Driver, workers: Workers) -> None:
    others = Workers(q, group="others")
    await q.push("orders", "p1", 1, 2)
    letter = await workers.take_and_kill()
    await others.take(1, auto_ack=True)
    await q.requeue(letter)
    assert await workers.drain() == [1, 2]
    assert await others.drain() == [2]
    assert await Workers(q, group="late").drain() == [1, 2], "a later group does not see it either"
    assert await q.drain("orders", group="ordered") == [1, 2]


async def test_rule_19_an_ordered_group_s_requeued_message_is_not_for_a_shared_one(q: Driver, workers: Workers) -> None:
    await q.push("orders", "p1", 1, 2)
    [held] = await q.pop("orders", group="ordered")
    await q.kill(held)
    await workers.drain()
    await q.requeue((await q.dead_letters())[0])
    assert await workers.drain() == []
    assert (await workers.stats()).lag == 0
    assert await q.drain("orders", group="ordered") == [1, 2]


async def test_rule_19_exactly_once_under_concurrency(q: Driver, workers: Workers, engine: Engine) -> None:
    await q.push("orders", "p1", 1)
    letter = await workers.take_and_kill()
    answers = [one for [one] in await asyncio.gather(*(engine.requeue([letter.id]) for _ in range(10)))]
    assert sum(isinstance(one, str) for one in answers) == 1
    assert sum(isinstance(one, NotFound) for one in answers) == 9
    assert await workers.drain() == [1]
    assert await q.dead_letters() == []


async def test_rule_19_options_are_kept_and_attempts_begin_again(q: Driver, workers: Workers, clock: FakeClock) -> None:
    await q.push("orders", "p1", {"n": 1}, backoff_ms=(1000,), priority=7, trace_id="x", producer="me")
    for _ in range(2):
        await q.fail((await workers.take())[0])
        clock.advance(1)
    [letter] = await q.dead_letters()
    await q.requeue(letter)
    [held] = await workers.take()
    assert (held.payload, held.message.attempt, held.message.priority) == ({"n": 1}, 1, 7)
    assert (held.message.trace_id, held.message.producer) == ("x", "me")
    assert not (await q.fail(held)).dead_lettered
    assert await workers.take() == [], "its own backoff again"
    clock.advance(1)
    [held] = await workers.take()
    assert (held.message.attempt, (await q.fail(held)).dead_lettered) == (2, True)


async def test_rule_19_a_delayed_message_that_died_comes_back_at_once(
    q: Driver, workers: Workers, clock: FakeClock
) -> None:
    await q.push("orders", "p1", 1, delay_ms=5000)
    clock.advance(5)
    letter = await workers.take_and_kill()
    await q.requeue(letter)
    assert attempts(await workers.take()) == [(1, 1)]


async def test_rule_19_several_requeued_ones_by_priority_then_in_the_order_of_their_requeue(
    q: Driver, workers: Workers, engine: Engine
) -> None:
    await q.push_messages(*(message("orders", "p1", n, priority=int(n == 3)) for n in (1, 2, 3, 4)))
    letters = [await workers.take_and_kill() for _ in range(3)]
    await engine.requeue([one.id for one in letters if bytes(one.payload) != b"3"])
    await engine.requeue([one.id for one in letters if bytes(one.payload) == b"3"])
    assert payloads(await workers.take(10)) == [3, 1, 2, 4]


async def test_rule_19_a_requeued_message_can_be_settled_like_any_other(
    q: Driver, workers: Workers, engine: Engine, clock: FakeClock
) -> None:
    await q.configure("orders", lease_time=10)
    await q.push("orders", "p1", 1, 2, 3)
    for letter in [await workers.take_and_kill() for _ in range(3)]:
        await q.requeue(letter)
    assert attempts(await workers.take(10)) == [(1, 1), (2, 1), (3, 1)]
    clock.advance(10)
    got = await workers.take(10)
    assert attempts(got) == [(1, 2), (2, 2), (3, 2)]
    await engine.release([got.lease])
    got = await workers.take(10)
    await q.ack(got[1])
    await q.retry(got[0])
    assert (await q.kill(got[2])).dead_lettered
    assert await workers.drain() == [1]
    assert ((await workers.stats()).lag, len(await q.dead_letters())) == (0, 1)


async def test_rule_19_a_requeued_message_that_failed_waits_and_is_in_front_again(
    q: Driver, workers: Workers, clock: FakeClock
) -> None:
    await q.push("orders", "p1", "dead")
    letter = await workers.take_and_kill()
    await q.push("orders", "p1", "high", priority=9)
    await q.requeue(letter)
    [held] = await workers.take()
    await q.fail(held, delay_ms=1000)
    got = await workers.take(10)
    assert payloads(got) == ["high"]
    await q.engine.release([got.lease])
    clock.advance(1)
    assert payloads(await workers.take(10)) == ["dead", "high"]


async def test_rule_19_requeued_messages_survive_a_restart(durable: Driver) -> None:
    q, workers = durable, Workers(durable)
    await q.push("orders", "p1", "dead")
    letter = await workers.take_and_kill()
    await q.push("orders", "p1", "high", priority=9)
    await q.requeue(letter)
    await q.reopen()
    assert await workers.drain() == ["dead", "high"]
    await q.reopen()
    assert await workers.drain() == []
    assert (await workers.stats()).lag == 0
