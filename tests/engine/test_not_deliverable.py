"""Rules 11 and 24: what can't be delivered now, the reason that is shown, and the exact moment it ends."""

from __future__ import annotations

import pytest

from hark.clock import MILLISECOND, SECOND, FakeClock

from .driver import NEW, Driver, Got, message, payloads

TICK = 0.000_001


async def assert_comes_exactly_at(q: Driver, moment: int, *, queue: str = "orders", group: str = "g") -> Got:
    """Nothing of partition p1 is delivered one microsecond before the moment; then it is."""
    q.clock.advance((moment - 1 - q.clock.now()) / SECOND)
    assert await q.pop(queue, "p1", group=group) == []
    assert await q.pop(queue, group=group) == []
    q.clock.advance(TICK)
    got = await q.pop(queue, group=group)
    assert got != []
    return got


async def test_rule_11_leased(q: Driver, clock: FakeClock) -> None:
    await q.configure("orders", lease_time=30)
    await q.push("orders", "p1", 1)
    await q.pop("orders", group="g")
    empty = await q.pop("orders", "p1", group="g")
    assert (empty.reason, empty.look_again_at) == ("lease_held", clock.now() + 30 * SECOND)
    await assert_comes_exactly_at(q, clock.now() + 30 * SECOND)


async def test_rule_11_delayed_until_its_time(q: Driver, clock: FakeClock) -> None:
    await q.push("orders", "p1", 1, delay_ms=2500)
    empty = await q.pop("orders", "p1", group="g")
    assert (empty.reason, empty.look_again_at) == ("waiting", clock.now() + 2500 * MILLISECOND)
    await assert_comes_exactly_at(q, clock.now() + 2500 * MILLISECOND)


async def test_rule_11_deliver_at_wins_nothing_in_the_past(q: Driver, clock: FakeClock) -> None:
    await q.push("orders", "p1", 1, deliver_at=clock.now() - SECOND)
    assert payloads(await q.pop("orders")) == [1]


async def test_rule_11_a_retry_that_is_not_due(q: Driver, clock: FakeClock) -> None:
    await q.configure("orders", retry_delay=4000)
    await q.push("orders", "p1", 1)
    [held] = await q.pop("orders", group="g")
    await q.fail(held)
    empty = await q.pop("orders", "p1", group="g")
    assert (empty.reason, empty.look_again_at) == ("waiting", clock.now() + 4 * SECOND)
    await assert_comes_exactly_at(q, clock.now() + 4 * SECOND)


async def test_rule_11_a_batch_ends_before_the_first_message_that_is_not_due(q: Driver, clock: FakeClock) -> None:
    await q.push_messages(
        message("orders", "p1", 1),
        message("orders", "p1", 2),
        message("orders", "p1", 3, delay_ms=1000),
        message("orders", "p1", 4),
    )
    got = await q.pop("orders", batch=10)
    assert payloads(got) == [1, 2]
    await q.ack_all(got)
    assert await q.pop("orders", batch=10) == []
    clock.advance(1)
    assert payloads(await q.pop("orders", batch=10)) == [3, 4]


async def test_rule_11_delayed_processing_waits_until_messages_are_old_enough(q: Driver, clock: FakeClock) -> None:
    await q.configure("orders", delayed_processing=10)
    start = clock.now()
    await q.push("orders", "p1", 1)
    clock.advance(4)
    await q.push("orders", "p1", 2)
    empty = await q.pop("orders", "p1", group="g")
    assert (empty.reason, empty.look_again_at) == ("waiting", start + 10 * SECOND)
    got = await assert_comes_exactly_at(q, start + 10 * SECOND)
    assert payloads(got) == [1]
    await q.ack_all(got)
    assert payloads(await assert_comes_exactly_at(q, start + 14 * SECOND)) == [2]


async def test_rule_11_delayed_processing_ends_a_batch(q: Driver, clock: FakeClock) -> None:
    await q.configure("orders", delayed_processing=10)
    await q.push("orders", "p1", 1)
    clock.advance(4)
    await q.push("orders", "p1", 2)
    clock.advance(6)
    assert payloads(await q.pop("orders", batch=10)) == [1]


async def test_rule_11_a_window_buffer_waits_until_pushes_pause(q: Driver, clock: FakeClock) -> None:
    await q.configure("orders", window_buffer=5)
    await q.push("orders", "p1", 1)
    clock.advance(4)
    await q.push("orders", "p1", 2)
    empty = await q.pop("orders", "p1", group="g")
    assert (empty.reason, empty.look_again_at) == ("window_buffer", clock.now() + 5 * SECOND)
    await assert_comes_exactly_at(q, clock.now() + 5 * SECOND)


async def test_rule_11_a_window_buffer_gives_the_whole_batch_when_it_opens(q: Driver, clock: FakeClock) -> None:
    await q.configure("orders", window_buffer=5)
    await q.push("orders", "p1", 1, 2)
    clock.advance(1)
    await q.push("orders", "p1", 3)
    clock.advance(5)
    assert payloads(await q.pop("orders", batch=10)) == [1, 2, 3]


async def test_rule_11_a_window_buffer_lasts_at_the_longest_ten_times(q: Driver, clock: FakeClock) -> None:
    await q.configure("orders", window_buffer=5)
    start = clock.now()
    for number in range(12):
        await q.push("orders", "p1", number)
        clock.advance(4)
    await q.push("orders", "p1", 12)
    assert clock.now() == start + 48 * SECOND
    empty = await q.pop("orders", "p1", group="g")
    assert (empty.reason, empty.look_again_at) == ("window_buffer", start + 50 * SECOND)
    await assert_comes_exactly_at(q, start + 50 * SECOND)


async def test_rule_11_the_longest_window_is_after_the_oldest_unsettled_message(q: Driver, clock: FakeClock) -> None:
    await q.configure("orders", window_buffer=5)
    start = clock.now()
    for number in range(13):
        await q.push("orders", "p1", number)
        clock.advance(4)
    [held] = await q.pop("orders", "p1", group="g")
    assert (await q.ack(held)).success
    await q.push("orders", "p1", 13)
    # The oldest unsettled message was pushed at start + 4.
    assert clock.now() == start + 52 * SECOND
    assert (await q.pop("orders", "p1", group="g")).reason == "window_buffer"
    assert payloads(await assert_comes_exactly_at(q, start + 54 * SECOND)) == [1]


async def test_rule_11_a_window_buffer_is_per_partition(q: Driver, clock: FakeClock) -> None:
    await q.configure("orders", window_buffer=5)
    await q.push("orders", "p1", 1)
    clock.advance(5)
    await q.push("orders", "p2", 2)
    assert payloads(await q.pop("orders", batch=10, partitions=10)) == [1]


@pytest.mark.parametrize("group", [None, "g"], ids=["the queue", "the group"])
async def test_rule_11_paused(q: Driver, group: str | None) -> None:
    await q.push("orders", "p1", 1)
    await q.pop("orders", "p1", group="h", auto_ack=True)
    [held] = await q.pop("orders", "p1", group="g")
    await q.retry(held)
    assert await q.engine.pause("orders", group, True)
    for partition in ("p1", None):
        empty = await q.pop("orders", partition, group="g")
        assert (list(empty), empty.reason) == ([], "paused")
    assert await q.engine.pause("orders", group, False)
    assert payloads(await q.pop("orders", group="g")) == [1]


async def test_rule_11_a_queue_without_messages_has_nothing_ready(q: Driver) -> None:
    await q.push("orders", "p1", 1)
    await q.drain("orders")
    empty = await q.pop("orders", "p1")
    assert (empty.reason, empty.look_again_at) == ("nothing_ready", None)
    assert (await q.pop("orders")).reason == "nothing_ready"


async def test_rule_11_what_waits_in_one_partition_is_no_reason_in_another(q: Driver) -> None:
    await q.push("orders", "p1", 1)
    await q.push("orders", "p2", 2, delay_ms=5000)
    await q.pop("orders", batch=2, partitions=2, auto_ack=True)
    assert (await q.pop("orders", "p1")).reason == "nothing_ready"
    assert (await q.pop("orders", "p2")).reason == "waiting"


async def test_rule_24_a_delay_is_exact_beside_a_new_group(q: Driver, clock: FakeClock) -> None:
    """A group that began in the microsecond of the push must not move the delay by one."""
    await q.pop("orders", group="g", subscription=NEW)
    await q.push("orders", "p1", 1, delay_ms=2000)
    await assert_comes_exactly_at(q, clock.now() + 2 * SECOND)


async def test_rule_24_a_changed_option_has_effect_on_messages_that_wait(q: Driver, clock: FakeClock) -> None:
    await q.configure("orders", delayed_processing=100)
    await q.push("orders", "p1", 1)
    assert await q.pop("orders") == []
    await q.configure("orders", delayed_processing=10)
    clock.advance(10)
    assert payloads(await q.pop("orders")) == [1]


async def test_rule_24_a_lease_is_exact_to_the_microsecond(q: Driver, clock: FakeClock) -> None:
    await q.configure("orders", lease_time=7)
    await q.push("orders", "p1", 1)
    [held] = await q.pop("orders")
    clock.advance(7 - TICK)
    assert (await q.ack(held)).success

    await q.push("orders", "p1", 2)
    [held] = await q.pop("orders")
    clock.advance(7)
    assert not (await q.ack(held)).success


async def test_rule_24_a_renewed_lease_ends_exactly_at_its_new_end(q: Driver, clock: FakeClock) -> None:
    await q.configure("orders", lease_time=7)
    await q.push("orders", "p1", 1)
    got = await q.pop("orders", group="g")
    assert (await q.renew(got.lease, 20)).expires_at == clock.now() + 20 * SECOND
    await assert_comes_exactly_at(q, clock.now() + 20 * SECOND)


async def test_rule_24_due_is_judged_without_any_background_work(q: Driver, clock: FakeClock) -> None:
    """No `expire` and no `collect` was called: time alone makes things ready."""
    await q.configure("orders", lease_time=10, retry_delay=1000, retry_limit=9)
    await q.push("orders", "p1", 1, delay_ms=1000)
    clock.advance(1)
    [held] = await q.pop("orders")
    await q.fail(held)
    clock.advance(1)
    [held] = await q.pop("orders")
    clock.advance(10)
    [held] = await q.pop("orders")
    assert held.message.attempt == 3
