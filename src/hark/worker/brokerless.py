"""A worker whose server lives in its own process, on a store that has to be polled.

There are two who could poll: the worker, and the engine that reads what other processes wrote. Only the engine's polls
cost something, and only they can bring news; so it rests as the worker's strategy says. The worker waits for the
engine, which knows at once what it has read, what was pushed here and when a delay is over.
"""

from __future__ import annotations

import msgspec

from hark.client.transport.api import Transport
from hark.client.transport.inprocess import PollAs
from hark.polling import PollingStrategy, PollMetrics
from hark.worker.options import Plan


def polled_by_store(transport: Transport, plan: Plan) -> tuple[Plan, PollMetrics | None]:
    """Hand the strategy of a run to the store, if it is one that polls: the plan that is left, and what it counts."""
    poll_as: PollAs | None = getattr(transport, "poll_as", None)  # Only those in this process know of such a thing.
    if poll_as is None:
        return plan, None
    metrics = poll_as(plan.polling)
    waiting = msgspec.structs.replace(plan, wait=not plan.burst, polling=PollingStrategy.adaptive())
    return waiting, metrics
