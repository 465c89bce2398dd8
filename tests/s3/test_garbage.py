"""What is removed from the bucket, and that it is safe to be killed at any moment."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator
from functools import partial

import apsw
import msgspec
import pytest

from hark.clock import SECOND, FakeClock
from hark.engine.core import schema
from hark.engine.s3 import housekeeping, objects
from hark.engine.s3.objects import UNWITNESSED, Kept, Pointer, advance, announced, load_newest, publish, read_pointer
from hark.errors import StoreUnusable
from tests.s3.stub.faults import Faults
from tests.s3.stub.inprocess import StubBucket
from tests.s3.stub.store import Request, StubStore

EPOCH = "epoch"
GRACE = 3600 * SECOND


# The pointer ------------------------------------------------------------------------------------------------

POINTER = Pointer(
    EPOCH, seq=30, snapshots=(Kept(10, 1000), Kept(20, 2000), Kept(30, UNWITNESSED)), announced=(7, 25, 40)
)


@pytest.mark.parametrize(
    ("now", "applied", "mark"),
    [(1099, 30, 0), (1100, 30, 10), (2099, 30, 10), (2100, 30, 20), (10**9, 30, 20), (10**9, 19, 10), (10**9, 9, 0)],
)
def test_the_watermark_is_the_last_snapshot_that_was_the_newest_a_grace_ago(now: int, applied: int, mark: int) -> None:
    assert housekeeping.watermark(POINTER, now, 100, applied) == mark


def test_what_may_go_is_between_what_is_removed_and_what_is_promised_but_for_segments() -> None:
    pointer = msgspec.structs.replace(POINTER, removed=12, collected=20)
    assert housekeeping.removable_records(pointer, 20, {15, 16, 21}) == [13, 14, 17, 18, 19, 20]
    assert housekeeping.removable_snapshots(pointer) == [7, 10]
    assert housekeeping.removable_records(pointer, 19, {15}) == [], "the segments are not all known"


def test_a_watermark_never_turns_back_and_what_came_since_is_not_confirmed() -> None:
    assert housekeeping.promised(msgspec.structs.replace(POINTER, collected=20), 1100, 100, 30).collected == 20
    done = msgspec.structs.replace(POINTER, collected=10)
    since = msgspec.structs.replace(POINTER, collected=20, announced=(7, 8, 25, 40))
    changed = housekeeping.confirmed(since, done)
    assert (changed.collected, changed.removed, changed.announced) == (20, 10, (8, 25, 40))
    assert changed.snapshots == POINTER.snapshots


# Rounds -----------------------------------------------------------------------------------------------------


class Killed(BaseException):
    """kill -9."""


class Store:
    """A bucket with the records 1 to 35, of which some have payloads, and the snapshots 10, 20 and 30.

    Snapshot 25 was announced and written by a process that died then, 15 by one that died before it wrote.
    """

    segments = frozenset({3, 10, 18, 22, 33})
    records = frozenset(range(1, 36))

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.objects = StubStore(self.clock)

    async def fill(self) -> None:
        """Write everything, half a grace between the snapshots."""
        bucket = StubBucket(self.objects, self.clock)
        for seq in self.records:
            await bucket.create(objects.record(seq), b"record")
        for seq in (10, 15, 20, 25, 30):
            if seq in {15, 25}:
                await advance(bucket, EPOCH, partial(announced, seq=seq), self.clock.now)
            else:
                await publish(bucket, EPOCH, seq, b"snapshot", self.clock.now)
            self.clock.advance(1800)
        await bucket.put(objects.snapshot(25), b"snapshot")

    async def collect(self, faults: Faults | None = None, applied: int = 35, epoch: str = EPOCH) -> int:
        """One round of one process."""
        bucket = StubBucket(self.objects, self.clock, faults=faults)
        return await housekeeping.collect(
            bucket, epoch, applied=applied, grace=GRACE, now=self.clock.now, segments=self.known_segments
        )

    def known_segments(self, after: int, up_to: int) -> Collection[int]:
        """What the state says."""
        return frozenset(seq for seq in self.segments if after < seq <= up_to)

    async def pointer(self) -> Pointer:
        """The pointer as it stands."""
        read = await read_pointer(StubBucket(self.objects, self.clock))
        assert read is not None
        return read[0]

    def there(self) -> frozenset[int]:
        """The records that are there."""
        return frozenset(int(key.removeprefix("log/")) for key in self.objects.keys("log/"))

    def snapshots(self) -> list[int]:
        """The snapshots that are there."""
        return [int(key.removeprefix("snap/")) for key in self.objects.keys("snap/0")]


@pytest.fixture
async def store() -> Store:
    """A store that has garbage, up to 20 at least."""
    store = Store()
    await store.fill()
    return store


def left_after(watermark: int) -> frozenset[int]:
    """The records that should be there."""
    return frozenset(seq for seq in Store.records if seq > watermark or seq in Store.segments)


async def test_a_round_removes_what_the_watermark_covers_but_for_segments(store: Store) -> None:
    removed = await store.collect()
    assert store.there() == left_after(20)
    assert store.snapshots() == [20, 25, 30]
    assert removed == len(Store.records - left_after(20)) + len([10, 15])
    pointer = await store.pointer()
    assert (pointer.collected, pointer.removed, pointer.announced) == (20, 20, (25,))
    assert [kept.seq for kept in pointer.snapshots] == [20, 30]
    store.objects.forget_requests()
    assert await store.collect() == 0
    assert store.objects.counts == {"put": 0, "get": 1, "list": 0, "delete": 0}, "a round without garbage"


async def test_an_idle_store_is_collected_up_to_its_newest_snapshot(store: Store) -> None:
    """Nobody changes the pointer any more but the rounds themselves: the first says since when 30 is the newest."""
    await store.collect()
    store.clock.advance(3599)
    assert await store.collect() == 0
    store.clock.advance(1)
    await store.collect()
    assert store.there() == left_after(30)
    assert store.snapshots() == [30]
    assert (await store.pointer()).announced == ()


async def test_who_is_behind_the_watermark_removes_only_what_it_knows(store: Store) -> None:
    await store.collect(applied=19)
    assert store.there() == left_after(10)
    await store.collect(applied=20)
    assert store.there() == left_after(20)
    # A promise beyond what this one has applied is for others to keep.
    store.clock.advance(3600)
    await store.collect(applied=35)
    assert await store.collect(applied=20) == 0


async def test_in_a_store_without_a_pointer_or_that_was_made_anew_nothing_is_removed(store: Store) -> None:
    empty = Store()
    assert await empty.collect() == 0
    assert empty.objects.counts == {"put": 0, "get": 1, "list": 0, "delete": 0}
    before = store.objects.keys()
    with pytest.raises(StoreUnusable, match="created again"):
        await store.collect(epoch="the one before")
    assert store.objects.keys() == before


def is_safe(pointer: Pointer, store: Store) -> bool:
    """Whether every gap was promised, and everything that is to be read is there."""
    gaps = Store.records - store.there()
    return all(seq <= pointer.collected for seq in gaps) and store.segments <= store.there()


@pytest.mark.parametrize("requests_before", range(6))
@pytest.mark.parametrize("point", ["before", "after"])
async def test_a_collector_that_is_killed_at_any_request_harms_no_one_and_the_next_one_finishes(
    store: Store, requests_before: int, point: str
) -> None:
    def kill(_: Request) -> None:
        raise Killed

    faults = Faults()
    faults.hook("before" if point == "before" else "after", kill, skip=requests_before, times=1)
    killed = False
    try:
        await store.collect(faults)
    except Killed:
        killed = True
    # Get, put, delete, get, put: the sixth request does not exist.
    assert killed is (requests_before < 5)
    assert is_safe(await store.pointer(), store)
    assert await load_newest(StubBucket(store.objects, store.clock)) is not None
    await store.collect()
    assert store.there() == left_after(20)
    assert store.snapshots() == [20, 25, 30]
    pointer = await store.pointer()
    assert (pointer.removed, pointer.collected, pointer.announced) == (20, 20, (25,))


async def test_two_collectors_at_once_remove_the_same(store: Store) -> None:
    faults = Faults()
    stop = faults.stop("before", kind="delete")
    slow = asyncio.create_task(store.collect(faults))
    await stop.reached()
    await store.collect()
    store.clock.advance(3600)
    await store.collect()
    stop.go()
    await slow
    assert store.there() == left_after(30)
    pointer = await store.pointer()
    assert (pointer.removed, pointer.collected, store.snapshots()) == (30, 30, [30])


# Segments: records that hold payloads ----------------------------------------------------------------------


@pytest.fixture
def database() -> Iterator[apsw.Connection]:
    """A state with the segments 1 to 6: messages refer to 1 and 2, dead letters to 2 and 3."""
    connection = apsw.Connection(":memory:")
    schema.migrate(connection)
    connection.execute(
        "create table segments (seq integer primary key, bytes integer not null, dead_since integer);"
        "insert into segments (seq, bytes) values (1, 10), (2, 10), (3, 10), (4, 10), (5, 10), (6, 10)"
    )
    for offset, extra in enumerate(('{"r": [1, 8, 5]}', '{"r": [2, 8, 5], "ttl": 4}', '{"ttl": 4}', None), start=1):
        connection.execute(
            "insert into messages (partition, offset, created_at, extra, payload) values (1, ?, 0, ?, 'null')",
            (offset, extra),
        )
    for offset, extra in enumerate(('{"r": [2, 13, 5]}', '{"r": [3, 8, 5]}', None), start=1):
        connection.execute(
            "insert into dead_letters (uid, queue, partition, partition_name, grp, offset, created_at, priority,"
            " payload, extra, attempts, error, failed_at) values (?, 'q', 1, 'p', 'g', ?, 0, 0, 'null', ?, 1, '', 0)",
            (str(offset), offset, extra),
        )
    yield connection
    connection.close()


def marks(database: apsw.Connection) -> dict[int, int | None]:
    """Since when each segment is dead."""
    return dict(database.execute("select seq, dead_since from segments"))


def test_what_neither_a_message_nor_a_dead_letter_refers_to_is_unreferenced(database: apsw.Connection) -> None:
    assert housekeeping.unreferenced(database, 100) == [4, 5, 6]
    assert housekeeping.unreferenced(database, 2) == [4, 5]
    database.execute("delete from messages")
    assert housekeeping.unreferenced(database, 100) == [1, 4, 5, 6]
    database.execute("delete from dead_letters")
    assert housekeeping.unreferenced(database, 100) == [1, 2, 3, 4, 5, 6]


def test_a_segment_is_dead_since_it_was_first_marked(database: apsw.Connection) -> None:
    housekeeping.mark_dead(database, [4, 5], now=100)
    housekeeping.mark_dead(database, [5, 6, 99], now=200)
    assert marks(database) == {1: None, 2: None, 3: None, 4: 100, 5: 100, 6: 200}
    assert housekeeping.unreferenced(database, 100) == []


def test_a_segment_may_go_a_grace_after_it_died_and_not_beyond_the_watermark(database: apsw.Connection) -> None:
    housekeeping.mark_dead(database, [4, 6], now=100)
    housekeeping.mark_dead(database, [5], now=101)
    assert housekeeping.removable(database, now=109, grace=10, up_to_seq=6, limit=9) == []
    assert housekeeping.removable(database, now=110, grace=10, up_to_seq=6, limit=9) == [4, 6]
    assert housekeeping.removable(database, now=110, grace=10, up_to_seq=5, limit=9) == [4]
    assert housekeeping.removable(database, now=111, grace=10, up_to_seq=6, limit=2) == [4, 5]


def test_the_segments_of_a_part_of_the_log_are_known_until_they_are_gone(database: apsw.Connection) -> None:
    assert housekeeping.segments_between(database, after=2, up_to=5) == {3, 4, 5}
    assert housekeeping.segments_between(database, after=6, up_to=100) == frozenset()
    housekeeping.forget(database, [])
    housekeeping.forget(database, [4, 6, 99])
    assert list(marks(database)) == [1, 2, 3, 5]
