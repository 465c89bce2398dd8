"""What memory keeps does not grow with the number of records that were taken over."""

from __future__ import annotations

from hark.clock import FakeClock
from hark.engine.s3 import S3Engine
from tests.s3.processes import running
from tests.s3.stub.store import StubStore

RECORDS = 150
ENOUGH = 80
"""For the few entries that there are, with what is not worth tidying up."""


async def test_schedules_do_not_grow_with_the_records_of_others(stub_store: StubStore, clock: FakeClock) -> None:
    async with running(stub_store, clock) as other, running(stub_store, clock) as process:
        await other.push("orders", "p", "held")
        await process.pop("orders", group="w", group_mode="shared")
        for number in range(RECORDS):
            await other.push("orders", "p", number, delay_ms=86_400_000)
            assert not await process.pop("orders", group="w")
        assert isinstance(process.engine, S3Engine)
        assert process.engine._replica is not None
        state = process.engine._replica.fold.state
        group = state.groups["orders", "w"]
        sizes = {
            name: len(getattr(group, name)) for name in ("ready_heap", "waking_heap", "rising_heap", "leases", "tracks")
        }
        sizes["lease_heap"] = len(state.lease_heap)
        assert group.waking
        assert max(sizes.values()) < ENOUGH, sizes
