"""When a process may trust what it knows of the log's end, and when it may begin the next record."""

from __future__ import annotations

import time
from types import SimpleNamespace

import pytest

from hark.engine.s3.log.sight import Sight, boot_seconds
from hark.engine.s3.replica.pace import OTHERS_SECONDS, TURNS, Pace

GRACE = 3600.0


@pytest.fixture
def clock() -> SimpleNamespace:
    """The clock of the machine, as a test says."""
    return SimpleNamespace(now=50_000.0)


@pytest.fixture
def sight(clock: SimpleNamespace) -> Sight:
    """The sight of a process that has just seen the end of the log."""
    sight = Sight(GRACE, lambda: clock.now)
    assert (sight.is_stale, sight.is_void(sight.at)) == (True, True), "before the first sight"
    sight.seen(sight.now())
    return sight


def test_a_sight_is_stale_after_half_the_grace(sight: Sight, clock: SimpleNamespace) -> None:
    clock.now += GRACE / 2
    assert not sight.is_stale
    clock.now += 1
    assert sight.is_stale
    sight.seen(sight.now())
    assert not sight.is_stale
    sight.lose()
    assert sight.is_stale, "a state that begins anew has seen nothing"


def test_an_answer_is_void_before_the_grace_is_over(sight: Sight, clock: SimpleNamespace) -> None:
    since = sight.at
    clock.now += GRACE * 0.9
    assert not sight.is_void(since)
    clock.now += 1
    assert sight.is_void(since)


def test_a_process_that_was_stopped_between_request_and_answer_finds_the_answer_void(
    sight: Sight, clock: SimpleNamespace
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


def test_a_sight_counts_from_when_its_request_was_sent_and_an_older_one_does_not_turn_it_back(
    sight: Sight, clock: SimpleNamespace
) -> None:
    sent = sight.now() + 1
    clock.now += 1 + GRACE * 0.6
    sight.seen(sent)
    assert sight.at == sent
    assert sight.is_stale
    assert not sight.is_void(sight.at)
    sight.seen(sent - 100)
    assert sight.at == sent


def test_the_boot_clock_counts_suspended_time(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def clock_gettime(clock: int) -> float:
        asked.append(clock)
        return 1.5

    monkeypatch.setattr(time, "clock_gettime", clock_gettime)
    assert boot_seconds() == 1.5
    assert asked == [getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)]


# Pace ------------------------------------------------------------------------------------------------------


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


def test_under_load_records_are_further_and_further_apart_up_to_the_longest_until_it_is_over(pace: Pace) -> None:
    assert pace.pause(0.0) == 0
    now, apart = write(pace, 0.0), []
    assert pace.pause(now) == 0, "who is alone does not wait"
    for _ in range(6):
        now = write(pace, now, calls=10)
        apart.append(pace.apart)
    assert apart == pytest.approx([0.004, 0.008, 0.016, 0.032, 0.05, 0.05])
    # From begin to begin: the round trip counts.
    assert pace.pause(now) == pytest.approx(0.05 - TRIP)
    for _ in range(5):
        now = write(pace, now + 1)
    assert (pace.apart, pace.pause(now)) == (0, 0)


def test_who_wants_no_linger_has_none() -> None:
    pace = Pace(0.0)
    now = 0.0
    for _ in range(5):
        now = write(pace, now, calls=10)
    assert pace.pause(now) == 0


def test_who_has_written_makes_room_for_others_until_it_is_overtaken_or_they_are_gone(pace: Pace) -> None:
    pace.saw_other(0.0)
    now = write(pace, 0.1)
    assert pace.pause(now) == pytest.approx(3 * TRIP)
    pace.saw_other(now)
    assert pace.pause(now) == 0
    now = write(pace, now + OTHERS_SECONDS)
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
    for _ in range(2 * TURNS):
        now = write(pace, now + 1)
        assert pace.pause(now) == 0, "who writes now and then never rests"


@pytest.mark.parametrize(("every", "fresh", "old"), [(0.05, TRIP, 2 * TRIP), (2.0, 0.5, 1.5)], ids=["often", "seldom"])
def test_where_others_write_an_old_sight_is_likely_wrong(pace: Pace, every: float, fresh: float, old: float) -> None:
    now = write(pace, 0.0)
    assert not pace.is_likely_behind(100.0, sight_age=100.0), "who is alone need not look before it writes"
    for _ in range(30):
        now += every
        pace.saw_other(now)
    assert pace.is_likely_behind(now, sight_age=old)
    assert not pace.is_likely_behind(now, sight_age=fresh)


def test_who_slept_over_an_append_does_not_rest_for_as_long(pace: Pace) -> None:
    pace.saw_other(3599.0)
    pace.begin(0.0)
    pace.wrote(3600.0, calls=1)
    assert pace.pause(3600.0) <= 3 * 0.5
