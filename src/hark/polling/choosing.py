"""Selects the polling strategy: run options, then the environment, then hark.toml, then the default."""

from __future__ import annotations

from hark.polling.strategy import PollingStrategy
from hark.settings import Settings


def strategy_from(settings: Settings, given: PollingStrategy | None = None) -> PollingStrategy:
    """The strategy from the run options, otherwise from the settings.

    If no strategy is given in code, `settings` come from `hark.settings.load({}, os.environ)`. Fields that do not
    belong to the selected strategy are ignored.
    """
    if given is not None:
        return given
    polling = settings.worker.polling
    if polling.strategy == "fixed":
        return PollingStrategy.fixed(interval_ms=polling.interval_ms)
    return PollingStrategy.adaptive(
        min_interval_ms=polling.min_interval_ms,
        max_interval_ms=polling.max_interval_ms,
        backoff_multiplier=polling.backoff_multiplier,
    )
