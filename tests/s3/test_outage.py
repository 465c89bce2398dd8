"""A bucket that does not answer: everybody is told in time, also those who came meanwhile."""

from __future__ import annotations

import asyncio

import pytest

from hark.clock import FakeClock
from hark.errors import EngineFailure
from hark.model import NewMessage
from tests.s3.processes import Process, running
from tests.s3.stub.faults import Fault
from tests.s3.stub.store import StubStore


def push(process: Process, value: int) -> asyncio.Task[object]:
    """Push one message, beside what else goes on."""
    message = NewMessage(queue="orders", partition="p", payload=str(value).encode())
    return asyncio.create_task(process.engine.push([[message]]))


async def requests(process: Process) -> float:
    """How many were sent."""
    metrics = await process.engine.store_metrics()
    return metrics["s3_requests_get"] + metrics["s3_requests_put"]


async def test_who_waits_behind_a_commit_that_fails_fails_with_it(stub_store: StubStore, clock: FakeClock) -> None:
    async with running(stub_store, clock, patience_ms=100) as process:
        await push(process, 1)
        stop = process.faults.stop("before", kind="put", key="log/")
        process.faults.next(Fault.DROP, times=float("inf"))
        first = push(process, 2)
        await stop.reached()
        others = [push(process, value) for value in (3, 4)]
        looking = asyncio.create_task(process.engine.queue_infos())
        await asyncio.sleep(0)
        stop.go()
        with pytest.raises(EngineFailure) as failure:
            await first
        assert failure.value.code == "outcome_unknown"
        asked = await requests(process)
        for waiting in (*others, looking):
            with pytest.raises(EngineFailure, match="nothing of this request was kept") as refusal:
                await waiting
            assert (refusal.value.code, bool(refusal.value.retry_after)) == ("engine_failure", True)
        assert await requests(process) == asked, "they were tried one after the other, for as long as the first each"
        process.faults.heal()
        await push(process, 5)
        assert [one.name for one in await process.engine.queue_infos()] == ["orders"]
