"""The stub behaves as S3 does: the same cases in process, over HTTP, and on a server that others wrote."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from email.utils import parsedate_to_datetime

import pytest

from hark.clock import FakeClock
from tests.s3.ministack import Ministack
from tests.s3.stub.doors import Door, InProcessDoor, etag_of, http_door
from tests.s3.stub.server import BUCKET, StubServer
from tests.s3.stub.store import StubStore

CREATORS = 50


@pytest.fixture(params=["in-process", "http", "ministack"])
async def door(request: pytest.FixtureRequest, stub_store: StubStore) -> AsyncIterator[Door]:
    """An empty bucket, three ways."""
    async with AsyncExitStack() as stack:
        if request.param == "in-process":
            yield InProcessDoor(stub_store)
            return
        server = request.getfixturevalue("stub_server" if request.param == "http" else "ministack")
        assert isinstance(server, StubServer | Ministack)
        bucket = BUCKET if isinstance(server, StubServer) else server.make_bucket()
        yield await stack.enter_async_context(http_door(server.url, bucket))


# Reading and writing ---------------------------------------------------------------------------------------


async def test_what_was_put_is_read_with_the_md5_of_its_bytes_as_etag(door: Door) -> None:
    put = await door.put("log/1", b"one")
    read = await door.get("log/1")
    assert (put.status, put.etag) == (200, etag_of(b"one"))
    assert (read.status, read.body, read.etag) == (200, b"one", etag_of(b"one"))


async def test_a_put_without_condition_overwrites(door: Door) -> None:
    await door.put("pointer", b"one")
    await door.put("pointer", b"two")
    assert (await door.get("pointer")).body == b"two"


async def test_an_object_of_several_megabytes_comes_back_whole(door: Door) -> None:
    body = bytes(range(256)) * 4096 * 3
    await door.put("snap/1", body, if_absent=True)
    assert (await door.get("snap/1")).body == body


async def test_a_missing_object_is_404(door: Door) -> None:
    heard = await door.get("log/none")
    assert (heard.status, heard.code) == (404, "NoSuchKey")


@pytest.mark.parametrize("key", ["a b/ä+%2F", "deep/er/and/deeper"], ids=["escaped", "deep"])
async def test_any_key_is_found_again(door: Door, key: str) -> None:
    await door.put(key, b"here")
    assert (await door.get(key)).body == b"here"


# Conditions ------------------------------------------------------------------------------------------------


async def test_only_the_first_create_of_a_key_wins(door: Door) -> None:
    first = await door.put("log/1", b"first", if_absent=True)
    second = await door.put("log/1", b"second", if_absent=True)
    assert (first.status, second.status, second.code) == (200, 412, "PreconditionFailed")
    assert (await door.get("log/1")).body == b"first"


async def test_of_many_creates_at_once_exactly_one_wins(door: Door) -> None:
    bodies = [b"writer %d" % number for number in range(CREATORS)]
    heard = await asyncio.gather(*(door.put("log/1", body, if_absent=True) for body in bodies))
    assert Counter(each.status for each in heard) == {200: 1, 412: CREATORS - 1}
    winner = bodies[[each.status for each in heard].index(200)]
    assert (await door.get("log/1")).body == winner


async def test_of_many_replacements_at_once_exactly_one_wins(door: Door) -> None:
    before = (await door.put("pointer", b"old")).etag
    bodies = [b"writer %d" % number for number in range(CREATORS)]
    heard = await asyncio.gather(*(door.put("pointer", body, if_match=before) for body in bodies))
    assert Counter(each.status for each in heard) == {200: 1, 412: CREATORS - 1}
    winner = bodies[[each.status for each in heard].index(200)]
    assert (await door.get("pointer")).body == winner


async def test_a_replacement_needs_the_etag_of_what_is_there(door: Door) -> None:
    before = (await door.put("pointer", b"old")).etag
    wrong = await door.put("pointer", b"wrong", if_match=etag_of(b"other"))
    right = await door.put("pointer", b"right", if_match=before)
    again = await door.put("pointer", b"again", if_match=before)
    assert (wrong.status, wrong.code, right.status, again.status) == (412, "PreconditionFailed", 200, 412)
    assert (await door.get("pointer")).body == b"right"


async def test_a_replacement_of_nothing_is_404_and_makes_nothing(door: Door) -> None:
    heard = await door.put("pointer", b"new", if_match=etag_of(b"old"))
    assert (heard.status, heard.code) == (404, "NoSuchKey")
    assert (await door.get("pointer")).status == 404


async def test_a_deleted_key_can_be_created_again(door: Door) -> None:
    await door.put("log/1", b"first", if_absent=True)
    await door.delete("log/1")
    assert (await door.put("log/1", b"second", if_absent=True)).status == 200


# Ranges ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("first", "last", "part"),
    [(0, 0, b"0"), (2, 5, b"2345"), (7, None, b"789"), (8, 100, b"89")],
    ids=["one-byte", "middle", "open-end", "beyond-the-end"],
)
async def test_a_range_is_206_with_the_bytes_that_there_are(
    door: Door, first: int, last: int | None, part: bytes
) -> None:
    await door.put("log/1", b"0123456789")
    heard = await door.get("log/1", first, last)
    assert (heard.status, heard.body) == (206, part)


async def test_a_range_that_begins_after_the_end_is_416(door: Door) -> None:
    await door.put("log/1", b"0123456789")
    heard = await door.get("log/1", 10, 12)
    assert (heard.status, heard.code) == (416, "InvalidRange")


async def test_a_range_of_nothing_is_404(door: Door) -> None:
    assert (await door.get("log/1", 0, 3)).status == 404


# Deleting --------------------------------------------------------------------------------------------------


async def test_a_deleted_object_is_gone_and_to_delete_nothing_is_no_error(door: Door) -> None:
    await door.put("log/1", b"one")
    assert [(await door.delete("log/1")).status for _ in range(2)] == [204, 204]
    assert (await door.get("log/1")).status == 404


async def test_many_objects_are_deleted_with_one_request(door: Door) -> None:
    for key in ("log/1", "log/2", "log/3"):
        await door.put(key, b"record")
    heard = await door.delete_many(["log/1", "log/3", "log/4 & more"])
    assert heard.status == 200 or isinstance(door, InProcessDoor)
    assert [(await door.get(key)).status for key in ("log/1", "log/2", "log/3")] == [404, 200, 404]


# Time ------------------------------------------------------------------------------------------------------


async def test_every_answer_bears_the_time_of_the_server(door: Door) -> None:
    heard = [
        await door.put("log/1", b"one", if_absent=True),
        await door.put("log/1", b"one", if_absent=True),
        await door.get("log/1"),
        await door.get("log/2"),
        await door.delete("log/1"),
    ]
    assert [parsedate_to_datetime(each.date).utcoffset() is not None for each in heard] == [True] * 5


# The switches of the stub ----------------------------------------------------------------------------------


async def test_a_stub_may_be_one_of_the_servers_that_ignore_conditions(clock: FakeClock) -> None:
    door = InProcessDoor(StubStore(clock, ignores_conditions=True))
    statuses = [(await door.put("log/1", body, if_absent=True)).status for body in (b"first", b"second")]
    statuses.append((await door.put("log/1", b"third", if_match=etag_of(b"other"))).status)
    assert statuses == [200, 200, 200]
    assert (await door.get("log/1")).body == b"third"


async def test_the_date_is_that_of_the_clock_in_whole_seconds(clock: FakeClock, stub_store: StubStore) -> None:
    clock.advance(2.75)
    heard = await InProcessDoor(stub_store).get("log/1")
    assert parsedate_to_datetime(heard.date).timestamp() == 1_700_000_002


async def test_requests_are_counted_by_kind_and_written_down(stub_store: StubStore) -> None:
    door = InProcessDoor(stub_store)
    await door.put("log/1", b"one", if_absent=True)
    await door.put("log/1", b"two", if_absent=True)
    await door.get("log/1")
    await door.delete("log/1")
    assert stub_store.counts == {"put": 2, "get": 1, "list": 0, "delete": 1}
    assert stub_store.log == [
        ("put", "log/1", 200),
        ("put", "log/1", 412),
        ("get", "log/1", 200),
        ("delete", "log/1", 204),
    ]
    stub_store.forget_requests()
    assert (sum(stub_store.counts.values()), stub_store.log) == (0, [])


def test_creates_from_many_threads_have_one_winner(stub_store: StubStore) -> None:
    statuses: list[int] = []
    together = threading.Barrier(8)

    def create(number: int) -> None:
        together.wait()
        door = InProcessDoor(stub_store)
        statuses.append(asyncio.run(door.put("log/1", b"%d" % number, if_absent=True)).status)

    threads = [threading.Thread(target=create, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(statuses) == [200] + [412] * 7
