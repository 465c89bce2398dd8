"""The options that a user chose on a builder, checked when they are set, so that the error points at the right line."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import Generic, Self, TypeVar

import msgspec
from msgspec.structs import replace

from hark.client.arguments import a_moment, a_name, an_integer
from hark.client.calling import Value
from hark.errors import InvalidInput
from hark.model import QUEUE_MODE, GroupMode

RENEWED_LEASE_SECONDS = 30
"""Lease time of leases that are renewed. If their consumer crashes, another one receives the messages after this
time."""
MAX_TIMEOUT_MS = 600_000
MAX_LEASE_SECONDS = 315_360_000
MAX_BATCH = 10_000
MAX_CONSUMER_PRIORITY = 1000


class PopParams(msgspec.Struct, frozen=True, kw_only=True):
    """The parameters of a pop. None means the default of the server."""

    queue: str | None = None
    partition: str | None = None
    namespace: str | None = None
    task: str | None = None
    group: str | None = None
    group_mode: GroupMode | None = None
    batch: int = 1
    """Maximum number of messages per request, however many the consumer could take."""
    partitions: int = 1
    auto_ack: bool = False
    wait: bool | None = None
    timeout_ms: int = 30_000
    subscription_mode: str | None = None
    subscription_from: str | None = None
    lease_seconds: int | None = None
    consumer_priority: int = 0
    consumer: str | None = None
    """The name of the consumer in lists of leases."""

    @property
    def waits(self) -> bool:
        """Whether the request waits at the server for a message."""
        return self.wait is not False

    @property
    def seconds(self) -> float:
        """Seconds that the request waits for a message."""
        return self.timeout_ms / 1000 if self.waits else 0.0

    def scope(self) -> dict[str, Value]:
        """What to consume: a queue and perhaps its partition, otherwise labels of queues. Raises `InvalidInput`."""
        if not (self.queue or self.namespace or self.task):
            raise InvalidInput(
                "queue, namespace or task is required: name what to consume, for example with client.queue(...)"
            )
        if self.partition and not self.queue:
            raise InvalidInput("partition: only valid with a queue; name one with queue(...)")
        names = ("queue", "partition") if self.queue else ("namespace", "task")
        return {name: value for name in names if (value := getattr(self, name))}

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


class Choices(PopParams, frozen=True, kw_only=True):
    """Which messages of which queue to consume, and how. None means not chosen."""

    concurrency: int = 1
    limit: int | None = None
    idle_ms: int | None = None
    each: bool = False
    renew: bool | None = None
    renew_ms: int | None = None
    polling: bool = False
    poll_ms: int | None = None
    buffer_items: int | None = None
    buffer_ms: int | None = None

    @property
    def queue_name(self) -> str:
        """The name of the queue, for operations that need one."""
        if self.queue is None:
            raise InvalidInput('queue: this operation needs a queue name; use client.queue("orders")')
        return self.queue

    @property
    def renewed_seconds(self) -> int | None:
        """The lease time in seconds of renewed leases. None if leases are not renewed."""
        if self.renew is False or self.auto_ack:
            return None
        if self.lease_seconds is not None:
            return self.lease_seconds
        # Leases are renewed after a third of their time.
        return RENEWED_LEASE_SECONDS if self.renew_ms is None else max(1, math.ceil(3 * self.renew_ms / 1000))

    def of_a_pop(self) -> Choices:
        """The choices of one pop. With `renew_lease(True)` the lease has the time of renewed leases."""
        seconds = (self.renewed_seconds if self.renew else None) or self.lease_seconds
        return replace(self, wait=self.wait or False, lease_seconds=seconds)

    def of_a_consumer(self) -> Choices:
        """The choices of a consumer that receives until it ends: it waits at the server, and renews its leases."""
        timeout_ms = self.timeout_ms if self.idle_ms is None else min(self.timeout_ms, self.idle_ms)
        wait = not self.polling and self.waits
        seconds = self.renewed_seconds or self.lease_seconds
        self.scope()  # Raises an error before anything is sent.
        return replace(self, wait=wait, lease_seconds=seconds, timeout_ms=timeout_ms)


def a_switch(value: object, field: str) -> bool:
    """Check that a value is True or False."""
    if not isinstance(value, bool):
        raise InvalidInput(f"{field}: expected True or False, got {value!r}")
    return value


C = TypeVar("C")

_MANY = 1_000_000_000


class Builder(Generic[C]):
    """Options that select messages and say how to consume them. Builders are immutable: every method returns a copy.

    You can keep a builder and extend it later. An invalid value raises `InvalidInput` immediately.
    """

    __slots__ = ("_choices", "_client")

    def __init__(self, client: C, choices: Choices) -> None:
        self._client = client
        """The client, async or sync."""
        self._choices = choices

    def _with(self, **changes: object) -> Self:
        return type(self)(self._client, replace(self._choices, **changes))

    def __repr__(self) -> str:
        default = Choices()
        choices = [
            f"{name}={value!r}"
            for name in Choices.__struct_fields__
            if (value := getattr(self._choices, name)) != getattr(default, name)
        ]
        return f"{type(self).__name__}({', '.join(choices)})"

    def queue(self, name: str) -> Self:
        """Select the queue by its name."""
        return self._with(queue=a_name(name, "queue"))

    def partition(self, name: str) -> Self:
        """Use one partition only: pushes go to it, and consumers receive from it alone. Pushes default to `Default`."""
        return self._with(partition=a_name(name, "partition"))

    def namespace(self, name: str) -> Self:
        """Consume from all queues in a namespace, if no queue is named.

        For a named queue, this is the namespace that `configure` gives it.
        """
        return self._with(namespace=a_name(name, "namespace"))

    def task(self, name: str) -> Self:
        """Consume from all queues with a task label, if no queue is named.

        For a named queue, this is the task label that `configure` gives it.
        """
        return self._with(task=a_name(name, "task"))

    def group(self, name: str = QUEUE_MODE, mode: GroupMode | None = None) -> Self:
        """Consume as a member of a consumer group. Every group receives every message.

        `mode` applies when the group is new and is fixed from then on. In an `"ordered"` group, one consumer at a time
        works through a partition in order. In a `"shared"` group, each message goes to any free consumer. None leaves
        the choice to the server, which creates ordered groups. Without a name, it selects the default group of the
        queue.
        """
        if mode not in (None, "ordered", "shared"):
            raise InvalidInput(f"group mode: expected 'ordered', 'shared' or None, got {mode!r}")
        return self._with(group=a_name(name, "group"), group_mode=mode)

    def batch(self, size: int) -> Self:
        """Receive at most this many messages per request, 1 to 10,000. The default is 1."""
        return self._with(batch=an_integer(size, "batch", 1, MAX_BATCH))

    def partitions(self, count: int) -> Self:
        """Fill a batch from at most this many partitions, 1 to 10,000. The default is 1."""
        return self._with(partitions=an_integer(count, "partitions", 1, MAX_BATCH))

    def wait(self, enabled: bool = True) -> Self:
        """Wait at the server until a message arrives. By default `pop` does not wait; `consume` and `messages` do."""
        return self._with(wait=a_switch(enabled, "wait"))

    def timeout(self, ms: int) -> Self:
        """How long one request waits at the server, in milliseconds: 0 to 600,000. The default is 30,000."""
        return self._with(timeout_ms=an_integer(ms, "timeout", 0, MAX_TIMEOUT_MS))

    def concurrency(self, count: int) -> Self:
        """Number of `consume` handlers that run at the same time, 1 to 10,000. The default is 1."""
        return self._with(concurrency=an_integer(count, "concurrency", 1, 10_000))

    def limit(self, count: int) -> Self:
        """Stop `consume` or `messages` after this many messages in total. The default is no limit."""
        return self._with(limit=an_integer(count, "limit", 1, _MANY))

    def idle(self, ms: int) -> Self:
        """Stop `consume` or `messages` when no message has arrived for this many milliseconds. The default is never."""
        return self._with(idle_ms=an_integer(ms, "idle", 1, _MANY))

    def each(self, enabled: bool = True) -> Self:
        """Call the `consume` handler with one message at a time, also if `batch` is larger than 1."""
        return self._with(each=a_switch(enabled, "each"))

    def auto_ack(self, enabled: bool = True) -> Self:
        """Let the server acknowledge messages when it delivers them: at most once delivery.

        Such messages have no lease and need no settlement. A message is lost if its consumer crashes. The default is
        off.
        """
        return self._with(auto_ack=a_switch(enabled, "auto_ack"))

    def renew_lease(self, enabled: bool = True, interval_ms: int | None = None) -> Self:
        """Renew the leases of received messages until they are settled, also while a handler blocks the event loop.

        `consume` and `messages` do this by default. Their leases last 30 seconds unless `lease` sets another time, so
        another consumer soon takes over after a crash. Leases are renewed after a third of their time, or every
        `interval_ms` milliseconds. After `pop`, leases are renewed inside `async with message` by default, and from
        delivery on with `renew_lease(True)`. `renew_lease(False)` turns renewal off.
        """
        every = None if interval_ms is None else an_integer(interval_ms, "interval_ms", 1, MAX_LEASE_SECONDS * 1000)
        return self._with(renew=a_switch(enabled, "renew_lease"), renew_ms=every)._consistent()

    def lease(self, seconds: int) -> Self:
        """How long the consumer holds received messages, in seconds: 1 to 315,360,000.

        The default is 30 seconds for `consume` and `messages`, which renew leases, and the `leaseTime` of the queue for
        `pop`.
        """
        return self._with(lease_seconds=an_integer(seconds, "lease", 1, MAX_LEASE_SECONDS))._consistent()

    def polling(self, enabled: bool = True) -> Self:
        """Poll at a fixed interval (`poll_interval`) instead of waiting at the server. The default is off."""
        return self._with(polling=a_switch(enabled, "polling"))

    def poll_interval(self, ms: int) -> Self:
        """How long to pause after an empty response with `polling(True)`, in milliseconds. The default is 1000."""
        return self._with(poll_ms=an_integer(ms, "poll_interval", 1, _MANY))

    def subscription_mode(self, mode: str) -> Self:
        """Where a new consumer group starts: `"all"` (with the oldest stored message) or `"new"` (with the next push).

        `"from_beginning"` and `"new-only"` are other names for the same. The server's setting
        `pop.default_subscription` is the default.
        """
        modes = ("all", "from_beginning", "new", "new-only")
        if mode not in modes:
            raise InvalidInput(f"subscription_mode: expected one of {', '.join(modes)}, got {mode!r}")
        return self._with(subscription_mode=mode)

    def subscription_from(self, moment: str | datetime) -> Self:
        """Start a new consumer group after this time: `"now"`, an ISO 8601 string, or a datetime with a time zone."""
        if isinstance(moment, datetime):
            a_moment(moment, "subscription_from")
            moment = moment.astimezone(UTC).isoformat()
        elif not isinstance(moment, str) or not moment:
            text = f"expected 'now', an ISO 8601 time or a datetime, got {moment!r}"
            raise InvalidInput(f"subscription_from: {text}")
        return self._with(subscription_from=moment)

    def consumer_priority(self, priority: int) -> Self:
        """Priority among waiting consumers, -1000 to 1000: consumers with a higher priority are served first.

        The default is 0.
        """
        low, high = -MAX_CONSUMER_PRIORITY, MAX_CONSUMER_PRIORITY
        return self._with(consumer_priority=an_integer(priority, "consumer_priority", low, high))

    def consumer(self, name: str) -> Self:
        """The name of this consumer in lists of leases and waiting consumers, 1 to 255 bytes.

        The default is the subject of its token and its address.
        """
        return self._with(consumer=a_name(name, "consumer"))

    def _consistent(self) -> Self:
        interval, lease = self._choices.renew_ms, self._choices.lease_seconds
        if interval is not None and lease is not None and interval >= lease * 1000:
            raise InvalidInput(f"interval_ms: expected less than the lease of {lease} s, got {interval} ms")
        return self
