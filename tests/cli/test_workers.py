"""`hark serve` as real processes: how one stops, and several `--workers` on one port and one database."""

from __future__ import annotations

import os
import re
import select
import signal
import ssl
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import apsw
import httpx
import pytest

from hark.access.tokens import TokenFile, make_token
from hark.api.operations import Role
from hark.clock import SystemClock
from hark.serving.server import EXIT_UNFINISHED
from tests.certificates import make_certificates
from tests.http.scraping import Scrape, scrape
from tests.postgres_server import OwnPostgresServer

from .working import Output

SECONDS = 30.0
_ADDRESS = re.compile(r"^Hark .* serves (\S+) on (http://127\.0\.0\.1:\d+)$")
_WORKER = re.compile(r'server process (?P<process>\d+) is ready".*"worker":(?P<worker>\d+)')
_SERVE = """
from hark.cli import main
from hark.serving import processes

processes._PAUSE_SECONDS = processes._MORE_SECONDS = 0.1
main()
"""
"""`hark serve` with less patience with its workers."""


class Serving:
    """A `hark serve` and all that it says."""

    def __init__(self, directory: Path, arguments: Sequence[str], engine: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", _SERVE, "serve", *arguments],
            cwd=directory,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=os.environ | ({"HARK_ENGINE": engine} if engine else {}),
        )
        assert self.process.stdout is not None
        self._output = Output(self.process.stdout)

    @property
    def output(self) -> list[str]:
        """Its lines so far."""
        return [line.rstrip() for line in self._output.output]

    def wait_for(self, pattern: re.Pattern[str], times: int = 1) -> list[re.Match[str]]:
        """Wait until that many lines match, and give the matches."""
        while len(found := [match for line in self.output if (match := pattern.search(line))]) < times:
            self._output.until("")  # The next line, whatever it is.
        return found

    def wait_for_end(self) -> int:
        """Wait until it has ended and closed its output; the exit code."""
        code = self.process.wait(SECONDS)
        self._output.end()
        return code

    def workers(self, times: int = 2) -> dict[int, int]:
        """The process of each worker, the newest one, when that many have been started."""
        return {int(match["worker"]): int(match["process"]) for match in self.wait_for(_WORKER, times)}


@contextmanager
def serving(directory: Path, *arguments: str, engine: str = "") -> Iterator[Serving]:
    """Run `hark serve`; stopped at the end."""
    running = Serving(directory, arguments, engine)
    try:
        yield running
    finally:
        running.process.terminate()
        try:
            running.process.wait(SECONDS)
        except subprocess.TimeoutExpired:
            running.process.kill()
            running.process.wait()
            pytest.fail(f"the server did not stop within {SECONDS} s; it said: {running.output}")


@pytest.fixture
def served(tmp_path: Path, postgres_url: str) -> Iterator[Serving]:
    """Two workers."""
    with serving(tmp_path, "--workers", "2", "--port", "0", engine=postgres_url) as running:
        yield running


def address(served: Serving) -> str:
    """Where it serves."""
    return served.wait_for(_ADDRESS)[0][2]


def ended(process: int) -> bool:
    """Wait until a process that is not our child has ended."""
    try:
        handle = os.pidfd_open(process)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([handle], [], [], SECONDS)[0])
    finally:
        os.close(handle)


# One process -----------------------------------------------------------------------------------------------


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[Serving]:
    """A server with little patience, on a file."""
    (tmp_path / "hark.toml").write_text("stop_seconds = 0.2")
    with serving(tmp_path, "--port", "0", "--data", "data") as running:
        yield running


def test_a_waiting_pop_is_answered_and_the_server_ends_well(alone: Serving) -> None:
    with ThreadPoolExecutor() as pool, httpx.Client(base_url=address(alone), timeout=SECONDS) as client:
        waiting = pool.submit(client.get, "/api/v1/pop/queue/orders?wait=true&timeout=60000")
        while not client.get("/api/v1/consumers").json()["total"]:
            pass
        alone.process.terminate()
        assert alone.wait_for_end() == 0
        assert waiting.result().status_code == 204
    assert "did not finish" not in "".join(alone.output)


def test_a_store_that_does_not_answer_does_not_keep_the_process(alone: Serving, tmp_path: Path) -> None:
    with ThreadPoolExecutor() as pool, httpx.Client(base_url=address(alone), timeout=SECONDS) as client:
        client.get("/health").raise_for_status()
        # A write transaction of another program: a push waits for it in the writer's thread.
        other = apsw.Connection(str(tmp_path / "data" / "hark.db"))
        other.execute("begin immediate")
        push = pool.submit(client.post, "/api/v1/push", json={"items": [{"queue": "orders"}]})
        while client.get("/metrics").text.count("hark_http_requests_in_flight 2") == 0:
            pass
        alone.process.terminate()
        assert alone.wait_for_end() == EXIT_UNFINISHED
        # It never got the answer that its message is kept.
        assert push.exception() is not None or push.result().status_code >= 500
    other.close()
    assert "the store did not close" in "".join(alone.output)


def test_sighup_reads_certificates_and_tokens_again(tmp_path: Path) -> None:
    certificates = make_certificates(tmp_path / "tls")
    token, text = make_token("tester", Role.ADMIN, ("*",), now=SystemClock().now())
    TokenFile(tmp_path / "hark-data" / "tokens.json").add(lambda _tokens: token)
    with serving(tmp_path, "--port", "0", "--engine", "memory", *certificates.flags) as served:
        port = int(served.wait_for(re.compile(r"https://127\.0\.0\.1:(\d+)$"))[0][1])

        def shown() -> str:
            return ssl.get_server_certificate(("127.0.0.1", port))

        assert shown() == certificates.certificate.read_text()
        trust = ssl.create_default_context(cafile=str(certificates.authority))
        headers = {"Authorization": f"Bearer {text}"}
        url = f"https://127.0.0.1:{port}/api/v1/listen/queue/orders"
        with httpx.stream("GET", url, headers=headers, verify=trust, timeout=SECONDS) as response:
            events = response.iter_bytes()
            assert next(events)
            TokenFile(tmp_path / "hark-data" / "tokens.json").remove(token.id)
            renewed = make_certificates(tmp_path / "tls")
            served.process.send_signal(signal.SIGHUP)
            served.wait_for(re.compile("read the certificate"))
            assert shown() == renewed.certificate.read_text()
            with pytest.raises(httpx.TransportError):  # The token is revoked: the stream ends.
                for _ in events:
                    pass
        renewed.key.write_text("no key")
        served.process.send_signal(signal.SIGHUP)
        served.wait_for(re.compile("the certificate was not renewed"))
        assert shown() == renewed.certificate.read_text()


def test_sighup_does_not_end_a_server_that_is_starting(tmp_path: Path) -> None:
    program = (
        "import os, signal\n"
        "from hark.serving.server import run\n"
        "async def starting(): os.kill(os.getpid(), signal.SIGHUP)\n"
        "run(starting())\n"
    )
    assert subprocess.run([sys.executable, "-c", program], cwd=tmp_path, check=False, timeout=SECONDS).returncode == 0


# Several ---------------------------------------------------------------------------------------------------


def test_sighup_reaches_every_worker_and_ends_none(served: Serving) -> None:
    first = served.workers()
    address(served)
    served.process.send_signal(signal.SIGHUP)
    served.wait_for(re.compile(r"read \d+ tokens"), times=2)
    assert served.process.poll() is None
    assert served.workers() == first


def test_all_workers_serve_one_port_and_one_store(
    served: Serving, queue: str, tmp_path: Path, postgres_url: str
) -> None:
    url = address(served)
    assert len(set(served.workers().values())) == 2
    for number in range(20):  # Each on a connection of its own: some reach the one worker, some the other.
        item = {"queue": queue, "payload": number, "transactionId": str(number % 10)}
        httpx.post(f"{url}/api/v1/push", json={"items": [item]}).raise_for_status()
    answer = httpx.get(f"{url}/api/v1/pop/queue/{queue}", params={"batch": 100}).json()
    assert [message["data"] for message in answer["messages"]] == list(range(10))
    for workers in ("1", "2"):  # The port is refused to others, even if they would share it.
        with serving(tmp_path, "--workers", workers, "--port", url.rpartition(":")[2], engine=postgres_url) as other:
            assert other.wait_for_end() == 1
            assert other.output[-1].endswith("(address_in_use)")


def test_a_worker_that_dies_is_replaced_and_what_it_did_still_counts(served: Serving, queue: str) -> None:
    url = address(served)
    first = served.workers()

    def push(number: int) -> None:
        for payload in range(number):  # Each on a connection of its own: some reach the one worker, some the other.
            body = {"items": [{"queue": queue, "payload": payload}]}
            httpx.post(f"{url}/api/v1/push", json=body).raise_for_status()

    def scraped() -> Scrape:
        with httpx.Client(base_url=url, timeout=SECONDS) as client:
            return scrape(client)

    push(20)
    found = scraped()
    assert found("hark_pushed_messages_total") == 20 == found.sum("hark_queue_pushed_messages_total")
    assert found("hark_http_requests_total", route="/api/v1/push", method="POST", status="201") == 20
    assert found("hark_http_request_seconds_count", route="/api/v1/push", method="POST") == 20
    assert {sample.labels["worker"] for sample in found.samples if sample.name == "process_open_fds"} == {"1", "2"}
    assert found("hark_store_pool_connections", state="open") >= 2
    assert {httpx.get(f"{url}/health").json()["worker_id"] for _ in range(40)} == {0, 1}
    os.kill(first[1], signal.SIGKILL)
    served.wait_for(re.compile(r"worker 1 ended with signal SIGKILL; starting another"))
    httpx.get(f"{url}/health").raise_for_status()
    assert served.workers(times=3)[1] != first[1]
    push(5)
    for _ in range(4):  # Each worker answers the same.
        assert scraped()("hark_pushed_messages_total") == 25


def test_consumers_and_workers_outlive_a_database_that_was_away(
    tmp_path: Path, own_postgres_server: OwnPostgresServer, queue: str
) -> None:
    with (
        own_postgres_server.fresh_database() as engine,
        serving(tmp_path, "--workers", "2", "--port", "0", engine=engine) as served,
        ThreadPoolExecutor(1) as consumer,
    ):
        url = address(served)
        path = f"{url}/api/v1/pop/queue/{queue}?wait=true&timeout=60000"
        pop = consumer.submit(httpx.get, path, timeout=2 * SECONDS)
        own_postgres_server.stop("immediate")
        served.wait_for(re.compile("PostgreSQL is unavailable"), times=2)
        own_postgres_server.start()
        served.wait_for(re.compile("PostgreSQL is available again"), times=2)
        item = {"queue": queue, "payload": 17}
        httpx.post(f"{url}/api/v1/push", json={"items": [item]}, timeout=SECONDS).raise_for_status()
        assert [message["data"] for message in pop.result(SECONDS).json()["messages"]] == [17]
        # A worker that dies meanwhile is replaced when the database is back.
        victim = served.workers()[2]
        own_postgres_server.stop("fast")
        os.kill(victim, signal.SIGKILL)
        served.wait_for(re.compile(r"worker 2 cannot start: .* is not reachable .*; starting another"))
        own_postgres_server.start()
        assert served.workers(times=3)[2] != victim
        served.wait_for(re.compile("PostgreSQL is available again"), times=3)  # The new worker never lost it.
        httpx.get(f"{url}/health", timeout=SECONDS).raise_for_status()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_the_parent_stops_all(served: Serving, number: signal.Signals, postgres_url: str) -> None:
    address(served)
    workers = served.workers()
    served.process.send_signal(number)
    assert served.wait_for_end() == 0
    assert all(ended(worker) for worker in workers.values())
    # The address was printed once, and without the password.
    [match] = [match for line in served.output if (match := _ADDRESS.search(line))]
    assert match[1] == re.sub("//.*@", "//", postgres_url)
    assert not [line for line in served.output if "Traceback" in line]


def test_a_worker_that_is_stuck_does_not_keep_the_parent(tmp_path: Path, postgres_url: str) -> None:
    (tmp_path / "hark.toml").write_text("stop_seconds = 0.1")
    with serving(tmp_path, "--workers", "2", "--port", "0", engine=postgres_url) as served:
        address(served)
        stuck = served.workers()[1]
        os.kill(stuck, signal.SIGSTOP)
        served.process.terminate()
        served.wait_for(re.compile("worker 1 did not shut down"))
        assert served.wait_for_end() == 0
        assert ended(stuck)


def test_killing_the_parent_leaves_no_workers_behind(served: Serving) -> None:
    address(served)
    workers = served.workers()
    served.process.kill()
    assert all(ended(worker) for worker in workers.values())


def test_workers_that_cannot_start_at_all_are_an_error(tmp_path: Path) -> None:
    url = "postgresql://me:s3cret@127.0.0.1:1/hark"
    with serving(tmp_path, "--workers", "2", "--port", "0", engine=url) as failing:
        assert failing.wait_for_end() == 1
    assert failing.output == [line for line in failing.output if "s3cret" not in line and not _ADDRESS.search(line)]
    assert "is not reachable" in failing.output[-1]
    assert failing.output[-1].endswith("(store_unusable)")


def test_several_workers_on_sqlite_are_refused(tmp_path: Path) -> None:
    with serving(tmp_path, "--workers", "2", "--port", "0") as refused:
        assert refused.wait_for_end() == 2
    assert refused.output == [
        "hark: setting workers: 2 server processes cannot share one SQLite store; use 1, or use PostgreSQL or S3 "
        "(invalid_setting)"
    ]
