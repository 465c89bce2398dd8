"""A queue as producers and consumers see it: the builder with its verbs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Unpack

from hark.client.administration.dead_letters import DeadLetters
from hark.client.administration.queue_admin import QueueAdmin, QueueOptionsGiven
from hark.client.administration.results import ConfiguredQueue, Depth, QueueStats
from hark.client.builder import ClientBuilder
from hark.client.choices import MAX_BATCH, an_integer
from hark.client.delivery.consuming import Consumption, Handler
from hark.client.delivery.iterating import Messages
from hark.client.delivery.message import Message
from hark.client.producing.new_message import NewMessage, new_message
from hark.client.producing.push_options import PushOptions
from hark.client.producing.pushing import Pushed
from hark.errors import InvalidInput
from hark.model import Limits

if TYPE_CHECKING:
    from hark.client.client import Client  # noqa: F401  # Named by the base class.
    from hark.client.producing.buffer import Buffer

_MAX_BUFFER_MS = 3_600_000


class Queue(ClientBuilder["Client"]):
    """A queue, or several by their labels: push to it, take from it, administer it.

    ```python
    orders = client.queue("orders").partition("customer-7")
    await orders.push({"id": 1})
    ```
    """

    __slots__ = ()

    # Producers ---------------------------------------------------------------------------------------------

    async def push(self, data: object, **options: Unpack[PushOptions]) -> Pushed:
        """Push one message; when this returns it is on stable storage. Concurrent pushes share a request.

        An option that it has not is a `TypeError`, one that is wrong an `InvalidInput`, and nothing is sent.
        """
        return await self._client.pusher.push(self.message(data, **options))

    async def push_many(self, items: Iterable[object]) -> list[Pushed]:
        """Push many, in order; each is data, or what `message` made of data and options."""
        return await self._client.pusher.push_many([self._message(item) for item in _several(items)])

    def message(self, data: object, **options: Unpack[PushOptions]) -> NewMessage:
        """A message with options of its own, for `push_many`."""
        return new_message(self._choices.queue_name, data, partition=self._choices.partition, **options)

    def _message(self, item: object) -> NewMessage:
        return item if isinstance(item, NewMessage) else self.message(item)

    def buffer(self, max_items: int = 100, max_ms: int = 1000) -> BufferedQueue:
        """Pushes that return at once, and are sent when there are `max_items` or after `max_ms`."""
        choices = self._with(
            buffer_items=an_integer(max_items, "max_items", 1, MAX_BATCH),
            buffer_ms=an_integer(max_ms, "max_ms", 1, _MAX_BUFFER_MS),
        )._choices
        return BufferedQueue(self._client, choices)

    # Consumers ---------------------------------------------------------------------------------------------

    async def pop(self) -> list[Message]:
        """Take what is there, up to `batch` messages, in one request; with `wait`, wait for the first one.

        They are yours for the queue's lease time, or as `lease` says, and renewed inside `async with message`.
        """
        return await self._client.pop(self._choices)

    def messages(self) -> Messages:
        """Messages one by one, without end: `async for message in ...messages(): async with message: ...`."""
        return self._client.iterate(self._choices)

    def consume(self, handler: Handler) -> Consumption:
        """Handle messages until `limit`, `idle` or `stop` end it: `await queue.consume(handler)`.

        The handler gets one message when `batch` is 1 or with `each()`, else the list of a batch. What it gets is acked
        when it returns and nacked with the error when it raises; `concurrency` handlers run at a time.
        """
        return self._client.consume(self._choices, handler)

    # Administrators ----------------------------------------------------------------------------------------

    @property
    def admin(self) -> QueueAdmin:
        """All verbs about the queue as a whole."""
        return QueueAdmin(self._client.caller, self._choices.queue_name)

    async def configure(self, **options: Unpack[QueueOptionsGiven]) -> ConfiguredQueue:
        """Make the queue with the labels and these options, or replace them all: what is not given gets its default."""
        return await self.admin.configure(namespace=self._choices.namespace, task=self._choices.task, **options)

    async def create(self) -> ConfiguredQueue:
        """Make the queue, with default options; it is also made by the first push."""
        return await self.configure()

    async def delete(self) -> bool:
        """Remove the queue with messages, groups and dead letters; whether it was there."""
        return await self.admin.delete()

    async def pause(self) -> None:
        """Stop deliveries; pushes and settlements go on."""
        await self.admin.pause()

    async def resume(self) -> None:
        """Let deliveries go on."""
        await self.admin.resume()

    async def purge(self) -> int:
        """Remove all messages, held ones too; how many that were."""
        return await self.admin.purge()

    async def stats(self) -> QueueStats:
        """The queue with its counts, options and partitions."""
        return await self.admin.stats()

    async def depth(self) -> Depth:
        """What the group, or the one that is furthest behind, has left to do."""
        return await self.admin.depth(self._choices.group)

    async def limits(self) -> Limits:
        """How much all groups together may take; 0: no bound."""
        return await self.admin.limits()

    def dlq(self) -> DeadLetters:
        """The dead letters of the queue, or of the group."""
        return DeadLetters(self._client.caller, self._choices.queue, self._choices.group)


class BufferedQueue(ClientBuilder["Client"]):
    """A queue whose pushes return at once; `flush` sends them, and tells of what failed."""

    __slots__ = ()

    async def push(self, data: object, **options: Unpack[PushOptions]) -> None:
        """Put a message into the buffer; waits only when that is full. Not stored before it was flushed.

        Raises `FlushFailed` if messages before this one could not be sent; then this one was not taken.
        """
        await self._buffer().add(Queue(self._client, self._choices).message(data, **options))

    async def push_many(self, items: Iterable[object]) -> None:
        """Put many into the buffer, in order; each is data, or what `Queue.message` made."""
        queue, buffer = Queue(self._client, self._choices), self._buffer()
        for item in _several(items):
            await buffer.add(queue._message(item))

    async def flush(self) -> None:
        """Send all that is buffered; raises `FlushFailed` for what could not be sent."""
        await self._buffer().flush()

    def _buffer(self) -> Buffer:
        choices = self._choices
        assert choices.buffer_items is not None and choices.buffer_ms is not None
        return self._client.buffers.of(choices.queue_name, choices.buffer_items, choices.buffer_ms)


def _several(items: Iterable[object]) -> Iterable[object]:
    """A text or an object can be iterated over too, but nobody means its letters or its keys."""
    if isinstance(items, (str, bytes, Mapping)):
        raise InvalidInput(f"items: expected several messages, got a {type(items).__name__}; push() takes one")
    return items
