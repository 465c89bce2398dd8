"""Runs the scenarios of the official client against Hark, in a process that has one version of it.

Usage: python -m tests.official_clients.scenarios URL. The last line printed is JSON: for each scenario its queue and
its result, or its error. What the results must be is in `test_official_client.py`.
"""

from __future__ import annotations

import asyncio
import json
import sys
import traceback
import uuid
from collections.abc import Awaitable, Callable
from typing import Any

from queen import Queen

from tests.official_clients import management, messaging

SECONDS_PER_SCENARIO = 30
Scenario = Callable[[Any, str], Awaitable[Any]]

SCENARIOS: list[Scenario] = [
    messaging.configure,
    messaging.push_and_pop,
    messaging.names,
    messaging.consume_with_concurrency,
    messaging.consume_each_with_limit,
    messaging.nack_and_retry,
    messaging.failing_for_good,
    messaging.ack_in_all_ways,
    management.transactions,
    management.subscriptions,
    management.many_partitions,
    management.lease_renewal,
    management.deletions,
    management.traces,
    messaging.buffered_push,
    management.pop_by_labels,
    messaging.long_poll,
    management.administration,
    messaging.auto_ack_at_delivery,
]


async def main(url: str) -> None:
    """Run all of them, each on a queue of its own."""
    outcomes: dict[str, Any] = {}
    queen = Queen(url)
    for scenario in SCENARIOS:
        name = getattr(scenario, "__name__", "?")
        queue = f"{name}-{uuid.uuid4().hex[:8]}"
        try:
            async with asyncio.timeout(SECONDS_PER_SCENARIO):
                outcomes[name] = {"queue": queue, "result": await scenario(queen, queue)}
        except Exception:
            outcomes[name] = {"queue": queue, "error": traceback.format_exc()}
    await queen.close()
    print(f"\n{json.dumps(outcomes)}", flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
