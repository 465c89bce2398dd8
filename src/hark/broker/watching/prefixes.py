"""One client that watches what is below a prefix, as far as its limit goes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hark.broker.watching.watcher import Change, Keeper, Shown, Watcher
from hark.keys import encode_key
from hark.model import Key, KeyRange


class PrefixWatcher(Watcher):
    """Watches the first `limit` keys below a prefix.

    A key that is written is read alone. All are listed at the start, when nobody says what changed, and when one of a
    full window is gone, because then the next one behind it comes into view. A key that others push out of the window
    is no longer watched; it is not told as removed.
    """

    def __init__(self, keeper: Keeper, prefix: Key, limit: int, shown: Mapping[bytes, Shown]) -> None:
        super().__init__(keeper, shown)
        self.prefix = prefix
        self._limit = limit
        self._edge: bytes | None = None
        """The last key of a full window; None: all there is is in view."""
        self._behind = True
        """All have to be listed."""

    def tell(self, identity: bytes, key: Key) -> None:
        """A key below the prefix was written or removed."""
        if self._behind or (self._edge is not None and identity > self._edge):
            return
        self._told[identity] = key
        if len(self._told) > self._limit:
            self._behind = True
            self._told.clear()
        self._news.set()

    def tell_all(self) -> None:
        """Any key below the prefix may have been."""
        self._behind = True
        self._told.clear()
        self._news.set()

    @property
    def _must_look(self) -> bool:
        return self._behind or bool(self._told)

    async def _look(self) -> Sequence[Change]:
        if self._behind:
            return await self._list()
        changes = await super()._look()
        if self._edge is not None and any(change.entry is None for change in changes):
            self._behind = True
        if len(self.shown) > self._limit:
            for identity in sorted(self.shown)[self._limit :]:
                self._drop(identity)
        self._find_edge()
        self._set_timer()
        return [change for change in changes if change.entry is None or encode_key(change.key) in self.shown]

    async def _list(self) -> Sequence[Change]:
        # From now on it is told again: of what is written while it lists.
        self._behind = False
        self._edge = None
        try:
            entries = await self._keeper.fetch_range(KeyRange(prefix=self.prefix, limit=self._limit))
        except BaseException:
            self.tell_all()
            raise
        listed = {encode_key(entry.key): entry for entry in entries}
        edge = max(listed) if len(listed) >= self._limit else None
        changes = []
        for identity in [identity for identity in self.shown if identity not in listed]:
            key = self.shown[identity].key
            self._drop(identity)
            if edge is None or identity < edge:
                changes.append(Change(key, None))
        for identity, entry in listed.items():
            if (change := self._compare(identity, entry.key, entry)) is not None:
                changes.append(change)
        self._find_edge()
        self._set_timer()
        return changes

    def _find_edge(self) -> None:
        self._edge = max(self.shown) if len(self.shown) >= self._limit else None
