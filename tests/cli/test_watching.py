"""`hark top` and `hark settings`: what they send and what they print."""

from __future__ import annotations

import json

from .conftest import Run
from .stub import Stub
from .test_tail import PING, events

SAMPLE = {
    "at": "2026-01-02T03:04:05.000Z",
    "pushedPerSecond": 12.5,
    "deliveredPerSecond": 3,
    "settledPerSecond": 2,
    "failedPerSecond": 0,
    "deadLetteredPerSecond": 0,
    "backlog": 41,
    "inFlight": 7,
    "oldestWaitingSeconds": None,
    "latencyMs": {"p50": 1.5, "p99": None},
    "queues": 2,
    "partitions": 3,
    "deadLetters": 0,
    "waiting": {"pops": 1, "streams": 0, "browsers": 0},
    "maintenance": {"push": False, "pop": False},
    "busiest": [{"queue": "orders", "pushedPerSecond": 12.5, "deliveredPerSecond": 3, "settledPerSecond": 2}],
    "changed": ["orders"],
    "more": False,
}


def test_top_shows_a_sample(hark: Run, stub: Stub) -> None:
    stub.answer(200, events(PING, f"event: sample\ndata: {json.dumps(SAMPLE)}"))
    result = hark("top", "--once")
    assert result.exit_code == 0, result.output
    assert stub.last.target == "/api/v1/events"
    lines = [line.split() for line in result.stdout.splitlines()]
    assert ["per", "second", "pushed", "12.5"] in lines
    assert ["messages", "backlog", "41"] in lines
    assert ["oldest", "waits,", "s", "-"] in lines
    assert ["orders", "12.5", "3.0", "2.0"] in lines


def test_top_prints_every_sample_as_it_came(hark: Run, stub: Stub) -> None:
    stub.answer(200, events('event: sample\ndata: {"backlog":  1}', 'event: sample\ndata: {"backlog":  2}'))
    result = hark("top", "--json")
    assert result.stdout == '{"backlog":  1}\n{"backlog":  2}\n'
    assert (result.exit_code, result.stderr) == (1, "hark: the server ended the stream\n")


def test_top_says_why_it_was_refused(hark: Run, stub: Stub) -> None:
    stub.answer(200, events('event: error\ndata: {"error": "no more", "code": "too_many_streams"}'))
    assert hark("top").stderr == "hark: no more (too_many_streams)\n"
    stub.answer(429, {"error": "no more", "code": "too_many_streams"})
    assert hark("top").stderr == "hark: no more (too_many_streams)\n"


def test_settings_are_shown_as_a_table_or_as_they_came(hark: Run, stub: Stub) -> None:
    body = {"version": "1.2", "engine": "x", "settings": [{"name": "peer.addresses", "value": ["a", "b"]}]}
    stub.answer(200, body)
    result = hark("settings")
    assert stub.last.target == "/api/v1/system/settings"
    assert ["peer.addresses", "a,", "b"] in [line.split() for line in result.stdout.splitlines()]
    stub.answer(200, body)
    assert json.loads(hark("settings", "--json").stdout) == body
