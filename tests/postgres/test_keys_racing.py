"""Two servers that write keys of one database in the same instant: nothing is lost, and both are told of their own."""

from __future__ import annotations

import asyncio
from itertools import cycle, islice

from hark.model import Key, KeyCheck
from tests.engine.driver import Driver, settlement
from tests.engine.key_words import change, delete, delete_tree, entry, put, set_to, told, value, write

ROUNDS = 20
A: Key = ("a",)


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
            here.settle(*(settlement(held, "dlq") for held in got[0])),
            there.settle(*(settlement(held, "dlq") for held in got[1])),
            write(here.engine, *(set_to(key, "own") for key in common)),
        )
    assert len(await here.dead_letters("orders")) == 2 * ROUNDS
    assert await here.engine.count_keys(("failed",)) == 2 * ROUNDS


async def test_a_server_tells_of_its_own_writes_only(here: Driver, there: Driver) -> None:
    """What the others wrote their datagrams tell, or nobody does until somebody looks."""
    await put(here.engine, A)
    assert (told(here.key_news), there.key_news) == ({A}, [])


async def test_no_placeholder_of_a_lock_is_ever_seen(here: Driver, there: Driver) -> None:
    assert not (await write(here.engine, set_to(A, 1), checks=(KeyCheck(("b",), 7), KeyCheck(A, None)))).success
    await write(here.engine, delete(A), checks=(KeyCheck(("c",), None),))
    assert await there.engine.count_keys(()) == 0
    assert (await there.engine.key_stats()).entries == 0
