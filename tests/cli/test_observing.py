"""Commands that only look (`explain`, `leases`, `consumers`, `trace`, `audit`, `top`, `settings`): what they print."""

from __future__ import annotations

import json

import pytest

from hark.model import QUEUE_MODE

from .commands import EXPLAINED, PING, event, events
from .conftest import Run, words
from .stub import Stub

LEASE = {
    "leaseId": "L1",
    "queue": "orders",
    "partition": "p1",
    "partitionId": "p",
    "consumerGroup": "billing",
    "mode": "ordered",
    "consumer": "worker 7",
    "since": "2026-01-02T03:04:05.678Z",
    "until": "2026-01-02T03:09:05.678Z",
    "messages": 3,
    "firstMessageId": "m1",
}
SUBSCRIPTION = {
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
POP = SUBSCRIPTION | {"kind": "pop", "waitingSince": "2026-01-02T03:04:05.000Z", "deadline": "2026-01-02T03:04:35.000Z"}
STREAM = {
    "kind": "stream",
    "id": "stream-4",
    "waitingSince": "2026-01-02T03:04:06.000Z",
    "credit": 3,
    "unsettled": 2,
    "paused": False,
    "draining": False,
    "subscriptions": [
        SUBSCRIPTION | {"id": "a", "consumerGroup": "billing"},
        SUBSCRIPTION | {"queue": None, "namespace": "shop"},
    ],
}
BROWSER = {"kind": "browser", "queue": "orders", "partition": "p1", "from": "tail"}
EVENT = {
    "id": "e1",
    "event_type": "charged",
    "data": {"amount": 5},
    "consumer_group": "billing",
    "worker_id": None,
    "created_at": "2026-01-02T03:04:05.678Z",
    "trace_names": ["checkout-17"],
}


# Messages and leases ---------------------------------------------------------------------------------------


def test_explain_prints_a_sentence_for_each_group(hark: Run, stub: Stub) -> None:
    stub.answer(200, EXPLAINED)
    result = hark("explain", "m1")
    assert result.exit_code == 0
    assert result.stdout.splitlines() == [
        "Message      m1",
        "Queue        orders",
        "Partition    p1",
        "Offset       2",
        "Transaction  t1",
        "Created      2026-01-02T03:04:05.678901Z",
        "",
        "Default group: done",
        "  Done: the default group settled it.",
        "",
        "Group billing: behind",
        "  Behind message m0.",
    ]


def test_explain_says_that_no_one_ever_requested(hark: Run, stub: Stub) -> None:
    reason = {"consumerGroup": None, "reason": "no_group", "text": "No consumer has ever asked."}
    stub.answer(200, EXPLAINED | {"explanations": [reason], "transactionId": None, "createdAt": None})
    assert hark("explain", "m1").stdout.endswith("\n\nNo group: no_group\n  No consumer has ever asked.\n")


def test_leases_prints_who_holds_what_and_how_to_see_the_rest(hark: Run, stub: Stub) -> None:
    stub.answer(200, {"leases": [LEASE], "total": 1})
    shown = hark("leases").stdout
    assert all(cell in shown for cell in ("worker 7", "2026-01-02T03:09:05.678Z", "m1"))
    assert "next page" not in shown
    stub.answer(200, {"leases": [LEASE], "total": 5})
    assert "showing 1 of 5; for the next page add --offset 3" in hark("leases", "--limit", "1", "--offset", "2").stdout


# Consumers -------------------------------------------------------------------------------------------------


def test_consumers_shows_pops_streams_with_their_credit_and_browsers(hark: Run, stub: Stub) -> None:
    stub.answer(200, {"consumers": [POP, STREAM, BROWSER], "total": 3})
    result = hark("consumers")
    assert result.exit_code == 0, result.output
    rows = words(result.stdout)
    since, until = POP["waitingSince"], POP["deadline"]
    assert ["pop", "pop-1", "orders", "-", "(default)", "worker", "7", "10", "interested", since, until, "-"] in rows
    [first, second] = [row for row in rows if row[0] == "stream"]
    assert first[2:5] == ["orders", "-", "billing"]
    assert second[2:4] == ["namespace", "shop"]
    assert first[-3:] == ["3,", "2", "unsettled"]
    assert ["browser", "-", "orders", "p1"] in [row[:4] for row in rows]
    stub.answer(200, {"consumers": [POP], "total": 9})
    assert (
        "showing 1 of 9; for the next page add --offset 3\n"
        in hark("consumers", "--limit", "1", "--offset", "2").stdout
    )


@pytest.mark.parametrize(("state", "shown"), [("paused", "2 unsettled, paused"), ("draining", "2 unsettled, draining")])
def test_consumers_shows_a_stream_that_takes_nothing_now(hark: Run, stub: Stub, state: str, shown: str) -> None:
    stub.answer(200, {"consumers": [STREAM | {state: True, "subscriptions": []}], "total": 1})
    assert shown in hark("consumers").stdout


# Traces and the audit log ----------------------------------------------------------------------------------


def test_trace_names_are_listed_with_their_counts(hark: Run, stub: Stub) -> None:
    name = {"trace_name": "checkout-17", "trace_count": 3, "message_count": 2, "last_seen": EVENT["created_at"]}
    stub.answer(200, {"trace_names": [name], "total": 4})
    result = hark("trace", "names", "--limit", "1")
    assert ["checkout-17", "3", "2", EVENT["created_at"]] in words(result.stdout)
    assert result.stdout.endswith("showing 1 of 4; for the next page add --offset 1\n")


def test_events_of_a_message_and_of_a_name_are_printed(hark: Run, stub: Stub) -> None:
    stub.answer(200, {"traces": [EVENT]})
    row = [EVENT["created_at"], "charged", "billing", "checkout-17", '{"amount":5}']
    assert row in words(hark("trace", "show", "p", "t1").stdout)
    about = {"transaction_id": "t1", "partition_id": "p", "queue_name": "orders", "partition_name": "p1"}
    stub.answer(200, {"traces": [EVENT | about | {"message_payload": 1}], "total": 1})
    result = hark("trace", "by-name", "checkout-17")
    row = [EVENT["created_at"], "charged", "orders", "p1", "t1", "billing", '{"amount":5}']
    assert row in words(result.stdout)
    assert "next page" not in result.stdout


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
    row = [record["at"], "ada", "admin", "set_maintenance", "queue=orders", "enabled=true", "done", "127.0.0.1", "r1"]
    assert row in words(hark("audit").stdout)


# The server ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("verb", "field"), [("push", "maintenanceMode"), ("pop", "popMaintenanceMode")], ids=["push", "pop"]
)
@pytest.mark.parametrize(("state", "enabled"), [("on", True), ("off", False)])
def test_maintenance_says_what_is_stopped(
    hark: Run, stub: Stub, verb: str, field: str, state: str, enabled: bool
) -> None:
    stub.answer(200, {field: enabled})
    assert ("stopped" in hark("maintenance", verb, state).stdout) is enabled


def test_top_shows_a_sample(hark: Run, stub: Stub) -> None:
    sample = {
        "at": "2026-01-02T03:04:05.000Z",
        "pushedPerSecond": 12.5,
        "backlog": 41,
        "oldestWaitingSeconds": None,
        "latencyMs": {"p50": 1.5, "p99": None},
        "maintenance": {"push": False, "pop": True},
        "busiest": [{"queue": "orders", "pushedPerSecond": 12.5, "deliveredPerSecond": 3, "settledPerSecond": 2}],
    }
    stub.answer(200, events(PING, event("sample", json.dumps(sample))))
    result = hark("top", "--once")
    assert result.exit_code == 0, result.output
    lines = words(result.stdout)
    assert ["Messages/s", "pushed", "12.5"] in lines
    assert ["Messages", "backlog", "41"] in lines
    assert ["oldest", "waiting", "(s)", "-"] in lines
    assert ["orders", "12.5", "3.0", "2.0"] in lines
    assert "MAINTENANCE: all pops are stopped; resume with: hark maintenance pop off\n" in result.stdout
    assert "pushes are stopped" not in result.stdout


def test_top_prints_every_sample_as_it_came(hark: Run, stub: Stub) -> None:
    stub.answer(200, events(event("sample", '{"backlog":  1}'), event("sample", '{"backlog":  2}')))
    assert hark("top", "--json").stdout == '{"backlog":  1}\n{"backlog":  2}\n'


def test_settings_are_shown_as_a_table(hark: Run, stub: Stub) -> None:
    shown = [{"name": "peer.addresses", "value": ["a", "b"]}]
    stub.answer(200, {"version": "1.2", "engine": "x", "settings": shown})
    assert ["peer.addresses", "a,", "b"] in words(hark("settings").stdout)
