"""POST /configure: the answer's shape, defaults, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from tests.http.api import Api, read, refusal

DEFAULTS = {
    "leaseTime": 300,
    "retryLimit": 3,
    "retryDelay": 0,
    "retryMultiplier": 1,
    "retryMaxDelay": 3_600_000,
    "delayedProcessing": 0,
    "windowBuffer": 0,
    "priority": 0,
    "maxSize": 0,
    "ttl": 0,
    "deadLetterQueue": True,
    "dlqAfterMaxRetries": True,
    "retentionEnabled": False,
    "retentionSeconds": 0,
    "completedRetentionSeconds": 0,
    "maxWaitTimeSeconds": 0,
    "encryptionEnabled": False,
    "maxInFlight": 0,
    "rateLimit": 0,
    "rateBurst": 0,
    "dropSettled": False,
    "lockDuration": 0,
}


def test_a_queue_without_options_has_the_defaults(api: Api, queue: str) -> None:
    answer = read(api.post("/configure", {"queue": queue}))
    assert answer.pop("queueId")
    assert answer.pop("partitionId")
    assert answer == {
        "configured": True,
        "queue": queue,
        "namespace": "",
        "task": "",
        "options": DEFAULTS,
        "ignoredOptions": [],
    }


def test_options_namespace_and_task_are_kept(api: Api, queue: str) -> None:
    options = {
        "leaseTime": 10,
        "retryLimit": 0,
        "retryDelay": 5,
        "retryMultiplier": 2.5,
        "retryMaxDelay": 100,
        "delayedProcessing": 1,
        "windowBuffer": 2,
        "priority": 7,
        "maxSize": 9,
        "ttl": 60,
        "deadLetterQueue": False,
        "dlqAfterMaxRetries": False,
        "retentionEnabled": True,
        "retentionSeconds": 3,
        "completedRetentionSeconds": 4,
        "maxWaitTimeSeconds": 5,
        "encryptionEnabled": False,
        "maxInFlight": 6,
        "rateLimit": 0.5,
        "rateBurst": 8,
        "dropSettled": True,
        "lockDuration": 1500,
    }
    answer = read(api.post("/configure", {"queue": queue, "namespace": "n", "task": "t", "options": options}))
    assert (answer["namespace"], answer["task"], answer["options"]) == ("n", "t", options)
    shown = read(api.get(f"/resources/queues/{queue}"))
    assert (shown["namespace"], shown["task"], shown["options"]) == ("n", "t", options)


def test_configuring_again_replaces_every_option_and_keeps_the_queue(api: Api, queue: str) -> None:
    first = api.configure(queue, leaseTime=10, retryLimit=1)
    api.push(queue, "kept")
    second = api.configure(queue, retryLimit=2)
    assert second["options"] == DEFAULTS | {"retryLimit": 2}
    assert (second["queueId"], second["partitionId"]) == (first["queueId"], first["partitionId"])
    assert api.pop_one(queue)["data"] == "kept"


def test_unknown_options_are_ignored_and_named(api: Api, queue: str) -> None:
    answer = api.configure(queue, leaseTime=7, colour="red", retry_limit=1)
    assert sorted(answer["ignoredOptions"]) == ["colour", "retry_limit"]
    assert answer["options"] == DEFAULTS | {"leaseTime": 7}


def test_null_means_absent(api: Api, queue: str) -> None:
    body = {"queue": queue, "namespace": None, "task": None, "options": {"leaseTime": None}}
    assert read(api.post("/configure", body))["options"] == DEFAULTS
    assert read(api.post("/configure", {"queue": queue, "options": None}))["options"] == DEFAULTS


@pytest.mark.parametrize("body", [{}, {"queue": None}, {"queue": ""}, {"options": {}}])
def test_a_queue_must_be_named(api: Api, body: Any) -> None:
    assert refusal(api.post("/configure", body), 400, "invalid_input") == "queue is required"


@pytest.mark.parametrize(
    ("option", "value", "problem"),
    [
        ("leaseTime", 0, "expected an integer from 1 to"),
        ("leaseTime", -1, "expected an integer from 1 to"),
        ("leaseTime", "300", "expected an integer, got a string"),
        ("leaseTime", 1.5, "expected an integer, got a number"),
        ("leaseTime", True, "expected an integer"),
        ("leaseTime", 10**30, "expected an integer from 1 to"),
        ("leaseTime", [1], "expected an integer, got an array"),
        ("retryLimit", -1, "expected an integer from 0 to"),
        ("retryDelay", -1, "expected an integer from 0 to"),
        ("retryMultiplier", 0.5, "expected a number from 1 to 1000, got 0.5"),
        ("retryMultiplier", "2", "expected a number, got a string"),
        ("retryMaxDelay", -1, "expected an integer from 0 to"),
        ("delayedProcessing", -1, "expected an integer from 0 to"),
        ("windowBuffer", -1, "expected an integer from 0 to"),
        ("priority", "high", "expected an integer, got a string"),
        ("maxSize", -1, "expected an integer from 0 to"),
        ("ttl", -1, "expected an integer from 0 to"),
        ("retentionSeconds", -1, "expected an integer from 0 to"),
        ("completedRetentionSeconds", -1, "expected an integer from 0 to"),
        ("maxWaitTimeSeconds", -1, "expected an integer from 0 to"),
        ("deadLetterQueue", 1, "expected true or false, got an integer"),
        ("dlqAfterMaxRetries", "yes", "expected true or false, got a string"),
        ("retentionEnabled", 0, "expected true or false, got an integer"),
        ("encryptionEnabled", "true", "expected true or false, got a string"),
        ("maxInFlight", -1, "expected an integer from 0 to"),
        ("maxInFlight", "10", "expected an integer, got a string"),
        ("rateLimit", -0.5, "expected 0 (no bound) or a number from 0.0001 to 1000000, got -0.5"),
        ("rateLimit", 1e9, "expected 0 (no bound) or a number from 0.0001 to 1000000"),
        ("rateLimit", "10", "expected a number, got a string"),
        ("rateBurst", 1.5, "expected an integer, got a number"),
        ("dropSettled", 1, "expected true or false, got an integer"),
        ("lockDuration", -1, "expected an integer from 0 to"),
    ],
)
def test_a_wrong_option_is_refused_by_name_and_changes_nothing(
    api: Api, queue: str, option: str, value: Any, problem: str
) -> None:
    body = {"queue": queue, "options": {"retryLimit": 1, option: value}}
    text = refusal(api.post("/configure", body), 400, "invalid_input")
    assert text.startswith(f"options.{option}: {problem}")
    refusal(api.get(f"/resources/queues/{queue}"), 404)


def test_encryption_without_a_key_is_refused(api: Api, queue: str) -> None:
    body = {"queue": queue, "options": {"encryptionEnabled": True}}
    assert "encryption.key" in refusal(api.post("/configure", body), 400, "encryption_unavailable")
    refusal(api.get(f"/resources/queues/{queue}"), 404)


@pytest.mark.parametrize("field", ["queue", "namespace", "task"])
def test_long_names_and_nul_are_refused(api: Api, queue: str, field: str) -> None:
    for value in ("x" * 256, "a\0b"):
        text = refusal(api.post("/configure", {"queue": queue} | {field: value}), 400)
        assert text.startswith(f"{field}: ")


def test_wrong_types_are_refused_with_the_field(api: Api) -> None:
    assert refusal(api.post("/configure", {"queue": 5}), 400) == "queue: expected a string, got an integer"
    text = refusal(api.post("/configure", {"queue": "q", "options": []}), 400)
    assert text == "options: expected an object, got an array"
