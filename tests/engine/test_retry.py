"""Rules 14 and 15: `failed`, `retry` and `dlq`."""

from __future__ import annotations

from typing import Literal

import pytest

from hark.clock import MILLISECOND, SECOND, FakeClock
from hark.model import Status

from .driver import Driver, message, payloads, settlement

TICK = 0.000_001


async def delays_until_dead(q: Driver, queue: str = "orders") -> list[float]:
    """Fail a message again and again; how many milliseconds each retry waited, until it was dead."""
    waited = []
    [held] = await q.pop(queue)
    while not (await q.fail(held)).dead_lettered:
        failed_at = q.clock.now()
        got = await q.pop(queue, held.message.partition)
        if not got:
            assert got.look_again_at is not None
            q.clock.advance((got.look_again_at - failed_at) / SECOND - TICK)
            assert await q.pop(queue) == []
            q.clock.advance(TICK)
            got = await q.pop(queue)
        [held] = got
        waited.append((q.clock.now() - failed_at) / MILLISECOND)
    return waited


# Rule 14: the schedule -------------------------------------------------------------------------------------


async def test_rule_14_by_default_three_retries_at_once_then_the_dead_letters(q: Driver) -> None:
    await q.push("orders", "p1", 1)
    for attempt in (1, 2, 3, 4):
        [held] = await q.pop("orders")
        assert held.message.attempt == attempt
        outcome = await q.fail(held)
        assert (outcome.success, outcome.dead_lettered) == (True, attempt == 4)
    assert await q.pop("orders") == []
    [letter] = await q.dead_letters("orders")
    assert letter.attempts == 4


@pytest.mark.parametrize("retry_limit", [0, 1, 2])
async def test_rule_14_attempts_allowed_are_retry_limit_plus_one(q: Driver, retry_limit: int) -> None:
    await q.configure("orders", retry_limit=retry_limit)
    await q.push("orders", "p1", 1)
    assert await delays_until_dead(q) == [0.0] * retry_limit


async def test_rule_14_retry_delay_is_waited_for(q: Driver) -> None:
    await q.configure("orders", retry_limit=2, retry_delay=1500)
    await q.push("orders", "p1", 1)
    assert await delays_until_dead(q) == [1500, 1500]


async def test_rule_14_the_multiplier_grows_the_delay_up_to_the_longest(q: Driver) -> None:
    await q.configure("orders", retry_limit=5, retry_delay=1000, retry_multiplier=2, retry_max_delay=5000)
    await q.push("orders", "p1", 1)
    assert await delays_until_dead(q) == [1000, 2000, 4000, 5000, 5000]


async def test_rule_14_a_huge_multiplier_is_still_bounded(q: Driver) -> None:
    await q.configure("orders", retry_limit=100, retry_delay=1000, retry_multiplier=1000)
    await q.push("orders", "p1", 1)
    assert await delays_until_dead(q) == [1000, 1_000_000] + [3_600_000] * 98


async def test_rule_14_the_message_s_own_schedule_wins(q: Driver) -> None:
    await q.configure("orders", retry_limit=9, retry_delay=50)
    await q.push("orders", "p1", 1, backoff_ms=(100, 700, 300))
    assert await delays_until_dead(q) == [100, 700, 300]


async def test_rule_14_an_empty_schedule_allows_one_attempt(q: Driver) -> None:
    await q.push("orders", "p1", 1, backoff_ms=())
    assert await delays_until_dead(q) == []


async def test_rule_14_attempts_are_counted_per_message_and_group(q: Driver) -> None:
    await q.push("orders", "p1", 1, 2)
    for group in ("a", "b"):
        [held] = await q.pop("orders", group=group)
        assert held.message.attempt == 1
        await q.fail(held)
        got = await q.pop("orders", group=group, batch=2)
        assert [one.message.attempt for one in got] == [2, 1]


async def test_rule_14_an_attempt_of_another_message_does_not_count(q: Driver) -> None:
    """The original counts failures per partition; here each message has its own."""
    await q.configure("orders", retry_limit=1)
    await q.push("orders", "p1", 1, 2, 3)
    for _ in range(3):
        [held] = await q.pop("orders")
        assert not (await q.fail(held)).dead_lettered
        [held] = await q.pop("orders")
        await q.ack(held)
    assert await q.dead_letters() == []


async def test_rule_14_failed_with_a_delay_waits_that_long_instead(q: Driver, clock: FakeClock) -> None:
    await q.push("orders", "p1", 1, 2, backoff_ms=(60_000, 60_000))
    [held] = await q.pop("orders")
    await q.fail(held, delay_ms=1500)
    assert (await q.pop("orders")).look_again_at == clock.now() + 1500 * MILLISECOND
    clock.advance(1.5)
    [held] = await q.pop("orders")
    assert (held.payload, held.message.attempt) == (1, 2)
    await q.fail(held, delay_ms=0)
    [held] = await q.pop("orders")
    assert (held.payload, held.message.attempt) == (1, 3)
    assert (await q.fail(held, delay_ms=1500)).dead_lettered, "a delay buys no attempt"


# Rule 14: what follows -------------------------------------------------------------------------------------


async def test_rule_14_the_lease_stops_blocking_at_once(q: Driver) -> None:
    await q.push("orders", "p1", 1, 2, 3)
    got = await q.pop("orders", batch=3)
    outcome = await q.fail(got[0])
    assert outcome.lease_released
    assert payloads(await q.pop("orders", batch=3)) == [1, 2, 3]


async def test_rule_14_the_partition_waits_and_the_rest_comes_after_it_in_order(q: Driver, clock: FakeClock) -> None:
    await q.configure("orders", retry_delay=1000)
    await q.push("orders", "p1", 1, 2, 3, 4)
    got = await q.pop("orders", batch=3)
    await q.ack(got[0])
    await q.fail(got[1])
    assert await q.pop("orders", batch=10) == []
    clock.advance(1)
    again = await q.pop("orders", batch=10)
    assert [(one.payload, one.message.attempt) for one in again] == [(2, 2), (3, 1), (4, 1)]


async def test_rule_14_what_precedes_the_failed_one_unsettled_comes_before_it(q: Driver) -> None:
    await q.configure("orders", retry_delay=1000)
    await q.push("orders", "p1", 1, 2, 3)
    got = await q.pop("orders", batch=3)
    await q.fail(got[1])
    assert payloads(await q.pop("orders", batch=10)) == [1]


async def test_rule_14_settlements_under_the_old_lease_count_until_redelivery(q: Driver, clock: FakeClock) -> None:
    await q.configure("orders", retry_delay=1000)
    await q.push("orders", "p1", 1, 2, 3, 4)
    old = await q.pop("orders", batch=4)
    await q.fail(old[0])
    assert (await q.ack(old[1])).success
    clock.advance(1)
    new = await q.pop("orders", batch=2)
    assert payloads(new) == [1, 3]
    assert not (await q.ack(old[2])).success, "delivered again, to somebody else"
    assert (await q.ack(old[3])).success, "not delivered again yet"
    assert (await q.ack(new[1])).success
    assert (await q.ack(new[0])).success
    assert await q.cursor("orders", "p1") == 4


async def test_rule_14_a_second_failure_under_the_old_lease_counts_for_its_own_message(q: Driver) -> None:
    await q.push("orders", "p1", 1, 2)
    got = await q.pop("orders", batch=2)
    await q.fail(got[0])
    assert (await q.fail(got[1])).success
    again = await q.pop("orders", batch=2)
    assert [one.message.attempt for one in again] == [2, 2]


async def test_rule_14_the_old_lease_counts_only_while_its_time_lasts(q: Driver, clock: FakeClock) -> None:
    await q.configure("orders", lease_time=10, retry_delay=60_000)
    await q.push("orders", "p1", 1, 2, 3)
    got = await q.pop("orders", batch=3)
    await q.fail(got[0])
    clock.advance(10 - TICK)
    assert (await q.ack(got[1])).success
    clock.advance(TICK)
    assert not (await q.ack(got[2])).success


async def test_rule_14_the_end_of_a_lease_that_no_longer_blocks_costs_nothing(q: Driver, clock: FakeClock) -> None:
    await q.configure("orders", lease_time=10)
    await q.push("orders", "p1", 1, 2, 3)
    got = await q.pop("orders", batch=3)
    await q.fail(got[0])
    clock.advance(10)
    await q.engine.expire()
    again = await q.pop("orders", batch=3)
    assert [(one.payload, one.message.attempt) for one in again] == [(1, 2), (2, 1), (3, 1)]


async def test_rule_14_a_dead_letter_does_not_end_the_lease_of_the_rest(q: Driver) -> None:
    await q.configure("orders", retry_limit=0)
    await q.push("orders", "p1", 1, 2, 3)
    got = await q.pop("orders", batch=2)
    outcome = await q.fail(got[0])
    assert (outcome.dead_lettered, outcome.lease_released) == (True, False)
    assert await q.pop("orders") == []
    assert (await q.ack(got[1])).lease_released
    assert payloads(await q.pop("orders")) == [3]


async def test_rule_14_the_same_inside_a_transaction(q: Driver, clock: FakeClock) -> None:
    await q.configure("orders", retry_limit=1, retry_delay=1000)
    await q.push("orders", "p1", 1)
    [held] = await q.pop("orders")
    assert (await q.transact(settlement(held, "failed", "boom"))).success
    assert await q.pop("orders") == []
    assert await q.dead_letters() == []
    clock.advance(1)
    [held] = await q.pop("orders")
    assert held.message.attempt == 2
    assert (await q.transact(settlement(held, "failed", "again"))).success
    [letter] = await q.dead_letters()
    assert (letter.attempts, letter.error) == (2, "again")


async def test_rule_14_a_changed_retry_limit_has_effect_at_once(q: Driver) -> None:
    await q.configure("orders", retry_limit=5)
    await q.push("orders", "p1", 1)
    [held] = await q.pop("orders")
    await q.fail(held)
    await q.configure("orders", retry_limit=1)
    [held] = await q.pop("orders")
    assert (await q.fail(held)).dead_lettered


# Rule 15 ---------------------------------------------------------------------------------------------------


async def test_rule_15_retry_uses_no_attempt_however_often(q: Driver) -> None:
    await q.configure("orders", retry_limit=1)
    await q.push("orders", "p1", 1)
    for _ in range(10):
        [held] = await q.pop("orders")
        assert held.message.attempt == 1
        outcome = await q.retry(held)
        assert (outcome.success, outcome.lease_released, outcome.dead_lettered) == (True, True, False)
    assert payloads(await q.pop("orders")) == [1]


async def test_rule_15_retry_keeps_the_attempts_that_were_used(q: Driver) -> None:
    await q.push("orders", "p1", 1)
    [held] = await q.pop("orders")
    await q.fail(held)
    [held] = await q.pop("orders")
    await q.retry(held)
    [held] = await q.pop("orders")
    assert held.message.attempt == 2


async def test_rule_15_retry_may_wait(q: Driver, clock: FakeClock) -> None:
    await q.configure("orders", retry_delay=60_000)
    await q.push("orders", "p1", 1, 2)
    [held] = await q.pop("orders")
    await q.retry(held, delay_ms=2000)
    clock.advance(2 - TICK)
    assert await q.pop("orders") == []
    clock.advance(TICK)
    assert payloads(await q.pop("orders", batch=2)) == [1, 2]


async def test_rule_15_retry_without_a_delay_is_at_once(q: Driver) -> None:
    await q.configure("orders", retry_delay=60_000)
    await q.push("orders", "p1", 1, backoff_ms=(60_000,))
    [held] = await q.pop("orders")
    await q.retry(held)
    assert payloads(await q.pop("orders")) == [1]


@pytest.mark.parametrize("how", ["one request", "a transaction"])
async def test_rule_15_dlq_is_a_dead_letter_at_once(q: Driver, how: Literal["one request", "a transaction"]) -> None:
    await q.push("orders", "p1", 1, 2)
    [held] = await q.pop("orders")
    verdict = settlement(held, "dlq", "hopeless")
    if how == "one request":
        [outcome] = await q.settle(verdict)
        assert (outcome.success, outcome.dead_lettered, outcome.lease_released) == (True, True, True)
    else:
        assert (await q.transact(verdict)).success
    [letter] = await q.dead_letters("orders")
    assert (letter.error, letter.message_id) == ("hopeless", held.message.id)
    assert payloads(await q.pop("orders")) == [2]


async def test_rule_15_verdicts_of_one_batch_may_differ(q: Driver, clock: FakeClock) -> None:
    await q.configure("orders", retry_delay=1000)
    await q.push_messages(*(message("orders", "p1", n) for n in range(1, 6)))
    got = await q.pop("orders", batch=5)

    verdicts: list[Status] = ["completed", "dlq", "failed", "retry", "completed"]
    outcomes = await q.settle(*(settlement(one, verdict) for one, verdict in zip(got, verdicts, strict=True)))
    assert all(one.success for one in outcomes)
    assert [one.dead_lettered for one in outcomes] == [False, True, False, False, False]
    assert await q.cursor("orders", "p1") == 2
    assert await q.pop("orders") == []
    clock.advance(1)
    again = await q.pop("orders", batch=5)
    assert [(one.payload, one.message.attempt) for one in again] == [(3, 2), (4, 1)]
