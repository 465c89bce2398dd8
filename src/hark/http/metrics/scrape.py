"""A scrape: asks the store for its metrics, and combines all metrics."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.metrics_core import Metric

from hark.broker import Broker
from hark.errors import HarkError
from hark.http.measuring import Requests
from hark.http.metrics.busiest import SHOWN, BusiestQueues
from hark.http.metrics.delivery import delivery_metrics
from hark.http.metrics.depths import depth_metrics
from hark.http.metrics.messages import message_metrics
from hark.http.metrics.server import server_metrics
from hark.http.metrics.store import call_metrics, only_grows, store_metrics
from hark.prometheus import text

Load = Callable[[], tuple[int, int]]
"""Returns the number of connections and of requests in progress."""
STORE_SECONDS = 2
"""Seconds that a scrape waits for the store. The other metrics matter most while the store does not respond."""


class Metrics:
    """The metrics of one server process."""

    def __init__(self, broker: Broker, requests: Requests, processes: int = 1) -> None:
        """With several processes, each shows its share of the busiest queues."""
        self._broker = broker
        self._requests = requests
        self._shown = max(1, SHOWN // processes)
        self.everybody: Callable[[], Awaitable[list[Metric]]] | None = None
        """Collects the metrics of all processes of this server; None: there is only this process."""
        self.load: Load = lambda: (0, 0)
        """The load of the server that has these metrics."""
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        PlatformCollector(registry=self._registry)
        GCCollector(registry=self._registry)
        self._busiest: BusiestQueues | None = None
        self._counted: dict[str, float] = {}
        """The last counters of the store. A counter must not fall, or Prometheus would see a restart."""

    async def scrape(self) -> bytes:
        """Return the metrics in the Prometheus text format."""
        families = await (self.collect() if self.everybody is None else self.everybody())
        # Formatting takes some milliseconds, so it runs in a thread.
        return await asyncio.to_thread(text, families)

    async def collect(self) -> list[Metric]:
        """Return the metrics of this process."""
        store = await self._ask_store()
        return list(self._collect(store, self.load()))

    async def _ask_store(self) -> Mapping[str, float] | None:
        try:
            async with asyncio.timeout(STORE_SECONDS):
                store = await self._broker.engine.store_metrics()
            self._counted = {name: number for name, number in store.items() if only_grows(name)}
            return store
        except (HarkError, TimeoutError):
            return None

    def _collect(self, store: Mapping[str, float] | None, load: tuple[int, int]) -> Iterator[Metric]:
        broker = self._broker
        if self._busiest is None:
            self._busiest = BusiestQueues(broker.tallies, self._shown)
        by_queue = self._busiest.look(broker.observed.backlogs)
        yield from message_metrics(broker, self._counted, by_queue)
        if (depths := broker.observed.depths) is not None:
            yield from depth_metrics(depths, by_queue.keys(), broker.delivery.timers.now())
        yield from delivery_metrics(broker)
        yield from call_metrics(broker)
        yield from store_metrics(self._counted if store is None else store, is_up=store is not None)
        yield from server_metrics(broker, self._requests, load)
        yield from self._registry.collect()
