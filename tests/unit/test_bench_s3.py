"""The parts of the benchmark's rows about a bucket that can be looked at without one."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
import typer
from bench import must
from bench.__main__ import chosen
from bench.figures import Run
from bench.rows import ALL, QUICK
from bench.s3.bucket import BucketStores, Counts, Stub
from bench.s3.process import PAYLOAD, Done, Job
from bench.s3.special import LONELY_RATE, PROCESSES, _pair
from bench.s3.team import Together
from bench.servers import command


def bucket() -> BucketStores:
    """Places in a bucket that does not run."""
    return BucketStores(Stub("http://127.0.0.1:1", "hark-stub", 1))


def run(**values: float) -> Run:
    """A run on a bucket that measured these."""
    return Run(machine={"engine": "s3", "generator": "wrk"}, values={name: [value] for name, value in values.items()})


def verdicts(measured: Run) -> dict[str, bool | None]:
    """What holds, by what it says."""
    return {f"{demand.text}, {demand.unit}": demand.holds for demand in must.demands(measured)}


def test_requests_cost_what_the_price_table_says() -> None:
    counts = Counts(put=3, get=10, list=2, delete=1000)
    assert counts.requests == 15
    assert counts.dollars == pytest.approx((3 * 5.0 + 10 * 0.4 + 2 * 5.0) / 1e6)


def test_what_was_counted_before_is_left_out() -> None:
    assert Counts(5, 6, 7, 8).since(Counts(1, 2, 3, 4)) == Counts(4, 4, 4, 4)


def test_what_several_processes_did_counts_when_it_was_pushed_and_consumed() -> None:
    parts = [Done(pushed=300, consumed=100, seconds=2), Done(pushed=100, consumed=100, seconds=4)]
    together = Together(parts, Counts(put=6, get=4))
    assert (together.pushed, together.consumed, together.seconds) == (400, 200, 4)
    assert together.throughput == pytest.approx(50)
    assert together.requests_per_message == pytest.approx(0.05)
    assert together.dollars_per_million == pytest.approx((6 * 5.0 + 4 * 0.4) / 200)


def test_a_process_that_did_nothing_costs_something_all_the_same() -> None:
    idle = Together([Done(seconds=60)], Counts(get=12))
    assert (idle.throughput, idle.requests_per_message) == (0, 12)


def test_a_payload_is_as_large_as_in_the_other_rows() -> None:
    assert len(msgspec.json.encode(PAYLOAD)) == 256


def test_the_consumer_of_a_pair_outlives_its_producer() -> None:
    producer, consumer = _pair("s3://b/p", 6)
    assert (producer.producers, producer.consumers, consumer.producers, consumer.consumers) == (1, 0, 0, 1)
    assert producer.rate == LONELY_RATE
    assert consumer.seconds > producer.seconds


def test_a_job_reaches_its_process_as_it_is() -> None:
    job = Job(target="s3://b/p?endpoint=http://h:1", name="w", producers=2, seconds=1.5, kind="wait")
    assert msgspec.json.decode(msgspec.json.encode(job), type=Job) == job


def test_each_place_is_a_prefix_of_its_own(tmp_path: Path) -> None:
    places = [bucket().create(tmp_path / name) for name in ("001-hark", "002-hark")]
    assert places[0].url == "s3://hark-stub/001-hark?endpoint=http://127.0.0.1:1"
    assert places[1].url != places[0].url
    assert command("hark", 80, places[0])[1:] == ["serve", "--port", "80", "--engine", places[0].url]


def test_a_bucket_is_not_copied(tmp_path: Path) -> None:
    place = bucket().create(tmp_path / "old")
    with pytest.raises(RuntimeError, match="can't be copied"):
        bucket().copy(place, tmp_path / "new")


def test_the_rows_of_a_bucket_are_those_of_a_bucket_alone() -> None:
    assert chosen("s3", None, quick=False) == list(ALL["s3"])
    assert chosen("s3", None, quick=True) == list(QUICK["s3"])
    assert chosen("s3", "quiet,served", quick=False) == ["served", "quiet"]
    with pytest.raises(typer.BadParameter, match="no such row: push1"):
        chosen("s3", "push1", quick=False)


def test_what_is_demanded_of_a_bucket_is_demanded_of_no_other_store() -> None:
    demanded = {bound.name for bound in must.SINGLE["s3"]}
    assert all(name.startswith("s3_") for name in demanded)
    for engine in ("sqlite", "postgres"):
        assert not demanded & {bound.name for bound in must.SINGLE[engine]}
    assert len(verdicts(run())) == len(demanded)


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("s3_served", 5000, 4999),
        ("s3_brokerless", 1000, 999),
        ("s3_single", 1.5, 1.51),
        ("s3_served_requests", 0.05, 0.051),
        ("s3_lonely_served_dollars", 0.15, 0.151),
        ("s3_quiet_gets", 12.5, 12.6),
        ("s3_quiet_lists", 0, 1),
    ],
)
def test_a_bound_is_kept_or_broken(name: str, good: float, bad: float) -> None:
    assert [holds for holds in verdicts(run(**{name: good})).values() if holds is not None] == [True]
    assert [holds for holds in verdicts(run(**{name: bad})).values() if holds is not None] == [False]


def test_there_are_as_many_processes_as_the_demand_says() -> None:
    assert PROCESSES == 4
