"""Watching what is below a prefix: its window, what it reads, and that it agrees with the store in the end."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from hark.broker.watching.prefixes import PrefixWatcher
from hark.broker.watching.watcher import Change, Shown
from hark.keys import encode_key
from hark.model import Key, KeyNews, KeyRange
from tests.broker.watching.store import Store, rest, seen, soon

P: Key = ("p",)


def below(number: int) -> Key:
    """A key below the prefix."""
    return ("p", number)


async def watching(store: Store, limit: int = 10, *, initial: bool = False) -> PrefixWatcher:
    """A watcher that has seen what is there."""
    watcher = await store.watchers.watch_prefix(P, limit, initial=initial)
    store.reads.clear()
    return watcher


async def test_descendants_are_told_and_neither_the_prefix_nor_its_siblings() -> None:
    store = Store()
    store.put(below(1), "old")
    watcher = await watching(store, initial=True)
    assert seen(await soon(watcher.next())) == [(below(1), "old")]
    change = asyncio.create_task(watcher.next())
    for key in (P, ("pp", 1), ("p2",), ("q", "p", 1)):
        store.put(key, "other")
    await rest()
    assert not change.done()
    store.put(("p", "x", True, 2.5), "deep")
    assert seen(await soon(change)) == [(("p", "x", True, 2.5), "deep")]


async def test_a_write_costs_the_reading_of_one_key() -> None:
    store = Store()
    for number in range(10):
        store.put(below(number), number)
    watcher = await watching(store, limit=10)
    store.put(below(3), "new")
    assert seen(await soon(watcher.next())) == [(below(3), "new")]
    assert store.reads == [1]


async def test_removed_keys_are_told_with_the_types_of_their_parts() -> None:
    store = Store()
    keys: list[Key] = [("p", 1), ("p", True), ("p", "1"), ("p", 1.5)]
    for key in keys:
        store.put(key, "x")
    watcher = await watching(store)
    store.remove(*keys)
    gone = seen(await soon(watcher.next()))
    assert sorted(map(repr, gone)) == sorted(repr((key, ...)) for key in keys)


async def test_keys_behind_a_full_window_are_not_told_and_not_read() -> None:
    store = Store()
    for number in range(3):
        store.put(below(number), number)
    watcher = await watching(store, limit=3)
    change = asyncio.create_task(watcher.next())
    store.put(below(7), 7)
    await rest()
    assert not change.done()
    assert store.reads == []
    store.put(below(-1), -1)
    assert seen(await soon(change)) == [(below(-1), -1)]
    store.put(below(2), "pushed out of the window")
    store.put(below(1), "still in it")
    assert seen(await soon(watcher.next())) == [(below(1), "still in it")]


async def test_a_key_that_comes_into_the_window_is_told() -> None:
    store = Store()
    for number in range(4):
        store.put(below(number), number)
    watcher = await watching(store, limit=3)
    store.remove(below(0))
    assert seen(await soon(watcher.next())) == [(below(0), ...)]
    assert seen(await soon(watcher.next())) == [(below(3), 3)]


async def test_a_flood_of_keys_is_listed_instead() -> None:
    store = Store()
    watcher = await watching(store, limit=5)
    for number in range(100):
        store.put(below(number), number)
    assert seen(await soon(watcher.next())) == [(below(number), number) for number in range(5)]
    assert store.reads == [-5]


async def test_a_key_that_expires_is_told_at_that_time() -> None:
    store = Store()
    store.put(below(1), 1, seconds=5)
    watcher = await watching(store)
    change = asyncio.create_task(watcher.next())
    store.timers.advance(4.999)
    await rest()
    assert not change.done()
    store.timers.advance(0.001)
    assert seen(await soon(change)) == [(below(1), ...)]


async def test_a_poll_hears_of_what_is_gone_and_of_what_is_new() -> None:
    store = Store()
    shown = {encode_key(key): Shown(key, store.put(key, 1)) for key in (below(1), below(2))}
    store.remove(below(1))
    store.put(below(3), 3)
    watcher = await store.watchers.watch_prefix(P, 10, shown)
    assert seen(await soon(store.watchers.first_changes(watcher, 0))) == [(below(1), ...), (below(3), 3)]
    assert [one.key for one in watcher.shown.values()] == [below(2), below(3)]


_steps = st.lists(
    st.tuples(
        st.sampled_from(["put", "put for a second", "remove", "any", "look", "later"]), st.integers(0, 7), st.booleans()
    ),
    max_size=40,
)


@given(steps=_steps, limit=st.integers(1, 5))
def test_whatever_happens_a_client_that_follows_the_changes_knows_the_window_in_the_end(
    steps: Sequence[tuple[str, int, bool]], limit: int
) -> None:
    asyncio.run(_follow(steps, limit))


async def _follow(steps: Sequence[tuple[str, int, bool]], limit: int) -> None:
    store = Store()
    watcher = await store.watchers.watch_prefix(P, limit)
    known: dict[bytes, object] = {}

    def learn(changes: Sequence[Change]) -> None:
        for change in changes:
            if change.entry is None:
                assert known.pop(encode_key(change.key), ...) is not ..., "only what was shown can be gone"
            else:
                known[encode_key(change.key)] = msgspec.json.decode(change.entry.value)

    for number, (step, key, tell) in enumerate(steps):
        if step.startswith("put"):
            store.put(below(key), number, seconds=1 if step != "put" else None, tell=tell)
        elif step == "remove":
            store.remove(below(key), tell=tell)
        elif step == "any":
            store.watchers.tell(KeyNews(None))
        elif step == "later":
            store.timers.advance(0.5)
        else:
            learn(await watcher.so_far())
    store.watchers.tell(KeyNews(None))  # What was not told is found by the poll.
    learn(await watcher.so_far())
    window = await store.fetch_range(KeyRange(prefix=P, limit=limit))
    last = encode_key(window[-1].key) if len(window) == limit else None
    in_window = {identity: value for identity, value in known.items() if last is None or identity <= last}
    assert in_window == {encode_key(entry.key): msgspec.json.decode(entry.value) for entry in window}
