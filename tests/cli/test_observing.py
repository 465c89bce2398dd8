"""`hark consumers`, `maintenance`, `trace` and `audit`, and filters: what they send and what they print."""

from __future__ import annotations

import json
from urllib.parse import parse_qs, urlsplit

import pytest

from hark.model import QUEUE_MODE

from .conftest import Run
from .stub import Stub

WISH = {
    "id": "pop-1",
    "queue": "orders",
    "partition": None,
    "namespace": None,
    "task": None,
    "consumerGroup": QUEUE_MODE,
    "batch": 10,
    "priority": 0,
    "consumer": "worker 7",
    "state": "interested",
}
POP = WISH | {"kind": "pop", "waitingSince": "2026-01-02T03:04:05.000Z", "deadline": "2026-01-02T03:04:35.000Z"}
STREAM = {
    "kind": "stream",
    "id": "stream-4",
    "waitingSince": "2026-01-02T03:04:06.000Z",
    "credit": 3,
    "unsettled": 2,
    "paused": False,
    "draining": False,
    "subscriptions": [WISH | {"id": "a", "consumerGroup": "billing"}, WISH | {"queue": None, "namespace": "shop"}],
}
BROWSER = {"kind": "browser", "queue": "orders", "partition": "p1", "from": "tail"}


def words(text: str) -> list[list[str]]:
    """The cells of a table, roughly."""
    return [line.split() for line in text.splitlines()]


def query_of(stub: Stub) -> dict[str, list[str]]:
    """What the last request asked for."""
    return parse_qs(urlsplit(stub.last.target).query)


# Those who wait --------------------------------------------------------------------------------------------


def test_consumers_shows_pops_streams_with_their_credit_and_browsers(hark: Run, stub: Stub) -> None:
    stub.answer(200, {"consumers": [POP, STREAM, BROWSER], "total": 3})
    result = hark("consumers", "orders")
    assert result.exit_code == 0, result.output
    assert urlsplit(stub.last.target).path == "/api/v1/consumers"
    assert query_of(stub) == {"queue": ["orders"], "limit": ["100"], "offset": ["0"]}
    rows = words(result.stdout)
    since, until = POP["waitingSince"], POP["deadline"]
    assert ["pop", "pop-1", "orders", "-", "-", "worker", "7", "10", "interested", since, until, "-"] in rows
    [first, second] = [row for row in rows if row[0] == "stream"]
    assert first[2:5] == ["orders", "-", "billing"]
    assert second[2:4] == ["ns", "shop"]
    assert first[-3:] == ["3,", "2", "unsettled"]
    assert ["browser", "-", "orders", "p1"] in [row[:4] for row in rows]


def test_consumers_says_that_nobody_waits_and_how_to_see_the_rest(hark: Run, stub: Stub) -> None:
    stub.answer(200, {"consumers": [], "total": 0})
    assert hark("consumers").stdout == "nobody waits on this server\n"
    stub.answer(200, {"consumers": [POP], "total": 9})
    assert "1 of 9; more with --offset 3\n" in hark("consumers", "--limit", "1", "--offset", "2").stdout
    stub.answer(200, b'{"consumers":  []}')
    assert hark("consumers", "--json").stdout == '{"consumers":  []}\n'


@pytest.mark.parametrize(("state", "shown"), [("paused", "2 unsettled, paused"), ("draining", "2 unsettled, draining")])
def test_consumers_shows_a_stream_that_takes_nothing_now(hark: Run, stub: Stub, state: str, shown: str) -> None:
    stub.answer(200, {"consumers": [STREAM | {state: True, "subscriptions": []}], "total": 1})
    assert shown in hark("consumers").stdout


# Maintenance -----------------------------------------------------------------------------------------------


def test_maintenance_shows_both_switches(hark: Run, stub: Stub) -> None:
    stub.answer(200, {"maintenanceMode": True, "popMaintenanceMode": False})
    assert hark("maintenance", "show").stdout == "pushes  stopped: 503 maintenance\npops    served\n"
    assert (stub.last.method, stub.last.target) == ("GET", "/api/v1/system/maintenance")


@pytest.mark.parametrize(
    ("verb", "target", "field"),
    [
        ("push", "/api/v1/system/maintenance", "maintenanceMode"),
        ("pop", "/api/v1/system/maintenance/pop", "popMaintenanceMode"),
    ],
)
@pytest.mark.parametrize(("state", "enabled"), [("on", True), ("off", False)])
def test_maintenance_turns_a_switch(
    hark: Run, stub: Stub, verb: str, target: str, field: str, state: str, enabled: bool
) -> None:
    stub.answer(200, {field: enabled})
    result = hark("maintenance", verb, state)
    assert (stub.last.method, stub.last.target, stub.last.json) == ("POST", target, {"enabled": enabled})
    assert ("stopped" in result.stdout) is enabled


def test_maintenance_needs_on_or_off(hark: Run, stub: Stub) -> None:
    assert hark("maintenance", "push", "maybe").exit_code == 2
    assert hark("maintenance", "pop").exit_code == 2
    assert stub.seen == []


# Traces ----------------------------------------------------------------------------------------------------

EVENT = {
    "id": "e1",
    "event_type": "charged",
    "data": {"amount": 5},
    "consumer_group": "billing",
    "worker_id": None,
    "created_at": "2026-01-02T03:04:05.678Z",
    "trace_names": ["checkout-17"],
}


def test_trace_names_are_listed_with_their_counts(hark: Run, stub: Stub) -> None:
    name = {"trace_name": "checkout-17", "trace_count": 3, "message_count": 2, "last_seen": EVENT["created_at"]}
    stub.answer(200, {"trace_names": [name], "total": 4})
    result = hark("trace", "names", "--limit", "1")
    assert stub.last.target == "/api/v1/traces/names?limit=1&offset=0"
    assert ["checkout-17", "3", "2", EVENT["created_at"]] in words(result.stdout)
    assert result.stdout.endswith("4 in all; more with --offset 1\n")


def test_trace_show_prints_the_events_of_a_message(hark: Run, stub: Stub) -> None:
    stub.answer(200, {"traces": [EVENT]})
    result = hark("trace", "show", "p", "order/17")
    assert urlsplit(stub.last.target).path == "/api/v1/traces/p/order%2F17"
    assert [EVENT["created_at"], "charged", "billing", "checkout-17", '{"amount":5}'] in words(result.stdout)


def test_trace_by_name_prints_events_with_their_messages(hark: Run, stub: Stub) -> None:
    about = {"transaction_id": "t1", "partition_id": "p", "queue_name": "orders", "partition_name": "p1"}
    stub.answer(200, {"traces": [EVENT | about | {"message_payload": 1}], "total": 1})
    result = hark("trace", "by-name", "checkout-17")
    assert stub.last.target == "/api/v1/traces/by-name/checkout-17?limit=100&offset=0"
    row = [EVENT["created_at"], "charged", "orders", "p1", "t1", "billing", '{"amount":5}']
    assert row in words(result.stdout)
    assert "more with" not in result.stdout


# The audit log ---------------------------------------------------------------------------------------------


def test_audit_prints_who_did_what(hark: Run, stub: Stub) -> None:
    record = {
        "at": "2026-01-02T03:04:05.678Z",
        "action": "set_maintenance",
        "subject": "ada",
        "role": "admin",
        "target": {"queue": "orders", "enabled": True},
        "status": 200,
        "result": "done",
        "requestId": "r1",
        "client": "127.0.0.1",
        "suppressed": 0,
    }
    stub.answer(200, {"records": [record]})
    result = hark("audit", "--limit", "20")
    assert stub.last.target == "/api/v1/system/audit?limit=20"
    row = [record["at"], "ada", "admin", "set_maintenance", "queue=orders", "enabled=true", "done", "127.0.0.1", "r1"]
    assert row in words(result.stdout)
    stub.answer(200, {"records": []})
    assert json.loads(hark("audit", "--json").stdout) == {"records": []}


# Filters ---------------------------------------------------------------------------------------------------

TIMES = ("--from", "2026-01-02T03:04:05Z", "--to", "2026-01-02T04:04:05Z")
ASKED = {"from": ["2026-01-02T03:04:05Z"], "to": ["2026-01-02T04:04:05Z"]}


def test_messages_and_dead_letters_are_asked_for_by_time(hark: Run, stub: Stub) -> None:
    stub.answer(200, {"messages": []})
    hark("message", "list", *TIMES)
    assert query_of(stub) == ASKED | {"limit": ["100"], "offset": ["0"]}
    stub.answer(200, {"messages": [], "total": 0})
    hark("dlq", "list", *TIMES)
    assert query_of(stub) == ASKED | {"limit": ["100"], "offset": ["0"]}
    stub.answer(200, {"deleted": 0})
    hark("dlq", "purge", "orders", "--partition", "p1", *TIMES, "--yes")
    assert query_of(stub) == ASKED | {"queue": ["orders"], "partition": ["p1"]}
    stub.answer(200, {"requeued": 1, "remaining": 0})
    hark("dlq", "requeue", "--all", "--queue", "orders", *TIMES)
    assert stub.last.json == {"filter": {"queue": "orders", "from": ASKED["from"][0], "to": ASKED["to"][0]}}


def test_a_message_is_shown_by_its_id_alone(hark: Run, stub: Stub) -> None:
    stub.answer(200, {"messageId": "m1", "partitionId": "p", "queue": "orders"})
    stub.answer(200, {"id": "m1", "payload": {"n": 1}})
    result = hark("message", "show", "m1")
    assert [seen.target for seen in stub.seen] == ["/api/v1/explain/m1", "/api/v1/messages/p/m1"]
    assert '{"n":1}' in result.stdout


def test_paused_queues_and_a_page_of_partitions_are_asked_for(hark: Run, stub: Stub) -> None:
    stub.answer(200, {"queues": []})
    hark("queue", "list", "--paused")
    assert query_of(stub) == {"paused": ["true"]}
    stub.answer(200, {"id": "q", "name": "orders"})
    hark("queue", "show", "orders", "--offset", "100")
    assert query_of(stub) == {"limit": ["100"], "offset": ["100"]}


def test_group_lagging_shows_where_messages_wait_long(hark: Run, stub: Stub) -> None:
    track = {
        "consumer_group": "billing",
        "queue_name": "orders",
        "partition_name": "p1",
        "offset_lag": 12,
        "time_lag_seconds": 75,
        "oldest_unconsumed_at": "2026-01-02T03:04:05.678Z",
        "last_consumed_at": None,
    }
    stub.answer(200, [track])
    result = hark("group", "lagging", "--seconds", "30", "--limit", "5")
    assert stub.last.target == "/api/v1/consumer-groups/lagging?minLagSeconds=30&limit=5"
    assert ["billing", "orders", "p1", "12", "75.0", track["oldest_unconsumed_at"], "-"] in words(result.stdout)


def test_pop_says_who_takes_them(hark: Run, stub: Stub) -> None:
    stub.answer(204)
    hark("pop", "orders", "--consumer", "worker 7")
    assert query_of(stub) == {"consumer": ["worker 7"]}


def test_top_says_what_is_stopped(hark: Run, stub: Stub) -> None:
    sample = {"at": "2026-01-02T03:04:05.000Z", "latencyMs": {}, "busiest": [], "maintenance": {"pop": True}}
    stub.answer(200, f"event: sample\ndata: {json.dumps(sample)}\n\n".encode())
    result = hark("top", "--once")
    assert "MAINTENANCE pops are stopped\n" in result.stdout
    assert "pushes are stopped" not in result.stdout
