"""What is due when, in ticks: things that are due together come up together."""

from __future__ import annotations

from collections.abc import Hashable
from heapq import heappop, heappush
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


class Agenda(Generic[K]):
    """Keys by the tick at which they are due, the end of the tick that their time falls into.

    Only ticks are in the heap and each of them once, so that moving a key costs a look into two dicts.
    """

    def __init__(self, tick: int) -> None:
        self._tick = tick
        """Its length in microseconds."""
        self._keys: dict[int, dict[K, None]] = {}
        """By tick, in the order in which they were put there."""
        self._ticks: list[int] = []
        """A heap; a tick whose keys were all removed stays until it is the first."""
        self._tick_of: dict[K, int] = {}

    def __len__(self) -> int:
        return len(self._tick_of)

    def put(self, key: K, due: int) -> None:
        """Note a key, or move it to another tick."""
        tick = -(-due // self._tick) * self._tick
        noted = self._tick_of.get(key)
        if noted == tick:
            return
        if noted is not None:
            del self._keys[noted][key]
        keys = self._keys.get(tick)
        if keys is None:
            keys = self._keys[tick] = {}
            heappush(self._ticks, tick)
        keys[key] = None
        self._tick_of[key] = tick

    def remove(self, key: K) -> None:
        """Forget a key, if it is noted."""
        tick = self._tick_of.pop(key, None)
        if tick is not None:
            del self._keys[tick][key]

    def next_due(self) -> int | None:
        """The time of the first tick with a key; None: there is no key."""
        while self._ticks and not self._keys[self._ticks[0]]:
            del self._keys[heappop(self._ticks)]
        return self._ticks[0] if self._ticks else None

    def take(self, now: int) -> list[K]:
        """Give out the keys that are due, and forget them."""
        taken: list[K] = []
        while self._ticks and self._ticks[0] <= now:
            taken += self._keys.pop(heappop(self._ticks))
        for key in taken:
            del self._tick_of[key]
        return taken
