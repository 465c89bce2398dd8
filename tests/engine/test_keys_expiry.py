"""Entries whose time is over are not there, removed or not."""

from __future__ import annotations

import pytest

from hark.clock import MILLISECOND, FakeClock
from hark.engine.api import Engine
from hark.model import Key, KeyCheck, KeyMutation, KeyRange

from .driver import Driver
from .key_words import change, delete, delete_tree, entry, listed, put, set_to, told, value, write

A: Key = ("a",)


async def expired(engine: Engine, clock: FakeClock, *keys: Key) -> None:
    """Entries that were there until just now."""
    await write(engine, *(set_to(key, [1], ttl_ms=10) for key in keys))
    clock.advance(0.01)


async def test_an_entry_is_there_until_its_time_is_over_to_the_millisecond(engine: Engine, clock: FakeClock) -> None:
    await write(engine, set_to(A, 1, ttl_ms=500))
    found = await entry(engine, A)
    assert found is not None and found.expires_at == clock.now() + 500 * MILLISECOND
    clock.advance(0.499)
    assert await entry(engine, A) is not None
    clock.advance(0.001)
    assert await entry(engine, A) is None


async def test_nobody_sees_what_has_expired(engine: Engine, clock: FakeClock) -> None:
    await put(engine, ("live",))
    await expired(engine, clock, A, ("b", 1))
    assert await listed(engine, KeyRange()) == [("live",)]
    assert await listed(engine, KeyRange(reverse=True)) == [("live",)]
    assert await engine.count_keys(()) == 1
    assert (await engine.key_stats()).entries == 1
    assert (await write(engine, delete(A), delete_tree(("b",)))).deleted == 0


async def test_expired_entries_do_not_use_up_a_page(engine: Engine, clock: FakeClock) -> None:
    await expired(engine, clock, *((number,) for number in range(10)))
    await put(engine, (20,), (21,))
    assert await listed(engine, KeyRange(limit=2)) == [(20,), (21,)]


async def test_a_check_takes_what_has_expired_for_absent(engine: Engine, clock: FakeClock) -> None:
    written = await write(engine, set_to(A, 1, ttl_ms=10))
    clock.advance(0.01)
    assert not (await write(engine, checks=(KeyCheck(A, written.version),))).success
    assert (await write(engine, set_to(A, 2), checks=(KeyCheck(A, None),))).success


@pytest.mark.parametrize("mutation", [change("append", A, [2]), change("prepend", A, [2])])
async def test_mutations_start_anew_where_something_has_expired(
    engine: Engine, clock: FakeClock, mutation: KeyMutation
) -> None:
    await expired(engine, clock, A)
    await write(engine, mutation)
    assert await value(engine, A) == [2]


async def test_a_write_without_expiry_clears_an_older_one(engine: Engine, clock: FakeClock) -> None:
    await write(engine, *(set_to((number,), 1, ttl_ms=10) for number in range(3)))
    await write(engine, set_to((0,), 1), change("sum", (1,), 1))
    clock.advance(1)
    assert await listed(engine, KeyRange()) == [(0,), (1,)]


async def test_a_sweep_removes_what_is_over_and_tells(q: Driver, engine: Engine, clock: FakeClock) -> None:
    await put(engine, ("live",))
    await write(engine, set_to(("later",), 1, ttl_ms=60_000))
    await expired(engine, clock, *((number,) for number in range(5)))
    q.key_news.clear()
    assert [await engine.sweep_keys(3) for _ in range(3)] == [3, 2, 0]
    assert told(q.key_news) == {(number,) for number in range(5)}
    assert await listed(engine, KeyRange()) == [("later",), ("live",)]


async def test_an_expiry_survives_a_restart(durable: Driver, clock: FakeClock) -> None:
    await write(durable.engine, set_to(A, 1, ttl_ms=1000))
    await durable.reopen()
    assert await entry(durable.engine, A) is not None
    clock.advance(1)
    assert await entry(durable.engine, A) is None
