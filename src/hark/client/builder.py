"""The fluent builder: every method answers a copy with one more thing said."""

from __future__ import annotations

from datetime import datetime
from typing import Generic, Self, TypeVar

from msgspec.structs import replace

from hark.client.choices import (
    MAX_BATCH,
    MAX_CONSUMER_PRIORITY,
    MAX_LEASE_SECONDS,
    MAX_TIMEOUT_MS,
    Choices,
    a_beginning,
    a_group_mode,
    a_subscription_mode,
    a_switch,
    an_integer,
)
from hark.client.values import a_name
from hark.errors import InvalidInput
from hark.model import QUEUE_MODE, GroupMode

C = TypeVar("C")

_MANY = 1_000_000_000


class Builder:
    """Says which messages of which queue, and how they are taken; what it is, it stays."""

    __slots__ = ("_choices",)

    def __init__(self, choices: Choices) -> None:
        self._choices = choices

    def _copy(self, choices: Choices) -> Self:
        """The same with other choices; subclasses that have more than choices hand it on."""
        return type(self)(choices)

    def _with(self, **changes: object) -> Self:
        return self._copy(replace(self._choices, **changes))

    def __repr__(self) -> str:
        default = Choices()
        said = [
            f"{name}={value!r}"
            for name in Choices.__struct_fields__
            if (value := getattr(self._choices, name)) != getattr(default, name)
        ]
        return f"{type(self).__name__}({', '.join(said)})"

    def queue(self, name: str) -> Self:
        """The queue."""
        return self._with(queue=a_name(name, "queue"))

    def partition(self, name: str) -> Self:
        """One partition: pushes go there, consumers take from nowhere else."""
        return self._with(partition=a_name(name, "partition"))

    def namespace(self, name: str) -> Self:
        """Consume from all queues of a namespace; or the namespace to configure the queue with."""
        return self._with(namespace=a_name(name, "namespace"))

    def task(self, name: str) -> Self:
        """Consume from all queues of a task; or the task to configure the queue with."""
        return self._with(task=a_name(name, "task"))

    def group(self, name: str = QUEUE_MODE, mode: GroupMode | None = None) -> Self:
        """Consume as a group: every group sees every message. `mode` is how its members share, fixed at first use."""
        return self._with(group=a_name(name, "group"), group_mode=a_group_mode(mode))

    def batch(self, size: int) -> Self:
        """Take so many messages at a time, at most."""
        return self._with(batch=an_integer(size, "batch", 1, MAX_BATCH))

    def partitions(self, count: int) -> Self:
        """Take a batch from so many partitions, at most."""
        return self._with(partitions=an_integer(count, "partitions", 1, MAX_BATCH))

    def wait(self, enabled: bool = True) -> Self:
        """Wait at the server for the first message. Unsaid, `pop` does not, `consume` and `messages` do."""
        return self._with(wait=a_switch(enabled, "wait"))

    def timeout(self, ms: int) -> Self:
        """How long one request waits at the server, in milliseconds."""
        return self._with(timeout_ms=an_integer(ms, "timeout", 0, MAX_TIMEOUT_MS))

    def concurrency(self, count: int) -> Self:
        """Run so many handlers of `consume` at a time; each takes batches of its own."""
        return self._with(concurrency=an_integer(count, "concurrency", 1, 10_000))

    def limit(self, count: int) -> Self:
        """End after so many messages in all."""
        return self._with(limit=an_integer(count, "limit", 1, _MANY))

    def idle(self, ms: int) -> Self:
        """End when nothing came for so many milliseconds."""
        return self._with(idle_ms=an_integer(ms, "idle", 1, _MANY))

    def each(self, enabled: bool = True) -> Self:
        """Give the handler of `consume` one message at a time, also with a larger batch."""
        return self._with(each=a_switch(enabled, "each"))

    def auto_ack(self, enabled: bool = True) -> Self:
        """Settled by the server as it is delivered: at most once, no lease, nothing to ack."""
        return self._with(auto_ack=a_switch(enabled, "auto_ack"))

    def renew_lease(self, enabled: bool = True, interval_ms: int | None = None) -> Self:
        """Renew the leases of what is in hand, also while a handler blocks the loop.

        Unsaid, `consume` and `messages` do, with leases of 30 seconds unless `lease` says otherwise, so that a
        consumer that dies is soon replaced. They are renewed at a third of their time, or every `interval_ms`.
        """
        every = None if interval_ms is None else an_integer(interval_ms, "interval_ms", 1, MAX_LEASE_SECONDS * 1000)
        return self._with(renew=a_switch(enabled, "renew_lease"), renew_ms=every)._consistent()

    def lease(self, seconds: int) -> Self:
        """Hold what is taken for so long, instead of the queue's `leaseTime`."""
        return self._with(lease_seconds=an_integer(seconds, "lease", 1, MAX_LEASE_SECONDS))._consistent()

    def polling(self, enabled: bool = True) -> Self:
        """Ask again and again (`poll_interval`) instead of waiting at the server."""
        return self._with(polling=a_switch(enabled, "polling"))

    def poll_interval(self, ms: int) -> Self:
        """How long to pause after an empty answer with `polling(True)`, in milliseconds."""
        return self._with(poll_ms=an_integer(ms, "poll_interval", 1, _MANY))

    def subscription_mode(self, mode: str) -> Self:
        """Where a new group starts: `all` or `new`."""
        return self._with(subscription_mode=a_subscription_mode(mode))

    def subscription_from(self, moment: str | datetime) -> Self:
        """Where a new group starts: `now`, or after a time."""
        return self._with(subscription_from=a_beginning(moment))

    def consumer_priority(self, priority: int) -> Self:
        """Among those who wait, higher ones are served first."""
        low, high = -MAX_CONSUMER_PRIORITY, MAX_CONSUMER_PRIORITY
        return self._with(consumer_priority=an_integer(priority, "consumer_priority", low, high))

    def consumer(self, name: str) -> Self:
        """What this consumer is called where leases and those who wait are shown; unsaid, it is its address."""
        return self._with(consumer=a_name(name, "consumer"))

    def _consistent(self) -> Self:
        interval, lease = self._choices.renew_ms, self._choices.lease_seconds
        if interval is not None and lease is not None and interval >= lease * 1000:
            raise InvalidInput(f"interval_ms: expected less than the lease of {lease} s, got {interval}")
        return self


class ClientBuilder(Builder, Generic[C]):
    """A builder whose verbs need a client, the async or the sync one."""

    __slots__ = ("_client",)

    def __init__(self, client: C, choices: Choices) -> None:
        super().__init__(choices)
        self._client = client

    def _copy(self, choices: Choices) -> Self:
        return type(self)(self._client, choices)
