"""Limits of partitions hold over servers, and one server tells the other when there is room again."""

from __future__ import annotations

import asyncio

from hark.clock import FakeClock
from tests.engine.driver import Driver
from tests.engine.workers import Workers

from .test_remote_hints import deliver


async def test_two_servers_share_the_limits_of_a_partition(here: Driver, there: Driver, clock: FakeClock) -> None:
    await here.configure(
        "orders", max_in_flight_per_partition=3, rate_limit_per_partition=1, rate_burst_per_partition=4
    )
    await here.push("orders", "p1", *range(20))
    both = Workers(here), Workers(there)
    taken = await asyncio.gather(*(one.take(2) for one in both for _ in range(3)))
    assert sum(len(got) for got in taken) == 3
    assert {(await one.take(5)).reason for one in both} == {"max_in_flight"}
    await here.ack_all([leased for got in taken for leased in got])
    taken = await asyncio.gather(*(one.take(2, "p1") for one in both))
    assert sum(len(got) for got in taken) == 1, "the burst is over"
    assert {(await one.take(5)).reason for one in both} == {"rate_limited"}
    clock.advance(1)
    assert len(await both[1].take(5)) == 1


async def test_room_that_is_made_on_one_server_reaches_the_other(here: Driver, there: Driver) -> None:
    await here.configure("orders", max_in_flight_per_partition=1)
    await here.push("orders", "p1", 1, 2)
    [leased] = await Workers(here).take()
    assert (await Workers(there).take()).reason == "max_in_flight"
    here.hints.clear()
    await here.ack(leased)
    assert deliver(there, here)
    assert len(await Workers(there).take()) == 1
