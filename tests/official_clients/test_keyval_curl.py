"""The curl commands of the key-value API's document, as they stand there but for host, port and ids."""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.http.keyval.work import Work

SECONDS = 30
MESSAGE_ID = "01J9X3K2M5N7P8Q9R0S1T2V3W4"
DEAD_LETTER_ID = "dlq-001"
"""The ids in the document, where a server gives its own."""


class Shell:
    """Runs commands of the document against a server."""

    def __init__(self, url: str) -> None:
        self._url = url

    def run(self, script: str) -> Any:
        """The JSON that a command prints."""
        done = subprocess.run(self._command(script), capture_output=True, text=True, timeout=SECONDS, check=True)
        return json.loads(done.stdout)

    def lines(self, script: str, number: int) -> list[str]:
        """The first lines of a command that goes on for ever."""
        process = subprocess.Popen(self._command(script), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        assert process.stdout is not None
        watchdog = threading.Timer(SECONDS, process.kill)
        watchdog.start()
        with process.stdout as output:
            lines = [output.readline() for _ in range(number)]
        watchdog.cancel()
        process.terminate()
        process.wait(SECONDS)
        return lines

    def _command(self, script: str) -> list[str]:
        return ["bash", "-c", script.replace("http://localhost:8000", self._url)]


@pytest.fixture
def shell(fresh_server_url: str) -> Shell:
    """A shell, and a server that nobody else uses."""
    return Shell(fresh_server_url)


@pytest.fixture
def work(fresh_server_url: str) -> Iterator[Work]:
    """The default queue of that server."""
    with httpx.Client(base_url=fresh_server_url, timeout=30) as client:
        yield Work(client)


def fail_for_good(work: Work, attempts: int) -> None:
    """Nack the next message without waiting for its schedule, until it is dead."""
    for attempt in range(1, attempts + 1):
        message = work.take()
        assert message["attempts"] == attempt
        work.nack(message, delay=0)


# Enqueuing messages ----------------------------------------------------------------------------------------


def test_simple_enqueue(shell: Shell, work: Work) -> None:
    answer = shell.run(
        """curl -X POST http://localhost:8000/keyval/api/queue/enqueue \\
  -H "Content-Type: application/json" \\
  -d '{"value": {"task": "send-email", "to": "user@example.com"}}'"""
    )
    assert answer == {"ok": True, "id": answer["id"]}
    message = work.take()
    assert (message["id"], message["value"]) == (answer["id"], {"task": "send-email", "to": "user@example.com"})


def test_delayed_delivery(shell: Shell, work: Work) -> None:
    answer = shell.run(
        """curl -X POST http://localhost:8000/keyval/api/queue/enqueue \\
  -H "Content-Type: application/json" \\
  -d '{
    "value": {"task": "send-reminder"},
    "options": {"delay": 60000}
  }'"""
    )
    assert answer["ok"] is True
    assert work.poll() is None
    assert work.stats() == (1, 0, 0)


def test_custom_retry_schedule(shell: Shell, work: Work) -> None:
    shell.run(
        """curl -X POST http://localhost:8000/keyval/api/queue/enqueue \\
  -H "Content-Type: application/json" \\
  -d '{
    "value": {"task": "webhook", "url": "https://api.example.com/hook"},
    "options": {
      "backoffSchedule": [1000, 5000, 30000]
    }
  }'"""
    )
    fail_for_good(work, 4)
    assert work.stats() == (0, 0, 1)


def test_keys_if_undelivered(shell: Shell, work: Work) -> None:
    shell.run(
        """curl -X POST http://localhost:8000/keyval/api/queue/enqueue \\
  -H "Content-Type: application/json" \\
  -d '{
    "value": {"task": "process-payment", "orderId": "ord-123", "amount": 99.99},
    "options": {
      "backoffSchedule": [1000, 5000, 30000],
      "keysIfUndelivered": [
        ["failed-payments", "ord-123"],
        ["alerts", "payment-failure", "ord-123"]
      ]
    }
  }'"""
    )
    fail_for_good(work, 4)
    for path in ("failed-payments/ord-123", "alerts/payment-failure/ord-123"):
        entry = work.client.get(f"/keyval/api/keys/{path}").json()
        assert entry["value"] == {"task": "process-payment", "orderId": "ord-123", "amount": 99.99}


# Consuming messages ----------------------------------------------------------------------------------------


def test_sse_streaming(shell: Shell, work: Work) -> None:
    id = work.enqueue({"task": "send-email"})
    other = work.enqueue({"task": "another"})
    lines = shell.lines("curl -N http://localhost:8000/keyval/api/queue/listen", 13)
    assert lines[:2] == ["retry: 1000\n", "\n"]
    assert lines[2:4] == ["event: message\n", f"id: {id}\n"]
    first = json.loads(lines[4].removeprefix("data: "))
    assert first == {"id": id, "value": {"task": "send-email"}, "attempts": 1, "receipt": first["receipt"]}
    assert lines[5:8] == ["\n", "event: message\n", f"id: {other}\n"]
    assert lines[9:] == ["\n", "event: ping\n", "data: \n", "\n"]


def test_polling(shell: Shell, work: Work) -> None:
    poll = """# Get next message (or null if queue is empty)
curl http://localhost:8000/keyval/api/queue/poll"""
    assert shell.run(poll) == {"message": None}
    id = work.enqueue({"task": "send-email"})
    message = shell.run(poll)["message"]
    assert message == {"id": id, "value": {"task": "send-email"}, "attempts": 1, "receipt": message["receipt"]}
    assert shell.run(poll) == {"message": None}


# Acknowledgment and rejection ------------------------------------------------------------------------------


def test_acknowledge(shell: Shell, work: Work) -> None:
    ack = """curl -X POST http://localhost:8000/keyval/api/queue/ack \\
  -H "Content-Type: application/json" \\
  -d '{"id": "01J9X3K2M5N7P8Q9R0S1T2V3W4"}'"""
    assert shell.run(ack) == {"ok": True, "found": False}
    id = work.enqueue(1)
    work.take()
    assert shell.run(ack.replace(MESSAGE_ID, id)) == {"ok": True}
    assert work.stats() == (0, 0, 0)


def test_reject(shell: Shell, work: Work) -> None:
    nack = """curl -X POST http://localhost:8000/keyval/api/queue/nack \\
  -H "Content-Type: application/json" \\
  -d '{"id": "01J9X3K2M5N7P8Q9R0S1T2V3W4"}'"""
    assert shell.run(nack) == {"ok": True, "found": False}
    id = work.enqueue(1, backoffSchedule=[0])
    for attempt in (1, 2):
        assert work.take()["attempts"] == attempt
        assert shell.run(nack.replace(MESSAGE_ID, id)) == {"ok": True}
    assert work.stats() == (0, 0, 1)


# Queue statistics ------------------------------------------------------------------------------------------


def test_queue_statistics(shell: Shell, work: Work) -> None:
    work.kill("dead")
    for number in range(3):
        work.enqueue(number)
    work.take()
    answer = shell.run("curl http://localhost:8000/keyval/api/queue/stats")
    assert answer == {"pending": 2, "processing": 1, "dlq": 1, "total": 4}


# Dead letter queue -----------------------------------------------------------------------------------------


def test_list_dlq_messages(shell: Shell, work: Work) -> None:
    id = work.enqueue({"task": "webhook", "url": "https://api.example.com/hook"}, backoffSchedule=[0, 0])
    for _ in range(3):
        work.nack(work.take(), error="Connection timeout")
    [letter] = shell.run('curl "http://localhost:8000/keyval/api/queue/dlq?limit=50&offset=0"')
    assert letter == {
        "id": letter["id"],
        "originalId": id,
        "value": {"task": "webhook", "url": "https://api.example.com/hook"},
        "attempts": 3,
        "errorMessage": "Connection timeout",
        "originalCreatedAt": letter["originalCreatedAt"],
        "failedAt": letter["failedAt"],
    }


def test_get_specific_dlq_message(shell: Shell, work: Work) -> None:
    get = "curl http://localhost:8000/keyval/api/queue/dlq/dlq-001"
    assert shell.run(get)["error"] == "Message not found in DLQ"
    letter = work.kill(1)
    assert shell.run(get.replace(DEAD_LETTER_ID, letter["id"])) == letter


def test_requeue_dlq_message(shell: Shell, work: Work) -> None:
    requeue = "curl -X POST http://localhost:8000/keyval/api/queue/dlq/dlq-001/requeue"
    assert shell.run(requeue)["error"] == "Message not found in DLQ"
    answer = shell.run(requeue.replace(DEAD_LETTER_ID, work.kill(1)["id"]))
    assert answer == {"ok": True, "newId": answer["newId"], "id": answer["newId"]}
    assert work.take()["id"] == answer["newId"]


def test_delete_dlq_message(shell: Shell, work: Work) -> None:
    delete = "curl -X DELETE http://localhost:8000/keyval/api/queue/dlq/dlq-001"
    assert shell.run(delete) == {"ok": True}
    letter = work.kill(1)
    assert shell.run(delete.replace(DEAD_LETTER_ID, letter["id"])) == {"ok": True}
    assert work.dead() == []


def test_purge_all_dlq_messages(shell: Shell, work: Work) -> None:
    for number in range(3):
        work.kill(number)
    purge = "curl -X DELETE http://localhost:8000/keyval/api/queue/dlq"
    assert shell.run(purge) == {"deletedCount": 3}
    assert shell.run(purge) == {"deletedCount": 0}


# Common patterns -------------------------------------------------------------------------------------------


def test_worker_queue(shell: Shell) -> None:
    answer = shell.run(
        """# Producer: enqueue jobs
curl -X POST http://localhost:8000/keyval/api/queue/enqueue \\
  -H "Content-Type: application/json" \\
  -d '{
    "value": {"type": "resize-image", "imageId": "img-123", "width": 800},
    "options": {"backoffSchedule": [2000, 10000, 60000]}
  }'"""
    )
    lines = shell.lines(
        """# Consumer: process with SSE
curl -N http://localhost:8000/keyval/api/queue/listen""",
        5,
    )
    message = json.loads(lines[4].removeprefix("data: "))
    assert message["id"] == answer["id"]
    assert message["value"] == {"type": "resize-image", "imageId": "img-123", "width": 800}


def test_scheduled_tasks(shell: Shell, work: Work) -> None:
    shell.run(
        """# Schedule task for 5 minutes from now
curl -X POST http://localhost:8000/keyval/api/queue/enqueue \\
  -H "Content-Type: application/json" \\
  -d '{
    "value": {"type": "cleanup-expired-sessions"},
    "options": {"delay": 300000}
  }'"""
    )
    assert work.poll() is None
    assert work.stats() == (1, 0, 0)


def test_failure_tracking(shell: Shell, work: Work) -> None:
    shell.run(
        """# Enqueue with failure tracking
curl -X POST http://localhost:8000/keyval/api/queue/enqueue \\
  -H "Content-Type: application/json" \\
  -d '{
    "value": {"type": "charge-card", "userId": "u-123", "amount": 49.99},
    "options": {
      "backoffSchedule": [5000, 30000, 120000],
      "keysIfUndelivered": [
        ["failed-charges", "u-123"],
        ["notifications", "admin", "charge-failed"]
      ]
    }
  }'"""
    )
    check = """# Later: check for failures
curl http://localhost:8000/keyval/api/keys?prefix=failed-charges"""
    assert shell.run(check) == []
    fail_for_good(work, 4)
    [entry] = shell.run(check)
    assert (entry["key"], entry["value"]) == (
        ["failed-charges", "u-123"],
        {"type": "charge-card", "userId": "u-123", "amount": 49.99},
    )
    assert entry["versionstamp"]
