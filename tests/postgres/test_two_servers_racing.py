"""Two servers on one database that do the same thing in the same instant: exactly one of them wins."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable
from itertools import cycle, islice

import pytest

from hark.clock import FakeClock
from hark.engine.api import Engine
from hark.engine.postgres import PostgresEngine
from hark.errors import HarkError
from hark.model import Key, KeyCheck, NewMessage, PushOutcome, Status
from tests.engine.driver import NEW, Driver, LeasedMessage, given, message, payloads, settlement
from tests.engine.key_words import change, changed_keys, delete, delete_tree, entry, put, set_to, value, write
from tests.postgres_server import PostgresServer

ROUNDS = 20
"""How often each race is run: who comes first is up to the machine."""
A: Key = ("a",)


async def both(one: Awaitable[object], other: Awaitable[object]) -> None:
    """Do two things at once."""
    await asyncio.gather(one, other)


# Deliveries ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("partition", [None, "p1"], ids=["any partition", "named partition"])
async def test_racing_pops_of_one_partition_give_one_lease(here: Driver, there: Driver, partition: str | None) -> None:
    for number in range(ROUNDS):
        await here.push("orders", "p1", number, -number)
        racers = islice(cycle([here, there]), 8)
        answers = await asyncio.gather(*(racer.pop("orders", partition, batch=2) for racer in racers))
        [got] = [answer for answer in answers if answer]
        assert payloads(got) == [number, -number]
        await there.ack_all(got)


@pytest.mark.parametrize("auto_ack", [False, True])
async def test_racing_pops_of_many_partitions_get_all_of_them_once(here: Driver, there: Driver, auto_ack: bool) -> None:
    """No pop answers "empty" while something is ready, and nothing is handed out twice."""
    partitions = [f"p{number}" for number in range(16)]
    for number in range(ROUNDS):
        await here.push_messages(*(message("orders", partition, number) for partition in partitions))
        racers = islice(cycle([here, there]), len(partitions))
        answers = await asyncio.gather(*(racer.pop("orders", auto_ack=auto_ack) for racer in racers))
        assert sorted(leased.message.partition for got in answers for leased in got) == sorted(partitions)
        if not auto_ack:
            await there.ack_all(leased for got in answers for leased in got)


async def test_a_lease_that_both_expire_costs_one_attempt(here: Driver, there: Driver, clock: FakeClock) -> None:
    await here.configure("orders", retry_limit=ROUNDS)
    await here.push("orders", "p1", 1)
    for attempt in range(1, ROUNDS):
        [leased] = await here.pop("orders")
        assert leased.message.attempt == attempt
        clock.advance(300)
        await asyncio.gather(here.engine.expire(), there.engine.expire(), here.ack(leased), there.ack(leased))


# Pushes ----------------------------------------------------------------------------------------------------


async def produce(driver: Driver, pushed: NewMessage, inside: str) -> tuple[str, str | None]:
    """Push one message, in a transaction or not; what became of it, and its id."""
    if inside == "push":
        [outcome] = await driver.push_messages(pushed)
    else:
        [outcome] = [one for one in (await driver.transact(pushed)).results if isinstance(one, PushOutcome)]
    return outcome.status, outcome.message_id


@pytest.mark.parametrize("new", ["queue", "partition", "nothing"])
@pytest.mark.parametrize("inside", ["push", "transaction"])
async def test_of_racing_producers_with_one_transaction_id_exactly_one_wins(
    here: Driver, there: Driver, new: str, inside: str
) -> None:
    await here.push("orders", "p1", "first")
    await there.push("orders", "p1", "second")
    for number in range(ROUNDS):
        queue = f"queue-{number}" if new == "queue" else "orders"
        partition = f"new-{number}" if new == "partition" else "p1"

        pushed = message(queue, partition, number, transaction_id=f"t{number}")
        answers = await asyncio.gather(*(produce(driver, pushed, inside) for driver in (here, there, here, there)))
        assert sorted(status for status, _ in answers) == ["duplicate", "duplicate", "duplicate", "queued"]
        assert len({message_id for _, message_id in answers}) == 1


async def test_racing_first_pushes_make_one_queue_and_one_partition(here: Driver, there: Driver) -> None:
    for number in range(ROUNDS):
        queue = f"queue-{number}"
        await both(here.push(queue, "p1", 1), there.push(queue, "p1", 2))
        assert len(await there.engine.partition_stats(queue)) == 1
        assert sorted(map(str, await here.drain(queue))) == ["1", "2"]


async def test_racing_pushes_over_many_partitions_in_any_order_all_succeed(here: Driver, there: Driver) -> None:
    forwards = [f"p{number}" for number in range(20)]
    for number in range(ROUNDS):
        await both(
            here.push_messages(*(message("orders", partition, number) for partition in forwards)),
            there.push_messages(*(message("orders", partition, number) for partition in reversed(forwards))),
        )
    stats = await here.engine.partition_stats("orders")
    assert [one.counts.total for one in stats] == [2 * ROUNDS] * 20


@pytest.mark.parametrize("auto_ack", [False, True])
async def test_concurrent_pushes_to_one_partition_are_dense_and_no_one_who_polls_skips_one(
    here: Driver, there: Driver, auto_ack: bool
) -> None:
    pushes, producers = 30, 4
    seen: list[LeasedMessage] = []

    async def produce(driver: Driver, name: int) -> None:
        for number in range(pushes):
            await driver.push("orders", "p1", [name, 2 * number], [name, 2 * number + 1])

    async def consume() -> None:
        for driver in cycle([here, there]):
            got = await driver.pop("orders", "p1", batch=7, auto_ack=auto_ack)
            seen.extend(got)
            if got and not auto_ack:
                await driver.ack_all(got)
            if len(seen) == 2 * pushes * producers:
                return

    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        tasks.create_task(consume())
        for name, driver in zip(range(producers), cycle([here, there])):
            tasks.create_task(produce(driver, name))
    assert [leased.message.offset for leased in seen] == list(range(1, 2 * pushes * producers + 1))
    for name in range(producers):
        own = [leased.payload for leased in seen if isinstance(leased.payload, list) and leased.payload[0] == name]
        assert own == [[name, number] for number in range(2 * pushes)]


async def test_racing_pushes_do_not_overfill_a_bounded_queue(here: Driver, there: Driver) -> None:
    await here.configure("orders", max_size=ROUNDS)
    for _ in range(2):
        answers = await asyncio.gather(
            *(driver.push("orders", "p1", number) for driver in (here, there) for number in range(ROUNDS))
        )
        assert Counter(one.code for outcomes in answers for one in outcomes) == {None: ROUNDS, "queue_full": ROUNDS}
        await there.drain("orders")


# Settlements -----------------------------------------------------------------------------------------------


async def test_of_racing_transactions_that_need_one_lease_exactly_one_wins(here: Driver, there: Driver) -> None:
    for number in range(ROUNDS):
        await here.push("orders", "p1", number)
        [leased] = await here.pop("orders")
        answers = await asyncio.gather(
            *(
                driver.transact(settlement(leased), message("bills", "p1", name), required_leases=[leased.lease])
                for name, driver in (("here", here), ("there", there))
            )
        )
        [winner] = [name for name, answer in zip(("here", "there"), answers, strict=True) if answer.success]
        assert await here.drain("bills") == [winner]
    assert await here.drain("orders") == []


@pytest.mark.parametrize("other", ["failed", "retry", "dlq"])
async def test_of_racing_settlements_that_contradict_each_other_exactly_one_wins(
    here: Driver, there: Driver, other: Status
) -> None:
    await here.push("orders", "p1", *range(ROUNDS))
    for number in range(ROUNDS):
        [leased] = await here.pop("orders")
        assert leased.payload == number
        outcomes = await asyncio.gather(here.settle(settlement(leased)), there.settle(settlement(leased, other)))
        completed, contradicted = (one.success for [one] in outcomes)
        assert completed != contradicted
        if contradicted and other != "dlq":
            [leased] = await there.pop("orders")
            assert leased.payload == number
            await there.ack(leased)
    assert await here.drain("orders") == []


async def test_of_racing_requeues_of_a_dead_letter_exactly_one_wins(here: Driver, there: Driver) -> None:
    for number in range(ROUNDS):
        await here.push("orders", "p1", number)
        [leased] = await here.pop("orders")
        await here.kill(leased)
        [letter] = await here.dead_letters()
        answers = await asyncio.gather(*(driver.engine.requeue([letter.id]) for driver in (here, there)))
        assert sum(isinstance(answer, HarkError) for [answer] in answers) == 1
        assert await there.drain("orders") == [number]


# Queues and groups -----------------------------------------------------------------------------------------


async def test_a_first_contact_on_both_at_once_makes_one_group_with_one_start(
    here: Driver, there: Driver, clock: FakeClock
) -> None:
    for number in range(ROUNDS):
        group = f"group-{number}"
        await here.push("orders", "p1", "old")
        clock.advance(1)
        answers = await asyncio.gather(
            *(driver.pop("orders", group=group, subscription=NEW) for driver in (here, there))
        )
        assert answers == [[], []]
        await there.push("orders", "p1", "new")
        answers = await asyncio.gather(*(driver.pop("orders", group=group) for driver in (here, there)))
        assert sorted(map(payloads, answers)) == [[], ["new"]]
        assert len(await here.engine.group_stats(group)) == 1


async def test_pushes_that_race_with_the_deletion_of_their_queue_are_stored_or_gone_as_a_whole(
    here: Driver, there: Driver
) -> None:
    for number in range(ROUNDS):
        await there.push("orders", "p1", "before")
        pushed = there.push_messages(message("orders", "p1", number), message("orders", "p2", number))
        _, outcomes, got = await asyncio.gather(here.engine.delete_queues(["orders"]), pushed, here.pop("orders"))
        assert [one.status for one in outcomes] == ["queued", "queued"]
        settled = [leased.payload for leased in got if (await there.ack(leased)).success]
        assert settled + await there.drain("orders") in ([], [number, number])
        await there.push("orders", "p1", "after")
        assert await here.drain("orders") == ["after"]


async def test_servers_that_start_at_once_on_an_empty_database_install_it_once(
    postgres_server: PostgresServer, clock: FakeClock
) -> None:
    with postgres_server.fresh_database(installed=False) as url:
        engines: list[Engine] = [PostgresEngine(url, clock=clock) for _ in range(3)]
        await asyncio.gather(*(engine.start(lambda _: None) for engine in engines))
        for number, engine in enumerate(engines):
            [answer] = await engine.push([[NewMessage("orders", "p1", b"%d" % number)]])
            assert [one.status for one in given(answer)] == ["queued"]
        for engine in engines:
            await engine.close()


# Keys ------------------------------------------------------------------------------------------------------


async def test_of_racing_servers_that_check_and_set_one_wins(here: Driver, there: Driver) -> None:
    for number in range(ROUNDS):
        key = ("lock", number)
        racers = list(islice(cycle([here, there]), 8))
        answers = await asyncio.gather(
            *(write(racer.engine, set_to(key, n), checks=(KeyCheck(key, None),)) for n, racer in enumerate(racers))
        )
        [winner] = [n for n, one in enumerate(answers) if one.success]
        assert await value(there.engine, key) == winner


async def test_no_count_is_lost_to_check_and_set_of_many_tasks(here: Driver, there: Driver) -> None:
    async def count(driver: Driver) -> None:
        for _ in range(10):
            done = False
            while not done:
                found = await entry(driver.engine, A)
                old = 0 if found is None else int(bytes(found.value))
                check = KeyCheck(A, None if found is None else found.version)
                done = (await write(driver.engine, set_to(A, old + 1), checks=(check,))).success

    async with asyncio.timeout(60):
        await asyncio.gather(*(count(driver) for driver in islice(cycle([here, there]), 6)))
    assert await value(here.engine, A) == 60


async def test_no_count_is_lost_to_sums_and_to_keys_that_come_and_go(here: Driver, there: Driver) -> None:
    async def work(driver: Driver) -> None:
        for number in range(ROUNDS):
            await write(driver.engine, change("sum", ("count",), 1), set_to(("tree", number), 1), delete(("other",)))
            await write(driver.engine, delete_tree(("tree",)), change("sum", ("count",), 1), set_to(("other",), 1))

    async with asyncio.timeout(60):
        await asyncio.gather(*(work(driver) for driver in (here, there, here, there)))
    assert await value(here.engine, ("count",)) == 8 * ROUNDS


async def test_writes_of_many_keys_in_any_order_all_succeed(here: Driver, there: Driver) -> None:
    keys: list[Key] = [("k", number) for number in range(30)]
    for number in range(ROUNDS):
        await asyncio.gather(
            write(here.engine, *(change("append", key, [number]) for key in keys)),
            write(there.engine, *(change("append", key, [number]) for key in reversed(keys))),
            write(there.engine, *(delete(("gone", key[1])) for key in keys)),
        )
    expected = [number for number in range(ROUNDS) for _ in range(2)]
    assert [await value(here.engine, key) for key in keys] == [expected] * len(keys)


async def test_dead_letters_of_both_servers_write_their_common_keys(here: Driver, there: Driver) -> None:
    common: tuple[Key, ...] = (("last", "b"), ("last", "a"))
    for number in range(ROUNDS):
        for partition in ("p1", "p2"):
            await here.push("orders", partition, number, undelivered_keys=(*common, ("failed", partition, number)))
        got = [await here.pop("orders"), await there.pop("orders")]
        await asyncio.gather(
            here.settle(*(settlement(leased, "dlq") for leased in got[0])),
            there.settle(*(settlement(leased, "dlq") for leased in got[1])),
            write(here.engine, *(set_to(key, "own") for key in common)),
        )
    assert len(await here.dead_letters("orders")) == 2 * ROUNDS
    assert await here.engine.count_keys(("failed",)) == 2 * ROUNDS


async def test_no_placeholder_of_a_lock_is_ever_seen_and_a_server_reports_of_its_own_writes_only(
    here: Driver, there: Driver
) -> None:
    assert not (await write(here.engine, set_to(A, 1), checks=(KeyCheck(("b",), 7), KeyCheck(A, None)))).success
    await write(here.engine, delete(A), checks=(KeyCheck(("c",), None),))
    assert await there.engine.count_keys(()) == 0
    assert (await there.engine.key_stats()).entries == 0
    here.key_notifications.clear()
    await put(here.engine, A)
    # What the others wrote their datagrams tell, or a look finds it.
    assert (changed_keys(here.key_notifications), there.key_notifications) == ({A}, [])
