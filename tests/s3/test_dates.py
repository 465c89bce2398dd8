"""The time at the store, from dates that are cut to whole seconds."""

from __future__ import annotations

import math
import os

from hypothesis import given, settings
from hypothesis import strategies as st

from hark.clock import SECOND, FakeClock
from hark.engine.s3.bucket.dates import DRIFT_PPM, ServerTime

START = 1_700_000_000 * SECOND


def cut(time: int) -> int:
    """A time as a Date header says it."""
    return time // SECOND * SECOND


def test_without_an_answer_our_clock_counts() -> None:
    clock = FakeClock()
    time = ServerTime(clock)
    assert (time.offset(), time.now(), time.allowed()) == (0, clock.now(), None)


def test_a_clock_that_is_right_stays_exact() -> None:
    clock = FakeClock(START + 700_000)
    time = ServerTime(clock)
    for _ in range(50):
        sent = clock.now()
        received = clock.advance(0.137)
        time.note(cut(sent), sent, received)
        assert time.offset() == 0
        assert time.now() == clock.now()


def test_a_clock_that_is_behind_is_moved_by_the_least_that_the_date_allows() -> None:
    clock = FakeClock(START)
    time = ServerTime(clock)
    time.note(START + 60 * SECOND, START, START)
    assert (time.offset(), time.allowed()) == (60 * SECOND, (60 * SECOND, 61 * SECOND))


def test_a_clock_that_is_ahead_is_moved_by_the_least_that_the_date_allows() -> None:
    clock = FakeClock(START)
    time = ServerTime(clock)
    time.note(START - 60 * SECOND, START - 100, START)
    assert time.offset() == -59 * SECOND + 100


def test_more_answers_narrow_the_range() -> None:
    clock = FakeClock(START + SECOND)
    time = ServerTime(clock)
    time.note(START + 60 * SECOND, START, START)
    time.note(START + 61 * SECOND, START + 300_000, START + 300_000)
    low, high = time.allowed() or (0, 0)
    assert 60_699_000 < low <= 60_700_000
    assert 61_000_000 <= high < 61_001_000


def test_when_answers_contradict_each_other_the_newest_counts_alone() -> None:
    clock = FakeClock(START)
    time = ServerTime(clock)
    time.note(START + 60 * SECOND, START, START)
    time.note(START, START, START)
    assert time.allowed() == (0, SECOND)


def test_the_range_grows_while_there_is_no_answer() -> None:
    clock = FakeClock(START)
    time = ServerTime(clock)
    time.note(START + 60 * SECOND, START, START)
    clock.advance(1000)
    assert time.allowed() == (60 * SECOND - 1000 * DRIFT_PPM, 61 * SECOND + 1000 * DRIFT_PPM)
    assert time.offset() == 60 * SECOND - 1000 * DRIFT_PPM


def test_an_answer_that_is_noted_late_does_not_shrink_the_range_by_time_that_runs_back() -> None:
    clock = FakeClock(START + 10 * SECOND)
    time = ServerTime(clock)
    time.note(START + 10 * SECOND, START + 10 * SECOND, START + 10 * SECOND)
    time.note(START, START, START)
    assert time.allowed() == (0, SECOND)


answers = st.lists(
    st.tuples(
        st.integers(0, 3600 * SECOND),  # silence before the request
        st.integers(0, 5 * SECOND),  # from the request to the date
        st.integers(0, 5 * SECOND),  # from the date to the answer
    ),
    min_size=1,
    max_size=30,
)


@settings(derandomize="HARK_TEST_EXAMPLES" not in os.environ, max_examples=300)
@given(
    skew=st.integers(-(10**12), 10**12),
    drift=st.integers(-DRIFT_PPM + 1, DRIFT_PPM - 1),
    answers=answers,
    silence=st.integers(0, 3600 * SECOND),
)
def test_the_true_offset_is_always_allowed_and_the_estimate_is_near_it(
    skew: int, drift: int, answers: list[tuple[int, int, int]], silence: int
) -> None:
    clock = FakeClock(START)
    time = ServerTime(clock)

    def there() -> int:
        ours = clock.now()
        return ours + skew + (ours - START) * drift // SECOND

    def move(microseconds: int) -> int:
        return clock.advance(microseconds / SECOND)

    for before, outward, back in answers:
        sent = move(before)
        move(outward)
        date = cut(there())
        received = move(back)
        time.note(date, sent, received)
    move(silence)
    true = there() - clock.now()
    low, high = time.allowed() or (0, -1)
    # Two microseconds: rounding of the clock that drifts in this test, and of the drift on the way.
    assert low - 2 <= true <= high + 2
    _, outward, back = answers[-1]
    # The last answer alone allows a second and its own round trip; since then the clocks may have drifted apart.
    passed = outward + back + silence
    widest = SECOND + outward + back + 2 * math.ceil(passed * DRIFT_PPM / SECOND) + 4
    assert abs(time.offset() - true) <= widest
    assert high - low <= widest
    if low <= 0 <= high:
        assert time.offset() == 0
