"""Where a consumer's messages come from: what it wishes for, what it is given, and the source that polls."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

import msgspec

from hark.client.calling import Caller, path
from hark.client.transport.api import Value
from hark.errors import HarkError, InvalidInput
from hark.model import QUEUE_MODE, GroupMode

MARGIN_SECONDS = 15.0
"""How much longer than the server waits the client waits for its answer: a look that is under way is finished."""
_SECONDS_AT_ONCE = 30.0
_CLOSE_SECONDS = 5.0
FIRST_LOOK_SECONDS = 0.25
"""How long a server looks for messages before it begins to wait for them; most answers come in this time."""


class Wish(msgspec.Struct, frozen=True, kw_only=True):
    """What a consumer wants: the parameters of a pop."""

    queue: str | None = None
    partition: str | None = None
    namespace: str | None = None
    task: str | None = None
    group: str = QUEUE_MODE
    group_mode: GroupMode | None = None
    """None: as it is stored."""
    batch: int = 1
    """Messages at most, however many the consumer could take."""
    partitions: int = 1
    auto_ack: bool = False
    wait: bool = True
    timeout_ms: int = 30_000
    subscription_mode: str | None = None
    subscription_from: str | None = None
    lease_seconds: int | None = None
    """None: what the queue says."""
    consumer_priority: int = 0
    consumer: str | None = None
    """What it is called where leases are shown."""

    def __post_init__(self) -> None:
        if not (self.queue or self.namespace or self.task):
            raise InvalidInput("queue, namespace or task is required: say what to consume")
        if self.partition and not self.queue:
            raise InvalidInput("partition: only with a queue; name it with queue(...)")
        if self.group_mode not in (None, "ordered", "shared"):
            raise InvalidInput(f"group_mode: expected ordered or shared, got {self.group_mode!r}")
        for field, least in (("batch", 1), ("partitions", 1), ("timeout_ms", 0), ("lease_seconds", 1)):
            value = getattr(self, field)
            if value is not None and (not isinstance(value, int) or value < least):
                raise InvalidInput(f"{field}: expected an integer from {least} on, got {value!r}")

    @property
    def seconds(self) -> float:
        """How long it waits for a message."""
        return self.timeout_ms / 1000 if self.wait else 0.0

    def parameters(self) -> dict[str, Value]:
        """Those that a pop and a subscription have in common, under the names of the API; what is default is absent."""
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


class Delivered(msgspec.Struct, rename="camel", gc=False):
    """A message as it was delivered, its payload not looked at."""

    id: str
    transaction_id: str
    trace_id: str | None
    data: msgspec.Raw
    producer_sub: str | None
    created_at: str
    partition_id: str
    partition: str
    lease_id: str
    """Empty where it was settled at delivery."""
    consumer_group: str
    queue: str
    offset: int
    priority: int
    delivery_attempt: int
    traceparent: str | None = None
    """The W3C trace context of whoever pushed it."""
    tracestate: str | None = None


class Source(Protocol):
    """Gives messages to one consumer. Belongs to one event loop."""

    async def take(self, most: int) -> list[Delivered]:
        """At most so many messages; waits as the wish says, and gives none when the time is up."""

    async def close(self) -> None:
        """Take nothing more; what came and was not given to anybody goes back."""


GiveBack = Callable[[Sequence[Delivered]], Awaitable[object]]
"""Hands back what was delivered and not begun."""


class _Popped(msgspec.Struct):
    messages: list[Delivered]


_decode = msgspec.json.Decoder(_Popped).decode


class PollSource:
    """Asks with pops that wait on the server."""

    def __init__(
        self,
        caller: Caller,
        wish: Wish,
        give_back: GiveBack | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._caller = caller
        self._wish = wish
        # What is settled at delivery can't be given back: then a pop that nobody wants any more ends at once.
        self._give_back = None if wish.auto_ack else give_back
        self._monotonic = monotonic
        self._left: set[asyncio.Task[None]] = set()
        self._route, query = _place(wish)
        if wish.wait:
            query |= {"wait": True, "timeout": wish.timeout_ms}
        self._query = query | wish.parameters()
        self._seconds = wish.seconds + MARGIN_SECONDS if wish.wait else _SECONDS_AT_ONCE

    async def take(self, most: int) -> list[Delivered]:
        """At most so many messages, of one pop.

        A pop whose answer was lost is asked again: what it took comes back when its lease ends. Not so with automatic
        acks, where it would be lost for good: then the error is the caller's. What comes for somebody who was cancelled
        meanwhile is given back.
        """
        check_most(most)
        if self._give_back is None:
            return await self._ask(most)
        asked = self._monotonic()
        asking = asyncio.ensure_future(self._ask(most))
        try:
            return await asyncio.shield(asking)
        except asyncio.CancelledError:
            leaving = asyncio.ensure_future(self._leave(asking, asked, self._give_back))
            self._left.add(leaving)
            leaving.add_done_callback(self._left.discard)
            raise

    async def _ask(self, most: int) -> list[Delivered]:
        query = {**self._query, "batch": min(most, self._wish.batch)}
        answer = await self._caller.call(
            "GET", self._route, query=query, seconds=self._seconds, safe=not self._wish.auto_ack
        )
        return messages_of(answer.body) if answer.status == 200 else []

    async def _leave(self, asking: asyncio.Task[list[Delivered]], asked: float, give_back: GiveBack) -> None:
        """End a pop that nobody waits for any more, but not in its first look, whose answer may be on its way."""
        try:
            await asyncio.wait([asking], timeout=max(0.0, asked + FIRST_LOOK_SECONDS - self._monotonic()))
        finally:
            asking.cancel()
        await asyncio.wait([asking])
        if not asking.cancelled() and asking.exception() is None and (messages := asking.result()):
            await give_back(messages)

    async def close(self) -> None:
        """Give back what came for those who did not wait for it; a pop that waits ends with whoever waits for it."""
        if self._left:
            _, late = await asyncio.wait(self._left, timeout=_CLOSE_SECONDS)
            for task in late:
                task.cancel()


def check_most(most: int) -> None:
    """Nobody may ask for nothing."""
    if most < 1:
        raise InvalidInput(f"most: expected at least 1, got {most}")


def messages_of(body: bytes) -> list[Delivered]:
    """The messages in the answer to a pop."""
    try:
        return _decode(body).messages
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise HarkError(f"the server's answer is not Hark's: {error}; check the URL", code="not_hark") from error


def _place(wish: Wish) -> tuple[str, dict[str, Value]]:
    """The path of a pop, and what of the place is in its query."""
    if wish.queue:
        return path("pop", "queue", wish.queue, *(("partition", wish.partition) if wish.partition else ())), {}
    labels = {"namespace": wish.namespace, "task": wish.task}
    return path("pop"), {name: label for name, label in labels.items() if label}
