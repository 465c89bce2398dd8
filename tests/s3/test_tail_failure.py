"""A failure while a record of another process is taken over ends nothing: it is looked for again."""

from __future__ import annotations

import asyncio

import pytest

from hark.clock import FakeClock
from hark.engine.s3 import S3Engine
from hark.engine.s3.replica.tail import Tail
from hark.errors import HarkError
from hark.polling import PollingStrategy
from tests.engine.driver import payloads
from tests.s3.processes import running, until
from tests.s3.stub.faults import Fault
from tests.s3.stub.store import StubStore


async def test_who_could_not_take_over_a_record_looks_for_it_again(stub_store: StubStore, clock: FakeClock) -> None:
    async with running(stub_store, clock) as writer, running(stub_store, clock, patience_ms=100) as reader:
        reader.faults.next(Fault.LOST_ERROR, kind="put", key="log/", times=float("inf"))
        reader.faults.next(Fault.ERROR, kind="get", key="log/", times=float("inf"))
        with pytest.raises(HarkError) as failure:
            await reader.push("orders", "p", "perhaps")
        assert failure.value.code == "outcome_unknown"
        reader.faults.heal()
        # The tail finds the record; whoever takes it over has to read the log first, and can't.
        reader.faults.next(Fault.ERROR, kind="get", key="log/", skip=1, times=float("inf"))
        assert isinstance(reader.engine, S3Engine)
        reader.engine.poll_as(PollingStrategy.fixed(interval_ms=10))
        await until(lambda: len(reader.faults.happened) > 10)
        reader.faults.heal()
        await writer.push("orders", "p", "surely")
        async with asyncio.timeout(20):
            await until(lambda: reader.hints)
        assert payloads(await reader.pop("orders", batch=10)) == ["perhaps", "surely"]


async def test_who_has_just_written_looks_when_it_is_told_of_news(stub_store: StubStore, clock: FakeClock) -> None:
    async with running(stub_store, clock) as other, running(stub_store, clock) as process:
        await process.push("orders", "p", 1)
        process.hints.clear()
        await other.push("orders", "p", 2)
        assert isinstance(process.engine, S3Engine)
        process.engine.hear(other.hints)
        async with asyncio.timeout(20):
            await until(lambda: process.hints)


async def test_a_tail_that_meets_what_nobody_thought_of_goes_on(
    stub_store: StubStore, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(stub_store, clock) as other, running(stub_store, clock) as process:
        look = Tail._look
        failed: list[bool] = []

        async def fail_once(self: Tail) -> bool:
            if failed:
                return await look(self)
            failed.append(True)
            raise KeyError("a defect")

        monkeypatch.setattr(Tail, "_look", fail_once)
        await other.push("orders", "p", 1)
        assert isinstance(process.engine, S3Engine)
        process.engine.poll_as(PollingStrategy.fixed(interval_ms=10))
        async with asyncio.timeout(20):
            await until(lambda: process.hints)
        assert failed
