"""Adaptive polling: how often a consumer polls for work, and what that costs.

`strategy.py` calculates pauses, `poller.py` waits, `metrics.py` counts, `cost.py` estimates, and `choosing.py` selects
the strategy from run options, environment and hark.toml.
"""

from hark.polling.choosing import strategy_from
from hark.polling.metrics import PollMetrics
from hark.polling.poller import Poller
from hark.polling.strategy import PollingStrategy

__all__ = ["PollMetrics", "Poller", "PollingStrategy", "strategy_from"]
