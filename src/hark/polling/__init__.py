"""Adaptive polling: how often a consumer looks for work, and what that costs.

`strategy.py` says how long to rest, `poller.py` rests, `metrics.py` counts, `cost.py` estimates, and `choosing.py`
finds the strategy that run options, environment and hark.toml ask for.
"""

from hark.polling.choosing import strategy_from
from hark.polling.metrics import PollMetrics
from hark.polling.poller import Poller
from hark.polling.strategy import PollingStrategy

__all__ = ["PollMetrics", "Poller", "PollingStrategy", "strategy_from"]
