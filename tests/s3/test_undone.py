"""A commit that lost its number leaves nothing behind in memory: what it made is not there, or is somebody else's."""

from __future__ import annotations

from hark.clock import FakeClock
from tests.engine.driver import payloads
from tests.s3.processes import running
from tests.s3.stub.store import StubStore


async def test_messages_of_a_lost_commit_do_not_fill_a_queue(stub_store: StubStore, clock: FakeClock) -> None:
    async with running(stub_store, clock) as one, running(stub_store, clock) as other:
        await other.configure("small", max_size=2)
        await other.push("small", "known", 1)
        await other.push("elsewhere", "p", "known too")
        await one.push("elsewhere", "p", "wins the number")
        # Its partition was made by the commit that lost, and is made again.
        [outcome] = await other.push("small", "new", 2)
        assert outcome.status == "queued"
        [outcome] = await other.push("small", "new", 3)
        assert outcome.code == "queue_full"


async def test_the_number_of_a_partition_that_was_undone_is_another_ones(
    stub_store: StubStore, clock: FakeClock
) -> None:
    async with running(stub_store, clock) as one, running(stub_store, clock) as other:
        await other.push("theirs", "known", "theirs")
        await other.push("mine", "known", "mine")
        assert payloads(await other.pop("mine", group="w", group_mode="shared")) == ["mine"]
        await one.push("theirs", "new", "theirs")
        # In the commit that loses, this partition has the number that `theirs` has won.
        await other.push("mine", "new", "late", delay_ms=1000)
        assert payloads(await other.pop("mine", group="w", group_mode="shared", batch=10)) == []
        clock.advance(1)
        assert payloads(await other.pop("mine", group="w", group_mode="shared", batch=10)) == ["late"]
