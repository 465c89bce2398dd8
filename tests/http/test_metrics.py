"""GET /metrics, and /keyval/api/metrics: each number moves when the thing happens that it counts."""

from __future__ import annotations

import re
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

import hark
from hark.broker.tallies import Operations
from hark.clock import FakeClock
from hark.errors import EngineFailure, NotFound
from tests.http.api import WAIT, Api, acknowledgment, read
from tests.http.keyval.keys import BASE, Keys, watching
from tests.http.keyval.work import Work
from tests.http.scraping import Scrape, scrape, shown_name
from tests.http.streaming import WAIT_SECONDS, listening, websocket


@pytest.fixture
def api(fresh_api: Api) -> Api:
    """Of a server that nobody else asks."""
    return fresh_api


class Growth:
    """What has been added to counters since the beginning of a test."""

    def __init__(self, client: httpx.Client) -> None:
        self._client = client
        self.before = scrape(client)

    def __call__(self, name: str, **labels: str) -> float:
        """How much a counter grew."""
        return scrape(self._client)(name, **labels) - self.before(name, **labels)

    def check(self, **expected: float) -> None:
        """How much counters without labels grew."""
        now = scrape(self._client)
        names = {name: f"hark_{name}" for name in expected}
        assert {name: now(names[name]) - self.before(names[name]) for name in expected} == expected


@pytest.fixture
def grown(api: Api) -> Growth:
    """The counters of that server."""
    return Growth(api.client)


def test_names_and_texts_follow_the_conventions(api: Api) -> None:
    shown = scrape(api.client)
    assert len(shown.names()) > 50
    # The first survey may have ended meanwhile.
    assert Scrape(api.client.get("/metrics/prometheus").text).names() >= shown.names()
    for family in shown.families.values():
        name = shown_name(family)
        assert re.fullmatch(r"(hark|process|python)(_[a-z0-9]+)+", name), name
        assert family.documentation, name
        if name.startswith("hark_"):
            assert family.documentation.endswith("."), name
            assert not re.search(r"_(ms|milliseconds|minutes|count|kb|mb|kilobytes|megabytes)(_|$)", name), name
            assert (family.type == "counter") == name.endswith("_total"), name
            assert not any("hark" in label for sample in family.samples for label in sample.labels), name
        if family.type == "histogram" and name.endswith("seconds"):
            assert {sample.name.removeprefix(name) for sample in family.samples} <= {"_bucket", "_sum", "_count"}


def test_the_store_the_process_the_version_the_event_loop_and_maintenance_show(api: Api) -> None:
    shown = scrape(api.client)
    assert shown("hark_store_up") == 1
    assert shown("hark_store_database_bytes") > 0
    assert shown("hark_build_info", version=hark.__version__) == 1
    assert shown("process_resident_memory_bytes") > 0
    assert shown("process_cpu_seconds_total") > 0
    assert shown.sum("python_info") == 1
    assert "hark_event_loop_lag_seconds" in shown.names()
    for path, push, pop in (("", 1, 0), ("/pop", 1, 1)):
        read(api.post(f"/system/maintenance{path}", {"enabled": True}))
        shown = scrape(api.client)
        assert (shown("hark_maintenance", verb="push"), shown("hark_maintenance", verb="pop")) == (push, pop)


# Messages --------------------------------------------------------------------------------------------------


def test_pushes_are_counted_by_what_became_of_them(api: Api, grown: Growth, queue: str) -> None:
    api.configure(queue, maxSize=2)
    api.push(queue, 1, transactionId="same")
    api.push(queue, 1, transactionId="same")
    api.push(queue, 2, 3)
    grown.check(push_requests_total=3, pushed_messages_total=2, push_duplicates_total=1, push_refusals_total=1)
    assert grown("hark_queue_pushed_messages_total", queue=queue) == 2


def test_pops_are_counted_with_their_messages_and_queues_and_auto_ack_settles(
    api: Api, grown: Growth, queue: str
) -> None:
    read(api.post("/configure", {"queue": queue, "namespace": queue}))
    api.push(queue, 1, 2, 3)
    assert len(read(api.get("/pop", namespace=queue, batch=2, autoAck=True))["messages"]) == 2
    api.pop_one(queue)
    assert api.pop(queue) == []
    grown.check(pop_requests_total=3, empty_pops_total=1, delivered_messages_total=3, delivery_age_seconds_count=3)
    assert grown("hark_queue_delivered_messages_total", queue=queue) == 3
    assert grown("hark_delivery_age_seconds_bucket", le="17179.869184") == 3
    assert grown("hark_queue_settled_messages_total", queue=queue, outcome="completed") == 2
    assert grown("hark_settled_messages_total", outcome="completed") == 2


def test_settlements_are_counted_by_outcome(api: Api, grown: Growth, queue: str) -> None:
    api.configure(queue, retryLimit=5)
    for status in ("completed", "failed", "retry", "dlq"):
        partition = f"of-{status}"
        api.push(queue, status, partition=partition)
        message = api.pop_one(queue, partition)
        api.ack(message, status)
    refused = read(api.post("/ack", acknowledgment(message, "dlq")))
    assert refused[0]["success"] is False
    outcomes = {"completed": 1, "failed": 1, "retry": 1, "dead_lettered": 1}
    for outcome, number in outcomes.items():
        assert grown("hark_settled_messages_total", outcome=outcome) == number
        assert grown("hark_queue_settled_messages_total", queue=queue, outcome=outcome) == number
    grown.check(settle_requests_total=5, settle_refusals_total=1, dead_lettered_messages_total=1)


def test_transactions_and_writes_of_keys_count_for_all_that_is_in_them(api: Api, grown: Growth, queue: str) -> None:
    api.push(queue, 1)
    message = api.pop_one(queue)
    ack = {"type": "ack", **acknowledgment(message)}
    push = {"type": "push", "items": [{"queue": queue, "payload": 2}, {"queue": queue, "payload": 3}]}
    assert api.transact(ack, push)["success"]
    grown.check(transactions_total=1, pushed_messages_total=3)
    assert grown("hark_settled_messages_total", outcome="completed") == 1
    read(api.client.post(f"{BASE}/atomic", json={"mutations": [{"type": "enqueue", "value": 1, "queue": queue}]}))
    assert grown("hark_queue_pushed_messages_total", queue=queue) == 4


def test_leases_that_run_out_are_counted_and_what_dies_of_it(api: Api, grown: Growth, queue: str) -> None:
    api.configure(queue, leaseTime=1, retryLimit=1)
    api.push(queue, 1)
    api.pop_one(queue)
    again = api.pop_one(queue, **WAIT)
    assert again["data"] == 1
    # A second delivery says nothing of how long messages wait.
    grown.check(lease_expiries_total=1, redelivered_messages_total=1, delivery_age_seconds_count=1)
    api.push(queue, 2)
    assert api.pop_one(queue, **WAIT)["data"] == 2, "the first one is dead now"
    grown.check(lease_expiries_total=2, dead_lettered_messages_total=1)


# Those who wait --------------------------------------------------------------------------------------------


def until(client: httpx.Client, name: str, value: float) -> Scrape:
    """Scrape until a number is what it should become."""
    end = time.monotonic() + WAIT_SECONDS
    while (found := scrape(client))(name) != value:
        assert time.monotonic() < end, f"{name} is {found(name)}"
    return found


def test_pops_that_wait_are_counted_and_what_wakes_them(api: Api, grown: Growth, queue: str) -> None:
    with ThreadPoolExecutor() as pool, httpx.Client(base_url=api.client.base_url, timeout=30) as other:
        waiting = pool.submit(Api(other).pop, queue, **WAIT)
        until(api.client, "hark_empty_pops_total", grown.before("hark_empty_pops_total") + 1)  # Its first look.
        during = until(api.client, "hark_waiting_pops", 1)
        api.push(queue, 1)
        assert len(waiting.result()) == 1
    until(api.client, "hark_waiting_pops", 0)
    assert during("hark_subscriptions") == 1
    assert during("hark_fallback_keys", state="watched") == 0, "nobody else works on this store"
    assert during("hark_http_requests_in_flight") == 2, "the pop and the scrape"
    assert during("hark_http_connections") >= 2
    assert grown("hark_wakes_total", source="push") == 1
    assert grown("hark_empty_wakes_total", source="push") == 0
    assert grown("hark_wake_latency_seconds_count") == 1


def test_streams_browsers_and_watchers_are_counted(api: Api, fresh_server_url: str, queue: str) -> None:
    api.push(queue, 1)
    with websocket(fresh_server_url) as consumer:
        consumer.subscribe("s", queue)
        until(api.client, "hark_streams", 1)
    until(api.client, "hark_streams", 0)
    with listening(fresh_server_url, f"/queue/{queue}", browse=True):
        until(api.client, "hark_browsers", 1)
    until(api.client, "hark_browsers", 0)
    with watching(fresh_server_url, keys="a"):
        until(api.client, "hark_key_watchers", 1)


# The store and the server ----------------------------------------------------------------------------------


def test_requests_are_counted_by_route_method_and_status_and_calls_of_the_engine_by_verb(
    api: Api, grown: Growth, queue: str
) -> None:
    api.push(queue, 1)
    api.push(queue, 2)
    api.pop(queue)
    api.pop(queue)
    api.post("/push", content=b"{")
    route = "/api/v1/pop/queue/{queue}"
    assert grown("hark_http_requests_total", route="/api/v1/push", method="POST", status="201") == 2
    assert grown("hark_http_requests_total", route="/api/v1/push", method="POST", status="400") == 1
    assert grown("hark_http_requests_total", route=route, method="GET", status="200") == 1
    assert grown("hark_http_requests_total", route=route, method="GET", status="204") == 1
    assert grown("hark_http_request_seconds_count", route=route, method="GET") == 2
    assert grown("hark_http_request_seconds_sum", route=route, method="GET") > 0
    assert grown("hark_engine_call_seconds_count", verb="push") == 2
    assert grown("hark_engine_call_seconds_bucket", verb="push", le="+Inf") == 2
    assert grown("hark_engine_call_seconds_sum", verb="push") > 0
    assert grown("hark_engine_call_seconds_count", verb="pop") == 2
    assert grown("hark_batch_requests_count", verb="push") == 2
    assert grown("hark_batch_requests_sum", verb="push") == 2
    assert grown("hark_batch_requests_bucket", verb="push", le="1") == 2


def test_requests_without_a_route_and_invented_methods_share_one(
    api: Api, grown: Growth, fresh_server_url: str
) -> None:
    for path in ("/nowhere", "/api/v1/nothing", "/nowhere/else"):
        assert api.client.get(path).status_code == 404
    assert api.client.request("DELETE", "/api/v1/push").status_code == 405
    assert grown("hark_http_requests_total", route="none", method="GET", status="404") == 3
    assert grown("hark_http_requests_total", route="none", method="DELETE", status="405") == 1
    for method in ("PROPFIND", "REPORT", "LOCK"):
        assert api.client.request(method, "/health").status_code == 405
    shown = {sample.labels["method"] for sample in scrape(api.client).families["hark_http_requests"].samples}
    assert not shown & {"PROPFIND", "REPORT", "LOCK"}
    assert grown("hark_http_request_seconds_count", route="none", method="other") == 3
    with websocket(fresh_server_url):
        assert grown("hark_http_requests_total", route="/api/v1/consume", method="WEBSOCKET", status="101") == 1


# The key-value API -----------------------------------------------------------------------------------------


def test_operations_on_keys_and_work_queues_are_counted_and_the_store_is_timed(api: Api, queue: str) -> None:
    keys, work = Keys(api.client, queue), Work(api.client, queue)
    keys.put("a", value="x" * 100)
    assert keys.get("a") is not None
    assert keys.get("missing") is None
    keys.list()
    keys.atomic()
    work.enqueue(1)
    work.enqueue(2, backoffSchedule=[])
    work.ack(work.take())
    work.nack(work.take())
    shown = read(api.client.get(f"{BASE}/metrics", params={"queue": queue}))
    counts = {name: numbers["count"] for name, numbers in shown["operations"]["operations"].items()}
    expected = {"set": 1, "get": 2, "list": 1, "atomic_commit": 1}
    expected |= {"queue_enqueue": 2, "queue_dequeue": 2, "queue_ack": 1, "queue_nack": 1}
    assert counts == expected
    numbers = shown["operations"]["operations"]["get"]
    assert (set(numbers), numbers["errors"]) == ({"count", "errors", "avgLatencyMs"}, 0)
    assert shown["operations"]["totals"] == {"operations": sum(counts.values()), "errors": 0}
    assert shown["storage"]["entries"] == 1
    assert shown["storage"]["sizeBytes"] >= 100
    assert shown["queue"] == {"pending": 0, "processing": 0, "dlq": 1, "total": 1}
    shown = read(api.client.get(f"{BASE}/metrics", params={"queue": "nothing"}))
    assert shown["queue"] == {"pending": 0, "processing": 0, "dlq": 0, "total": 0}


def test_prometheus_can_read_those_of_the_key_value_api(api: Api) -> None:
    Keys(api.client, "r").put("a", value=1)
    response = api.client.get(f"{BASE}/metrics/prometheus")
    assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert response.text.endswith("\n")
    samples = Scrape(response.text).samples
    assert {sample.name for sample in samples} >= {
        *("keyval_operations_total", "keyval_errors_total", "keyval_entries_total", "keyval_storage_bytes"),
        *(f"keyval_operation_duration_ms_{part}" for part in ("bucket", "sum", "count")),
        *(f"keyval_queue_{state}" for state in ("pending", "processing", "dlq", "total")),
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
    tally = operations.tallies["get"]
    assert (tally.count, tally.errors, tally.milliseconds.sum) == (4, 2, 60_015)
    assert (tally.milliseconds.counts[1], tally.milliseconds.counts[-1]) == (3, 1)
