"""Payloads come from the cache, or by as few range requests as possible."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import cast

import msgspec
import pytest

from hark.engine.core.store import PayloadLocation
from hark.engine.s3.bucket import Bucket, BucketError, Conflicting, Refused, Unclear
from hark.engine.s3.payloads import Filler, PayloadCache, Payloads
from hark.errors import EngineFailure
from tests.s3.rests import Rests, no_jitter


def body(seq: int, length: int = 1000) -> bytes:
    """What the object of a record has; another record has other bytes."""
    return random.Random(seq).randbytes(length)


# The cache: what it gives, and what it forgets -------------------------------------------------------------


LETTERS = bytes(range(97, 123))


def test_a_place_within_what_was_put_is_found_and_another_is_not() -> None:
    cache = PayloadCache(1000)
    cache.put_record(7, 100, LETTERS)
    assert cache.get(PayloadLocation(7, 100, 26)) == LETTERS
    assert cache.get(PayloadLocation(7, 102, 3)) == b"cde"
    for outside in (
        PayloadLocation(7, 99, 2),
        PayloadLocation(7, 125, 2),
        PayloadLocation(7, 130, 1),
        PayloadLocation(8, 100, 1),
    ):
        assert cache.get(outside) is None


def test_what_was_used_least_recently_is_forgotten_first() -> None:
    cache = PayloadCache(104)
    for seq in (1, 2, 3, 4):
        cache.put_record(seq, 0, LETTERS)
    assert cache.get(PayloadLocation(1, 0, 1)) == b"a"
    cache.put_record(5, 0, LETTERS)
    assert [seq for seq in range(1, 6) if cache.get(PayloadLocation(seq, 0, 26))] == [1, 3, 4, 5]


@pytest.mark.parametrize(("capacity", "length"), [(104, 27), (0, 1)], ids=["too large", "no capacity"])
def test_what_has_no_room_is_not_kept_and_drives_nothing_out(capacity: int, length: int) -> None:
    cache = PayloadCache(capacity)
    cache.put_record(1, 0, LETTERS)
    cache.put_record(2, 0, body(2, length))
    assert cache.get(PayloadLocation(1, 0, 26)) == (LETTERS if capacity else None)
    assert cache.get(PayloadLocation(2, 0, 1)) is None


def test_a_larger_part_takes_the_place_of_those_within_it() -> None:
    cache = PayloadCache(1000)
    cache.put_record(1, 5, LETTERS[5:8])
    cache.put_record(1, 10, LETTERS[10:12])
    cache.put_record(1, 0, LETTERS)
    cache.put_record(1, 3, LETTERS[3:9])
    assert cache.get(PayloadLocation(1, 4, 20)) == LETTERS[4:24]
    numbers = cache.as_metrics()
    assert (numbers["s3_cache_entries"], numbers["s3_cache_bytes"]) == (1, 26)
    for offset in (0, 90):
        cache.get(PayloadLocation(1, offset, 1))
    numbers = cache.as_metrics()
    assert (numbers["s3_cache_hits"], numbers["s3_cache_misses"]) == (2, 1)


@pytest.mark.parametrize("seed", range(20))
def test_what_the_cache_gives_is_what_the_record_has_and_never_more_than_it_may_hold(seed: int) -> None:
    rng = random.Random(seed)
    cache = PayloadCache(400)
    found = 0
    for _ in range(400):
        seq, first, length = rng.randrange(3), rng.randrange(200), rng.randrange(1, 120)
        if rng.random() < 0.5:
            cache.put_record(seq, first, body(seq)[first : first + length])
            if length <= 100:
                assert cache.get(PayloadLocation(seq, first, length)) == body(seq)[first : first + length]
        elif (data := cache.get(PayloadLocation(seq, first, length))) is not None:
            assert data == body(seq)[first : first + length]
            found += 1
        assert cache.as_metrics()["s3_cache_bytes"] <= 400
    assert found


def test_threads_may_share_a_cache() -> None:
    cache = PayloadCache(300)

    def use(seed: int) -> None:
        rng = random.Random(seed)
        for _ in range(2000):
            seq, first = rng.randrange(4), rng.randrange(100)
            cache.put_record(seq, first, body(seq)[first : first + 50])
            assert cache.get(PayloadLocation(seq, first + 10, 20)) in (None, body(seq)[first + 10 : first + 30])

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(use, range(4)))


class Ranges:
    """A bucket that is only read from, and writes down what was asked."""

    name = "s3://bucket/prefix"

    def __init__(self, *seqs: int) -> None:
        self.objects = {f"log/{seq:020d}": body(seq) for seq in seqs}
        self.requests: list[PayloadLocation] = []
        self.errors: list[BucketError] = []
        """What the next requests get instead of an answer."""
        self.open_gate = asyncio.Event()
        self.open_gate.set()
        self.arrived = asyncio.Semaphore(0)
        """Released with each request that has begun."""
        self.running = self.most_running = 0

    async def get_range(self, key: str, first: int, length: int) -> bytes | None:
        """A part of an object, when the gate is open."""
        self.requests.append(PayloadLocation(int(key.removeprefix("log/")), first, length))
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        self.arrived.release()
        try:
            await self.open_gate.wait()
        finally:
            self.running -= 1
        if self.errors:
            raise self.errors.pop(0)
        whole = self.objects.get(key)
        return None if whole is None else whole[first : first + length]


def payloads_of(
    bucket: Ranges,
    cache: PayloadCache | None = None,
    rests: Rests | None = None,
    random: Callable[[], float] = no_jitter,
    **limits: int,
) -> Payloads:
    pause = (rests or Rests()).pause
    return Payloads(
        cast("Bucket", bucket), cache or PayloadCache(0), pause=pause, random=random, **{"gap": 10, **limits}
    )


def bytes_at(*locations: PayloadLocation) -> list[bytes]:
    return [body(location.seq)[location.offset : location.end] for location in locations]


# Fetching --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("locations", "requests"),
    [
        (
            # They come in the order in which they were asked for.
            [
                PayloadLocation(2, 500, 10),
                PayloadLocation(1, 8, 3),
                PayloadLocation(2, 20, 4),
                PayloadLocation(1, 8, 3),
            ],
            [PayloadLocation(1, 8, 3), PayloadLocation(2, 20, 4), PayloadLocation(2, 500, 10)],
        ),
        (
            [
                PayloadLocation(1, 100, 20),
                PayloadLocation(1, 130, 5),
                PayloadLocation(1, 146, 5),
                PayloadLocation(2, 130, 5),
                PayloadLocation(1, 8, 20),
            ],
            [
                PayloadLocation(1, 8, 20),
                PayloadLocation(1, 100, 35),
                PayloadLocation(1, 146, 5),
                PayloadLocation(2, 130, 5),
            ],
        ),
        (
            [PayloadLocation(1, 100, 50), PayloadLocation(1, 105, 5), PayloadLocation(1, 155, 5)],
            [PayloadLocation(1, 100, 60)],
        ),
    ],
    ids=["apart", "near", "within"],
)
async def test_positions_that_are_near_each_other_share_a_request(
    locations: list[PayloadLocation], requests: list[PayloadLocation]
) -> None:
    bucket = Ranges(1, 2)
    assert await payloads_of(bucket).fetch(locations) == bytes_at(*locations)
    assert sorted(bucket.requests) == requests


async def test_what_was_fetched_is_not_fetched_again() -> None:
    bucket = Ranges(1)
    payloads = payloads_of(bucket, PayloadCache(1000))
    await payloads.fetch([PayloadLocation(1, 8, 10), PayloadLocation(1, 25, 5)])
    assert await payloads.fetch([PayloadLocation(1, 10, 18)]) == bytes_at(PayloadLocation(1, 10, 18))
    assert len(bucket.requests) == 1


async def test_what_was_written_here_and_nothing_at_all_need_no_request() -> None:
    bucket, cache = Ranges(), PayloadCache(1000)
    cache.put_record(3, 8, body(3)[8:100])
    locations = [PayloadLocation(3, 8, 4), PayloadLocation(3, 50, 2)]
    assert await payloads_of(bucket, cache).fetch(locations) == bytes_at(*locations)
    assert await payloads_of(bucket).fetch([PayloadLocation(9, 8, 0)]) == [b""]
    assert await payloads_of(bucket).fetch([]) == []
    assert bucket.requests == []


async def test_what_is_on_its_way_is_not_requested_twice() -> None:
    bucket = Ranges(1)
    bucket.open_gate.clear()
    payloads = payloads_of(bucket)
    first = asyncio.create_task(payloads.fetch([PayloadLocation(1, 8, 10), PayloadLocation(1, 25, 5)]))
    await bucket.arrived.acquire()
    second = asyncio.create_task(payloads.fetch([PayloadLocation(1, 20, 6), PayloadLocation(1, 90, 5)]))
    await bucket.arrived.acquire()
    bucket.open_gate.set()
    assert await first == bytes_at(PayloadLocation(1, 8, 10), PayloadLocation(1, 25, 5))
    assert await second == bytes_at(PayloadLocation(1, 20, 6), PayloadLocation(1, 90, 5))
    assert bucket.requests == [PayloadLocation(1, 8, 22), PayloadLocation(1, 90, 5)]
    await payloads.fetch([PayloadLocation(1, 8, 10)])
    assert len(bucket.requests) == 3, "without a cache, what has arrived is asked for again"


async def test_who_is_cancelled_does_not_take_the_request_of_others_along() -> None:
    bucket = Ranges(1)
    bucket.open_gate.clear()
    payloads = payloads_of(bucket)
    first = asyncio.create_task(payloads.fetch([PayloadLocation(1, 8, 10)]))
    await bucket.arrived.acquire()
    second = asyncio.create_task(payloads.fetch([PayloadLocation(1, 8, 10)]))
    await asyncio.sleep(0)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    bucket.open_gate.set()
    assert await second == bytes_at(PayloadLocation(1, 8, 10))
    assert len(bucket.requests) == 1


async def test_no_more_requests_than_allowed_are_under_way() -> None:
    bucket = Ranges(1)
    bucket.open_gate.clear()
    locations = [PayloadLocation(1, offset, 5) for offset in range(8, 1000, 100)]
    fetching = asyncio.create_task(payloads_of(bucket, most_at_once=3).fetch(locations))
    for _ in range(3):
        await bucket.arrived.acquire()
    await asyncio.sleep(0)
    assert len(bucket.requests) == 3
    bucket.open_gate.set()
    assert await fetching == bytes_at(*locations)
    assert bucket.most_running == 3


@pytest.mark.parametrize(
    ("errors", "random", "taken"),
    [
        ([Unclear("no answer"), Conflicting("409"), Unclear("500")], 1.0, [0.1, 0.2, 0.4]),
        ([Unclear("503", slow_down=True)] * 4, 1.0, [1.0, 2.0, 4.0, 5.0]),
        ([Unclear("500")], 0.0, [0.05]),
    ],
    ids=["unclear", "slow down", "jitter"],
)
async def test_a_read_without_a_clear_answer_is_repeated_after_longer_and_longer_rests(
    errors: list[BucketError], random: float, taken: list[float]
) -> None:
    bucket, rests = Ranges(1), Rests()
    bucket.errors = list(errors)
    payloads = payloads_of(bucket, rests=rests, random=lambda: random)
    assert await payloads.fetch([PayloadLocation(1, 8, 3)]) == bytes_at(PayloadLocation(1, 8, 3))
    assert rests.taken == taken


async def test_a_store_that_stays_away_is_an_error_that_may_be_tried_again() -> None:
    bucket = Ranges(1)
    bucket.errors = [Unclear("no route")] * 3
    with pytest.raises(
        EngineFailure, match=r"log/0{19}1 of s3://bucket/prefix cannot be fetched now: no route"
    ) as found:
        await payloads_of(bucket, tries=3).fetch([PayloadLocation(1, 8, 3)])
    assert (found.value.code, found.value.retryable) == ("engine_failure", True)
    assert bucket.errors == []


async def test_a_record_that_is_gone_or_refused_is_named_and_not_requested_again() -> None:
    bucket = Ranges(1)
    with pytest.raises(
        EngineFailure, match=r"log/0{18}17 of s3://bucket/prefix does not exist any more; .* lifecycle rule"
    ) as found:
        await payloads_of(bucket).fetch([PayloadLocation(1, 8, 3), PayloadLocation(17, 8, 3)])
    assert found.value.code == "payload_missing"
    bucket.requests.clear()
    bucket.errors = [Refused("access denied")]
    with pytest.raises(EngineFailure, match="cannot be read: access denied") as found:
        await payloads_of(bucket).fetch([PayloadLocation(1, 8, 3)])
    assert found.value.code == "payload_unreadable"
    assert len(bucket.requests) == 1


async def test_all_who_wait_for_a_request_that_fails_get_an_error_of_their_own() -> None:
    bucket = Ranges()
    bucket.open_gate.clear()
    payloads = payloads_of(bucket)
    tasks = [asyncio.create_task(payloads.fetch([PayloadLocation(1, 8, 3)])) for _ in range(2)]
    await bucket.arrived.acquire()
    await asyncio.sleep(0)
    bucket.open_gate.set()
    first, second = await asyncio.gather(*tasks, return_exceptions=True)
    assert isinstance(first, EngineFailure)
    assert isinstance(second, EngineFailure)
    assert first is not second
    assert first.code == second.code == "payload_missing"
    assert len(bucket.requests) == 1


# Filling in ------------------------------------------------------------------------------------------------


class Item(msgspec.Struct, frozen=True):
    """Something with a payload."""

    payload: msgspec.Raw | PayloadLocation


def items_at(*locations: PayloadLocation) -> list[Item]:
    return [Item(location) for location in locations]


async def test_answers_that_are_made_together_share_requests() -> None:
    bucket = Ranges(1)
    groups = [items_at(PayloadLocation(1, offset, 5), PayloadLocation(1, offset + 5, 5)) for offset in (8, 18, 28)]
    groups[0].append(Item(msgspec.Raw(b"1")))
    assert await Filler(PayloadCache(0), payloads_of(bucket).fetch).fill_each(groups) == [None, None, None]
    filled = [item.payload for group in groups for item in group]
    whole = body(1)
    assert filled[2] == msgspec.Raw(b"1"), "what is there stays"
    del filled[2]
    assert filled == [msgspec.Raw(whole[offset : offset + 5]) for offset in range(8, 38, 5)]
    assert bucket.requests == [PayloadLocation(1, 8, 30)]


async def test_a_payload_that_is_gone_is_empty_and_the_others_are_filled_in() -> None:
    groups = [
        items_at(PayloadLocation(1, 8, 5)),
        items_at(PayloadLocation(1, 20, 5), PayloadLocation(17, 8, 5)),
        items_at(PayloadLocation(1, 30, 5)),
    ]
    found = await Filler(PayloadCache(0), payloads_of(Ranges(1)).fetch).fill_each(groups)
    assert found == [None, None, None]
    filled = [item.payload for group in groups for item in group]
    parts = (body(1)[8:13], body(1)[20:25], b"", body(1)[30:35])
    assert filled == [msgspec.Raw(part) for part in parts]


async def test_what_is_cached_is_filled_in_without_a_request() -> None:
    cache = PayloadCache(1000)
    cache.put_record(1, 8, body(1)[8:50])
    (item,) = items_at(PayloadLocation(1, 10, 5))

    async def never(locations: Sequence[PayloadLocation]) -> list[bytes]:
        raise AssertionError(locations)

    await Filler(cache, never).fill([item])
    assert item.payload == msgspec.Raw(body(1)[10:15])
