"""A server that is told to stop ends in time, whatever its store does."""

from __future__ import annotations

import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import apsw
import httpx
import pytest

from hark.serving.server import EXIT_UNFINISHED

STOP_SECONDS = 20.0
SERVE = [sys.executable, "-c", "from hark.cli import main; main()", "serve", "--port", "0", "--data", "data"]


@pytest.fixture
def server(tmp_path: Path) -> subprocess.Popen[str]:
    """A server with little patience."""
    (tmp_path / "hark.toml").write_text("stop_seconds = 0.2")
    return subprocess.Popen(SERVE, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def address(server: subprocess.Popen[str]) -> str:
    """Where it listens, as it says."""
    assert server.stdout is not None
    found = re.search(r"http://127\.0\.0\.1:\d+", server.stdout.readline())
    assert found is not None
    return found[0]


def stopped(server: subprocess.Popen[str]) -> tuple[int, str]:
    """Stop it: how it ended and what it said."""
    server.terminate()
    said, _ = server.communicate(timeout=STOP_SECONDS)
    return server.returncode, said


def test_a_waiting_pop_is_answered_and_the_server_ends_well(server: subprocess.Popen[str]) -> None:
    url = address(server)
    with ThreadPoolExecutor() as pool, httpx.Client(base_url=url, timeout=STOP_SECONDS) as client:
        waiting = pool.submit(client.get, "/api/v1/pop/queue/orders?wait=true&timeout=60000")
        while not client.get("/api/v1/consumers").json()["total"]:
            pass
        code, said = stopped(server)
        assert waiting.result().status_code == 204
    assert (code, "did not finish" in said) == (0, False)


def test_a_store_that_does_not_answer_does_not_keep_the_process(server: subprocess.Popen[str], tmp_path: Path) -> None:
    url = address(server)
    other = apsw.Connection(str(tmp_path / "data" / "hark.db"))
    with ThreadPoolExecutor() as pool, httpx.Client(base_url=url, timeout=STOP_SECONDS) as client:
        client.get("/health").raise_for_status()
        # Somebody else's write transaction: a push waits for it in the writer's thread.
        other.execute("begin immediate")
        push = pool.submit(client.post, "/api/v1/push", json={"items": [{"queue": "orders"}]})
        while client.get("/metrics").text.count("hark_http_requests_in_flight 2") == 0:
            pass
        code, said = stopped(server)
        # It was never told that its message is kept.
        assert push.exception() is not None or push.result().status_code >= 500
    other.close()
    assert code == EXIT_UNFINISHED
    assert "the store did not finish" in said
