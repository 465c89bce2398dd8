"""Rule 1 and what outlives the engine: the same store, opened again."""

from __future__ import annotations

import pytest

from hark.clock import SECOND, FakeClock
from hark.errors import StoreUnusable
from hark.model import GroupMode, NewTrace, QueueOptions

from .driver import NEW, Driver, message, payloads, settlement
from .engines import EXCLUSIVE_ENGINES, EngineKind
from .workers import Workers, attempts


async def test_rule_1_what_was_answered_is_there_after_a_reopen(q: Driver) -> None:
    outcomes = await q.push("orders", "p1", 1, 2, transaction_id=None)
    await q.push("orders", "p1", 3, transaction_id="t3", priority=5, trace_id="x", producer="me")
    await q.reopen()
    got = await q.pop("orders", batch=10)
    assert payloads(got) == [1, 2, 3]
    assert [one.message.id for one in got[:2]] == [one.message_id for one in outcomes]
    assert (got[2].message.priority, got[2].message.trace_id, got[2].message.producer) == (5, "x", "me")


async def test_offsets_ids_and_times_go_on_after_a_reopen(q: Driver, clock: FakeClock) -> None:
    first = await q.push_id("orders", "p1", 1)
    clock.advance(-1000)
    await q.reopen()
    second = await q.push_id("orders", "p1", 2)
    assert first < second
    got = await q.pop("orders", batch=10)
    assert [one.message.offset for one in got] == [1, 2]
    assert got[0].message.created_at <= got[1].message.created_at


async def test_offsets_are_not_used_again_after_everything_was_removed(q: Driver) -> None:
    ids = [one.message_id or "" for one in await q.push("orders", "p1", 1, 2, 3)]
    await q.engine.delete_messages(ids[2:])
    await q.reopen()
    assert await q.push_id("orders", "p1", 4) > ids[2]
    await q.engine.purge("orders")
    await q.reopen()
    await q.push("orders", "p1", 5)
    [leased] = await q.pop("orders")
    assert (leased.payload, leased.message.offset) == (5, 5)


async def test_transaction_ids_survive(q: Driver) -> None:
    first = await q.push_id("orders", "p1", 1, transaction_id="t1")
    plain = await q.push_id("orders", "p1", 2)
    await q.reopen()
    for key, wanted in (("t1", first), (plain, plain)):
        [outcome] = await q.push("orders", "p1", 9, transaction_id=key)
        assert (outcome.status, outcome.message_id) == ("duplicate", wanted)


async def test_what_was_settled_in_any_order_stays_so_and_what_was_leased_is_not_lost(
    q: Driver, either: Workers
) -> None:
    """Leases may be lost."""
    await q.push("orders", "p1", *range(1, 10))
    got = await either.take(7)
    for index in (0, 1, 3, 5):
        await q.ack(got[index])
    await q.reopen()
    assert await either.unsettled() == 5
    if either.mode == "ordered":
        assert (await either.position()).cursor == 2
    q.clock.advance(300)
    assert sorted(map(str, await either.drain())) == ["3", "5", "7", "8", "9"]
    await q.reopen()
    assert await either.drain() == []
    assert (await either.stats()).lag == 0


async def test_auto_acknowledged_messages_stay_so_unless_a_seek_that_survives_too_goes_back(
    q: Driver, either: Workers
) -> None:
    await q.push("orders", "p1", 1, 2, 3)
    await either.take(2, auto_ack=True)
    await q.reopen()
    assert await either.drain() == [3]
    await q.seek("orders", group="workers", offset=2)
    await q.reopen()
    assert await either.drain() == [2, 3]


async def test_a_lease_from_before_never_settles_what_was_delivered_again(q: Driver, either: Workers) -> None:
    await q.push("orders", "p1", 1)
    [old] = await either.take()
    await q.reopen()
    q.clock.advance(300)
    [new] = await either.take()
    assert not (await q.ack(old)).success
    assert (await q.ack(new)).success


async def test_attempts_and_the_time_of_the_retry_survive(q: Driver, either: Workers) -> None:
    await q.configure("orders", retry_limit=2, retry_delay=10_000)
    await q.push("orders", "p1", 1, 2, priority=4)
    for leased in await either.take(2):
        await q.fail(leased, "first")
    due = q.clock.now() + 10 * SECOND
    await q.reopen()
    got = await either.arrive_at(due, batch=2)
    assert attempts(got) == [(1, 2), (2, 2)]
    await q.ack(got[0])
    await q.fail(got[1], "second")
    await q.reopen()
    q.clock.advance(10)
    [leased] = await either.take(2)
    assert (leased.payload, leased.message.attempt) == (2, 3)
    assert (await q.fail(leased, "last")).dead_lettered
    await q.reopen()
    [letter] = await q.dead_letters()
    assert (letter.attempts, letter.error) == (3, "last")


@pytest.mark.parametrize(
    ("mode", "batch", "again"),
    [
        ("ordered", 1, [(1, 2), (2, 1), (3, 1)]),
        ("ordered", 3, [(1, 1)]),
        ("shared", 2, [(3, 1), (1, 2), (2, 2)]),
    ],
)
async def test_attempts_used_by_expiry_and_the_search_for_a_poisonous_message_survive(
    q: Driver, mode: GroupMode, batch: int, again: list[tuple[object, int]]
) -> None:
    workers = Workers(q, mode=mode)
    await q.push("orders", "p1", 1, 2, 3)
    await workers.take(batch)
    q.clock.advance(300)
    await q.engine.expire()
    await q.reopen()
    assert attempts(await workers.take(3)) == again


async def test_delays_and_schedules_survive(q: Driver, either: Workers) -> None:
    await q.push("orders", "p1", 1, delay_ms=5000, backoff_ms=(1000,))
    await q.reopen()
    [leased] = await either.arrive_at(q.clock.now() + 5 * SECOND)
    await q.fail(leased)
    [leased] = await either.arrive_at(q.clock.now() + SECOND)
    assert (leased.message.attempt, (await q.fail(leased)).dead_lettered) == (2, True)


async def test_dead_letters_and_requeued_messages_survive(q: Driver, either: Workers) -> None:
    await q.push("orders", "p1", 1, 2)
    for _ in range(2):
        await either.take_and_kill()
    await q.push("orders", "p1", 3, priority=9)
    await q.reopen()
    newest, _ = await q.dead_letters("orders")
    await q.requeue(newest)
    await q.reopen()
    assert await either.drain() == [2, 3]
    await q.reopen()
    assert (await either.drain(), (await either.stats()).lag) == ([], 0)
    assert [bytes(one.payload) for one in await q.dead_letters()] == [b"1"]
    assert await q.drain("orders", group="h") == [1, 2, 3]


async def test_subscriptions_survive(q: Driver, clock: FakeClock) -> None:
    await q.push("orders", "p1", 1)
    clock.advance(1)
    assert await q.pop("orders", group="g", subscription=NEW) == []
    assert await q.pop("unborn", group="g", subscription=NEW) == []
    await q.push("orders", "p1", 2)
    clock.advance(1)
    await q.reopen()
    await q.push("unborn", "p1", 3)
    clock.advance(1)
    assert await q.drain("orders", group="g") == [2]
    assert payloads(await q.pop("unborn", group="g", subscription=NEW)) == [3]


async def test_pauses_options_and_flags_survive(q: Driver) -> None:
    await q.configure("orders", namespace="shop", task="ship", retry_limit=9)
    await q.push("orders", "p1", 1)
    await q.push("bills", "p1", 2)
    await q.retry((await q.pop("bills", group="g"))[0])
    await q.engine.pause("orders", None, True)
    await q.engine.pause("bills", "g", True)
    await q.engine.write_flag("maintenance", True)
    await q.reopen()
    [info] = await q.engine.queue_infos(["orders"])
    assert (info.namespace, info.task, info.options) == ("shop", "ship", QueueOptions(retry_limit=9))
    assert info.paused
    assert (await q.pop("orders")).reason == "paused"
    assert (await q.pop("bills", "p1", group="g")).reason == "paused"
    assert await q.engine.read_flags() == {"maintenance": True}


async def test_transactions_and_deletions_survive_whole(q: Driver) -> None:
    await q.push("orders", "p1", 1, 2)
    [leased] = await q.pop("orders")
    assert (await q.transact(settlement(leased), message("bills", "p1", 3))).success
    deleted = await q.push_id("orders", "p1", 4)
    await q.push("gone", "p1", 5)
    await q.engine.delete_messages([deleted])
    await q.engine.delete_queues(["gone"])
    await q.reopen()
    assert await q.drain("orders") == [2]
    assert await q.drain("bills") == [3]
    assert {one.name for one in await q.engine.queue_infos()} == {"orders", "bills"}


async def test_counters_and_traces_survive(q: Driver) -> None:
    await q.configure("orders", retry_limit=0, dead_letter_queue=False)
    [outcome] = await q.push("orders", "p1", 1, transaction_id="t1")
    assert outcome.partition_id
    await q.fail((await q.pop("orders"))[0])
    await q.engine.trace([NewTrace(partition_id=outcome.partition_id, transaction_id="t1", data=b"7")])
    await q.reopen()
    assert (await q.stats("orders")).discarded == 1
    assert [bytes(one.data) for one in (await q.engine.traces(outcome.partition_id, "t1"))[0]] == [b"7"]


@pytest.mark.parametrize("kind", EXCLUSIVE_ENGINES, ids=lambda kind: kind.name)
async def test_a_second_engine_on_the_same_store_is_refused(
    kind: EngineKind, request: pytest.FixtureRequest, clock: FakeClock
) -> None:
    with kind.store(request) as open_engine:
        first, second = Driver(open_engine, clock), Driver(open_engine, clock)
        await first.start()
        try:
            with pytest.raises(StoreUnusable):
                await second.start()
            await first.push("orders", "p1", 1)
        finally:
            await first.engine.close()
        await second.start()
        assert await second.drain("orders") == [1]
        await second.engine.close()
