"""Those who wait for room in a queue are told when another process makes some, whatever happened meanwhile."""

from __future__ import annotations

import pytest

from hark.clock import FakeClock
from tests.s3.processes import Process, running
from tests.s3.stub.store import StubStore


def told(process: Process, group: str) -> bool:
    """Whether a group of the queue was told to look anywhere."""
    return any(one.queue == "orders" and one.group in (None, group) and one.news == "free" for one in process.hints)


@pytest.mark.parametrize("meanwhile", ["nothing", "a new queue"])
async def test_a_group_that_waits_for_what_another_one_holds_elsewhere_is_told(
    meanwhile: str, stub_store: StubStore, clock: FakeClock
) -> None:
    async with running(stub_store, clock) as holder, running(stub_store, clock) as waiter:
        await holder.configure("orders", max_in_flight=1)
        await holder.push("orders", "p", 1)
        held = await holder.pop("orders", group="one")
        assert (await waiter.pop("orders", group="two")).reason == "max_in_flight"
        waiter.hints.clear()
        if meanwhile == "a new queue":
            await holder.push("others", "p", 1)  # Then all of memory is made anew, and who waits has to ask again.
            await waiter.engine.ping()
            assert told(waiter, "two")
            assert (await waiter.pop("orders", group="two")).reason == "max_in_flight"
            waiter.hints.clear()
        await holder.ack_all(held)
        await waiter.engine.ping()
        assert told(waiter, "two")
        assert await waiter.pop("orders", group="two")


async def test_who_waits_for_room_asks_again_when_memory_was_made_anew(stub_store: StubStore, clock: FakeClock) -> None:
    async with running(stub_store, clock) as other, running(stub_store, clock) as process:
        await process.configure("orders", max_in_flight=1)
        await process.push("orders", "p", 1)
        held = await process.pop("orders", group="one")
        assert (await process.pop("orders", group="two")).reason == "max_in_flight"
        await other.push("others", "p", 1)
        process.hints.clear()
        await process.engine.ping()
        assert told(process, "two")
        assert (await process.pop("orders", group="two")).reason == "max_in_flight"
        process.hints.clear()
        await process.ack_all(held)
        assert told(process, "two")
