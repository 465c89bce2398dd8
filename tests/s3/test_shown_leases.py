"""Who holds what is known to every process of a bucket, also of one that wrote its leases before they had names."""

from __future__ import annotations

import json
from typing import cast

from hark.clock import SECOND, FakeClock
from hark.engine.s3 import S3Engine
from hark.engine.s3.replica.replica import Replica
from hark.model import LeaseFilter
from tests.engine.explained import why
from tests.s3.processes import running
from tests.s3.stub.store import StubStore


async def test_the_name_of_a_consumer_is_known_to_another_process() -> None:
    clock = FakeClock()
    store = StubStore(clock)
    async with running(store, clock, skew_margin_ms=0) as one, running(store, clock, skew_margin_ms=0) as other:
        message = await one.push_id("orders", "p1", 1)
        got = await one.pop("orders", group="g", consumer="worker 7")
        since = clock.now()
        clock.advance(10)
        [lease] = (await other.engine.leases(LeaseFilter())).items
        assert (lease.lease_id, lease.consumer, lease.since) == (got.lease, "worker 7", since)
        assert (await why(other, message)).data["consumer"] == "worker 7"
        await other.renew(got.lease, 600)
        [lease] = (await one.engine.leases(LeaseFilter())).items
        assert (lease.consumer, lease.since, lease.until) == ("worker 7", since, clock.now() + 600 * SECOND)


async def test_the_queue_of_a_partition_that_another_process_made_is_known() -> None:
    clock = FakeClock()
    store = StubStore(clock)
    async with running(store, clock) as one, running(store, clock) as other:
        [made] = await one.push("orders", "p1", 1)
        assert made.partition_id is not None
        assert await other.engine.queues_of([made.partition_id]) == ["orders"]
        await one.engine.delete_queues(["orders"])
        assert await one.engine.queues_of([made.partition_id]) == [None]


async def test_a_row_without_a_name_is_a_lease_of_nobody_knows_whom() -> None:
    """So were they written before: consumer and time are the last of each part, and may be missing."""
    clock = FakeClock()
    store = StubStore(clock)
    async with running(store, clock) as process:
        message = await process.push_id("orders", "p1", 1)
        await process.pop("orders", group="g", consumer="worker 7")
        replica = cast("Replica", cast("S3Engine", process.engine)._replica)
        connection = replica.fold.scratch.writer
        [(parts,)] = list(connection.execute("select parts from leases"))
        old = [part[:7] for part in json.loads(str(parts))]
        assert old != json.loads(str(parts))
        connection.execute("update leases set parts = ?", (json.dumps(old),))
        replica.fold._read_all()
        [lease] = (await process.engine.leases(LeaseFilter())).items
        assert (lease.consumer, lease.since, lease.messages) == ("", None, 1)
        found = await why(process, message)
        assert (found.reason, found.data["consumer"], found.data["since"]) == ("leased", None, None)
