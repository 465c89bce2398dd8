"""Rules 14 and 15: `failed`, `retry` and `dlq`; and how requeued messages come again (rules 14, 16 and 19)."""

from __future__ import annotations

import msgspec
import pytest

from hark.clock import MILLISECOND, SECOND, FakeClock
from hark.engine.api import Engine
from hark.model import QueueOptions, QueueSpec, SettleOutcome, Status

from .driver import Driver, message, payloads, settlement
from .workers import TICK, Workers, attempts


async def delays_until_dead(either: Workers) -> list[float]:
    """Fail a message again and again; how many milliseconds each retry waited, until it was dead."""
    q, waited = either.q, list[float]()
    [leased] = await either.take()
    while not (outcome := await q.fail(leased, f"error {len(waited)}")).dead_lettered:
        assert (outcome.success, leased.message.attempt) == (True, len(waited) + 1)
        failed_at = q.clock.now()
        got = await either.take(1, leased.message.partition)
        if not got:
            assert got.look_again_at is not None
            got = await either.arrive_at(got.look_again_at)
        [leased] = got
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
    q: Driver, either: Workers, options: QueueOptions, backoff_ms: tuple[int, ...] | None, waited: list[float]
) -> None:
    await q.configure_spec(QueueSpec(name="orders", options=options))
    await q.push("orders", "p1", 1, backoff_ms=backoff_ms)
    assert await delays_until_dead(either) == waited
    assert await either.take() == []
    [letter] = await q.dead_letters("orders", "workers")
    assert (letter.attempts, letter.error) == (len(waited) + 1, f"error {len(waited)}")


async def test_rule_14_attempts_are_counted_per_message_and_group(q: Driver) -> None:
    """The original counts failures per partition; here each message has its own."""
    await q.configure("orders", retry_limit=1)
    await q.push("orders", "p1", 1, 2, 3, 4)
    for group in ("a", "b"):
        for number in (1, 2, 3):
            [leased] = await q.pop("orders", group=group)
            assert not (await q.fail(leased)).dead_lettered
            got = await q.pop("orders", group=group, batch=2)
            assert attempts(got) == [(number, 2), (number + 1, 1)]
            await q.ack(got[0])
            await q.engine.release([got.lease])
    assert await q.dead_letters() == []


async def test_rule_14_failed_with_a_delay_waits_that_long_instead(q: Driver, either: Workers) -> None:
    await q.push("orders", "p1", 1, backoff_ms=(60_000, 60_000))
    [leased] = await either.take()
    await q.fail(leased, delay_ms=1500)
    due = q.clock.now() + 1500 * MILLISECOND
    assert (await either.take()).look_again_at == due
    [leased] = await either.arrive_at(due)
    assert (leased.payload, leased.message.attempt) == (1, 2)
    await q.fail(leased, delay_ms=0)
    [leased] = await either.take()
    assert (leased.payload, leased.message.attempt) == (1, 3)
    assert (await q.fail(leased, delay_ms=1500)).dead_lettered, "a delay buys no attempt"


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


@pytest.mark.parametrize("how", ["one request", "a transaction"])
@pytest.mark.parametrize(
    ("status", "options"),
    [("failed", {}), ("failed", {"dead_letter_queue": False}), ("dlq", {}), ("dlq", {"dead_letter_queue": False})],
    ids=["failed", "discarded", "dlq", "dlq discarded"],
)
async def test_rule_14_a_message_that_ends_by_failing_frees_its_partition_at_once(
    q: Driver, status: Status, options: dict[str, bool], how: str
) -> None:
    """The rest of the batch is detached, as it is after a failure with attempts left."""
    await q.configure_spec(QueueSpec(name="orders", options=QueueOptions(retry_limit=0, **options)))
    await q.push("orders", "p1", 1, 2, 3, 4, 5)
    got = await q.pop("orders", batch=4)
    await q.ack_all([got[0]])
    q.hints.clear()
    if how == "one request":
        [outcome] = await q.settle(settlement(got[1], status, "boom"))
    else:
        [answer] = (await q.transact(settlement(got[1], status, "boom"))).results
        assert isinstance(answer, SettleOutcome)
        outcome = answer
    assert (outcome.success, outcome.dead_lettered, outcome.lease_released) == (True, not options, True)
    assert q.hints_for("orders"), "whoever waits is told at once"
    assert len(await q.dead_letters("orders")) == (not options)
    assert (await q.ack(got[3])).success, "settlements under the old lease still count"
    again = await q.pop("orders", batch=10)
    assert attempts(again) == [(3, 1), (5, 1)]
    assert not (await q.fail(got[2])).success, "but not after the messages were delivered again"
    await q.ack_all(again)
    assert await q.cursor("orders", "p1") == 5


async def test_rule_14_the_last_of_a_batch_that_dies_ends_the_lease(q: Driver, engine: Engine) -> None:
    await q.configure("orders", retry_limit=0)
    await q.push("orders", "p1", 1, 2)
    got = await q.pop("orders", batch=2)
    await q.ack_all([got[0]])
    assert (await q.fail(got[1])).lease_released
    assert await engine.lease_ends([got.lease]) == [None]
    assert got.lease in q.ended


async def test_rule_14_the_same_inside_a_transaction(q: Driver, either: Workers) -> None:
    await q.configure("orders", retry_limit=1, retry_delay=1000)
    await q.push("orders", "p1", 1)
    [leased] = await either.take()
    assert (await q.transact(settlement(leased, "failed", "boom"))).success
    assert await either.take() == []
    assert await q.dead_letters() == []
    q.clock.advance(1)
    [leased] = await either.take()
    assert leased.message.attempt == 2
    assert (await q.transact(settlement(leased, "failed", "again"))).success
    [letter] = await q.dead_letters()
    assert (letter.attempts, letter.error) == (2, "again")


async def test_rule_14_a_changed_retry_limit_has_effect_at_once(q: Driver) -> None:
    await q.configure("orders", retry_limit=5)
    await q.push("orders", "p1", 1)
    [leased] = await q.pop("orders")
    await q.fail(leased)
    await q.configure("orders", retry_limit=1)
    [leased] = await q.pop("orders")
    assert (await q.fail(leased)).dead_lettered


async def test_rule_15_retry_uses_no_attempt_and_waits_only_as_it_says(q: Driver, either: Workers) -> None:
    """However often it is said; those that were used stay so. In an ordered group what follows waits with it."""
    await q.configure("orders", retry_delay=60_000)
    await q.push("orders", "p1", 1, *([2] if either.mode == "ordered" else []), backoff_ms=(60_000,))
    for attempt in (1, 2):
        for _ in range(4):
            [leased] = await either.take()
            assert (leased.payload, leased.message.attempt) == (1, attempt)
            outcome = await q.retry(leased)
            assert (outcome.success, outcome.lease_released, outcome.dead_lettered) == (True, True, False)
        [leased] = await either.take()
        await q.retry(leased, delay_ms=3000)
        [leased] = await either.arrive_at(q.clock.now() + 3 * SECOND)
        assert (leased.payload, leased.message.attempt) == (1, attempt)
        assert (await q.fail(leased, delay_ms=0)).dead_lettered == (attempt == 2)


@pytest.mark.parametrize("how", ["one request", "a transaction"])
async def test_rule_15_dlq_is_a_dead_letter_at_once(q: Driver, either: Workers, how: str) -> None:
    await q.push("orders", "p1", 1, 2)
    [leased] = await either.take()
    decision = settlement(leased, "dlq", "hopeless")
    if how == "one request":
        [outcome] = await q.settle(decision)
        assert (outcome.success, outcome.dead_lettered, outcome.lease_released) == (True, True, True)
    else:
        assert (await q.transact(decision)).success
    [letter] = await q.dead_letters("orders")
    assert (letter.error, letter.message_id, letter.attempts) == ("hopeless", leased.message.id, 1)
    assert payloads(await either.take()) == [2]


async def test_rule_15_decisions_of_one_batch_may_differ(q: Driver, either: Workers) -> None:
    """In a shared group a failure holds up no other message."""
    await q.configure("orders", retry_delay=1000)
    await q.push_messages(*(message("orders", "p1", n) for n in range(1, 6)))
    got = await either.take(5)

    decisions: list[Status] = ["completed", "dlq", "failed", "retry", "completed"]
    outcomes = await q.settle(*(settlement(one, decision) for one, decision in zip(got, decisions, strict=True)))
    assert all(one.success for one in outcomes)
    assert [one.dead_lettered for one in outcomes] == [False, True, False, False, False]
    assert [bytes(one.payload) for one in await q.dead_letters("orders", "workers")] == [b"2"]
    ordered = either.mode == "ordered"
    assert [one.lease_released for one in outcomes] == [False, ordered, ordered, ordered, True]
    stats = await either.stats()
    assert (stats.lag, stats.scheduled) == (1, 1)
    assert not ordered or (await either.position()).cursor == 2
    assert attempts(await either.take(5)) == ([] if ordered else [(4, 1)])
    q.clock.advance(1)
    assert attempts(await either.take(5)) == ([(3, 2), (4, 1)] if ordered else [(3, 2)])


# Requeued messages, and what comes with them in a batch --------------------------------------------------


async def requeue_first(q: Driver, number: int) -> None:
    """Let the first messages of the queue "orders" die, and put them back in front in their order."""
    for _ in range(number):
        [leased] = await q.pop("orders")
        await q.kill(leased)
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
    [leased] = await q.pop("orders", batch=1)
    assert leased.payload == 1
    match how:
        case "failed":
            await q.fail(leased)
        case "given back":
            await q.retry(leased)
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
        [leased] = await q.pop("orders")
        await q.kill(leased)
    assert payloads(await q.pop("orders", batch=2)) == [3, 4]
    clock.advance(10)
    await requeue_first(q, 0)
    for n in (1, 2, 3, 4):
        got = await q.pop("orders", batch=10)
        assert payloads(got) == [n]
        await q.ack_all(got)
    assert payloads(await q.pop("orders", batch=10)) == [5]


async def test_rule_16_one_at_a_time_outlives_a_restart(q: Driver, clock: FakeClock) -> None:
    await q.configure("orders", lease_time=10)
    await q.push("orders", "p1", 1, 2, 3)
    await requeue_first(q, 2)
    assert payloads(await q.pop("orders", batch=2)) == [1, 2]
    clock.advance(10)
    await q.engine.expire()
    await q.reopen()
    assert payloads(await q.pop("orders", batch=10)) == [1]


# Shared groups: what fails concerns one message ------------------------------------------------------------


async def test_a_failed_message_comes_again_and_its_neighbours_go_on(q: Driver, workers: Workers) -> None:
    await q.configure("orders", retry_delay=5000)
    await q.push("orders", "p1", 1, 2, 3)
    first, second = await workers.take(), await workers.take()
    await q.fail(first[0])
    assert (await q.ack(second[0])).success
    assert payloads(await workers.take(10)) == [3]
    got = await workers.arrive_at(q.clock.now() + 5 * SECOND)
    assert attempts(got) == [(1, 2)]


async def test_many_retries_come_by_priority_then_in_the_order_they_fall_due(q: Driver, workers: Workers) -> None:
    await q.push_messages(*(message("orders", "p1", n, priority=n % 3) for n in range(50)))
    due = [1000 + n * 37 % 25 for n in range(50)]
    got = await workers.take(50)
    await q.settle(*(settlement(leased, "retry", delay_ms=due[leased.message.offset - 1]) for leased in got))
    q.clock.advance(2)
    assert payloads(await workers.take(100)) == sorted(range(50), key=lambda n: (-(n % 3), due[n], n))


@pytest.mark.parametrize(
    ("options", "backoff_ms", "waited"),
    [
        pytest.param(QueueOptions(), None, 700, id="a bare queue has no delay"),
        pytest.param(QueueOptions(retry_delay=300), None, 300, id="the queue has one"),
        pytest.param(QueueOptions(retry_max_delay=0), None, 0, id="the queue says that there is none"),
        pytest.param(QueueOptions(), (400, 500), 400, id="the message has its own"),
        pytest.param(QueueOptions(), (0, 500), 0, id="the message says at once"),
    ],
)
async def test_rule_14_a_default_delay_counts_if_neither_the_message_nor_the_queue_has_one(
    either: Workers, options: QueueOptions, backoff_ms: tuple[int, ...] | None, waited: int
) -> None:
    q = either.q
    await q.engine.configure([QueueSpec(name="orders", options=options)])
    await q.push("orders", "p", 1, backoff_ms=backoff_ms)
    [leased] = await either.take()
    failed = msgspec.structs.replace(settlement(leased, "failed", "boom"), default_delay_ms=700)
    [outcome] = await q.settle(failed)
    assert outcome.success and not outcome.dead_lettered
    got = await either.take(1, "p")
    if waited:
        assert not got and got.look_again_at == q.clock.now() + waited * MILLISECOND
    else:
        assert got
