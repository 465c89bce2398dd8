"""Rules 14, 15, 18 and 19 in shared groups: what fails concerns one message; dead once, requeued in front, once."""

from __future__ import annotations

import asyncio

import pytest

from hark.clock import SECOND, FakeClock
from hark.engine.api import Engine
from hark.errors import NotFound
from hark.model import QueueOptions, QueueSpec

from .driver import Driver, message, payloads, settlement
from .workers import Workers, attempts


async def test_a_failed_message_comes_again_and_its_neighbours_go_on(q: Driver, workers: Workers) -> None:
    await q.configure("orders", retry_delay=5000)
    await q.push("orders", "p1", 1, 2, 3)
    first, second = await workers.take(), await workers.take()
    await q.fail(first[0])
    assert (await q.ack(second[0])).success
    assert payloads(await workers.take(10)) == [3]
    got = await workers.arrive_at(q.clock.now() + 5 * SECOND)
    assert attempts(got) == [(1, 2)]


@pytest.mark.parametrize(
    ("options", "backoff_ms", "seconds"),
    [
        (QueueOptions(), None, (0, 0, 0)),
        (QueueOptions(retry_limit=9, retry_delay=50), (1000, 7000), (1, 7)),
        (QueueOptions(retry_delay=1000, retry_multiplier=3, retry_max_delay=5000), None, (1, 3, 5)),
    ],
    ids=["by default at once", "schedule of the message", "schedule of the queue"],
)
async def test_a_failed_message_comes_again_by_its_schedule_or_that_of_its_queue(
    q: Driver, workers: Workers, options: QueueOptions, backoff_ms: tuple[int, ...] | None, seconds: tuple[int, ...]
) -> None:
    await q.configure_spec(QueueSpec(name="orders", options=options))
    await q.push("orders", "p1", 1, backoff_ms=backoff_ms)
    [held] = await workers.take()
    for attempt, wait in enumerate(seconds, start=1):
        assert not (await q.fail(held, f"error {attempt}")).dead_lettered
        [held] = await (workers.arrive_at(q.clock.now() + wait * SECOND) if wait else workers.take())
        assert held.message.attempt == attempt + 1
    assert (await q.fail(held, "the last")).dead_lettered
    assert await workers.take() == []
    [letter] = await q.dead_letters("orders", "workers")
    assert (letter.attempts, letter.error) == (len(seconds) + 1, "the last")


async def test_failed_with_a_delay_waits_that_long_instead(q: Driver, workers: Workers, clock: FakeClock) -> None:
    await q.push("orders", "p1", 1, backoff_ms=(60_000, 60_000))
    [held] = await workers.take()
    await q.fail(held, delay_ms=2000)
    [held] = await workers.arrive_at(clock.now() + 2 * SECOND)
    assert held.message.attempt == 2
    await q.fail(held, delay_ms=0)
    [held] = await workers.take()
    assert (held.message.attempt, (await q.fail(held, delay_ms=2000)).dead_lettered) == (3, True)


async def test_retry_uses_no_attempt(q: Driver, workers: Workers) -> None:
    await q.configure("orders", retry_limit=1)
    await q.push("orders", "p1", 1)
    for attempt in (1, 2):
        for _ in range(4):
            [held] = await workers.take()
            assert held.message.attempt == attempt
            await q.retry(held)
        [held] = await workers.take()
        await q.retry(held, delay_ms=3000)
        [held] = await workers.arrive_at(q.clock.now() + 3 * SECOND)
        assert held.message.attempt == attempt
        assert (await q.fail(held)).dead_lettered == (attempt == 2)


async def test_every_message_of_a_batch_has_its_own_fate(q: Driver, workers: Workers) -> None:
    await q.push("orders", "p1", 1, 2, 3, 4)
    got = await workers.take(4)
    outcomes = await q.settle(
        settlement(got[0], "failed", delay_ms=1000),
        settlement(got[1], "dlq", "hopeless"),
        settlement(got[2], "retry"),
        settlement(got[3]),
    )
    assert all(one.success for one in outcomes)
    assert [one.dead_lettered for one in outcomes] == [False, True, False, False]
    assert [one.lease_released for one in outcomes] == [False, False, False, True]
    [letter] = await q.dead_letters("orders", "workers")
    assert (bytes(letter.payload), letter.attempts, letter.error) == (b"2", 1, "hopeless")
    assert (await workers.stats()).lag == 2
    assert attempts(await workers.take(10)) == [(3, 1)]
    q.clock.advance(1)
    assert attempts(await workers.take(10)) == [(1, 2)]


async def test_a_repeated_failure_uses_one_attempt_not_two_and_none_of_another_group(
    q: Driver, workers: Workers
) -> None:
    await q.push("orders", "p1", 1)
    [held] = await workers.take()
    await q.settle(settlement(held, "failed"), settlement(held, "failed"))
    await q.fail(held)
    assert attempts(await Workers(q, group="others").take()) == [(1, 1)]
    assert attempts(await workers.take()) == [(1, 2)]


async def test_many_retries_come_by_priority_then_in_the_order_they_fall_due(q: Driver, workers: Workers) -> None:
    await q.push_messages(*(message("orders", "p1", n, priority=n % 3) for n in range(50)))
    due = [1000 + n * 37 % 25 for n in range(50)]
    got = await workers.take(50)
    await q.settle(*(settlement(held, "retry", delay_ms=due[held.message.offset - 1]) for held in got))
    q.clock.advance(2)
    assert payloads(await workers.take(100)) == sorted(range(50), key=lambda n: (-(n % 3), due[n], n))


async def test_retries_survive_a_restart(durable: Driver, clock: FakeClock) -> None:
    q, workers = durable, Workers(durable)
    await q.configure("orders", retry_delay=10_000)
    await q.push("orders", "p1", 1, 2, 3, priority=4)
    for held in await workers.take(2):
        await q.fail(held, "first")
    await q.reopen()
    assert attempts(await workers.take(10)) == [(3, 1)]
    clock.advance(10)
    got = await workers.take(10)
    assert attempts(got) == [(1, 2), (2, 2)]
    await q.ack(got[0])
    await q.fail(got[1], "second")
    await q.reopen()
    clock.advance(10)
    [held] = [one for one in await workers.take(10) if one.payload == 2]
    assert held.message.attempt == 3


# Dead letters ----------------------------------------------------------------------------------------------


async def test_rule_18_exactly_once_under_racing_settlements(q: Driver, workers: Workers) -> None:
    await q.push("orders", "p1", 1)
    [held] = await workers.take()
    await asyncio.gather(*(q.kill(held) for _ in range(10)))
    await q.settle(settlement(held, "dlq"), settlement(held, "dlq"))
    assert len(await q.dead_letters()) == 1


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


async def test_rule_18_a_queue_without_dead_letters_discards_and_counts(q: Driver, workers: Workers) -> None:
    await q.configure("orders", retry_limit=0, lease_time=10, dead_letter_queue=False)
    await q.push("orders", "p1", 1, 2, 3)
    got = await workers.take(3)
    outcome = await q.fail(got[0])
    assert (outcome.success, outcome.dead_lettered) == (True, False)
    q.clock.advance(10)
    assert await workers.take() == []
    assert await q.dead_letters() == []
    assert (await q.stats("orders")).discarded == 3


async def test_rule_19_a_requeued_message_goes_before_everything(q: Driver, workers: Workers) -> None:
    await q.push("orders", "p1", "dead")
    letter = await workers.take_and_kill()
    await q.push("orders", "p1", "retried")
    [held] = await workers.take()
    await q.retry(held)
    await q.push("orders", "p1", "high", priority=9)
    q.clock.advance(1)
    new_id = await q.requeue(letter)
    got = await workers.take(10)
    assert payloads(got) == ["dead", "high", "retried"]
    assert (got[0].message.id, got[0].message.attempt) == (new_id, 1)
    await q.fail(got[0], delay_ms=1000)
    await q.engine.release([got.lease])
    got = await workers.take(10)
    assert payloads(got) == ["high", "retried"]
    await q.engine.release([got.lease])
    q.clock.advance(1)
    assert attempts(await workers.take(10)) == [("dead", 2), ("high", 1), ("retried", 1)], "in front also after a wait"


async def test_rule_19_for_its_group_only(q: Driver, workers: Workers) -> None:
    others = Workers(q, group="others")
    await q.push("orders", "p1", 1, 2)
    letter = await workers.take_and_kill()
    assert payloads(await others.take(1, auto_ack=True)) == [1], "rule 18: dead for its group only"
    assert await workers.drain() == [2]
    await q.requeue(letter)
    assert await workers.drain() == [1]
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


async def test_rule_19_options_are_kept_and_attempts_begin_again(q: Driver, workers: Workers) -> None:
    """But a delay is over."""
    await q.push("orders", "p1", {"n": 1}, backoff_ms=(1000,), priority=7, trace_id="x", producer="me", delay_ms=5000)
    for seconds in (5, 1):
        q.clock.advance(seconds)
        await q.fail((await workers.take())[0])
    [letter] = await q.dead_letters()
    await q.requeue(letter)
    [held] = await workers.take()
    assert (held.payload, held.message.attempt, held.message.priority) == ({"n": 1}, 1, 7)
    assert (held.message.trace_id, held.message.producer) == ("x", "me")
    assert not (await q.fail(held)).dead_lettered
    assert await workers.take() == [], "its own backoff again"
    q.clock.advance(1)
    [held] = await workers.take()
    assert (held.message.attempt, (await q.fail(held)).dead_lettered) == (2, True)


async def test_rule_19_several_requeued_ones_by_priority_then_in_the_order_of_their_requeue(
    q: Driver, workers: Workers, engine: Engine
) -> None:
    await q.push_messages(*(message("orders", "p1", n, priority=int(n == 3)) for n in (1, 2, 3, 4)))
    letters = [await workers.take_and_kill() for _ in range(3)]
    await engine.requeue([one.id for one in letters if bytes(one.payload) != b"3"])
    await engine.requeue([one.id for one in letters if bytes(one.payload) == b"3"])
    assert payloads(await workers.take(10)) == [3, 1, 2, 4]


async def test_rule_19_a_requeued_message_can_be_settled_like_any_other(q: Driver, workers: Workers) -> None:
    await q.configure("orders", lease_time=10)
    await q.push("orders", "p1", 1, 2, 3)
    for letter in [await workers.take_and_kill() for _ in range(3)]:
        await q.requeue(letter)
    assert attempts(await workers.take(10)) == [(1, 1), (2, 1), (3, 1)]
    q.clock.advance(10)
    got = await workers.take(10)
    assert attempts(got) == [(1, 2), (2, 2), (3, 2)]
    await q.engine.release([got.lease])
    got = await workers.take(10)
    await q.ack(got[1])
    await q.retry(got[0])
    assert (await q.kill(got[2])).dead_lettered
    assert await workers.drain() == [1]
    assert ((await workers.stats()).lag, len(await q.dead_letters())) == (0, 1)


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
