"""Servers and workers that tell each other of work: nobody has to look for it, since looks are an hour apart here."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from tests.broker.peers.ports import free_ports
from tests.cli.test_workers import Serving, address
from tests.cli.test_workers import serving as serving_workers
from tests.http.api import WAIT, Api, data
from tests.postgres.serving import CLIENT_SECONDS, serving, wait_for_group

NO_LOOKS = {"HARK_FALLBACK_INITIAL_MS": "3600000", "HARK_FALLBACK_MAX_MS": "3600000"}


@pytest.fixture
def apis(postgres_url: str, tmp_path: Path) -> Iterator[tuple[Api, Api]]:
    """Two servers that are peers by the secret of their store."""
    port = free_ports(2)
    one_port, other_port = str(port), str(port + 1)
    one = NO_LOOKS | {"HARK_PEER_PORT": one_port, "HARK_PEERS": f"127.0.0.1:{other_port}"}
    other = NO_LOOKS | {"QUEEN_UDP_NOTIFY_PORT": other_port, "QUEEN_UDP_PEERS": f"127.0.0.1:{one_port}"}
    with serving(tmp_path, postgres_url, **one) as here, serving(tmp_path, postgres_url, **other) as there:
        yield here, there


def test_a_pop_that_waits_on_one_server_is_woken_by_a_push_to_the_other(apis: tuple[Api, Api], queue: str) -> None:
    with ThreadPoolExecutor(1) as thread:
        for waiter, pusher in (apis, apis[::-1]):
            group = f"of {id(waiter)}"
            waiting = thread.submit(waiter.pop, queue, consumerGroup=group, subscriptionMode="new", **WAIT)
            wait_for_group(pusher, queue, group)
            pusher.push(queue, group, partition="p")
            assert data(waiting.result()) == [group]


def test_a_pop_that_waits_is_woken_when_the_other_server_frees_the_partition(apis: tuple[Api, Api], queue: str) -> None:
    one, other = apis
    one.push(queue, *range(10))
    message = one.pop_one(queue, consumerGroup="g")
    with ThreadPoolExecutor(1) as thread:
        for number in range(1, 10):
            waiting = thread.submit(other.pop, queue, consumerGroup="g", **WAIT)
            assert other.pop(queue, consumerGroup="g") == []  # Most likely the other pop has arrived before this one.
            one.ack(message)
            [message] = waiting.result()
            assert message["data"] == number
            one, other = other, one


@pytest.fixture
def workers(tmp_path: Path, postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Serving]:
    """Two workers of one server."""
    for name, value in NO_LOOKS.items():
        monkeypatch.setenv(name, value)
    with serving_workers(tmp_path, "--workers", "2", "--port", "0", "--engine", postgres_url) as running:
        yield running


def test_pops_that_wait_on_any_worker_are_woken_by_a_push_to_one(workers: Serving, queue: str) -> None:
    _wake_all(workers, queue)


def test_a_worker_that_replaces_another_hears_its_peers_at_the_same_port(workers: Serving, queue: str) -> None:
    address(workers)
    os.kill(workers.workers()[1], signal.SIGKILL)
    workers.wait_for(re.compile("worker 1 ended with signal SIGKILL; starting another"))
    workers.workers(times=3)
    _wake_all(workers, queue)


def _wake_all(workers: Serving, queue: str) -> None:
    groups = [f"g{number}" for number in range(12)]
    # Each on a connection of its own, so that the kernel spreads them over the workers.
    with httpx.Client(base_url=address(workers), timeout=CLIENT_SECONDS) as client, ThreadPoolExecutor(12) as threads:
        api = Api(client)
        waiting = [threads.submit(_pop, address(workers), queue, group) for group in groups]
        for group in groups:
            wait_for_group(api, queue, group)
        api.push(queue, "for all")
        assert [data(popped.result()) for popped in waiting] == [["for all"]] * 12


def _pop(url: str, queue: str, group: str) -> list[object]:
    with httpx.Client(base_url=url, timeout=CLIENT_SECONDS) as client:
        return Api(client).pop(queue, consumerGroup=group, **WAIT)
