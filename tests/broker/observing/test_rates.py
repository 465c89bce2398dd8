"""Rates, latencies and the busiest queues."""

from __future__ import annotations

import pytest

from hark.broker.observing.rates import BusyQueues, Meter, percentiles
from hark.broker.tallies import Tallies
from hark.clock import SECOND, FakeClock

from .stores import tally


def test_rates_are_what_was_counted_since_the_last_reading() -> None:
    clock = FakeClock()
    tallies = Tallies(clock)
    tally(tallies, "orders", pushed=1000)
    meter = Meter(tallies, clock.now())
    tally(tallies, "orders", pushed=30, delivered=20, completed=10)
    tallies.total.failed += 4
    tallies.total.dead_lettered += 2
    rates, _ = meter.read(clock.advance(2))
    assert (rates.pushed, rates.delivered, rates.settled) == (15, 10, 8)
    assert (rates.failed, rates.dead_lettered) == (2, 1)
    rates, latency = meter.read(clock.advance(1))
    assert (rates.pushed, rates.settled, latency) == (0, 0, None)


def test_latency_is_that_of_deliveries_since_the_last_reading() -> None:
    clock = FakeClock()
    tallies = Tallies(clock)
    tallies.ages[30] += 1000
    meter = Meter(tallies, clock.now())
    tallies.ages[11] += 98  # From 1,024 to 2,048 microseconds.
    tallies.ages[21] += 2  # From 1,048,576 to 2,097,152.
    _, latency = meter.read(clock.advance(1))
    assert latency is not None
    assert 1.024 < latency.p50 < 2.048
    assert 1048.576 < latency.p99 < 2097.152


@pytest.mark.parametrize("bits", [0, 1, 10, 63])
def test_percentiles_of_one_bucket_are_inside_of_it(bits: int) -> None:
    ages = [0] * 64
    ages[bits] = 7
    latency = percentiles(ages)
    assert latency is not None
    assert (1 << bits) >> 1 <= latency.p50 * 1000 <= latency.p99 * 1000 <= 1 << bits


def test_the_busiest_queues_come_first_over_ten_seconds() -> None:
    tallies, busy = Tallies(FakeClock()), BusyQueues()
    for second in range(10):
        tally(tallies, "steady", pushed=2, delivered=1)
        if second == 0:
            tally(tallies, "once", pushed=25)
        busy.note(tallies, tallies.touched)
        tallies.touched = set()
    first, second_one = busy.busiest()
    assert (first.queue, first.pushed, first.delivered, first.settled) == ("steady", 2, 1, 0)
    assert (second_one.queue, second_one.pushed) == ("once", 2.5)
    tally(tallies, "steady", pushed=1)
    busy.note(tallies, tallies.touched)
    assert [one.queue for one in busy.busiest()] == ["steady"], "ten seconds later it is forgotten"


def test_no_more_than_twenty_queues_are_the_busiest() -> None:
    tallies, busy = Tallies(FakeClock()), BusyQueues()
    for number in range(500):
        tally(tallies, f"q{number:03}", pushed=number)
    busy.note(tallies, tallies.touched)
    assert [one.queue for one in busy.busiest()] == [f"q{number}" for number in range(499, 479, -1)]


def test_a_queue_that_was_forgotten_and_came_back_has_no_negative_rate() -> None:
    tallies, busy = Tallies(FakeClock(), most_queues=1), BusyQueues()
    tally(tallies, "a", pushed=100)
    busy.note(tallies, ["a"])
    tally(tallies, "b", pushed=1)
    tally(tallies, "a", pushed=5)
    busy.note(tallies, ["a", "b"])
    [found] = busy.busiest()
    assert (found.queue, found.pushed) == ("a", (100 + 5) / 2)


def test_a_reading_at_once_after_another_divides_by_no_zero() -> None:
    tallies = Tallies(FakeClock())
    meter = Meter(tallies, SECOND)
    assert meter.read(SECOND)[0].pushed == 0
