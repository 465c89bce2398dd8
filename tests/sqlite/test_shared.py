"""What is SQLite's own in shared groups: memory ahead of the disk, crashes, clocks, and commits that are under way."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import msgspec
import pytest

from hark.clock import SECOND, FakeClock
from hark.engine.sqlite import SqliteEngine
from hark.errors import HarkError
from hark.model import (
    Hint,
    Limits,
    NewMessage,
    PopRequest,
    PopResult,
    QueueOptions,
    QueueSpec,
    Settlement,
    SettleOutcome,
)

from .test_waiting_for_the_disk import SlowDisk

LATER = 3600 * 1000


def params(batch: int = 1, *, auto_ack: bool = False) -> PopRequest:
    return PopRequest(queue="jobs", group="workers", group_mode="shared", batch=batch, auto_ack=auto_ack)


async def push(engine: SqliteEngine, *payloads: int, delay_ms: int = 0, priority: int = 0) -> None:
    await engine.push(
        [[NewMessage("jobs", payload=b"%d" % one, delay_ms=delay_ms, priority=priority) for one in payloads]]
    )


async def take(engine: SqliteEngine, batch: int = 1) -> PopResult:
    (answer,) = await engine.pop([params(batch)])
    return given(answer)


def given(answer: PopResult | HarkError) -> PopResult:
    assert isinstance(answer, PopResult)
    return answer


def numbers(got: PopResult) -> list[int]:
    return [int(bytes(message.payload)) for message in got.messages]


async def settle(engine: SqliteEngine, got: PopResult, *which: int, status: str = "completed") -> None:
    items = [
        Settlement(
            one.id, one.partition_id, "failed" if status == "failed" else "completed", got.lease_id, group="workers"
        )
        for one in got.messages
        if int(bytes(one.payload)) in which
    ]
    (outcomes,) = await engine.settle([items])
    assert isinstance(outcomes, list)
    assert [one.success for one in outcomes] == [True] * len(which)


async def rows(engine: SqliteEngine, table: str) -> int:
    number = await engine._read_committed(lambda c: c.execute(f"select count(*) from {table}").get)
    assert isinstance(number, int)
    return number


def copy_store(database: Path, folder: Path) -> None:
    folder.mkdir()
    for source in database.parent.glob(f"{database.name}*"):
        if not source.name.endswith(".lock"):
            shutil.copy(source, folder / source.name)


async def crashed(engine: SqliteEngine, folder: Path, clock: FakeClock) -> SqliteEngine:
    """Another server on what the disk has at this moment."""
    copy_store(Path(engine._store.path), folder)
    other = SqliteEngine(str(folder / "hark.db"), clock=clock)
    await other.start(lambda _: None)
    return other


# Crashes ---------------------------------------------------------------------------------------------------


async def test_after_a_crash_what_was_in_flight_comes_back_uncounted_and_nothing_that_was_settled(
    engine: SqliteEngine, tmp_path: Path, clock: FakeClock
) -> None:
    await push(engine, *range(1, 11))
    first, second = await take(engine, 3), await take(engine, 3)
    await settle(engine, second, 4, 6)
    third = await take(engine, 2)
    await settle(engine, first, 1)
    other = await crashed(engine, tmp_path / "other", clock)
    got = await take(other, 100)
    assert numbers(got) == [2, 3, 5, 7, 8, 9, 10]
    assert {message.attempt for message in got.messages} == {1}
    assert numbers(third) == [7, 8]
    await other.close()


async def test_after_a_crash_delayed_and_failed_messages_are_where_they_were(
    engine: SqliteEngine, tmp_path: Path, clock: FakeClock
) -> None:
    await engine.configure([QueueSpec(name="jobs", options=QueueOptions(retry_delay=5000))])
    await push(engine, 1, 2, delay_ms=1000, priority=5)
    await push(engine, 3, 4, delay_ms=2000)
    clock.advance(1)
    got = await take(engine, 2)
    assert numbers(got) == [1, 2]
    await settle(engine, got, 1, status="failed")
    other = await crashed(engine, tmp_path / "other", clock)
    assert numbers(await take(other, 10)) == [2]
    clock.advance(1)
    assert numbers(await take(other, 10)) == [3, 4]
    clock.advance(4)
    again = await take(other, 10)
    assert [(int(bytes(one.payload)), one.attempt) for one in again.messages] == [(1, 2)]
    await other.close()


async def test_each_commit_is_a_state_that_a_crash_may_leave(
    engine: SqliteEngine, tmp_path: Path, clock: FakeClock
) -> None:
    await push(engine, *range(30), priority=3)
    await push(engine, *range(30, 60))
    done: set[int] = set()
    hands: list[PopResult] = []
    for step in range(12):
        hands.append(await take(engine, 4))
        got = hands[step // 2]
        mine = [one for one in numbers(got) if one not in done][:2]
        await settle(engine, got, *mine)
        done.update(mine)
        other = await crashed(engine, tmp_path / str(step), clock)
        left = numbers(await take(other, 100))
        assert sorted([*left, *done]) == list(range(60))
        await other.close()


async def test_what_is_handed_out_and_settled_between_two_commits_costs_no_row(engine: SqliteEngine) -> None:
    await push(engine, *range(100))
    for _ in range(10):
        got = await take(engine, 10)
        await settle(engine, got, *numbers(got))
        assert await rows(engine, "outstanding") == 0
    assert await rows(engine, "lanes") == 1


async def test_a_failed_commit_frees_what_was_in_flight(engine: SqliteEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    await push(engine, 1, 2, 3)
    got = await take(engine, 2)

    def fail() -> None:
        raise RuntimeError("no")

    with monkeypatch.context() as broken:
        broken.setattr(engine._store, "commit", fail)
        items = [Settlement(got.messages[0].id, lease_id=got.lease_id, group="workers")]
        with pytest.raises(HarkError):
            await engine.settle([items])
    assert numbers(await take(engine, 10)) == [1, 2, 3]


# Clocks ----------------------------------------------------------------------------------------------------


async def test_a_delayed_message_is_not_lost_when_the_clock_steps_back(engine: SqliteEngine, clock: FakeClock) -> None:
    await push(engine, 1, delay_ms=60_000)
    clock.advance(100)
    got = await take(engine)
    assert numbers(got) == [1]
    await settle(engine, got, 1)
    clock.advance(-90)
    await push(engine, 2, delay_ms=1000)
    clock.advance(200)
    assert numbers(await take(engine)) == [2]


async def test_a_delayed_message_is_not_lost_when_the_clock_steps_back_over_a_restart(
    engine: SqliteEngine, tmp_path: Path, clock: FakeClock
) -> None:
    await push(engine, 1, delay_ms=60_000)
    clock.advance(100)
    got = await take(engine)
    await settle(engine, got, 1)
    early = FakeClock(clock.now() - 90 * SECOND)
    other = await crashed(engine, tmp_path / "other", early)
    await push(other, 2, delay_ms=1000)
    early.advance(200)
    assert numbers(await take(other)) == [2]
    await other.close()


# Commits that are under way --------------------------------------------------------------------------------


async def test_a_pop_does_not_pass_what_a_push_under_way_will_bring_before(
    engine: SqliteEngine, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    await push(engine, 2, delay_ms=2000)
    await take(engine)
    disk = SlowDisk(engine, monkeypatch)
    pushing = asyncio.ensure_future(push(engine, 1, delay_ms=1000))
    await disk.wait_until_busy()
    clock.advance(3)
    popping = asyncio.ensure_future(take(engine, 10))
    await engine.renew([])
    assert not popping.done()
    disk.go_on.set()
    await pushing
    assert numbers(await popping) == [1, 2]


async def test_a_pop_takes_what_is_due_before_all_that_a_push_under_way_will_bring(
    engine: SqliteEngine, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    await push(engine, 1, delay_ms=1000)
    await take(engine)
    disk = SlowDisk(engine, monkeypatch)
    pushing = asyncio.ensure_future(push(engine, 2, delay_ms=2000))
    await disk.wait_until_busy()
    clock.advance(3)
    assert numbers(await take(engine, 10)) == [1]
    disk.go_on.set()
    await pushing
    assert numbers(await take(engine, 10)) == [2]


async def test_pops_go_on_while_settlements_are_being_committed(
    engine: SqliteEngine, tmp_path: Path, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    await push(engine, *range(1, 7))
    leased = await take(engine, 2)
    disk = SlowDisk(engine, monkeypatch)
    settling = asyncio.ensure_future(settle(engine, leased, 1))
    await disk.wait_until_busy()
    during = await take(engine, 2)
    assert numbers(during) == [3, 4]
    disk.go_on.set()
    await settling
    other = await crashed(engine, tmp_path / "other", clock)
    assert numbers(await take(other, 10)) == [2, 3, 4, 5, 6]
    await other.close()
    await settle(engine, during, 3, 4)
    assert numbers(await take(engine, 10)) == [5, 6]


async def test_auto_ack_settles_with_the_commit(engine: SqliteEngine, tmp_path: Path, clock: FakeClock) -> None:
    await push(engine, 1, 2, 3)
    (answer,) = await engine.pop([params(2, auto_ack=True)])
    assert numbers(given(answer)) == [1, 2]
    other = await crashed(engine, tmp_path / "other", clock)
    assert numbers(await take(other, 10)) == [3]
    await other.close()


# Queues that keep nothing ----------------------------------------------------------------------------------


async def test_what_is_removed_in_any_order_leaves_few_rows_behind(engine: SqliteEngine) -> None:
    await engine.configure([QueueSpec(name="jobs", options=QueueOptions(drop_settled=True))])
    await push(engine, 0, delay_ms=LATER)
    for start in range(1, 200, 20):
        await push(engine, *range(start, start + 20))
    one, two = await take(engine, 100), await take(engine, 100)
    for got in (two, one):
        for which in (numbers(got)[::2], numbers(got)[1::2]):
            await settle(engine, got, *which)
    assert await rows(engine, "messages") == 1
    assert await rows(engine, "gaps") == 1
    assert await rows(engine, "outstanding") == 0


async def test_settled_once_more_after_the_removal_is_a_success(engine: SqliteEngine) -> None:
    await engine.configure([QueueSpec(name="jobs", options=QueueOptions(drop_settled=True))])
    await push(engine, 1, 2)
    got = await take(engine, 2)
    await settle(engine, got, 1)
    (outcomes,) = await engine.settle([[Settlement(got.messages[0].id, lease_id=got.lease_id, group="workers")]])
    assert isinstance(outcomes, list)
    assert outcomes == [SettleOutcome(got.messages[0].id, True, queue="jobs", partition="Default")]


async def test_a_group_at_its_own_limit_is_not_notified_of_room_in_its_queue(
    engine: SqliteEngine, hints: list[Hint]
) -> None:
    async def pop(group: str, batch: int) -> PopResult:
        (answer,) = await engine.pop([msgspec.structs.replace(params(batch), group=group)])
        return given(answer)

    async def notified(got: PopResult) -> set[str | None]:
        hints.clear()
        await engine.release([got.lease_id])
        return {hint.group for hint in hints if hint.partitions}

    await engine.configure([QueueSpec(name="jobs", options=QueueOptions(max_in_flight=3))])
    await pop("b", 1)
    await engine.limit_group("jobs", "b", Limits(max_in_flight=1))
    await push(engine, *range(9))
    (of_a, more_of_a), of_b = [await pop("a", 1), await pop("a", 1)], await pop("b", 2)
    assert (await pop("a", 1)).messages == (await pop("b", 1)).messages == ()
    assert await notified(of_a) == {"a"}
    assert await notified(more_of_a) == {"a"}
    assert await notified(of_b) == {"a", "b"}
