"""Watches of keys: consecutive requests that wait at the server for changes."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from urllib.parse import urlencode

import msgspec

from hark.client.calling import Caller
from hark.client.keys.entries import Change, WireEntry
from hark.client.parameters import key_text
from hark.client.transport.api import Query
from hark.errors import HarkError, InvalidInput
from hark.model import Key

WAIT_SECONDS = 30.0
_MARGIN = 10.0
"""Seconds that an answer may take beyond the requested waiting time."""
_TOO_SOON = 1.0
"""An empty answer within this many seconds means that the server did not wait: it is shutting down, or something is
wrong."""
_MAX_ADDRESS = 60_000
"""Maximum size of the query in bytes. A server accepts URLs of 65,535 bytes."""
_BASE = "/keyval/api/watch"


class _News(msgspec.Struct):
    """The changes, and the new versionstamps: one per key, or one for a prefix."""

    entries: list[WireEntry]
    versionstamps: str | list[str]


class KeyWatch:
    """Changes of keys, as an endless async iterator. It needs no close."""

    def __init__(
        self,
        caller: Caller,
        route: str,
        query: Query,
        *,
        initial: bool = True,
        wait: float = WAIT_SECONDS,
        monotonic: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self._caller = caller
        self._route = route
        self._query = query
        self._skip = not initial
        self._wait = wait
        self._monotonic = monotonic
        self._sleep = sleep
        self._known: str | None = None
        """The versionstamps that the server reported last. None: it has not answered yet."""
        self._failures = 0
        self._changes: deque[Change] = deque()

    def __aiter__(self) -> KeyWatch:
        return self

    async def begin(self) -> KeyWatch:
        """Send the first request, unless it was sent. Otherwise the first step sends it."""
        if self._known is None:
            await self._ask(wait=False)
            if self._skip:
                self._changes.clear()
        return self

    async def __anext__(self) -> Change:
        await self.begin()
        while not self._changes:
            await self._look()
        return self._changes.popleft()

    async def _look(self) -> None:
        """Wait for changes once. During an outage, pause."""
        asked = self._monotonic()
        try:
            await self._ask(wait=True)
        except HarkError as error:
            if not error.retryable:
                raise
            await self._pause(error.retry_after or 0.0)
            return
        if self._changes or self._monotonic() - asked >= min(_TOO_SOON, self._wait):
            self._failures = 0
        else:
            await self._pause(0.0)

    async def _ask(self, *, wait: bool) -> None:
        query = {**self._query, "versionstamps": self._known, "wait": wait, "timeout": round(self._wait * 1000)}
        _check_size(query)
        news = await self._caller.read(_News, "GET", self._route, query=query, seconds=self._wait + _MARGIN)
        stamps = news.versionstamps
        self._known = stamps if isinstance(stamps, str) else ",".join(stamps)
        self._changes.extend(Change(one.key, one.entry()) for one in news.entries)

    async def _pause(self, at_least: float) -> None:
        self._failures += 1
        await self._sleep(max(at_least, self._caller.retry.delay(self._failures)))


def _check_size(query: Mapping[str, object]) -> None:
    size = len(urlencode([(name, value) for name, value in query.items() if value is not None]))
    if size > _MAX_ADDRESS:
        raise InvalidInput(
            f"keys: too many or too long for one watch: {size} of {_MAX_ADDRESS} bytes; "
            "watch fewer keys, or use a prefix with a smaller limit"
        )


def watch_keys(caller: Caller, keys: Sequence[Key], *, initial: bool = True) -> KeyWatch:
    """Watch certain keys."""
    text = msgspec.json.encode(keys).decode()
    return KeyWatch(caller, f"{_BASE}/poll", {"keys": text}, initial=initial)


def watch_prefix(caller: Caller, prefix: Key, limit: int, *, initial: bool = True) -> KeyWatch:
    """Watch the first keys below a prefix."""
    return KeyWatch(caller, f"{_BASE}/prefix/poll", {"prefix": key_text(prefix), "limit": limit}, initial=initial)
