"""retentionEnabled, retentionSeconds, completedRetentionSeconds and maxWaitTimeSeconds remove what they name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.conftest import running_server
from tests.http.api import Api, data


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    """A server that looks for what to remove ten times a second."""
    settings = {"HARK_RETENTION_INTERVAL_MS": "100"}
    with (
        running_server(tmp_path_factory.mktemp("quick"), settings=settings) as url,
        httpx.Client(base_url=url, timeout=30) as client,
    ):
        yield Api(client)


def wait_until_left(api: Api, queue: str, expected: list[int]) -> None:
    """Return when just these payloads are left to a group that starts at the beginning."""
    left: list[Any] = []
    for attempt in range(100):
        left = data(api.pop(queue, batch=100, consumerGroup=f"look-{attempt}"))
        api.delete(f"/consumer-groups/look-{attempt}")
        if left == expected:
            return
        api.let_pass(queue, 100)
    pytest.fail(f"still there: {left}")


def test_retention_removes_by_age_consumed_or_not(quick: Api, queue: str) -> None:
    quick.configure(queue, retentionEnabled=True, retentionSeconds=1)
    quick.push(queue, 1, 2)
    quick.ack(quick.pop_one(queue))
    wait_until_left(quick, queue, [])


def test_completed_retention_removes_what_every_group_has_done(quick: Api, queue: str) -> None:
    quick.configure(queue, retentionEnabled=True, completedRetentionSeconds=1)
    quick.push(queue, 1, 2)
    quick.ack(quick.pop_one(queue))
    wait_until_left(quick, queue, [2])


def test_max_wait_time_removes_what_was_not_consumed(quick: Api, queue: str) -> None:
    quick.configure(queue, maxWaitTimeSeconds=1)
    quick.push(queue, 1)
    quick.ack(quick.pop_one(queue), "retry")
    wait_until_left(quick, queue, [])


def test_nothing_is_removed_unless_retention_is_enabled(quick: Api, queue: str) -> None:
    quick.configure(queue, retentionEnabled=False, retentionSeconds=1, completedRetentionSeconds=1)
    quick.push(queue, 1, 2)
    quick.ack(quick.pop_one(queue))
    quick.let_pass(queue, 1500)
    assert data(quick.pop(queue, batch=10, consumerGroup="late")) == [1, 2]


def test_dead_letters_outlive_their_messages(quick: Api, queue: str) -> None:
    quick.configure(queue, retentionEnabled=True, retentionSeconds=1)
    quick.kill(queue, "dead")
    wait_until_left(quick, queue, [])
    assert data(quick.dead_letters(queue)) == ["dead"]
