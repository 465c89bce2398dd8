"""docs/metrics.md names every metric that there is, and the dashboard and the alerts name none that there is not."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from hark.broker import Broker
from hark.clock import SystemClock
from hark.engine.sqlite import SqliteEngine
from hark.settings import Settings
from tests.http.scraping import Scrape, shown_name
from tests.http.test_metrics_bounds import at_its_worst, taken

from .examples import DOCS

_ROW = re.compile(r"^\| `([a-z0-9_]+)` \| (counter|gauge|histogram) \| ([^|]*)\| (\S.*) \|$", re.MULTILINE)
_NAME = re.compile(r"\b(?:hark|process|python)_[a-z0-9_]+\b")
_SUFFIXES = re.compile(r"_(bucket|sum|count)$")
_SELECTOR = re.compile(r"\b((?:hark|process|python)_[a-z0-9_]+)\{([^}]*)\}")
PAGE = (DOCS / "metrics.md").read_text(encoding="utf-8")
BOARD = (DOCS / "grafana.json").read_text(encoding="utf-8")


@pytest.fixture
async def everything(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Scrape]:
    """A scrape with all metrics of all engines."""
    broker = Broker(SqliteEngine(":memory:", clock=SystemClock()), Settings(), SystemClock())
    await broker.start()
    with monkeypatch.context() as patched:
        metrics, _ = await at_its_worst(broker, patched)
        found = await taken(metrics)
    yield found
    await broker.close()


def labels_of(family: Any) -> set[str]:
    """The labels of a metric, but those of buckets."""
    return {label for sample in family.samples for label in sample.labels} - {"le"}


def test_every_metric_is_in_the_table_with_its_type_and_labels(everything: Scrape) -> None:
    documented = {name: (kind, set(re.findall(r"`(\w+)`", labels))) for name, kind, labels, _ in _ROW.findall(PAGE)}
    there = {shown_name(family): (family.type, labels_of(family)) for family in everything.families.values()}
    assert set(there) - set(documented) == set(), "not in docs/metrics.md"
    assert set(documented) - set(there) == set(), "only in docs/metrics.md"
    assert documented == there


def expressions(board: Any) -> Iterator[tuple[str, str]]:
    """The queries of a dashboard, each with the title of its panel."""
    for panel in board["panels"]:
        for target in panel.get("targets", ()):
            yield panel["title"], target["expr"]


def test_the_dashboard_asks_for_nothing_that_is_not_there(everything: Scrape) -> None:
    board = json.loads(BOARD)
    queries = list(expressions(board))
    assert len(queries) > 40
    for title, expression in queries:
        check(everything, expression, title)
    for variable in board["templating"]["list"]:
        check(everything, variable["query"], variable["name"])


def test_the_alerts_ask_for_nothing_that_is_not_there(everything: Scrape) -> None:
    alerts = re.findall(r"expr: (.*)", PAGE)
    assert len(alerts) > 8
    for expression in alerts:
        assert _NAME.search(expression), expression
        check(everything, expression, "an alert")


def check(everything: Scrape, expression: str, where: str) -> None:
    """All names are those of metrics, and labels in braces or after `by` those of theirs."""
    families = {shown_name(family): family for family in everything.families.values()}
    own = {"job", "instance", "worker", "le"}
    names = set(_NAME.findall(expression))
    for name in names:
        family = families.get(name) or families.get(_SUFFIXES.sub("", name))
        assert family is not None, f"{where}: {name}"
        histogram = family.type == "histogram"
        assert histogram == (name != shown_name(family)), f"{where}: {name} is a {family.type}"
        own |= labels_of(family)
    for group in re.findall(r"by \(([^)]*)\)", expression):
        assert set(group.replace(" ", "").split(",")) <= own, f"{where}: {expression}"
    for name, selector in _SELECTOR.findall(expression):
        family = families.get(name) or families[_SUFFIXES.sub("", name)]
        queries = set(re.findall(r"(\w+)\s*(?:=~|!=|!~|=)", selector))
        assert queries <= {"job", "instance"} | labels_of(family), f"{where}: {expression}"


def test_the_dashboard_can_be_imported() -> None:
    board = json.loads(BOARD)
    assert (board["title"], board["uid"]) == ("Hark", "hark")
    ids = [panel["id"] for panel in board["panels"]]
    assert len(ids) == len(set(ids))
    sources = {panel["datasource"]["uid"] for panel in board["panels"] if panel["type"] != "row"}
    assert sources == {"${datasource}"}, "the one that the user chooses"
    for panel in board["panels"]:
        area = panel["gridPos"]
        assert area["x"] + area["w"] <= 24
        if panel["type"] != "row":
            assert panel["title"]
            assert panel["description"]
            assert panel["targets"]
