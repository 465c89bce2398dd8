"""When a process may trust what it knows of the log's end, by a clock that also counts sleep."""

from __future__ import annotations

import time

import pytest

from hark.engine.s3.log.sight import Sight, boot_seconds

GRACE = 3600.0


class BootClock:
    """Seconds since a start, as a test says."""

    def __init__(self) -> None:
        self.now = 50_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> BootClock:
    """The clock of the machine."""
    return BootClock()


@pytest.fixture
def sight(clock: BootClock) -> Sight:
    """The sight of a process that has just seen the end of the log."""
    sight = Sight(GRACE, clock)
    sight.seen(sight.now())
    return sight


def test_before_the_first_sight_everything_is_stale_and_void(clock: BootClock) -> None:
    sight = Sight(GRACE, clock)
    assert sight.is_stale
    assert sight.is_void(sight.at)


def test_a_sight_is_stale_after_half_the_grace(sight: Sight, clock: BootClock) -> None:
    clock.now += GRACE / 2
    assert not sight.is_stale
    clock.now += 1
    assert sight.is_stale
    sight.seen(sight.now())
    assert not sight.is_stale


def test_an_answer_is_void_before_the_grace_is_over(sight: Sight, clock: BootClock) -> None:
    since = sight.at
    clock.now += GRACE * 0.9
    assert not sight.is_void(since)
    clock.now += 1
    assert sight.is_void(since)


def test_a_process_that_was_stopped_between_request_and_answer_finds_the_answer_void(
    sight: Sight, clock: BootClock
) -> None:
    since = sight.at
    sent = sight.now()
    clock.now += 2 * GRACE
    assert sight.is_void(since)
    # Even a sight that somebody notes meanwhile does not heal the answer.
    sight.seen(sight.now())
    assert sight.is_void(since)
    assert not sight.is_void(sight.at)
    assert sent == since


def test_a_sight_counts_from_when_its_request_was_sent(clock: BootClock) -> None:
    sight = Sight(GRACE, clock)
    sent = sight.now()
    clock.now += GRACE * 0.6
    sight.seen(sent)
    assert sight.is_stale
    assert not sight.is_void(sight.at)


def test_an_older_sight_that_is_answered_later_does_not_turn_it_back(sight: Sight) -> None:
    newest = sight.at
    sight.seen(newest - 100)
    assert sight.at == newest


def test_a_state_that_begins_anew_has_seen_nothing(sight: Sight) -> None:
    sight.lose()
    assert sight.is_stale


def test_the_boot_clock_counts_suspended_time(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def clock_gettime(clock: int) -> float:
        asked.append(clock)
        return 1.5

    monkeypatch.setattr(time, "clock_gettime", clock_gettime)
    assert boot_seconds() == 1.5
    assert asked == [getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)]
