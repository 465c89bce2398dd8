"""How long a pop holds what it gets: as long as the queue says, or as it asks for itself."""

from __future__ import annotations

import pytest

from hark.clock import MILLISECOND, SECOND, FakeClock
from hark.model import GroupMode

from .driver import Driver, Got

MODES: list[GroupMode] = ["ordered", "shared"]


async def pop(q: Driver, mode: GroupMode, lease_ms: int | None) -> Got:
    """Pop one message of a group of either kind."""
    return await q.pop("orders", group="g", group_mode=mode, lease_ms=lease_ms)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("lock_duration", "lease_ms", "wanted_ms"),
    [(0, None, 20_000), (0, 1500, 1500), (0, 90_000, 90_000), (700, 1500, 700), (700, None, 20_000)],
)
async def test_the_queue_s_lock_duration_then_the_pop_s_wish_then_the_lease_time(
    q: Driver, clock: FakeClock, mode: GroupMode, lock_duration: int, lease_ms: int | None, wanted_ms: int
) -> None:
    await q.configure("orders", lease_time=20, lock_duration=lock_duration)
    await q.push("orders", "p1", 1)
    got = await pop(q, mode, lease_ms)
    assert got.expires_at == clock.now() + wanted_ms * MILLISECOND
    assert await q.engine.lease_ends([got.lease]) == [got.expires_at]


@pytest.mark.parametrize("mode", MODES)
async def test_it_ends_at_its_microsecond(q: Driver, clock: FakeClock, mode: GroupMode) -> None:
    await q.push("orders", "p1", 1)
    [held] = await pop(q, mode, 1500)
    clock.advance(1.5 - 0.000_001)
    assert await pop(q, mode, 1500) == []
    clock.advance(0.000_001)
    [again] = await pop(q, mode, None)
    assert again.message.attempt == 2
    assert not (await q.ack(held)).success


@pytest.mark.parametrize("mode", MODES)
async def test_it_can_be_renewed(q: Driver, clock: FakeClock, mode: GroupMode) -> None:
    await q.push("orders", "p1", 1)
    got = await pop(q, mode, 1500)
    assert (await q.renew(got.lease, 5)).expires_at == clock.now() + 5 * SECOND
    clock.advance(4)
    assert (await q.ack(got[0])).success


async def test_each_pop_holds_for_its_own_time(q: Driver, clock: FakeClock) -> None:
    await q.push("orders", "p1", 1, 2)
    first = await q.pop("orders", group="g", group_mode="shared", lease_ms=1000)
    second = await q.pop("orders", group="g", group_mode="shared", lease_ms=2000)
    clock.advance(1)
    assert await q.engine.lease_ends([first.lease, second.lease]) == [None, clock.now() + SECOND]


async def test_over_queues_the_shortest_counts(q: Driver, clock: FakeClock) -> None:
    await q.configure("a", namespace="ns", lock_duration=900)
    await q.configure("b", namespace="ns")
    for name in ("a", "b"):
        await q.push(name, "p1", 1)
    got = await q.pop(namespace="ns", group="g", group_mode="shared", batch=2, partitions=2, lease_ms=1500)
    assert (len(got), got.expires_at) == (2, clock.now() + 900 * MILLISECOND)
