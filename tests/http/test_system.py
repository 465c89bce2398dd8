"""The server itself: health, numbers, and maintenance that outlives a restart."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import httpx
import pytest

import hark
from hark.broker import Broker
from hark.broker.measured import EngineCalls
from hark.broker.readiness import Readiness
from hark.engine.api import Engine
from hark.errors import EngineFailure
from hark.http.app import App
from hark.settings import Settings
from tests.conftest import running_server
from tests.http.api import Api, data, read, refusal
from tests.http.edge.asking import Tokens


def test_health(api: Api) -> None:
    answer = read(api.client.get("/health"))
    assert (answer["status"], answer["database"]) == ("healthy", "connected")
    assert answer["version"] == hark.__version__
    assert {"server", "worker_id", "shared_state", "queen"} <= set(answer)
    assert api.client.head("/health").status_code == 200


def test_metrics_are_numbers_about_the_store(api: Api) -> None:
    numbers = read(api.get("/system/metrics"))["store"]
    assert numbers["database_bytes"] > 0
    assert all(isinstance(number, int | float) for number in numbers.values())


def test_push_maintenance_refuses_pushes_and_stores_nothing(fresh_api: Api, queue: str) -> None:
    fresh_api.push(queue, "before")
    answer = read(fresh_api.post("/system/maintenance", {"enabled": True}))
    assert (answer["maintenanceMode"], answer["bufferedMessages"], answer["bufferHealthy"]) == (True, 0, True)
    assert answer["message"]
    response = fresh_api.post("/push", {"items": [{"queue": queue, "payload": "lost"}]})
    assert refusal(response, 503, "maintenance")
    assert int(response.headers["retry-after"]) >= 1
    operations = [{"type": "push", "queue": queue, "payload": "lost"}]
    refusal(fresh_api.post("/transaction", {"operations": operations}), 503, "maintenance")
    shown = read(fresh_api.get("/system/maintenance"))
    assert (shown["maintenanceMode"], shown["popMaintenanceMode"]) == (True, False)
    assert shown["bufferStats"]["failedFiles"]["count"] == 0
    assert data(fresh_api.pop(queue, batch=10)) == ["before"], "pops go on"
    read(fresh_api.post("/system/maintenance", {"enabled": False}))
    fresh_api.push(queue, "after")


def test_pop_maintenance_answers_empty_and_wakes_those_who_wait_at_its_end(fresh_api: Api, queue: str) -> None:
    fresh_api.push(queue, 1)
    assert read(fresh_api.post("/system/maintenance/pop", {"enabled": True}))["popMaintenanceMode"] is True
    assert read(fresh_api.get("/system/maintenance/pop"))["popMaintenanceMode"] is True
    assert fresh_api.pop(queue) == []
    with ThreadPoolExecutor() as pool:
        # Whether the answer is empty at once or comes at the end, nothing is lost.
        waiting = pool.submit(fresh_api.pop, queue, wait=True, timeout=20_000)
        answer = read(fresh_api.post("/system/maintenance/pop", {"enabled": False}))
        got = waiting.result()
    assert answer["popMaintenanceMode"] is False
    assert data(got or fresh_api.pop(queue)) == [1]


@pytest.mark.parametrize("path", ["/system/maintenance", "/system/maintenance/pop"])
@pytest.mark.parametrize("body", [{}, {"enabled": None}, {"enabled": "true"}, {"enabled": 1}])
def test_a_switch_needs_true_or_false(api: Api, path: str, body: Any) -> None:
    assert refusal(api.post(path, body), 400) == "enabled (boolean) is required"
    assert read(api.get("/system/maintenance"))["maintenanceMode"] is False


def test_maintenance_outlives_a_restart(tmp_path: Path, queue: str) -> None:
    engine = f"sqlite:///{tmp_path / 'hark.db'}"
    with running_server(tmp_path, engine=engine) as url, httpx.Client(base_url=url) as client:
        read(Api(client).post("/system/maintenance", {"enabled": True}))
    with running_server(tmp_path, engine=engine) as url, httpx.Client(base_url=url) as client:
        again = Api(client)
        assert read(again.get("/system/maintenance"))["maintenanceMode"] is True
        refusal(again.post("/push", {"items": [{"queue": queue}]}), 503, "maintenance")


class _LostStore:
    """A broker whose store can't be reached."""

    def __init__(self) -> None:
        self.engine = self
        self.readiness = Readiness(cast(Engine, self), EngineCalls())

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


async def test_where_tokens_are_asked_for_those_without_one_do_not_hear_what_the_store_said() -> None:
    app = App(cast(Broker, _LostStore()), Settings(), authenticator=Tokens())
    async with httpx.AsyncClient(transport=httpx.ASGITransport(cast(Any, app)), base_url="http://test") as client:
        for path in ("/health", "/health/ready"):
            assert read(await client.get(path), 503)["error"] == "the log of the server says why"


def test_a_server_that_serves_is_live_and_ready(api: Api) -> None:
    assert read(api.client.get("/health/live")) == {"status": "live"}
    assert read(api.client.get("/health/ready")) == {"status": "ready"}
