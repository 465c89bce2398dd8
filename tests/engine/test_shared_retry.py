"""Shared groups: `failed`, `retry` and `dlq` concern one message, and nobody waits with it."""

from __future__ import annotations

from hark.clock import SECOND, FakeClock

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


async def test_by_default_it_comes_again_at_once(q: Driver, workers: Workers) -> None:
    await q.push("orders", "p1", 1)
    for attempt in (1, 2, 3, 4):
        [held] = await workers.take()
        assert held.message.attempt == attempt
        assert (await q.fail(held, f"error {attempt}")).dead_lettered == (attempt == 4)
    assert await workers.take() == []
    [letter] = await q.dead_letters("orders", "workers")
    assert (letter.attempts, letter.error) == (4, "error 4")


async def test_the_schedule_of_the_message_goes_before_that_of_the_queue(
    q: Driver, workers: Workers, clock: FakeClock
) -> None:
    await q.configure("orders", retry_limit=9, retry_delay=50)
    await q.push("orders", "p1", 1, backoff_ms=(1000, 7000))
    for seconds in (1, 7):
        [held] = await workers.take()
        assert not (await q.fail(held)).dead_lettered
        await q.engine.release([(await workers.arrive_at(clock.now() + seconds * SECOND)).lease])
    [held] = await workers.take()
    assert (await q.fail(held)).dead_lettered


async def test_the_schedule_of_the_queue_grows(q: Driver, workers: Workers, clock: FakeClock) -> None:
    await q.configure("orders", retry_limit=3, retry_delay=1000, retry_multiplier=3, retry_max_delay=5000)
    await q.push("orders", "p1", 1)
    [held] = await workers.take()
    for seconds in (1, 3, 5):
        await q.fail(held)
        [held] = await workers.arrive_at(clock.now() + seconds * SECOND)
    assert (await q.fail(held)).dead_lettered


async def test_failed_with_a_delay_waits_that_long_instead(q: Driver, workers: Workers, clock: FakeClock) -> None:
    await q.push("orders", "p1", 1, backoff_ms=(60_000, 60_000))
    [held] = await workers.take()
    await q.fail(held, delay_ms=2000)
    [held] = await workers.arrive_at(clock.now() + 2 * SECOND)
    assert held.message.attempt == 2
    await q.fail(held, delay_ms=0)
    [held] = await workers.take()
    assert (held.message.attempt, (await q.fail(held, delay_ms=2000)).dead_lettered) == (3, True)


async def test_retry_uses_no_attempt(q: Driver, workers: Workers, clock: FakeClock) -> None:
    await q.configure("orders", retry_limit=0)
    await q.push("orders", "p1", 1)
    for _ in range(5):
        [held] = await workers.take()
        assert held.message.attempt == 1
        await q.retry(held)
    [held] = await workers.take()
    await q.retry(held, delay_ms=3000)
    assert attempts(await workers.arrive_at(clock.now() + 3 * SECOND)) == [(1, 1)]


async def test_retry_keeps_the_attempts_that_were_used(q: Driver, workers: Workers) -> None:
    await q.push("orders", "p1", 1)
    await q.fail((await workers.take())[0])
    await q.retry((await workers.take())[0])
    assert attempts(await workers.take()) == [(1, 2)]


async def test_dlq_buries_one_message_of_a_batch(q: Driver, workers: Workers) -> None:
    await q.push("orders", "p1", 1, 2, 3)
    got = await workers.take(3)
    outcome = await q.kill(got[1], "hopeless")
    assert (outcome.success, outcome.dead_lettered, outcome.lease_released) == (True, True, False)
    [letter] = await q.dead_letters("orders", "workers")
    assert (bytes(letter.payload), letter.attempts, letter.error) == (b"2", 1, "hopeless")
    await q.ack_all([got[0], got[2]])
    assert (await workers.stats()).lag == 0


async def test_every_message_of_a_batch_has_its_own_fate(q: Driver, workers: Workers, clock: FakeClock) -> None:
    await q.push("orders", "p1", 1, 2, 3, 4)
    got = await workers.take(4)
    outcomes = await q.settle(
        settlement(got[0], "failed", delay_ms=1000),
        settlement(got[1]),
        settlement(got[2], "retry"),
        settlement(got[3], "dlq"),
    )
    assert [(one.success, one.lease_released) for one in outcomes] == [
        (True, False),
        (True, False),
        (True, False),
        (True, True),
    ]
    assert attempts(await workers.take(10)) == [(3, 1)]
    clock.advance(1)
    assert attempts(await workers.take(10)) == [(1, 2)]
    assert len(await q.dead_letters()) == 1


async def test_a_repeated_failure_uses_one_attempt_not_two(q: Driver, workers: Workers) -> None:
    await q.push("orders", "p1", 1)
    [held] = await workers.take()
    await q.settle(settlement(held, "failed"), settlement(held, "failed"))
    await q.fail(held)
    assert attempts(await workers.take()) == [(1, 2)]


async def test_attempts_are_counted_per_group(q: Driver, workers: Workers) -> None:
    await q.push("orders", "p1", 1)
    await q.fail((await workers.take())[0])
    assert attempts(await Workers(q, group="others").take()) == [(1, 1)]
    assert attempts(await workers.take()) == [(1, 2)]


async def test_many_retries_come_in_the_order_they_fall_due(q: Driver, workers: Workers, clock: FakeClock) -> None:
    await q.push("orders", "p1", *range(50))
    got = await workers.take(50)
    for held in got:
        await q.retry(held, delay_ms=1000 + (int(str(held.payload)) * 37) % 50)
    clock.advance(2)
    wanted = sorted(range(50), key=lambda number: (number * 37) % 50)
    assert payloads(await workers.take(100)) == wanted


async def test_retries_of_many_priorities(q: Driver, workers: Workers, clock: FakeClock) -> None:
    await q.push_messages(*(message("orders", "p1", n, priority=n % 3) for n in range(9)))
    for held in await workers.take(9):
        await q.retry(held, delay_ms=1000)
    clock.advance(1)
    assert payloads(await workers.take(9)) == [2, 5, 8, 1, 4, 7, 0, 3, 6]


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
