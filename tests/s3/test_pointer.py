"""The pointer: changed by many, never turned back, no change lost."""

from __future__ import annotations

import asyncio
from itertools import count

import msgspec
import pytest

from hark.clock import FakeClock
from hark.engine.s3.bucket.api import Refused
from hark.engine.s3.log import places
from hark.engine.s3.log.pointer import UNWITNESSED, Kept, Pointer, advance, announce, promote, read_pointer
from hark.errors import EngineFailure, StoreUnusable
from tests.s3.rests import Rests
from tests.s3.stub.faults import Fault, Faults
from tests.s3.stub.inprocess import StubBucket
from tests.s3.stub.store import Request, StubStore

EPOCH = "epoch"


class Process:
    """One of those who change the pointer."""

    def __init__(self, store: StubStore, faults: Faults | None = None) -> None:
        self.clock = FakeClock()
        self.faults = faults or Faults()
        self.rests = Rests()
        self.bucket = StubBucket(store, self.clock, faults=self.faults)

    async def promote(self, seq: int, epoch: str = EPOCH) -> Pointer | None:
        """Say that a snapshot is the newest."""
        return await advance(self.bucket, promote(epoch, seq), self.clock.now, patience=self.rests.patience(1e6))

    async def witness(self) -> Pointer | None:
        """Change nothing, but say when it was so."""
        return await advance(self.bucket, lambda pointer: pointer, self.clock.now, patience=self.rests.patience())

    async def announce(self, seq: int) -> Pointer | None:
        """Say that a snapshot is being written."""
        return await advance(self.bucket, announce(EPOCH, seq), self.clock.now, patience=self.rests.patience(1e6))

    async def read(self) -> Pointer:
        """The pointer as it stands."""
        read = await read_pointer(self.bucket)
        assert read is not None
        return read[0]


@pytest.fixture
def store() -> StubStore:
    """The objects."""
    return StubStore(FakeClock())


@pytest.fixture
def process(store: StubStore) -> Process:
    """The one that a test is about."""
    return Process(store)


async def test_there_is_none_at_first(process: Process) -> None:
    assert await read_pointer(process.bucket) is None


async def test_the_first_change_creates_it_and_the_next_one_replaces_it(process: Process, store: StubStore) -> None:
    await process.promote(10)
    first = await process.read()
    assert (first.epoch, first.seq, [kept.seq for kept in first.snapshots]) == (EPOCH, 10, [10])
    assert await process.promote(20) == await process.read()
    assert [kept.seq for kept in (await process.read()).snapshots] == [10, 20]
    assert store.keys() == [places.POINTER]


async def test_an_older_snapshot_never_becomes_the_newest_again(process: Process) -> None:
    await process.promote(20)
    await process.witness()
    before = await process.read()
    assert await process.promote(10) == before == await process.read()


@pytest.mark.parametrize("field", ["seq", "collected", "removed"])
async def test_a_change_that_would_turn_it_back_is_not_made(process: Process, field: str) -> None:
    pointer = Pointer(EPOCH, seq=20, collected=15, removed=12)
    await advance(process.bucket, lambda _: pointer, process.clock.now)
    before = await process.read()
    back = msgspec.structs.replace(pointer, **{field: 5})
    assert await advance(process.bucket, lambda _: back, process.clock.now) == before
    assert await process.read() == before


async def test_equal_changes_have_bodies_that_differ(process: Process, store: StubStore) -> None:
    await process.promote(10)
    first = store.read(places.POINTER)
    process.bucket.store.execute(Request(kind="delete", key=places.POINTER))
    await process.promote(10)
    assert store.read(places.POINTER) != first


async def test_no_change_is_lost_among_many(store: StubStore) -> None:
    await asyncio.gather(*(Process(store).announce(seq) for seq in range(1, 11)))
    assert (await Process(store).read()).announced == tuple(range(1, 11))


@pytest.mark.parametrize("seed", range(10))
async def test_no_change_is_lost_on_a_bad_line(store: StubStore, seed: int) -> None:
    faults = [Faults.by_chance(seed * 10 + number, 0.4) for number in range(4)]
    await asyncio.gather(*(Process(store, faults[seq % 4]).announce(seq) for seq in range(1, 9)))
    assert (await Process(store).read()).announced == tuple(range(1, 9))


@pytest.mark.parametrize("there_is_one", [False, True], ids=["create", "replace"])
@pytest.mark.parametrize("fault", [Fault.RESET, Fault.LOST_ERROR, Fault.TWICE, Fault.DROP, Fault.LATE, Fault.CONFLICT])
async def test_an_answer_that_is_not_clear_ends_with_the_change_made_once(
    process: Process, fault: Fault, there_is_one: bool
) -> None:
    if there_is_one:
        await process.promote(5)
    process.faults.next(fault, kind="put")
    changed = await process.promote(10)
    assert changed == await process.read()
    assert [kept.seq for kept in changed.snapshots] == ([5, 10] if there_is_one else [10])


async def test_a_lost_answer_needs_no_second_change(process: Process, store: StubStore) -> None:
    process.faults.next(Fault.RESET, kind="put")
    await process.promote(10)
    assert store.counts["put"] == 1


async def test_a_store_that_refuses_or_never_answers_is_an_engine_failure(process: Process) -> None:
    def refuse(_: Request) -> None:
        raise Refused("403 AccessDenied")

    process.faults.next(Fault.ERROR, kind="put", times=float("inf"))
    with pytest.raises(EngineFailure, match="did not let snap/latest be changed"):
        await advance(process.bucket, promote(EPOCH, 1), process.clock.now, patience=process.rests.patience(5))
    process.faults.heal()
    process.faults.hook("before", refuse, kind="put")
    with pytest.raises(EngineFailure, match="refuses to change snap/latest: 403 AccessDenied"):
        await process.promote(1)


async def test_a_store_that_was_made_anew_is_not_touched(process: Process) -> None:
    await process.promote(10)
    with pytest.raises(StoreUnusable, match="made anew"):
        await process.promote(20, epoch="another")
    assert (await process.read()).seq == 10


async def test_a_damaged_pointer_is_refused_with_what_to_do(process: Process, store: StubStore) -> None:
    store.execute(Request(kind="put", key=places.POINTER, body=b"[]"))
    with pytest.raises(StoreUnusable, match="snap/latest of s3://stub is damaged"):
        await read_pointer(process.bucket)


async def test_what_is_announced_is_so_until_it_is_promoted(process: Process) -> None:
    await process.announce(10)
    assert ((await process.read()).seq, (await process.read()).announced) == (0, (10,))
    await process.promote(10)
    assert ((await process.read()).seq, (await process.read()).announced) == (10, ())


async def test_what_is_older_than_the_newest_or_announced_already_is_not_announced(
    process: Process, store: StubStore
) -> None:
    await process.promote(10)
    await process.announce(20)
    puts = store.counts["put"]
    await process.announce(20)
    await process.announce(9)
    assert (await process.read()).announced == (20,)
    assert store.counts["put"] == puts


# Since when a snapshot is the newest ------------------------------------------------------------------------


async def test_the_moment_is_noted_by_the_next_change_and_stays(process: Process, store: StubStore) -> None:
    await process.promote(10)
    assert (await process.read()).snapshots == (Kept(10, UNWITNESSED),)
    seen = process.clock.advance(60)
    await process.witness()
    process.clock.advance(60)
    puts = store.counts["put"]
    await process.witness()
    assert (await process.read()).snapshots == (Kept(10, seen),)
    assert store.counts["put"] == puts


async def test_a_writer_that_slept_before_its_request_landed_does_not_backdate_its_snapshot(
    store: StubStore, process: Process
) -> None:
    sleeper = Process(store)
    stop = sleeper.faults.stop("before", kind="put")
    promoting = asyncio.create_task(sleeper.promote(10))
    await stop.reached()
    process.clock.advance(7200)
    stop.go()
    await promoting
    await process.witness()
    assert (await process.read()).snapshots == (Kept(10, process.clock.now()),)


async def test_the_clock_is_read_after_the_pointer(process: Process) -> None:
    await process.promote(10)
    ticks = count(1)
    order: list[str] = []
    process.faults.hook("after", lambda _: order.append("read"), kind="get", times=1)

    def now() -> int:
        order.append("clock")
        return next(ticks)

    await advance(process.bucket, lambda pointer: pointer, now)
    assert order == ["read", "clock"]
