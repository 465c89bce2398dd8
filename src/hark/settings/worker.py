"""Settings of workers. A server on S3 also uses `polling`."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from hark.settings.describing import Part, about

Strategy = Literal["adaptive", "fixed"]
Interval = Annotated[float, Meta(gt=0, le=86_400_000)]

_INTERVAL = "a number of milliseconds above 0, at most 86400000"

_OLD_NAMES = ("worker.poll_interval", "HARK_POLL_INTERVAL", "QO_POLL_INTERVAL")
POLL_INTERVAL = frozenset(_OLD_NAMES)
"""Old names of `worker.polling.interval_ms`. Each of them also sets the strategy to `fixed`."""


class Polling(Part, frozen=True):
    """How often an idle worker polls for work, and a process on S3 polls its bucket."""

    strategy: Annotated[
        Strategy,
        about(
            "Polling interval: `adaptive` (grows while idle) or `fixed`.",
            "QO_POLLING_STRATEGY",
            env="HARK_POLLING_STRATEGY",
        ),
    ] = "adaptive"
    min_interval_ms: Annotated[
        Interval,
        about(
            "Adaptive: initial interval, in milliseconds.",
            "QO_POLLING_MIN_INTERVAL_MS",
            env="HARK_POLLING_MIN_INTERVAL_MS",
            expected=_INTERVAL,
        ),
    ] = 100
    max_interval_ms: Annotated[
        Interval,
        about(
            "Adaptive: maximum interval, in milliseconds.",
            "QO_POLLING_MAX_INTERVAL_MS",
            env="HARK_POLLING_MAX_INTERVAL_MS",
            expected=_INTERVAL,
        ),
    ] = 5000
    backoff_multiplier: Annotated[
        float,
        Meta(gt=1, le=1000),
        about(
            "Adaptive: growth factor of the interval.",
            "QO_POLLING_BACKOFF_MULTIPLIER",
            env="HARK_POLLING_BACKOFF_MULTIPLIER",
            expected="a number above 1, at most 1000",
        ),
    ] = 2.0
    interval_ms: Annotated[
        Interval,
        about(
            "Fixed: interval in milliseconds. The `poll_interval` aliases also set the strategy to `fixed`.",
            "QO_POLLING_INTERVAL_MS",
            *_OLD_NAMES,
            env="HARK_POLLING_INTERVAL_MS",
            expected=_INTERVAL,
        ),
    ] = 500


class Worker(Part, frozen=True):
    """Defaults for a worker; its run options override them."""

    concurrency: Annotated[int, Meta(ge=1, le=10_000), about("Maximum number of concurrent tasks.")] = 10
    grace_seconds: Annotated[
        float,
        Meta(ge=0, le=86_400),
        about("Time for running tasks to finish at shutdown, in seconds. Then their messages are released."),
    ] = 30
    lease_seconds: Annotated[
        int,
        Meta(ge=1, le=86_400),
        about("Lease of a running task, renewed by the worker, in seconds."),
    ] = 30
    health_port: Annotated[int, Meta(ge=0, le=65_535), about("Port for `/health` and `/metrics`. 0: none.")] = 0
    polling: Polling = Polling()
