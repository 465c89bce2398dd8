"""Receives messages for one consumer, batch after batch."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence

from hark.client.choices import Choices
from hark.client.delivery.desk import Desk
from hark.client.delivery.message import Message
from hark.client.delivery.settling import PiggybackedAcks
from hark.client.delivery.sources import Delivered, Source
from hark.errors import HarkError
from hark.polling import Poller, PollingStrategy

_log = logging.getLogger(__name__)


class Supply:
    """Receives from a source, rests after empty responses as the strategy says, and survives outages of the server.

    `held` are messages that were received but not started. Closing the supply releases them.
    """

    def __init__(
        self,
        desk: Desk,
        source: Source,
        choices: Choices,
        lease_seconds: int | None,
        strategy: PollingStrategy,
        forget: Callable[[Supply], object],
        monotonic: Callable[[], float] = time.monotonic,
        *,
        overlaps: bool = False,
    ) -> None:
        self.desk = desk
        self.overlaps = overlaps
        """Whether the next batch can be requested while the previous one is being settled."""
        self.held: deque[Message] = deque()
        self._in_order = choices.group_mode != "shared"
        self._source = source
        self._choices = choices
        self._lease_seconds = lease_seconds
        self._poller = Poller(strategy, monotonic=monotonic)
        self._forget = forget
        self._monotonic = monotonic
        self._taking: set[asyncio.Task[list[Delivered]]] = set()
        self._interrupted = self._closed = False

    async def batch(self, most: int, acks: PiggybackedAcks | None = None) -> list[Message]:
        """Wait for some messages. Returns none after the idle time, or if it was interrupted.

        `acks` travel with the first request; only if `overlaps`.
        """
        try:
            return await self._batch(most, acks)
        finally:
            if acks is not None:
                acks.not_sent()  # It has no effect on those that were sent.

    async def _batch(self, most: int, acks: PiggybackedAcks | None) -> list[Message]:
        idle = None if self._choices.idle_ms is None else self._choices.idle_ms / 1000
        since = self._monotonic()
        while not self._interrupted:
            asked = self._monotonic()
            waited = 0.0
            self._poller.begin()
            try:
                carried, acks = acks, None
                delivered = await self._take(min(most, self._choices.batch), carried)
            except HarkError as error:
                if not error.retryable:
                    raise
                queue = self._choices.queue or "(several)"
                _log.warning("cannot receive messages of queue %s: %s; trying again", queue, error)
                self._poller.failed(error.retry_after)
            else:
                self._poller.saw(bool(delivered))
                if delivered:
                    return await self.desk.receive(delivered, self._choices, self._lease_seconds)
                waited = self._monotonic() - asked
            if idle is not None and self._monotonic() - since >= idle:
                break
            await self._poller.rest(waited=waited)
        return []

    async def _take(self, most: int, acks: PiggybackedAcks | None) -> list[Delivered]:
        """Receive from the source. Returns nothing if that was interrupted."""
        task = asyncio.ensure_future(self._source.take(most, acks))
        self._taking.add(task)
        try:
            return await task
        except asyncio.CancelledError:
            current = asyncio.current_task()
            if self._interrupted and not (current and current.cancelling()):
                return []
            if task.done() and not task.cancelled() and task.exception() is None:
                # The messages arrived at the moment of the cancellation.
                await self.give_back(await self.desk.receive(task.result(), self._choices, None, begin=False))
            raise
        finally:
            self._taking.discard(task)

    def is_ours(self, message: Message) -> bool:
        """Whether the message can be started: its lease is valid, and no earlier message of its order was released."""
        return not (message.lost or (self._in_order and message.released))

    async def next(self, most: int) -> Message | None:
        """The next held message, or the first of a new batch. None: see `batch`."""
        if self.held and not self.is_ours(self.held[0]):
            skipped = [message for message in self.held if not self.is_ours(message)]
            self.held = deque(message for message in self.held if self.is_ours(message))
            await self.give_back(skipped)
        if not self.held:
            self.held.extend(await self.batch(most))
        return self.held.popleft() if self.held else None

    async def give_back(self, messages: Sequence[Message]) -> None:
        """Release messages that were not started: they are redelivered, and no attempt is counted."""
        await self.desk.say(messages, "retry")

    def interrupt(self) -> None:
        """Receive nothing more, and end waiting requests."""
        self._interrupted = True
        self._poller.stop()
        for task in self._taking:
            task.cancel()

    async def close(self) -> None:
        """Receive nothing more and release held messages. Can be called twice."""
        if self._closed:
            return
        self._closed = True
        self.interrupt()
        try:
            if self._taking:
                await asyncio.wait(self._taking)
            held, self.held = list(self.held), deque()
            await self.give_back(held)
        finally:
            # Also after a cancellation: no other object closes the connections of the source.
            try:
                await self._source.close()
            finally:
                self._forget(self)
