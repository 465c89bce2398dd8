"""Faults in the middle of things: nothing is lost, nothing comes back that was removed, nobody hangs."""

from __future__ import annotations

import asyncio
from pathlib import Path
from unittest.mock import Mock

import apsw
import pytest

from hark.clock import FakeClock
from hark.engine.sqlite import SqliteEngine
from hark.errors import EngineFailure, HarkError
from hark.model import (
    QUEUE_MODE,
    DeadLetterFilter,
    NewMessage,
    PopRequest,
    PopResult,
    QueueOptions,
    QueueSpec,
    Settlement,
)

from .test_waiting_for_the_disk import SlowDisk


async def push(engine: SqliteEngine, *numbers: int, partition: str = "p") -> None:
    """Numbers for one partition."""
    await engine.push([[NewMessage("orders", partition, b"%d" % number) for number in numbers]])


async def pop(engine: SqliteEngine, batch: int = 100, *, partitions: int = 100, auto_ack: bool = False) -> PopResult:
    """A pop over all partitions."""
    request = PopRequest(queue="orders", batch=batch, partitions=partitions, auto_ack=auto_ack)
    answer = (await engine.pop([request]))[0]
    assert isinstance(answer, PopResult)
    return answer


def numbers_of(result: PopResult) -> list[int]:
    """The payloads."""
    return [int(bytes(message.payload)) for message in result.messages]


async def settle(engine: SqliteEngine, result: PopResult) -> bool:
    """Complete everything; whether all of it counted."""
    items = [Settlement(m.transaction_id, m.partition_id, lease_id=result.lease_id) for m in result.messages]
    answer = (await engine.settle([items]))[0]
    assert isinstance(answer, list)
    return all(item.success for item in answer)


def fail_once(monkeypatch: pytest.MonkeyPatch, target: object, name: str, error: Exception) -> None:
    """Let a method raise once before it works again."""
    real = getattr(target, name)

    def failing(*_: object) -> object:
        monkeypatch.setattr(target, name, real)
        raise error

    monkeypatch.setattr(target, name, failing)


async def test_a_pop_over_thousands_of_partitions_gets_them_all(engine: SqliteEngine) -> None:
    await engine.push([[NewMessage("orders", f"p{number}", b"%d" % number) for number in range(2500)]])
    assert len((await pop(engine, 5000, partitions=5000)).messages) == 2500


async def test_a_read_that_fails_takes_nothing_out_of_reach(
    engine: SqliteEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(4):
        await push(engine, number, partition=f"p{number}")
    await engine.release([(await pop(engine, 1)).lease_id])
    monkeypatch.setattr("hark.engine.core.claim.decode_messages", Mock(side_effect=apsw.IOError("on purpose")))
    with pytest.raises(EngineFailure):
        await pop(engine)
    monkeypatch.undo()
    assert sorted(numbers_of(await pop(engine))) == [0, 1, 2, 3]


async def test_a_read_that_is_too_large_for_one_text_is_served_one_by_one(engine: SqliteEngine) -> None:
    await pop(engine)
    await engine._look(lambda _state, _now: engine._store.reader.limit(apsw.SQLITE_LIMIT_LENGTH, 1_000_000))
    for number in range(20):
        await engine.push([[NewMessage("orders", f"p{number}", b'"%s"' % (b"x" * 90_000))]])
    answers = await engine.pop([PopRequest(queue="orders")] * 20)
    assert all(isinstance(answer, PopResult) and len(answer.messages) == 1 for answer in answers)


async def test_ended_leases_leave_nothing_behind(engine: SqliteEngine) -> None:
    await engine.push([[NewMessage("orders", "p", b"1") for _ in range(1000)]])
    for _ in range(500):
        await pop(engine, 1, auto_ack=True)
        assert await settle(engine, await pop(engine, 1))
    assert engine._threads is not None
    state = engine._threads.state
    assert not state.leases
    assert len(state.lease_heap) < 200
    assert len(state.groups["orders", QUEUE_MODE].leases) < 200


async def test_an_auto_ack_whose_commit_fails_is_not_answered_from_what_was_rolled_back(
    engine: SqliteEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    await push(engine, 7)
    await engine.release([(await pop(engine)).lease_id])
    disk = SlowDisk(engine, monkeypatch)
    first = asyncio.ensure_future(push(engine, 8))
    await disk.wait_until_busy()
    both = asyncio.gather(push(engine, 9), pop(engine, 1, auto_ack=True))
    await engine.queue_infos()
    monkeypatch.undo()
    fail_once(monkeypatch, engine._store, "commit", apsw.IOError("on purpose"))
    disk.go_on.set()
    await first
    _, got = await both
    assert numbers_of(got) == [7]
    assert numbers_of(await pop(engine, 1)) == [8]


async def test_a_writer_that_can_not_even_recover_answers_and_goes_on_when_the_disk_does(
    engine: SqliteEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    await push(engine, 1)
    assert engine._threads is not None
    fail_once(monkeypatch, engine._store, "commit", apsw.IOError("on purpose"))
    fail_once(monkeypatch, engine._threads, "_reset", apsw.IOError("on purpose"))
    with pytest.raises(EngineFailure):
        await push(engine, 2)
    with pytest.raises(EngineFailure):
        await engine.ping()
    await push(engine, 3)
    await engine.ping()
    assert numbers_of(await pop(engine)) == [1, 3]


async def test_a_pop_during_the_removal_of_its_queue_does_not_bring_its_group_back(
    engine: SqliteEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    await push(engine, 1)
    assert await settle(engine, await pop(engine))
    disk = SlowDisk(engine, monkeypatch)
    deletion = asyncio.ensure_future(engine.delete_queues(["orders"]))
    await disk.wait_until_busy()
    during = asyncio.ensure_future(pop(engine))
    await engine.queue_infos()
    disk.go_on.set()
    assert await deletion == [True]
    assert numbers_of(await during) == []
    await push(engine, 2)
    assert await settle(engine, await pop(engine))
    assert [group.lag for group in await engine.group_stats()] == [0]


async def test_removing_a_group_is_not_undone_by_what_shares_its_transaction(
    engine: SqliteEngine, clock: FakeClock
) -> None:
    await push(engine, 1, 2, 3)
    assert await settle(engine, await pop(engine, 2))
    await pop(engine)
    clock.advance(301)  # The lease ends in the transaction that removes the group.
    await engine.delete_group(QUEUE_MODE, None, False)
    assert numbers_of(await pop(engine)) == [1, 2, 3]


async def test_no_one_dies_in_a_queue_that_is_removed(engine: SqliteEngine, clock: FakeClock) -> None:
    await engine.configure([QueueSpec(name="orders", options=QueueOptions(retry_limit=0))])
    await push(engine, 1)
    await pop(engine)
    clock.advance(301)
    await engine.delete_queues(["orders"])
    assert (await engine.dead_letters(DeadLetterFilter())).total == 0


async def test_a_sweep_that_is_wanted_during_a_sweep_is_not_forgotten(engine: SqliteEngine) -> None:
    await push(engine, *range(20))
    await engine.purge("orders")
    await engine.collect(10)
    await engine.push([[NewMessage("bills", "p", b"1") for _ in range(5)]])
    await engine.delete_queues(["bills"])
    for _ in range(3):
        while (await engine.collect(10)).more:
            pass
    assert await engine._read(lambda connection, _: connection.execute("select count(*) from messages").get) == 0


async def test_calls_that_are_under_way_when_the_engine_closes_are_answered(tmp_path: Path) -> None:
    engine = SqliteEngine(str(tmp_path / "other.db"), clock=FakeClock())
    await engine.start(lambda _: None)
    calls = [asyncio.ensure_future(engine.pop([PopRequest(queue=f"queue{number}")])) for number in range(10)]
    pushes = asyncio.ensure_future(engine.push([[NewMessage("orders", "p", b"1")]]))
    await asyncio.sleep(0)
    await engine.close()
    for answer in await asyncio.gather(*calls, pushes, return_exceptions=True):
        assert isinstance(answer, (list, HarkError))
