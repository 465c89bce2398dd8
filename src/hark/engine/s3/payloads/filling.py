"""Puts payloads where the tables only say where they are."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import msgspec

from hark.engine.s3.payloads.cache import PayloadCache
from hark.engine.s3.payloads.place import Place
from hark.engine.sqlite.rows import Elsewhere
from hark.errors import HarkError

Fetch = Callable[[Sequence[Place]], Awaitable[list[bytes]]]


class Filler:
    """Asks the cache first, as that takes no turn of another thread."""

    def __init__(self, cache: PayloadCache, fetch: Fetch) -> None:
        self._cache = cache
        self._fetch = fetch

    async def fill(self, items: Sequence[msgspec.Struct]) -> None:
        """Fill in the payloads of these. Raises `EngineFailure` when one can't be had."""
        missing: list[tuple[msgspec.Struct, Place]] = []
        for item in items:
            where = getattr(item, "payload", None)
            if isinstance(where, Elsewhere):
                place = Place(*where)
                cached = self._cache.get(place)
                if cached is None:
                    missing.append((item, place))
                else:
                    _set(item, cached)
        if missing:
            found = await self._fetch([place for _, place in missing])
            for (item, _), payload in zip(missing, found, strict=True):
                _set(item, payload)

    async def fill_each(self, groups: Sequence[Sequence[msgspec.Struct]]) -> list[HarkError | None]:
        """Fill in the payloads of several answers; where that fails only that one does."""
        # All together first: what is near each other in a record shares a request, whoever asked for it.
        failure = await self._try([item for group in groups for item in group])
        if failure is None or len(groups) == 1:
            return [failure] * len(groups)
        return await asyncio.gather(*(self._try(group) for group in groups))

    async def _try(self, items: Sequence[msgspec.Struct]) -> HarkError | None:
        try:
            await self.fill(items)
        except HarkError as error:
            return error
        return None


def _set(item: msgspec.Struct, payload: bytes) -> None:
    # Some are frozen. Nobody has seen them yet, so they are still being made.
    msgspec.structs.force_setattr(item, "payload", msgspec.Raw(payload))
