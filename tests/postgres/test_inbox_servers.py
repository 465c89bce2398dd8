"""Servers that move what applications send: consumers are woken, queues are encrypted, maintenance stops it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import asyncpg
import pytest

from hark import postgres
from hark.errors import InvalidInput
from hark.worker import Worker
from tests.http.api import WAIT, Api, read
from tests.postgres.serving import NO_LOOKS, serving, wait_for_group
from tests.worker.workers import running

KEY = "ab" * 32


@pytest.fixture
def api(tmp_path: Path, postgres_url: str) -> Iterator[Api]:
    """A server whose consumers are only woken, and never look for work by themselves."""
    with serving(tmp_path, postgres_url, HARK_ENCRYPTION_KEY=KEY, **NO_LOOKS) as found:
        yield found


def run(url: str, *statements: str) -> list[asyncpg.Record]:
    """Run statements as an application does; what the last one answers."""

    async def work() -> list[asyncpg.Record]:
        connection = await asyncpg.connect(url)
        try:
            async with connection.transaction():
                for statement in statements[:-1]:
                    await connection.execute(statement)
                return list(await connection.fetch(statements[-1]))
        finally:
            await connection.close()

    return asyncio.run(work())


def test_a_waiting_consumer_is_woken_by_the_commit(api: Api, postgres_url: str, queue: str) -> None:
    with ThreadPoolExecutor(1) as thread:
        waiting = thread.submit(api.pop_one, queue, consumerGroup="g", **WAIT)
        wait_for_group(api, queue, "g")
        [row] = run(postgres_url, "create temporary table mine ()", f"select hark.send('{queue}', '{{\"id\": 7}}')")
        message = waiting.result()
    assert message["data"] == {"id": 7}
    assert message["transactionId"] == row["send"]


def test_behind_a_pooler_messages_are_found_without_notifications(
    tmp_path: Path, postgres_url: str, queue: str
) -> None:
    with serving(tmp_path, postgres_url, HARK_POSTGRES_PREPARED="false", **NO_LOOKS) as api:
        run(postgres_url, f"select hark.send('{queue}', '1')")
        assert api.pop_one(queue, **WAIT)["data"] == 1


def test_a_message_for_an_encrypted_queue_is_encrypted_when_it_is_moved(
    api: Api, postgres_url: str, queue: str
) -> None:
    api.configure(queue, encryptionEnabled=True)
    run(postgres_url, f"select hark.send('{queue}', '\"the card 4111\"')")
    assert api.pop_one(queue, **WAIT)["data"] == "the card 4111"
    assert not [row for row in run(postgres_url, "select payload from hark.messages") if b"4111" in row["payload"]]


def test_a_server_learns_that_another_one_made_the_queue_encrypted(
    api: Api, tmp_path: Path, postgres_url: str, queue: str
) -> None:
    with serving(tmp_path, postgres_url, HARK_ENCRYPTION_KEY=KEY, **NO_LOOKS) as other:
        other.configure(queue, encryptionEnabled=True)
    run(postgres_url, f"select hark.send('{queue}', '1')")
    assert api.pop_one(queue, **WAIT)["data"] == 1


def test_maintenance_stops_it_and_its_end_resumes_it(api: Api, postgres_url: str, queue: str) -> None:
    read(api.post("/system/maintenance", {"enabled": True}))
    run(postgres_url, f"select hark.send('{queue}', '1')")
    # Another look would have been due by now, but what shows that there was none is the message itself.
    assert api.pop(queue) == []
    assert metric(api, "hark_store_inbox_rows") == 1
    assert metric(api, "hark_store_inbox_oldest_seconds") > 0
    read(api.post("/system/maintenance", {"enabled": False}))
    assert api.pop_one(queue, **WAIT)["data"] == 1
    assert metric(api, "hark_store_inbox_rows") == 0
    assert metric(api, "hark_store_inbox_moved_total") == 1
    assert metric(api, "hark_store_inbox_refused_rows") == 0
    assert metric(api, "hark_pushed_messages_total") == 1


def metric(api: Api, name: str) -> float:
    """One value of the metrics page."""
    [value] = [
        float(line.split()[1])
        for line in api.client.get("/metrics/prometheus").text.splitlines()
        if line.startswith(f"{name} ")
    ]
    return value


def test_the_helper_for_asyncpg_sends_with_all_options(api: Api, postgres_url: str, queue: str) -> None:
    async def work() -> str:
        async with asyncpg.create_pool(postgres_url, min_size=1) as pool, pool.acquire() as connection:
            async with connection.transaction():
                await postgres.send(
                    connection, queue, {"text": "ä'\"\\"}, key="mine", priority=3, ttl=60, retry_delays=[1, 0.5]
                )
                await postgres.send(connection, queue, None, partition="other")
                with pytest.raises(InvalidInput, match="got a pool; acquire one"):
                    await postgres.send(pool, queue, 1)
                with pytest.raises(InvalidInput, match="delay"):
                    await postgres.send(connection, queue, 1, delay=-1)
                with pytest.raises(InvalidInput, match="not async"):
                    postgres.send_sync(connection, queue, 1)
            return await postgres.send(connection, queue, 1, delay=3600)

    later = asyncio.run(work())
    message = api.pop_one(queue, "Default", **WAIT)
    assert (message["data"], message["transactionId"], message["priority"]) == ({"text": "ä'\"\\"}, "mine", 3)
    assert api.pop_one(queue, "other", **WAIT)["data"] is None
    assert api.show({"partitionId": message["partitionId"], "transactionId": later})["status"] == "scheduled"


def test_a_task_is_pushed_in_the_transaction(api: Api, postgres_url: str, queue: str) -> None:
    url = str(api.client.base_url)
    worker = Worker(url, queue=queue)
    done: list[str] = []

    @worker.task("greet", retry=2)
    async def greet(name: str) -> None:
        done.append(name)

    async def work() -> None:
        connection = await asyncpg.connect(postgres_url)
        try:
            with pytest.raises(ZeroDivisionError):
                async with connection.transaction():
                    await greet.push_in(connection, "nobody")
                    raise ZeroDivisionError
            async with connection.transaction():
                await greet.push_in(connection, "Ada")
                await greet.options(priority=9).push_in(connection, name="Grace")
                with pytest.raises(InvalidInput, match="unknown argument"):
                    await greet.push_in(connection, age=3)  # type: ignore[call-arg]
        finally:
            await connection.close()
        async with running(worker) as workers:
            await workers.ended(2)

    asyncio.run(work())
    assert sorted(done) == ["Ada", "Grace"]
