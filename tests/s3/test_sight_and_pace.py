"""When a process may trust what it knows of the log's end, and when it may begin the next record."""

from __future__ import annotations

import time

import pytest

from hark.engine.s3.log.sight import Sight, boot_seconds
from hark.engine.s3.replica.pace import OTHERS_SECONDS, TURNS, Pace

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


# When the next record may be begun: load, and others. ----------


TRIP = 0.03


def write(pace: Pace, now: float, calls: int = 1) -> float:
    """A record is written, in one round trip; when it is in the log."""
    pace.begin(now)
    pace.wrote(now + TRIP, calls)
    return now + TRIP


@pytest.fixture
def pace() -> Pace:
    """A pace without chance."""
    return Pace(0.05, random=lambda: 0.5)


# Load ------------------------------------------------------------------------------------------------------


def test_who_is_alone_does_not_wait(pace: Pace) -> None:
    assert pace.pause(0.0) == 0
    now = write(pace, 0.0)
    assert pace.pause(now) == 0


def test_under_load_records_are_further_and_further_apart_up_to_the_longest(pace: Pace) -> None:
    now, apart = 0.0, []
    for _ in range(6):
        now = write(pace, now, calls=10)
        apart.append(pace.apart)
    assert apart == pytest.approx([0.004, 0.008, 0.016, 0.032, 0.05, 0.05])
    # From begin to begin: the round trip counts.
    assert pace.pause(now) == pytest.approx(0.05 - TRIP)


def test_when_the_load_is_over_nobody_waits_any_more(pace: Pace) -> None:
    now = 0.0
    for _ in range(6):
        now = write(pace, now, calls=10)
    for _ in range(5):
        now = write(pace, now + 1)
    assert (pace.apart, pace.pause(now)) == (0, 0)


def test_who_wants_no_linger_has_none() -> None:
    pace = Pace(0.0)
    now = 0.0
    for _ in range(5):
        now = write(pace, now, calls=10)
    assert pace.pause(now) == 0


# Others ----------------------------------------------------------------------------------------------------


def test_who_has_written_makes_room_for_others(pace: Pace) -> None:
    pace.saw_other(0.0)
    now = write(pace, 0.1)
    assert pace.pause(now) == pytest.approx(3 * TRIP)


def test_who_was_overtaken_does_not_wait(pace: Pace) -> None:
    now = write(pace, 0.0)
    pace.saw_other(now)
    assert pace.pause(now) == 0


def test_others_that_were_not_seen_for_a_while_are_gone(pace: Pace) -> None:
    pace.saw_other(0.0)
    now = write(pace, OTHERS_SECONDS)
    assert not pace.has_company(now)
    assert pace.pause(now) == 0


def test_those_who_lose_together_do_not_try_together() -> None:
    draws = iter([0.0, 1.0])
    pace = Pace(0.05, random=lambda: next(draws))
    pace.saw_other(0.0)
    now = write(pace, 0.1)
    first, second = pace.pause(now), pace.pause(now)
    assert second > first > 0


def test_who_writes_record_after_record_rests_now_and_then_for_those_who_are_not_known(pace: Pace) -> None:
    now, pauses = 0.0, []
    for _ in range(2 * TURNS):
        now = write(pace, now)
        pauses.append(pace.pause(now))
        now += pauses[-1]
    rests = [index for index, pause in enumerate(pauses) if pause > 0]
    assert rests == [TURNS - 1, 2 * TURNS - 1]


def test_who_writes_now_and_then_never_rests(pace: Pace) -> None:
    now = 0.0
    for _ in range(2 * TURNS):
        now = write(pace, now + 1)
        assert pace.pause(now) == 0


# Looking first ---------------------------------------------------------------------------------------------


def test_who_is_alone_need_not_look_before_he_writes(pace: Pace) -> None:
    write(pace, 0.0)
    assert not pace.is_likely_behind(100.0, sight_age=100.0)


def test_where_others_write_often_an_old_sight_is_likely_wrong(pace: Pace) -> None:
    now = write(pace, 0.0)
    for _ in range(30):
        now += 0.05
        pace.saw_other(now)
    assert pace.is_likely_behind(now, sight_age=2 * TRIP)
    assert not pace.is_likely_behind(now, sight_age=TRIP)


def test_where_others_write_seldom_a_sight_lasts_longer(pace: Pace) -> None:
    now = write(pace, 0.0)
    for _ in range(30):
        now += 2.0
        pace.saw_other(now)
    assert not pace.is_likely_behind(now, sight_age=0.5)
    assert pace.is_likely_behind(now, sight_age=1.5)


def test_who_slept_over_an_append_does_not_rest_for_as_long(pace: Pace) -> None:
    pace.saw_other(3599.0)
    pace.begin(0.0)
    pace.wrote(3600.0, calls=1)
    assert pace.pause(3600.0) <= 3 * 0.5
