"""Rules 16 and 17: how a lease ends when nobody settles, renewal and release."""

from __future__ import annotations

import pytest

from hark.clock import SECOND, FakeClock
from hark.engine.api import Engine
from hark.model import Expired, GroupMode, Renewal, RenewOutcome

from .driver import NEVER_GIVEN, Driver, message, payloads, settlement

# Rule 16: one message --------------------------------------------------------------------------------------


async def test_rule_16_expiry_on_one_message_uses_an_attempt_and_waits_for_nothing(q: Driver, clock: FakeClock) -> None:
    await q.configure("orders", lease_time=10, retry_delay=60_000)
    await q.push("orders", "p1", 1, backoff_ms=(60_000, 60_000))
    for attempt in (1, 2, 3):
        [held] = await q.pop("orders")
        assert held.message.attempt == attempt
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


async def test_rule_16_a_batch_of_one_is_one_message(q: Driver, clock: FakeClock) -> None:
    await q.push("orders", "p1", 1)
    await q.pop("orders", batch=100)
    clock.advance(300)
    [held] = await q.pop("orders")
    assert held.message.attempt == 2


async def test_rule_16_each_partition_of_a_lease_is_judged_alone(q: Driver, clock: FakeClock) -> None:
    await q.push("orders", "p1", 1)
    await q.push("orders", "p2", 2, 3)
    assert len(await q.pop("orders", batch=10, partitions=2)) == 3
    clock.advance(300)
    one, two = await q.pop("orders", "p1", batch=10), await q.pop("orders", "p2", batch=10)
    assert [(held.payload, held.message.attempt) for held in (*one, *two)] == [(1, 2), (2, 1)]


# Rule 16: a batch ------------------------------------------------------------------------------------------


async def test_rule_16_expiry_of_a_batch_uses_no_attempt(q: Driver, clock: FakeClock) -> None:
    await q.push("orders", "p1", 1, 2, 3)
    await q.pop("orders", batch=3)
    clock.advance(300)
    for number in (1, 2, 3):
        [held] = await q.pop("orders", batch=10)
        assert (held.payload, held.message.attempt) == (number, 1)
        await q.ack(held)


async def test_rule_16_then_one_message_at_a_time_until_past_that_batch(q: Driver, clock: FakeClock) -> None:
    await q.push("orders", "p1", *range(1, 8))
    await q.pop("orders", batch=3)
    clock.advance(300)
    sizes = []
    while got := await q.pop("orders", batch=10):
        sizes.append(len(got))
        await q.ack_all(got)
    assert sizes == [1, 1, 1, 4]


async def test_rule_16_also_when_some_of_the_batch_was_settled(q: Driver, clock: FakeClock) -> None:
    await q.push("orders", "p1", 1, 2, 3, 4)
    got = await q.pop("orders", batch=3)
    await q.ack(got[0])
    await q.ack(got[1])
    clock.advance(300)
    again = await q.pop("orders", batch=10)
    assert [(held.payload, held.message.attempt) for held in again] == [(3, 1)]


async def test_rule_16_only_the_message_that_kills_dies(q: Driver, clock: FakeClock) -> None:
    """Consumers die whenever they hold "poison": it is found, and its neighbours are delivered."""
    await q.configure("orders", lease_time=10, retry_limit=2)
    await q.push("orders", "p1", 1, 2, "poison", 4, 5, 6)
    done: list[object] = []
    for _ in range(20):
        got = await q.pop("orders", batch=5)
        if "poison" in payloads(got):
            clock.advance(10)
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


async def test_rule_16_expire_applies_what_is_due_and_says_when_to_come_again(
    q: Driver, engine: Engine, clock: FakeClock
) -> None:
    await q.configure("orders", lease_time=10)
    await q.configure("bills", lease_time=30)
    assert (await engine.expire()).next_due is None
    for name in ("orders", "bills"):
        await q.push(name, "p1", 1)
        await q.pop(name)
    later = clock.now() + 10 * SECOND
    assert await engine.expire() == Expired(leases=0, next_due=later)
    clock.advance(10)
    expired = await engine.expire()
    assert (expired.leases, expired.next_due) == (1, later + 20 * SECOND)


async def test_rule_16_expire_is_idempotent(q: Driver, engine: Engine, clock: FakeClock) -> None:
    await q.push("orders", "p1", 1)
    await q.pop("orders")
    clock.advance(300)
    assert [(await engine.expire()).leases for _ in range(3)] == [1, 0, 0]
    [held] = await q.pop("orders")
    assert held.message.attempt == 2


async def test_rule_16_expire_takes_a_limited_step(q: Driver, engine: Engine, clock: FakeClock) -> None:
    for number in range(5):
        await q.push("orders", f"p{number}", number)
        await q.pop("orders")
    clock.advance(300)
    first = await engine.expire(limit=2)
    assert first.leases == 2
    assert first.next_due is not None and first.next_due <= clock.now()
    assert [(await engine.expire(limit=2)).leases for _ in range(3)] == [2, 1, 0]


async def test_rule_16_everybody_sees_it_at_the_moment_of_expiry(q: Driver, clock: FakeClock) -> None:
    """Dead letters, statistics and views apply what is due before they answer; nobody called `expire`."""
    await q.configure("orders", lease_time=10, retry_limit=0)
    for name in ("p1", "p2", "p3"):
        await q.push("orders", name, name)
        await q.pop("orders", name)
    clock.advance(10)
    assert (await q.stats("orders")).counts.dead_letter == 3
    assert len(await q.dead_letters("orders")) == 3
    assert (await q.track("orders", "p1")).lease_id is None
    assert (await q.stats("orders")).counts.processing == 0


async def test_rule_16_dead_letters_first_applies_what_is_due(q: Driver, clock: FakeClock) -> None:
    await q.configure("orders", lease_time=10, retry_limit=0)
    await q.push("orders", "p1", 1)
    await q.pop("orders")
    clock.advance(10)
    assert len(await q.dead_letters("orders")) == 1


async def test_rule_16_track_stats_first_applies_what_is_due(q: Driver, clock: FakeClock) -> None:
    await q.configure("orders", lease_time=10, retry_limit=0)
    await q.push("orders", "p1", 1)
    await q.pop("orders")
    assert (await q.track("orders", "p1")).lease_expires_at == clock.now() + 10 * SECOND
    clock.advance(10)
    track = await q.track("orders", "p1")
    assert (track.cursor, track.lag, track.lease_id, track.lease_expires_at) == (1, 0, None, None)


async def test_rule_16_queue_stats_first_applies_what_is_due(q: Driver, clock: FakeClock) -> None:
    await q.configure("orders", lease_time=10, retry_limit=0)
    await q.push("orders", "p1", 1)
    await q.pop("orders")
    clock.advance(10)
    counts = (await q.stats("orders")).counts
    assert (counts.processing, counts.pending, counts.dead_letter) == (0, 0, 1)


async def test_rule_16_a_settlement_first_applies_what_is_due(q: Driver, clock: FakeClock) -> None:
    await q.configure("orders", lease_time=10, retry_limit=0)
    await q.push("orders", "p1", 1)
    [held] = await q.pop("orders")
    clock.advance(10)
    assert not (await q.fail(held, "too late")).success
    [letter] = await q.dead_letters("orders")
    assert letter.error != "too late"


# Rule 17 ---------------------------------------------------------------------------------------------------


async def test_rule_17_renewal_extends_every_partition_of_the_lease(q: Driver, clock: FakeClock) -> None:
    await q.configure("orders", lease_time=10)
    for name in ("p1", "p2"):
        await q.push("orders", name, name)
    got = await q.pop("orders", batch=10, partitions=2)
    clock.advance(9)
    outcome = await q.renew(got.lease, 30)
    assert outcome == RenewOutcome(success=True, expires_at=clock.now() + 30 * SECOND)
    clock.advance(29)
    assert await q.pop("orders") == []
    await q.ack_all(got)


async def test_rule_17_renewal_never_shortens_a_lease(q: Driver, clock: FakeClock) -> None:
    await q.push("orders", "p1", 1)
    got = await q.pop("orders")
    assert (await q.renew(got.lease, 10)).expires_at == clock.now() + 300 * SECOND


async def test_rule_17_what_is_over_can_not_be_renewed(q: Driver, engine: Engine, clock: FakeClock) -> None:
    await q.push("orders", "p1", 1, 2)
    settled = await q.pop("orders")
    await q.ack(settled[0])
    expired = await q.pop("orders")
    clock.advance(300)
    live = await q.pop("orders")
    wishes = [Renewal(lease, 60) for lease in (settled.lease, expired.lease, NEVER_GIVEN, "", live.lease)]
    answers = await engine.renew(wishes)
    assert [isinstance(one, RenewOutcome) and one.success for one in answers] == [False] * 4 + [True]
    assert all(isinstance(one, RenewOutcome) and one.code and one.error for one in answers[:4])


async def test_rule_17_a_superseded_lease_can_not_be_renewed(q: Driver) -> None:
    """It stopped blocking with the retry, and all that it held was handed out again: it holds nothing."""
    await q.push("orders", "p1", 1, 2)
    old = await q.pop("orders", batch=2)
    await q.retry(old[1])
    new = await q.pop("orders", batch=2)
    assert payloads(new) == [1, 2]
    assert not (await q.renew(old.lease, 600)).success
    assert (await q.renew(new.lease, 600)).success


async def test_rule_17_release_gives_back_uncounted(q: Driver, engine: Engine) -> None:
    await q.configure("orders", retry_limit=0)
    await q.push("orders", "p1", 1, 2)
    for _ in range(5):
        got = await q.pop("orders", batch=2)
        assert [(held.payload, held.message.attempt) for held in got] == [(1, 1), (2, 1)]
        await engine.release([got.lease])
    assert await q.dead_letters() == []


@pytest.mark.parametrize("mode", ["ordered", "shared"])
async def test_rule_17_a_release_that_comes_after_the_time_is_up_comes_too_late(
    q: Driver, engine: Engine, clock: FakeClock, mode: GroupMode
) -> None:
    await q.configure("orders", lease_time=10, retry_limit=0)
    await q.push("orders", "p1", 1)
    held = await q.pop("orders", group="g", group_mode=mode)
    clock.advance(10)
    await engine.release([held.lease])
    assert [letter.attempts for letter in await q.dead_letters("orders")] == [1]


async def test_rule_17_release_covers_every_partition_and_voids_the_lease(q: Driver, engine: Engine) -> None:
    for name in ("p1", "p2"):
        await q.push("orders", name, name)
    got = await q.pop("orders", batch=10, partitions=2)
    await engine.release([NEVER_GIVEN, got.lease, "", got.lease])
    assert not any(one.success for one in await q.settle(*(settlement(held) for held in got)))
    assert sorted(map(str, payloads(await q.pop("orders", batch=10, partitions=2)))) == ["p1", "p2"]


async def test_rule_17_release_keeps_what_was_settled(q: Driver, engine: Engine) -> None:
    await q.push("orders", "p1", 1, 2, 3)
    got = await q.pop("orders", batch=3)
    await q.ack(got[1])
    await engine.release([got.lease])
    assert await q.drain("orders") == [1, 3]


# When leases end -------------------------------------------------------------------------------------------


async def test_a_pop_says_when_its_lease_ends(q: Driver, clock: FakeClock) -> None:
    await q.configure("orders", lease_time=20)
    await q.push("orders", "p1", 1, 2)
    got = await q.pop("orders")
    assert got.expires_at == clock.now() + 20 * SECOND
    assert (await q.pop("orders")).expires_at is None
    await q.ack(got[0])
    assert (await q.pop("orders", auto_ack=True)).expires_at is None


async def test_a_lease_over_queues_ends_with_the_shortest_of_their_lease_times(q: Driver, clock: FakeClock) -> None:
    for queue, seconds in (("a", 20), ("b", 10)):
        await q.configure(queue, namespace="ns", lease_time=seconds)
        await q.push(queue, "p1", 1)
    got = await q.pop(namespace="ns", batch=2, partitions=2)
    assert len(got) == 2
    assert got.expires_at == clock.now() + 10 * SECOND
    assert await q.engine.lease_ends([got.lease]) == [got.expires_at]


async def test_lease_ends_answers_for_each_lease_in_its_place(q: Driver, engine: Engine, clock: FakeClock) -> None:
    await q.push_messages(*(message("orders", part, 1) for part in ("p1", "p2", "p3")))
    one, two, three = [await q.pop("orders") for _ in range(3)]
    await q.ack_all(two)
    end = clock.now() + 300 * SECOND
    leases = [NEVER_GIVEN, one.lease, "not even a uuid", two.lease, three.lease, one.lease]
    assert await engine.lease_ends(leases) == [None, end, None, None, end, end]
    assert await engine.lease_ends([]) == []


async def test_lease_ends_follows_renewal_release_and_time(q: Driver, engine: Engine, clock: FakeClock) -> None:
    await q.push_messages(*(message("orders", part, 1) for part in ("p1", "p2")))
    one, two = [await q.pop("orders") for _ in range(2)]
    await q.renew(one.lease, 600)
    end = clock.now() + 600 * SECOND
    await engine.release([two.lease])
    assert await engine.lease_ends([one.lease, two.lease]) == [end, None]
    clock.advance(600)
    assert await engine.lease_ends([one.lease]) == [None], "its time is up, whether anybody applied that or not"


async def test_a_lease_that_gave_its_partition_back_lasts_while_something_can_be_settled_under_it(
    q: Driver, engine: Engine
) -> None:
    await q.push("orders", "p1", 1, 2)
    got = await q.pop("orders", batch=2)
    await q.fail(got[0])
    assert await engine.lease_ends([got.lease]) == [got.expires_at]
    await q.ack(got[1])
    assert await engine.lease_ends([got.lease]) == [None]
