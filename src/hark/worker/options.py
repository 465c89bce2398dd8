"""How a run of a worker goes: what its program says, else the environment, else hark.toml, else the default."""

from __future__ import annotations

import os
from collections.abc import Mapping

import msgspec

from hark.errors import InvalidInput
from hark.polling import PollingStrategy
from hark.polling.choosing import strategy_from
from hark.settings import load

MAX_CONCURRENCY = 10_000
_LOCALHOST = "127.0.0.1"


class WorkerRunOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What one run of a worker does; None: as the worker or the settings say."""

    polling: PollingStrategy | None = None
    """How it rests after it found nothing."""
    concurrency: int | None = None
    """Handlers that run at a time at most."""
    grace_seconds: float | None = None
    """From the call to stop to the end of `run`: handlers have most of it to finish."""
    wait: bool = True
    """Let the server answer when there is work (long polling). False: ask, and rest as `polling` says."""
    timeout_ms: int = 30_000
    """How long it lets the server wait."""
    burst: bool = False
    """End when there is nothing to do."""
    health: tuple[str, int] | None = None
    """Where to answer /health and /metrics; port 0 takes a free one."""
    handle_signals: bool = True
    """Stop at SIGTERM and SIGINT, where Python allows to hear them: in the main thread."""

    def __post_init__(self) -> None:
        if self.concurrency is not None:
            check_concurrency(self.concurrency)
        if self.grace_seconds is not None and not 0 <= self.grace_seconds <= 86_400:
            raise InvalidInput(f"grace_seconds: expected 0 to 86400, got {self.grace_seconds!r}")
        if not 0 <= self.timeout_ms <= 600_000:
            raise InvalidInput(f"timeout_ms: expected 0 to 600000, got {self.timeout_ms!r}")
        if self.polling is not None and not isinstance(self.polling, PollingStrategy):
            raise InvalidInput(f"polling: expected something like PollingStrategy.adaptive(), got {self.polling!r}")
        if self.health is not None and not _is_address(self.health):
            raise InvalidInput(f"health: expected an address and a port, got {self.health!r}")


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a run with nothing left open."""

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
    """Join run options, what the worker was made with, and the settings."""
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
    """Refuse what is no number of handlers."""
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
