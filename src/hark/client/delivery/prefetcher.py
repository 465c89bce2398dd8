"""Receives the messages of one consumer, batch after batch, renews their leases, and settles them."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from itertools import islice
from typing import Protocol, TypeVar

import msgspec

from hark.api import operations
from hark.api.types.delivery import Delivered, PopReply
from hark.api.types.messages import ExtendBody
from hark.client.admin import Traces
from hark.client.arguments import an_integer
from hark.client.builder import MAX_LEASE_SECONDS, Choices, PopParams
from hark.client.calling import Caller, ConnectionFailed, Value, decode, path_of
from hark.client.delivery.leases import Holds, Lease
from hark.client.delivery.message import Message
from hark.client.delivery.settling import MOST_WITH_POP, PiggybackedAcks, Settled, SettleDecision, Settler
from hark.client.io_thread import IoThread, is_cancelling
from hark.errors import HarkError, InvalidInput, LeaseLost, error_of
from hark.model import Status
from hark.polling import Poller, PollingStrategy

T = TypeVar("T")

_log = logging.getLogger(__name__)

MARGIN_SECONDS = 15.0
"""How many seconds longer than the server the client waits for an answer, so that a running query can finish."""
_SECONDS_AT_ONCE = 30.0
_CLOSE_SECONDS = 5.0
FIRST_LOOK_SECONDS = 0.25
"""Seconds that a server searches for messages before it starts to wait. Most answers come within this time."""


class Source(Protocol):
    """Delivers messages to one consumer. Belongs to one event loop."""

    async def take(self, most: int, acks: PiggybackedAcks | None = None) -> list[Delivered]:
        """Receive at most `most` messages. Waits as the parameters say, and returns none after that time.

        A source that polls sends `acks` with its request.
        """

    async def close(self) -> None:
        """Receive nothing more, and release messages that no consumer received."""


GiveBack = Callable[[Sequence[Delivered]], Awaitable[object]]
"""Releases messages that were delivered and not started."""


class _Problem(msgspec.Struct, rename="camel"):
    """The second line of the response to `next`, if the pop failed."""

    error: str
    code: str
    status: int
    retry_after: float | None = None


class PollSource:
    """Receives messages with pop requests that wait at the server."""

    def __init__(self, caller: Caller, params: PopParams, give_back: GiveBack | None = None) -> None:
        self._caller = caller
        self._params = params
        # Messages with automatic acks cannot be released, so a cancelled pop ends immediately.
        self._give_back = None if params.auto_ack else give_back
        self._left: set[asyncio.Task[None]] = set()
        scope = params.scope()
        if params.queue is None:
            self._route = operations.POP.path
        elif params.partition is None:
            self._route = path_of(operations.POP_OF_QUEUE, params.queue)
        else:
            self._route = path_of(operations.POP_OF_QUEUE_PARTITION, params.queue, params.partition)
        wait: dict[str, Value] = {"wait": True, "timeout": params.timeout_ms} if params.waits else {}
        query = wait | params.parameters()
        self._next_query = scope | query
        """The query of a pop with acknowledgements, whose path names no queue."""
        self._query = query if params.queue else self._next_query
        self._seconds = params.seconds + MARGIN_SECONDS if params.waits else _SECONDS_AT_ONCE

    async def take(self, most: int, acks: PiggybackedAcks | None = None) -> list[Delivered]:
        """Receive at most `most` messages with one pop, and send `acks` with it.

        A pop whose answer was lost is repeated: its messages are redelivered when their lease expires. With automatic
        acks they would be lost permanently, so the error is raised instead. Messages that arrive after a cancellation
        are released.
        """
        check_most(most)
        if self._give_back is None:
            return await self._ask(most)
        requested_at = time.monotonic()
        request_task = asyncio.ensure_future(self._ask(most) if acks is None else self._ask_next(most, acks))
        try:
            return await asyncio.shield(request_task)
        except asyncio.CancelledError:
            leaving = asyncio.ensure_future(self._leave(request_task, requested_at, self._give_back))
            self._left.add(leaving)
            leaving.add_done_callback(self._left.discard)
            raise

    async def _ask(self, most: int) -> list[Delivered]:
        query = {**self._query, "batch": min(most, self._params.batch)}
        safe = not self._params.auto_ack
        answer = await self._caller.call("GET", self._route, query=query, seconds=self._seconds, safe=safe)
        return list(decode(answer.body, PopReply).messages) if answer.status == 200 else []

    async def _ask_next(self, most: int, acks: PiggybackedAcks) -> list[Delivered]:
        """Acknowledge and pop with one request. A repetition has no further effect on the acknowledgements."""
        query = {**self._next_query, "batch": min(most, self._params.batch)}
        try:
            seconds, body = self._seconds, acks.body
            answer = await self._caller.send(
                operations.NEXT, query=query, raw_body=body, seconds=seconds, safe=True, first_line=acks.answered
            )
        except HarkError as error:
            acks.failed(error.again())
            raise
        except asyncio.CancelledError:
            acks.failed(ConnectionFailed("the pop with the acknowledgements was cancelled", sent=True))
            raise
        first_line, _, reply = answer.body.partition(b"\n")
        acks.answered(first_line)
        if reply.startswith(b'{"error"'):
            problem = decode(reply, _Problem)
            raise error_of(problem.status, problem.code, problem.error, problem.retry_after)
        return [] if reply.strip() == b"null" else list(decode(reply, PopReply).messages)

    async def _leave(
        self, request_task: asyncio.Task[list[Delivered]], requested_at: float, give_back: GiveBack
    ) -> None:
        """End a pop after a cancellation, but not during its first search, because the answer may be in flight."""
        try:
            await asyncio.wait([request_task], timeout=max(0.0, requested_at + FIRST_LOOK_SECONDS - time.monotonic()))
        finally:
            request_task.cancel()
        await asyncio.wait([request_task])
        if not request_task.cancelled() and request_task.exception() is None and (messages := request_task.result()):
            await give_back(messages)

    async def close(self) -> None:
        """Release messages that arrived after a cancellation. A waiting pop ends with its caller."""
        if self._left:
            _, late = await asyncio.wait(self._left, timeout=_CLOSE_SECONDS)
            for task in late:
                task.cancel()


def check_most(most: int) -> None:
    """Check that at least one message is requested."""
    if most < 1:
        raise InvalidInput(f"most: expected at least 1, got {most}")


class ConsumerSession:
    """What the messages of a client share: the settler, the lease keeper and the traces."""

    def __init__(self, caller: Caller, settler: Settler, holds: Holds, io_thread: IoThread | None = None) -> None:
        self.caller = caller
        self._settler = settler
        self._io_thread = io_thread
        """The thread that the settler belongs to, if it is another one."""
        self._holds = holds
        self.traces = Traces(caller)

    async def receive(
        self, delivered: Sequence[Delivered], choices: Choices, begin: bool = True, age: float = 0.0
    ) -> list[Message]:
        """Wrap deliveries with their leases, which may be `age` seconds old. `begin`: renew the leases from now on."""
        renewable = choices.renew is not False and not choices.auto_ack
        seconds, every = choices.lease_seconds, None if choices.renew_ms is None else choices.renew_ms / 1000
        leases = {
            lease_id: Lease(lease_id, count, self._holds if renewable and lease_id else None, seconds, every)
            for lease_id, count in Counter(one.lease_id for one in delivered).items()
        }
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
            text = "%d messages could not be settled as %s: %s; they are redelivered"
            _log.warning(text, len(still_open), status, failure)
            return
        for message, outcome in zip(still_open, outcomes, strict=True):
            message.conclude(status, outcome)
            if not outcome.success:
                text = "message %s of queue %s could not be settled as %s: %s; it is redelivered"
                _log.warning(text, message.id, message.queue, status, outcome.error)

    async def settle(self, decision: SettleDecision) -> Settled:
        """Settle a message at the server."""
        return await self._there(lambda: self._settler.settle(decision))

    async def _there(self, make: Callable[[], Awaitable[T]]) -> T:
        """Run a call of the settler where it belongs."""
        return await (make() if self._io_thread is None else self._io_thread.run(make))

    async def extend(self, lease_id: str, seconds: int) -> datetime:
        """Renew a lease for a number of seconds. Returns when it expires. Raises `LeaseLost` if it has expired."""
        body = ExtendBody(an_integer(seconds, "seconds", 1, MAX_LEASE_SECONDS))
        extended = await self.caller.ask(operations.EXTEND, lease_id, body=body, safe=True)
        if not extended.success or extended.expires_at is None:
            raise LeaseLost(f"lease {lease_id} was not renewed: {extended.error}; its messages are redelivered")
        return extended.expires_at


def _unsettled(messages: Sequence[Message]) -> list[Message]:
    return [message for message in messages if message.settled is None and message.delivered.lease_id]


class Prefetcher:
    """Receives from a source, rests after empty responses as the strategy says, and survives outages of the server.

    `buffered` are messages that were received but not started. Closing the prefetcher releases them. With an
    `io_thread`, the source belongs to that thread: messages are received there, and their leases renewed, while the
    event loop is blocked.
    """

    def __init__(
        self,
        session: ConsumerSession,
        source: Source,
        choices: Choices,
        strategy: PollingStrategy,
        forget: Callable[[Prefetcher], object],
        io_thread: IoThread | None = None,
    ) -> None:
        self.session = session
        # A poll that does not wait would find nothing before the ack and then rest. A socket needs no poll at all.
        self.overlaps = choices.waits and isinstance(source, PollSource)
        """Whether the next batch can be requested while the previous one is being settled."""
        self.buffered: deque[Message] = deque()
        self._in_order = choices.group_mode != "shared"
        self._source = source
        self._choices = choices
        self._poller = Poller(strategy)
        self._forget = forget
        self._io_thread = io_thread
        self._taking: set[asyncio.Task[None]] = set()
        self._interrupted = False
        self._closing: asyncio.Task[None] | None = None

    async def batch(self, most: int, acks: PiggybackedAcks | None = None) -> int:
        """Wait until messages are held. Returns their number: 0 after the idle time, or if it was interrupted.

        `acks` travel with the first request; only if `overlaps`.
        """
        carried, idle = acks, None if self._choices.idle_ms is None else self._choices.idle_ms / 1000
        since = time.monotonic()
        try:
            while not self._interrupted:
                requested_at, waited = time.monotonic(), 0.0
                self._poller.begin()
                try:
                    now, carried = carried, None
                    await self._take(min(most, self._choices.batch), now)
                except HarkError as error:
                    if not error.retryable:
                        raise
                    queue = self._choices.queue or "(several)"
                    _log.warning("cannot receive messages of queue %s: %s; trying again", queue, error)
                    self._poller.failed(error.retry_after)
                else:
                    self._poller.saw(bool(self.buffered))
                    if self.buffered:
                        break
                    waited = time.monotonic() - requested_at
                if idle is not None and time.monotonic() - since >= idle:
                    break
                await self._poller.rest(waited=waited)
            return len(self.buffered)
        finally:
            if acks is not None:
                acks.not_sent()  # It has no effect on those that were sent.

    async def _take(self, most: int, acks: PiggybackedAcks | None) -> None:
        """Receive from the source, unless that is interrupted."""
        task = asyncio.ensure_future(self._hold(most, acks))
        self._taking.add(task)
        try:
            await task
        except asyncio.CancelledError:
            if self._interrupted and not is_cancelling():
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
        requested_at = time.monotonic()
        delivered = await self._source.take(most, acks)
        # In the user's event loop, messages that arrived long ago may have waited for a handler that blocks it.
        age = time.monotonic() - requested_at if self._io_thread is None else 0.0
        return await self.session.receive(delivered, self._choices, age=age) if delivered else []

    async def next(self, most: int) -> Message | None:
        """The next held message, or the first of a new batch. None: see `batch`."""
        while self.buffered or await self.batch(most):
            if begun := await self.begin(1):
                return begun[0]
        return None

    async def begin(self, most: int | None = None) -> list[Message]:
        """Take held messages to start them, all of them by default. Those that cannot be started are released."""

        def is_ours(message: Message) -> bool:
            """Whether its lease is valid, and no earlier message of its order was released."""
            return not (message.lost or (self._in_order and message.released))

        if not all(is_ours(message) for message in islice(self.buffered, most)):
            skipped = [message for message in self.buffered if not is_ours(message)]
            self.buffered = deque(message for message in self.buffered if is_ours(message))
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
            if is_cancelling():
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
