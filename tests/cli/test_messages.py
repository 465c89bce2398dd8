"""`hark push`, `pop`, `ack`, `message` and `tail`: streams of input, and what is printed."""

from __future__ import annotations

import json

import pytest

from hark.api.types.delivery import Delivered
from tests.whole import whole

from .commands import MESSAGE, PING, QUEUED, event, events
from .conftest import Run, hark_process, runner
from .stub import Stub

# Push ------------------------------------------------------------------------------------------------------


def test_push_prints_the_ids_and_sends_the_payload_byte_for_byte(hark: Run, stub: Stub) -> None:
    stub.answer(201, [QUEUED])
    result = hark("push", "orders", '{"b":1.50,  "a":1e2, "a":"\\u00e9"}')
    assert b'{"b":1.50,  "a":1e2, "a":"\\u00e9"}' in stub.last.body
    assert "m1" in result.stdout


def test_push_stdin_sends_one_message_per_line_and_skips_empty_lines(hark: Run, stub: Stub) -> None:
    stub.answer(201, [QUEUED, {**QUEUED, "status": "duplicate"}])
    result = hark("push", "orders", "--stdin", stdin='{"n":1}\r\n\n  \n"two"\n')
    assert [item["payload"] for item in stub.last.json["items"]] == [{"n": 1}, "two"]
    assert (result.exit_code, result.stdout) == (0, "1 queued, 1 duplicate\n")


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
    assert "before this error: 1000 queued" in result.stderr


def test_push_with_a_refused_message_exits_with_1_and_shows_why(hark: Run, stub: Stub) -> None:
    stub.answer(201, [QUEUED, {"index": 1, "status": "failed", "error": "the queue is full", "code": "queue_full"}])
    result = hark("push", "orders", "1", "2")
    assert result.exit_code == 1
    assert "the queue is full" in result.stdout
    assert result.stderr == (
        "hark: the server rejected 1 of 2 messages; the first error is: the queue is full (queue_full)\n"
    )


# Pop -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flags", "transaction", "command"),
    [
        (("--group", "g"), "t1", "hark ack --lease L1 --group g p1 t1"),
        ((), "-x; rm", "hark ack --lease L1 -- p1 '-x; rm'"),
    ],
)
def test_pop_shows_the_messages_and_the_command_that_settles_them(
    hark: Run, stub: Stub, flags: tuple[str, ...], transaction: str, command: str
) -> None:
    stub.answer(200, {"messages": [{**MESSAGE, "transactionId": transaction}]})
    result = hark("pop", "orders", *flags)
    assert '{"n":1}' in result.stdout
    assert command in result.stdout
    stub.answer(200, {"messages": [MESSAGE]})
    assert "hark ack" not in hark("pop", "orders", *flags, "--auto-ack").stdout


@pytest.mark.parametrize("answer", [(204, None), (200, {"messages": []})])
@pytest.mark.parametrize("flags", [(), ("--json",)])
def test_pop_that_gets_nothing_exits_with_3(
    hark: Run, stub: Stub, answer: tuple[int, object], flags: tuple[str, ...]
) -> None:
    stub.answer(*answer)
    result = hark("pop", "orders", *flags)
    assert (result.exit_code, result.stdout) == (3, "")
    assert result.stderr == "hark: no message to pop from queue orders; add --wait to wait for one\n"


# Ack and message -------------------------------------------------------------------------------------------


def test_ack_says_when_the_message_became_a_dead_letter(hark: Run, stub: Stub) -> None:
    stub.answer(200, [{"success": True, "dlq": True}])
    assert hark("ack", "p1", "t1", "--status", "failed").stdout == "dead-lettered\n"


@pytest.mark.parametrize("flags", [(), ("--json",)])
def test_a_refused_ack_exits_with_1_and_says_why(hark: Run, stub: Stub, flags: tuple[str, ...]) -> None:
    stub.answer(200, [{"success": False, "error": "Invalid or expired lease", "code": "lease_expired"}])
    result = hark("ack", "p1", "t1", *flags)
    assert result.exit_code == 1
    assert result.stderr == "hark: Invalid or expired lease (lease_expired)\n"


def test_messages_are_listed_and_one_is_shown_with_its_payload_as_it_is(hark: Run, stub: Stub) -> None:
    stub.answer(200, {"messages": [{**MESSAGE, "status": "pending"}], "mode": {}})
    assert "t1" in hark("message", "list").stdout
    stub.answer(200, b'{"id":"m1","payload":{"b":1.50},"traceId":null}')
    result = hark("message", "show", "p1", "t1")
    assert '{"b":1.50}' in result.stdout
    assert "traceId" not in result.stdout


def test_message_delete_of_what_is_not_there_exits_with_1(hark: Run, stub: Stub) -> None:
    stub.answer(200, {"success": False, "message": "Message not found"})
    result = hark("message", "delete", "p1", "t1")
    assert (result.exit_code, result.stderr) == (1, "hark: Message not found (not_found)\n")


# Tail ------------------------------------------------------------------------------------------------------


def test_tail_shows_messages_and_no_pings(hark: Run, stub: Stub) -> None:
    message = whole({"id": "m1", "transactionId": "t1", "partition": "p", "offset": 9, "data": "DATA"}, Delivered)
    line = json.dumps(message).replace('"DATA"', '{"n":  1}')
    stub.answer(200, events(PING, f"event: message\nid: m1\ndata: {line}"))
    result = hark("tail", "orders", "--limit", "1")
    assert result.exit_code == 0, result.output
    assert result.stdout.split("  ")[1:4] == ["p", "9", "t1"]
    assert result.stdout.endswith('{"n":  1}\n')


def test_tail_prints_the_bytes_of_the_server_as_lines(hark: Run, stub: Stub) -> None:
    stub.answer(200, events(event("message", '{"data":  1}'), event("message", '{"data": "\u2028"}')))
    assert hark("tail", "orders", "--json", "--limit", "2").stdout == '{"data":  1}\n{"data": "\u2028"}\n'


@pytest.mark.parametrize("command", [("tail", "orders"), ("kv", "watch", "a"), ("top",)], ids=" ".join)
def test_streams_say_why_they_ended(hark: Run, stub: Stub, command: tuple[str, ...]) -> None:
    stub.answer(200, events(event("error", '{"error": "no key", "code": "encryption_key_missing"}')))
    result = hark(*command)
    assert (result.exit_code, result.stderr) == (1, "hark: no key (encryption_key_missing)\n")
    stub.answer(200, events(PING))
    result = hark(*command)
    assert result.exit_code == 1
    assert result.stderr.startswith("hark: the server closed the stream")


def test_tail_follows_a_server_until_it_is_interrupted(
    server_url: str, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HARK_URL", server_url)
    assert runner()("push", queue, "1").exit_code == 0
    with hark_process("tail", queue, "--from", "head", "--json") as output:
        assert '"data":1' in output.readline()
        assert runner()("push", queue, "2").exit_code == 0
        assert '"data":2' in output.readline()


# Tasks -----------------------------------------------------------------------------------------------------

TASK = {"id": "m1", "partitionId": "p1", "payload": {"task": "resize", "arguments": {"width": 640}}}


def test_the_message_of_a_task_is_shown_with_its_state_progress_and_result(hark: Run, stub: Stub) -> None:
    stub.answer(200, TASK)
    stub.answer(200, {"state": "running", "progress": 0.4, "note": "resizing"})
    shown = hark("message", "show", "p1", "t1").stdout
    assert [seen.target for seen in stub.seen] == ["/api/v1/messages/p1/t1", "/api/v1/messages/p1/t1/task"]
    lines = dict(line.split(maxsplit=2)[1:] for line in shown.splitlines() if line.startswith("task "))
    assert (lines["state"], lines["progress"], lines["note"]) == ("running", "0.4", "resizing")
    stub.answer(200, TASK)
    stub.answer(200, {"state": "done", "result": {"bytes": 12345678901234567890}})
    found = hark("message", "show", "p1", "t1", "--json").stdout
    assert '"bytes":12345678901234567890' in found.replace(" ", "")
    assert json.loads(found)["taskStatus"]["state"] == "done"


def test_a_running_task_is_cancelled_by_its_worker(hark: Run, stub: Stub) -> None:
    stub.answer(200, {"success": True, "id": "m1", "cancelling": True})
    result = hark("cancel", "m1")
    assert stub.last.target == "/api/v1/messages/m1/cancel?running=true"
    assert result.stdout == "cancelling message m1; its worker is notified when it renews its lease\n"
