"""Rules 14 and 15: `failed`, `retry` and `dlq`; and how requeued messages come again (rules 14, 16 and 19)."""

from __future__ import annotations

import pytest

from hark.clock import MILLISECOND, SECOND, FakeClock
from hark.model import QueueOptions, QueueSpec, Status

from .driver import Driver, message, payloads, settlement
from .workers import TICK, attempts


async def delays_until_dead(q: Driver, queue: str = "orders") -> list[float]:
    """Fail a message again and again; how many milliseconds each retry waited, until it was dead."""
    waited: list[float] = []
    [held] = await q.pop(queue)
    while not (outcome := await q.fail(held)).dead_lettered:
        assert (outcome.success, held.message.attempt) == (True, len(waited) + 1)
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
    assert outcome.success
    return waited


# Rule 14: the schedule -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "backoff_ms", "waited"),
    [
        pytest.param(QueueOptions(), None, [0, 0, 0], id="by default three retries at once"),
        *((QueueOptions(retry_limit=limit), None, [0] * limit) for limit in (0, 1, 2)),
        (QueueOptions(retry_limit=2, retry_delay=1500), None, [1500, 1500]),
        (
            QueueOptions(retry_limit=5, retry_delay=1000, retry_multiplier=2, retry_max_delay=5000),
            None,
            [1000, 2000, 4000, 5000, 5000],
        ),
        pytest.param(
            QueueOptions(retry_limit=100, retry_delay=1000, retry_multiplier=1000),
            None,
            [1000, 1_000_000] + [3_600_000] * 98,
            id="a huge multiplier is still bounded",
        ),
        pytest.param(
            QueueOptions(retry_limit=9, retry_delay=50),
            (100, 700, 300),
            [100, 700, 300],
            id="the message's own schedule wins",
        ),
        pytest.param(QueueOptions(), (), [], id="an empty schedule allows one attempt"),
    ],
)
async def test_rule_14_a_message_comes_again_by_its_schedule_then_is_a_dead_letter(
    q: Driver, options: QueueOptions, backoff_ms: tuple[int, ...] | None, waited: list[float]
) -> None:
    await q.configure_spec(QueueSpec(name="orders", options=options))
    await q.push("orders", "p1", 1, backoff_ms=backoff_ms)
    assert await delays_until_dead(q) == waited
    assert await q.pop("orders") == []
    assert [letter.attempts for letter in await q.dead_letters("orders")] == [len(waited) + 1]


async def test_rule_14_attempts_are_counted_per_message_and_group(q: Driver) -> None:
    """The original counts failures per partition; here each message has its own."""
    await q.configure("orders", retry_limit=1)
    await q.push("orders", "p1", 1, 2, 3, 4)
    for group in ("a", "b"):
        for number in (1, 2, 3):
            [held] = await q.pop("orders", group=group)
            assert not (await q.fail(held)).dead_lettered
            got = await q.pop("orders", group=group, batch=2)
            assert attempts(got) == [(number, 2), (number + 1, 1)]
            await q.ack(got[0])
            await q.engine.release([got.lease])
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


async def test_rule_14_the_lease_stops_blocking_at_once_and_settles_the_rest(q: Driver) -> None:
    await q.push("orders", "p1", 1, 2, 3)
    got = await q.pop("orders", batch=3)
    assert (await q.fail(got[0])).lease_released
    assert (await q.fail(got[1])).success, "it counts for its own message"
    assert attempts(await q.pop("orders", batch=3)) == [(1, 2), (2, 2), (3, 1)]


async def test_rule_14_the_partition_waits_and_the_rest_comes_after_it_in_order(q: Driver, clock: FakeClock) -> None:
    await q.configure("orders", retry_delay=1000)
    await q.push("orders", "p1", 1, 2, 3, 4)
    got = await q.pop("orders", batch=3)
    await q.fail(got[1])
    before = await q.pop("orders", batch=10)
    assert attempts(before) == [(1, 1)], "what precedes it unsettled comes before it"
    await q.ack_all(before)
    assert await q.pop("orders", batch=10) == []
    clock.advance(1)
    assert attempts(await q.pop("orders", batch=10)) == [(2, 2), (3, 1), (4, 1)]


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


async def test_rule_14_the_old_lease_counts_while_it_lasts_and_its_end_costs_nothing(
    q: Driver, clock: FakeClock
) -> None:
    await q.configure("orders", lease_time=10)
    await q.push("orders", "p1", 1, 2, 3)
    got = await q.pop("orders", batch=3)
    await q.fail(got[0])
    clock.advance(10 - TICK)
    assert (await q.ack(got[1])).success
    clock.advance(TICK)
    assert not (await q.ack(got[2])).success
    await q.engine.expire()
    assert attempts(await q.pop("orders", batch=3)) == [(1, 2), (3, 1)]


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


async def test_rule_15_retry_uses_no_attempt_however_often_and_keeps_those_that_were_used(q: Driver) -> None:
    await q.configure("orders", retry_limit=1)
    await q.push("orders", "p1", 1)
    for attempt in (1, 2):
        for _ in range(5):
            [held] = await q.pop("orders")
            assert held.message.attempt == attempt
            outcome = await q.retry(held)
            assert (outcome.success, outcome.lease_released, outcome.dead_lettered) == (True, True, False)
        [held] = await q.pop("orders")
        assert (await q.fail(held)).dead_lettered == (attempt == 2)


async def test_rule_15_retry_is_at_once_or_waits_as_it_says(q: Driver, clock: FakeClock) -> None:
    await q.configure("orders", retry_delay=60_000)
    await q.push("orders", "p1", 1, 2, backoff_ms=(60_000,))
    [held] = await q.pop("orders")
    await q.retry(held)
    [held] = await q.pop("orders")
    assert held.payload == 1
    await q.retry(held, delay_ms=2000)
    clock.advance(2 - TICK)
    assert await q.pop("orders") == []
    clock.advance(TICK)
    assert payloads(await q.pop("orders", batch=2)) == [1, 2]


@pytest.mark.parametrize("how", ["one request", "a transaction"])
async def test_rule_15_dlq_is_a_dead_letter_at_once(q: Driver, how: str) -> None:
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
    assert attempts(again) == [(3, 2), (4, 1)]


# Requeued messages, and what comes with them in a batch --------------------------------------------------


async def requeue_first(q: Driver, number: int) -> None:
    """Let the first messages of the queue "orders" die, and put them back in front in their order."""
    for _ in range(number):
        [held] = await q.pop("orders")
        await q.kill(held)
    for letter in sorted(await q.dead_letters("orders"), key=lambda one: one.message_id):
        await q.requeue(letter)


@pytest.mark.parametrize(("how", "attempt"), [("failed", 2), ("given back", 1), ("ran out", 2)])
async def test_rule_14_a_requeued_one_comes_with_what_follows(
    q: Driver, clock: FakeClock, how: str, attempt: int
) -> None:
    """Rules 15 and 16 too: however its delivery ended."""
    await q.configure("orders", lease_time=10)
    await q.push("orders", "p1", 1, 2, 3)
    await requeue_first(q, 1)
    [held] = await q.pop("orders", batch=1)
    assert held.payload == 1
    match how:
        case "failed":
            await q.fail(held)
        case "given back":
            await q.retry(held)
        case "ran out":
            clock.advance(10)
    assert attempts(await q.pop("orders", batch=10)) == [(1, attempt), (2, 1), (3, 1)]


async def test_rule_16_requeued_ones_of_a_batch_that_ran_out_come_one_at_a_time(q: Driver, clock: FakeClock) -> None:
    await q.configure("orders", lease_time=10)
    await q.push("orders", "p1", 1, 2, 3, 4)
    await requeue_first(q, 2)
    assert payloads(await q.pop("orders", batch=2)) == [1, 2]
    clock.advance(10)
    got = await q.pop("orders", batch=10)
    assert attempts(got) == [(1, 1)], "a batch that ran out cost no attempt"
    await q.fail(got[0])
    for wanted in ([(1, 2)], [(2, 1)], [(3, 1), (4, 1)]):
        got = await q.pop("orders", batch=10)
        assert attempts(got) == wanted
        await q.ack_all(got)


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
