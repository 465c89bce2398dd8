"""The parts of a bucket: its address, its thread, counts of requests and their cost, and the time at the store."""

from __future__ import annotations

import asyncio
import math
import os
import threading
from collections.abc import Iterator
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hark.clock import SECOND, FakeClock
from hark.engine.s3.bucket import DRIFT_PPM, Address, RequestCounter, ServerTime
from hark.engine.s3.bucket_client import IoThread
from hark.errors import InvalidSetting
from hark.settings.sections import S3


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("s3://queues", Address("queues")),
        ("s3://queues/", Address("queues")),
        ("s3://queues/some/prefix", Address("queues", "some/prefix")),
        ("s3://queues/some/prefix/", Address("queues", "some/prefix")),
        ("s3://my.queues-1/a_b.c=d", Address("my.queues-1", "a_b.c=d")),
        ("s3://queues?region=eu-west-1", Address("queues", region="eu-west-1")),
        (
            "s3://queues/p?endpoint=http://127.0.0.1:9000&region=eu-west-1",
            Address("queues", "p", "http://127.0.0.1:9000", "eu-west-1"),
        ),
        ("s3://queues/p?endpoint=https%3A%2F%2Fstore.example%2F", Address("queues", "p", "https://store.example")),
        ("s3://queues/p?endpoint=http://[::1]:9000", Address("queues", "p", "http://[::1]:9000")),
    ],
)
def test_a_url_names_bucket_prefix_endpoint_and_region(url: str, address: Address) -> None:
    assert Address.parse(url) == address


@pytest.mark.parametrize(
    ("url", "complaint"),
    [
        ("queues/prefix", "expected s3://bucket/prefix"),
        ("https://queues/prefix", "expected s3://bucket/prefix"),
        ("s3://", "names no bucket"),
        ("s3:///prefix", "names no bucket"),
        ("s3://[queues", "invalid URL"),
        ("s3://Queues", "'Queues' is not a bucket name"),
        ("s3://q", "'q' is not a bucket name"),
        ("s3://-queues", "is not a bucket name"),
        ("s3://a..b", "is not a bucket name"),
        ("s3://localhost:9000/queues", "?endpoint=http://host:port"),
        ("s3://queues/a//b", "invalid prefix 'a//b'"),
        ("s3://queues/a b", "invalid prefix"),
        ("s3://queues/a/../b", "invalid prefix"),
        ("s3://queues/" + "a" * 513, "at most 512"),
        ("s3://queues/a#b", "'#'"),
        ("s3://queues?endpont=http://127.0.0.1:1", "unknown parameter 'endpont'"),
        ("s3://queues?region=a&region=b", "region= twice"),
        ("s3://queues?region=", "is not the name of a region"),
        ("s3://queues?region=eu west", "is not the name of a region"),
        ("s3://queues?endpoint=", "endpoint= is not the URL of a server"),
        ("s3://queues?endpoint=127.0.0.1:9000", "endpoint= is not the URL of a server"),
        ("s3://queues?endpoint=http://host:port", "endpoint= is not the URL of a server"),
        ("s3://queues?endpoint=http://h/?x=1", "without credentials and parameters"),
    ],
)
def test_nonsense_is_refused_with_what_is_wrong(url: str, complaint: str) -> None:
    with pytest.raises(InvalidSetting) as caught:
        Address.parse(url)
    assert complaint in caught.value.text
    assert caught.value.text.startswith("engine: ")


@pytest.mark.parametrize("url", ["s3://key:hunter2@queues/p", "s3://queues?endpoint=http://key:hunter2@host"])
def test_credentials_in_a_url_are_refused_and_not_shown(url: str) -> None:
    with pytest.raises(InvalidSetting, match="credentials") as caught:
        Address.parse(url)
    assert "hunter2" not in caught.value.text


def test_the_name_has_neither_endpoint_nor_region_and_keys_are_under_the_prefix() -> None:
    assert Address.parse("s3://queues/p/q?endpoint=http://127.0.0.1:1&region=r").text == "s3://queues/p/q"
    assert Address.parse("s3://queues/").text == "s3://queues"

    assert Address("queues", "p/q").key("log/1") == "p/q/log/1"
    assert Address("queues").key("log/1") == "log/1"


# The thread of the bucket: its loop runs what other threads give it, and ends without leaving anything behind ---


@pytest.fixture
def io() -> Iterator[IoThread]:
    """A thread that runs."""
    thread = IoThread()
    thread.start()
    yield thread
    thread.stop()


async def name_of_thread() -> str:
    """Where a coroutine runs."""
    return threading.current_thread().name


async def fail() -> None:
    """Raise what only this test raises."""
    raise LookupError("as asked")


class Endless:
    """A coroutine that runs until it is cancelled, and says so."""

    def __init__(self) -> None:
        self.started = threading.Event()
        self.cancelled = threading.Event()

    async def run(self) -> None:
        self.started.set()
        try:
            await asyncio.Event().wait()
        finally:
            # Whatever cleans up may wait itself.
            await asyncio.sleep(0)
            self.cancelled.set()


def test_coroutines_and_functions_run_in_a_thread_of_their_own_and_errors_reach_the_one_that_waits(
    io: IoThread,
) -> None:
    assert io.run(name_of_thread()) == "hark-s3-io"
    assert io.submit(name_of_thread()).result(10) == "hark-s3-io"
    names: Future[str] = Future()
    io.call(lambda: names.set_result(threading.current_thread().name))
    assert names.result(10) == "hark-s3-io"
    with pytest.raises(LookupError, match="as asked"):
        io.run(fail())


def test_cancelling_a_future_cancels_its_coroutine(io: IoThread) -> None:
    endless = Endless()
    future = io.submit(endless.run())
    assert endless.started.wait(10)
    assert future.cancel()
    assert endless.cancelled.wait(10)


def test_stopping_cancels_what_runs_and_waits_for_its_end(io: IoThread) -> None:
    endless = Endless()
    future = io.submit(endless.run())
    assert endless.started.wait(10)
    io.stop()
    assert endless.cancelled.is_set()
    with pytest.raises(CancelledError):
        future.result(10)
    assert "hark-s3-io" not in {thread.name for thread in threading.enumerate()}


def test_nothing_runs_after_the_end_nor_before_the_start_and_another_stop_does_nothing(io: IoThread) -> None:
    io.stop()
    for idle in (io, IoThread()):
        with pytest.raises(RuntimeError, match="does not run"):
            idle.run(name_of_thread())
        with pytest.raises(RuntimeError, match="does not run"):
            idle.call(list)
        idle.stop()


def test_it_does_not_wait_for_itself(io: IoThread) -> None:
    async def wait_for_itself() -> None:
        io.run(name_of_thread())

    async def stop_itself() -> None:
        io.stop()

    with pytest.raises(RuntimeError, match="for ever"):
        io.run(wait_for_itself())
    with pytest.raises(RuntimeError, match="for ever"):
        io.run(stop_itself())


# Counts of requests, and what they cost ---------------------------------------------------------------------


def test_requests_are_counted_by_kind_with_their_bytes_failures_and_price() -> None:
    counter = RequestCounter(put_dollars=1_000_000)
    counter.sent("put", up=100)
    counter.sent("put", up=11)
    counter.failed("put")
    counter.sent("get")
    counter.received(7)
    counter.sent("delete")
    assert [counter.count(kind) for kind in ("put", "get", "list", "delete")] == [2, 1, 0, 1]
    assert (counter.failures(), counter.failures("put"), counter.failures("get")) == (1, 1, 0)
    assert (counter.bytes_up, counter.bytes_down) == (111, 7)
    assert counter.as_metrics() == {
        "s3_requests_put": 2,
        "s3_requests_get": 1,
        "s3_requests_list": 0,
        "s3_requests_delete": 1,
        "s3_requests_failed": 1,
        "s3_bytes_up": 111,
        "s3_bytes_down": 7,
        "s3_dollars": pytest.approx(2.0000004),
    }


def test_a_million_messages_in_batches_cost_what_the_contract_says() -> None:
    settings = S3()
    cases = (RequestCounter(), 0.108), (RequestCounter(settings.put_dollars, settings.get_dollars), 0.108)
    for counter, dollars in (*cases, (RequestCounter(put_dollars=10, get_dollars=0), 0.2)):
        for _ in range(20_000):
            counter.sent("put")
            counter.sent("get")
            counter.sent("delete")  # It is free.
        assert counter.dollars() == pytest.approx(dollars)


def test_threads_lose_no_count() -> None:
    counter = RequestCounter()
    start = threading.Barrier(4)

    def count() -> None:
        start.wait()
        for _ in range(5000):
            counter.sent("put", up=1)
            counter.failed("put")

    with ThreadPoolExecutor(4) as threads:
        for counting in [threads.submit(count) for _ in range(4)]:
            counting.result()
    assert (counter.count("put"), counter.failures(), counter.bytes_up) == (20_000, 20_000, 20_000)


# The time at the store, from dates that are cut to whole seconds --------------------------------------------


START = 1_700_000_000 * SECOND


def cut(time: int) -> int:
    """A time as a Date header says it."""
    return time // SECOND * SECOND


def times(after: int = 0) -> tuple[FakeClock, ServerTime]:
    """Our clock, so long after the start, and what is known of the store's."""
    clock = FakeClock(START + after)
    return clock, ServerTime(clock)


def test_a_clock_that_is_right_stays_exact_and_counts_alone_without_an_answer() -> None:
    clock, time = times(700_000)
    assert (time.offset(), time.now(), time.allowed()) == (0, clock.now(), None)
    for _ in range(50):
        sent = clock.now()
        received = clock.advance(0.137)
        time.note(cut(sent), sent, received)
        assert time.offset() == 0
        assert time.now() == clock.now()


def test_a_clock_that_is_wrong_is_moved_by_the_least_that_the_date_allows() -> None:
    _, behind = times()
    behind.note(START + 60 * SECOND, START, START)
    assert (behind.offset(), behind.allowed()) == (60 * SECOND, (60 * SECOND, 61 * SECOND))
    _, ahead = times()
    ahead.note(START - 60 * SECOND, START - 100, START)
    assert ahead.offset() == -59 * SECOND + 100


def test_more_answers_narrow_the_range_and_when_they_contradict_each_other_the_newest_counts_alone() -> None:
    _, time = times(SECOND)
    time.note(START + 60 * SECOND, START, START)
    time.note(START + 61 * SECOND, START + 300_000, START + 300_000)
    low, high = time.allowed() or (0, 0)
    assert 60_699_000 < low <= 60_700_000
    assert 61_000_000 <= high < 61_001_000
    _, time = times()
    time.note(START + 60 * SECOND, START, START)
    time.note(START, START, START)
    assert time.allowed() == (0, SECOND)


def test_an_answer_from_before_the_machine_was_suspended_does_not_turn_the_time_back() -> None:
    _, time = times(2)
    time.note(START + 7200 * SECOND, START + 1, START + 2)
    time.note(START, START, START + 2)
    assert time.now() >= START + 7200 * SECOND


def test_the_range_grows_while_there_is_no_answer_but_not_by_time_that_runs_back() -> None:
    clock, time = times()
    time.note(START + 60 * SECOND, START, START)
    clock.advance(1000)
    assert time.allowed() == (60 * SECOND - 1000 * DRIFT_PPM, 61 * SECOND + 1000 * DRIFT_PPM)
    assert time.offset() == 60 * SECOND - 1000 * DRIFT_PPM
    _, time = times(10 * SECOND)
    time.note(START + 10 * SECOND, START + 10 * SECOND, START + 10 * SECOND)
    time.note(START, START, START)
    assert time.allowed() == (0, SECOND)


answers = st.lists(
    st.tuples(
        st.integers(0, 3600 * SECOND),  # silence before the request
        st.integers(0, 5 * SECOND),  # from the request to the date
        st.integers(0, 5 * SECOND),  # from the date to the answer
    ),
    min_size=1,
    max_size=30,
)


@settings(derandomize="HARK_TEST_EXAMPLES" not in os.environ, max_examples=300)
@given(
    skew=st.integers(-(10**12), 10**12),
    drift=st.integers(-DRIFT_PPM + 1, DRIFT_PPM - 1),
    answers=answers,
    silence=st.integers(0, 3600 * SECOND),
)
def test_the_true_offset_is_always_allowed_and_the_estimate_is_near_it(
    skew: int, drift: int, answers: list[tuple[int, int, int]], silence: int
) -> None:
    clock, time = times()

    def there() -> int:
        ours = clock.now()
        return ours + skew + (ours - START) * drift // SECOND

    def move(microseconds: int) -> int:
        return clock.advance(microseconds / SECOND)

    for before, outward, back in answers:
        sent = move(before)
        move(outward)
        date = cut(there())
        received = move(back)
        time.note(date, sent, received)
    move(silence)
    true = there() - clock.now()
    low, high = time.allowed() or (0, -1)
    # Two microseconds: rounding of the clock that drifts in this test, and of the drift on the way.
    assert low - 2 <= true <= high + 2
    _, outward, back = answers[-1]
    # The last answer alone allows a second and its own round trip; since then the clocks may have drifted apart.
    passed = outward + back + silence
    widest = SECOND + outward + back + 2 * math.ceil(passed * DRIFT_PPM / SECOND) + 4
    assert abs(time.offset() - true) <= widest
    assert high - low <= widest
    if low <= 0 <= high:
        assert time.offset() == 0
