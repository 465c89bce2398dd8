"""One client that watches keys: it is notified of keys that may have changed, and reads them."""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

from hark.broker.timers import Timer, Timers
from hark.clock import MILLISECOND, SECOND
from hark.errors import Overloaded, Unavailable
from hark.model import Key, KeyEntry, KeyRange

log = logging.getLogger(__name__)

AT_ONCE = 100
"""Keys that are read together at most: a client that does not read should not hold many values."""
_RETRY = SECOND


class Change(NamedTuple):
    """A key whose entry is another one now; None: there is none any more."""

    key: Key
    entry: KeyEntry | None


class Shown(NamedTuple):
    """What a client knows of a key."""

    key: Key
    version: int


class Keeper(Protocol):
    """What a watcher needs of all watchers and of the store."""

    timers: Timers

    async def fetch(self, keys: Sequence[Key]) -> list[KeyEntry | None]:
        """Entries as they are stored."""

    async def fetch_range(self, wanted: KeyRange) -> list[KeyEntry]:
        """A page of entries as they are stored."""

    def open(self, entry: KeyEntry) -> KeyEntry:
        """An entry with a readable value."""

    def forget(self, watcher: Watcher) -> None:
        """A watcher is closed."""

    def missed(self, watcher: Watcher) -> None:
        """A watcher saw a change that it was not told of."""


class Watcher(ABC):
    """Notified of keys by their bytes. A changed key that was not read yet is kept once."""

    def __init__(self, keeper: Keeper, shown: Mapping[bytes, Shown]) -> None:
        self.closed = False
        self.polled = False
        """Whether it looks because of a timer, not because of a notification."""
        self.shown = dict(shown)
        """What its client knows."""
        self._keeper = keeper
        self._told: dict[bytes, Key] = {}
        """Keys that may have changed, the one told first first."""
        self._due: dict[bytes, int] = {}
        """When to read keys without a notification, because their entries expire."""
        self._news = asyncio.Event()
        self._timer: Timer | None = None
        self._rings_at = 0

    @abstractmethod
    def tell(self, identity: bytes, key: Key) -> None:
        """A key was written or removed."""

    @abstractmethod
    def tell_all(self) -> None:
        """Any key may have been."""

    @property
    @abstractmethod
    def _must_look(self) -> bool:
        """Whether there is something that it has not read yet."""

    async def skip(self) -> None:
        """Take what is there now as known."""
        while self._must_look and not self.closed:
            await self._look()

    async def so_far(self) -> Sequence[Change]:
        """The changes by now, with readable values; maybe none."""
        changes: list[Change] = []
        while self._must_look and not self.closed:
            changes += await self._look()
        return self._readable(changes)

    async def next(self) -> Sequence[Change]:
        """Changes with readable values, as soon as there are some; nothing when the watcher is closed."""
        while not self.closed:
            self._news.clear()
            changes: Sequence[Change] = ()
            if self._must_look:
                try:
                    changes = await self._look()
                except (Unavailable, Overloaded) as failure:
                    log.debug("a watcher tries again later: %s", failure)
                    self._keeper.timers.at(self._keeper.timers.now() + _RETRY, self._news.set)
                    await self._news.wait()
                    continue
            polled, self.polled = self.polled, False
            if changes:
                if polled:
                    self._keeper.missed(self)
                return self._readable(changes)
            if not self._must_look:
                await self._news.wait()
        return ()

    def close(self) -> None:
        """Watch no more."""
        if not self.closed:
            self.closed = True
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            self._keeper.forget(self)
            self._news.set()

    def _readable(self, changes: Sequence[Change]) -> Sequence[Change]:
        return [
            Change(change.key, None if change.entry is None else self._keeper.open(change.entry)) for change in changes
        ]

    async def _look(self) -> Sequence[Change]:
        """Read some of the changed keys, and compare them with the state of the client."""
        read = dict(list(self._told.items())[:AT_ONCE])
        for identity in read:
            del self._told[identity]
        try:
            entries = await self._keeper.fetch(list(read.values()))
        except BaseException:  # Nothing was seen: it has to look again.
            self._told = read | self._told
            raise
        changes = [
            change
            for (identity, key), entry in zip(read.items(), entries, strict=True)
            if (change := self._compare(identity, key, entry)) is not None
        ]
        self._set_timer()
        return changes

    def _compare(self, identity: bytes, key: Key, entry: KeyEntry | None) -> Change | None:
        shown = self.shown.get(identity)
        if entry is None:
            self._drop(identity)
            return None if shown is None else Change(key, None)
        self._note_expiry(identity, entry.expires_at)
        if shown is not None and shown.version == entry.version:
            return None
        self.shown[identity] = Shown(entry.key, entry.version)
        return Change(entry.key, entry)

    def _drop(self, identity: bytes) -> None:
        self.shown.pop(identity, None)
        self._due.pop(identity, None)

    def _note_expiry(self, identity: bytes, expires_at: int | None) -> None:
        if expires_at is None:
            self._due.pop(identity, None)
            return
        # An entry that is there although its time is over by our clock: that of the store is behind by some more.
        late = self._keeper.timers.now() - expires_at
        self._due[identity] = expires_at if late < 0 else expires_at + late + min(late + MILLISECOND, SECOND)

    def _set_timer(self) -> None:
        due = min(self._due.values(), default=None)
        if self._timer is not None:
            if due == self._rings_at:
                return
            self._timer.cancel()
            self._timer = None
        if due is not None and not self.closed:
            self._rings_at = due
            self._timer = self._keeper.timers.at(due, self._ring)

    def _ring(self) -> None:
        self._timer = None
        now = self._keeper.timers.now()
        for identity in [identity for identity, due in self._due.items() if due <= now]:
            del self._due[identity]
            self.tell(identity, self.shown[identity].key)
        self._set_timer()


class KeyWatcher(Watcher):
    """Watches certain keys."""

    def __init__(self, keeper: Keeper, keys: Mapping[bytes, Key], shown: Mapping[bytes, Shown]) -> None:
        super().__init__(keeper, shown)
        self.keys = keys
        self.tell_all()

    def identities(self) -> Iterable[bytes]:
        """The bytes of its keys."""
        return self.keys

    def tell(self, identity: bytes, key: Key) -> None:
        """One of its keys was written or removed."""
        self._told[identity] = key
        self._news.set()

    def tell_all(self) -> None:
        """Any of its keys may have been."""
        self._told |= self.keys
        self._news.set()

    @property
    def _must_look(self) -> bool:
        return bool(self._told)
