"""Every engine tells numbers about its store."""

from __future__ import annotations

import math

import pytest

from hark.http.metrics.store import ELSEWHERE, STORE
from hark.model import GroupMode

from .driver import Driver


async def test_a_store_is_told_in_numbers(q: Driver) -> None:
    numbers = await q.engine.store_metrics()
    assert numbers
    assert [name for name, number in numbers.items() if not (math.isfinite(number) and number >= 0)] == []


async def test_every_number_has_a_metric(q: Driver) -> None:
    assert set(await q.engine.store_metrics()) <= {*STORE, *ELSEWHERE}


async def test_leases_that_run_out_are_counted(q: Driver) -> None:
    await q.configure("orders", lease_time=10)
    await q.push("orders", "p", 1, 2)
    before = (await q.engine.store_metrics())["leases_expired"]
    assert len(await q.pop("orders", batch=2)) == 2
    q.clock.advance(11)
    await q.engine.expire()
    assert (await q.engine.store_metrics())["leases_expired"] == before + 1


@pytest.mark.parametrize("mode", ["ordered", "shared"])
async def test_what_dies_of_a_lease_that_ran_out_is_counted(q: Driver, mode: GroupMode) -> None:
    await q.configure("orders", lease_time=10, retry_limit=0)
    await q.push("orders", "p", 1)
    before = (await q.engine.store_metrics())["expiries_buried"]
    assert len(await q.pop("orders", group="g", group_mode=mode)) == 1
    q.clock.advance(11)
    await q.engine.expire()
    assert len(await q.dead_letters("orders", "g")) == 1
    assert (await q.engine.store_metrics())["expiries_buried"] == before + 1


async def test_the_names_stay_the_same_when_the_store_fills(q: Driver) -> None:
    empty = await q.engine.store_metrics()
    await q.push("orders", "p", *range(100))
    assert set(await q.engine.store_metrics()) == set(empty)


async def test_a_durable_store_tells_how_large_it_is(durable: Driver) -> None:
    async def size() -> float:
        numbers = await durable.engine.store_metrics()
        return sum(number for name, number in numbers.items() if name.endswith("_bytes"))

    empty = await size()
    await durable.push("orders", "p", *("x" * 1000 for _ in range(1000)))
    assert await size() >= empty + 500_000
