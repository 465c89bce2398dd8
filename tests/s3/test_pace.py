"""When the next record may be begun: load, and others."""

from __future__ import annotations

import pytest

from hark.engine.s3.replica.pace import OTHERS_SECONDS, TURNS, Pace

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
