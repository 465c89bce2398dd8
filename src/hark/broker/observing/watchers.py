"""Clients that receive every sample."""

from __future__ import annotations

import asyncio

import msgspec

from hark.broker.observing.samples import Sample
from hark.errors import Overloaded, Unavailable


class Watcher:
    """One of them; who is slow misses samples, and gets the latest."""

    def __init__(self, watchers: Watchers, first: Sample | None) -> None:
        self._watchers = watchers
        self._next = first
        self._came = asyncio.Event()
        self._closed = False
        if first is not None:
            self._came.set()

    async def next(self) -> Sample | None:
        """The next sample, or None when there will be no more."""
        await self._came.wait()
        sample, self._next = self._next, None
        if not self._closed:
            self._came.clear()
        return None if self._closed else sample

    def tell(self, sample: Sample) -> None:
        """There is a new one."""
        if self._next is not None:  # What changed in a sample that is never seen is not named in this one.
            sample = msgspec.structs.replace(sample, more=True)
        self._next = sample
        self._came.set()

    def close(self) -> None:
        """It wants no more."""
        self._closed = True
        self._came.set()
        self._watchers.forget(self)


class Watchers:
    """All of them, no more than a number."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._all: set[Watcher] = set()
        self._closed = False

    def __len__(self) -> int:
        return len(self._all)

    def open(self, first: Sample | None) -> Watcher:
        """A new one, who gets what is known now at once."""
        if self._closed:
            raise Unavailable("the server is shutting down; retry", code="stopping")
        if len(self._all) >= self._most:
            raise Overloaded(
                f"{len(self._all)} clients already watch this server; retry later or raise limits.max_streams",
                code="too_many_streams",
            )
        watcher = Watcher(self, first)
        self._all.add(watcher)
        return watcher

    def forget(self, watcher: Watcher) -> None:
        """One is gone."""
        self._all.discard(watcher)

    def tell(self, sample: Sample) -> None:
        """Send a sample to all watchers."""
        for watcher in self._all:
            watcher.tell(sample)

    def close(self) -> None:
        """There will be no more samples."""
        self._closed = True
        for watcher in list(self._all):
            watcher.close()
