"""A worker whose server lives in its own process, on a store that has to be polled.

Both the worker and the engine could poll. Only the polls of the engine cost something and can find new work, so the
engine uses the polling strategy of the worker. The worker waits for the engine, which knows immediately what it has
read, what was pushed here and when a delay ends.
"""

from __future__ import annotations

import msgspec

from hark.client.transport.api import Transport
from hark.client.transport.inprocess import PollAs
from hark.polling import PollingStrategy, PollMetrics
from hark.worker.options import Plan


def polled_by_store(transport: Transport, plan: Plan) -> tuple[Plan, PollMetrics | None]:
    """Give the strategy of a run to the store, if it polls. Returns the remaining plan, and the poll metrics."""
    poll_as: PollAs | None = getattr(transport, "poll_as", None)  # Only transports in this process have it.
    if poll_as is None:
        return plan, None
    metrics = poll_as(plan.polling)
    waiting = msgspec.structs.replace(plan, wait=not plan.burst, polling=PollingStrategy.adaptive())
    return waiting, metrics
