"""The cost of polling: polls per month, and dollars if each poll is a paid request.

An idle consumer polls by the clock, so the number of polls can be calculated. A busy consumer sends one poll per batch,
so the number depends on its work, and the time per batch has to be given. The default is the shortest interval, as in
seed 002.
"""

from __future__ import annotations

import math

import msgspec

from hark.errors import InvalidInput
from hark.polling.strategy import PollingStrategy

MONTH_SECONDS = 30 * 86_400


class Price(msgspec.Struct, frozen=True, kw_only=True):
    """Prices of a store in dollars per thousand requests."""

    name: str
    get_per_thousand: float
    put_per_thousand: float


AWS_S3 = Price(name="AWS S3 Standard", get_per_thousand=0.0004, put_per_thousand=0.005)
AT_A_SERVER = Price(name="a Hark server", get_per_thousand=0, put_per_thousand=0)


class Estimate(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The polls of one consumer in a month of 30 days, priced as GET requests."""

    polls_per_month: int
    dollars_per_month: float


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """A row of a comparison: a strategy, and the share of time with work."""

    name: str
    strategy: PollingStrategy
    busy_share: float


SEED_CASES = (
    Case(name="Fixed 500ms", strategy=PollingStrategy.fixed(interval_ms=500), busy_share=0),
    Case(name="Fixed 100ms", strategy=PollingStrategy.fixed(interval_ms=100), busy_share=0),
    Case(name="Adaptive (mostly idle)", strategy=PollingStrategy.adaptive(), busy_share=0),
    Case(name="Adaptive (50% busy)", strategy=PollingStrategy.adaptive(), busy_share=0.5),
    Case(name="Adaptive (always busy)", strategy=PollingStrategy.adaptive(), busy_share=1),
)
"""The table of seed 002. Its own figures for the third and the fourth row do not follow from its intervals."""


def estimate(
    strategy: PollingStrategy,
    busy_share: float = 0.0,
    *,
    batch_seconds: float | None = None,
    wait_seconds: float = 0.0,
    price: Price = AWS_S3,
) -> Estimate:
    """Estimate polls per month and their price, for a consumer that is busy for a share of the time.

    `batch_seconds` is the time per batch, and so the interval between polls of a busy consumer. `wait_seconds` is how
    long a server holds an empty poll; 0 if there is no server.
    """
    if not 0 <= busy_share <= 1:
        raise InvalidInput(f"busy_share: expected a number from 0 to 1, got {busy_share!r}")
    if batch_seconds is not None and not 0 < batch_seconds < math.inf:
        raise InvalidInput(f"batch_seconds: expected a number of seconds above 0, got {batch_seconds!r}")
    if not 0 <= wait_seconds < math.inf:
        raise InvalidInput(f"wait_seconds: expected a number of seconds of at least 0, got {wait_seconds!r}")
    idle_interval = max(strategy.longest_interval(), wait_seconds)
    busy_interval = batch_seconds or strategy.initial_interval()
    polls = MONTH_SECONDS * ((1 - busy_share) / idle_interval + busy_share / busy_interval)
    return Estimate(polls_per_month=round(polls), dollars_per_month=round(polls / 1000 * price.get_per_thousand, 4))
