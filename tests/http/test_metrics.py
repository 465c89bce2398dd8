"""GET /metrics: each number moves when the thing happens that it counts."""

from __future__ import annotations

import re
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

import hark
from tests.http.api import WAIT, Api, acknowledgment, read
from tests.http.scraping import Scrape, scrape, shown_name
from tests.http.streaming import PATIENCE, listening, websocket


class Growth:
    """What has been added to counters since the beginning of a test."""

    def __init__(self, client: httpx.Client) -> None:
        self._client = client
        self.before = scrape(client)

    def __call__(self, name: str, **labels: str) -> float:
        """How much a counter grew."""
        return scrape(self._client)(name, **labels) - self.before(name, **labels)


@pytest.fixture
def grown(http: httpx.Client) -> Growth:
    """The counters of the module's server."""
    return Growth(http)


def test_both_paths_answer_the_same_families(http: httpx.Client) -> None:
    names = scrape(http).names()
    assert len(names) > 50
    assert Scrape(http.get("/metrics/prometheus").text).names() >= names, "the first survey may have ended meanwhile"


def test_names_and_texts_follow_the_conventions(http: httpx.Client) -> None:
    for family in scrape(http).families.values():
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


# Messages --------------------------------------------------------------------------------------------------


def test_pushes_are_counted_by_what_became_of_them(api: Api, grown: Growth, queue: str) -> None:
    api.configure(queue, maxSize=2)
    api.push(queue, 1, transactionId="same")
    api.push(queue, 1, transactionId="same")
    api.push(queue, 2, 3)
    assert grown("hark_push_requests_total") == 3
    assert grown("hark_pushed_messages_total") == 2
    assert grown("hark_push_duplicates_total") == 1
    assert grown("hark_push_refusals_total") == 1
    assert grown("hark_queue_pushed_messages_total", queue=queue) == 2


def test_pops_are_counted_with_their_messages(api: Api, grown: Growth, queue: str) -> None:
    api.push(queue, 1, 2, 3)
    assert len(api.pop(queue, batch=2)) == 2
    assert api.pop(queue) == []
    assert grown("hark_pop_requests_total") == 2
    assert grown("hark_empty_pops_total") == 1
    assert grown("hark_delivered_messages_total") == 2
    assert grown("hark_queue_delivered_messages_total", queue=queue) == 2
    assert grown("hark_delivery_age_seconds_count") == 2
    assert grown("hark_delivery_age_seconds_bucket", le="17179.869184") == 2


def test_pops_by_label_count_for_the_queues_of_their_messages(api: Api, grown: Growth, queue: str) -> None:
    read(api.post("/configure", {"queue": queue, "namespace": queue}))
    api.push(queue, 1, 2)
    read(api.get("/pop", namespace=queue, batch=2, autoAck=True))
    assert grown("hark_queue_delivered_messages_total", queue=queue) == 2
    assert grown("hark_delivered_messages_total") == 2
    assert grown("hark_queue_settled_messages_total", queue=queue, outcome="completed") == 2


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
    assert grown("hark_settle_requests_total") == 5
    assert grown("hark_settle_refusals_total") == 1
    assert grown("hark_dead_lettered_messages_total") == 1


def test_auto_ack_settles_what_it_delivers(api: Api, grown: Growth, queue: str) -> None:
    api.push(queue, 1, 2)
    assert len(api.pop(queue, batch=2, autoAck=True)) == 2
    assert grown("hark_settled_messages_total", outcome="completed") == 2


def test_transactions_count_for_all_that_is_in_them(api: Api, grown: Growth, queue: str) -> None:
    api.push(queue, 1)
    message = api.pop_one(queue)
    ack = {"type": "ack", **acknowledgment(message)}
    push = {"type": "push", "items": [{"queue": queue, "payload": 2}, {"queue": queue, "payload": 3}]}
    assert api.transact(ack, push)["success"]
    assert grown("hark_transactions_total") == 1
    assert grown("hark_pushed_messages_total") == 3
    assert grown("hark_settled_messages_total", outcome="completed") == 1


def test_messages_that_come_with_keys_are_counted(api: Api, grown: Growth, queue: str) -> None:
    body = {"mutations": [{"type": "enqueue", "value": 1, "queue": queue}]}
    response = api.client.post("/keyval/api/atomic", json=body)
    assert response.status_code == 200, response.text
    assert grown("hark_queue_pushed_messages_total", queue=queue) == 1


def test_leases_that_run_out_are_counted_and_what_dies_of_it(api: Api, grown: Growth, queue: str) -> None:
    api.configure(queue, leaseTime=1, retryLimit=1)
    api.push(queue, 1)
    api.pop_one(queue)
    again = api.pop_one(queue, **WAIT)
    assert again["data"] == 1
    assert grown("hark_lease_expiries_total") == 1
    assert grown("hark_redelivered_messages_total") == 1
    assert grown("hark_delivery_age_seconds_count") == 1, "a second delivery says nothing of how long messages wait"
    api.push(queue, 2)
    assert api.pop_one(queue, **WAIT)["data"] == 2, "the first one is dead now"
    assert grown("hark_lease_expiries_total") == 2
    assert grown("hark_dead_lettered_messages_total") == 1


# Those who wait --------------------------------------------------------------------------------------------


def until(client: httpx.Client, name: str, value: float) -> Scrape:
    """Scrape until a number is what it should become."""
    end = time.monotonic() + PATIENCE
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


def test_streams_and_browsers_are_counted(api: Api, server_url: str, queue: str) -> None:
    api.push(queue, 1)
    with websocket(server_url) as consumer:
        consumer.subscribe("s", queue)
        until(api.client, "hark_streams", 1)
    until(api.client, "hark_streams", 0)
    with listening(server_url, f"/queue/{queue}", browse=True):
        until(api.client, "hark_browsers", 1)
    until(api.client, "hark_browsers", 0)


def test_who_watches_keys_is_counted(api: Api) -> None:
    with (
        httpx.Client(base_url=api.client.base_url, timeout=30) as other,
        other.stream("GET", "/keyval/api/watch", params={"keys": '[["a"]]'}) as response,
    ):
        assert response.status_code == 200, response.read()
        until(api.client, "hark_key_watchers", 1)


def test_maintenance_shows(api: Api) -> None:
    try:
        read(api.post("/system/maintenance", {"enabled": True}))
        shown = scrape(api.client)
        assert (shown("hark_maintenance", verb="push"), shown("hark_maintenance", verb="pop")) == (1, 0)
        read(api.post("/system/maintenance/pop", {"enabled": True}))
        assert scrape(api.client)("hark_maintenance", verb="pop") == 1
    finally:
        read(api.post("/system/maintenance", {"enabled": False}))
        read(api.post("/system/maintenance/pop", {"enabled": False}))
    assert scrape(api.client).sum("hark_maintenance") == 0


# The store -------------------------------------------------------------------------------------------------


def test_calls_of_the_engine_are_counted_and_timed(api: Api, grown: Growth, queue: str) -> None:
    api.push(queue, 1)
    api.push(queue, 2)
    api.pop(queue)
    assert grown("hark_engine_call_seconds_count", verb="push") == 2
    assert grown("hark_engine_call_seconds_bucket", verb="push", le="+Inf") == 2
    assert grown("hark_engine_call_seconds_sum", verb="push") > 0
    assert grown("hark_engine_call_seconds_count", verb="pop") == 1
    assert grown("hark_batch_requests_count", verb="push") == 2
    assert grown("hark_batch_requests_sum", verb="push") == 2
    assert grown("hark_batch_requests_bucket", verb="push", le="1") == 2


def test_the_store_tells_of_itself(http: httpx.Client) -> None:
    shown = scrape(http)
    assert shown("hark_store_up") == 1
    assert shown("hark_store_database_bytes") > 0


# The server ------------------------------------------------------------------------------------------------


def test_requests_are_counted_by_route_method_and_status(api: Api, grown: Growth, queue: str) -> None:
    api.push(queue, 1)
    api.pop(queue)
    api.pop(queue)
    api.post("/push", content=b"{")
    route = "/api/v1/pop/queue/{queue}"
    assert grown("hark_http_requests_total", route="/api/v1/push", method="POST", status="201") == 1
    assert grown("hark_http_requests_total", route="/api/v1/push", method="POST", status="400") == 1
    assert grown("hark_http_requests_total", route=route, method="GET", status="200") == 1
    assert grown("hark_http_requests_total", route=route, method="GET", status="204") == 1
    assert grown("hark_http_request_seconds_count", route=route, method="GET") == 2
    assert grown("hark_http_request_seconds_sum", route=route, method="GET") > 0


def test_requests_without_a_route_share_one(api: Api, grown: Growth) -> None:
    for path in ("/nowhere", "/api/v1/nothing", "/nowhere/else"):
        assert api.client.get(path).status_code == 404
    assert api.client.request("DELETE", "/api/v1/push").status_code == 405
    assert grown("hark_http_requests_total", route="none", method="GET", status="404") == 3
    assert grown("hark_http_requests_total", route="none", method="DELETE", status="405") == 1


def test_invented_methods_share_one(api: Api, grown: Growth) -> None:
    for method in ("PROPFIND", "REPORT", "LOCK"):
        assert api.client.request(method, "/health").status_code == 405
    shown = {sample.labels["method"] for sample in scrape(api.client).families["hark_http_requests"].samples}
    assert not shown & {"PROPFIND", "REPORT", "LOCK"}
    assert grown("hark_http_request_seconds_count", route="none", method="other") == 3


def test_websockets_are_requests(grown: Growth, server_url: str) -> None:
    with websocket(server_url):
        assert grown("hark_http_requests_total", route="/api/v1/consume", method="WEBSOCKET", status="101") == 1


def test_the_process_the_version_and_the_event_loop_show(http: httpx.Client) -> None:
    shown = scrape(http)
    assert shown("hark_build_info", version=hark.__version__) == 1
    assert shown("process_resident_memory_bytes") > 0
    assert shown("process_cpu_seconds_total") > 0
    assert shown.sum("python_info") == 1
    assert "hark_event_loop_lag_seconds" in shown.names()
