"""A bucket is a target like any other: for `connect`, workers, servers and the commands, with and without a server."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import uuid
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

import hark.sync
from hark import CallPolicy
from hark.client.transport.inprocess import BesideTransport
from hark.clock import FakeClock, SystemClock
from hark.connecting import connect, in_process
from hark.engine.s3 import objects
from hark.engine.s3.engine import S3Engine
from hark.engine.sqlite import SqliteEngine
from hark.errors import InvalidInput, StoreUnusable, Unavailable
from hark.polling import PollingStrategy, PollMetrics
from hark.serving import server
from hark.serving.server import describe, make_engine, refuse_company_on_sqlite
from hark.settings import Peer, Polling, Settings
from hark.settings import Worker as WorkerSettings
from hark.settings.sections import S3
from hark.worker import Worker
from tests.cli.conftest import runner
from tests.cli.test_workers import serving
from tests.cli.working import APP, working
from tests.s3.stub.server import StubServer
from tests.worker.workers import burst, running

URL = "s3://bucket/prefix?endpoint=http://127.0.0.1:1"
ADAPTIVE = PollingStrategy.adaptive(max_interval_ms=60_000)
SOON = PollingStrategy.fixed(interval_ms=10)
ADDRESS = re.compile(r"^Hark .* serves (\S+) on (http://127\.0\.0\.1:\d+)$")
REQUESTS = r"[1-9]\d* PUT and [1-9]\d* GET requests since the server started, 0 failed; cost \$"
pytestmark = pytest.mark.usefixtures("no_settings")


@pytest.fixture
def queue() -> str:
    return f"queue-{uuid.uuid4().hex[:12]}"


@pytest.fixture
def bucket(stub_server: StubServer) -> str:
    return stub_server.bucket_url("some/prefix")


class Made:
    """What the engine on a bucket was made with, in place of one."""

    def __init__(self) -> None:
        self.given: list[tuple[Settings, PollingStrategy]] = []

    def __call__(self, settings: Settings, clock: object, polling: PollingStrategy) -> SqliteEngine:
        assert clock is not None
        self.given.append((settings, polling))
        return SqliteEngine(":memory:", clock=SystemClock())


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Made:
    made = Made()
    monkeypatch.setattr(server, "_on_s3", made)
    return made


# What reaches the engine ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "target", [URL, [URL], (URL,), f" {URL} ,", None], ids=["text", "list", "tuple", "spaces", "environment"]
)
def test_a_bucket_gets_a_server_in_a_thread_of_this_process(
    made: Made, target: str | list[str] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if target is None:
        monkeypatch.setenv("HARK_URL", URL)
    transport = connect(target).caller.transport
    assert isinstance(transport, BesideTransport)
    assert transport.url == "s3://bucket/prefix"
    assert made.given[0][0].engine == URL


def test_settings_come_from_the_environment_and_the_file_unless_code_has_them(
    made: Made, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "hark.toml").write_text("[s3]\nlinger_ms = 7\n[worker.polling]\nmax_interval_ms = 9000\n")
    monkeypatch.setenv("HARK_POLLING_MIN_INTERVAL_MS", "70")
    connect(URL)
    monkeypatch.setenv("HARK_POLLING_STRATEGY", "fixed")
    connect(URL, settings=Settings(s3=S3(linger_ms=3)), polling=ADAPTIVE)
    given = [(settings.s3.linger_ms, polling) for settings, polling in made.given]
    assert given == [(7, PollingStrategy.adaptive(min_interval_ms=70, max_interval_ms=9000)), (3, ADAPTIVE)]


async def test_who_waits_for_messages_rests_no_longer_than_the_engine_does(made: Made, queue: str) -> None:
    """A strategy with long rests is the engine's alone: else a push in this very process would wait for its end."""
    async with connect(URL, polling=PollingStrategy.fixed(interval_ms=86_400_000)) as client:
        messages = client.queue(queue).timeout(1).messages()
        waiting = asyncio.ensure_future(anext(messages))
        await asyncio.sleep(0)
        await client.queue(queue).push({"id": 1})
        async with asyncio.timeout(20):
            message = await waiting
        assert message.data == {"id": 1}
        await messages.aclose()
    assert made.given[0][1].interval_ms == 86_400_000


@pytest.mark.parametrize(
    ("target", "text"),
    [
        ([URL, "http://a"], "s3://... is a store"),
        (f"http://a,{URL}", "s3://... is a store"),
        ([URL, URL], "s3://... is a store"),
        ("s3://", "target: the URL names no bucket"),
        ("s3://bucket?color=red", "target: .*unknown parameter 'color'"),
    ],
    ids=["with a server", "behind a server", "two buckets", "no bucket", "unknown parameter"],
)
def test_what_is_no_bucket_alone_is_refused(target: str | list[str], text: str) -> None:
    with pytest.raises(InvalidInput, match=text):
        connect(target)


def test_headers_have_no_effect_on_a_bucket_and_are_refused() -> None:
    with pytest.raises(InvalidInput, match="headers: only valid if the target is the URL of a server"):
        connect(URL, headers={"a": "b"})


# Servers ----------------------------------------------------------------------------------------------------


def test_a_server_makes_the_engine_that_its_settings_name_and_may_have_company() -> None:
    settings = Settings(engine=URL, workers=4, peers=("b:1",), peer=Peer(port=1))
    assert isinstance(make_engine(settings, FakeClock()), S3Engine)
    assert describe(settings) == "s3://bucket/prefix"
    refuse_company_on_sqlite(settings)


def test_the_engine_of_a_server_rests_as_the_settings_say(made: Made) -> None:
    fixed = WorkerSettings(polling=Polling(strategy="fixed", interval_ms=700))
    make_engine(Settings(engine=URL, worker=fixed), FakeClock())
    assert made.given[0][1] == PollingStrategy.fixed(interval_ms=700)


# Who polls --------------------------------------------------------------------------------------------------


class Polled(SqliteEngine):
    """An engine that says it polls its store."""

    def __init__(self) -> None:
        super().__init__(":memory:", clock=SystemClock())
        self.strategies: list[PollingStrategy] = []
        self.metrics = PollMetrics(interval_seconds=7, polls=70, empty=60, backoffs=5)

    def poll_as(self, strategy: PollingStrategy) -> PollMetrics:
        """Rest as a strategy says."""
        self.strategies.append(strategy)
        return self.metrics


Make = Callable[[Polled], object]


@pytest.mark.parametrize(
    "make", [lambda engine: engine, lambda engine: BesideTransport(in_process(engine))], ids=["in place", "beside"]
)
async def test_the_strategy_of_a_run_is_the_stores_and_its_polls_are_those_that_are_counted(
    make: Make, queue: str
) -> None:
    engine = Polled()
    worker = Worker(make(engine), queue=queue)  # type: ignore[arg-type]  # Both are targets.

    @worker.task
    async def work() -> None: ...

    never = PollingStrategy.fixed(interval_ms=86_400_000)
    # Plain polling with such rests would not see the second task for a day.
    async with running(worker, polling=never, wait=False) as found:
        for count in (1, 2):
            await work.push()
            await found.ended(count)
        stats = worker.stats
    assert engine.strategies == [never]
    assert stats is not None
    assert (stats.poll_interval, stats.polls, stats.empty_polls) == (7, 70, 60)
    await worker.close()


async def test_the_settings_of_workers_reach_the_store_too(queue: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HARK_POLLING_MAX_INTERVAL_MS", "60000")
    engine = Polled()
    async with Worker(engine, queue=queue) as worker:
        await burst(worker)
    assert engine.strategies == [ADAPTIVE]


# On a bucket ------------------------------------------------------------------------------------------------


async def test_a_client_pushes_and_takes_without_any_server(fresh_bucket: str, queue: str) -> None:
    async with connect(fresh_bucket) as client:
        await client.queue(queue).push({"id": 1})
        (message,) = await client.queue(queue).pop()
        assert message.data == {"id": 1}
        await message.ack()
    async with connect(fresh_bucket) as client:
        assert await client.queue(queue).pop() == []


async def test_clients_and_workers_get_what_another_process_wrote(bucket: str, queue: str) -> None:
    """Engines in one process share nothing but the bucket, as processes do."""
    worker, producer = Worker(bucket, queue=f"{queue}-tasks"), Worker(bucket, queue=f"{queue}-tasks")

    @worker.task("work")
    async def work() -> None: ...

    @producer.task("work")
    async def push_only() -> None: ...

    async with connect(bucket, polling=SOON) as one, connect(bucket, polling=SOON) as other:
        messages = other.queue(queue).messages()
        waiting = asyncio.ensure_future(anext(messages))
        await one.queue(queue).push({"id": 1})
        async with asyncio.timeout(20):
            message = await waiting
        async with message:
            assert message.data == {"id": 1}
        await messages.aclose()
        async with running(worker, polling=SOON) as found:
            with producer.connect_to(client=one):
                await push_only.push()
            await found.ended(1)


async def test_a_worker_needs_no_server(bucket: str, queue: str) -> None:
    worker = Worker(bucket, queue=queue)
    seen: list[int] = []

    @worker.task
    async def work(value: int) -> None:
        seen.append(value)

    await asyncio.gather(*(work.push(value) for value in range(30)))
    assert (await burst(worker)).totals.done == 30
    async with running(worker, polling=SOON) as found:
        await work.push(30)
        await found.ended(1)
    assert sorted(seen) == list(range(31))


async def test_an_idle_worker_sends_nothing_but_its_engines_polls(stub_server: StubServer, queue: str) -> None:
    worker = Worker(stub_server.bucket_url("idle"), queue=queue)

    @worker.task
    async def work() -> None: ...

    async with running(worker, polling=SOON) as found:
        await work.push()
        await found.ended(1)
        next_look = _looks(stub_server)
        await next_look()
        stub_server.store.forget_requests()
        for _ in range(50):
            await next_look()
        requests = stub_server.store.log
        stats = worker.stats
    assert {kind for kind, _, _ in requests} == {"get"}
    assert len({key for _, key, _ in requests} - {f"idle/{objects.POINTER}"}) == 1, "always the same next record"
    assert stats is not None
    assert stats.polls >= 50, "what the worker counts is what is paid for"


def _looks(server: StubServer) -> Callable[[], Awaitable[object]]:
    """Something that waits for the next look at the log."""
    loop, looked = asyncio.get_running_loop(), asyncio.Semaphore(0)

    def on_request(_: object) -> None:
        loop.call_soon_threadsafe(looked.release)

    server.faults.hook("after", on_request, kind="get", key="log/")

    async def next_look() -> None:
        async with asyncio.timeout(20):
            await looked.acquire()

    return next_look


def test_neither_a_program_without_a_loop_nor_the_one_that_pushes_its_tasks_needs_a_server(
    bucket: str, queue: str
) -> None:
    with hark.sync.connect(bucket) as client:
        client.queue(queue).push({"id": 1})
        (message,) = client.queue(queue).pop()
        assert message.data == {"id": 1}
    worker = Worker(bucket, queue=f"{queue}-tasks")

    @worker.task
    def work() -> None: ...

    work.push_sync()
    assert asyncio.run(burst(worker)).totals.done == 1


async def test_a_bucket_that_is_not_there_is_an_error_that_says_so(stub_server: StubServer) -> None:
    client = connect(stub_server.bucket_url("prefix").replace("s3://", "s3://other-"))
    with pytest.raises(StoreUnusable, match="NoSuchBucket"):
        await client.open()
    await client.close()


# `hark serve`, `hark work` and `hark doctor` on a bucket: real processes -------------------------------------


@pytest.mark.parametrize("workers", [1, 2])
def test_servers_on_a_bucket_share_what_is_in_it_and_the_doctor_shows_their_requests(
    stub_server: StubServer, queue: str, tmp_path: Path, workers: int
) -> None:
    bucket = stub_server.bucket_url("served")
    with serving(tmp_path, "--port", "0", "--engine", bucket, "--workers", str(workers)) as server:
        (output,) = server.wait_for(ADDRESS)
        assert output[1] == bucket.partition("?")[0]
        with hark.sync.connect(output[2]) as client:
            client.queue(queue).push_many([{"id": number} for number in range(20)])
        # Both at once is legal: a client without a server beside those that have one.
        with hark.sync.connect(bucket) as client:
            found = client.queue(queue).batch(20).partitions(20).pop()
            assert sorted(message.data["id"] for message in found) == list(range(20))
        checks = {check["name"]: check for check in json.loads(runner()("doctor", "--json", "--url", output[2]).stdout)}
        assert checks["requests"]["result"] == "ok"
        assert re.search(REQUESTS, checks["requests"]["detail"])
        for verb in ("push", "pop"):
            assert runner()("maintenance", verb, "on", "--url", output[2]).exit_code == 0
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
    assert server.output[-1].startswith("hark: engine: 'a' is not a bucket name")


def test_hark_work_needs_no_server(stub_server: StubServer, queue: str, tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(APP)
    bucket = stub_server.bucket_url("worked")
    flags = ("--polling", "fixed", "--interval-ms", "10")
    with working(tmp_path, bucket, queue, "app:worker", *flags) as work:
        assert f"started: queue {queue} at {bucket.partition('?')[0]}, " in work.until("started: queue")
        with hark.sync.connect(bucket, polling=PollingStrategy.fixed(interval_ms=10)) as client:
            client.queue(queue).push({"task": "say", "arguments": {"word": "hello"}})
        work.until("said hello")
        work.signal(signal.SIGTERM)
        assert work.end() == 0
    assert "1 completed" in work.output[-1]
