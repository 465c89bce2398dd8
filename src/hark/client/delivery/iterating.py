"""`async for message in queue.messages()`."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from types import TracebackType
from typing import Self

from hark.client.choices import Choices
from hark.client.delivery.message import Message
from hark.client.delivery.supplying import Supply


class Messages:
    """An async iterator over messages, received in batches. `queue.messages()` creates it.

    However the iteration ends, messages that were received but not yet returned are released.
    """

    def __init__(self, open_supply: Callable[[], Supply], retire: Callable[[Supply], object], choices: Choices) -> None:
        self._open_supply = open_supply
        self._retire = retire
        self._choices = choices
        self._left = choices.limit
        self._supply: Supply | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ended = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Message:
        """Wait for the next message. The iteration ends at `limit`, after `idle` milliseconds, or with the client."""
        if self._ended or self._left == 0:
            await self.aclose()
            raise StopAsyncIteration
        if self._supply is None:
            self._supply = self._open_supply()
            self._loop = asyncio.get_running_loop()
        message = await self._supply.next(self._choices.batch if self._left is None else self._left)
        if message is None:
            await self.aclose()
            raise StopAsyncIteration
        if self._left is not None:
            self._left -= 1
        return message

    async def aclose(self) -> None:
        """End the iteration, and release messages that were received but not yet returned."""
        self._ended = True
        supply, self._supply = self._supply, None
        if supply is not None:
            await supply.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    def __del__(self) -> None:
        # After `break` or an exception no method is called any more, so the client closes the supply.
        if self._supply is not None and self._loop is not None:
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._retire, self._supply)
