"""Watching keys and prefixes of a store in a dict: what is told, what is read, what is left behind, and when."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from typing import TypeVar, cast

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hark.broker.keyvalue import AT_ONCE, Change, KeyValue, PrefixWatcher, Shown, Watchers
from hark.clock import SECOND
from hark.errors import EngineFailure, HarkError, Overloaded, Unavailable
from hark.keys import encode_key, prefix_bounds
from hark.model import Key, KeyEntry, KeyNotification, KeyRange
from hark.settings import Fallback, Limits, Settings
from hark.testing.server import FakeTimers

T = TypeVar("T")


class Store:
    """Entries, the watchers that are told of them, and how often they were read."""

    def __init__(self, *, most: int = 10, polls: bool = False) -> None:
        self.timers = FakeTimers()
        self.entries: dict[bytes, KeyEntry] = {}
        self.reads: list[int] = []
        """How many entries each call asked for; a listing counts as its limit, below 0."""
        self.failure: HarkError | None = None
        self.behind = 0.0
        """Seconds that the store's clock is behind."""
        settings = Settings(limits=Limits(max_streams=most), fallback=Fallback(initial_ms=100, max_ms=1000, jitter=0))
        self.watchers = Watchers(cast("KeyValue", self), settings, self.timers, lambda: 0.5, polls=polls)
        self._version = 0

    # What is watched ---------------------------------------------------------------------------------------

    async def fetch(self, keys: Sequence[Key]) -> list[KeyEntry | None]:
        """Read keys."""
        self.reads.append(len(keys))
        await self._work()
        return [self._live().get(encode_key(key)) for key in keys]

    async def fetch_range(self, wanted: KeyRange) -> list[KeyEntry]:
        """List a prefix."""
        self.reads.append(-wanted.limit)
        await self._work()
        low, high = prefix_bounds(wanted.prefix)
        found = [entry for identity, entry in sorted(self._live().items()) if low <= identity < high]
        return found[: wanted.limit]

    def open(self, entry: KeyEntry) -> KeyEntry:
        """Nothing is sealed here."""
        return entry

    async def _work(self) -> None:
        await asyncio.sleep(0)
        if self.failure is not None:
            raise self.failure

    def _live(self) -> dict[bytes, KeyEntry]:
        now = self.timers.now() - round(self.behind * SECOND)
        return {
            identity: entry
            for identity, entry in self.entries.items()
            if entry.expires_at is None or entry.expires_at > now
        }

    # What happens to it ------------------------------------------------------------------------------------

    def put(self, key: Key, value: object = None, *, seconds: float | None = None, notify: bool = True) -> int:
        """Write a key, for ever or for so many seconds; its version."""
        self._version += 1
        expires_at = None if seconds is None else self.timers.now() + round(seconds * SECOND)
        entry = KeyEntry(key, msgspec.Raw(msgspec.json.encode(value)), self._version, expires_at)
        self.entries[encode_key(key)] = entry
        if notify:
            self.watchers.notify(KeyNotification((key,)))
        return self._version

    def remove(self, *keys: Key, notify: bool = True) -> None:
        """Remove keys."""
        for key in keys:
            self.entries.pop(encode_key(key), None)
        if notify:
            self.watchers.notify(KeyNotification(keys))


async def soon(work: Awaitable[T]) -> T:
    """What should come at once."""
    return await asyncio.wait_for(work, 5)


async def rest() -> None:
    """Let everything run that can run without time passing."""
    for _ in range(20):
        await asyncio.sleep(0)


def seen(changes: Sequence[Change]) -> list[tuple[Key, object]]:
    """Keys with their values, and with `...` where they are gone."""
    return [
        (change.key, ... if change.entry is None else msgspec.json.decode(change.entry.value)) for change in changes
    ]


# Watching certain keys: what is told, what is read, and what is left behind --------------------------------


A: Key = ("a",)
B: Key = ("b", 1)
P: Key = ("p",)


@pytest.fixture
async def store() -> Store:
    return Store()


@pytest.mark.parametrize("initial", [True, False])
async def test_what_is_there_is_shown_first_if_it_is_requested_and_then_each_change(
    store: Store, initial: bool
) -> None:
    store.put(A, 1)
    watcher = await store.watchers.watch_keys([A, B], initial=initial)
    if initial:
        assert seen(await soon(watcher.next())) == [(A, 1)]
    change = asyncio.create_task(watcher.next())
    await rest()
    assert not change.done()
    store.put(B, 2)
    assert seen(await soon(change)) == [(B, 2)]
    store.remove(A)
    assert seen(await soon(watcher.next())) == [(A, ...)]


async def test_without_changes_nothing_is_read_and_many_writes_of_a_key_are_one_change(store: Store) -> None:
    watcher = await store.watchers.watch_keys([A], initial=False)
    store.reads.clear()
    waiting = asyncio.create_task(watcher.next())
    store.put(("other",), 1)
    store.put((*A, "below"), 1)
    store.timers.advance(3600)
    await rest()
    assert not waiting.done()
    assert store.reads == []
    store.put(A, "first")
    assert seen(await soon(waiting)) == [(A, "first")]
    for number in range(1000):  # For a client that reads slowly they are one change.
        store.put(A, number)
    assert seen(await soon(watcher.next())) == [(A, 999)]
    assert store.reads == [1, 1]
    waiting = asyncio.create_task(watcher.next())
    await rest()
    watcher.close()
    assert await soon(waiting) == ()


async def test_a_key_that_was_removed_and_written_again_has_changed(store: Store) -> None:
    store.put(A, 1)
    watcher = await store.watchers.watch_keys([A], initial=False)
    store.remove(A)
    store.put(A, 1)
    assert seen(await soon(watcher.next())) == [(A, 1)]
    store.put(A, 2, notify=False)
    store.watchers.notify(KeyNotification(None))  # HintKind of any key make every watcher look.
    assert seen(await soon(watcher.next())) == [(A, 2)]


async def test_keys_that_python_takes_for_equal_are_distinguished(store: Store) -> None:
    watcher = await store.watchers.watch_keys([("n", 1)], initial=False)
    waiting = asyncio.create_task(watcher.next())
    store.put(("n", True), "yes")
    store.put(("n", "1"), "text")
    await rest()
    assert not waiting.done()
    store.put(("n", 1.0), "number")
    assert seen(await soon(waiting)) == [(("n", 1), "number")]


async def test_many_keys_are_read_in_parts(store: Store) -> None:
    keys: list[Key] = [("k", number) for number in range(2 * AT_ONCE + 1)]
    for key in keys:
        store.put(key, key[1])
    watcher = await store.watchers.watch_keys(keys)
    parts = [await soon(watcher.next()) for _ in range(3)]
    assert [len(part) for part in parts] == [AT_ONCE, AT_ONCE, 1]
    assert [key for part in parts for key, _ in seen(part)] == keys


async def test_an_entry_that_expires_is_notified_at_that_time_to_those_of_its_key_and_of_its_prefix(
    store: Store,
) -> None:
    store.put(below(1), 1, seconds=10)
    below_it = await watching(store)
    gone = asyncio.create_task(below_it.next())
    store.put(A, 1, seconds=10)
    store.put(B, 2, seconds=20)
    watcher = await store.watchers.watch_keys([A, B], initial=False)
    change = asyncio.create_task(watcher.next())
    store.timers.advance(9.999)
    await rest()
    assert not change.done()
    assert not gone.done()
    store.timers.advance(0.001)
    assert seen(await soon(change)) == [(A, ...)]
    assert seen(await soon(gone)) == [(below(1), ...)]
    store.timers.advance(10)
    assert seen(await soon(watcher.next())) == [(B, ...)]
    assert store.timers.armed == 0
    for seconds in (10, None):  # What is written again lives on.
        store.put(A, seconds, seconds=seconds)
        assert seen(await soon(watcher.next())) == [(A, seconds)]
    assert store.timers.armed == 0


async def test_a_store_whose_clock_is_behind_is_requested_again_until_the_entry_is_gone(store: Store) -> None:
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
async def test_a_watcher_outlives_a_store_that_is_away_or_busy(store: Store, failure: HarkError) -> None:
    watcher = await store.watchers.watch_keys([A], initial=False)
    store.failure = failure
    store.put(A, 1)
    change = asyncio.create_task(watcher.next())
    await rest()
    assert not change.done()
    store.failure = None
    store.timers.advance(1)
    assert seen(await soon(change)) == [(A, 1)]


async def test_there_are_so_many_watchers_and_no_more_and_one_that_can_not_begin_is_not_kept() -> None:
    store = Store(most=2)
    store.failure = EngineFailure("away")
    with pytest.raises(EngineFailure):
        await store.watchers.watch_keys([A], initial=False)
    assert len(store.watchers) == 0
    store.failure = None
    first = await store.watchers.watch_keys([A])
    await store.watchers.watch_prefix(A, 10)
    with pytest.raises(Overloaded, match=r"limits\.max_streams"):
        await store.watchers.watch_keys([B])
    first.close()
    await store.watchers.watch_keys([B])


async def test_closed_watchers_leave_nothing_behind_and_a_server_that_stops_ends_all_and_takes_no_more() -> None:
    store = Store(polls=True)
    store.put(A, 1, seconds=10)
    watchers = [await store.watchers.watch_keys([A, B], initial=False), await store.watchers.watch_prefix(("p",), 10)]
    for watcher in watchers:
        watcher.close()
        watcher.close()
    waiting = asyncio.create_task((await store.watchers.watch_keys([B])).next())
    await rest()
    store.watchers.close()
    assert await soon(waiting) == ()
    with pytest.raises(Unavailable):
        await store.watchers.watch_keys([A])
    assert len(store.watchers) == 0
    assert store.timers.armed == 0
    assert (store.watchers._by_key, store.watchers._by_prefix) == ({}, {})


async def test_where_others_write_too_it_looks_now_and_then_and_ever_more_seldom() -> None:
    store = Store(polls=True, most=100)
    watcher = await store.watchers.watch_keys([A], initial=False)
    store.reads.clear()
    change = asyncio.create_task(watcher.next())
    for _ in range(200):
        store.timers.advance(0.05)
        await rest()
    assert 5 < len(store.reads) < 20, store.reads
    for _ in range(50):  # Clients that read nothing do not keep others from being polled.
        await store.watchers.watch_keys([B])
    store.put(A, 1, notify=False)
    store.timers.advance(1)
    assert seen(await soon(change)) == [(A, 1)]


# Long polls ------------------------------------------------------------------------------------------------


async def test_a_long_poll_answers_at_once_if_its_client_knows_an_older_version_or_does_not_wait(store: Store) -> None:
    assert await soon(store.watchers.first_changes(await store.watchers.watch_keys([A]), 0)) == []
    old = store.put(A, 1)
    assert seen(await soon(store.watchers.first_changes(await store.watchers.watch_keys([A]), 0))) == [(A, 1)]
    store.put(A, 2)
    watcher = await store.watchers.watch_keys([A], {encode_key(A): Shown(A, old)})
    assert seen(await soon(store.watchers.first_changes(watcher, 60))) == [(A, 2)]
    assert watcher.closed


async def test_a_long_poll_waits_for_the_change_or_for_its_time(store: Store) -> None:
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


# Watching what is below a prefix: its window, what it reads, and that it agrees with the store in the ------


def below(number: int) -> Key:
    """A key below the prefix."""
    return ("p", number)


async def watching(store: Store, limit: int = 10, *, initial: bool = False) -> PrefixWatcher:
    """A watcher that has seen what is there."""
    watcher = await store.watchers.watch_prefix(P, limit, initial=initial)
    store.reads.clear()
    return watcher


async def test_descendants_are_notified_by_their_types_and_neither_the_prefix_nor_its_siblings(store: Store) -> None:
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
    keys: list[Key] = [("p", 1), ("p", True), ("p", "1"), ("p", 1.5)]
    for key in keys:
        store.put(key, "x")
    await soon(watcher.next())
    store.remove(*keys)
    gone = seen(await soon(watcher.next()))
    assert sorted(map(repr, gone)) == sorted(repr((key, ...)) for key in keys), "with the types of their parts"


async def test_keys_behind_a_full_window_are_not_notified_and_not_read_until_they_come_into_it(store: Store) -> None:
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
    store.remove(below(0))
    assert seen(await soon(watcher.next())) == [(below(0), ...)]
    assert seen(await soon(watcher.next())) == [(below(2), "pushed out of the window")], "it comes into it again"


async def test_a_write_costs_the_reading_of_one_key_and_a_flood_of_keys_is_listed_instead(store: Store) -> None:
    for number in range(4):
        store.put(below(number), "old")
    watcher = await watching(store, limit=5)
    store.put(below(3), "new")
    assert seen(await soon(watcher.next())) == [(below(3), "new")]
    assert store.reads == [1]
    store.reads.clear()
    for number in range(100):
        store.put(below(number), number)
    assert seen(await soon(watcher.next())) == [(below(number), number) for number in range(5)]
    assert store.reads == [-5]


async def test_a_poll_notices_what_is_gone_and_of_what_is_new(store: Store) -> None:
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
        for pushed_out in sorted(known)[limit:]:  # They are no longer watched, and not told as gone.
            del known[pushed_out]

    for number, (step, key, notify) in enumerate(steps):
        if step.startswith("put"):
            store.put(below(key), number, seconds=1 if step != "put" else None, notify=notify)
        elif step == "remove":
            store.remove(below(key), notify=notify)
        elif step == "any":
            store.watchers.notify(KeyNotification(None))
        elif step == "later":
            store.timers.advance(0.5)
        else:
            learn(await watcher.so_far())
    store.watchers.notify(KeyNotification(None))  # What was not told is found by the poll.
    learn(await watcher.so_far())
    window = await store.fetch_range(KeyRange(prefix=P, limit=limit))
    assert known == {encode_key(entry.key): msgspec.json.decode(entry.value) for entry in window}
