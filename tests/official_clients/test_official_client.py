"""The official client, at both versions, works unchanged: what each scenario must lead to."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.servers import server_on

VERSIONS = ["0.15.0", "2.6.0"]
ROOT = Path(__file__).parents[2]
CLIENTS = Path(sys.prefix) / "queen-clients"
SECONDS = 240

Outcome = Callable[[str], Any]


@pytest.fixture(scope="module", params=VERSIONS)
def version(request: pytest.FixtureRequest) -> str:
    """A version of the client."""
    return str(request.param)


@pytest.fixture(scope="module", params=["memory", "s3"])
def server_url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server: in memory, and on a bucket."""
    with server_on(request.param, tmp_path_factory.mktemp("server")) as url:
        yield url


@pytest.fixture(scope="module")
def outcomes(version: str, server_url: str) -> dict[str, Any]:
    """What all scenarios came to, run by this version of the client."""
    folder = CLIENTS / version
    if not folder.is_dir():
        pytest.fail(f"{folder} is missing: run scripts/test, which installs the official clients")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("QUEEN_")}
    process = subprocess.run(
        [sys.executable, "-m", "tests.official_clients.scenarios", server_url],
        cwd=ROOT,
        env=environment | {"PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    said = f"{process.stdout[-5000:]}\n{process.stderr[-5000:]}"
    assert process.returncode == 0, said
    result: dict[str, Any] = json.loads(process.stdout.strip().rpartition("\n")[2])
    return result


@pytest.fixture
def outcome(outcomes: dict[str, Any]) -> Outcome:
    """The result of one scenario; fails with its traceback if it had none."""

    def read(name: str) -> Any:
        assert "error" not in outcomes[name], outcomes[name]["error"]
        return outcomes[name]["result"]

    return read


def test_configure(outcome: Outcome, outcomes: dict[str, Any]) -> None:
    made, plain = outcome("configure")["made"], outcome("configure")["plain"]
    assert (made["configured"], made["queue"]) == (True, outcomes["configure"]["queue"])
    assert (made["namespace"], made["task"]) == ("ns", "tk")
    options = made["options"]
    assert (options["leaseTime"], options["retryLimit"], options["priority"]) == (60, 5, 7)
    assert made["ignoredOptions"] == []
    assert (plain["options"]["leaseTime"], plain["ignoredOptions"]) == (300, [])


def test_push_pop_and_ack(outcome: Outcome) -> None:
    assert outcome("push_and_pop") == {
        "pushed": ["queued", "queued", "queued"],
        "none": [],
        "duplicates": ["t1"],
        "data": [{"n": 1}, None, {"n": 3}],
        "trace": True,
        "while_leased": [],
        "acked": [True, True],
        "left": [],
    }


def test_names_with_spaces_and_unicode(outcome: Outcome) -> None:
    assert outcome("names") == {"partition": "p é 1", "acked": True, "deleted": True}


def test_consume_with_concurrency_and_batches_keeps_order(outcome: Outcome) -> None:
    result = outcome("consume_with_concurrency")
    assert result["seen"] == {f"p{partition}": list(range(10)) for partition in range(8)}
    assert result["left"] == []


def test_consume_each_stops_at_its_limit(outcome: Outcome) -> None:
    assert outcome("consume_each_with_limit") == {"seen": [0, 1], "left": [2, 3]}


def test_a_nacked_message_comes_again_before_the_next(outcome: Outcome) -> None:
    assert outcome("nack_and_retry") == {"seen": ["flaky", "flaky", "flaky", "next"], "dead": 0}


def test_a_message_that_always_fails_ends_in_the_dead_letters(outcome: Outcome, version: str) -> None:
    result = outcome("failing_for_good")
    assert result["seen"] == ["fine", "poison", "poison", "poison"]
    assert (result["total"], result["filtered"], result["paged"], result["late"]) == (1, 1, 0, 0)
    letter = result["letter"]
    assert (letter["data"], letter["transactionId"], letter["partition"]) == ("poison", "t", "bad")
    assert (letter["retryCount"], letter["consumerGroup"]) == (2, "__QUEUE_MODE__")
    if version == "2.6.0":
        assert letter["errorMessage"] == "boom"


def test_ack_statuses(outcome: Outcome) -> None:
    assert outcome("ack_in_all_ways") == {
        "batch": [True, True, True, True],
        "redelivered": [1, 2],
        "stale": False,
        "letters": [[3, "bad one"]],
        "done": True,
        "left": [],
    }


def test_transactions(outcome: Outcome) -> None:
    result = outcome("transactions")
    assert result.pop("refused")
    assert result == {
        "committed": [["ack", True], ["push", True], ["push", True]],
        "out": ["a", {"b": 1}],
        "failed_comes_again": [2],
        "group": [1, 2],
        "group_left": [],
    }


def test_groups_start_at_all_at_new_and_at_a_time(outcome: Outcome) -> None:
    assert outcome("subscriptions") == {
        "early": [],
        "new": ["fresh"],
        "all": ["old", "fresh"],
        "time": ["fresh"],
        "default": ["old", "fresh"],
        "now": [],
    }


def test_multi_partition_pop(outcome: Outcome) -> None:
    assert outcome("many_partitions") == {
        "data": [0, 0, 1, 1, 2, 2],
        "leases": 1,
        "partitions": 3,
        "renewed": [True],
        "acked": True,
        "left": [],
    }


def test_lease_renewal(outcome: Outcome, version: str) -> None:
    result = outcome("lease_renewal")
    assert result["by_hand"] == [True, True]
    # The old client calls every answered renewal a success; only the missing time tells.
    assert result["unknown"] == [version == "0.15.0", None]
    assert 35 < result["moved_seconds"] < 60
    assert result["left"] == []


def test_deleting_groups_and_queues(outcome: Outcome) -> None:
    assert outcome("deletions") == {
        "done": [],
        "deleted_group": True,
        "anew": [1],
        "moved": [True, 1, "2020-01-01T00:00:00.000Z"],
        "deleted": [True, True, True, False],
        "left": [],
    }


def test_traces(outcome: Outcome) -> None:
    assert outcome("traces") == {
        "recorded": [True, True],
        "of_message": [["step", {"a": 1}], ["info", {"b": 2}]],
        "by_name": [[{"a": 1}, {"n": 1}]],
        "named": True,
    }


def test_buffered_push(outcome: Outcome) -> None:
    assert outcome("buffered_push") == {"buffered": True, "data": list(range(7))}


def test_pop_by_namespace_and_task(outcome: Outcome) -> None:
    assert outcome("pop_by_labels") == {"by_task": ["mail"], "by_namespace": ["billing"], "queue": True}


def test_long_polling(outcome: Outcome) -> None:
    assert outcome("long_poll") == {"data": "news", "empty": []}


def test_administration(outcome: Outcome) -> None:
    assert outcome("administration") == {
        "overview": True,
        "namespaces": True,
        "tasks": True,
        "queues": True,
        "queue": 2,
        "messages": 2,
        "message": 1,
        "groups": True,
        "group": 1,
        "lagging": True,
        "refresh": True,
        "seek": 1,
        "forgotten": True,
        "deleted": True,
        "health": "healthy",
    }


def test_auto_ack_at_delivery(outcome: Outcome, version: str) -> None:
    result = outcome("auto_ack_at_delivery")
    if version == "0.15.0":
        assert result is None, "this client can't ask for it"
        return
    assert (result["data"], result["leases"], result["left"]) == ([1, 2], ["", ""], [3])
    assert (result["depth"]["pending"], result["depth"]["partitionsPending"]) == (1, 1)
