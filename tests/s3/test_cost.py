"""What is asked of the bucket: the table of costs, request by request."""

from __future__ import annotations

import asyncio

import pytest

from hark.clock import FakeClock
from hark.model import PopRequest
from tests.engine.driver import NEVER_GIVEN, Got, Held, payloads, settlement
from tests.s3.processes import Process, Requests, running, until
from tests.s3.stub.store import StubStore

BATCH = 100
ROUNDS = 5
BODY = {"pad": "x" * 246}
ORDERS = PopRequest(queue="orders", batch=BATCH)


@pytest.fixture
def requests(stub_store: StubStore) -> Requests:
    """What comes to the store."""
    return Requests(stub_store)


async def push_batch(process: Process) -> None:
    """A hundred messages in one request."""
    await process.push("orders", "p", *[BODY] * BATCH)


async def pop_batch(process: Process) -> Got:
    """A hundred messages that are there."""
    got = await process.pop("orders", batch=BATCH)
    assert payloads(got) == [BODY] * BATCH
    return got


async def together(process: Process, held: list[Held]) -> Got:
    """The acks of a batch and the pop of the next, as a busy consumer sends them: while another record is written."""
    stop = process.faults.stop("before", kind="put", key="log/")
    first = asyncio.create_task(process.push("others", "p", BODY))
    await stop.reached()
    acks = asyncio.create_task(process.ack_all(held))
    pop = asyncio.create_task(process.pop_requests(ORDERS))
    await asyncio.sleep(0)  # Both have been handed in.
    stop.go()
    await asyncio.gather(first, acks)
    [got] = await pop
    assert len(got) == BATCH
    return got


# One process, as a server is -------------------------------------------------------------------------------


async def test_a_pushed_batch_is_one_put(stub_store: StubStore, clock: FakeClock, requests: Requests) -> None:
    async with running(stub_store, clock) as process:
        requests.clear()
        await push_batch(process)
        assert requests.counts == {"put": 1}


async def test_a_survey_of_the_store_asks_nothing_of_the_bucket(
    stub_store: StubStore, clock: FakeClock, requests: Requests
) -> None:
    async with running(stub_store, clock) as process:
        await push_batch(process)
        await pop_batch(process)
        requests.clear()
        census, survey = await process.engine.census(), await process.engine.survey()
        assert (census.queues, sum(census.in_flight.values())) == (1, BATCH)
        assert [depth.messages for depth in survey.depths] == [BATCH, BATCH]
        assert requests.counts == {}


async def test_a_popped_batch_is_one_put_and_its_acks_are_one(
    stub_store: StubStore, clock: FakeClock, requests: Requests
) -> None:
    async with running(stub_store, clock) as process:
        await push_batch(process)
        requests.clear()
        got = await pop_batch(process)
        assert requests.counts == {"put": 1}
        await process.ack_all(got)
        assert requests.counts == {"put": 2}


async def test_the_acks_of_a_batch_and_the_claim_of_the_next_share_a_put(
    stub_store: StubStore, clock: FakeClock, requests: Requests
) -> None:
    async with running(stub_store, clock) as process:
        await push_batch(process)
        await push_batch(process)
        got = await pop_batch(process)
        requests.clear()
        await together(process, got)
        assert requests.counts == {"put": 2}  # That of the push which was under way, and one for both.


async def test_a_message_takes_at_most_a_twentieth_of_a_request_and_its_price(
    stub_store: StubStore, clock: FakeClock, requests: Requests
) -> None:
    async with running(stub_store, clock) as process:
        requests.clear()
        for _ in range(ROUNDS):
            await push_batch(process)
            await process.ack_all(await pop_batch(process))
        # Even if each push, claim and ack is alone.
        messages = ROUNDS * BATCH
        assert sum(requests.counts.values()) / messages <= 0.05
        assert 1e6 * requests.dollars() / messages <= 0.15 + 1e-9


async def test_verbs_that_wait_together_share_a_put(
    stub_store: StubStore, clock: FakeClock, requests: Requests
) -> None:
    async with running(stub_store, clock) as process:
        requests.clear()
        stop = process.faults.stop("before", kind="put", key="log/")
        first = asyncio.create_task(process.push("orders", "p", BODY))
        await stop.reached()
        rest = [asyncio.create_task(process.push("orders", f"p{number}", BODY)) for number in range(50)]
        await asyncio.sleep(0)
        stop.go()
        await asyncio.gather(first, *rest)
        assert requests.counts == {"put": 2}


@pytest.mark.parametrize("patient", [True, False], ids=["who waits anyway", "who has to know"])
async def test_a_pop_of_nothing_puts_nothing(
    stub_store: StubStore, clock: FakeClock, requests: Requests, patient: bool
) -> None:
    async with running(stub_store, clock) as process:
        await process.drain("orders")
        await process.push("others", "p", BODY)
        await process.pop("orders")  # It makes the group known.
        requests.clear()
        [got] = await process.pop_requests(PopRequest(queue="orders", batch=BATCH, patient=patient))
        assert got == []
        # Somebody else may have pushed: one look, unless the tail will tell anyway.
        assert requests.counts == ({} if patient else {"get": 1})


async def test_a_refused_ack_puts_nothing(stub_store: StubStore, clock: FakeClock, requests: Requests) -> None:
    async with running(stub_store, clock) as process:
        await process.push("orders", "p", BODY)
        [held] = await process.pop("orders")
        requests.clear()
        [outcome] = await process.settle(settlement(held, lease=NEVER_GIVEN))
        assert not outcome.success
        assert requests.counts == {"get": 1}


async def test_upkeep_without_anything_to_do_asks_for_nothing(
    stub_store: StubStore, clock: FakeClock, requests: Requests
) -> None:
    async with running(stub_store, clock) as process:
        await process.push("orders", "p", BODY)
        await process.pop("orders")
        requests.clear()
        await process.engine.expire()
        await process.engine.collect()
        await process.engine.sweep_keys()
        await process.engine.read_flags()
        await process.engine.store_metrics()
        assert requests.counts == {}


async def test_reads_that_wait_together_share_a_get(
    stub_store: StubStore, clock: FakeClock, requests: Requests
) -> None:
    async with running(stub_store, clock) as process:
        await push_batch(process)
        await pop_batch(process)
        requests.clear()
        stop = process.faults.stop("before", kind="get", key="log/")
        first = asyncio.create_task(process.engine.group_stats())
        await stop.reached()
        rest = [asyncio.create_task(process.engine.group_stats()) for _ in range(50)]
        await asyncio.sleep(0)
        stop.go()
        answers = await asyncio.gather(first, *rest)
        assert all(len(answer) == 1 for answer in answers)
        assert requests.counts == {"get": 2}


# Payloads --------------------------------------------------------------------------------------------------


async def test_who_pushed_a_payload_does_not_fetch_it(
    stub_store: StubStore, clock: FakeClock, requests: Requests
) -> None:
    async with running(stub_store, clock) as process:
        await push_batch(process)
        requests.clear()
        await pop_batch(process)
        assert "get" not in requests.counts


async def test_who_has_read_a_record_has_its_payloads(
    stub_store: StubStore, clock: FakeClock, requests: Requests
) -> None:
    async with running(stub_store, clock) as producer, running(stub_store, clock) as consumer:
        await push_batch(producer)
        requests.clear()
        await consumer.engine.ping()
        assert requests.answered("get", 200) == 1
        await pop_batch(consumer)
        # It may look at the head before it writes, as others write too; but it fetches nothing twice.
        assert requests.answered("get", 200) == 1
        assert requests.answered("get", 206) == 0


async def test_the_payloads_of_a_batch_that_came_with_a_snapshot_are_one_get(
    stub_store: StubStore, clock: FakeClock, requests: Requests
) -> None:
    async with running(stub_store, clock, snapshot_records=1) as producer:
        await push_batch(producer)
        await until(lambda: stub_store.keys("snap/0"))
    async with running(stub_store, clock) as consumer:
        requests.clear()
        await pop_batch(consumer)
        assert requests.counts["put"] == 1
        assert requests.answered("get", 206) == 1


async def test_small_payloads_are_never_fetched(stub_store: StubStore, clock: FakeClock, requests: Requests) -> None:
    async with running(stub_store, clock, snapshot_records=1) as producer:
        await producer.push("orders", "p", *range(BATCH))
        await until(lambda: stub_store.keys("snap/0"))
    async with running(stub_store, clock) as consumer:
        requests.clear()
        assert payloads(await consumer.pop("orders", batch=BATCH)) == list(range(BATCH))
        assert requests.counts["put"] == 1
        assert requests.answered("get", 206) == 0


# Two processes ---------------------------------------------------------------------------------------------


async def test_a_record_of_another_process_is_read_once(
    stub_store: StubStore, clock: FakeClock, requests: Requests
) -> None:
    async with running(stub_store, clock) as producer, running(stub_store, clock) as consumer:
        requests.clear()
        for _ in range(ROUNDS):
            await push_batch(producer)
        await consumer.engine.ping()
        read = [key for kind, key, status in stub_store.log if kind == "get" and status == 200]
        assert len(read) == len(set(read)) == ROUNDS


async def test_a_lost_race_costs_a_put_and_a_look_at_what_won(
    stub_store: StubStore, clock: FakeClock, requests: Requests
) -> None:
    async with running(stub_store, clock) as one, running(stub_store, clock) as other:
        await push_batch(one)
        requests.clear()
        await push_batch(other)  # It does not know yet that the number is taken.
        assert (requests.answered("put", 412), requests.answered("put", 200)) == (1, 1)
        # Who lost once may look further, so as not to lose again; but it reads what won once.
        assert requests.answered("get", 200) == 1


# Starting --------------------------------------------------------------------------------------------------


async def test_a_start_reads_what_a_store_is_and_the_records_since_the_last_snapshot(
    stub_store: StubStore, clock: FakeClock, requests: Requests
) -> None:
    async with running(stub_store, clock, snapshot_records=3) as first:
        for _ in range(5):
            await push_batch(first)
        await until(lambda: stub_store.keys("snap/0"))
    requests.clear()
    async with running(stub_store, clock):
        asked = [(kind, key) for kind, key, _ in stub_store.log if not key.startswith("probe/")]
    snapshot = int(stub_store.keys("snap/0")[-1].partition("/")[2])
    records = [("get", f"log/{seq:020d}") for seq in range(snapshot + 1, 7)]
    assert asked[:3] == [("get", "meta.json"), ("get", "snap/latest"), ("get", f"snap/{snapshot:020d}")]
    assert set(records) <= set(asked)
    # The head is asked for by who reads on, and then by the tail; reading ahead may ask beyond it.
    assert requests.places["get log"] <= 2 * len(records) + 1
    assert requests.places["get meta.json"] == 1
    assert requests.places["put log"] == requests.places["put snap"] == 0


async def test_nothing_is_ever_listed(stub_store: StubStore, clock: FakeClock) -> None:
    listed = Requests(stub_store)
    async with running(stub_store, clock, snapshot_records=1) as one, running(stub_store, clock) as other:
        for process in (one, other):
            await push_batch(process)
            await process.ack_all(await pop_batch(process))
        await until(lambda: stub_store.keys("snap/0"))
        await other.reopen()
    assert "list" not in listed.counts
