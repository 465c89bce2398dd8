"""`hark explain` and `hark leases`: what they send and what they print."""

from __future__ import annotations

import json

from hark.model import QUEUE_MODE

from .conftest import Run
from .stub import Stub

EXPLAINED = {
    "messageId": "m1",
    "queue": "orders",
    "partition": "p1",
    "partitionId": "p",
    "offset": 2,
    "transactionId": "t1",
    "createdAt": "2026-01-02T03:04:05.678901Z",
    "explanations": [
        {"consumerGroup": QUEUE_MODE, "reason": "done", "text": "Done: the default group settled it."},
        {"consumerGroup": "billing", "reason": "behind", "text": "Behind message m0.", "aheadMessages": 1},
    ],
}
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


def test_explain_prints_a_sentence_for_each_group(hark: Run, stub: Stub) -> None:
    stub.answer(200, EXPLAINED)
    result = hark("explain", "m1")
    assert result.exit_code == 0
    assert (stub.last.method, stub.last.target) == ("GET", "/api/v1/explain/m1")
    assert result.stdout.splitlines() == [
        "Message      m1",
        "Queue        orders",
        "Partition    p1",
        "Offset       2",
        "Transaction  t1",
        "Created      2026-01-02T03:04:05.678901Z",
        "",
        "The default group: done",
        "  Done: the default group settled it.",
        "",
        "Group billing: behind",
        "  Behind message m0.",
    ]


def test_explain_asks_for_one_group_and_prints_what_the_server_says(hark: Run, stub: Stub) -> None:
    stub.answer(200, EXPLAINED)
    result = hark("explain", "m1", "--group", "billing", "--json")
    assert stub.last.target == "/api/v1/explain/m1?consumerGroup=billing"
    assert json.loads(result.stdout) == EXPLAINED


def test_explain_says_that_nobody_ever_asked(hark: Run, stub: Stub) -> None:
    told = {"consumerGroup": None, "reason": "no_group", "text": "No consumer has ever asked."}
    stub.answer(200, EXPLAINED | {"explanations": [told], "transactionId": None, "createdAt": None})
    assert hark("explain", "m1").stdout.endswith("\n\nNo group: no_group\n  No consumer has ever asked.\n")


def test_explain_fails_for_a_message_that_never_was(hark: Run, stub: Stub) -> None:
    stub.answer(404, {"error": "there is no message m1", "code": "message_not_found"})
    result = hark("explain", "m1")
    assert result.exit_code == 1
    assert "there is no message m1" in result.stderr


def test_leases_prints_who_holds_what(hark: Run, stub: Stub) -> None:
    stub.answer(200, {"leases": [LEASE], "total": 1})
    result = hark("leases", "orders", "--group", "billing", "--partition", "p1")
    assert stub.last.target.split("?")[0] == "/api/v1/leases"
    for part in ("queue=orders", "consumerGroup=billing", "partition=p1", "limit=100", "offset=0"):
        assert part in stub.last.target
    for cell in ("worker 7", "2026-01-02T03:09:05.678Z", "m1"):
        assert cell in result.stdout
    assert "more with" not in result.stdout


def test_leases_says_how_to_see_the_rest(hark: Run, stub: Stub) -> None:
    stub.answer(200, {"leases": [LEASE], "total": 5})
    assert "1 of 5; more with --offset 3" in hark("leases", "--limit", "1", "--offset", "2").stdout


def test_leases_prints_json_and_says_when_there_are_none(hark: Run, stub: Stub) -> None:
    stub.answer(200, {"leases": [], "total": 0})
    assert json.loads(hark("leases", "--json").stdout) == {"leases": [], "total": 0}
    stub.answer(200, {"leases": [], "total": 0})
    assert hark("leases").stdout == "nobody holds anything\n"
