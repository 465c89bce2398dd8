"""Queue browsers: clients that read every message of a queue once, in partition order, and receive none."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence

from hark.broker.delivery.consumers import ConsumerManager
from hark.broker.delivery.streams import admit_stream
from hark.broker.timers import FallbackPolls, Timers
from hark.clock import SECOND
from hark.engine.api import Engine
from hark.errors import EngineFailure, HarkError
from hark.model import BrowseFrom, Read, ReadResult, StoredMessage
from hark.settings import Settings

log = logging.getLogger(__name__)

_BATCH = 100
_PARTITIONS = 16
"""Maximum number of partitions in one call."""
_MANY_BYTES = 256 * 1024
"""After a larger result the next call reads from one partition, which returns at most a mebibyte: a client that does
not read must not hold much."""
_OVERLAP = 30 * SECOND
"""Overlap of two polls, longer than a transaction takes to become visible."""


class Browser:
    """One queue browser, with its position in each partition."""

    def __init__(self, browsers: Browsers, queue: str, partition: str | None, start: BrowseFrom) -> None:
        self.queue = queue
        self.partition = partition
        self.start = start
        self.closed = False
        self._browsers = browsers
        self._next: dict[str, int] = {}
        """The next offset of each known partition."""
        self._unread: dict[str, None] = {}
        """Partitions that may have new messages; the one that was read longest ago is first."""
        self._width = 1
        """Number of partitions in the next call."""
        self._behind = False
        """Messages arrived in unknown partitions."""
        self._changed = asyncio.Event()

    async def open(self) -> None:
        """Find the start offsets. Messages that arrive during this call are not missed."""
        for position in await self._browsers.engine.offsets(self.queue, self.start, self.partition):
            self._next[position.partition] = position.offset
        if self.start != "tail":
            self._unread |= dict.fromkeys(self._next)
            self._changed.set()

    def notify(self, partitions: Sequence[str] | None) -> None:
        """Note new messages in these partitions, or (None) in unknown ones."""
        if partitions is None:
            self._behind = True
        elif self.partition is None:
            self._unread |= dict.fromkeys(partitions)
        elif self.partition in partitions:
            self._unread[self.partition] = None
        self._changed.set()

    async def next(self) -> Sequence[StoredMessage]:
        """Wait for the next messages; nothing when the browser is closed."""
        while not self.closed:
            self._changed.clear()
            try:
                messages = await self._look()
            except EngineFailure as failure:
                log.debug("queue browser on queue %r waits for the store: %s", self.queue, failure)
                self._browsers.remind(self._changed.set)
                await self._changed.wait()
                continue
            if messages:
                self._browsers.show(messages)
                return messages
            if not self._unread:
                await self._changed.wait()
        return ()

    async def _look(self) -> Sequence[StoredMessage]:
        if self._behind:
            self._behind = False
            try:
                await self.catch_up(None)
            except BaseException:
                self._behind = True
                raise
        partitions = list(self._unread)[: self._width]
        if not partitions:
            return ()
        messages = await self._read(partitions)
        many = sum(len(message.payload) for message in messages) > _MANY_BYTES
        self._width = 1 if many else min(2 * self._width, _PARTITIONS)
        return messages

    async def _read(self, partitions: Sequence[str]) -> Sequence[StoredMessage]:
        for partition in partitions:
            self._unread.pop(partition, None)
        messages: list[StoredMessage] = []
        try:
            answers = await self._ask(partitions)
            lost = [one for one, answer in answers.items() if await self._is_lost(one, answer)]
        except BaseException:  # The store failed, or the caller was cancelled: nothing was read.
            self._unread |= dict.fromkeys(partitions)
            raise
        for partition, answer in answers.items():
            self._next[partition] = 1 if partition in lost else answer.next_offset
            messages += answer.messages
            if answer.more or partition in lost:
                self._unread[partition] = None
        return messages

    async def _ask(self, partitions: Sequence[str]) -> dict[str, ReadResult]:
        limit = max(1, _BATCH // len(partitions))
        answers = await self._browsers.engine.read(
            [
                Read(queue=self.queue, partition=partition, offset=self._next.get(partition, 1), limit=limit)
                for partition in partitions
            ]
        )
        found = {}
        for partition, answer in zip(partitions, answers, strict=True):
            if isinstance(answer, HarkError):
                raise answer
            found[partition] = answer
        return found

    async def _is_lost(self, partition: str, answer: ReadResult) -> bool:
        """Check whether the queue was deleted and created again, after a hint for messages that do not exist."""
        if answer.messages or answer.more:
            return False
        tails = await self._browsers.engine.offsets(self.queue, "tail", partition)
        return bool(tails) and tails[0].offset < answer.next_offset

    async def catch_up(self, since: int | None) -> bool:
        """Find messages without a notification, since a time or (None) the start. Returns whether there are any."""
        found = False
        tails = await self._browsers.engine.offsets(self.queue, "tail", self.partition, since)
        for position in tails:
            if position.offset != self._next.get(position.partition, 1):
                self._unread[position.partition] = None
                found = True
        if found:
            self._changed.set()
        return found

    def close(self) -> None:
        """End the browsing."""
        if not self.closed:
            self.closed = True
            self._browsers.forget(self)
            self._changed.set()


class Browsers:
    """All browsers of this server, by queue."""

    def __init__(
        self,
        engine: Engine,
        settings: Settings,
        timers: Timers,
        random: Callable[[], float],
        show: Callable[[Sequence[StoredMessage]], None],
    ) -> None:
        self.engine = engine
        self._timers = timers
        self.show = show
        """Decrypts payloads."""
        self._most = settings.limits.max_streams
        self.by_queue: dict[str, ConsumerManager[Browser]] = {}
        self._polls: FallbackPolls[Browser] = FallbackPolls(settings.fallback, timers, self._poll, random)
        self._polled_at: dict[Browser, int] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False

    def __len__(self) -> int:
        return sum(len(manager) for manager in self.by_queue.values())

    def __iter__(self) -> Iterator[Browser]:
        return iter([browser for manager in self.by_queue.values() for browser in manager.iter_all()])

    async def open(self, queue: str, partition: str | None, start: BrowseFrom) -> Browser:
        """Open a browser. Raises if there are too many."""
        admit_stream(self._closed, len(self), self._most, "queue browsers are already open")
        browser = Browser(self, queue, partition, start)
        manager = self.by_queue.setdefault(queue, ConsumerManager(1))
        # Before it finds its start offsets, so that it is notified of messages that arrive meanwhile.
        manager.add(browser, browser=True)
        manager.set_interest(browser, True)
        try:
            await browser.open()
        except BaseException:
            browser.close()
            raise
        if self.engine.shared and not self.engine.follows:
            self._polls.watch(browser)
        return browser

    def forget(self, browser: Browser) -> None:
        """Remove a closed browser."""
        manager = self.by_queue.get(browser.queue)
        if manager is not None:
            manager.remove(browser)
            if not len(manager):
                del self.by_queue[browser.queue]
        self._polls.forget(browser)
        self._polled_at.pop(browser, None)

    def hint(self, queue: str, partitions: Sequence[str] | None) -> None:
        """Notify all browsers of a queue of new messages."""
        manager = self.by_queue.get(queue)
        if manager is not None:
            for browser in manager.iter_browsers():
                browser.notify(partitions)
                self._polls.reset(browser)

    def remind(self, callback: Callable[[], None]) -> None:
        """Call a function after a pause, when the store may respond again."""
        self._timers.at(self._timers.now() + SECOND, callback)

    def close(self) -> None:
        """Close all browsers, because the server shuts down."""
        self._closed = True
        self._polls.close()
        for browser in self:
            browser.close()

    def _poll(self, browser: Browser) -> None:
        task = asyncio.get_running_loop().create_task(self._catch_up(browser))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _catch_up(self, browser: Browser) -> None:
        since = self._polled_at.get(browser, 0)
        self._polled_at[browser] = self._timers.now()
        try:
            found = await browser.catch_up(since - _OVERLAP)
        except HarkError as error:
            log.debug("queue browser on queue %r cannot poll; retrying: %s", browser.queue, error)
            found = False
            self._polled_at[browser] = since
        if browser.closed:
            self._polled_at.pop(browser, None)
        self._polls.polled(browser, found)
