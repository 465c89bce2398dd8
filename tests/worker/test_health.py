"""The health endpoint, the metrics and the statistics of a worker."""

from __future__ import annotations

import asyncio
import threading

import httpx
import pytest

from hark.api.types.delivery import Delivered
from hark.client.calling import CallPolicy
from hark.client.client import Client
from hark.client.delivery.settling import Settled, SettleDecision
from hark.client.transport.http import HttpTransport
from hark.errors import InvalidInput
from hark.worker import MetricsMiddleware, RetryPolicy, Worker
from hark.worker.retrying import Ended, InFlight
from hark.worker.stats import Stats
from tests.worker.workers import SECONDS, burst, running

ANY_PORT = ("127.0.0.1", 0)


async def get(worker: Worker, path: str, method: str = "GET") -> httpx.Response:
    """Ask a worker's endpoint."""
    await worker.ready()
    async with httpx.AsyncClient() as client:
        return await client.request(method, f"http://127.0.0.1:{worker.health_port}{path}")


async def test_health_says_what_the_worker_does_and_that_it_stops(server_url: str, queue: str) -> None:
    worker = Worker(server_url, queue=queue, concurrency=3)
    started, release = asyncio.Event(), asyncio.Event()

    @worker.task
    async def work() -> None:
        started.set()
        await release.wait()

    await work.push()
    async with running(worker, health=ANY_PORT):
        await started.wait()
        answer = await get(worker, "/health")
        assert answer.status_code == 200
        health = answer.json()
        assert (health["status"], health["queue"], health["concurrency"], health["running"]) == ("running", queue, 3, 1)
        assert health["problem"] is None
        assert health["secondsSinceAnswer"] < SECONDS
        stopping = asyncio.create_task(worker.stop())
        await asyncio.sleep(0)
        answer = await get(worker, "/health")
        assert (answer.status_code, answer.json()["status"]) == (503, "stopping")
        release.set()
        await stopping


async def test_a_worker_whose_slots_are_all_leased_by_functions_that_do_not_end_is_ill(
    server_url: str, queue: str
) -> None:
    worker = Worker(server_url, queue=queue, concurrency=1)
    release = threading.Event()

    @worker.task(timeout=0.05, retry=RetryPolicy.never())
    def hang() -> None:
        release.wait(SECONDS)

    await hang.push()
    async with running(worker, health=ANY_PORT) as found:
        await found.ended(1)
        answer = await get(worker, "/health")
        assert (answer.status_code, answer.json()["status"], answer.json()["stuck"]) == (503, "stuck", 1)
        assert "\nworker_stuck 1.0\n" in (await get(worker, "/metrics")).text
        release.set()
        async with asyncio.timeout(SECONDS):
            while (await get(worker, "/health")).status_code != 200:
                pass


async def test_health_answers_while_a_handler_blocks_the_loop(worker: Worker) -> None:
    answers: list[int] = []

    @worker.task
    async def block() -> None:
        # A request in the blocked loop itself: it can only be answered from another thread.
        answers.append(httpx.get(f"http://127.0.0.1:{worker.health_port}/health", timeout=10).status_code)  # noqa: ASYNC210

    await block.push()
    async with running(worker, health=ANY_PORT) as found:
        await found.ended(1)
    assert answers == [200]


async def test_metrics_have_polling_tasks_and_middleware(server_url: str, queue: str) -> None:
    metrics = MetricsMiddleware()
    worker = Worker(server_url, queue=queue, concurrency=4, middleware=[metrics])

    @worker.task(retry=RetryPolicy.never())
    async def work(fails: bool) -> None:
        if fails:
            raise ValueError

    for fails in (True, False, False):
        await work.push(fails)
    async with running(worker, health=ANY_PORT) as found:
        await found.ended(3)
        answer = await get(worker, "/metrics")
    assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
    lines = answer.text.splitlines()
    assert {
        "worker_poll_interval_seconds",
        "worker_poll_total",
        "worker_poll_empty_total",
        "worker_backoff_total",
    } <= {line.split(" ")[0] for line in lines}
    assert {
        'worker_tasks_total{outcome="done",task="work"} 2.0',
        'worker_tasks_total{outcome="dead",task="work"} 1.0',
        "worker_slots 4.0",
        'worker_task_seconds_bucket{le="+Inf",outcome="ok",task="work"} 2.0',
        'worker_task_seconds_count{outcome="ok",task="work"} 2.0',
        'worker_task_seconds_count{outcome="error",task="work"} 1.0',
    } <= set(lines)
    assert (metrics.durations.count("work", "ok"), metrics.durations.count("work", "error")) == (2, 1)


async def test_other_requests_are_refused_and_a_port_that_is_taken_is_a_clear_error(
    server_url: str, queue: str, worker: Worker
) -> None:
    async with running(worker, health=ANY_PORT):
        for method, path, status in (("GET", "/", 404), ("POST", "/health", 405), ("HEAD", "/health", 200)):
            assert (await get(worker, path, method)).status_code == status
        with pytest.raises(InvalidInput, match="cannot listen on"):
            await burst(Worker(server_url, queue=queue), health=("127.0.0.1", worker.health_port))


async def test_a_server_that_is_away_for_long_is_seen_in_the_health(
    queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = Client(HttpTransport("http://127.0.0.1:9"), retry=CallPolicy(attempts=1))
    worker = Worker(client=client, queue=queue)
    async with running(worker, health=ANY_PORT, grace_seconds=0.5):
        health = (await get(worker, "/health")).json()
        assert health["status"] == "running"
        async with asyncio.timeout(SECONDS):
            while not health["problem"]:
                health = (await get(worker, "/health")).json()
        assert "cannot connect to http://127.0.0.1:9" in health["problem"]
        monkeypatch.setattr("hark.worker.worker_run.SILENCE_SECONDS", -100.0)
        answer = await get(worker, "/health")
        assert (answer.status_code, answer.json()["status"]) == (503, "silent")
    await client.close()


async def test_statistics_report_what_was_done(worker: Worker) -> None:

    @worker.task
    async def work() -> None: ...

    assert worker.stats is None
    await asyncio.gather(*(work.push() for _ in range(5)))
    async with running(worker) as found:
        events = await found.ended(5)
        stats = worker.stats
        assert stats is not None
        assert (stats.totals.done, stats.tasks["work"].done, stats.running) == (5, 5, 0)
        assert stats.rate > 0
        assert stats.polls >= 1
    assert {(event.task, event.ending, event.attempt, event.dead) for event in events} == {("work", "done", 1, False)}


def ended(task: str) -> Ended:
    """A delivery that ended well."""
    message = Delivered("id", "t", None, None, None, "", "p", "Default", "l", "g", "q", 1, 0, 1)  # type: ignore[arg-type]  # Nobody reads the payload.
    return Ended(InFlight("l", [message]), message, SettleDecision(message), "done", task, 0.5)


def test_the_rate_is_that_of_the_last_seconds() -> None:
    now = 100.0
    stats = Stats(monotonic=lambda: now)
    assert stats.rate == 0
    now = 105.0
    stats.add([(ended("a"), Settled(True))] * 50)
    assert stats.rate == pytest.approx(10)
    now = 110.0
    stats.add([(ended("a"), Settled(True))] * 50)
    assert stats.rate == pytest.approx(10)
    now = 121.0
    assert stats.rate == 0
    assert stats.totals.done == 100
    assert stats.totals.seconds == pytest.approx(50)


def test_deliveries_are_counted_once_however_they_ended() -> None:
    """So that the seconds can be divided by them: a failure is counted as retried or dead too."""
    stats = Stats()
    message = ended("a").message
    failed = Ended(InFlight("l", [message]), message, SettleDecision(message, "failed"), "failed", "a", 0.5)
    back = Ended(InFlight("l", [message]), message, SettleDecision(message, "retry"), "handed_back", "a", 0.5)
    stats.add([(ended("a"), Settled(True)), (failed, Settled(True)), (back, Settled(True)), (back, None)])
    assert (stats.tasks["a"].ended, stats.totals.ended, stats.totals.seconds) == (4, 4, 2.0)
    stats = Stats()
    stats.add([(ended("a"), Settled(False, "lease_invalid")), (ended("a"), None)])  # What was refused is lost.
    assert (stats.totals.lost, stats.totals.done) == (2, 0)
