"""The options of a queue: names, defaults, bounds and texts, said once.

The checks of the HTTP API, its OpenAPI document, the options of the commands and the form of the dashboard follow from
the fields of `QueueOptions`; docs/http.md is compared with them. `QueueOptionsGiven` has its names for type checkers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, NamedTuple, TypedDict, get_type_hints

import msgspec

_YEAR = 365 * 86_400
_MOST_SECONDS = 10 * _YEAR
_MOST_MS = _MOST_SECONDS * 1000
_MOST_AGE = 100 * _YEAR
_MOST_NUMBER = 2**53 - 1
"""The largest integer that JavaScript represents exactly."""
_MOST_MESSAGES = 1_000_000_000
_SECTIONS = Literal["Delivery", "Retries", "Retention"]


class _Form(NamedTuple):
    """The place, label and unit of an option in a form, and its bounds. Null is the default."""

    section: _SECTIONS
    label: str
    unit: str
    least: float | None = None
    most: float | None = None


class QueueOptions(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The options of a queue. The HTTP API uses the same names in camel case."""

    lease_time: Annotated[
        int,
        _Form("Delivery", "Lease time", "s", 1, _MOST_SECONDS),
        "Length of a lease, in seconds.",
    ] = 300
    retry_limit: Annotated[
        int,
        _Form("Retries", "Retries", "", 0, 1000),
        "Number of retries after the first attempt, before a message is dead-lettered.",
    ] = 3
    retry_delay: Annotated[
        int,
        _Form("Retries", "First delay", "ms", 0, _MOST_MS),
        "Delay before the first retry, in milliseconds.",
    ] = 0
    retry_multiplier: Annotated[
        float,
        _Form("Retries", "Multiplier", "×", 1, 1000),
        "Factor by which the delay grows with each further retry.",
    ] = 1
    retry_max_delay: Annotated[
        int,
        _Form("Retries", "Maximum delay", "ms", 0, _MOST_MS),
        "Maximum delay before a retry, in milliseconds.",
    ] = 3_600_000
    delayed_processing: Annotated[
        int,
        _Form("Delivery", "Delivery delay", "s", 0, _MOST_SECONDS),
        "Minimum age of a message at its delivery, in seconds. 0: no minimum.",
    ] = 0
    window_buffer: Annotated[
        int,
        _Form("Delivery", "Window buffer", "s", 0, _YEAR),
        "Time without a push after which a partition is delivered, in seconds. Delivery starts at the latest "
        "after 10 times this time. 0: immediately.",
    ] = 0
    priority: Annotated[
        int,
        _Form("Delivery", "Priority", "", -1_000_000, 1_000_000),
        "Priority of the queue in pops by namespace or task. Higher numbers come first.",
    ] = 0
    max_size: Annotated[
        int,
        _Form("Retention", "Maximum size", "messages", 0, _MOST_NUMBER),
        "Maximum number of messages that the slowest consumer group has not settled. Further pushes are "
        "refused. 0: no limit.",
    ] = 0
    ttl: Annotated[
        int,
        _Form("Retention", "Time to live", "s", 0, _MOST_AGE),
        "Time to live of a message, in seconds. Older messages are not delivered. 0: no limit.",
    ] = 0
    dead_letter_queue: Annotated[
        bool,
        _Form("Retries", "Keep dead letters", ""),
        "Keep dead letters. False: undeliverable messages are discarded.",
    ] = True
    dlq_after_max_retries: Annotated[
        bool,
        _Form("Retries", "Dead-letter after the last retry", ""),
        "Dead-letter a message after its last attempt. False: the message is discarded and counted.",
    ] = True
    retention_enabled: Annotated[
        bool,
        _Form("Retention", "Remove by age", ""),
        "Enable the options retentionSeconds and completedRetentionSeconds.",
    ] = False
    retention_seconds: Annotated[
        int,
        _Form("Retention", "Remove all after", "s", 0, _MOST_AGE),
        "Age at which messages are removed, settled or not, in seconds. 0: never.",
    ] = 0
    completed_retention_seconds: Annotated[
        int,
        _Form("Retention", "Remove settled after", "s", 0, _MOST_AGE),
        "Age at which messages that every consumer group has settled are removed, in seconds. 0: the server "
        "setting retention.completed_seconds.",
    ] = 0
    max_wait_time_seconds: Annotated[
        int,
        _Form("Retention", "Maximum wait", "s", 0, _MOST_AGE),
        "Age at which messages that some consumer group has not settled are removed, in seconds. 0: never.",
    ] = 0
    dead_letter_retention_seconds: Annotated[
        int,
        _Form("Retention", "Remove dead letters after", "s", 0, _MOST_AGE),
        "Age at which dead letters are removed, in seconds after their failure. 0: never.",
    ] = 0
    encryption_enabled: Annotated[
        bool,
        _Form("Retention", "Encrypt payloads", ""),
        "Encrypt payloads at rest.",
    ] = False
    max_in_flight: Annotated[
        int,
        _Form("Delivery", "Maximum in flight", "messages", 0, _MOST_MESSAGES),
        "Maximum number of messages in flight. For a queue: of all groups together. 0: no limit.",
    ] = 0
    # Below the minimum, the wait for the next message would be longer than hours.
    rate_limit: Annotated[
        float,
        _Form("Delivery", "Rate limit", "messages/s", 0.0001, 1_000_000),
        "Maximum number of messages delivered per second. For a queue: to all groups together. 0: no limit.",
    ] = 0
    rate_burst: Annotated[
        int,
        _Form("Delivery", "Rate burst", "messages", 0, _MOST_MESSAGES),
        "Maximum number of messages delivered at the same time after a pause; requires rateLimit. 0: the "
        "number that rateLimit allows in one second, at least 1.",
    ] = 0
    max_in_flight_per_partition: Annotated[
        int,
        _Form("Delivery", "Maximum in flight per partition", "messages", 0, _MOST_MESSAGES),
        "Maximum number of messages in flight of each partition, for each consumer group by itself. 0: no limit.",
    ] = 0
    rate_limit_per_partition: Annotated[
        float,
        _Form("Delivery", "Rate limit per partition", "messages/s", 0.0001, 1_000_000),
        "Maximum number of messages of each partition delivered per second, to each consumer group by itself. "
        "0: no limit.",
    ] = 0
    rate_burst_per_partition: Annotated[
        int,
        _Form("Delivery", "Rate burst per partition", "messages", 0, _MOST_MESSAGES),
        "Maximum number of messages of a partition delivered at the same time after a pause; requires "
        "rateLimitPerPartition. 0: the number that it allows in one second, at least 1.",
    ] = 0
    drop_settled: Annotated[
        bool,
        _Form("Retention", "Remove when settled", ""),
        "Remove a message as soon as every consumer group has settled it.",
    ] = False
    lock_duration: Annotated[
        int,
        _Form("Delivery", "Lock duration", "ms", 0, _MOST_MS),
        "Length of a lease of the key-value API, in milliseconds. 0: the server setting queue.lock_duration.",
    ] = 0


RETRY_DELAY = 1000
RETRY_MULTIPLIER = 2
"""The delays between retries in queues that Hark's client or command line configures without naming any."""


def with_backoff(options: Mapping[str, object]) -> dict[str, object]:
    """Options by their API names, with growing delays between retries unless they name the first one."""
    backoff = {} if "retryDelay" in options else {"retryDelay": RETRY_DELAY, "retryMultiplier": RETRY_MULTIPLIER}
    return backoff | dict(options)


class QueueOptionsGiven(TypedDict, total=False):
    """The options as arguments of the client, for type checkers. None means not given."""

    lease_time: int | None
    retry_limit: int | None
    retry_delay: int | None
    retry_multiplier: float | None
    retry_max_delay: int | None
    delayed_processing: int | None
    window_buffer: int | None
    priority: int | None
    max_size: int | None
    ttl: int | None
    dead_letter_queue: bool | None
    dlq_after_max_retries: bool | None
    retention_enabled: bool | None
    retention_seconds: int | None
    completed_retention_seconds: int | None
    max_wait_time_seconds: int | None
    dead_letter_retention_seconds: int | None
    encryption_enabled: bool | None
    max_in_flight: int | None
    rate_limit: float | None
    rate_burst: int | None
    max_in_flight_per_partition: int | None
    rate_limit_per_partition: float | None
    rate_burst_per_partition: int | None
    drop_settled: bool | None
    lock_duration: int | None


class Limits(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The limits of a consumer group of a queue. 0 means no limit. They have the meaning of the queue options."""

    max_in_flight: int = 0
    rate_limit: float = 0
    rate_burst: int = 0
    max_in_flight_per_partition: int = 0
    rate_limit_per_partition: float = 0
    rate_burst_per_partition: int = 0


def limits_of(options: QueueOptions) -> Limits:
    """Return the limits that are options of a queue."""
    return Limits(**{name: getattr(options, name) for name in Limits.__struct_fields__})


def given_limits(named: Mapping[str, float | None]) -> dict[str, float]:
    """Return the limits that are to change, by their field names. None means not given.

    A rate of 0 removes its burst, too: the server rejects a burst without a rate.
    """
    given = {name: value for name, value in named.items() if value is not None}
    for rate, burst in (("rate_limit", "rate_burst"), ("rate_limit_per_partition", "rate_burst_per_partition")):
        if given.get(rate) == 0:
            given.setdefault(burst, 0)
    return given


class Option(msgspec.Struct, frozen=True):
    """The description of an option, by its name in the HTTP API."""

    name: str
    type: Literal["integer", "number", "boolean"]
    default: int | float | bool
    text: str
    section: _SECTIONS
    label: str
    """In a form, with its `unit`."""
    unit: str
    least: float | None
    most: float | None
    """Both are None for a boolean. A default outside of the bounds is allowed, too: 0, for no limit."""

    @property
    def schema(self) -> dict[str, object]:
        """The JSON schema of the option in a request. Null means the default."""
        bounds: dict[str, object] = {}
        if self.least is not None:
            bounds = {"minimum": min(self.least, self.default), "maximum": self.most}
        return {"description": self.text, "type": [self.type, "null"], **bounds, "default": self.default}


def _described() -> dict[str, Option]:
    hints = get_type_hints(QueueOptions, include_extras=True)
    names: dict[type, Any] = {int: "integer", float: "number", bool: "boolean"}
    options = {}
    for field in msgspec.structs.fields(QueueOptions):
        kind, [form, text] = hints[field.name].__origin__, hints[field.name].__metadata__
        options[field.encode_name] = Option(field.encode_name, names[kind], field.default, text, *form)
    return options


OPTIONS = _described()
"""The options of a queue, by their names in the HTTP API."""
LIMITS = {field.encode_name: OPTIONS[field.encode_name] for field in msgspec.structs.fields(Limits)}
"""Those that a consumer group has, too."""
