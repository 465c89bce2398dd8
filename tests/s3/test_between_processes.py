"""What processes on one bucket know of each other: time, leases, room, and what a lost commit leaves behind."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import cast

import pytest

from hark.clock import SECOND, FakeClock
from hark.engine.s3 import S3Engine, objects
from hark.model import GroupMode, LeaseFilter, Limits
from tests.engine.driver import message, payloads, settlement
from tests.engine.explained import why
from tests.engine.workers import Workers
from tests.s3.processes import Process, running
from tests.s3.stub.store import StubStore

SKEWS = {"ahead": 5.0, "behind": -5.0}
WRONG_BY = 1.0
"""A date is cut to whole seconds, so the time of a process is up to one second off."""
MARGIN = 0.5
WIDE = {"skew_margin_ms": 3000}
RECORDS = 150
ENOUGH = 80
"""For the few entries of memory that there are, with what is not worth tidying up."""


class World:
    """The time as it is, a store that knows it, and processes that do not."""

    def __init__(self, clock: FakeClock, store: StubStore) -> None:
        self.clock, self.store = clock, store
        self.clocks = {name: FakeClock(clock.now() + round(skew * SECOND)) for name, skew in SKEWS.items()}
        self.processes: dict[str, Process] = {}

    def wait(self, seconds: float) -> None:
        """Time passes for all."""
        for clock in (self.clock, *self.clocks.values()):
            clock.advance(seconds)

    async def wait_in_steps(self, seconds: float) -> None:
        """The same, while the processes talk to the store, as they do."""
        for _ in range(10):
            self.wait(seconds / 10)
            for process in self.processes.values():
                await process.engine.ping()


@pytest.fixture
async def world(clock: FakeClock, stub_store: StubStore) -> AsyncIterator[World]:
    """Two processes, one ahead and one behind."""
    world = World(clock, stub_store)
    async with AsyncExitStack() as stack:
        for name, wrong in world.clocks.items():
            process = running(stub_store, wrong, skew_margin_ms=round(MARGIN * 1000))
            world.processes[name] = await stack.enter_async_context(process)
        yield world


@pytest.mark.parametrize(("first", "second"), [("ahead", "behind"), ("behind", "ahead")])
async def test_a_delay_and_a_lease_are_over_for_both_at_about_the_same_time(
    world: World, first: str, second: str
) -> None:
    one, other = world.processes[first], world.processes[second]
    await one.push("orders", "p", 1, delay_ms=20_000)
    await world.wait_in_steps(20 - 2 * WRONG_BY)
    assert await other.pop("orders") == []
    world.wait(4 * WRONG_BY)
    [leased] = await other.pop("orders", lease_ms=20_000)
    assert payloads([leased]) == [1]
    for _ in range(2):
        await world.wait_in_steps(20 - 2 * WRONG_BY)
        assert await one.pop("orders") == []
        assert (await other.renew(leased.lease, 20)).error is None
    await world.wait_in_steps(20 - 2 * WRONG_BY)
    assert await one.pop("orders") == []
    world.wait(4 * WRONG_BY + MARGIN)
    assert payloads(await one.pop("orders")) == [1]


async def test_leases_of_another_process_last_longer_by_the_margin(stub_store: StubStore, clock: FakeClock) -> None:
    """Clocks that are the same to all that the dates say may still differ: the margin is for that."""
    async with running(stub_store, clock, **WIDE) as owner, running(stub_store, clock, **WIDE) as other:
        await owner.push("orders", "p", 1)
        await owner.pop("orders", lease_ms=10_000)
        clock.advance(12.9)
        assert await other.pop("orders") == []
        clock.advance(0.2)
        assert payloads(await other.pop("orders", lease_ms=10_000)) == [1]
        clock.advance(12.9)
        assert await owner.pop("orders") == []
        # The lease is its own, so it needs no margin.
        assert payloads(await other.pop("orders")) == [1]


async def test_a_lease_that_was_renewed_elsewhere_lasts_as_long_as_was_stated_there(
    stub_store: StubStore, clock: FakeClock
) -> None:
    async with running(stub_store, clock, **WIDE) as owner, running(stub_store, clock, **WIDE) as other:
        await owner.push("orders", "p", 1)
        [leased] = await owner.pop("orders", lease_ms=10_000)
        clock.advance(9)
        # No later than what the other process allows the lease anyway, but later than its owner does.
        renewed = await other.renew(leased.lease, 3)
        assert renewed.expires_at is not None
        clock.advance(2.9)
        assert await owner.pop("orders") == []
        assert (await other.ack(leased)).success


async def test_the_time_of_records_never_goes_back(world: World) -> None:
    for number in range(12):
        name = ("ahead", "behind")[number % 2]
        await world.processes[name].push("orders", "p", number)
        world.wait(0.3 * (number % 3))
    records = [objects.decode(world.store.read(key) or b"", int(key[4:])) for key in world.store.keys("log/")]
    times = [one.time for one in records]
    assert len({one.writer for one in records}) == 2
    assert times == sorted(times)
    assert abs(times[-1] - world.clock.now()) <= 2 * WRONG_BY * SECOND


# Who holds what --------------------------------------------------------------------------------------------


async def test_the_name_of_a_consumer_is_known_to_another_process(stub_store: StubStore, clock: FakeClock) -> None:
    settings = {"skew_margin_ms": 0}
    async with running(stub_store, clock, **settings) as one, running(stub_store, clock, **settings) as other:
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


async def test_the_queue_of_a_partition_that_another_process_made_is_known(process: Process, other: Process) -> None:
    [made] = await process.push("orders", "p1", 1)
    assert made.partition_id is not None
    assert await other.engine.queues_of([made.partition_id]) == ["orders"]
    await process.engine.delete_queues(["orders"])
    assert await process.engine.queues_of([made.partition_id]) == [None]


async def test_a_row_without_a_name_is_a_lease_of_no_one_knows_whom(process: Process) -> None:
    """So were they written before: consumer and time are the last of each part, and may be missing."""
    message = await process.push_id("orders", "p1", 1)
    await process.pop("orders", group="g", consumer="worker 7")
    local = cast("S3Engine", process.engine).local
    connection = local.scratch.writer
    [(parts,)] = list(connection.execute("select parts from leases"))
    old = [part[:7] for part in json.loads(str(parts))]
    assert old != json.loads(str(parts))
    connection.execute("update leases set parts = ?", (json.dumps(old),))
    local._read_all()
    [lease] = (await process.engine.leases(LeaseFilter())).items
    assert (lease.consumer, lease.since, lease.messages) == ("", None, 1)
    found = await why(process, message)
    assert (found.reason, found.data["consumer"], found.data["since"]) == ("leased", None, None)


# Those who wait for room -----------------------------------------------------------------------------------


def is_notified(process: Process, group: str) -> bool:
    """Whether a group of the queue was told to look anywhere."""
    return any(one.queue == "orders" and one.group in (None, group) and one.kind == "free" for one in process.hints)


@pytest.mark.parametrize("meanwhile", ["nothing", "a new queue"])
@pytest.mark.parametrize("holder", ["another process", "the same"])
async def test_a_group_that_waits_for_what_another_one_holds_is_notified(
    holder: str, meanwhile: str, process: Process, other: Process
) -> None:
    holder_process = process if holder == "the same" else other
    await holder_process.configure("orders", max_in_flight=1)
    await holder_process.push("orders", "p", 1)
    leased = await holder_process.pop("orders", group="one")
    assert (await process.pop("orders", group="two")).reason == "max_in_flight"
    process.hints.clear()
    if meanwhile == "a new queue":
        await other.push("others", "p", 1)  # Then all of memory is made anew, and who waits has to ask again.
        await process.engine.ping()
        assert is_notified(process, "two")
        assert (await process.pop("orders", group="two")).reason == "max_in_flight"
        process.hints.clear()
    await holder_process.ack_all(leased)
    await process.engine.ping()
    assert is_notified(process, "two")
    assert await process.pop("orders", group="two")


# What a lost commit, and the records of others, leave behind in memory -------------------------------------


async def test_messages_of_a_lost_commit_do_not_fill_a_queue(process: Process, other: Process) -> None:
    await other.configure("small", max_size=2)
    await other.push("small", "known", 1)
    await other.push("elsewhere", "p", "known too")
    await process.push("elsewhere", "p", "wins the number")
    # Its partition was made by the commit that lost, and is made again.
    [outcome] = await other.push("small", "new", 2)
    assert outcome.status == "queued"
    [outcome] = await other.push("small", "new", 3)
    assert outcome.code == "queue_full"


@pytest.mark.parametrize("mode", ["ordered", "shared"])
@pytest.mark.parametrize("how", ["auto-ack", "ack", "purge", "seek"])
async def test_rule_7_what_another_process_settled_makes_room(
    process: Process, other: Process, mode: GroupMode, how: str
) -> None:
    """The process that pushes does not use the group, and has not loaded it."""
    workers = Workers(other, mode=mode)
    await other.configure("orders", max_size=1)
    await process.push("orders", "p1", 1)
    await workers.take(auto_ack=True)
    [outcome] = await process.push("orders", "p1", 2)
    assert outcome.status == "queued"
    if how == "auto-ack":
        await workers.take(auto_ack=True)
    elif how == "ack":
        await other.ack_all(await workers.take())
    elif how == "purge":
        await other.engine.purge("orders", "workers")
    else:
        await other.seek("orders", group="workers", to_end=True)
    first, second = await process.push("orders", "p1", 3, 4)
    assert (first.status, second.code) == ("queued", "queue_full")


async def test_deliveries_of_another_process_count_for_the_rate_of_a_group(
    process: Process, other: Process, clock: FakeClock
) -> None:
    await other.push("orders", "p1", 1, 2, 3, 4)
    workers, others = Workers(process), Workers(other)
    await others.take(auto_ack=True)
    await other.engine.limit_group("orders", "workers", Limits(rate_limit=1, rate_burst=2))
    assert len(await others.take(2, auto_ack=True)) == 2
    assert (await workers.take()).reason == "rate_limited"
    clock.advance(1)
    assert len(await workers.take()) == 1


async def test_the_number_of_a_partition_that_was_undone_is_another_ones(
    process: Process, other: Process, clock: FakeClock
) -> None:
    await other.push("theirs", "known", "theirs")
    await other.push("mine", "known", "mine")
    assert payloads(await other.pop("mine", group="w", group_mode="shared")) == ["mine"]
    await process.push("theirs", "new", "theirs")
    # In the commit that loses, this partition has the number that `theirs` has won.
    await other.push("mine", "new", "late", delay_ms=1000)
    assert payloads(await other.pop("mine", group="w", group_mode="shared", batch=10)) == []
    clock.advance(1)
    assert payloads(await other.pop("mine", group="w", group_mode="shared", batch=10)) == ["late"]


async def test_schedules_do_not_grow_with_the_records_of_others(process: Process, other: Process) -> None:
    await other.push("orders", "p", "held")
    await process.pop("orders", group="w", group_mode="shared")
    for number in range(RECORDS):
        await other.push("orders", "p", number, delay_ms=86_400_000)
        assert not await process.pop("orders", group="w")
    assert isinstance(process.engine, S3Engine)
    state = process.engine.local.state
    group = state.groups["orders", "w"]
    sizes = {
        name: len(getattr(group, name)) for name in ("ready_heap", "waking_heap", "rising_heap", "leases", "positions")
    }
    sizes["lease_heap"] = len(state.lease_heap)
    assert group.waking
    assert max(sizes.values()) < ENOUGH, sizes


@pytest.mark.parametrize("mode", ["ordered", "shared"])
@pytest.mark.parametrize("how", ["seek", "deleted group"])
async def test_rule_12_a_lease_has_completed_nothing_any_more_after_another_process_moved_its_group(
    stub_store: StubStore, clock: FakeClock, mode: GroupMode, how: str
) -> None:
    async with running(stub_store, clock) as here, running(stub_store, clock) as there:
        await here.configure("bills")
        await here.push("orders", "p1", 1)
        workers, others = Workers(here, mode=mode), Workers(there, mode=mode)
        [late] = await workers.take()
        assert (await here.ack(late)).success
        assert (await here.transact(settlement(late))).success, "a repeat"
        if how == "seek":
            await there.seek("orders", group="workers", offset=1)
        else:
            await there.engine.delete_group("workers", None, False)
        [successor] = await others.take()
        assert (await there.transact(settlement(successor), message("bills", "p1", "successor"))).success
        await here.engine.ping()
        assert not (await here.transact(message("bills", "p1", "late"), settlement(late))).success
        assert await here.drain("bills") == ["successor"]
