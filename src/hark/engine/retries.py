"""The retry schedule of failed messages, the same on every engine."""

from __future__ import annotations

from hark.model import QueueOptions


def compile_schedule(options: QueueOptions) -> tuple[int, ...]:
    """The delay before each retry in milliseconds (rule 14)."""
    delays = []
    delay = float(options.retry_delay)
    for _ in range(options.retry_limit):
        delays.append(int(min(delay, options.retry_max_delay)))
        delay = min(delay * options.retry_multiplier, options.retry_max_delay)
    return tuple(delays)
