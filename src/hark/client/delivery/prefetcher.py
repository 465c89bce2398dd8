"""The session of one consumer: receives batch after batch, and settles."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from itertools import islice
from typing import TypeVar

from hark.api.types.delivery import Delivered
from hark.client.admin import Traces
from hark.client.builder import Choices
from hark.client.calling import Caller
from hark.client.delivery.io_thread import IoThread
from hark.client.delivery.leases import Holds, extend, leases_of
from hark.client.delivery.message import Message
from hark.client.delivery.settling import MOST_WITH_POP, PiggybackedAcks, Settled, SettleDecision, Settler
from hark.client.delivery.sources import PopParams, Source
from hark.errors import HarkError
from hark.model import QUEUE_MODE, Status
from hark.polling import Poller, PollingStrategy

T = TypeVar("T")

_log = logging.getLogger(__name__)


class ConsumerSession:
    """What the messages of a client share: the settler, the lease keeper and the traces."""

    def __init__(self, caller: Caller, settler: Settler, holds: Holds, io_thread: IoThread | None = None) -> None:
        self.caller = caller
        self._settler = settler
        self._io_thread = io_thread
        """The thread that the settler belongs to, if it is another one."""
        self._holds = holds
        self._traces = Traces(caller)

    async def receive(
        self,
        delivered: Sequence[Delivered],
        choices: Choices,
        seconds: int | None,
        begin: bool = True,
        age: float = 0.0,
    ) -> list[Message]:
        """Wrap deliveries with leases of this many seconds, which may be `age` seconds old.

        `begin`: renew the leases from now on.
        """
        renewable = choices.renew is not False and not choices.auto_ack
        every = None if choices.renew_ms is None else choices.renew_ms / 1000
        leases = leases_of(delivered, self._holds if renewable else None, seconds, every)
        messages = [Message(one, self, leases[one.lease_id]) for one in delivered]
        if begin and renewable:
            try:
                for lease in leases.values():
                    await lease.begin(self.extend, age)
            except BaseException:
                await self.say(messages, "retry")
                raise
        return messages

    def piggyback(self, messages: Sequence[Message]) -> PiggybackedAcks | None:
        """The acknowledgements of all unsettled messages, to send with the next pop; None if there are none."""
        decisions = [SettleDecision(message.delivered) for message in _unsettled(messages)]
        return PiggybackedAcks(decisions) if 0 < len(decisions) <= MOST_WITH_POP else None

    async def say(
        self,
        messages: Sequence[Message],
        status: Status,
        error: str | None = None,
        road: PiggybackedAcks | None = None,
    ) -> None:
        """Settle all unsettled messages with one request. Rejections are logged; those messages are redelivered."""
        still_open = _unsettled(messages)
        if not still_open:
            return
        decisions = [SettleDecision(message.delivered, status, error) for message in still_open]
        try:
            outcomes = await self._there(lambda: self._settler.settle_many(decisions, road))
        except HarkError as failure:
            _log.warning(
                "%d messages could not be settled as %s: %s; they are redelivered", len(still_open), status, failure
            )
            return
        for message, outcome in zip(still_open, outcomes, strict=True):
            message.conclude(status, outcome)
            if not outcome.success:
                _log.warning(
                    "message %s of queue %s could not be settled as %s: %s; it is redelivered",
                    message.id,
                    message.queue,
                    status,
                    outcome.error,
                )

    async def settle(self, decision: SettleDecision) -> Settled:
        """Settle a message at the server."""
        return await self._there(lambda: self._settler.settle(decision))

    async def _there(self, make: Callable[[], Awaitable[T]]) -> T:
        """Run a call of the settler where it belongs."""
        return await (make() if self._io_thread is None else self._io_thread.run(make))

    async def extend(self, lease_id: str, seconds: int) -> datetime:
        """Renew a lease. Returns when it expires."""
        return await extend(self.caller, lease_id, seconds)

    async def trace(self, message: Delivered, data: object, event: str, names: Sequence[str]) -> None:
        """Record a trace event about a message."""
        await self._traces.add(message, data, event=event, names=names)


def _unsettled(messages: Sequence[Message]) -> list[Message]:
    return [message for message in messages if message.settled is None and message.lease_id]


def pop_params_of(
    choices: Choices, *, wait: bool, lease_seconds: int | None, timeout_ms: int | None = None
) -> PopParams:
    """The pop parameters for these choices. A named queue needs no labels to be found."""
    named = choices.queue is not None
    return PopParams(
        queue=choices.queue,
        partition=choices.partition,
        namespace=None if named else choices.namespace,
        task=None if named else choices.task,
        group=choices.group or QUEUE_MODE,
        group_mode=choices.group_mode,
        batch=choices.batch,
        partitions=choices.partitions,
        auto_ack=choices.auto_ack,
        wait=wait,
        timeout_ms=choices.timeout_ms if timeout_ms is None else timeout_ms,
        subscription_mode=choices.subscription_mode,
        subscription_from=choices.subscription_from,
        lease_seconds=lease_seconds,
        consumer_priority=choices.consumer_priority,
        consumer=choices.consumer,
    )


class Prefetcher:
    """Receives from a source, rests after empty responses as the strategy says, and survives outages of the server.

    `buffered` are messages that were received but not started. Closing the supply releases them. With a `io_thread`, the source
    belongs to that thread: messages are received there, and their leases renewed, while the event loop is blocked.
    """

    def __init__(
        self,
        session: ConsumerSession,
        source: Source,
        choices: Choices,
        lease_seconds: int | None,
        strategy: PollingStrategy,
        forget: Callable[[Prefetcher], object],
        monotonic: Callable[[], float] = time.monotonic,
        *,
        overlaps: bool = False,
        io_thread: IoThread | None = None,
    ) -> None:
        self.session = session
        self.overlaps = overlaps
        """Whether the next batch can be requested while the previous one is being settled."""
        self.buffered: deque[Message] = deque()
        self._in_order = choices.group_mode != "shared"
        self._source = source
        self._choices = choices
        self._lease_seconds = lease_seconds
        self._poller = Poller(strategy, monotonic=monotonic)
        self._forget = forget
        self._monotonic = monotonic
        self._io_thread = io_thread
        self._taking: set[asyncio.Task[None]] = set()
        self._interrupted = False
        self._closing: asyncio.Task[None] | None = None

    async def batch(self, most: int, acks: PiggybackedAcks | None = None) -> int:
        """Wait until messages are held. Returns their number: 0 after the idle time, or if it was interrupted.

        `acks` travel with the first request; only if `overlaps`.
        """
        try:
            return await self._batch(most, acks)
        finally:
            if acks is not None:
                acks.not_sent()  # It has no effect on those that were sent.

    async def _batch(self, most: int, acks: PiggybackedAcks | None) -> int:
        idle = None if self._choices.idle_ms is None else self._choices.idle_ms / 1000
        since = self._monotonic()
        while not self._interrupted:
            requested_at = self._monotonic()
            waited = 0.0
            self._poller.begin()
            try:
                carried, acks = acks, None
                await self._take(min(most, self._choices.batch), carried)
            except HarkError as error:
                if not error.retryable:
                    raise
                queue = self._choices.queue or "(several)"
                _log.warning("cannot receive messages of queue %s: %s; trying again", queue, error)
                self._poller.failed(error.retry_after)
            else:
                self._poller.saw(bool(self.buffered))
                if self.buffered:
                    return len(self.buffered)
                waited = self._monotonic() - requested_at
            if idle is not None and self._monotonic() - since >= idle:
                break
            await self._poller.rest(waited=waited)
        return 0

    async def _take(self, most: int, acks: PiggybackedAcks | None) -> None:
        """Receive from the source, unless that is interrupted."""
        task = asyncio.ensure_future(self._hold(most, acks))
        self._taking.add(task)
        try:
            await task
        except asyncio.CancelledError:
            if self._interrupted and not _is_cancelling():
                return
            await self.give_back_buffered()  # The messages arrived at the moment of the cancellation.
            raise
        finally:
            self._taking.discard(task)

    async def _hold(self, most: int, acks: PiggybackedAcks | None) -> None:
        if self._io_thread is None:
            messages = await self._receive(most, acks)
        else:
            messages = await self._io_thread.run(lambda: self._receive(most, acks), self.give_back)
        self.buffered.extend(messages)

    async def _receive(self, most: int, acks: PiggybackedAcks | None) -> list[Message]:
        """Receive messages, and renew their leases from now on. Runs in the thread of the source."""
        requested_at = self._monotonic()
        delivered = await self._source.take(most, acks)
        # In the user's event loop, messages that arrived long ago may have waited for a handler that blocks it.
        age = self._monotonic() - requested_at if self._io_thread is None else 0.0
        return await self.session.receive(delivered, self._choices, self._lease_seconds, age=age) if delivered else []

    def is_ours(self, message: Message) -> bool:
        """Whether the message can be started: its lease is valid, and no earlier message of its order was released."""
        return not (message.lost or (self._in_order and message.released))

    async def next(self, most: int) -> Message | None:
        """The next held message, or the first of a new batch. None: see `batch`."""
        while self.buffered or await self.batch(most):
            if begun := await self.begin(1):
                return begun[0]
        return None

    async def begin(self, most: int | None = None) -> list[Message]:
        """Take held messages to start them, all of them by default. Those that cannot be started are released."""
        if not all(self.is_ours(message) for message in islice(self.buffered, most)):
            skipped = [message for message in self.buffered if not self.is_ours(message)]
            self.buffered = deque(message for message in self.buffered if self.is_ours(message))
            await self.give_back(skipped)
        return [self.buffered.popleft() for _ in range(min(len(self.buffered), most or len(self.buffered)))]

    async def give_back(self, messages: Sequence[Message]) -> None:
        """Release messages that were not started: they are redelivered, and no attempt is counted."""
        await self.session.say(messages, "retry")

    async def give_back_buffered(self) -> None:
        """Release all messages that were received but not started."""
        buffered, self.buffered = list(self.buffered), deque()
        await self.give_back(buffered)

    def interrupt(self) -> None:
        """Receive nothing more, and end waiting requests."""
        self._interrupted = True
        self._poller.stop()
        for task in self._taking:
            task.cancel()

    async def close(self) -> None:
        """Receive nothing more and release held messages. A second call waits for the first.

        A call that is cancelled ends it without waiting for answers.
        """
        if self._closing is None:
            self._closing = asyncio.ensure_future(self._close())
        try:
            await asyncio.shield(self._closing)
        except asyncio.CancelledError:
            if _is_cancelling():
                self._closing.cancel()
                await asyncio.wait([self._closing])
                raise

    async def _close(self) -> None:
        self.interrupt()
        try:
            if self._taking:
                await asyncio.wait(self._taking)
            await self.give_back_buffered()
        finally:
            # Also after a cancellation: no other object closes the connections of the source.
            try:
                await (self._source.close() if self._io_thread is None else self._io_thread.run(self._source.close))
            finally:
                self._forget(self)


def _is_cancelling() -> bool:
    """Whether the running task is itself being cancelled."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
