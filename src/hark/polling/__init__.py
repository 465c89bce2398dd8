"""Adaptive polling: how often a consumer polls for work, and what that costs.

`strategy.py` calculates pauses, estimates their cost, and selects the strategy from run options, environment and
hark.toml. `poller.py` waits and counts.
"""

from hark.polling.poller import Poller, PollMetrics
from hark.polling.strategy import PollingStrategy, strategy_from

__all__ = ["PollMetrics", "Poller", "PollingStrategy", "strategy_from"]
