"""The rests between polls: how long, and what ends them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from hark.polling import Poller, PollingStrategy, PollMetrics
from tests.polling.pauses import Pauses, middle

STRATEGY = PollingStrategy.adaptive(min_interval_ms=100, max_interval_ms=5000)


@pytest.fixture
def pauses() -> Pauses:
    """Time that passes because a test says so."""
    return Pauses()


@pytest.fixture
def poller(pauses: Pauses) -> Poller:
    """A poller whose rests are written down, without jitter."""
    return Poller(STRATEGY, monotonic=pauses.monotonic, random=middle, pause=pauses.pause)


def look(poller: Poller, found: bool) -> None:
    """Poll once."""
    poller.begin()
    poller.saw(found)


# How long --------------------------------------------------------------------------------------------------


async def test_a_busy_loop_does_not_rest_but_lets_others_run(poller: Poller, pauses: Pauses) -> None:
    ran: list[int] = []
    asyncio.get_running_loop().call_soon(ran.append, 1)
    look(poller, True)
    await poller.rest()
    assert (pauses.taken, ran) == ([], [1])


async def test_fixed_polling_rests_equally_long_after_each_empty_poll_and_not_while_busy(pauses: Pauses) -> None:
    poller = Poller(PollingStrategy.fixed(interval_ms=500), random=middle, pause=pauses.pause)
    for found in (False, False, True, False):
        look(poller, found)
        await poller.rest()
    assert pauses.taken == pytest.approx([0.5, 0.5, 0.5])


async def test_work_that_was_seen_and_lost_to_others_is_no_reason_to_back_off(poller: Poller, pauses: Pauses) -> None:
    look(poller, False)
    look(poller, True)
    await poller.rest()
    assert (poller.interval, pauses.taken) == (0.1, [])


async def test_jitter_changes_the_rest_and_not_the_interval(pauses: Pauses) -> None:
    poller = Poller(STRATEGY, random=lambda: 1.0, pause=pauses.pause)
    for _ in range(3):
        look(poller, False)
        await poller.rest()
    assert pauses.taken == pytest.approx([0.22, 0.44, 0.88])
    assert poller.interval == 0.8


async def test_a_message_that_is_due_soon_is_not_slept_past(poller: Poller, pauses: Pauses) -> None:
    for _ in range(6):
        look(poller, False)
    await poller.rest(next_due=pauses.now + 0.3)
    assert pauses.taken == pytest.approx([0.3])


async def test_a_message_that_is_due_late_does_not_lengthen_the_rest(poller: Poller, pauses: Pauses) -> None:
    look(poller, False)
    await poller.rest(next_due=pauses.now + 3600)
    assert pauses.taken == pytest.approx([0.2])


async def test_a_message_that_is_overdue_and_was_not_found_does_not_make_the_loop_spin(
    poller: Poller, pauses: Pauses
) -> None:
    for _ in range(6):
        look(poller, False)
        await poller.rest(next_due=pauses.now - 1)
    assert pauses.taken == pytest.approx([0.1] * 6)


@pytest.mark.parametrize(("waited", "rests"), [(0.0, [5.0]), (2.0, [3.0]), (5.0, []), (30.0, [])])
async def test_the_time_that_the_server_waited_counts_as_rest(
    poller: Poller, pauses: Pauses, waited: float, rests: list[float]
) -> None:
    for _ in range(6):
        look(poller, False)
    await poller.rest(waited=waited)
    assert pauses.taken == pytest.approx(rests)


async def test_jitter_makes_no_rest_where_the_server_has_waited_long_enough(pauses: Pauses) -> None:
    longest = PollingStrategy.fixed(interval_ms=30_000)
    poller = Poller(longest, monotonic=pauses.monotonic, random=lambda: 1.0, pause=pauses.pause)
    look(poller, False)
    await poller.rest(waited=30.0)
    assert pauses.taken == []
    await poller.rest(waited=20.0)
    assert pauses.taken == pytest.approx([11.0])


# What ends a rest ------------------------------------------------------------------------------------------


@asynccontextmanager
async def an_hours_rest(poller: Poller) -> AsyncIterator[asyncio.Task[None]]:
    """A rest of an hour by the real clock, under way; it must be over soon after the block."""
    resting = asyncio.create_task(poller.rest())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not resting.done()
    yield resting
    async with asyncio.timeout(20):
        await resting


@pytest.fixture
def sleepy() -> Poller:
    """A poller that rests for an hour by the real clock."""
    return Poller(PollingStrategy.fixed(interval_ms=3_600_000))


async def test_a_rest_is_over_when_its_time_is() -> None:
    poller = Poller(PollingStrategy.fixed(interval_ms=1))
    look(poller, False)
    async with asyncio.timeout(20):
        await poller.rest()


async def test_a_hint_ends_the_rest_at_once(sleepy: Poller) -> None:
    look(sleepy, False)
    async with an_hours_rest(sleepy):
        sleepy.wake()


async def test_a_hint_that_comes_while_a_poll_is_under_way_is_not_lost(sleepy: Poller) -> None:
    sleepy.begin()
    sleepy.wake()
    sleepy.saw(False)
    async with asyncio.timeout(20):
        await sleepy.rest()


async def test_a_hint_ends_one_rest_only(poller: Poller, pauses: Pauses) -> None:
    look(poller, False)
    poller.wake()
    await poller.rest()
    assert pauses.taken == []
    look(poller, False)
    await poller.rest()
    assert pauses.taken == pytest.approx([0.4])


async def test_stop_ends_the_rest_at_once(sleepy: Poller) -> None:
    look(sleepy, False)
    async with an_hours_rest(sleepy):
        sleepy.stop()
    assert sleepy.stopped


async def test_after_stop_there_is_no_rest_any_more(poller: Poller, pauses: Pauses) -> None:
    poller.stop()
    for _ in range(3):
        look(poller, False)
        await poller.rest()
    poller.failed()
    await poller.rest()
    assert pauses.taken == []


async def test_a_rest_can_be_cancelled(sleepy: Poller) -> None:
    look(sleepy, False)
    resting = asyncio.create_task(sleepy.rest())
    await asyncio.sleep(0)
    resting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await resting


# Errors ----------------------------------------------------------------------------------------------------


async def test_errors_have_a_backoff_of_their_own(poller: Poller, pauses: Pauses) -> None:
    look(poller, False)
    for _ in range(11):
        poller.begin()
        poller.failed()
        await poller.rest()
    assert pauses.taken == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 30, 30])
    assert poller.interval == 0.2, "that of empty polls is as it was"


async def test_a_poll_that_succeeds_ends_the_backoff_of_errors(poller: Poller, pauses: Pauses) -> None:
    for _ in range(5):
        poller.failed()
    look(poller, True)
    poller.failed()
    await poller.rest()
    assert pauses.taken == pytest.approx([0.1])


async def test_a_server_that_says_when_to_come_again_is_left_alone_so_long(poller: Poller, pauses: Pauses) -> None:
    poller.failed(retry_after=7)
    await poller.rest()
    poller.failed()
    await poller.rest()
    assert pauses.taken == pytest.approx([7, 0.2])


async def test_a_hint_does_not_end_the_rest_after_an_error_and_stop_does() -> None:
    poller = Poller(STRATEGY)
    poller.failed(retry_after=3600)
    async with an_hours_rest(poller) as resting:
        poller.wake()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not resting.done()
        poller.stop()


# Another strategy --------------------------------------------------------------------------------------------


async def test_a_poller_may_follow_another_strategy_from_its_first_interval_on(poller: Poller, pauses: Pauses) -> None:
    for _ in range(4):
        look(poller, False)
    poller.follow(PollingStrategy.adaptive(min_interval_ms=1000, max_interval_ms=9000, backoff_multiplier=3))
    assert poller.interval == poller.metrics.interval_seconds == 1.0
    for _ in range(3):
        look(poller, False)
        await poller.rest()
    assert pauses.taken == pytest.approx([3, 9, 9])


async def test_who_rests_does_not_finish_the_rest_of_the_strategy_before() -> None:
    poller = Poller(PollingStrategy.fixed(interval_ms=3_600_000))
    look(poller, False)
    async with an_hours_rest(poller):
        poller.follow(STRATEGY)


# Counting --------------------------------------------------------------------------------------------------


async def test_the_four_numbers_follow_the_polls(poller: Poller) -> None:
    assert poller.metrics == PollMetrics(interval_seconds=0.1)
    for found in (True, False, False):
        look(poller, found)
    assert poller.metrics == PollMetrics(interval_seconds=0.4, polls=3, empty=2, backoffs=2)
    for _ in range(6):
        look(poller, False)
    assert poller.metrics == PollMetrics(interval_seconds=5.0, polls=9, empty=8, backoffs=6), "no growth, no backoff"
    look(poller, True)
    assert poller.metrics == PollMetrics(interval_seconds=0.1, polls=10, empty=8, backoffs=6)
    poller.begin()
    poller.failed()
    assert poller.metrics == PollMetrics(interval_seconds=0.1, polls=11, empty=8, backoffs=6)


async def test_fixed_polling_never_backs_off() -> None:
    metrics = PollMetrics()
    poller = Poller(PollingStrategy.fixed(interval_ms=500), metrics=metrics)
    look(poller, False)
    look(poller, False)
    assert metrics == PollMetrics(interval_seconds=0.5, polls=2, empty=2, backoffs=0)


# Without a poll --------------------------------------------------------------------------------------------


async def test_a_poll_that_is_skipped_is_not_counted_and_rests_as_long_as_the_last(
    poller: Poller, pauses: Pauses
) -> None:
    look(poller, False)
    await poller.rest()
    poller.wake()
    poller.skip()
    await poller.rest()
    assert pauses.taken == pytest.approx([0.2, 0.2])
    assert (poller.metrics.polls, poller.metrics.empty) == (1, 1)
