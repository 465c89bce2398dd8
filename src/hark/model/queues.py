"""Queues and their options."""

from __future__ import annotations

from typing import Annotated, get_type_hints

import msgspec
from msgspec import Meta


class QueueOptions(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The options of a queue. The HTTP API uses the same names in camel case."""

    lease_time: Annotated[int, Meta(description="Length of a lease, in seconds.")] = 300
    retry_limit: Annotated[
        int, Meta(description="Number of retries after the first attempt, before a message is dead-lettered.")
    ] = 3
    retry_delay: Annotated[int, Meta(description="Delay before the first retry, in milliseconds.")] = 0
    retry_multiplier: Annotated[float, Meta(description="Factor by which the delay grows with each further retry.")] = 1
    retry_max_delay: Annotated[int, Meta(description="Maximum delay before a retry, in milliseconds.")] = 3_600_000
    delayed_processing: Annotated[
        int, Meta(description="Minimum age of a message at its delivery, in seconds. 0: no minimum.")
    ] = 0
    window_buffer: Annotated[
        int,
        Meta(
            description="Time without a push after which a partition is delivered, in seconds. Delivery starts at the "
            "latest after 10 times this time. 0: immediately."
        ),
    ] = 0
    priority: Annotated[
        int, Meta(description="Priority of the queue in pops by namespace or task. Higher numbers come first.")
    ] = 0
    max_size: Annotated[
        int,
        Meta(
            description="Maximum number of messages that the slowest consumer group has not settled. Further "
            "pushes are "
            "refused. 0: no limit."
        ),
    ] = 0
    ttl: Annotated[
        int, Meta(description="Time to live of a message, in seconds. Older messages are not delivered. 0: no limit.")
    ] = 0
    dead_letter_queue: Annotated[
        bool, Meta(description="Keep dead letters. False: undeliverable messages are discarded.")
    ] = True
    dlq_after_max_retries: Annotated[
        bool,
        Meta(description="Dead-letter a message after its last attempt. False: the message is discarded and counted."),
    ] = True
    retention_enabled: Annotated[
        bool, Meta(description="Enable the options retentionSeconds and completedRetentionSeconds.")
    ] = False
    retention_seconds: Annotated[
        int, Meta(description="Age at which messages are removed, settled or not, in seconds. 0: never.")
    ] = 0
    completed_retention_seconds: Annotated[
        int,
        Meta(
            description="Age at which messages that every consumer group has settled are removed, in seconds. 0: the "
            "server setting retention.completed_seconds."
        ),
    ] = 0
    max_wait_time_seconds: Annotated[
        int,
        Meta(
            description="Age at which messages that some consumer group has not settled are removed, in seconds. "
            "0: never."
        ),
    ] = 0
    encryption_enabled: Annotated[bool, Meta(description="Encrypt payloads at rest.")] = False
    max_in_flight: Annotated[
        int,
        Meta(description="Maximum number of messages in flight. For a queue: of all groups together. 0: no limit."),
    ] = 0
    rate_limit: Annotated[
        float,
        Meta(
            description="Maximum number of messages delivered per second. For a queue: to all groups together. "
            "0: no limit."
        ),
    ] = 0
    rate_burst: Annotated[
        int,
        Meta(
            description="Maximum number of messages delivered at the same time after a pause; requires "
            "rateLimit. 0: the "
            "number that rateLimit allows in one second, at least 1."
        ),
    ] = 0
    drop_settled: Annotated[
        bool, Meta(description="Remove a message as soon as every consumer group has settled it.")
    ] = False
    lock_duration: Annotated[
        int,
        Meta(
            description="Length of a lease of the key-value API, in milliseconds. 0: the server setting "
            "queue.lock_duration."
        ),
    ] = 0


_TEXTS = get_type_hints(QueueOptions, include_extras=True)


class Limits(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The limits of a consumer group of a queue. 0 means no limit. They have the meaning of the queue options."""

    max_in_flight: int = 0
    rate_limit: float = 0
    rate_burst: int = 0


def texts_of(options: type[QueueOptions | Limits]) -> dict[str, str]:
    """Return the descriptions of options, by their names in the HTTP API."""
    fields = msgspec.structs.fields(options)
    return {field.encode_name: _TEXTS[field.name].__metadata__[0].description for field in fields}


class QueueSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A queue to create or configure."""

    name: str
    namespace: str = ""
    task: str = ""
    options: QueueOptions = QueueOptions()


class QueueInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A stored queue."""

    id: str
    name: str
    namespace: str
    task: str
    options: QueueOptions
    created_at: int
    paused: bool
    partition_id: str | None = None
    """The id of the partition `Default`, in the response to `configure`."""
