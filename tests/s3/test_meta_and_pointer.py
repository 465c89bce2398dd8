"""What a store is, written once, and the pointer: changed by many, never turned back, no change lost."""

from __future__ import annotations

import asyncio
from itertools import count

import msgspec
import pytest

from hark.clock import FakeClock
from hark.engine.s3 import objects
from hark.engine.s3.objects import (
    FORMAT,
    UNWITNESSED,
    Change,
    Kept,
    Meta,
    Pointer,
    advance,
    announced,
    promoted,
    read_or_create,
    read_pointer,
)
from hark.errors import EngineFailure, StoreUnusable
from tests.s3.rests import Party, Rests, refuse
from tests.s3.stub.faults import Fault, Faults
from tests.s3.stub.inprocess import StubBucket
from tests.s3.stub.store import Request, StubStore

NOW = 1_700_000_000_000_000
DAMAGED = r"meta\.json of s3://stub is damaged or not from Hark"


@pytest.fixture
def store() -> StubStore:
    """The objects."""
    return StubStore(FakeClock())


def bucket_on(store: StubStore, faults: Faults | None = None) -> StubBucket:
    """The bucket of one process."""
    return StubBucket(store, FakeClock(), faults=faults)


def write(store: StubStore, key: str, body: bytes) -> None:
    """Store something as a person would."""
    store.execute(Request(kind="put", key=key, body=body))


async def test_who_comes_first_makes_it_and_who_comes_later_reads_it_with_one_request(store: StubStore) -> None:
    first = await read_or_create(bucket_on(store), NOW)
    store.forget_requests()
    assert await read_or_create(bucket_on(store), NOW + 1) == first
    assert sum(store.counts.values()) == 1
    assert (first.format, first.created_at) == (FORMAT, NOW)
    assert (len(first.epoch), len(first.secret)) == (32, 64)
    other = await read_or_create(bucket_on(StubStore(FakeClock())), NOW)
    assert first.epoch != other.epoch
    assert first.secret != other.secret
    last = await read_or_create(bucket_on(StubStore(FakeClock())), NOW, token=lambda size: b"\xff" * size)
    assert last.tag == 2**30 - 1


@pytest.mark.parametrize("rate", [0.0, 0.4])
@pytest.mark.parametrize("seed", range(5))
async def test_all_who_come_at_once_agree(store: StubStore, rate: float, seed: int) -> None:
    metas: list[Meta] = await asyncio.gather(
        *(
            read_or_create(
                bucket_on(store, Faults.by_chance(seed * 10 + number, rate)), NOW, retries=Rests().retries(1e6)
            )
            for number in range(8)
        )
    )
    assert len({meta.epoch for meta in metas}) == 1


@pytest.mark.parametrize("fault", [Fault.LATE, Fault.RESET, Fault.DROP, Fault.TWICE, Fault.CONFLICT])
async def test_a_create_without_a_clear_answer_ends_with_what_is_stored(store: StubStore, fault: Fault) -> None:
    faults = Faults()
    faults.next(fault, kind="put")
    meta = await read_or_create(bucket_on(store, faults), NOW, retries=Rests().retries())
    assert store.read(objects.META) == msgspec.json.encode(meta)


async def test_a_store_that_never_answers_is_an_engine_failure(store: StubStore) -> None:
    faults, rests = Faults(), Rests()
    faults.next(Fault.DROP, times=float("inf"))
    with pytest.raises(EngineFailure, match="s3://stub does not respond"):
        await read_or_create(bucket_on(store, faults), NOW, retries=rests.retries())
    assert rests.now == pytest.approx(30.0)


async def test_a_store_that_refuses_is_unusable_in_its_own_words(store: StubStore) -> None:
    faults = Faults()
    faults.hook("before", refuse)
    with pytest.raises(StoreUnusable, match="cannot use s3://stub: 403 AccessDenied"):
        await read_or_create(bucket_on(store, faults), NOW)


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b'{"format": 2, "something": "new"}', "s3://stub has format 2, but this Hark supports 1; upgrade Hark"),
        *((body, DAMAGED) for body in (b"", b"[]", b'{"format": 1}', b'{"name": "x"}')),
    ],
    ids=["newer", "empty", "list", "short", "other"],
)
async def test_a_meta_of_another_program_is_refused_and_left_alone(store: StubStore, body: bytes, text: str) -> None:
    write(store, objects.META, body)
    with pytest.raises(StoreUnusable, match=text):
        await read_or_create(bucket_on(store), NOW)
    assert store.read(objects.META) == body


@pytest.mark.parametrize("key", [objects.POINTER, objects.record(1)], ids=["pointer", "log"])
async def test_a_log_without_its_meta_is_not_made_anew(store: StubStore, key: str) -> None:
    write(store, key, b"something")
    with pytest.raises(StoreUnusable, match=r"but no meta\.json"):
        await read_or_create(bucket_on(store), NOW)
    assert store.keys() == [key]


async def test_a_store_that_was_made_and_filled_while_we_looked_is_used(store: StubStore) -> None:
    faults = Faults()
    theirs: list[Meta] = []

    async def be_first(_: Request) -> None:
        theirs.append(await read_or_create(bucket_on(store), NOW))
        write(store, objects.record(1), b"a record")

    faults.hook("after", be_first, kind="get", key=objects.META, times=1)
    mine = await read_or_create(bucket_on(store, faults), NOW, retries=Rests().retries())
    assert [mine] == theirs


# The pointer -----------------------------------------------------------------------------------------------


EPOCH = "epoch"


class Process(Party):
    """One of those who change the pointer."""

    async def change(self, change: Change, retries: float = 1e6, epoch: str = EPOCH) -> Pointer:
        """Change the pointer."""
        return await advance(self.bucket, epoch, change, self.clock.now, self.rests.retries(retries))

    async def promote(self, seq: int, epoch: str = EPOCH) -> Pointer:
        """Say that a snapshot is the newest."""
        return await self.change(lambda pointer: promoted(pointer, seq), epoch=epoch)

    async def witness(self) -> Pointer:
        """Change nothing, but say when it was so."""
        return await self.change(lambda pointer: pointer)

    async def announce(self, seq: int) -> Pointer:
        """Say that a snapshot is being written."""
        return await self.change(lambda pointer: announced(pointer, seq))

    async def read(self) -> Pointer:
        """The pointer as it stands."""
        read = await read_pointer(self.bucket)
        assert read is not None
        return read[0]


@pytest.fixture
def process(store: StubStore) -> Process:
    """The one that a test is about."""
    return Process(store)


async def test_the_first_change_creates_it_and_the_next_one_replaces_it(process: Process, store: StubStore) -> None:
    assert await read_pointer(process.bucket) is None
    await process.promote(10)
    first = await process.read()
    assert (first.epoch, first.seq, [kept.seq for kept in first.snapshots]) == (EPOCH, 10, [10])
    assert await process.promote(20) == await process.read()
    assert [kept.seq for kept in (await process.read()).snapshots] == [10, 20]
    assert store.keys() == [objects.POINTER]


@pytest.mark.parametrize("field", ["seq", "collected", "removed"])
async def test_a_change_that_would_turn_it_back_is_not_made(process: Process, field: str) -> None:
    pointer = Pointer(EPOCH, seq=20, collected=15, removed=12)
    await process.change(lambda _: pointer)
    before = await process.read()
    back = msgspec.structs.replace(pointer, **{field: 5})
    assert await process.change(lambda _: back) == before == await process.read()
    # Nor does an older snapshot ever become the newest again.
    await process.promote(20)
    await process.witness()
    before = await process.read()
    assert await process.promote(10) == before == await process.read()


async def test_equal_changes_have_bodies_that_differ(process: Process, store: StubStore) -> None:
    await process.promote(10)
    first = store.read(objects.POINTER)
    store.execute(Request(kind="delete", key=objects.POINTER))
    await process.promote(10)
    assert store.read(objects.POINTER) != first


@pytest.mark.parametrize("seed", range(10))
async def test_no_change_is_lost_among_many_nor_on_a_bad_line(store: StubStore, seed: int) -> None:
    faults = [Faults.by_chance(seed * 10 + number, 0.4 if seed else 0.0) for number in range(4)]
    await asyncio.gather(*(Process(store, faults[seq % 4]).announce(seq) for seq in range(1, 11)))
    assert (await Process(store).read()).announced == tuple(range(1, 11))


@pytest.mark.parametrize("there_is_one", [False, True], ids=["create", "replace"])
@pytest.mark.parametrize("fault", [Fault.RESET, Fault.LOST_ERROR, Fault.TWICE, Fault.DROP, Fault.LATE, Fault.CONFLICT])
async def test_an_answer_that_is_not_clear_ends_with_the_change_made_once(
    process: Process, store: StubStore, fault: Fault, there_is_one: bool
) -> None:
    if there_is_one:
        await process.promote(5)
    process.faults.next(fault, kind="put")
    changed = await process.promote(10)
    assert changed == await process.read()
    assert [kept.seq for kept in changed.snapshots] == ([5, 10] if there_is_one else [10])
    lost = fault in {Fault.RESET, Fault.LOST_ERROR, Fault.TWICE}
    assert store.counts["put"] == (1 if lost else 2) + there_is_one, "a lost answer needs no second change"


async def test_a_store_that_refuses_or_never_answers_is_an_engine_failure(process: Process) -> None:
    process.faults.next(Fault.ERROR, kind="put", times=float("inf"))
    with pytest.raises(EngineFailure, match="cannot update snap/latest"):
        await process.change(lambda pointer: promoted(pointer, 1), retries=5)
    process.faults.heal()
    process.faults.hook("before", refuse, kind="put")
    with pytest.raises(EngineFailure, match="rejects the update of snap/latest: 403 AccessDenied"):
        await process.promote(1)


async def test_a_store_that_was_made_anew_is_not_changed(process: Process) -> None:
    await process.promote(10)
    with pytest.raises(StoreUnusable, match="created again"):
        await process.promote(20, epoch="another")
    assert (await process.read()).seq == 10


async def test_a_damaged_pointer_is_refused_with_what_to_do(process: Process, store: StubStore) -> None:
    store.execute(Request(kind="put", key=objects.POINTER, body=b"[]"))
    with pytest.raises(StoreUnusable, match="snap/latest of s3://stub is damaged"):
        await read_pointer(process.bucket)


async def test_what_is_announced_is_so_until_it_is_promoted_and_what_is_older_or_announced_is_not_announced(
    process: Process, store: StubStore
) -> None:
    await process.announce(10)
    assert ((await process.read()).seq, (await process.read()).announced) == (0, (10,))
    await process.promote(10)
    assert ((await process.read()).seq, (await process.read()).announced) == (10, ())
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

    await advance(process.bucket, EPOCH, lambda pointer: pointer, now)
    assert order == ["read", "clock"]
