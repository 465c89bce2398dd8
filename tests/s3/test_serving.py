"""`hark serve`, `hark work` and `hark doctor` on a bucket: real processes."""

from __future__ import annotations

import json
import re
import signal
import uuid
from pathlib import Path

import pytest

import hark.sync
from hark import CallPolicy
from hark.errors import Unavailable
from hark.polling import PollingStrategy
from tests.cli.conftest import runner
from tests.cli.test_workers import serving
from tests.cli.working import APP, working
from tests.s3.stub.server import StubServer

pytestmark = pytest.mark.usefixtures("no_settings")
ADDRESS = re.compile(r"^Hark .* serves (\S+) on (http://127\.0\.0\.1:\d+)$")
REQUESTS = r"[1-9]\d* PUT and [1-9]\d* GET since the server started, 0 failed: \$"


@pytest.fixture
def queue() -> str:
    return f"queue-{uuid.uuid4().hex[:12]}"


@pytest.mark.parametrize("workers", [1, 2])
def test_servers_on_a_bucket_share_what_is_in_it_and_the_doctor_shows_their_requests(
    stub_server: StubServer, queue: str, tmp_path: Path, workers: int
) -> None:
    bucket = stub_server.bucket_url("served")
    with serving(tmp_path, "--port", "0", "--engine", bucket, "--workers", str(workers)) as server:
        (said,) = server.wait_for(ADDRESS)
        assert said[1] == bucket.partition("?")[0]
        with hark.sync.connect(said[2]) as client:
            client.queue(queue).push_many([{"id": number} for number in range(20)])
        # Both at once is legal: a client without a server beside those that have one.
        with hark.sync.connect(bucket) as client:
            found = client.queue(queue).batch(20).partitions(20).pop()
            assert sorted(message.data["id"] for message in found) == list(range(20))
        checks = {check["name"]: check for check in json.loads(runner()("doctor", "--json", "--url", said[2]).stdout)}
        assert checks["requests"]["result"] == "ok"
        assert re.search(REQUESTS, checks["requests"]["detail"])
        for verb in ("push", "pop"):
            assert runner()("maintenance", verb, "on", "--url", said[2]).exit_code == 0
        server.process.send_signal(signal.SIGTERM)
        assert server.wait_for_end() == 0
    # What the server was told holds for those without one too.
    with hark.sync.connect(bucket, retry=CallPolicy(attempts=1)) as client:
        assert client.queue(queue).pop() == []
        with pytest.raises(Unavailable) as refused:
            client.queue(queue).push(1)
        assert refused.value.code == "maintenance"


def test_a_url_that_is_no_bucket_keeps_a_server_from_starting(tmp_path: Path) -> None:
    with serving(tmp_path, "--port", "0", "--engine", "s3://a") as server:
        assert server.wait_for_end() == 2
    assert server.said[-1].startswith("hark: engine: 'a' is not the name of a bucket")


def test_hark_work_needs_no_server(stub_server: StubServer, queue: str, tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(APP)
    bucket = stub_server.bucket_url("worked")
    flags = ("--polling", "fixed", "--interval-ms", "10")
    with working(tmp_path, bucket, queue, "app:worker", *flags) as work:
        assert f"works on queue {queue} at {bucket.partition('?')[0]}, " in work.until("works on queue")
        with hark.sync.connect(bucket, polling=PollingStrategy.fixed(interval_ms=10)) as client:
            client.queue(queue).push({"task": "say", "arguments": {"word": "hello"}})
        work.until("said hello")
        work.signal(signal.SIGTERM)
        assert work.end() == 0
    assert "1 done" in work.said[-1]
