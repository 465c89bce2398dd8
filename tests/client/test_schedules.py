"""Schedules in the client: over HTTP, with blocking calls, and with a store in this process."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest

import hark
import hark.sync
from hark.client.client import Client
from hark.clock import SystemClock
from hark.engine.api import Engine
from hark.engine.sqlite import SqliteEngine
from hark.errors import InvalidInput, NotFound
from tests.engine.engines import LocalBucket


async def test_a_schedule_has_what_it_was_given_and_does_what_it_is_asked(client: Client, queue: str) -> None:
    start = datetime.now(UTC).replace(microsecond=0) + timedelta(days=1)
    made = await client.schedules.put(
        queue,
        queue,
        {"n": 1},
        every=timedelta(minutes=90),
        start_at=start,
        jitter=2.5,
        overlap="skip",
        catch_up="all",
        partition="p",
        priority=4,
        ttl=60,
        retry_delays=[1, timedelta(seconds=2)],
    )
    assert (made.name, made.queue, made.partition, made.priority, made.ttl) == (queue, queue, "p", 4, 60_000)
    assert (made.every, made.jitter, made.overlap, made.catch_up) == (5400, 2.5, "skip", "all")
    assert (made.next_run_at, made.start_at, made.backoff_schedule) == (start, start, (1000, 2000))
    assert await client.schedules.get(queue) == made
    assert [one.name for one in await client.schedules.list(queue)] == [queue]
    assert await client.schedules.list(search=f"{queue}-no") == ()
    assert (await client.schedules.pause(queue)).state == "paused"
    assert (await client.schedules.resume(queue)).state == "active"
    run = await client.schedules.run(queue)
    [message] = await client.queue(queue).pop()
    assert (message.id, message.transaction_id, message.data) == (run.message_id, run.transaction_id, {"n": 1})
    assert await client.schedules.delete(queue)
    assert not await client.schedules.delete(queue)
    with pytest.raises(NotFound, match="Schedule not found"):
        await client.schedules.get(queue)


async def test_wrong_arguments_are_named(client: Client) -> None:
    with pytest.raises(InvalidInput, match="exactly one"):
        await client.schedules.put("s", "q")
    with pytest.raises(InvalidInput, match="queue: must not be empty"):
        await client.schedules.put("s", "", every=1)
    with pytest.raises(InvalidInput, match="start_at: expected a datetime with a time zone"):
        await client.schedules.put("s", "q", every=1, start_at=datetime(2030, 1, 1))  # noqa: DTZ001
    with pytest.raises(InvalidInput, match="every: expected 1 to"):
        await client.schedules.put("s", "q", every=timedelta(milliseconds=5))


def test_the_sync_client_has_the_same_methods(url: str, queue: str) -> None:
    with hark.sync.connect(url) as client:
        assert (
            client.schedules.put(queue, queue, 1, cron="@daily", timezone="Europe/Berlin").timezone == "Europe/Berlin"
        )
        assert client.schedules.get(queue).cron == "0 0 * * *"
        assert [one.name for one in client.schedules.list(queue)] == [queue]
        client.schedules.pause(queue)
        assert client.schedules.run(queue).message_id is not None
        client.schedules.resume(queue)
        assert client.schedules.delete(queue)


def in_memory() -> Engine:
    """A store in memory."""
    return SqliteEngine(":memory:", clock=SystemClock())


def in_a_bucket() -> Engine:
    """A store in a bucket, without a server."""
    return LocalBucket().open(SystemClock())


@pytest.mark.parametrize("make", [in_memory, in_a_bucket])
async def test_a_process_that_uses_a_store_directly_runs_its_schedules(make: Callable[[], Engine]) -> None:
    async with hark.connect(make()) as client:
        await client.schedules.put("tick", "ticks", "tock", every=1)
        [message] = await client.queue("ticks").wait().timeout(60_000).pop()
        assert message.data == "tock"
        assert (await client.schedules.get("tick")).runs >= 1
