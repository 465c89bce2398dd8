"""The log of a whole run of a server: each line is JSON, names its request, and has no secrets and no payloads."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from typing import Any

import httpx
import pytest

from hark.access.tokens import TokenFile, make_token
from hark.api.operations import Role
from hark.clock import SystemClock

STOP_SECONDS = 20.0
MARK = "payload-nobody-may-log"
WRONG = "hark_zzzzzzzz_" + "w" * 43
ENCRYPTION_KEY = "ab" * 32
SERVE = [sys.executable, "-c", "from hark.cli import main; main()", "serve", "--port", "0", "--engine", "memory"]


class Run:
    """What was said to the server, and what it logged."""

    def __init__(self, lines: list[str], token: str) -> None:
        self.text = "\n".join(lines)
        self.lines: list[dict[str, Any]] = [json.loads(line) for line in lines]
        self.token = token

    def of(self, logger: str) -> list[dict[str, Any]]:
        """The lines of a logger."""
        return [line for line in self.lines if line["logger"] == logger]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A server with everything that may be logged, used well and badly."""
    directory = tmp_path_factory.mktemp("logged")
    token, text = make_token("tester", Role.ADMIN, ("*",), now=SystemClock().now())
    TokenFile(directory / "hark-data" / "tokens.json").add(lambda _tokens: token)
    environment = {
        "PATH": os.environ["PATH"],
        "HARK_LOG_LEVEL": "debug",
        "HARK_ACCESS_LOG": "true",
        "HARK_ENCRYPTION_KEY": ENCRYPTION_KEY,
    }
    server = subprocess.Popen(
        SERVE, cwd=directory, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert server.stdout is not None
        found = re.search(r"http://127\.0\.0\.1:\d+", server.stdout.readline())
        assert found is not None
        with httpx.Client(base_url=found[0], headers={"Authorization": f"Bearer {text}"}, timeout=20) as client:
            _use(client)
    finally:
        server.terminate()
        _, output = server.communicate(timeout=STOP_SECONDS)
    return Run(output.splitlines(), text)


def _use(client: httpx.Client) -> None:
    push = {"items": [{"queue": "orders", "payload": {"mark": MARK}}]}
    client.post("/api/v1/configure", json={"queue": "orders", "options": {MARK[:7]: 1, "encryptionEnabled": True}})
    client.post("/api/v1/push", json=push, headers={"X-Request-Id": "of-the-push"})
    [message] = client.get("/api/v1/pop/queue/orders").json()["messages"]
    client.post("/api/v1/ack", json={**message, "status": "failed", "error": "try again"})
    client.post("/api/v1/push", content=json.dumps(push)[:-1])
    client.post("/api/v1/push", json=push, headers={"Authorization": f"Bearer {WRONG}"})
    client.post("/api/v1/session", json={"token": WRONG})
    client.get("/no/such/route")
    client.delete("/api/v1/resources/queues/orders")


def test_every_line_is_json_without_a_token_a_payload_or_a_key(run: Run) -> None:
    for line in run.lines:
        assert {"at", "level", "logger", "event"} <= line.keys()
    assert run.of("access") and run.of("audit") and run.of("serving.server")
    for secret in (MARK, run.token, WRONG, ENCRYPTION_KEY):
        assert secret not in run.text


def test_each_request_has_a_line_in_the_access_log(run: Run) -> None:
    [push] = [line for line in run.of("access") if line.get("request_id") == "of-the-push"]
    assert push["event"] == "POST /api/v1/push: 201"
    assert (push["method"], push["route"], push["status"]) == ("POST", "/api/v1/push", 201)
    assert (push["subject"], push["client"]) == ("tester", "127.0.0.1")
    assert push["bytes"] > 0 and push["ms"] > 0
    output = [line["event"] for line in run.of("access")]
    assert output == [
        "POST /api/v1/configure: 200",
        "POST /api/v1/push: 201",
        "GET /api/v1/pop/queue/{queue}: 200",
        "POST /api/v1/ack: 200",
        "POST /api/v1/push: 400",
        "POST /api/v1/push: 401",
        "POST /api/v1/session: 401",
        "GET none: 404",
        "DELETE /api/v1/resources/queues/{queue}: 200",
    ]


def test_lines_of_one_request_have_one_id(run: Run) -> None:
    [audit] = [line for line in run.of("audit") if line["action"] == "delete_queue"]
    [access] = [line for line in run.of("access") if line["method"] == "DELETE"]
    assert audit["request_id"] == access["request_id"]
    assert (audit["subject"], audit["target"], audit["result"]) == ("tester", {"queue": "orders"}, "done")
    ids = [line["request_id"] for line in run.of("access")]
    assert len(set(ids)) == len(ids)
