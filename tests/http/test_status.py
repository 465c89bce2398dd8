"""What goes on: the history, the events, the settings, and the original's words for it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from hark.access.identity import Identity, Role
from hark.broker.observing.samples import Point, QueueRates, Rates, Sample, Standing
from hark.http.answers import status as answers
from hark.http.routes import history
from hark.http.routes.history import restricted_sample_of, sample_of
from hark.settings import Encryption, Limits, Settings
from tests.http.api import Api, Json, read, refusal
from tests.http.streaming import PATIENCE, Events, Inside, inside

HISTORY_SAMPLE = {
    "at",
    "pushedPerSecond",
    "deliveredPerSecond",
    "settledPerSecond",
    "failedPerSecond",
    "deadLetteredPerSecond",
    "backlog",
    "inFlight",
    "oldestWaitingSeconds",
    "latencyMs",
}
LIVE_SAMPLE = HISTORY_SAMPLE | {
    "queues",
    "partitions",
    "deadLetters",
    "waiting",
    "maintenance",
    "busiest",
    "changed",
    "more",
}
SIX = {"total", "pending", "processing", "completed", "failed", "deadLetter"}


@pytest.fixture(scope="module")
def server() -> Iterator[Inside]:
    """A server that the tests of this module look into."""
    with inside(Settings(limits=Limits(max_streams=3), encryption=Encryption(key="ab" * 32))) as server:
        yield server


@pytest.fixture(scope="module")
def api(server: Inside) -> Iterator[Api]:
    """Its API."""
    with httpx.Client(base_url=server.url, timeout=PATIENCE, trust_env=False) as client:
        yield Api(client)


@contextmanager
def watching(server: Inside) -> Iterator[Events]:
    """The stream of samples, whose first event has come."""
    with (
        httpx.Client(base_url=server.url, timeout=PATIENCE, trust_env=False) as client,
        client.stream("GET", "/api/v1/events") as response,
    ):
        assert response.status_code == 200, response.read()
        events = Events(response)
        assert events.next() == ("ping", None, {})
        yield events


def sample(events: Events) -> Json:
    """The next sample."""
    while (event := events.next())[0] == "ping":
        pass
    assert event[0] == "sample", event
    return event[2]


def until(events: Events, comes: Callable[[Json], bool]) -> Json:
    """The next sample that has what should come; fails if it does not come soon."""
    for _ in range(30):
        if comes(found := sample(events)):
            return found
    pytest.fail(f"it does not come, the last sample is {found}")


# Events ----------------------------------------------------------------------------------------------------


def test_a_sample_comes_every_second_and_names_what_changed(server: Inside, api: Api, queue: str) -> None:
    with watching(server) as events:
        assert events.response.headers["content-type"] == "text/event-stream"
        assert set(sample(events)) == LIVE_SAMPLE
        api.push(queue, 1, 2, 3)
        found = until(events, lambda one: queue in one["changed"])
        assert found["pushedPerSecond"] > 0
        assert queue in [one["queue"] for one in found["busiest"]]
        assert (found["more"], found["maintenance"]) == (False, {"push": False, "pop": False})
        assert set(found["waiting"]) == {"pops", "streams", "browsers"}
        found = until(events, lambda one: one["backlog"] == 3 and one["oldestWaitingSeconds"] is not None)
        assert (found["queues"], found["partitions"], found["inFlight"]) == (1, 1, 0)
        api.ack(api.pop_one(queue))
        until(events, lambda one: one["settledPerSecond"] > 0)
        until(events, lambda one: one["backlog"] == 2)
    read(api.delete(f"/resources/queues/{queue}"))


def changed_queues(events: Events, prefix: str, number: int) -> set[str]:
    """The names of so many queues that something happened to."""
    changed: set[str] = set()

    def all_changed(one: Json) -> bool:
        changed.update(name for name in one["changed"] if name.startswith(prefix))
        return len(changed) >= number

    until(events, all_changed)
    return changed


def test_what_an_administrator_does_to_a_queue_is_told_to_those_who_watch(server: Inside, api: Api, queue: str) -> None:
    with watching(server) as events:
        for action in ("pause", "purge", "delete", "nothing"):
            api.push(f"{queue}-{action}", 1)
        changed_queues(events, queue, 4)
        read(api.post(f"/resources/queues/{queue}-pause/pause"))
        read(api.post(f"/resources/queues/{queue}-purge/purge"))
        read(api.delete(f"/resources/queues/{queue}-delete"))
        assert changed_queues(events, queue, 3) == {f"{queue}-{done}" for done in ("pause", "purge", "delete")}


def test_a_sample_is_encoded_once_for_all_who_watch(server: Inside, monkeypatch: pytest.MonkeyPatch) -> None:
    encoded: list[Sample] = []

    def counted(one: Sample) -> answers.LiveSample:
        encoded.append(one)
        return sample_of(one)

    with watching(server) as one, watching(server) as other:
        sample(one), sample(other)
        monkeypatch.setattr(history, "sample_of", counted)
        for events in (one, other, one, other):
            sample(events)
    assert len(encoded) == len({found.point.at for found in encoded}) >= 1


def test_so_many_may_watch_and_those_who_leave_make_room(server: Inside, api: Api) -> None:
    with watching(server), watching(server), watching(server):
        assert "limits.max_streams" in refusal(api.get("/events"), 429, "too_many_streams")
    while server.call(lambda: len(server.broker.observed.watchers)):
        pass
    with watching(server) as events:
        sample(events)


def test_the_stream_ends_when_the_server_stops() -> None:
    with inside() as server, watching(server) as events:
        sample(events)
        server.call(server.broker.stop_waiting)
        with pytest.raises(StopIteration):
            while True:
                events.next()


def test_who_may_use_only_some_queues_sees_nothing_of_the_others() -> None:
    point = Point(0, Rates(1, 2, 3, 4, 5), None, None)
    busiest = (QueueRates("orders", 1, 0, 0), QueueRates("secret", 9, 0, 0))
    whole = Sample(point, Standing(7, 7, 7, True, False), busiest, ("orders", "secret"), False)
    shown = restricted_sample_of(whole, Identity("me", Role.READ_ONLY, ("orders",)))
    assert set(shown) == LIVE_SAMPLE
    assert [one["queue"] for one in shown["busiest"]] == ["orders"]
    assert (shown["changed"], shown["maintenance"]) == (["orders"], {"push": True, "pop": False})
    numbers = {name for name, value in shown.items() if isinstance(value, int | float) and not isinstance(value, bool)}
    assert not numbers, "sums over all queues say something of the others"
    assert sample_of(whole)["changed"] == ["orders", "secret"]


# History ---------------------------------------------------------------------------------------------------


def test_the_history_is_that_of_the_last_hour(server: Inside, api: Api) -> None:
    point = Point(1_700_000_000_000_000, Rates(1, 2, 3, 4, 5), None, None)
    observed = server.broker.observed
    with pytest.MonkeyPatch.context() as patch:
        asked: list[int] = []

        def known(seconds: int) -> list[Point]:
            asked.append(seconds)
            return [point]

        patch.setattr(observed, "history", known)
        shown_history = read(api.get("/status/history"))
        read(api.get("/status/history", seconds=60))
    assert asked == [3600, 60]
    assert shown_history["intervalSeconds"] == 10
    [shown] = shown_history["samples"]
    assert set(shown) == HISTORY_SAMPLE
    assert (shown["at"], shown["pushedPerSecond"]) == ("2023-11-14T22:13:20.000Z", 1)
    assert (shown["backlog"], shown["latencyMs"]) == (None, {"p50": None, "p99": None})
    refusal(api.get("/status/history", seconds=3601), 400)


# Settings --------------------------------------------------------------------------------------------------


def test_settings_are_shown_without_secrets(api: Api) -> None:
    answer = api.get("/system/settings")
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


def test_queues_are_listed_in_pages_by_backlog_too(server: Inside, api: Api, queue: str) -> None:
    for number, name in enumerate(("b", "a", "c")):
        api.push(f"{queue}-{name}", *range(number + 1))

    def listed(**query: Any) -> tuple[list[str], int]:
        page = read(api.get("/resources/queues", search=queue, **query))
        return [one["name"].removeprefix(f"{queue}-") for one in page["queues"]], page["total"]

    assert listed() == (["c", "a", "b"], 3)
    assert listed(sort="name") == (["a", "b", "c"], 3)
    assert listed(sort="name", limit=1, offset=2) == (["c"], 3)
    with watching(server) as events:
        until(events, lambda one: one["backlog"] >= 6)
        assert listed(sort="backlog") == (["c", "a", "b"], 3)
        assert listed(sort="backlog", limit=1, offset=1) == (["a"], 3)
    assert "sort" in refusal(api.get("/resources/queues", sort="size"), 400)
    assert read(api.get("/resources/queues", limit=2, offset=1))["pagination"] == {"limit": 2, "offset": 1}


# Of the original -------------------------------------------------------------------------------------------


def test_the_status_has_the_shape_of_the_original(api: Api, queue: str) -> None:
    api.push(queue, 1, 2)
    api.ack(api.pop_one(queue))
    status = read(api.get("/status"))
    assert set(status) == {
        "timeRange",
        "bucketMinutes",
        "pointCount",
        "throughput",
        "queues",
        "messages",
        "leases",
        "deadLetterQueue",
        "workers",
        "errors",
        "statsAge",
    }
    assert set(status["messages"]) == SIX | {"requests", "batchEfficiency"}
    assert status["messages"]["requests"]["push"] >= 1
    assert status["messages"]["batchEfficiency"]["ack"] == 1
    [shown] = read(api.get("/status", queue=queue))["queues"]
    assert (shown["name"], shown["partitions"], shown["totalConsumed"]) == (queue, 1, 1)
    assert read(api.get("/status", queue=queue))["throughput"] == [], "what flows is not kept for single queues"


def test_the_throughput_of_a_minute_is_the_sum_of_its_points(server: Inside, api: Api) -> None:
    minute = 28_333_333 * 60_000_000
    points = [
        Point(minute + second * 1_000_000, Rates(pushed=6, delivered=3, settled=2, dead_lettered=1), None, None)
        for second in (9, 19, 61)
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(server.broker.observed, "history", lambda _: points)
        status = read(api.get("/status", **{"from": "2023-01-01T00:00:00Z", "to": "2024-01-01T00:00:00Z"}))
        by_minute = read(api.get("/status/analytics", interval="minute", **{"from": "2023-01-01T00:00:00Z"}))
        by_day = read(api.get("/status/analytics", interval="day", **{"from": "2023-01-01T00:00:00Z"}))
        later = read(api.get("/status/analytics", **{"from": "2024-01-01T00:00:00Z"}))
    first, second = status["throughput"]
    assert status["pointCount"] == 2
    assert (first["ingested"], first["popMessages"], first["processed"], first["dlqCount"]) == (120, 60, 40, 20)
    assert (first["ingestedPerSecond"], second["ingested"]) == (6, 60)
    assert [one["messages"] for one in by_minute["dataPoints"]] == [120, 60]
    assert [one["messages"] for one in by_day["dataPoints"]] == [180]
    assert (later["dataPoints"], later["interval"], later["from"]) == ([], "hour", "2024-01-01T00:00:00.000Z")


def test_queues_and_their_messages_as_the_original_lists_them(api: Api, queue: str) -> None:
    for number in range(3):
        api.push(queue, number, partition=f"p{number}", transactionId=f"t{number}")
    page = read(api.get("/status/queues", limit=1))
    assert ([one["name"] for one in page["queues"]], page["pagination"]) == ([queue], {"limit": 1, "offset": 0})
    shown = read(api.get(f"/status/queues/{queue}", limit=2))
    assert (shown["queue"]["name"], shown["queue"]["config"]["retryLimit"]) == (queue, 3)
    assert [one["name"] for one in shown["partitions"]] == ["p0", "p1"]
    assert (shown["totals"]["partitions"], shown["totals"]["messages"]["total"]) == (3, 3)
    messages = read(api.get(f"/status/queues/{queue}/messages", limit=2, offset=1))
    assert [one["transactionId"] for one in messages] == ["t1", "t0"]
    assert messages[0]["queuePath"] == f"{queue}/p1"
    assert read(api.get(f"/status/queues/{queue}-2/messages")) == []
    refusal(api.get(f"/status/queues/{queue}-2"), 404, "queue_not_found")


def test_there_is_nothing_in_buffers(api: Api) -> None:
    assert read(api.get("/status/buffers")) == {"pending": 0, "failed": 0, "dbHealthy": True, "worker": 0}


def test_the_overview_says_what_flows(server: Inside, api: Api) -> None:
    with watching(server) as events:
        sample(events)
    throughput = read(api.get("/resources/overview"))["throughput"]
    assert all(isinstance(number, int | float) for number in throughput.values())
    assert json.dumps(throughput)
