"""The settings of workers, in the same file as those of servers; of them, a server on S3 uses `polling`."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from hark.settings.describing import Part, about

Strategy = Literal["adaptive", "fixed"]
Interval = Annotated[float, Meta(gt=0, le=86_400_000)]

_INTERVAL = "a number of milliseconds above 0, at most 86400000"

_OLD_NAMES = ("worker.poll_interval", "HARK_POLL_INTERVAL", "QO_POLL_INTERVAL")
POLL_INTERVAL = frozenset(_OLD_NAMES)
"""Old names of `worker.polling.interval_ms`; whoever uses one of them wants fixed polling."""


class Polling(Part, frozen=True):
    """How often a worker looks for work, and any process on S3 for what others wrote."""

    strategy: Annotated[
        Strategy,
        about(
            "How a worker rests after it found nothing: `adaptive`, longer and longer, or `fixed`.",
            "QO_POLLING_STRATEGY",
            env="HARK_POLLING_STRATEGY",
        ),
    ] = "adaptive"
    min_interval_ms: Annotated[
        Interval,
        about(
            "Adaptive: milliseconds from which the rests grow.",
            "QO_POLLING_MIN_INTERVAL_MS",
            env="HARK_POLLING_MIN_INTERVAL_MS",
            expected=_INTERVAL,
        ),
    ] = 100
    max_interval_ms: Annotated[
        Interval,
        about(
            "Adaptive: milliseconds of a rest at most.",
            "QO_POLLING_MAX_INTERVAL_MS",
            env="HARK_POLLING_MAX_INTERVAL_MS",
            expected=_INTERVAL,
        ),
    ] = 5000
    backoff_multiplier: Annotated[
        float,
        Meta(gt=1, le=1000),
        about(
            "Adaptive: what a rest is multiplied by to give the next.",
            "QO_POLLING_BACKOFF_MULTIPLIER",
            env="HARK_POLLING_BACKOFF_MULTIPLIER",
            expected="a number above 1, at most 1000",
        ),
    ] = 2.0
    interval_ms: Annotated[
        Interval,
        about(
            "Fixed: milliseconds of each rest. The names with `poll_interval` set the strategy to `fixed` as well.",
            "QO_POLLING_INTERVAL_MS",
            *_OLD_NAMES,
            env="HARK_POLLING_INTERVAL_MS",
            expected=_INTERVAL,
        ),
    ] = 500


class Worker(Part, frozen=True):
    """What a worker does that its program does not say."""

    concurrency: Annotated[int, Meta(ge=1, le=10_000), about("Tasks that a worker runs at once at most.")] = 10
    grace_seconds: Annotated[
        float,
        Meta(ge=0, le=86_400),
        about("Seconds that running tasks have to finish when a worker stops; then they are handed back."),
    ] = 30
    lease_seconds: Annotated[
        int,
        Meta(ge=1, le=86_400),
        about("Seconds that a worker holds a task between two renewals at most: if it dies, others wait so long."),
    ] = 30
    health_port: Annotated[
        int, Meta(ge=0, le=65_535), about("The port at which a worker answers `/health` and `/metrics`; 0: none.")
    ] = 0
    polling: Polling = Polling()
