"""Sources of messages: the parameters of a pop, deliveries, and the source that polls."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Protocol

import msgspec

from hark.api import operations
from hark.api.types.delivery import Delivered, PopReply
from hark.client.calling import Caller, decode, path_of
from hark.client.transport.api import ConnectionFailed, Value
from hark.errors import HarkError, InvalidInput, error_of
from hark.model import QUEUE_MODE, GroupMode

if TYPE_CHECKING:
    from hark.client.delivery.settling import PiggybackedAcks

MARGIN_SECONDS = 15.0
"""How many seconds longer than the server the client waits for an answer, so that a running query can finish."""
_SECONDS_AT_ONCE = 30.0
_CLOSE_SECONDS = 5.0
FIRST_LOOK_SECONDS = 0.25
"""Seconds that a server searches for messages before it starts to wait. Most answers come within this time."""


class PopParams(msgspec.Struct, frozen=True, kw_only=True):
    """The parameters of a pop."""

    queue: str | None = None
    partition: str | None = None
    namespace: str | None = None
    task: str | None = None
    group: str = QUEUE_MODE
    group_mode: GroupMode | None = None
    """None: the stored mode."""
    batch: int = 1
    """Maximum number of messages per request, however many the consumer could take."""
    partitions: int = 1
    auto_ack: bool = False
    wait: bool = True
    timeout_ms: int = 30_000
    subscription_mode: str | None = None
    subscription_from: str | None = None
    lease_seconds: int | None = None
    """None: the lease time of the queue."""
    consumer_priority: int = 0
    consumer: str | None = None
    """The name of the consumer in lists of leases."""

    def __post_init__(self) -> None:
        if not (self.queue or self.namespace or self.task):
            raise InvalidInput(
                "queue, namespace or task is required: name what to consume, for example with client.queue(...)"
            )
        if self.partition and not self.queue:
            raise InvalidInput("partition: only valid with a queue; name one with queue(...)")
        if self.group_mode not in (None, "ordered", "shared"):
            raise InvalidInput(f"group_mode: expected ordered or shared, got {self.group_mode!r}")
        for field, least in (("batch", 1), ("partitions", 1), ("timeout_ms", 0), ("lease_seconds", 1)):
            value = getattr(self, field)
            if value is not None and (not isinstance(value, int) or value < least):
                raise InvalidInput(f"{field}: expected an integer from {least} on, got {value!r}")

    @property
    def seconds(self) -> float:
        """Seconds that the request waits for a message."""
        return self.timeout_ms / 1000 if self.wait else 0.0

    def parameters(self) -> dict[str, Value]:
        """Parameters that a pop and a subscription share, by their API names. Defaults are omitted."""
        wanted: dict[str, Value | None] = {
            "consumerGroup": None if self.group == QUEUE_MODE else self.group,
            "groupMode": self.group_mode,
            "partitions": None if self.partitions == 1 else self.partitions,
            "autoAck": True if self.auto_ack else None,
            "subscriptionMode": self.subscription_mode,
            "subscriptionFrom": self.subscription_from,
            "leaseTime": self.lease_seconds,
            "consumerPriority": self.consumer_priority or None,
            "consumer": self.consumer,
        }
        return {name: value for name, value in wanted.items() if value is not None}


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


_decode = msgspec.json.Decoder(PopReply).decode


class PollSource:
    """Receives messages with pop requests that wait at the server."""

    def __init__(
        self,
        caller: Caller,
        params: PopParams,
        give_back: GiveBack | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._caller = caller
        self._params = params
        # Messages with automatic acks cannot be released, so a cancelled pop ends immediately.
        self._give_back = None if params.auto_ack else give_back
        self._monotonic = monotonic
        self._left: set[asyncio.Task[None]] = set()
        self._route, query = _path_and_query(params)
        if params.wait:
            query |= {"wait": True, "timeout": params.timeout_ms}
        self._query = query | params.parameters()
        self._seconds = params.seconds + MARGIN_SECONDS if params.wait else _SECONDS_AT_ONCE

    async def take(self, most: int, acks: PiggybackedAcks | None = None) -> list[Delivered]:
        """Receive at most `most` messages with one pop, and send `acks` with it.

        A pop whose answer was lost is repeated: its messages are redelivered when their lease expires. With automatic
        acks they would be lost permanently, so the error is raised instead. Messages that arrive after a cancellation
        are released.
        """
        check_most(most)
        if self._give_back is None:
            return await self._ask(most)
        requested_at = self._monotonic()
        request = asyncio.ensure_future(self._ask(most) if acks is None else self._ask_next(most, acks))
        try:
            return await asyncio.shield(request)
        except asyncio.CancelledError:
            leaving = asyncio.ensure_future(self._leave(request, requested_at, self._give_back))
            self._left.add(leaving)
            leaving.add_done_callback(self._left.discard)
            raise

    async def _ask(self, most: int) -> list[Delivered]:
        query = {**self._query, "batch": min(most, self._params.batch)}
        answer = await self._caller.call(
            "GET", self._route, query=query, seconds=self._seconds, safe=not self._params.auto_ack
        )
        return messages_of(answer.body) if answer.status == 200 else []

    async def _ask_next(self, most: int, acks: PiggybackedAcks) -> list[Delivered]:
        """Acknowledge and pop with one request. A repetition has no further effect on the acknowledgements."""
        named = {"queue": self._params.queue, "partition": self._params.partition} if self._params.queue else {}
        query = {**named, **self._query, "batch": min(most, self._params.batch)}
        try:
            answer = await self._caller.send(
                operations.NEXT,
                query=query,
                raw_body=acks.body,
                seconds=self._seconds,
                safe=True,
                first_line=acks.answered,
            )
        except HarkError as error:
            acks.failed(error.again())
            raise
        except asyncio.CancelledError:
            acks.failed(ConnectionFailed("the pop with the acknowledgements was cancelled", sent=True))
            raise
        line, _, reply = answer.body.partition(b"\n")
        acks.answered(line)
        return _messages_of_next(reply)

    async def _leave(self, request: asyncio.Task[list[Delivered]], requested_at: float, give_back: GiveBack) -> None:
        """End a pop after a cancellation, but not during its first search, because the answer may be in flight."""
        try:
            await asyncio.wait([request], timeout=max(0.0, requested_at + FIRST_LOOK_SECONDS - self._monotonic()))
        finally:
            request.cancel()
        await asyncio.wait([request])
        if not request.cancelled() and request.exception() is None and (messages := request.result()):
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


def messages_of(body: bytes) -> list[Delivered]:
    """The messages in the response to a pop."""
    try:
        return list(_decode(body).messages)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise HarkError(
            f"the response does not come from a Hark server: {error}; check the URL", code="not_hark"
        ) from error


def _messages_of_next(reply: bytes) -> list[Delivered]:
    """The messages in the second line of the response to `next`."""
    if reply.strip() == b"null":
        return []
    if reply.startswith(b'{"error"'):
        problem = decode(reply, _Problem)
        raise error_of(problem.status, problem.code, problem.error, problem.retry_after)
    return messages_of(reply)


def _path_and_query(params: PopParams) -> tuple[str, dict[str, Value]]:
    """The path of a pop, and the labels for its query."""
    if params.queue:
        if params.partition:
            return path_of(operations.POP_OF_QUEUE_PARTITION, params.queue, params.partition), {}
        return path_of(operations.POP_OF_QUEUE, params.queue), {}
    labels = {"namespace": params.namespace, "task": params.task}
    return operations.POP.path, {name: label for name, label in labels.items() if label}
