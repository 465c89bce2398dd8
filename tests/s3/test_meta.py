"""What a store is, written once, whoever comes first."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from hark.clock import FakeClock
from hark.engine.s3.bucket.api import Refused
from hark.engine.s3.log import places
from hark.engine.s3.log.meta import FORMAT, Meta, read_or_create
from hark.errors import EngineFailure, StoreUnusable
from tests.s3.rests import Rests
from tests.s3.stub.faults import Fault, Faults
from tests.s3.stub.inprocess import StubBucket
from tests.s3.stub.store import Request, StubStore

NOW = 1_700_000_000_000_000


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


async def test_who_comes_first_makes_it_and_who_comes_later_reads_it(store: StubStore) -> None:
    first = await read_or_create(bucket_on(store), NOW)
    assert await read_or_create(bucket_on(store), NOW + 1) == first
    assert (first.format, first.created_at) == (FORMAT, NOW)
    assert (len(first.epoch), len(first.secret)) == (32, 64)


async def test_a_store_that_is_there_is_opened_with_one_request(store: StubStore) -> None:
    await read_or_create(bucket_on(store), NOW)
    store.forget_requests()
    await read_or_create(bucket_on(store), NOW)
    assert sum(store.counts.values()) == 1


async def test_the_tag_has_thirty_bits(store: StubStore) -> None:
    meta = await read_or_create(bucket_on(store), NOW, token=lambda size: b"\xff" * size)
    assert meta.tag == 2**30 - 1


async def test_two_stores_differ_in_everything_that_is_random() -> None:
    one, other = [await read_or_create(bucket_on(StubStore(FakeClock())), NOW) for _ in range(2)]
    assert one.epoch != other.epoch
    assert one.secret != other.secret


@pytest.mark.parametrize("rate", [0.0, 0.4])
@pytest.mark.parametrize("seed", range(5))
async def test_all_who_come_at_once_agree(store: StubStore, rate: float, seed: int) -> None:
    metas: list[Meta] = await asyncio.gather(
        *(
            read_or_create(
                bucket_on(store, Faults.by_chance(seed * 10 + number, rate)), NOW, patience=Rests().patience(1e6)
            )
            for number in range(8)
        )
    )
    assert len({meta.epoch for meta in metas}) == 1


@pytest.mark.parametrize("fault", [Fault.LATE, Fault.RESET, Fault.DROP, Fault.TWICE, Fault.CONFLICT])
async def test_a_create_without_a_clear_answer_ends_with_what_is_stored(store: StubStore, fault: Fault) -> None:
    faults = Faults()
    faults.next(fault, kind="put")
    meta = await read_or_create(bucket_on(store, faults), NOW, patience=Rests().patience())
    assert store.read(places.META) == msgspec.json.encode(meta)


async def test_a_store_that_never_answers_is_an_engine_failure(store: StubStore) -> None:
    faults, rests = Faults(), Rests()
    faults.next(Fault.DROP, times=float("inf"))
    with pytest.raises(EngineFailure, match="s3://stub does not answer"):
        await read_or_create(bucket_on(store, faults), NOW, patience=rests.patience())
    assert rests.now == pytest.approx(30.0)


async def test_a_store_that_refuses_is_unusable_in_its_own_words(store: StubStore) -> None:
    def refuse(_: Request) -> None:
        raise Refused("404 NoSuchBucket")

    faults = Faults()
    faults.hook("before", refuse)
    with pytest.raises(StoreUnusable, match="s3://stub can't be used: 404 NoSuchBucket"):
        await read_or_create(bucket_on(store, faults), NOW)


async def test_a_newer_format_is_refused_with_what_to_use(store: StubStore) -> None:
    write(store, places.META, b'{"format": 2, "something": "new"}')
    with pytest.raises(StoreUnusable, match="s3://stub has format 2, this Hark knows 1; use the newer Hark"):
        await read_or_create(bucket_on(store), NOW)


@pytest.mark.parametrize(
    "body", [b"", b"[]", b'{"format": 1}', b'{"name": "x"}'], ids=["empty", "list", "short", "other"]
)
async def test_a_meta_of_another_program_is_refused_and_left_alone(store: StubStore, body: bytes) -> None:
    write(store, places.META, body)
    with pytest.raises(StoreUnusable, match=r"meta\.json of s3://stub is damaged or of another program"):
        await read_or_create(bucket_on(store), NOW)
    assert store.read(places.META) == body


@pytest.mark.parametrize("key", [places.POINTER, places.record(1)], ids=["pointer", "log"])
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
        write(store, places.record(1), b"a record")

    faults.hook("after", be_first, kind="get", key=places.META, times=1)
    mine = await read_or_create(bucket_on(store, faults), NOW, patience=Rests().patience())
    assert [mine] == theirs
