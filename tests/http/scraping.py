"""What a scraper reads, for tests."""

from __future__ import annotations

import httpx
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families


class Scrape:
    """The samples of one scrape."""

    def __init__(self, text: str) -> None:
        self.families: dict[str, Metric] = {family.name: family for family in text_string_to_metric_families(text)}
        self.samples = [sample for family in self.families.values() for sample in family.samples]
        self._values = {(sample.name, frozenset(sample.labels.items())): sample.value for sample in self.samples}
        assert len(self._values) == len(self.samples), "a series twice"

    def __call__(self, name: str, **labels: str) -> float:
        """The value of a series; 0 if it is not there."""
        return self._values.get((name, frozenset(labels.items())), 0.0)

    def sum(self, name: str) -> float:
        """The sum of all series of a name."""
        return sum(sample.value for sample in self.samples if sample.name == name)

    def names(self) -> set[str]:
        """The names of all metrics as a scraper sees them."""
        return {shown_name(family) for family in self.families.values()}


def shown_name(family: Metric) -> str:
    """The name of a metric in the text."""
    return f"{family.name}_total" if family.type == "counter" else str(family.name)


def scrape(client: httpx.Client) -> Scrape:
    """Ask a server for its metrics."""
    response = client.get("/metrics")
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    return Scrape(response.text)
