"""Watching certain keys: what is told, what is read, and what is left behind."""

from __future__ import annotations

import asyncio

import pytest

from hark.broker.watching.watcher import AT_ONCE, Shown
from hark.errors import EngineFailure, HarkError, Overloaded, Unavailable
from hark.keys import encode_key
from hark.model import Key, KeyNews
from tests.broker.watching.store import Store, rest, seen, soon

A: Key = ("a",)
B: Key = ("b", 1)


async def test_what_is_there_is_shown_first_and_then_each_change() -> None:
    store = Store()
    store.put(A, 1)
    watcher = await store.watchers.watch_keys([A, B])
    assert seen(await soon(watcher.next())) == [(A, 1)]
    change = asyncio.create_task(watcher.next())
    await rest()
    assert not change.done()
    store.put(B, 2)
    assert seen(await soon(change)) == [(B, 2)]
    store.remove(A)
    assert seen(await soon(watcher.next())) == [(A, ...)]


async def test_without_initial_only_what_comes_later_is_shown() -> None:
    store = Store()
    store.put(A, 1)
    watcher = await store.watchers.watch_keys([A, B], initial=False)
    change = asyncio.create_task(watcher.next())
    await rest()
    assert not change.done()
    store.put(A, 2)
    assert seen(await soon(change)) == [(A, 2)]


async def test_without_news_nothing_is_read() -> None:
    store = Store()
    watcher = await store.watchers.watch_keys([A], initial=False)
    store.reads.clear()
    waiting = asyncio.create_task(watcher.next())
    store.put(("other",), 1)
    store.put((*A, "below"), 1)
    store.timers.advance(3600)
    await rest()
    assert not waiting.done()
    assert store.reads == []
    watcher.close()
    assert await soon(waiting) == ()


async def test_many_writes_of_a_key_are_one_change_for_a_client_that_reads_slowly() -> None:
    store = Store()
    watcher = await store.watchers.watch_keys([A, B], initial=False)
    store.reads.clear()
    for number in range(1000):
        store.put(A, number)
    assert seen(await soon(watcher.next())) == [(A, 999)]
    assert store.reads == [1]


async def test_a_key_that_was_removed_and_written_again_has_changed() -> None:
    store = Store()
    store.put(A, 1)
    watcher = await store.watchers.watch_keys([A], initial=False)
    store.remove(A)
    store.put(A, 1)
    assert seen(await soon(watcher.next())) == [(A, 1)]


async def test_keys_that_python_takes_for_equal_are_told_apart() -> None:
    store = Store()
    watcher = await store.watchers.watch_keys([("n", 1)], initial=False)
    waiting = asyncio.create_task(watcher.next())
    store.put(("n", True), "yes")
    store.put(("n", "1"), "text")
    await rest()
    assert not waiting.done()
    store.put(("n", 1.0), "number")
    assert seen(await soon(waiting)) == [(("n", 1), "number")]


async def test_news_of_any_key_make_everybody_look() -> None:
    store = Store()
    watcher = await store.watchers.watch_keys([A], initial=False)
    store.put(A, 1, tell=False)
    store.watchers.tell(KeyNews(None))
    assert seen(await soon(watcher.next())) == [(A, 1)]


async def test_many_keys_are_read_in_parts() -> None:
    store = Store()
    keys: list[Key] = [("k", number) for number in range(2 * AT_ONCE + 1)]
    for key in keys:
        store.put(key, key[1])
    watcher = await store.watchers.watch_keys(keys)
    parts = [await soon(watcher.next()) for _ in range(3)]
    assert [len(part) for part in parts] == [AT_ONCE, AT_ONCE, 1]
    assert [key for part in parts for key, _ in seen(part)] == keys


# Expiry ----------------------------------------------------------------------------------------------------


async def test_an_entry_that_expires_is_told_at_that_time() -> None:
    store = Store()
    store.put(A, 1, seconds=10)
    store.put(B, 2, seconds=20)
    watcher = await store.watchers.watch_keys([A, B], initial=False)
    change = asyncio.create_task(watcher.next())
    store.timers.advance(9.999)
    await rest()
    assert not change.done()
    store.timers.advance(0.001)
    assert seen(await soon(change)) == [(A, ...)]
    store.timers.advance(10)
    assert seen(await soon(watcher.next())) == [(B, ...)]
    assert store.timers.armed == 0


async def test_an_entry_that_is_written_again_lives_on() -> None:
    store = Store()
    store.put(A, 1, seconds=10)
    watcher = await store.watchers.watch_keys([A], initial=False)
    store.put(A, 2)
    assert seen(await soon(watcher.next())) == [(A, 2)]
    assert store.timers.armed == 0


async def test_a_store_whose_clock_is_behind_is_asked_again_until_the_entry_is_gone() -> None:
    store = Store()
    store.behind = 2
    store.put(A, 1, seconds=10)
    watcher = await store.watchers.watch_keys([A], initial=False)
    change = asyncio.create_task(watcher.next())
    store.timers.advance(10)
    for _ in range(40):
        await rest()
        store.timers.advance(0.1)
    assert seen(await soon(change)) == [(A, ...)]
    assert len(store.reads) < 20


# Failures and bounds ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("failure", [EngineFailure("away"), Overloaded("too many reads wait")])
async def test_a_watcher_outlives_a_store_that_is_away_or_busy(failure: HarkError) -> None:
    store = Store()
    watcher = await store.watchers.watch_keys([A], initial=False)
    store.failure = failure
    store.put(A, 1)
    change = asyncio.create_task(watcher.next())
    await rest()
    assert not change.done()
    store.failure = None
    store.timers.advance(1)
    assert seen(await soon(change)) == [(A, 1)]


async def test_a_watcher_that_can_not_begin_is_not_kept() -> None:
    store = Store()
    store.failure = EngineFailure("away")
    with pytest.raises(EngineFailure):
        await store.watchers.watch_keys([A], initial=False)
    assert len(store.watchers) == 0


async def test_there_are_so_many_watchers_and_no_more() -> None:
    store = Store(most=2)
    first = await store.watchers.watch_keys([A])
    await store.watchers.watch_prefix(A, 10)
    with pytest.raises(Overloaded, match=r"limits\.max_streams"):
        await store.watchers.watch_keys([B])
    first.close()
    await store.watchers.watch_keys([B])


async def test_closed_watchers_leave_nothing_behind() -> None:
    store = Store(polls=True)
    store.put(A, 1, seconds=10)
    watchers = [await store.watchers.watch_keys([A, B], initial=False), await store.watchers.watch_prefix(("p",), 10)]
    for watcher in watchers:
        watcher.close()
        watcher.close()
    assert len(store.watchers) == 0
    assert store.timers.armed == 0
    assert (store.watchers._by_key, store.watchers._by_prefix) == ({}, {})


async def test_a_server_that_stops_ends_all_watchers_and_takes_no_more() -> None:
    store = Store()
    waiting = asyncio.create_task((await store.watchers.watch_keys([A])).next())
    await rest()
    store.watchers.close()
    assert await soon(waiting) == ()
    with pytest.raises(Unavailable):
        await store.watchers.watch_keys([A])


# Polls -----------------------------------------------------------------------------------------------------


async def test_where_others_write_too_it_looks_now_and_then_and_ever_more_seldom() -> None:
    store = Store(polls=True)
    watcher = await store.watchers.watch_keys([A], initial=False)
    store.reads.clear()
    change = asyncio.create_task(watcher.next())
    for _ in range(200):
        store.timers.advance(0.05)
        await rest()
    assert 5 < len(store.reads) < 20, store.reads
    store.put(A, 1, tell=False)
    store.timers.advance(1)
    assert seen(await soon(change)) == [(A, 1)]


async def test_a_client_that_reads_nothing_does_not_keep_others_from_being_polled() -> None:
    store = Store(polls=True, most=100)
    for _ in range(50):
        await store.watchers.watch_keys([B])
    watcher = await store.watchers.watch_keys([A], initial=False)
    change = asyncio.create_task(watcher.next())
    store.put(A, 1, tell=False)
    store.timers.advance(1)
    assert seen(await soon(change)) == [(A, 1)]


# Long polls ------------------------------------------------------------------------------------------------


async def test_a_long_poll_answers_at_once_if_its_client_knows_an_older_version() -> None:
    store = Store()
    old = store.put(A, 1)
    store.put(A, 2)
    watcher = await store.watchers.watch_keys([A], {encode_key(A): Shown(A, old)})
    assert seen(await soon(store.watchers.first_changes(watcher, 60))) == [(A, 2)]
    assert watcher.closed


async def test_a_long_poll_waits_for_the_change_or_for_its_time() -> None:
    store = Store()
    known = {encode_key(A): Shown(A, store.put(A, 1))}
    poll = asyncio.create_task(store.watchers.first_changes(await store.watchers.watch_keys([A, B], known), 60))
    await rest()
    store.remove(A)
    assert seen(await soon(poll)) == [(A, ...)]
    poll = asyncio.create_task(store.watchers.first_changes(await store.watchers.watch_keys([A, B]), 60))
    await rest()
    store.timers.advance(60)
    assert await soon(poll) == ()
    assert store.timers.armed == 0
    assert len(store.watchers) == 0


async def test_a_poll_that_does_not_wait_answers_what_there_is() -> None:
    store = Store()
    assert await soon(store.watchers.first_changes(await store.watchers.watch_keys([A]), 0)) == []
    store.put(A, 1)
    assert seen(await soon(store.watchers.first_changes(await store.watchers.watch_keys([A]), 0))) == [(A, 1)]
