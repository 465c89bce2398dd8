"""The metrics of several processes as one."""

from __future__ import annotations

from tests.docs.test_metrics import PAGE
from tests.http.scraping import Scrape

from hark.prometheus import Histogram, counter, gauge, histogram, one, text
from hark.serving.supervising import SUMMED, Family, Merger, packed, unpacked


def families(pushed: int, *, queue: str = "a", waiting: int = 0, backlog: int = 0, took: float = 0.1) -> list[Family]:
    """What a process says of itself."""
    seconds = Histogram([1.0])
    seconds.add(took)
    return packed(
        [
            counter("hark_pushed_messages_total", "Pushed.", one(pushed)),
            counter("hark_queue_pushed_messages_total", "By queue.", [({"queue": queue}, pushed), ({"queue": ""}, 0)]),
            histogram("hark_http_request_seconds", "Took.", [({"route": "/"}, seconds)]),
            gauge("hark_waiting_pops", "Waiting.", one(waiting)),
            gauge("hark_backlog_messages", "Backlog.", one(backlog)),
            gauge("process_open_fds", "Files.", one(7)),
        ]
    )


def read(merger: Merger) -> Scrape:
    """What a scraper sees."""
    return Scrape(text(unpacked(merger.merged())).decode())


def test_counters_histograms_and_gauges_of_processes_are_summed_up() -> None:
    merger = Merger()
    merger.note(1, 1, families(3, waiting=1, took=0.5))
    merger.note(2, 1, families(4, waiting=2, took=5.0))
    assert [name for name in SUMMED if f"`{name}` | gauge" not in PAGE] == []
    found = read(merger)
    assert found("hark_pushed_messages_total") == 7
    assert found("hark_queue_pushed_messages_total", queue="a") == 7
    assert found("hark_waiting_pops") == 3
    assert found("hark_http_request_seconds_bucket", route="/", le="1") == 1
    assert found("hark_http_request_seconds_bucket", route="/", le="+Inf") == 2
    assert found("hark_http_request_seconds_sum", route="/") == 5.5


def test_what_is_of_the_store_is_notified_by_one_and_processes_are_distinguished() -> None:
    merger = Merger()
    merger.note(2, 1, families(0, backlog=11))
    merger.note(1, 1, families(0, backlog=10))
    assert read(merger)("hark_backlog_messages") == 10
    found = read(merger)
    assert [found("process_open_fds", worker=worker) for worker in ("1", "2")] == [7, 7]


def test_a_process_that_takes_the_place_of_another_makes_no_counter_fall() -> None:
    merger = Merger()
    merger.note(1, 1, families(10))
    merger.note(2, 1, families(5))
    merger.note(1, 2, families(1))
    assert read(merger)("hark_pushed_messages_total") == 16
    assert read(merger)("hark_http_request_seconds_count", route="/") == 3
    merger.note(1, 3, packed([]))
    merger.note(2, 1, families(6))
    found = read(merger)
    assert found("hark_pushed_messages_total") == 17
    assert found("hark_waiting_pops") == 0


def test_queues_that_no_live_process_speaks_of_are_forgotten() -> None:
    merger = Merger()
    merger.note(1, 1, families(10, queue="gone"))
    merger.note(2, 1, families(5, queue="a"))
    merger.note(1, 2, families(1, queue="a"))
    found = read(merger)
    queues = {sample.labels["queue"] for sample in found.samples if "queue" in sample.labels}
    assert queues == {"a", ""}
    assert found("hark_pushed_messages_total") == 16
