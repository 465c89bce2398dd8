"""The database is away for a while: requests are refused at once (rule 29), and all goes on when it is back."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests.http.api import WAIT, acknowledgment, data, read, refusal
from tests.postgres.serving import serving, wait_for_group
from tests.postgres_server import OwnPostgresServer, PostgresServer, StopMode

BACK_SECONDS = 30.0
"""How soon all is well after the database is, on a machine that is very busy."""
AT_ONCE_SECONDS = 5.0
"""The same for an answer at once. A request that waits for a connection does so for 10 seconds."""


@contextmanager
def stopped(server: OwnPostgresServer) -> Iterator[None]:
    """PostgreSQL is away inside of this."""
    server.stop("fast")
    try:
        yield
    finally:
        server.start()


def timed(request: Callable[[], httpx.Response]) -> tuple[httpx.Response, float]:
    """An answer, and after how many seconds it came."""
    began = time.monotonic()
    return request(), time.monotonic() - began


def once_it_is_back(request: Callable[[], httpx.Response]) -> httpx.Response:
    """The first answer that is not 503."""
    until = time.monotonic() + BACK_SECONDS
    while (response := request()).status_code == 503 and time.monotonic() < until:
        pass
    return response


def test_rule_29_requests_are_refused_at_once_and_succeed_when_the_database_is_back(
    own_postgres_server: OwnPostgresServer, tmp_path: Path, queue: str
) -> None:
    with (
        own_postgres_server.fresh_database() as database,
        serving(tmp_path, database) as api,
    ):
        api.push(queue, 1, 2)
        message = api.pop_one(queue)
        push = {"items": [{"queue": queue, "payload": 3}]}
        requests: list[Callable[[], httpx.Response]] = [
            lambda: api.post("/push", push),
            lambda: api.try_pop(queue),
            lambda: api.try_pop(queue, wait="true", timeout=100),
            lambda: api.post("/ack", acknowledgment(message)),
            lambda: api.post(f"/lease/{message['leaseId']}/extend", {"seconds": 60}),
            lambda: api.post("/transaction", {"operations": [{"type": "push", **push}]}),
            lambda: api.post("/configure", {"queue": queue}),
            lambda: api.get(f"/resources/queues/{queue}"),
        ]
        with stopped(own_postgres_server), ThreadPoolExecutor(len(requests)) as threads:
            for response, seconds in threads.map(timed, requests):
                refusal(response, 503, "store_unavailable")
                assert int(response.headers["retry-after"]) >= 1
                assert seconds < AT_ONCE_SECONDS
            assert api.client.get("/health").status_code == 503
        [acked] = read(once_it_is_back(lambda: api.post("/ack", acknowledgment(message))))
        assert acked["success"], "a lease outlives the restart"
        read(api.post("/push", push), 201)
        assert data(api.pop(queue, batch=10)) == [2, 3], "what was answered with 503 was not kept"
        read(api.client.get("/health"))


@pytest.mark.parametrize("mode", ["fast", "immediate"])
def test_a_waiting_pop_goes_on_by_itself_when_the_database_is_back(
    own_postgres_server: OwnPostgresServer, tmp_path: Path, queue: str, mode: StopMode
) -> None:
    with (
        own_postgres_server.fresh_database() as database,
        # It does not look for itself, so that it is the database's return that wakes it.
        serving(tmp_path, database, HARK_FALLBACK_INITIAL_MS="60000", HARK_FALLBACK_MAX_MS="60000") as api,
        serving(tmp_path, database) as other,
        ThreadPoolExecutor(1) as thread,
    ):
        waiting = thread.submit(api.pop, queue, consumerGroup="g", **WAIT)
        wait_for_group(other, queue, "g")
        other.push(queue, "at last")
        own_postgres_server.restart(mode)
        assert data(waiting.result(BACK_SECONDS)) == ["at last"]


def test_rule_29_pops_that_wait_go_on_waiting_while_the_database_is_away(
    own_postgres_server: OwnPostgresServer, tmp_path: Path, queue: str
) -> None:
    with (
        own_postgres_server.fresh_database() as database,
        serving(tmp_path, database) as api,
        ThreadPoolExecutor() as threads,
    ):
        with stopped(own_postgres_server):
            push = {"items": [{"queue": queue, "payload": 1}]}
            refusal(api.post("/push", push), 503, "store_unavailable")
            popped = threads.submit(api.pop, queue, **WAIT)
            refusal(api.post("/push", push), 503, "store_unavailable")
        read(once_it_is_back(lambda: api.post("/push", push)), 201)
        assert data(popped.result(BACK_SECONDS)) == [1]


def test_connections_that_an_administrator_ended_are_replaced(
    postgres_server: PostgresServer, postgres_url: str, tmp_path: Path, queue: str
) -> None:
    with serving(tmp_path, postgres_url) as api:
        for number in range(5):
            assert postgres_server.terminate_backends(postgres_url) > 0
            once_it_is_back(lambda: api.get("/resources/queues"))
            api.push(queue, number, partition="p1")
        assert data(api.pop(queue, batch=10)) == [0, 1, 2, 3, 4]
