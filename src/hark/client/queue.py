"""The queue as producers and consumers use it, its administration, and its dead letters."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, TypedDict, Unpack, cast

import msgspec

from hark.api import operations
from hark.api.options import QueueOptionsGiven, given_limits, limits_of, with_backoff
from hark.api.types import Page
from hark.api.types.dead_letters import ListedDeadLetter, RequeuedDeadLetter
from hark.api.types.keys import WorkSettings, WorkStats
from hark.api.types.queues import ConfiguredQueue, Depth, ShownPartition, ShownQueue
from hark.client.arguments import NewMessage, PushOptions, an_integer, new_message, optional_moment
from hark.client.builder import MAX_BATCH, Builder
from hark.client.calling import Caller
from hark.client.delivery.consuming import Consumption, Handler, Messages
from hark.client.delivery.message import Message
from hark.client.pushing import Pushed
from hark.errors import Conflict, InvalidInput, NotFound, did_you_mean
from hark.model import Limits, QueueOptions

if TYPE_CHECKING:
    from hark.client.client import Client  # noqa: F401  # Named by the base class.
    from hark.client.pushing import Buffer

_MAX_BUFFER_MS = 3_600_000


class Queue(Builder["Client"]):
    """A queue to push to, consume from and administer. `client.queue("orders")` creates it.

    ```python
    orders = client.queue("orders").partition("customer-7")
    await orders.push({"id": 1})
    async for message in orders.group("billing").messages():
        async with message:
            print(message.data)
    ```

    Methods such as `partition`, `group` and `batch` return a copy with that option.
    """

    __slots__ = ()

    async def push(self, data: object, **options: Unpack[PushOptions]) -> Pushed:
        """Push a message and wait until it is stored.

        `data` is any value that msgspec can encode as JSON; a `msgspec.Raw` is sent byte for byte. The options are the
        fields of `PushOptions`: `key`, `delay`, `deliver_at`, `priority`, `ttl`, `retry_delays`, `keys_if_undelivered`,
        `trace_id`, `unique_key` and `unique_until`. The first push creates the queue and the partition. Concurrent
        pushes share a request. You can safely repeat a push with the same `key`: the second one returns the status
        `duplicate`.

        Raises `InvalidInput` if the data or an option is invalid, `TypeError` for an unknown option (nothing is sent in
        both cases), and `Overloaded` with the code `queue_full` if the queue is full.
        """
        return await self._client.pusher.push(self.message(data, **options))

    async def push_many(self, items: Iterable[object]) -> list[Pushed]:
        """Push several messages in order. Returns their results in the same order.

        Each item is data, or a message with options from `message`. All messages are tried; if some are rejected, the
        first error is raised. Pushing all of them again with the same keys is safe.
        """
        return await self._client.pusher.push_many([self._message(item) for item in _several(items)])

    def message(self, data: object, **options: Unpack[PushOptions]) -> NewMessage:
        """Build a message with push options, for `push_many`. The options are those of `push`."""
        return new_message(self._choices.queue_name, data, partition=self._choices.partition, **options)

    def _message(self, item: object) -> NewMessage:
        return item if isinstance(item, NewMessage) else self.message(item)

    def buffer(self, max_items: int = 100, max_ms: int = 1000) -> BufferedQueue:
        """Push through a buffer: pushes return immediately, and messages are sent together.

        The buffer is sent when it has `max_items` messages (1 to 10,000, default 100), or `max_ms` milliseconds after
        the first one (1 to 3,600,000, default 1000). Buffered messages are not stored yet: they are lost if the program
        crashes.
        """
        choices = self._with(
            buffer_items=an_integer(max_items, "max_items", 1, MAX_BATCH),
            buffer_ms=an_integer(max_ms, "max_ms", 1, _MAX_BUFFER_MS),
        )._choices
        return BufferedQueue(self._client, choices)

    async def pop(self) -> list[Message]:
        """Receive up to `batch` messages with one request. Returns an empty list if there are none.

        With `wait`, the request waits for the first message, `timeout` milliseconds at most. You hold the messages for
        the lease time of the queue, or of `lease`. Inside `async with message` the lease is renewed.
        """
        return await self._client.pop(self._choices)

    def messages(self) -> Messages:
        """Iterate over messages. The iteration is endless, unless `limit` or `idle` ends it.

        ```python
        async for message in client.queue("orders").group("billing").messages():
            async with message:
                print(message.data)
        ```

        When the iteration ends, messages that were received but not yet returned are released.
        """
        return Messages(self._client, self._choices.of_a_consumer())

    def consume(self, handler: Handler) -> Consumption:
        """Call a handler for each message, until `limit`, `idle` or `stop` ends it: `await queue.consume(handler)`.

        The handler is an async function, or a function that does not block. It gets one message if `batch` is 1 or with
        `each()`, otherwise the list of messages of a batch. When it returns, its messages are acknowledged. When it
        raises, they are rejected with the error text and the traceback. `concurrency` handlers run at the same time.
        """
        return Consumption(self._client, self._choices.of_a_consumer(), handler)

    @property
    def admin(self) -> QueueAdmin:
        """Administration of this queue: options, statistics, pause, purge and delete."""
        return QueueAdmin(self._client.caller, self._choices.queue_name)

    async def configure(self, **options: Unpack[QueueOptionsGiven]) -> ConfiguredQueue:
        """Create the queue, or replace its labels and all of its options.

        Options that you do not give get their default. If you give no delays between retries, they are 1, 2, 4 seconds
        and so on. The labels come from `namespace` and `task`. To change single
        options, use `admin.change`. The options are those of `QueueOptionsGiven`, for example `lease_time=60` or
        `retry_limit=5`.
        """
        return await self.admin.configure(namespace=self._choices.namespace, task=self._choices.task, **options)

    async def create(self) -> ConfiguredQueue:
        """Create the queue with default options, or reset them. The first push creates a queue, too."""
        return await self.configure()

    async def delete(self) -> bool:
        """Delete the queue with its messages, groups and dead letters. Returns whether the queue existed."""
        return await self.admin.delete()

    async def pause(self) -> None:
        """Stop deliveries from the queue. Pushes and settlements still work."""
        await self.admin.pause()

    async def resume(self) -> None:
        """Start deliveries from the queue again."""
        await self.admin.resume()

    async def purge(self) -> int:
        """Remove all messages of the queue, also messages in flight. Returns their number. Dead letters stay."""
        return await self.admin.purge()

    async def stats(self) -> ShownQueue:
        """The queue with its message counts, its options and its partitions."""
        return await self.admin.stats()

    async def depth(self) -> Depth:
        """The backlog of the selected group. Without a group: of the group that is furthest behind."""
        return await self.admin.depth(self._choices.group)

    async def limits(self) -> Limits:
        """The limits that all groups of the queue share. 0 means no limit."""
        return await self.admin.limits()

    def dlq(self) -> DeadLetters:
        """The dead letters of the queue, or of the selected group."""
        return DeadLetters(self._client.caller, self._choices.queue, self._choices.group)


class BufferedQueue(Builder["Client"]):
    """A queue whose pushes return immediately. `flush` sends the buffered messages and raises the errors."""

    __slots__ = ()

    async def push(self, data: object, **options: Unpack[PushOptions]) -> None:
        """Add a message to the buffer. Waits only if the buffer is full: it holds 10 times `max_items` messages.

        The message is not stored before the buffer is sent. Raises `FlushFailed` if earlier messages could not be sent;
        this message was then not added.
        """
        await self._buffer().add(Queue(self._client, self._choices).message(data, **options))

    async def push_many(self, items: Iterable[object]) -> None:
        """Add several messages to the buffer in order. Each item is data, or a message from `Queue.message`."""
        queue, buffer = Queue(self._client, self._choices), self._buffer()
        for item in _several(items):
            await buffer.add(queue._message(item))

    async def flush(self) -> None:
        """Send all buffered messages and wait until they are stored. Raises `FlushFailed` if some could not be sent."""
        await self._buffer().flush()

    def _buffer(self) -> Buffer:
        choices = self._choices
        assert choices.buffer_items is not None and choices.buffer_ms is not None
        return self._client.buffers.of(choices.queue_name, choices.buffer_items, choices.buffer_ms)


def _several(items: Iterable[object]) -> Iterable[object]:
    """Reject strings and mappings: they are iterable, but their characters or keys are not the messages meant."""
    if isinstance(items, (str, bytes, Mapping)):
        raise InvalidInput(
            f"items: expected a list of messages, got a {type(items).__name__}; use push() for a single message"
        )
    return items


_WIRE_NAMES = {field.name: field.encode_name for field in msgspec.structs.fields(QueueOptions)}


class QueueAdmin:
    """Administration of one queue, `client.queue("orders").admin`."""

    def __init__(self, caller: Caller, name: str) -> None:
        if not name:
            raise InvalidInput("queue: must not be empty")
        self._caller = caller
        self.name = name

    async def configure(
        self, *, namespace: str | None = None, task: str | None = None, **options: Unpack[QueueOptionsGiven]
    ) -> ConfiguredQueue:
        """Create the queue, or replace its labels and all of its options.

        Options that you do not give get their default. Without `retry_delay`, retries wait 1, 2, 4 seconds
        and so on, with `retry_multiplier` 2.
        """
        return await self._configure(namespace, task, with_backoff(wire_options(options)))

    async def change(self, **options: Unpack[QueueOptionsGiven]) -> ConfiguredQueue:
        """Change these options and keep all others.

        Of two concurrent changes, one can overwrite the other.
        """
        given = wire_options(options)
        stats = await self.stats(limit=1)
        kept = cast(dict[str, object], msgspec.to_builtins(stats.options))
        return await self._configure(stats.namespace, stats.task, kept | given)

    async def limits(self) -> Limits:
        """The limits that all groups of the queue share. 0 means no limit."""
        return limits_of((await self.stats(limit=1)).options)

    async def set_limits(
        self,
        *,
        max_in_flight: int | None = None,
        rate_limit: float | None = None,
        rate_burst: int | None = None,
        max_in_flight_per_partition: int | None = None,
        rate_limit_per_partition: float | None = None,
        rate_burst_per_partition: int | None = None,
    ) -> Limits:
        """Change the given limits and keep all other options. 0 means no limit."""
        given = given_limits(
            {
                "max_in_flight": max_in_flight,
                "rate_limit": rate_limit,
                "rate_burst": rate_burst,
                "max_in_flight_per_partition": max_in_flight_per_partition,
                "rate_limit_per_partition": rate_limit_per_partition,
                "rate_burst_per_partition": rate_burst_per_partition,
            }
        )
        return limits_of((await self.change(**cast(QueueOptionsGiven, given))).options)

    async def _configure(
        self, namespace: str | None, task: str | None, options: Mapping[str, object]
    ) -> ConfiguredQueue:
        body = {"queue": self.name, "namespace": namespace, "task": task, "options": options}
        configured = await self._caller.ask(operations.CONFIGURE, body=body, safe=True)
        if configured.ignored_options:
            names = ", ".join(configured.ignored_options)
            text = f"the server does not know these options and configured the queue without them: {names}"
            raise InvalidInput(f"{text}; leave them out or update the server")
        return configured

    async def stats(self, *, limit: int = 1000, offset: int = 0, search: str | None = None) -> ShownQueue:
        """The queue with its message counts and options, and a page of its partitions."""
        query = {"limit": limit, "offset": offset, "search": search}
        return await self._caller.ask(operations.SHOW_QUEUE, self.name, query=query)

    async def partitions(
        self, *, limit: int = 1000, offset: int = 0, search: str | None = None
    ) -> tuple[ShownPartition, ...]:
        """A page of the partitions of the queue. `search` matches a part of their names."""
        return (await self.stats(limit=limit, offset=offset, search=search)).partitions

    async def depth(self, group: str | None = None, *, limit: int = 10_000) -> Depth:
        """The backlog of a group. Without a group: of the group that is furthest behind."""
        return await self._caller.ask(operations.SHOW_DEPTH, self.name, query={"group": group, "limit": limit})

    async def delete(self) -> bool:
        """Delete the queue with its messages, groups and dead letters. Returns whether the queue existed."""
        return (await self._caller.ask(operations.DELETE_QUEUE, self.name)).existed

    async def pause(self) -> None:
        """Stop deliveries from the queue. Pushes and settlements still work."""
        await self._caller.send(operations.PAUSE_QUEUE, self.name, safe=True)

    async def resume(self) -> None:
        """Start deliveries from the queue again."""
        await self._caller.send(operations.RESUME_QUEUE, self.name, safe=True)

    async def purge(self) -> int:
        """Remove all messages, also messages in flight. Returns their number. Dead letters stay.

        If the request is repeated after a lost reply, the number is that of the second request.
        """
        return (await self._caller.ask(operations.PURGE_QUEUE, self.name, safe=True)).value

    async def work_stats(self) -> WorkStats:
        """Message counts of the default group, by state."""
        return await self._caller.ask(operations.KEYVAL_SHOW_STATS, query={"queue": self.name})

    async def work_settings(self) -> WorkSettings:
        """How long consumers of the key-value API hold a message."""
        return await self._caller.ask(operations.KEYVAL_SHOW_SETTINGS, query={"queue": self.name})

    async def set_lock_duration(self, milliseconds: int) -> WorkSettings:
        """Set how long consumers of the key-value API hold a message, in milliseconds. 0: the server's setting."""
        return await self._caller.ask(
            operations.KEYVAL_CHANGE_SETTINGS, query={"queue": self.name}, body={"lockDuration": milliseconds}
        )


def wire_options(given: Mapping[str, object]) -> dict[str, object]:
    """Options by their API names. Unknown options are rejected, because the server would ignore them."""
    unknown = [name for name in given if name not in _WIRE_NAMES]
    if unknown:
        hint = did_you_mean(unknown[0], _WIRE_NAMES) or f"; expected one of {', '.join(_WIRE_NAMES)}"
        raise InvalidInput(f"{unknown[0]}: unknown queue option{hint}")
    return {_WIRE_NAMES[name]: value for name, value in given.items() if value is not None}


# Dead letters ----------------------------------------------------------------------------------------------

_AT_ONCE = 100
_NOT_FOUND = "dead_letter_not_found"
_GRAIN = timedelta(milliseconds=1)
"""Resolution of failure times."""


class DeadLetterFilter(TypedDict, total=False):
    """Which dead letters of a queue and group. All conditions must match."""

    since: datetime | None
    """Failures from this time on, which must have a time zone."""
    until: datetime | None
    """Failures before this time, which must have a time zone."""
    partition: str | None
    """The name of the partition."""
    search: str | None
    """A part of the error text. ASCII letters match in any case."""


class DeadLetters:
    """The dead letters of all queues, of one queue, or of one group: `client.dlq()` or `queue.dlq()`.

    `async for letter in dead_letters` iterates over all of them, newest failure first. You can requeue or delete
    letters during the iteration. The filters of the methods are those of `DeadLetterFilter`.
    """

    def __init__(self, caller: Caller, queue: str | None = None, group: str | None = None) -> None:
        self._caller = caller
        self.queue = queue
        self.group = group

    def __aiter__(self) -> AsyncIterator[ListedDeadLetter]:
        return self.all()

    async def list(
        self, *, limit: int = 100, offset: int = 0, **filters: Unpack[DeadLetterFilter]
    ) -> Page[ListedDeadLetter]:
        """A page of dead letters, newest failure first, with the number of all matches."""
        query = self._query(**filters) | {"limit": limit, "offset": offset}
        return await self._caller.ask(operations.LIST_DEAD_LETTERS, query=query)

    async def all(
        self, *, page_size: int = 100, **filters: Unpack[DeadLetterFilter]
    ) -> AsyncIterator[ListedDeadLetter]:
        """Iterate over all matching dead letters, page by page. The filters are those of `list`."""
        offset = 0
        seen: set[str] = set()
        while True:
            page = await self.list(limit=page_size, offset=offset, **filters)
            fresh = [letter for letter in page.items if letter.dead_letter_id not in seen]
            for letter in fresh:
                yield letter
            if len(page.items) < page_size:
                return
            # By time, not by offset: offsets move if letters are removed during the iteration. Letters that failed in
            # the same millisecond are read again, and skipped by offset if a page has nothing else.
            ids = {letter.dead_letter_id for letter in page.items}
            end, until = page.items[-1].failed_at + _GRAIN, filters.get("until")
            if until is None or end < until:
                seen, offset, filters["until"] = ids, 0, end
            elif fresh:
                seen |= ids
            else:
                offset += page_size

    async def get(self, id: str, *, group: str | None = None) -> ListedDeadLetter:
        """One dead letter, by its own id or by the message id.

        Raises `NotFound` if there is none, and `Conflict` if the message is a dead letter in several groups.
        """
        query = {"id": id, "queue": self.queue, "consumerGroup": group or self.group, "limit": 2}
        found = (await self._caller.ask(operations.LIST_DEAD_LETTERS, query=query)).items
        if not found:
            raise NotFound(f"dead letter {id} not found", code=_NOT_FOUND)
        if len(found) > 1:
            text = f"message {id} is a dead letter in several groups; give the group, or use the dead_letter_id"
            raise Conflict(text, code="ambiguous")
        return found[0]

    async def requeue(self, id: str, *, group: str | None = None) -> RequeuedDeadLetter:
        """Requeue one dead letter: it goes to the front of its partition, for its group only.

        Raises the same errors as `get`.
        """
        return await self._caller.ask(operations.REQUEUE, id, query={"consumerGroup": group or self.group})

    async def requeue_all(self, **filters: Unpack[DeadLetterFilter]) -> int:
        """Requeue all matching dead letters, with the earliest failure in front. Returns their number.

        Letters that fail again meanwhile are not requeued a second time.
        """
        # All ids are read before the first letter is requeued, so that a letter that fails again is not requeued twice.
        letters = self.all(page_size=_AT_ONCE, **filters)
        ids = [*reversed(dict.fromkeys([letter.dead_letter_id async for letter in letters]))]
        requeued = 0
        for start in range(0, len(ids), _AT_ONCE):
            body = {"ids": ids[start : start + _AT_ONCE]}
            # Letters that another client requeued meanwhile do not count.
            requeued += (await self._caller.ask(operations.REQUEUE_MANY, body=body, safe=True)).requeued
        return requeued

    async def delete(self, id: str, *, group: str | None = None) -> bool:
        """Delete one dead letter, by its own id or by the message id. Returns whether it existed."""
        query = {"consumerGroup": group or self.group}
        return await self._caller.find(_NOT_FOUND, operations.DELETE_DEAD_LETTER, id, query=query) is not None

    async def purge(self, **filters: Unpack[DeadLetterFilter]) -> int:
        """Delete all matching dead letters of the queue. Returns their number. The filters are those of `list`."""
        if self.queue is None:
            raise InvalidInput('queue: is required to purge dead letters; use client.dlq("orders").purge()')
        return (await self._caller.ask(operations.PURGE_DEAD_LETTERS, query=self._query(**filters))).deleted

    def _query(
        self,
        since: datetime | None = None,
        until: datetime | None = None,
        partition: str | None = None,
        search: str | None = None,
    ) -> dict[str, str | int | None]:
        return {
            "queue": self.queue,
            "consumerGroup": self.group,
            "partition": partition,
            "from": optional_moment(since, "since"),
            "to": optional_moment(until, "until"),
            "search": search,
        }
