"""`hark doctor` on a bucket: each thing that can be wrong is found, without a LIST, and comes with advice."""

from __future__ import annotations

import json

import msgspec
import pytest

from hark.cli.doctor import Check
from hark.cli.doctor_stores import examine, find_head
from hark.clock import SECOND, FakeClock
from hark.engine.s3 import objects
from hark.engine.s3.objects import Kept, Pointer, read_or_create
from hark.settings import Polling, Settings, Worker
from hark.settings.sections import S3
from tests.cli.conftest import runner
from tests.s3.rests import Rests
from tests.s3.stub.faults import Fault
from tests.s3.stub.inprocess import StubBucket
from tests.s3.stub.server import StubServer
from tests.s3.stub.store import StubStore

SETTINGS = Settings(s3=S3(snapshot_records=10, grace_seconds=3600))


async def look(bucket: StubBucket, settings: Settings = SETTINGS) -> dict[str, Check]:
    return {check.name: check for check in await examine(bucket, settings, "unique")}


async def write_records(bucket: StubBucket, first: int, last: int) -> None:
    for seq in range(first, last + 1):
        await bucket.create(objects.record(seq), b"a record")


async def write_pointer(bucket: StubBucket, pointer: Pointer) -> None:
    await bucket.put(objects.POINTER, msgspec.json.encode(pointer))


async def test_an_empty_bucket_is_in_order_and_stays_empty(stub_bucket: StubBucket, stub_store: StubStore) -> None:
    found = await look(stub_bucket)
    assert list(found) == ["bucket", "store clock", "store", "costs"]
    assert {check.result for check in found.values()} == {"ok"}
    assert found["store"].advice == "the first server or worker creates it"
    assert stub_store.keys() == []


async def test_a_store_in_use_is_described_without_a_list(
    stub_bucket: StubBucket, stub_store: StubStore, clock: FakeClock
) -> None:
    await read_or_create(stub_bucket, clock.now())
    await write_records(stub_bucket, 20, 30)
    kept = (Kept(19, clock.now() - 60 * SECOND), Kept(25, clock.now()))
    await write_pointer(stub_bucket, Pointer("epoch", seq=25, snapshots=kept, announced=(30,), removed=12))
    before = stub_store.keys()
    found = await look(stub_bucket)
    assert {check.result for check in found.values()} == {"ok"}
    assert found["store"].detail == "format 1, 30 log records written in total"
    assert found["snapshot"].detail == "newest at record 25; a starting process reads 5 later records"
    assert found["removal"].detail == "up to 13 records and 2 snapshots to remove"
    assert stub_store.counts["list"] == 0
    assert stub_store.keys() == before


@pytest.mark.parametrize("known", [0, 7])
@pytest.mark.parametrize("newer", [0, 1, 2, 3, 4, 7, 8, 100])
async def test_the_head_is_found_by_a_search(
    stub_bucket: StubBucket, stub_store: StubStore, known: int, newer: int
) -> None:
    await write_records(stub_bucket, known + 1, known + newer)
    stub_store.forget_requests()
    assert await find_head(stub_bucket, known) == known + newer
    assert stub_store.counts["get"] <= 2 * (newer + 1).bit_length() + 1


async def test_a_store_that_ignores_conditions_or_does_not_answer_is_a_failure_with_advice(
    stub_bucket: StubBucket, clock: FakeClock
) -> None:
    found = await look(StubBucket(StubStore(clock, ignores_conditions=True), clock))
    assert [(check.name, check.result) for check in found.values()] == [("bucket", "fail")]
    assert "If-None-Match" in found["bucket"].detail
    stub_bucket.faults.next(Fault.ERROR, kind="get", key=objects.POINTER)
    found = await look(stub_bucket)
    assert (found["bucket"].result, found["store"].result, bool(found["store"].advice)) == ("ok", "fail", True)
    stub_bucket.faults.next(Fault.DROP, times=1000)
    (check,) = await examine(stub_bucket, SETTINGS, "unique", Rests().pause)
    assert (check.name, check.result) == ("bucket", "fail")
    assert check.advice.startswith("check the network")


@pytest.mark.parametrize(("seconds", "side"), [(60, "behind"), (-60, "ahead of")])
async def test_a_clock_that_differs_from_the_stores_is_a_warning(clock: FakeClock, seconds: int, side: str) -> None:
    there = FakeClock(clock.now() + seconds * SECOND)
    found = await look(StubBucket(StubStore(there), clock))
    assert found["store clock"].result == "warn"
    assert side in found["store clock"].detail


async def test_a_log_without_its_meta_or_of_a_newer_hark_is_a_failure(stub_bucket: StubBucket) -> None:
    await write_records(stub_bucket, 1, 3)
    found = await look(stub_bucket)
    assert found["store"].result == "fail"
    assert "meta.json is missing" in found["store"].detail
    await stub_bucket.create(objects.META, b'{"format":99}')
    found = await look(stub_bucket)
    assert (found["store"].result, "format 99" in found["store"].detail) == ("fail", True)


@pytest.mark.parametrize(("records", "result"), [(100, "ok"), (101, "warn")])
async def test_a_log_that_no_snapshot_shortens_is_a_warning(
    stub_bucket: StubBucket, clock: FakeClock, records: int, result: str
) -> None:
    await read_or_create(stub_bucket, clock.now())
    await write_records(stub_bucket, 1, records)
    found = await look(stub_bucket)
    assert found["snapshot"].result == result
    assert found["snapshot"].detail.startswith("none yet")


@pytest.mark.parametrize(("hours", "result"), [(2, "ok"), (3, "warn")])
async def test_what_no_one_removes_is_a_warning(
    stub_bucket: StubBucket, clock: FakeClock, hours: int, result: str
) -> None:
    await read_or_create(stub_bucket, clock.now())
    kept = (Kept(10, clock.now() - 1_000_000 * SECOND), Kept(20, clock.now() - hours * 3600 * SECOND))
    await write_pointer(stub_bucket, Pointer("epoch", seq=20, snapshots=kept))
    assert (await look(stub_bucket))["removal"].result == result


async def test_costs_follow_from_the_settings(stub_bucket: StubBucket) -> None:
    found = (await look(stub_bucket))["costs"]
    assert "$0.21 per month for an idle process; $0.11 per million messages in batches of 100;" in found.detail
    assert not found.advice
    eager = Settings(s3=S3(get_dollars=4), worker=Worker(polling=Polling(strategy="fixed", interval_ms=1000)))
    found = (await look(stub_bucket, eager))["costs"]
    assert "$10.37 per month for an idle process" in found.detail
    assert found.advice


def checks_of(url: str, code: int) -> dict[str, dict[str, str]]:
    """What the command says of a bucket, by name."""
    result = runner()("doctor", "--json", "--url", url)
    assert result.exit_code == code
    return {check["name"]: check for check in json.loads(result.stdout)}


@pytest.mark.usefixtures("no_settings")
def test_the_command_looks_at_the_bucket_that_it_is_given_and_fails_when_there_is_none(stub_server: StubServer) -> None:
    found = checks_of(stub_server.bucket_url("some/prefix"), 0)
    expected = dict.fromkeys(("python", "settings", "bucket", "store clock", "store", "costs"), "ok")
    assert {name: check["result"] for name, check in found.items()} == expected
    assert {key.split("/")[0] for _, key, _ in stub_server.store.log} == {"some"}
    for scheme, text, advice in (
        ("s3://_", "is not a bucket name", "correct it"),
        ("s3://other-", "NoSuchBucket", "create it"),
    ):
        bucket = checks_of(stub_server.bucket_url("prefix").replace("s3://", scheme), 1)["bucket"]
        assert bucket["result"] == "fail"
        assert text in bucket["detail"]
        assert advice in bucket["advice"]
