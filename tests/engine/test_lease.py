"""Rules 16 and 17: how a lease ends when nobody settles, renewal and release; and how long it is."""

from __future__ import annotations

import pytest

from hark.clock import MILLISECOND, SECOND, FakeClock
from hark.engine.api import Engine
from hark.model import Expired, GroupMode, QueueOptions, QueueSpec, Renewal, RenewOutcome

from .driver import NEVER_GIVEN, Driver, message, payloads, settlement
from .workers import TICK, Workers, attempts

# Rule 16: one message --------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch", [1, 100])
async def test_rule_16_expiry_on_one_message_uses_an_attempt_of_it(q: Driver, clock: FakeClock, batch: int) -> None:
    await q.configure("orders", lease_time=10, retry_delay=60_000)
    await q.push("orders", "p1", 1, backoff_ms=(60_000, 60_000))
    for attempt in (1, 2, 3):
        assert attempts(await q.pop("orders", batch=batch)) == [(1, attempt)]
        clock.advance(10)
    assert await q.pop("orders") == []


async def test_rule_16_a_message_that_kills_its_consumers_ends_in_the_dead_letters(q: Driver, clock: FakeClock) -> None:
    await q.configure("orders", lease_time=10, retry_limit=1)
    await q.push("orders", "p1", "poison", "fine")
    start = clock.now()
    for _ in range(2):
        assert payloads(await q.pop("orders")) == ["poison"]
        clock.advance(10)
    clock.advance(1000)
    assert payloads(await q.pop("orders")) == ["fine"]
    [letter] = await q.dead_letters("orders")
    assert (letter.attempts, bytes(letter.payload)) == (2, b'"poison"')
    assert letter.error
    assert letter.failed_at == start + 20 * SECOND, "stamped with the time of expiry"


async def test_rule_16_each_partition_of_a_lease_is_checked_alone(q: Driver, clock: FakeClock) -> None:
    await q.push("orders", "p1", 1)
    await q.push("orders", "p2", 2, 3)
    assert len(await q.pop("orders", batch=10, partitions=2)) == 3
    clock.advance(300)
    one, two = await q.pop("orders", "p1", batch=10), await q.pop("orders", "p2", batch=10)
    assert attempts([*one, *two]) == [(1, 2), (2, 1)]


# Rule 16: a batch ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("settled", [0, 2])
async def test_rule_16_a_batch_that_ran_out_comes_one_at_a_time(q: Driver, clock: FakeClock, settled: int) -> None:
    await q.push("orders", "p1", *range(1, 8))
    await q.ack_all((await q.pop("orders", batch=3))[:settled])
    clock.advance(300)
    batches = []
    while got := await q.pop("orders", batch=10):
        batches.append(attempts(got))
        await q.ack_all(got)
    assert batches == [*([(n, 1)] for n in range(settled + 1, 4)), [(n, 1) for n in range(4, 8)]]


@pytest.mark.parametrize(("mode", "batch"), [("ordered", 5), ("shared", 1)])
async def test_rule_16_only_the_message_that_kills_dies(q: Driver, mode: GroupMode, batch: int) -> None:
    """Consumers die whenever they hold "poison": it is found, and its neighbours are delivered."""
    await q.configure("orders", lease_time=10, retry_limit=2)
    await q.push("orders", "p1", 1, 2, "poison", 4, 5, 6)
    done: list[object] = []
    for _ in range(20):
        got = await Workers(q, mode=mode).take(batch)
        if "poison" in payloads(got):
            q.clock.advance(10)
            continue
        await q.ack_all(got)
        done.extend(payloads(got))
    assert done == [1, 2, 4, 5, 6]
    [letter] = await q.dead_letters()
    assert (bytes(letter.payload), letter.attempts) == (b'"poison"', 3)


async def test_rule_16_one_at_a_time_is_for_that_partition_and_group_only(q: Driver, clock: FakeClock) -> None:
    for name in ("p1", "p2"):
        await q.push("orders", name, 1, 2, 3)
    await q.pop("orders", "p1", group="a", batch=3)
    clock.advance(300)
    assert len(await q.pop("orders", "p1", group="a", batch=3)) == 1
    assert len(await q.pop("orders", "p2", group="a", batch=3)) == 3
    assert len(await q.pop("orders", "p1", group="b", batch=3)) == 3


# Rule 16: the moment ---------------------------------------------------------------------------------------


async def test_rule_16_expire_applies_what_is_due_and_says_when_again(
    q: Driver, mode: GroupMode, engine: Engine
) -> None:
    await q.configure("orders", lease_time=10)
    await q.configure("bills", lease_time=30)
    assert (await engine.expire()).next_due is None
    for name in ("orders", "bills"):
        await q.push(name, "p1", 1)
        await Workers(q, name, mode=mode).take()
    start = q.clock.now()
    wanted = [(0, 0, 10), (10, 1, 30), (20, 1, None), (0, 0, None)]
    for seconds, leases, due in wanted:
        q.clock.advance(seconds)
        next_due = None if due is None else start + due * SECOND
        assert await engine.expire() == Expired(leases=leases, next_due=next_due)


async def test_rule_16_expire_takes_limited_steps_and_is_idempotent(q: Driver, either: Workers, engine: Engine) -> None:
    for number in range(5):
        await q.push("orders", "p1" if either.mode == "shared" else f"p{number}", number)
        await either.take()
    q.clock.advance(300)
    first = await engine.expire(limit=2)
    assert first.leases == 2
    assert first.next_due is not None and first.next_due <= q.clock.now()
    assert [(await engine.expire(limit=2)).leases for _ in range(4)] == [2, 1, 0, 0]
    assert sorted(attempts(await either.take(10, partitions=5))) == [(number, 2) for number in range(5)]


@pytest.mark.parametrize("looked_by", ["dead letters", "position", "group", "queue", "settlement"])
async def test_rule_16_each_call_first_applies_what_is_due(q: Driver, either: Workers, looked_by: str) -> None:
    """Seen by all at the moment of expiry; nothing called `expire`."""
    await q.configure("orders", lease_time=10, retry_limit=0)
    await q.push("orders", "p1", 1)
    [leased] = await either.take()
    assert ((await either.stats()).in_flight, (await either.position()).lag) == (1, 0)
    ordered = either.mode == "ordered"
    assert (await either.position()).lease_expires_at == (q.clock.now() + 10 * SECOND if ordered else None)
    q.clock.advance(10)
    match looked_by:
        case "position":
            position = await either.position()
            assert (position.lag, position.lease_id, position.lease_expires_at) == (0, None, None)
            assert not ordered or position.cursor == 1
        case "group":
            stats = await either.stats()
            assert (stats.in_flight, stats.leases, stats.lag) == (0, 0, 0)
        case "queue":
            counts = (await q.stats("orders")).counts
            assert (counts.processing, counts.pending, counts.dead_letter) == (0, 0, 1)
        case "settlement":
            assert not (await q.fail(leased, "too late")).success
    [letter] = await q.dead_letters("orders")
    assert (letter.failed_at, letter.error == "too late") == (q.clock.now(), False)


async def test_rule_17_renewal_extends_every_partition_and_never_shortens(q: Driver, either: Workers) -> None:
    await q.configure("orders", lease_time=10)
    for name in ("p1", "p2"):
        await q.push("orders", name, name)
    got = await either.take(10, partitions=2)
    assert (await q.renew(got.lease, 5)).expires_at == q.clock.now() + 10 * SECOND
    q.clock.advance(9)
    end = q.clock.now() + 30 * SECOND
    for seconds in (30, 10):
        assert await q.renew(got.lease, seconds) == RenewOutcome(success=True, expires_at=end)
    q.clock.advance(30 - TICK)
    assert await either.take() == []
    await q.ack_all(got)


async def test_rule_17_what_is_over_can_not_be_renewed(q: Driver, either: Workers, engine: Engine) -> None:
    await q.push("orders", "p1", 1, 2)
    settled = await either.take()
    await q.ack(settled[0])
    expired = await either.take()
    q.clock.advance(300)
    over, live = [settled.lease, expired.lease, NEVER_GIVEN, ""], [(await either.take()).lease]
    if either.mode == "ordered":
        # It stopped blocking with the retry, and all that it held was handed out again: it holds nothing.
        await q.push("bills", "p1", 1, 2)
        superseded = await q.pop("bills", batch=2)
        await q.retry(superseded[1])
        new = await q.pop("bills", batch=2)
        assert payloads(new) == [1, 2]
        over, live = [*over, superseded.lease], [*live, new.lease]
    answers = await engine.renew([Renewal(lease, 600) for lease in (*over, *live)])
    wanted = [False] * len(over) + [True] * len(live)
    assert [isinstance(one, RenewOutcome) and one.success for one in answers] == wanted
    assert all(isinstance(one, RenewOutcome) and one.code and one.error for one in answers[: len(over)])
    assert await engine.lease_ends([settled.lease, expired.lease]) == [None, None]


async def test_rule_17_release_gives_back_uncounted(q: Driver, either: Workers) -> None:
    await q.configure("orders", retry_limit=0)
    await q.push("orders", "p1", 1, 2, 3)
    for _ in range(5):
        got = await either.take(2)
        assert attempts(got) == [(1, 1), (2, 1)]
        await q.engine.release([got.lease, NEVER_GIVEN, ""])
    assert await q.dead_letters() == []


async def test_rule_17_a_release_that_comes_after_the_time_is_up_comes_too_late(q: Driver, either: Workers) -> None:
    await q.configure("orders", lease_time=10, retry_limit=0)
    await q.push("orders", "p1", 1)
    got = await either.take()
    q.clock.advance(10)
    await q.engine.release([got.lease])
    assert [letter.attempts for letter in await q.dead_letters("orders")] == [1]


async def test_rule_17_release_covers_every_partition_and_keeps_what_was_settled_and_attempts(
    q: Driver, either: Workers, engine: Engine
) -> None:
    await q.push("orders", "p1", 1, 2, 3)
    await q.push("orders", "p2", 4)
    await q.fail((await either.take())[0])
    got = await either.take(10, partitions=2)
    await q.ack_all(one for one in got if one.payload == 2)
    await engine.release([NEVER_GIVEN, got.lease, "", got.lease])
    outcomes = await q.settle(*(settlement(one) for one in got if one.payload != 2))
    assert [one.success for one in outcomes] == [False, False, False]
    assert await engine.lease_ends([got.lease]) == [None]
    assert sorted(attempts(await either.take(10, partitions=2))) == [(1, 2), (3, 1), (4, 1)]


async def test_rule_17_a_shortened_lease_expires_at_its_new_end_and_settlements_count_until_then(
    q: Driver, either: Workers, engine: Engine
) -> None:
    for name in ("p1", "p2"):
        await q.push("orders", name, name)
    got = await either.take(10, partitions=2)
    await q.push("bills", "p1", 1)
    settled = await q.pop("bills")
    await q.ack_all(settled)
    await engine.shorten([NEVER_GIVEN, got.lease, "", settled.lease], 30 * SECOND)
    assert await engine.lease_ends([got.lease, settled.lease]) == [q.clock.now() + 30 * SECOND, None]
    assert (await engine.expire()).next_due == q.clock.now() + 30 * SECOND
    q.clock.advance(30 - TICK)
    assert (await q.ack(got[0])).success
    assert await either.take(10, partitions=2) == []
    q.clock.advance(TICK)
    assert [attempt for _, attempt in attempts(await either.take(10, partitions=2))] == [2], "it counts (rule 16)"


async def test_rule_17_a_shortened_lease_gets_its_time_back_by_a_renewal_and_is_never_made_longer(
    q: Driver, either: Workers, engine: Engine
) -> None:
    await q.push("orders", "p1", 1)
    got = await either.take()
    end = q.clock.now() + 300 * SECOND
    for seconds in (400, 30, 20, 60):
        await engine.shorten([got.lease], seconds * SECOND)
    assert await engine.lease_ends([got.lease]) == [q.clock.now() + 20 * SECOND]
    assert (await q.renew(got.lease, 1)).expires_at == end
    assert await engine.lease_ends([got.lease]) == [end]
    q.clock.advance(299)
    assert await either.take() == []
    assert (await q.renew(got.lease, 10)).expires_at == end + 9 * SECOND


# When leases end -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("first", "second", "mode", "lease_ms", "shortest_ms"),
    [
        (QueueOptions(lease_time=300), QueueOptions(lease_time=30), "ordered", None, 30_000),
        (QueueOptions(lock_duration=900), QueueOptions(), "shared", 1500, 900),
    ],
)
async def test_rule_17_a_lease_over_queues_ends_as_a_whole_with_the_shortest_of_their_times(
    q: Driver,
    clock: FakeClock,
    first: QueueOptions,
    second: QueueOptions,
    mode: GroupMode,
    lease_ms: int | None,
    shortest_ms: int,
) -> None:
    for queue, options in (("a", first), ("b", second)):
        await q.configure_spec(QueueSpec(name=queue, namespace="ns", options=options))
        await q.push(queue, "p1", 1)
    for _ in range(2):
        got = await q.pop(namespace="ns", group="g", group_mode=mode, batch=2, partitions=2, lease_ms=lease_ms)
        assert (len(got), got.expires_at) == (2, clock.now() + shortest_ms * MILLISECOND)
        assert await q.engine.lease_ends([got.lease]) == [got.expires_at]
        clock.advance(shortest_ms / 1000)


async def test_lease_ends_answers_for_each_lease_in_its_place(q: Driver, engine: Engine, clock: FakeClock) -> None:
    await q.push_messages(*(message("orders", part, 1) for part in ("p1", "p2", "p3")))
    one, two, three = [await q.pop("orders") for _ in range(3)]
    await q.ack_all(two)
    await q.renew(one.lease, 600)
    end, other = clock.now() + 600 * SECOND, clock.now() + 300 * SECOND
    leases = [NEVER_GIVEN, one.lease, "not even a uuid", two.lease, three.lease, one.lease]
    assert await engine.lease_ends(leases) == [None, end, None, None, other, end]
    assert await engine.lease_ends([]) == []
    await engine.release([three.lease])
    assert await engine.lease_ends([one.lease, three.lease]) == [end, None]
    clock.advance(600)
    assert await engine.lease_ends([one.lease]) == [None], "its time is up, whether anybody applied that or not"


async def test_a_lease_lasts_while_something_can_be_settled_under_it(q: Driver, engine: Engine) -> None:
    await q.push("orders", "p1", 1, 2)
    got = await q.pop("orders", batch=2)
    await q.fail(got[0])
    assert await engine.lease_ends([got.lease]) == [got.expires_at]
    await q.ack(got[1])
    assert await engine.lease_ends([got.lease]) == [None]


# How long a pop holds what it gets -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lock_duration", "lease_ms", "wanted_ms"),
    [(0, None, 20_000), (0, 1500, 1500), (0, 90_000, 90_000), (700, 1500, 700), (700, None, 20_000)],
)
async def test_the_queue_s_lock_duration_then_the_pop_s_request_then_the_lease_time(
    q: Driver, either: Workers, lock_duration: int, lease_ms: int | None, wanted_ms: int
) -> None:
    await q.configure("orders", lease_time=20, lock_duration=lock_duration)
    await q.push("orders", "p1", 1)
    got = await either.take(lease_ms=lease_ms)
    assert got.expires_at == q.clock.now() + wanted_ms * MILLISECOND
    assert (await either.take()).expires_at is None, "nothing was left to take"
    assert await q.engine.lease_ends([got.lease]) == [got.expires_at]


async def test_it_ends_at_its_microsecond_unless_it_is_renewed(q: Driver, either: Workers) -> None:
    await q.push("orders", "p1", 1)
    await q.push("orders", "p1" if either.mode == "shared" else "p2", 2)
    renewed, lost = await either.take(lease_ms=1500), await either.take(lease_ms=1500)
    assert (await q.renew(renewed.lease, 5)).expires_at == q.clock.now() + 5 * SECOND
    q.clock.advance(1.5 - TICK)
    assert await either.take(lease_ms=1500) == []
    q.clock.advance(TICK)
    assert attempts(await either.take()) == [(2, 2)]
    assert not (await q.ack(lost[0])).success
    q.clock.advance(2.5)
    assert (await q.ack(renewed[0])).success


async def test_each_pop_holds_for_its_own_time(q: Driver, workers: Workers) -> None:
    await q.push("orders", "p1", 1, 2)
    first, second = await workers.take(lease_ms=1000), await workers.take(lease_ms=2000)
    q.clock.advance(1)
    assert await q.engine.lease_ends([first.lease, second.lease]) == [None, q.clock.now() + SECOND]


# Shared groups: each message of a batch pays ---------------------------------------------------------------


async def test_rule_16_each_message_of_a_batch_costs_an_attempt(q: Driver, workers: Workers) -> None:
    await q.configure("orders", retry_delay=60_000)
    await q.push("orders", "p1", 1)
    await q.push("orders", "p1", 2, 3, 4, backoff_ms=(60_000,))
    got = await workers.take(3)
    await q.ack(got[1])
    q.clock.advance(300)
    assert attempts(await workers.take(10)) == [(4, 1), (1, 2), (3, 2)], "and they come together, without a backoff"


async def test_rule_16_exhausted_by_expiry_it_is_a_dead_letter_once(q: Driver, workers: Workers) -> None:
    await q.configure("orders", lease_time=10, retry_limit=1)
    await q.push("orders", "p1", "poison", "fine")
    start = q.clock.now()
    for _ in range(2):
        await workers.take(2)
        q.clock.advance(10)
    for _ in range(3):
        await q.engine.expire()
        assert await workers.take() == []
    letters = await q.dead_letters("orders", "workers")
    assert sorted(bytes(one.payload) for one in letters) == [b'"fine"', b'"poison"']
    assert {(one.attempts, one.failed_at) for one in letters} == {(2, start + 20 * SECOND)}
    assert all(one.error for one in letters)
    assert (await workers.stats()).lag == 0


async def test_a_deleted_message_is_stepped_over_and_a_lease_is_over_when_all_it_leased_was_deleted(
    q: Driver, workers: Workers, engine: Engine
) -> None:
    ids = [one.message_id or "" for one in await q.push("orders", "p1", 1, 2, 3, 4)]
    got = await workers.take(3)
    await q.retry(got[1], delay_ms=1000)
    assert await engine.delete_messages(ids[:1]) == [True]
    assert await engine.lease_ends([got.lease]) == [got.expires_at]
    assert await engine.delete_messages([ids[1], ids[2], ids[0]]) == [True, True, False]
    assert await engine.lease_ends([got.lease]) == [None]
    assert (await workers.stats()).in_flight == 0
    assert not (await q.fail(got[0])).success
    q.clock.advance(1000)
    assert await workers.drain() == [4]
    assert (await workers.stats()).lag == 0
