"""`hark tail`: what it sends and what it prints."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from .conftest import Run, runner
from .stub import Stub
from .test_messages import query


def events(*parts: str) -> bytes:
    """The body of an event stream."""
    return "".join(f"{part}\n\n" for part in parts).encode()


PING = "event: ping\ndata: {}"


def test_tail_shows_messages_and_no_pings(hark: Run, stub: Stub) -> None:
    line = '{"id": "m1", "transactionId": "t1", "partition": "p", "offset": 9, "data": {"n":  1}}'
    stub.answer(200, events(PING, f"event: message\nid: m1\ndata: {line}"))
    result = hark("tail", "orders", "--from", "head", "--partition", "p", "--limit", "1")
    assert result.exit_code == 0, result.output
    assert stub.last.target.startswith("/api/v1/listen/queue/orders?")
    assert query(stub.last.target) == {"browse": "true", "from": "head", "partition": "p"}
    assert result.stdout.split("  ")[1:4] == ["p", "9", "t1"]
    assert result.stdout.endswith('{"n":  1}\n')


def test_tail_prints_the_bytes_of_the_server_as_lines(hark: Run, stub: Stub) -> None:
    stub.answer(200, events('event: message\ndata: {"data":  1}', 'event: message\ndata: {"data": "\u2028"}'))
    result = hark("tail", "orders", "--json", "--limit", "2")
    assert result.stdout == '{"data":  1}\n{"data": "\u2028"}\n'
    assert query(stub.last.target) == {"browse": "true", "from": "tail"}


def test_tail_says_why_it_ended(hark: Run, stub: Stub) -> None:
    stub.answer(200, events('event: error\ndata: {"error": "no key", "code": "encryption_key_missing"}'))
    result = hark("tail", "orders")
    assert (result.exit_code, result.stderr) == (1, "hark: no key (encryption_key_missing)\n")
    stub.answer(200, events(PING))
    result = hark("tail", "orders")
    assert (result.exit_code, result.stderr) == (1, "hark: the server ended the stream\n")
    stub.answer(400, {"error": "from: expected head", "code": "invalid_input"})
    result = hark("tail", "orders", "--from", "now")
    assert (result.exit_code, result.stderr) == (1, "hark: from: expected head (invalid_input)\n")


def test_tail_follows_a_server_until_it_is_interrupted(
    server_url: str, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HARK_URL", server_url)
    assert runner()("push", queue, "1").exit_code == 0
    command = [sys.executable, "-c", "from hark.cli import main; main()", "tail", queue, "--from", "head", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as tail:
        assert tail.stdout is not None
        assert '"data":1' in tail.stdout.readline()
        assert runner()("push", queue, "2").exit_code == 0
        assert '"data":2' in tail.stdout.readline()
        tail.send_signal(signal.SIGINT)
        assert tail.wait(20) == 0
