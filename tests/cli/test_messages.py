"""`hark push`, `pop`, `ack` and `message`: what they send and what they print."""

from __future__ import annotations

import json
from urllib.parse import parse_qs, urlsplit

import pytest

from .conftest import Run
from .stub import Stub

QUEUED = {"index": 0, "status": "queued", "message_id": "m1", "partition_id": "p1", "transaction_id": "t1"}
MESSAGE = {
    "id": "m1",
    "transactionId": "t1",
    "partitionId": "p1",
    "partition": "Default",
    "queue": "orders",
    "leaseId": "L1",
    "createdAt": "2026-01-02T03:04:05.678901Z",
    "deliveryAttempt": 2,
    "offset": 9,
    "data": {"n": 1},
}


def query(target: str) -> dict[str, str]:
    """Give the parameters of a request."""
    return {name: values[0] for name, values in parse_qs(urlsplit(target).query).items()}


# Push ------------------------------------------------------------------------------------------------------


def test_push_sends_each_payload_with_the_options_that_were_given(hark: Run, stub: Stub) -> None:
    stub.answer(201, [QUEUED, QUEUED])
    result = hark("push", "orders", '{"n": 1}', "[2]", "--partition", "p", "--delay", "5", "--priority", "9")
    assert result.exit_code == 0
    assert (stub.last.method, stub.last.target) == ("POST", "/api/v1/push")
    shared = {"queue": "orders", "partition": "p", "delay": 5, "priority": 9}
    assert stub.last.json == {"items": [{**shared, "payload": {"n": 1}}, {**shared, "payload": [2]}]}
    assert "m1" in result.stdout


def test_push_sends_a_time_and_the_keys_of_what_can_not_be_delivered(hark: Run, stub: Stub) -> None:
    stub.answer(201, [QUEUED])
    keys = '[["failed", 17], ["b", true]]'
    hark("push", "orders", "1", "--deliver-at", "2026-01-31T12:00:00Z", "--keys-if-undelivered", keys)
    assert stub.last.json["items"][0] == {
        "queue": "orders",
        "payload": 1,
        "deliverAt": "2026-01-31T12:00:00Z",
        "keysIfUndelivered": [["failed", 17], ["b", True]],
    }


@pytest.mark.parametrize("keys", ["failed", '["failed"]', "[[", "[[null]]", '{"a": 1}'])
def test_push_shows_how_keys_are_written(hark: Run, stub: Stub, keys: str) -> None:
    result = hark("push", "orders", "1", "--keys-if-undelivered", keys)
    assert result.exit_code == 2
    assert """'[["failed", "orders", 17]]'""" in result.stderr
    assert stub.seen == []


def test_push_leaves_out_what_was_not_given(hark: Run, stub: Stub) -> None:
    stub.answer(201, [QUEUED])
    hark("push", "orders", "1", "--transaction-id", "t1")
    assert stub.last.json == {"items": [{"queue": "orders", "payload": 1, "transactionId": "t1"}]}


def test_push_sends_the_payload_byte_for_byte(hark: Run, stub: Stub) -> None:
    stub.answer(201, [QUEUED])
    hark("push", "orders", '{"b":1.50,  "a":1e2, "a":"\\u00e9"}')
    assert b'{"b":1.50,  "a":1e2, "a":"\\u00e9"}' in stub.last.body


def test_push_text_sends_a_json_string(hark: Run, stub: Stub) -> None:
    stub.answer(201, [QUEUED])
    hark("push", "orders", "--text", 'say "hi"')
    assert stub.last.json["items"][0]["payload"] == 'say "hi"'


def test_push_of_what_is_not_json_suggests_quoting_and_sends_nothing(hark: Run, stub: Stub) -> None:
    result = hark("push", "orders", "{id: 17}")
    assert result.exit_code == 2
    assert "{id: 17}" in result.stderr
    assert """hark push orders '{"id": 17}'""" in result.stderr
    assert "--text" in result.stderr
    assert stub.seen == []


def test_push_stdin_sends_one_message_per_line_and_skips_empty_lines(hark: Run, stub: Stub) -> None:
    stub.answer(201, [QUEUED, {**QUEUED, "status": "duplicate"}])
    result = hark("push", "orders", "--stdin", stdin='{"n":1}\r\n\n  \n"two"\n')
    assert [item["payload"] for item in stub.last.json["items"]] == [{"n": 1}, "two"]
    assert result.stdout == "1 queued, 1 duplicate\n"
    assert result.exit_code == 0


def test_push_stdin_cuts_a_long_stream_into_requests_in_order(hark: Run, stub: Stub) -> None:
    for count in (1000, 1000, 500):
        stub.answer(201, [QUEUED] * count)
    result = hark("push", "orders", "--stdin", stdin="".join(f"{n}\n" for n in range(2500)))
    assert [item["payload"] for seen in stub.seen for item in seen.json["items"]] == list(range(2500))
    assert [len(seen.json["items"]) for seen in stub.seen] == [1000, 1000, 500]
    assert result.stdout == "2500 queued\n"


def test_push_stdin_cuts_large_payloads_into_requests_under_the_body_limit(hark: Run, stub: Stub) -> None:
    line = json.dumps("x" * 3_000_000)
    for _ in range(3):
        stub.answer(201, [QUEUED])
    assert hark("push", "orders", "--stdin", stdin=f"{line}\n" * 3).exit_code == 0
    assert [len(seen.json["items"]) for seen in stub.seen] == [1, 1, 1]


def test_push_stdin_names_the_bad_line_and_says_what_was_pushed_before(hark: Run, stub: Stub) -> None:
    stub.answer(201, [QUEUED] * 1000)
    result = hark("push", "orders", "--stdin", stdin="1\n" * 1001 + "oops\n")
    assert result.exit_code == 2
    assert "line 1002 is not JSON" in result.stderr
    assert "so far: 1000 queued" in result.stderr


def test_push_stdin_refuses_bytes_that_are_not_utf8(hark: Run, stub: Stub) -> None:
    result = hark("push", "orders", "--stdin", "--text", stdin=b"\xff\n")
    assert result.exit_code == 2
    assert "line 1 is not UTF-8" in result.stderr
    assert stub.seen == []


def test_push_with_a_refused_message_exits_with_1_and_shows_why(hark: Run, stub: Stub) -> None:
    stub.answer(201, [QUEUED, {"index": 1, "status": "failed", "error": "the queue is full", "code": "queue_full"}])
    result = hark("push", "orders", "1", "2")
    assert result.exit_code == 1
    assert "the queue is full" in result.stdout
    assert "1 of 2 messages were refused" in result.stderr


@pytest.mark.parametrize(
    "args",
    [
        ("push", "orders"),
        ("push", "orders", "1", "--stdin"),
        ("push", "orders", "1", "2", "--transaction-id", "t"),
        ("push", "orders", "--stdin", "--transaction-id", "t"),
        ("push", "orders", "1", "--priority", "10"),
        ("push", "orders", "1", "--delay", "-1"),
        ("push", "", "1"),
    ],
)
def test_push_used_wrongly_exits_with_2_and_sends_nothing(hark: Run, stub: Stub, args: tuple[str, ...]) -> None:
    assert hark(*args, stdin="").exit_code == 2
    assert stub.seen == []


# Pop -------------------------------------------------------------------------------------------------------


def test_pop_sends_only_what_was_given(hark: Run, stub: Stub) -> None:
    stub.answer(200, {"messages": [MESSAGE]})
    assert hark("pop", "orders").exit_code == 0
    assert (stub.last.method, stub.last.target) == ("GET", "/api/v1/pop/queue/orders")


def test_pop_sends_every_option_under_its_name(hark: Run, stub: Stub) -> None:
    stub.answer(200, {"messages": [MESSAGE]})
    options = (
        "--group g --group-mode shared --batch 5 --partitions 2 --wait --timeout 9 --auto-ack --subscription-mode new"
    )
    hark("pop", "orders", "--partition", "p", *options.split(), "--subscription-from", "now")
    assert urlsplit(stub.last.target).path == "/api/v1/pop/queue/orders/partition/p"
    assert query(stub.last.target) == {
        "consumerGroup": "g",
        "groupMode": "shared",
        "batch": "5",
        "partitions": "2",
        "wait": "true",
        "timeout": "9",
        "autoAck": "true",
        "subscriptionMode": "new",
        "subscriptionFrom": "now",
    }


def test_pop_by_namespace_and_task_names_no_queue(hark: Run, stub: Stub) -> None:
    stub.answer(200, {"messages": [MESSAGE]})
    hark("pop", "--namespace", "shop", "--task", "mail")
    assert stub.last.target == "/api/v1/pop?namespace=shop&task=mail"


@pytest.mark.parametrize(
    ("name", "segment"),
    [
        ("a/b", "a%2Fb"),
        ("a b", "a%20b"),
        ("50%", "50%25"),
        ("a?b#c", "a%3Fb%23c"),
        ("é", "%C3%A9"),
        ("%2F", "%252F"),
    ],
)
def test_names_are_quoted_as_one_segment_of_the_path(hark: Run, stub: Stub, name: str, segment: str) -> None:
    stub.answer(200, {"messages": [MESSAGE]})
    hark("pop", name, "--partition", name)
    assert stub.last.target == f"/api/v1/pop/queue/{segment}/partition/{segment}"


def test_pop_shows_the_messages_and_the_command_that_settles_them(hark: Run, stub: Stub) -> None:
    stub.answer(200, {"messages": [MESSAGE]})
    result = hark("pop", "orders", "--group", "g")
    assert '{"n":1}' in result.stdout
    assert "hark ack --lease L1 --group g p1 t1" in result.stdout


def test_pop_quotes_a_strange_transaction_id_in_the_command_that_settles_it(hark: Run, stub: Stub) -> None:
    stub.answer(200, {"messages": [{**MESSAGE, "transactionId": "-x; rm"}]})
    assert "hark ack --lease L1 -- p1 '-x; rm'" in hark("pop", "orders").stdout


def test_pop_with_auto_ack_offers_nothing_to_settle(hark: Run, stub: Stub) -> None:
    stub.answer(200, {"messages": [MESSAGE]})
    assert "hark ack" not in hark("pop", "orders", "--auto-ack").stdout


def test_pop_json_prints_the_servers_bytes_and_nothing_else(hark: Run, stub: Stub) -> None:
    body = b'{"messages": [ {"data": 1.50} ]}'
    stub.answer(200, body)
    result = hark("pop", "orders", "--json")
    assert result.stdout_bytes == body + b"\n"
    assert result.stderr == ""


@pytest.mark.parametrize("answer", [(204, None), (200, {"messages": []})])
@pytest.mark.parametrize("flags", [(), ("--json",)])
def test_pop_that_gets_nothing_exits_with_3(
    hark: Run, stub: Stub, answer: tuple[int, object], flags: tuple[str, ...]
) -> None:
    stub.answer(*answer)
    result = hark("pop", "orders", *flags)
    assert (result.exit_code, result.stdout) == (3, "")
    assert result.stderr == "hark: there is nothing to pop now\n"


def test_control_characters_of_others_do_not_reach_the_terminal(hark: Run, stub: Stub) -> None:
    stub.answer(200, {"messages": [{**MESSAGE, "partition": "\x1b]0;owned\x07", "data": "\x9b31m"}]})
    result = hark("pop", "orders")
    assert not set("\x1b\x07\x9b") & set(result.stdout)
    assert "\\x1b]0;owned\\x07" in result.stdout


@pytest.mark.parametrize(
    "args",
    [
        ("pop",),
        ("pop", "orders", "--namespace", "shop"),
        ("pop", "--task", "mail", "--partition", "p"),
        ("pop", "orders", "--batch", "0"),
        ("pop", "orders", "--timeout", "5"),
        ("pop", "orders", "--subscription-mode", "old"),
        ("pop", "orders", "--group-mode", "both"),
    ],
)
def test_pop_used_wrongly_exits_with_2_and_sends_nothing(hark: Run, stub: Stub, args: tuple[str, ...]) -> None:
    assert hark(*args).exit_code == 2
    assert stub.seen == []


# Ack and message -------------------------------------------------------------------------------------------


def test_ack_sends_the_settlement(hark: Run, stub: Stub) -> None:
    stub.answer(200, [{"index": 0, "transactionId": "t1", "success": True, "error": None, "dlq": False}])
    result = hark("ack", "p1", "t1", "--lease", "L", "--group", "g", "--status", "failed", "--error", "boom")
    assert (stub.last.method, stub.last.target) == ("POST", "/api/v1/ack")
    assert stub.last.json == {
        "partitionId": "p1",
        "transactionId": "t1",
        "status": "failed",
        "leaseId": "L",
        "consumerGroup": "g",
        "error": "boom",
    }
    assert (result.exit_code, result.stdout) == (0, "settled as failed\n")


def test_ack_leaves_out_what_was_not_given(hark: Run, stub: Stub) -> None:
    stub.answer(200, [{"success": True}])
    hark("ack", "p1", "t1")
    assert stub.last.json == {"partitionId": "p1", "transactionId": "t1", "status": "completed"}


def test_ack_takes_a_message_id_alone_and_a_delay(hark: Run, stub: Stub) -> None:
    stub.answer(200, [{"success": True}])
    hark("ack", "m1", "--status", "retry", "--delay", "500")
    assert stub.last.json == {"transactionId": "m1", "status": "retry", "delay": 500}


def test_ack_with_a_delay_needs_a_status_that_comes_again(hark: Run, stub: Stub) -> None:
    result = hark("ack", "m1", "--delay", "500")
    assert result.exit_code == 2
    assert "--status failed" in result.stderr
    assert stub.seen == []


def test_ack_says_when_the_message_became_a_dead_letter(hark: Run, stub: Stub) -> None:
    stub.answer(200, [{"success": True, "dlq": True}])
    assert hark("ack", "p1", "t1", "--status", "failed").stdout == "dead letter\n"


@pytest.mark.parametrize("flags", [(), ("--json",)])
def test_a_refused_ack_exits_with_1_and_says_why(hark: Run, stub: Stub, flags: tuple[str, ...]) -> None:
    stub.answer(200, [{"success": False, "error": "Invalid or expired lease", "code": "lease_expired"}])
    result = hark("ack", "p1", "t1", *flags)
    assert result.exit_code == 1
    assert result.stderr == "hark: Invalid or expired lease (lease_expired)\n"


def test_ack_knows_four_outcomes(hark: Run, stub: Stub) -> None:
    assert hark("ack", "p1", "t1", "--status", "done").exit_code == 2
    assert stub.seen == []


def test_message_list_asks_with_its_filters(hark: Run, stub: Stub) -> None:
    stub.answer(200, {"messages": [{**MESSAGE, "status": "pending"}], "mode": {}})
    result = hark("message", "list", "orders", "--partition", "p", "--status", "pending", "--limit", "5")
    assert query(stub.last.target) == {
        "queue": "orders",
        "partition": "p",
        "status": "pending",
        "limit": "5",
        "offset": "0",
    }
    assert "t1" in result.stdout


def test_message_show_prints_the_payload_as_it_is(hark: Run, stub: Stub) -> None:
    stub.answer(200, b'{"id":"m1","payload":{"b":1.50},"traceId":null}')
    result = hark("message", "show", "p1", "t/1")
    assert stub.last.target == "/api/v1/messages/p1/t%2F1"
    assert '{"b":1.50}' in result.stdout
    assert "traceId" not in result.stdout


@pytest.mark.parametrize(
    ("ids", "target"), [(("m1",), "/api/v1/messages/m1"), (("p1", "t1"), "/api/v1/messages/p1/t1")]
)
def test_message_delete_takes_a_message_id_or_the_pair(
    hark: Run, stub: Stub, ids: tuple[str, ...], target: str
) -> None:
    stub.answer(200, {"success": True})
    assert hark("message", "delete", *ids).exit_code == 0
    assert (stub.last.method, stub.last.target) == ("DELETE", target)


def test_message_delete_of_what_is_not_there_exits_with_1(hark: Run, stub: Stub) -> None:
    stub.answer(200, {"success": False, "message": "Message not found"})
    result = hark("message", "delete", "m1")
    assert result.exit_code == 1
    assert result.stderr == "hark: Message not found (not_found)\n"


def test_cancel_takes_a_message_back(hark: Run, stub: Stub) -> None:
    stub.answer(200, {"success": True, "id": "m/1", "cancelled": True})
    result = hark("cancel", "m/1")
    assert (stub.last.method, stub.last.target) == ("POST", "/api/v1/messages/m%2F1/cancel")
    assert (result.exit_code, result.stdout) == (0, "cancelled\n")


def test_cancel_that_comes_too_late_exits_with_1_and_says_why(hark: Run, stub: Stub) -> None:
    stub.answer(409, {"error": "too late to cancel: a group holds the message", "code": "message_leased"})
    result = hark("cancel", "m1")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == "hark: too late to cancel: a group holds the message (message_leased)\n"
    assert hark("cancel", "").exit_code == 2
