"""The server itself: health, maintenance, settings, history, events, and the original's words for what goes on."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import httpx
import pytest

import hark
from hark.access.tokens import Identity
from hark.api.operations import Role
from hark.api.types import encode
from hark.api.types.server import BusyQueue, LiveSample, Stopped, Waiting
from hark.broker import Broker
from hark.broker.observer import Point, Rates, Sample
from hark.broker.tallies import EngineCalls
from hark.broker.upkeep import Readiness
from hark.engine.api import Engine
from hark.errors import EngineFailure
from hark.http.app import App
from hark.http.routes import status
from hark.http.routes.status import restricted_sample_of, sample_of
from hark.settings import Encryption, Limits, Settings
from hark.testing.server import FakeTimers, ServerThread
from tests.http.api import Api, Json, read, refusal
from tests.http.edge.app_client import Tokens
from tests.http.streaming import WAIT_SECONDS, Events, inside
from tests.servers import running_server

HISTORY_SAMPLE = {
    *("at", "backlog", "scheduled", "inFlight", "oldestWaitingSeconds", "latencyMs"),
    *(f"{what}PerSecond" for what in ("pushed", "delivered", "settled", "failed", "deadLettered")),
}
LIVE_SAMPLE = HISTORY_SAMPLE | {
    *("queues", "partitions", "deadLetters", "waiting"),
    *("maintenance", "busiest", "changed", "more"),
}
SEVEN = {"total", "pending", "scheduled", "processing", "completed", "failed", "deadLetter"}


# Health and maintenance -----------------------------------------------------------------------------------


def test_health_warns_of_missing_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    with inside() as server, httpx.Client(base_url=server.url) as client:
        assert "warnings" not in client.get("/health").json()
        monkeypatch.setattr(server.broker.sealed, "missing_keys", lambda: ["ab12cd34"])
        answer = client.get("/health")
        assert answer.status_code == 200
        [warning] = answer.json()["warnings"]
        assert warning.startswith("key_missing: ") and "ab12cd34" in warning


def test_health(api: Api) -> None:
    answer = read(api.client.get("/health"))
    assert (answer["status"], answer["database"]) == ("healthy", "connected")
    assert answer["version"] == hark.__version__
    assert {"server", "worker_id", "shared_state", "queen"} <= set(answer)
    assert api.client.head("/health").status_code == 200
    assert read(api.client.get("/health/live")) == {"status": "live"}
    assert read(api.client.get("/health/ready")) == {"status": "ready"}


def test_what_maintenance_answers_and_that_it_outlives_a_restart(tmp_path: Path, queue: str) -> None:
    engine = f"sqlite:///{tmp_path / 'hark.db'}"
    with running_server(tmp_path, engine=engine) as url, httpx.Client(base_url=url) as client:
        api = Api(client)
        for stopped in (True, False):
            assert read(api.post("/system/maintenance/pop", {"enabled": stopped}))["popMaintenanceMode"] is stopped
            assert read(api.get("/system/maintenance/pop"))["popMaintenanceMode"] is stopped
        answer = read(api.post("/system/maintenance", {"enabled": True}))
        assert (answer["maintenanceMode"], answer["bufferedMessages"], answer["bufferHealthy"]) == (True, 0, True)
        assert answer["message"]
    with running_server(tmp_path, engine=engine) as url, httpx.Client(base_url=url) as client:
        api = Api(client)
        shown = read(api.get("/system/maintenance"))
        assert (shown["maintenanceMode"], shown["popMaintenanceMode"]) == (True, False)
        assert shown["bufferStats"]["failedFiles"]["count"] == 0
        refusal(api.post("/push", {"items": [{"queue": queue}]}), 503, "maintenance")


class _LostStore:
    """A broker whose store can't be reached."""

    ahead = 0

    def __init__(self) -> None:
        self.engine = self
        self.readiness = Readiness(cast(Engine, self), EngineCalls())

    @property
    def sealed(self) -> _LostStore:
        return self

    def missing_keys(self) -> list[str]:
        """None."""
        return []

    async def ping(self) -> None:
        """Fail."""
        raise EngineFailure("the disk is gone")


async def test_health_is_503_when_the_store_is_lost() -> None:
    app = App(cast(Broker, _LostStore()), Settings())
    async with httpx.AsyncClient(transport=httpx.ASGITransport(cast(Any, app)), base_url="http://test") as client:
        answer = read(await client.get("/health"), 503)
        not_ready = read(await client.get("/health/ready"), 503)
        live = read(await client.get("/health/live"))
    assert (answer["status"], answer["database"]) == ("unhealthy", "disconnected")
    assert (answer["error"], answer["code"]) == ("the disk is gone", "unhealthy")
    assert not_ready == {"status": "not ready", "error": "the disk is gone", "code": "not_ready"}
    assert live == {"status": "live"}, "a restart would not bring the store back"
    app = App(cast(Broker, _LostStore()), Settings(), authenticator=Tokens())
    async with httpx.AsyncClient(transport=httpx.ASGITransport(cast(Any, app)), base_url="http://test") as client:
        for path in ("/health", "/health/ready"):  # Those without a token do not hear what the store said.
            assert read(await client.get(path), 503)["error"] == "see the log of the server for the cause"


# A server to watch ----------------------------------------------------------------------------------------


class TickingServer(ServerThread):
    """A server that the test looks into, and whose seconds pass when the test says so."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        super().__init__(Settings(limits=Limits(max_streams=3), encryption=Encryption(key="ab" * 32)))
        self._ticks = FakeTimers(self.clock)
        # Samples are taken in real time, also where the clock of the server is another one.
        patch.setattr("hark.broker.broker.LoopTimers", lambda _clock: self._ticks)

    async def tick(self) -> None:
        """Let a second pass."""
        self._ticks.advance(1)
        await self.engine.rest()


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[TickingServer]:
    """A server to watch."""
    server = TickingServer(monkeypatch)
    server.start()
    yield server
    server.stop()


@pytest.fixture
def timed(server: TickingServer) -> Iterator[Api]:
    """Its API."""
    with httpx.Client(base_url=server.url, timeout=WAIT_SECONDS, trust_env=False) as client:
        yield Api(client)


class Watching:
    """The stream of samples, whose first event has come."""

    def __init__(self, server: TickingServer, events: Events) -> None:
        self.server = server
        self.events = events

    def sample(self) -> Json:
        """The next sample; there is one a second."""
        self.server.call(self.server.tick)
        return self.come()

    def come(self) -> Json:
        """The next sample that has come."""
        while (event := self.events.next())[0] == "ping":
            pass
        assert event[0] == "sample", event
        return event[2]

    def until(self, comes: Callable[[Json], bool]) -> Json:
        """The next sample that has what should come; fails if it does not come soon."""
        for _ in range(30):
            if comes(found := self.sample()):
                return found
        pytest.fail(f"it does not come, the last sample is {found}")

    def changed(self, prefix: str, number: int) -> set[str]:
        """The names of that many queues that something happened to."""
        changed: set[str] = set()

        def all_changed(one: Json) -> bool:
            changed.update(name for name in one["changed"] if name.startswith(prefix))
            return len(changed) >= number

        self.until(all_changed)
        return changed


@contextmanager
def watching(server: TickingServer) -> Iterator[Watching]:
    """Watch."""
    with (
        httpx.Client(base_url=server.url, timeout=WAIT_SECONDS, trust_env=False) as client,
        client.stream("GET", "/api/v1/events") as response,
    ):
        assert response.status_code == 200, response.read()
        events = Events(response)
        assert events.next() == ("ping", None, {})
        yield Watching(server, events)


# Events ----------------------------------------------------------------------------------------------------


def test_a_sample_comes_every_second_and_names_what_changed(server: TickingServer, timed: Api, queue: str) -> None:
    with watching(server) as events:
        assert events.events.response.headers["content-type"] == "text/event-stream"
        assert set(events.sample()) == LIVE_SAMPLE
        timed.push(queue, 1, 2, 3)
        found = events.until(lambda one: queue in one["changed"])
        assert found["pushedPerSecond"] > 0
        assert queue in [one["queue"] for one in found["busiest"]]
        assert (found["more"], found["maintenance"]) == (False, {"push": False, "pop": False})
        assert set(found["waiting"]) == {"pops", "streams", "browsers"}
        found = events.until(lambda one: one["backlog"] == 3 and one["oldestWaitingSeconds"] is not None)
        assert (found["queues"], found["partitions"], found["inFlight"]) == (1, 1, 0)
        timed.ack(timed.pop_one(queue))
        events.until(lambda one: one["settledPerSecond"] > 0)
        events.until(lambda one: one["backlog"] == 2)
        throughput = read(timed.get("/resources/overview"))["throughput"]
        assert all(isinstance(number, int | float) for number in throughput.values())


def test_what_an_administrator_does_to_a_queue_is_notified_to_those_who_watch(
    server: TickingServer, timed: Api, queue: str
) -> None:
    with watching(server) as events:
        for action in ("pause", "purge", "delete", "nothing"):
            timed.push(f"{queue}-{action}", 1)
        events.changed(queue, 4)
        read(timed.post(f"/resources/queues/{queue}-pause/pause"))
        read(timed.post(f"/resources/queues/{queue}-purge/purge"))
        read(timed.delete(f"/resources/queues/{queue}-delete"))
        assert events.changed(queue, 3) == {f"{queue}-{done}" for done in ("pause", "purge", "delete")}


def test_a_sample_is_encoded_once_for_all_who_watch(server: TickingServer, monkeypatch: pytest.MonkeyPatch) -> None:
    encoded: list[Sample] = []

    def counting(one: Sample) -> LiveSample:
        encoded.append(one)
        return sample_of(one)

    with watching(server) as one, watching(server) as other:
        monkeypatch.setattr(status, "sample_of", counting)
        for _ in range(3):
            assert one.sample() == other.come()
    assert len(encoded) == len({found.point.at for found in encoded}) >= 2


def test_so_many_may_watch_those_who_leave_make_room_and_all_end_with_the_server(
    server: TickingServer, timed: Api
) -> None:
    async def watchers() -> int:
        return len(server.broker.observed.watchers)

    async def stop() -> None:
        server.broker.stop_waiting()

    with watching(server), watching(server), watching(server):
        assert "limits.max_streams" in refusal(timed.get("/events"), 429, "too_many_streams")
    while server.call(watchers):
        pass
    with watching(server) as events:
        events.sample()
        server.call(stop)
        with pytest.raises(StopIteration):
            while True:
                events.come()


def test_who_may_use_only_some_queues_sees_nothing_of_the_others() -> None:
    point = Point(0, Rates(1, 2, 3, 4, 5), None, None)
    busiest = (BusyQueue("orders", 1, 0, 0), BusyQueue("secret", 9, 0, 0))
    whole = Sample(point, Waiting(7, 7, 7), Stopped(push=True, pop=False), busiest, ("orders", "secret"), False)
    shown = json.loads(encode(restricted_sample_of(whole, Identity("me", Role.READ_ONLY, ("orders",)))))
    assert set(shown) == LIVE_SAMPLE
    assert [one["queue"] for one in shown["busiest"]] == ["orders"]
    assert (shown["changed"], shown["maintenance"]) == (["orders"], {"push": True, "pop": False})
    numbers = {name for name, value in shown.items() if isinstance(value, int | float) and not isinstance(value, bool)}
    assert not numbers, "sums over all queues say something of the others"
    assert sample_of(whole).changed == ("orders", "secret")


# History ---------------------------------------------------------------------------------------------------


def test_the_history_is_that_of_the_last_hour(server: TickingServer, timed: Api) -> None:
    point = Point(1_700_000_000_000_000, Rates(1, 2, 3, 4, 5), None, None)
    observed = server.broker.observed
    with pytest.MonkeyPatch.context() as patch:
        requested: list[int] = []

        def known(seconds: int) -> list[Point]:
            requested.append(seconds)
            return [point]

        patch.setattr(observed, "history", known)
        shown_history = read(timed.get("/status/history"))
        read(timed.get("/status/history", seconds=60))
    assert requested == [3600, 60]
    assert shown_history["intervalSeconds"] == 10
    [shown] = shown_history["samples"]
    assert set(shown) == HISTORY_SAMPLE
    assert (shown["at"], shown["pushedPerSecond"]) == ("2023-11-14T22:13:20.000Z", 1)
    assert (shown["backlog"], shown["latencyMs"]) == (None, {"p50": None, "p99": None})


# Settings --------------------------------------------------------------------------------------------------


def test_settings_are_shown_without_secrets(timed: Api) -> None:
    answer = timed.get("/system/settings")
    shown = read(answer)
    values = {one["name"]: one["value"] for one in shown["settings"]}
    assert values["limits.max_streams"] == 3
    assert values["encryption.key"] == "******"
    assert "abab" not in answer.text
    assert shown["version"]
    assert shown["engine"].startswith("sqlite:///")
    assert shown["engine"].endswith("hark.db")
    assert all(one["meaning"] for one in shown["settings"])


# Lists of queues -------------------------------------------------------------------------------------------


def test_queues_are_listed_in_pages_by_backlog_too(server: TickingServer, timed: Api, queue: str) -> None:
    for number, name in enumerate(("b", "a", "c")):
        timed.push(f"{queue}-{name}", *range(number + 1))

    def listed(**query: Any) -> tuple[list[str], int]:
        page = read(timed.get("/resources/queues", search=queue, **query))
        return [one["name"].removeprefix(f"{queue}-") for one in page["queues"]], page["total"]

    assert listed() == (["c", "a", "b"], 3)
    assert listed(sort="name") == (["a", "b", "c"], 3)
    assert listed(sort="name", limit=1, offset=2) == (["c"], 3)
    with watching(server) as events:
        events.until(lambda one: one["backlog"] >= 6)
        assert listed(sort="backlog") == (["c", "a", "b"], 3)
        assert listed(sort="backlog", limit=1, offset=1) == (["a"], 3)
    assert read(timed.get("/resources/queues", limit=2, offset=1))["pagination"] == {"limit": 2, "offset": 1}


# Of the original -------------------------------------------------------------------------------------------


def test_the_status_has_the_shape_of_the_original(timed: Api, queue: str) -> None:
    timed.push(queue, 1, 2)
    timed.ack(timed.pop_one(queue))
    status = read(timed.get("/status"))
    assert set(status) == {
        *("timeRange", "bucketMinutes", "pointCount", "throughput", "queues", "messages"),
        *("leases", "deadLetterQueue", "workers", "errors", "statsAge"),
    }
    assert set(status["messages"]) == SEVEN | {"requests", "batchEfficiency"}
    assert status["messages"]["requests"]["push"] >= 1
    assert status["messages"]["batchEfficiency"]["ack"] == 1
    [shown] = read(timed.get("/status", queue=queue))["queues"]
    assert (shown["name"], shown["partitions"], shown["totalConsumed"]) == (queue, 1, 1)
    assert read(timed.get("/status", queue=queue))["throughput"] == [], "what flows is not kept for single queues"
    assert read(timed.get("/status/buffers")) == {"pending": 0, "failed": 0, "dbHealthy": True, "worker": 0}


def test_the_throughput_of_a_minute_is_the_sum_of_its_points(server: TickingServer, timed: Api) -> None:
    minute = 28_333_333 * 60_000_000
    points = [
        Point(minute + second * 1_000_000, Rates(pushed=6, delivered=3, settled=2, dead_lettered=1), None, None)
        for second in (9, 19, 61)
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(server.broker.observed, "history", lambda _: points)
        status = read(timed.get("/status", **{"from": "2023-01-01T00:00:00Z", "to": "2024-01-01T00:00:00Z"}))
        by_minute = read(timed.get("/status/analytics", interval="minute", **{"from": "2023-01-01T00:00:00Z"}))
        by_day = read(timed.get("/status/analytics", interval="day", **{"from": "2023-01-01T00:00:00Z"}))
        later = read(timed.get("/status/analytics", **{"from": "2024-01-01T00:00:00Z"}))
    first, second = status["throughput"]
    assert status["pointCount"] == 2
    assert (first["ingested"], first["popMessages"], first["processed"], first["dlqCount"]) == (120, 60, 40, 20)
    assert (first["ingestedPerSecond"], second["ingested"]) == (6, 60)
    assert [one["messages"] for one in by_minute["dataPoints"]] == [120, 60]
    assert [one["messages"] for one in by_day["dataPoints"]] == [180]
    assert (later["dataPoints"], later["interval"], later["from"]) == ([], "hour", "2024-01-01T00:00:00.000Z")


def test_queues_and_their_messages_as_the_original_lists_them(timed: Api, queue: str) -> None:
    for number in range(3):
        timed.push(queue, number, partition=f"p{number}", transactionId=f"t{number}")
    page = read(timed.get("/status/queues", limit=1))
    assert ([one["name"] for one in page["queues"]], page["pagination"]) == ([queue], {"limit": 1, "offset": 0})
    shown = read(timed.get(f"/status/queues/{queue}", limit=2))
    assert (shown["queue"]["name"], shown["queue"]["config"]["retryLimit"]) == (queue, 3)
    assert [one["name"] for one in shown["partitions"]] == ["p0", "p1"]
    assert (shown["totals"]["partitions"], shown["totals"]["messages"]["total"]) == (3, 3)
    messages = read(timed.get(f"/status/queues/{queue}/messages", limit=2, offset=1))
    assert [one["transactionId"] for one in messages] == ["t1", "t0"]
    assert messages[0]["queuePath"] == f"{queue}/p1"
    assert read(timed.get(f"/status/queues/{queue}-2/messages")) == []
    refusal(timed.get(f"/status/queues/{queue}-2"), 404, "queue_not_found")
