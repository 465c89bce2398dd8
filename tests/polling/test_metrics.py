"""The numbers of pollers as Prometheus reads them."""

from __future__ import annotations

from hark.polling import PollMetrics
from hark.polling.metrics import prometheus_text


def test_the_metrics_have_the_names_and_types_of_the_seed() -> None:
    metrics = PollMetrics(interval_seconds=0.1, polls=12_345_678_901, empty=2, backoffs=1)
    assert metrics.text().splitlines() == [
        "# HELP worker_poll_interval_seconds The current poll interval.",
        "# TYPE worker_poll_interval_seconds gauge",
        "worker_poll_interval_seconds 0.1",
        "# HELP worker_poll_total Polls.",
        "# TYPE worker_poll_total counter",
        "worker_poll_total 1.2345678901e+10",
        "# HELP worker_poll_empty_total Polls that found no work.",
        "# TYPE worker_poll_empty_total counter",
        "worker_poll_empty_total 2.0",
        "# HELP worker_backoff_total Times that the poll interval grew.",
        "# TYPE worker_backoff_total counter",
        "worker_backoff_total 1.0",
    ]
    assert metrics.text().endswith("\n")


def test_several_pollers_are_told_apart_by_labels_under_one_head() -> None:
    text = prometheus_text([({"queue": "a"}, PollMetrics(polls=1)), ({"queue": "b"}, PollMetrics(polls=2))])
    assert text.count("# TYPE worker_poll_total counter") == 1
    assert 'worker_poll_total{queue="a"} 1.0\nworker_poll_total{queue="b"} 2.0\n' in text


def test_labels_are_escaped() -> None:
    assert 'worker_poll_total{queue="a\\"b\\\\c\\nd",worker="w"} 0.0\n' in PollMetrics().text(
        {"queue": 'a"b\\c\nd', "worker": "w"}
    )
