"""Numbers about the key-value API."""

from __future__ import annotations

import pytest
from prometheus_client.parser import text_string_to_metric_families

from hark.broker.operations import Operations
from hark.clock import FakeClock
from hark.errors import EngineFailure, NotFound
from tests.http.api import read
from tests.http.keyval.keys import BASE, Keys
from tests.http.keyval.work import Work


def test_operations_are_counted_and_the_store_is_measured(keys: Keys) -> None:
    before = read(keys.client.get(f"{BASE}/metrics"))
    keys.put("a", value="x" * 100)
    assert keys.get("a") is not None
    assert keys.get("missing") is None
    keys.list()
    keys.atomic()
    after = read(keys.client.get(f"{BASE}/metrics", params={"queue": "nothing"}))
    counts = {name: numbers["count"] for name, numbers in after["operations"]["operations"].items()}
    for name, number in {"set": 1, "get": 2, "list": 1, "atomic_commit": 1}.items():
        assert counts[name] - before["operations"]["operations"].get(name, {"count": 0})["count"] == number
    numbers = after["operations"]["operations"]["get"]
    assert (set(numbers), numbers["errors"]) == ({"count", "errors", "avgLatencyMs"}, 0)
    assert after["operations"]["totals"] == {"operations": sum(counts.values()), "errors": 0}
    assert after["storage"]["entries"] == before["storage"]["entries"] + 1
    assert after["storage"]["sizeBytes"] >= before["storage"]["sizeBytes"] + 100
    assert after["queue"] == {"pending": 0, "processing": 0, "dlq": 0, "total": 0}


def test_work_queues_are_counted(keys: Keys, work: Work) -> None:
    work.enqueue(1)
    work.enqueue(2, backoffSchedule=[])
    work.ack(work.take())
    work.nack(work.take())
    metrics = read(keys.client.get(f"{BASE}/metrics", params={"queue": keys.root}))
    assert metrics["queue"] == {"pending": 0, "processing": 0, "dlq": 1, "total": 1}
    names = {"queue_enqueue": 2, "queue_dequeue": 2, "queue_ack": 1, "queue_nack": 1}
    for name, number in names.items():
        assert metrics["operations"]["operations"][name]["count"] >= number


def test_prometheus_can_read_them(keys: Keys) -> None:
    keys.put("a", value=1)
    response = keys.client.get(f"{BASE}/metrics/prometheus")
    assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert response.text.endswith("\n")
    samples = [sample for family in text_string_to_metric_families(response.text) for sample in family.samples]
    assert {sample.name for sample in samples} >= {
        "keyval_operations_total",
        "keyval_errors_total",
        "keyval_operation_duration_ms_bucket",
        "keyval_operation_duration_ms_sum",
        "keyval_operation_duration_ms_count",
        "keyval_queue_pending",
        "keyval_queue_processing",
        "keyval_queue_dlq",
        "keyval_queue_total",
        "keyval_entries_total",
        "keyval_storage_bytes",
    }
    sets = [sample for sample in samples if sample.labels.get("operation") == "set"]
    buckets = [sample.value for sample in sets if sample.name == "keyval_operation_duration_ms_bucket"]
    assert len(buckets) == 12
    assert buckets == sorted(buckets)
    assert [one.value for one in sets if one.name == "keyval_operation_duration_ms_count"] == [buckets[-1]]


def test_what_clients_do_wrong_is_not_an_error_of_the_operation() -> None:
    clock = FakeClock()
    operations = Operations(clock)
    for error in (NotFound("x"), EngineFailure("x"), ValueError("x")):
        with pytest.raises(type(error)), operations.measure("get"):
            clock.advance(0.005)
            raise error
    with operations.measure("get"):
        clock.advance(60)
    tally = operations.tallies()["get"]
    assert (tally.count, tally.errors, tally.milliseconds.sum) == (4, 2, 60_015)
    assert (tally.milliseconds.counts[1], tally.milliseconds.counts[-1]) == (3, 1)
