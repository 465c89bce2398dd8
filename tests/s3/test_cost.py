"""What is asked of the bucket: the table of costs, request by request."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any

import pytest

from hark.clock import SECOND, FakeClock
from hark.engine.api import Answers
from hark.engine.s3 import S3Engine, objects
from hark.model import Hint, NewMessage, PopRequest, PopResult
from tests.engine.driver import NEVER_GIVEN, Got, LeasedMessage, payloads, settlement
from tests.s3.processes import NEVER, Process, Requests, running, until
from tests.s3.stub.inprocess import StubBucket
from tests.s3.stub.store import Kind, StubStore

BATCH = 100
ROUNDS = 5
BODY = {"pad": "x" * 246}
ORDERS = PopRequest(queue="orders", batch=BATCH)
POP_PARAMS = PopRequest(queue="orders", patient=True)


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


async def behind(
    process: Process, kind: Kind, first: Coroutine[Any, Any, Any], *rest: Coroutine[Any, Any, Any]
) -> list[Any]:
    """Calls that come while the request of the first one is under way; what they all are answered."""
    stop = process.faults.stop("before", kind=kind, key="log/")
    under_way = asyncio.create_task(first)
    await stop.reached()
    waiting = [asyncio.create_task(one) for one in rest]
    await asyncio.sleep(0)  # All have been handed in.
    stop.go()
    return await asyncio.gather(under_way, *waiting)


async def take(engine: S3Engine) -> PopResult:
    """What somebody gets who waits."""
    [answer] = await engine.pop([POP_PARAMS])
    assert isinstance(answer, PopResult)
    return answer


# One process, as a server is -------------------------------------------------------------------------------


async def test_a_batch_is_one_put_to_push_one_to_pop_and_one_to_ack_and_a_survey_is_nothing(
    process: Process, requests: Requests
) -> None:
    requests.clear()
    await push_batch(process)
    assert requests.counts == {"put": 1}
    got = await pop_batch(process)
    # Who pushed a payload does not fetch it.
    assert requests.counts == {"put": 2}
    totals, survey = await process.engine.totals(), await process.engine.survey()
    assert (totals.queues, sum(totals.in_flight.values())) == (1, BATCH)
    # Of the queue, and of the group that has all of them in flight.
    assert [depth.messages for depth in survey.depths] == [BATCH, 0]
    assert requests.counts == {"put": 2}
    await process.ack_all(got)
    assert requests.counts == {"put": 3}


async def test_the_acks_of_a_batch_and_the_claim_of_the_next_share_a_put(process: Process, requests: Requests) -> None:
    """As a busy consumer sends them: while another record is written."""
    await push_batch(process)
    await push_batch(process)
    leased: list[LeasedMessage] = await pop_batch(process)
    requests.clear()
    push = process.push("others", "p", BODY)
    _, _, [got] = await behind(process, "put", push, process.ack_all(leased), process.pop_requests(ORDERS))
    assert len(got) == BATCH
    assert requests.counts == {"put": 2}  # That of the push which was under way, and one for both.


async def test_a_message_takes_at_most_a_twentieth_of_a_request_and_its_price(
    process: Process, requests: Requests
) -> None:
    requests.clear()
    for _ in range(ROUNDS):
        await push_batch(process)
        await process.ack_all(await pop_batch(process))
    # Even if each push, claim and ack is alone.
    messages = ROUNDS * BATCH
    assert sum(requests.counts.values()) / messages <= 0.05
    assert 1e6 * requests.dollars() / messages <= 0.15 + 1e-9


async def test_verbs_that_wait_together_share_a_put_and_reads_a_get(process: Process, requests: Requests) -> None:
    requests.clear()
    await behind(process, "put", *(process.push("orders", f"p{number}", BODY) for number in range(51)))
    assert requests.counts == {"put": 2}
    await process.pop("orders")
    requests.clear()
    answers = await behind(process, "get", *(process.engine.group_stats() for _ in range(51)))
    assert all(len(answer) == 1 for answer in answers)
    assert requests.counts == {"get": 2}


async def test_what_changes_nothing_puts_nothing(process: Process, requests: Requests) -> None:
    await process.drain("orders")
    await process.push("others", "p", BODY)
    await process.pop("orders")  # It makes the group known.
    for patient in (True, False):
        requests.clear()
        [got] = await process.pop_requests(PopRequest(queue="orders", batch=BATCH, patient=patient))
        assert got == []
        # Somebody else may have pushed: one look, unless the tail will tell anyway.
        assert requests.counts == ({} if patient else {"get": 1})
    [leased] = await process.pop("others")
    requests.clear()
    [outcome] = await process.settle(settlement(leased, lease=NEVER_GIVEN))
    assert not outcome.success
    assert requests.counts == {"get": 1}
    requests.clear()
    await process.engine.expire()
    await process.engine.collect()
    await process.engine.sweep_keys()
    await process.engine.read_flags()
    await process.engine.store_metrics()
    assert requests.counts == {}, "upkeep without anything to do"


# Payloads --------------------------------------------------------------------------------------------------


async def test_a_record_of_another_process_is_read_once_and_with_it_its_payloads(
    process: Process, other: Process, stub_store: StubStore, requests: Requests
) -> None:
    for _ in range(ROUNDS):
        await push_batch(other)
    requests.clear()
    await process.engine.ping()
    assert requests.answered("get", 200) == ROUNDS
    await pop_batch(process)
    # It may look at the head before it writes, as others write too; but it fetches nothing twice.
    read = [key for kind, key, status in stub_store.log if kind == "get" and status == 200]
    assert len(read) == len(set(read)) == ROUNDS
    assert requests.answered("get", 206) == 0


@pytest.mark.parametrize(("body", "gets"), [(BODY, 1), (1, 0)], ids=["large", "small"])
async def test_the_payloads_of_a_batch_that_came_with_a_snapshot_are_one_get_and_small_ones_none(
    stub_store: StubStore, clock: FakeClock, requests: Requests, body: object, gets: int
) -> None:
    async with running(stub_store, clock, snapshot_records=1) as producer:
        await producer.push("orders", "p", *[body] * BATCH)
        await until(lambda: stub_store.keys("snap/0"))
    async with running(stub_store, clock) as consumer:
        requests.clear()
        assert payloads(await consumer.pop("orders", batch=BATCH)) == [body] * BATCH
        assert requests.counts["put"] == 1
        assert requests.answered("get", 206) == gets


# Two processes ---------------------------------------------------------------------------------------------


async def test_a_lost_race_costs_a_put_and_a_look_at_what_won(
    process: Process, other: Process, requests: Requests
) -> None:
    await push_batch(process)
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
        read_keys = [(kind, key) for kind, key, _ in stub_store.log if not key.startswith("probe/")]
    snapshot = int(stub_store.keys("snap/0")[-1].partition("/")[2])
    records = [("get", f"log/{seq:020d}") for seq in range(snapshot + 1, 7)]
    assert read_keys[:3] == [("get", "meta.json"), ("get", "snap/latest"), ("get", f"snap/{snapshot:020d}")]
    assert set(records) <= set(read_keys)
    # The head is asked for by who reads on, and then by the tail; reading ahead may ask beyond it.
    assert requests.paths["get log"] <= 2 * len(records) + 1
    assert requests.paths["get meta.json"] == 1
    assert requests.paths["put log"] == requests.paths["put snap"] == 0


async def test_nothing_is_ever_listed(stub_store: StubStore, clock: FakeClock, requests: Requests) -> None:
    async with running(stub_store, clock, snapshot_records=1) as one, running(stub_store, clock) as other:
        for process in (one, other):
            await push_batch(process)
            await process.ack_all(await pop_batch(process))
        await until(lambda: stub_store.keys("snap/0"))
        await other.reopen()
    assert "list" not in requests.counts


# Those who wait --------------------------------------------------------------------------------------------


async def test_what_is_pushed_to_one_who_waits_costs_one_record(
    stub_store: StubStore, stub_bucket: StubBucket, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A push and its delivery share one record: those who wait are told before it is stored."""
    # It waits for whom it told, however slow this machine is.
    monkeypatch.setattr("hark.engine.s3.thread._INVITED_SECONDS", 60)
    engine = S3Engine("s3://stub/invited", clock=clock, bucket=stub_bucket, polling=NEVER)
    pop_task: asyncio.Future[asyncio.Task[Answers[PopResult]]] = asyncio.get_running_loop().create_future()

    def look_when_notified(hints: Sequence[Hint]) -> None:
        if not pop_task.done() and any(hint.kind == "message" for hint in hints):
            pop_task.set_result(asyncio.ensure_future(engine.pop([POP_PARAMS])))

    await engine.start(look_when_notified)
    assert not (await take(engine)).messages
    stub_store.forget_requests()
    await engine.push([[NewMessage(queue="orders", partition="p", payload=b"1")]])
    [got] = await (await pop_task)
    assert isinstance(got, PopResult)
    assert [one.offset for one in got.messages] == [1]
    written = [key for kind, key, _ in stub_store.log if kind == "put"]
    assert written == [objects.record(2)], "the first contact of the group was the first record"
    await engine.close()


async def test_what_falls_due_is_known_without_a_look_at_the_log(
    process: Process, stub_store: StubStore, clock: FakeClock
) -> None:
    engine = process.engine
    assert isinstance(engine, S3Engine)
    due = clock.now() + 5 * SECOND
    await engine.push([[NewMessage(queue="orders", partition="p", payload=b"1", deliver_at=due)]])
    waiting = await take(engine)
    assert (waiting.messages, waiting.look_again_at) == ((), due)
    stub_store.forget_requests()
    clock.advance(5)
    leased = await take(engine)
    assert [one.offset for one in leased.messages] == [1]
    assert [(kind, key) for kind, key, _ in stub_store.log] == [("put", objects.record(3))]
    # Nor for the end of a lease that nobody renewed.
    assert leased.expires_at is not None
    assert (await engine.expire()).next_due == leased.expires_at
    stub_store.forget_requests()
    clock.advance((leased.expires_at - clock.now()) / SECOND)
    assert (await engine.expire()).leases == 1
    assert [kind for kind, *_ in stub_store.log] == ["put"]
    assert (await take(engine)).messages[0].attempt == 2
