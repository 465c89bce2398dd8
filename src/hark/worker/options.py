"""Options of a worker run: from the program, the environment, hark.toml or the defaults, in this order."""

from __future__ import annotations

import os
from collections.abc import Mapping

import msgspec

from hark.errors import InvalidInput
from hark.polling import PollingStrategy
from hark.polling.strategy import strategy_from
from hark.settings import load

MAX_CONCURRENCY = 10_000
_LOCALHOST = "127.0.0.1"


class WorkerRunOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of one run of a worker. None: the value of the worker, or of the settings."""

    polling: PollingStrategy | None = None
    """How the worker pauses after it found no work. The default is the setting `worker.polling`: adaptive, 100 ms to
    5 s."""
    concurrency: int | None = None
    """Maximum number of handlers that run at the same time, 1 to 10,000. The default is that of the worker, then the
    setting `worker.concurrency` (10)."""
    grace_seconds: float | None = None
    """Maximum time of a graceful shutdown in seconds, 0 to 86,400. The default is the setting `worker.grace_seconds`
    (30)."""
    wait: bool = True
    """Wait at the server for work (long polling), the default. False: poll, and pause as `polling` says."""
    timeout_ms: int = 30_000
    """How long one request waits at the server, in milliseconds: 0 to 600,000. The default is 30,000."""
    burst: bool = False
    """Return when there is nothing to do, instead of waiting for work."""
    health: tuple[str, int] | None = None
    """Address and port of /health and /metrics, for example `("127.0.0.1", 8080)`. Port 0 selects a free port. The
    default is the setting `worker.health_port`: not served."""
    handle_signals: bool = True
    """Shut down on SIGTERM and SIGINT, the default. Python allows this in the main thread only."""

    def __post_init__(self) -> None:
        if self.concurrency is not None:
            check_concurrency(self.concurrency)
        if self.grace_seconds is not None and not 0 <= self.grace_seconds <= 86_400:
            raise InvalidInput(f"grace_seconds: expected 0 to 86400, got {self.grace_seconds!r}")
        if not 0 <= self.timeout_ms <= 600_000:
            raise InvalidInput(f"timeout_ms: expected 0 to 600000, got {self.timeout_ms!r}")
        if self.polling is not None and not isinstance(self.polling, PollingStrategy):
            raise InvalidInput(f"polling: expected a hark.PollingStrategy, got {self.polling!r}")
        if self.health is not None and not _is_address(self.health):
            raise InvalidInput(
                f"health: expected an address and a port such as ('127.0.0.1', 8080), got {self.health!r}"
            )


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a run with all defaults filled in."""

    polling: PollingStrategy
    concurrency: int
    lease_seconds: int
    grace_seconds: float
    wait: bool
    timeout_ms: int
    burst: bool
    health: tuple[str, int] | None
    handle_signals: bool


def plan_for(
    options: WorkerRunOptions,
    *,
    concurrency: int | None = None,
    lease: int | None = None,
    environment: Mapping[str, str] = os.environ,
) -> Plan:
    """Combine run options, the arguments of the worker and the settings."""
    settings = load({}, environment).settings
    worker = settings.worker
    health = options.health
    if health is None and worker.health_port:
        health = (_LOCALHOST, worker.health_port)
    return Plan(
        polling=strategy_from(settings, options.polling),
        concurrency=options.concurrency or concurrency or worker.concurrency,
        lease_seconds=lease or worker.lease_seconds,
        grace_seconds=worker.grace_seconds if options.grace_seconds is None else options.grace_seconds,
        wait=options.wait and not options.burst,
        timeout_ms=options.timeout_ms,
        burst=options.burst,
        health=health,
        handle_signals=options.handle_signals,
    )


def check_concurrency(concurrency: int) -> None:
    """Check the number of handlers."""
    if isinstance(concurrency, bool) or not isinstance(concurrency, int) or not 1 <= concurrency <= MAX_CONCURRENCY:
        raise InvalidInput(f"concurrency: expected an integer from 1 to {MAX_CONCURRENCY}, got {concurrency!r}")


def _is_address(health: object) -> bool:
    return (
        isinstance(health, tuple)
        and len(health) == 2
        and isinstance(health[0], str)
        and isinstance(health[1], int)
        and 0 <= health[1] <= 65_535
    )
