"""The due times of schedules: cron in time zones, also where the clocks change, and intervals."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from hark.broker.schedule_state import Timing, check_cron, check_zone
from hark.clock import SECOND
from hark.errors import InvalidInput

BERLIN = "Europe/Berlin"


def at(text: str) -> int:
    """A time in microseconds."""
    moment = datetime.fromisoformat(text)
    return round((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()) * SECOND


def next_of(timing: Timing, after: str, number: int, anchor: str = "2026-01-01") -> list[str]:
    """The next due times in UTC, without seconds."""
    found = []
    moment: int | None = at(after)
    for _ in range(number):
        assert moment is not None
        moment = timing.after(moment, at(anchor))
        assert moment is not None
        found.append(datetime.fromtimestamp(moment / SECOND, UTC).strftime("%m-%d %H:%M"))
    return found


# In Berlin the clocks go from 2:00 to 3:00 (1:00 UTC) on 29 March 2026, and from 3:00 to 2:00 (1:00 UTC) on 25 October.


@pytest.mark.parametrize(
    ("cron", "expected"),
    [
        ("30 1 * * *", ["03-29 00:30", "03-29 23:30"]),
        ("30 2 * * *", ["03-29 01:00", "03-30 00:30"]),  # Skipped: it moves to the change.
        ("0,30 2 * * *", ["03-29 01:00", "03-30 00:00"]),  # Both move to the change, and are one.
        ("0 3 * * *", ["03-29 01:00", "03-30 01:00"]),
        ("0 1-3 * * *", ["03-29 00:00", "03-29 01:00", "03-29 23:00"]),
        ("*/30 2 * * *", ["03-30 00:00", "03-30 00:30"]),  # In real time: there is no such hour that day.
        ("30 * * * *", ["03-29 00:30", "03-29 01:30", "03-29 02:30"]),
    ],
)
def test_a_due_time_in_the_hour_that_is_skipped_moves_to_the_change(cron: str, expected: list[str]) -> None:
    timing = Timing(cron=cron, timezone=BERLIN)
    assert next_of(timing, "2026-03-28T23:30", len(expected)) == expected


@pytest.mark.parametrize(
    ("cron", "expected"),
    [
        ("30 1 * * *", ["10-24 23:30", "10-26 00:30"]),
        ("30 2 * * *", ["10-25 00:30", "10-26 01:30"]),  # Repeated: only the first time.
        ("0 3 * * *", ["10-25 02:00", "10-26 02:00"]),
        ("0 1-3 * * *", ["10-24 23:00", "10-25 00:00", "10-25 02:00", "10-26 00:00"]),
        ("*/30 2 * * *", ["10-25 00:00", "10-25 00:30", "10-25 01:00", "10-25 01:30", "10-26 01:00"]),  # Both hours.
        ("30 * * * *", ["10-24 22:30", "10-24 23:30", "10-25 00:30", "10-25 01:30", "10-25 02:30"]),
    ],
)
def test_a_due_time_in_the_hour_that_is_repeated_comes_once(cron: str, expected: list[str]) -> None:
    timing = Timing(cron=cron, timezone=BERLIN)
    assert next_of(timing, "2026-10-24T22:00", len(expected)) == expected


@pytest.mark.parametrize("cron", ["30 2 * * *", "*/20 * * * *", "0 2,3 * * *", "15,45 1-3 * * 0"])
@pytest.mark.parametrize("start", ["2026-03-28T22:00", "2026-10-24T21:00"])
def test_due_times_rise_and_are_the_same_from_wherever_one_asks(cron: str, start: str) -> None:
    timing = Timing(cron=cron, timezone=BERLIN)
    begin = at(start)
    end = begin + 8 * 3600 * SECOND
    sequence = []
    due = timing.after(begin, 0)
    while due is not None and due <= end:
        sequence.append(due)
        due = timing.after(due, 0)
    for moment in range(begin, end, 60 * SECOND):
        later = [one for one in sequence if one > moment]
        if later:
            assert timing.after(moment, 0) == later[0], datetime.fromtimestamp(moment / SECOND, UTC)
        earlier = [one for one in sequence if one <= moment]
        if earlier:
            assert timing.last(earlier[0], moment, 0) == earlier[-1]
            assert timing.count(earlier[0], moment + 1) == len(earlier)


def test_an_interval_counts_from_the_anchor_and_not_from_the_last_run() -> None:
    every = Timing(every=90 * SECOND)
    assert next_of(every, "2026-01-01T00:00", 2) == ["01-01 00:01", "01-01 00:03"]
    assert every.after(at("2026-01-01") + 91 * SECOND, at("2026-01-01")) == at("2026-01-01") + 180 * SECOND
    assert every.last(at("2026-01-01"), at("2026-01-01") + 300 * SECOND, at("2026-01-01")) == at("2026-01-01T00:04:30")
    assert every.count(at("2026-01-01"), at("2026-01-01") + 270 * SECOND) == 3


def test_no_due_time_is_before_the_start() -> None:
    start = at("2026-06-01T12:00")
    every = Timing(every=3600 * SECOND, start_at=start)
    assert next_of(every, "2026-01-01", 2, "2026-06-01T12:00") == ["06-01 12:00", "06-01 13:00"]
    daily = Timing(cron="0 12 * * *", start_at=start)
    assert next_of(daily, "2026-01-01", 2) == ["06-01 12:00", "06-02 12:00"]
    assert Timing(cron="0 12 * * *", start_at=at("9000-01-01")).after(0, 0) is None


@pytest.mark.parametrize(("given", "fields"), [("@daily", "0 0 * * *"), ("  5  4 * * sun ", "5 4 * * sun")])
def test_names_and_fields_of_cron_are_accepted(given: str, fields: str) -> None:
    assert check_cron(given) == fields


@pytest.mark.parametrize(
    ("cron", "text"),
    [
        ("", "expected five fields .* got 0"),
        ("* * * *", "expected five fields .* got 4"),
        ("0 * * * * *", "expected five fields .* got 6"),
        ("60 * * * *", "bad minute"),
        ("* 24 * * *", "bad hour"),
        ("0 0 30 2 *", "bad day-of-month"),
        ("*/0 * * * *", "bad minute"),
        ("é * * * *", "bad minute"),
        ("* * * * *" + " " * 300, "at most 255 characters"),
    ],
)
def test_a_wrong_cron_expression_is_named_with_an_example(cron: str, text: str) -> None:
    with pytest.raises(InvalidInput, match=f"^cron: .*{text}.*such as '30 8 "):
        check_cron(cron)


@pytest.mark.parametrize("name", ["", "Mars", "Europe", "../../etc/passwd", "/etc/passwd", "a\0b", "x" * 300])
def test_a_wrong_time_zone_is_named_with_an_example(name: str) -> None:
    with pytest.raises(InvalidInput, match=r"^timezone: .*such as Europe/Berlin"):
        check_zone(name)
