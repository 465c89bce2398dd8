"""The JavaScript consumer of the key-value API's document, run for real with an EventSource library."""

from __future__ import annotations

import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import httpx
import pytest

from tests.http.keyval.work import Work

CONSUMER = Path(__file__).with_name("keyval_consumer.mjs")
PACKAGES = Path(sys.prefix) / "node-clients"
SECONDS = 60


@contextmanager
def consumer(url: str) -> Iterator[IO[str]]:
    """What the consumer says, while it runs."""
    node = shutil.which("node")
    if node is None or not PACKAGES.is_dir():
        pytest.fail(f"node or {PACKAGES} is missing: install node, then run scripts/test, which installs the rest")
    command = [node, str(CONSUMER), url, str(PACKAGES)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert process.stdout is not None
    watchdog = threading.Timer(SECONDS, process.kill)
    watchdog.start()
    try:
        with process.stdout as output:
            yield output
    finally:
        watchdog.cancel()
        process.terminate()
        process.wait(SECONDS)


@pytest.fixture
def work(fresh_server_url: str) -> Iterator[Work]:
    """The default queue of a server of its own."""
    with httpx.Client(base_url=fresh_server_url, timeout=30) as client:
        yield Work(client)


def test_the_consumer_of_the_document_works_through_a_queue(work: Work, fresh_server_url: str) -> None:
    with consumer(fresh_server_url) as output:
        assert output.readline() == 'ping ""\n'
        done = work.enqueue({"task": "a"})
        assert output.readline() == f"Processing: {done}, attempt: 1\n"
        assert output.readline() == 'ack 200 {"ok":true}\n'
        flaky = work.enqueue({"task": "b", "failsAtFirst": True}, backoffSchedule=[50])
        assert output.readline() == f"Processing: {flaky}, attempt: 1\n"
        assert output.readline() == 'nack 200 {"ok":true}\n'
        assert output.readline() == f"Processing: {flaky}, attempt: 2\n"
        assert output.readline() == 'ack 200 {"ok":true}\n'
        assert work.stats() == (0, 0, 0)


def test_the_consumer_gets_more_than_it_may_hold_at_once(work: Work, fresh_server_url: str) -> None:
    ids = {work.enqueue({"task": str(number)}) for number in range(100)}
    with consumer(fresh_server_url) as output:
        processed: set[str] = set()
        acked = 0
        while acked < 100:
            line = output.readline()
            assert line, "the consumer is gone"
            if line.startswith("Processing: "):
                processed.add(line.removeprefix("Processing: ").split(",")[0])
            else:
                acked += line == 'ack 200 {"ok":true}\n'
        assert processed == ids
        assert work.stats() == (0, 0, 0)
