"""Every engine tells numbers about its store."""

from __future__ import annotations

import math

from .driver import Driver


async def test_a_store_is_told_in_numbers(q: Driver) -> None:
    numbers = await q.engine.store_metrics()
    assert numbers
    assert [name for name, number in numbers.items() if not (math.isfinite(number) and number >= 0)] == []


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
