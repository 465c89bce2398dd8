"""The self-test of a store: one that keeps its promises passes, all others are refused with the reason."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from hark.clock import FakeClock
from hark.engine.s3.bucket import Bucket, BucketError, Conflicting, Refused, Stored, Taken, Unclear
from hark.engine.s3.bucket_client import ATTEMPTS, probe
from hark.errors import StoreUnusable
from tests.s3.rests import Rests
from tests.s3.stub.inprocess import StubBucket
from tests.s3.stub.store import Request, StubStore

REQUESTS_BEFORE_THE_RACE = 7


class Honest(StubBucket):
    """A bucket in memory that keeps all promises; `errors` are raised by the requests to come, one by one."""

    def __init__(self) -> None:
        clock = FakeClock()
        super().__init__(StubStore(clock), clock, "p")
        self.errors: list[BucketError | None] = []
        self.created: list[str] = []
        self.faults.hook("before", self._meet)

    def _meet(self, request: Request) -> None:
        error = self.errors.pop(0) if self.errors else None
        if error is not None:
            raise error
        if request.if_absent:
            self.created.append(request.key.removeprefix("p/"))


class LooksAndThenWrites(Honest):
    """Keeps the condition for those who come one after the other."""

    async def create(self, key: str, body: bytes) -> str:
        if await self.get(key) is not None:
            raise Taken("412")
        return await self.put(key, body)


class IgnoresIfNoneMatch(Honest):
    """Creates always succeed."""

    async def create(self, key: str, body: bytes) -> str:
        return await self.put(key, body)


class IgnoresIfMatch(Honest):
    """Replacements always succeed."""

    async def replace(self, key: str, body: bytes, etag: str) -> str:
        assert etag
        return await self.put(key, body)


class CreatesAndComplains(Honest):
    """A create of a key that is taken is refused, and happens."""

    async def create(self, key: str, body: bytes) -> str:
        try:
            return await super().create(key, body)
        finally:
            await self.put(key, body)


class ReplacesAndComplains(Honest):
    """A replacement under a wrong ETag is refused, and happens."""

    async def replace(self, key: str, body: bytes, etag: str) -> str:
        try:
            return await super().replace(key, body, etag)
        finally:
            await self.put(key, body)


class AlwaysTaken(Honest):
    """No key can be created."""

    async def create(self, key: str, body: bytes) -> str:
        raise Taken(f"412 for {len(body)} bytes of {key}")


class NeverReplaces(Honest):
    """No ETag is ever right."""

    async def replace(self, key: str, body: bytes, etag: str) -> str:
        raise Taken(f"412 for {len(body)} bytes of {key} with {etag}")


class Forgets(Honest):
    """What was stored can't be read."""

    async def get(self, key: str) -> Stored | None:
        await self.delete([key])
        return await super().get(key)


class OtherRanges(Honest):
    """Parts begin one byte too late."""

    async def get_range(self, key: str, first: int, length: int) -> bytes | None:
        return await super().get_range(key, first + 1, length)


class KeepsAll(Honest):
    """Deletes do nothing."""

    async def delete(self, keys: Sequence[str]) -> None:
        """Nothing."""


async def refusal(bucket: Bucket, rests: Rests | None = None) -> str:
    """The text with which a store is refused."""
    with pytest.raises(StoreUnusable) as caught:
        await probe(bucket, "x", pause=(rests or Rests()).pause)
    return caught.value.text


async def test_a_store_that_keeps_its_promises_passes_and_nothing_is_left_there() -> None:
    bucket = Honest()
    await probe(bucket, "abc")
    assert bucket.created == ["probe/abc", "probe/abc", *["probe/abc-raced"] * 5]
    assert bucket.store.keys() == []


@pytest.mark.parametrize(
    ("kind", "complaint"),
    [
        (IgnoresIfNoneMatch, "ignores the condition If-None-Match"),
        (IgnoresIfMatch, "ignores the condition If-Match"),
        (CreatesAndComplains, "If-None-Match), but replaced the object"),
        (ReplacesAndComplains, "If-Match), but replaced the object"),
        (AlwaysTaken, "an unused key exists"),
        (NeverReplaces, "rejects the replacement of an object with a matching ETag"),
        (Forgets, "cannot be read"),
        (OtherRanges, "(Range)"),
        (KeepsAll, "still exists"),
        (LooksAndThenWrites, "one key concurrently"),
    ],
    ids=lambda given: given.__name__ if isinstance(given, type) else "",
)
async def test_a_store_that_breaks_a_promise_is_refused_with_the_promise(
    kind: Callable[[], Honest], complaint: str
) -> None:
    bucket = kind()
    text = await refusal(bucket)
    assert text.startswith("cannot use s3://stub/p: ")
    assert complaint in text
    assert "Hark needs a store with conditional writes" in text
    assert not bucket.store.keys() or kind is KeepsAll


@pytest.mark.parametrize(
    ("faults", "rests"),
    [
        # S3 answers 409 to some of those who create one key concurrently.
        ([Conflicting("409")] * 3, []),
        # Who does not know whether it won a race proves nothing.
        ([Unclear("503")] * 4, []),
        # A race that nobody wins is no verdict.
        ([Conflicting("409")] * 5, [0.25]),
    ],
    ids=["conflicts", "unclear", "nobody wins"],
)
async def test_those_who_race_may_be_in_each_others_way(faults: list[BucketError], rests: list[float]) -> None:
    bucket, pauses = Honest(), Rests()
    bucket.errors = [*[None] * REQUESTS_BEFORE_THE_RACE, *faults]
    await probe(bucket, "x", pause=pauses.pause)
    assert (bucket.store.keys(), pauses.taken) == ([], rests)


@pytest.mark.parametrize(
    ("index", "raced", "rests"),
    [
        *((index, "probe/x-raced", []) for index in (2, 3, 6, 12, 13)),
        # A write whose fate is unclear is no verdict, and another key is tried.
        *((index, "probe/x-2-raced", [0.25]) for index in (0, 1, 4, 5)),
    ],
)
@pytest.mark.parametrize("fault", [Unclear("503"), Conflicting("409")], ids=["unclear", "conflicting"])
async def test_what_changes_nothing_is_requested_again(
    index: int, raced: str, rests: list[float], fault: BucketError
) -> None:
    bucket, pauses = Honest(), Rests()
    bucket.errors = [*[None] * index, fault]
    await probe(bucket, "x", pause=pauses.pause)
    assert (bucket.created[-1], bucket.store.keys(), pauses.taken) == (raced, [], rests)


async def test_a_store_that_does_not_answer_is_refused_with_the_cause() -> None:
    bucket = Honest()
    bucket.errors = [Unclear("no connection to http://127.0.0.1:9")] * 100
    rests = Rests()
    text = await refusal(bucket, rests)
    assert "no connection to http://127.0.0.1:9" in text
    assert "check the network" in text
    assert rests.taken == [0.25, 0.5, 1.0, 2.0, 2.0]
    assert len(rests.taken) == ATTEMPTS - 1


async def test_what_the_store_refuses_is_not_tried_again() -> None:
    bucket = Honest()
    bucket.errors = [Refused("404 NoSuchBucket; create it")]
    rests = Rests()
    assert await refusal(bucket, rests) == "cannot use s3://stub/p: 404 NoSuchBucket; create it"
    assert (rests.taken, bucket.created) == ([], [])
