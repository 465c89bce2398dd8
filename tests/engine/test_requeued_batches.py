"""Requeued messages of ordered groups, and what comes with them in a batch (rules 14, 16 and 19)."""

from __future__ import annotations

from hark.clock import FakeClock

from .driver import Driver, Got, payloads


async def requeue_first(q: Driver, number: int) -> None:
    """Let the first messages of the queue "orders" die, and put them back in front in their order."""
    for _ in range(number):
        [held] = await q.pop("orders")
        await q.kill(held)
    for letter in sorted(await q.dead_letters("orders"), key=lambda one: one.message_id):
        await q.requeue(letter)


def attempts(got: Got) -> list[tuple[object, int]]:
    """The payloads, each with the number of the attempt."""
    return [(one.payload, one.message.attempt) for one in got]


async def test_rule_16_one_that_ran_out_alone_comes_again_with_what_is_behind_it(q: Driver, clock: FakeClock) -> None:
    await q.configure("orders", lease_time=10)
    await q.push("orders", "p1", 1, 2, 3)
    await requeue_first(q, 1)
    assert payloads(await q.pop("orders", batch=1)) == [1]
    clock.advance(10)
    assert attempts(await q.pop("orders", batch=10)) == [(1, 2), (2, 1), (3, 1)]


async def test_rule_14_one_that_failed_comes_again_with_what_is_behind_it(q: Driver) -> None:
    await q.push("orders", "p1", 1, 2, 3)
    await requeue_first(q, 1)
    [held] = await q.pop("orders", batch=1)
    await q.fail(held)
    assert attempts(await q.pop("orders", batch=10)) == [(1, 2), (2, 1), (3, 1)]


async def test_rule_15_one_that_was_given_back_comes_again_with_what_is_behind_it(q: Driver) -> None:
    await q.push("orders", "p1", 1, 2, 3)
    await requeue_first(q, 1)
    [held] = await q.pop("orders", batch=1)
    await q.retry(held)
    assert attempts(await q.pop("orders", batch=10)) == [(1, 1), (2, 1), (3, 1)]


async def test_rule_16_those_of_a_batch_that_ran_out_come_one_at_a_time_until_past_it(
    q: Driver, clock: FakeClock
) -> None:
    await q.configure("orders", lease_time=10)
    await q.push("orders", "p1", 1, 2, 3, 4)
    await requeue_first(q, 2)
    assert payloads(await q.pop("orders", batch=2)) == [1, 2]
    clock.advance(10)
    for n in (1, 2):
        got = await q.pop("orders", batch=10)
        assert attempts(got) == [(n, 1)], "a batch that ran out cost no attempt"
        await q.ack_all(got)
    assert payloads(await q.pop("orders", batch=10)) == [3, 4]


async def test_rule_16_one_of_such_a_batch_that_fails_still_comes_alone(q: Driver, clock: FakeClock) -> None:
    await q.configure("orders", lease_time=10)
    await q.push("orders", "p1", 1, 2, 3)
    await requeue_first(q, 2)
    assert payloads(await q.pop("orders", batch=2)) == [1, 2]
    clock.advance(10)
    [held] = await q.pop("orders", batch=10)
    await q.fail(held)
    assert attempts(await q.pop("orders", batch=10)) == [(1, 2)]


async def test_rule_16_what_is_requeued_in_front_of_such_a_batch_comes_alone_too(q: Driver, clock: FakeClock) -> None:
    await q.configure("orders", lease_time=10)
    await q.push("orders", "p1", 1, 2, 3, 4, 5)
    for _ in range(2):
        [held] = await q.pop("orders")
        await q.kill(held)
    assert payloads(await q.pop("orders", batch=2)) == [3, 4]
    clock.advance(10)
    await requeue_first(q, 0)
    for n in (1, 2, 3, 4):
        got = await q.pop("orders", batch=10)
        assert payloads(got) == [n]
        await q.ack_all(got)
    assert payloads(await q.pop("orders", batch=10)) == [5]


async def test_rule_16_one_at_a_time_outlives_a_restart(durable: Driver, clock: FakeClock) -> None:
    await durable.configure("orders", lease_time=10)
    await durable.push("orders", "p1", 1, 2, 3)
    await requeue_first(durable, 2)
    assert payloads(await durable.pop("orders", batch=2)) == [1, 2]
    clock.advance(10)
    await durable.engine.expire()
    await durable.reopen()
    assert payloads(await durable.pop("orders", batch=10)) == [1]
