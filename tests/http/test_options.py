"""Options of queues and messages, limits of groups: how they are set and shown, their bounds, and that each has effect.

Time is that of a server whose clock the test moves: what is due is due at its millisecond, and nothing is waited for.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from hark.testing.server import HarkServer
from tests.http.api import WAIT, Api, Json, data, read, refusal
from tests.http.streaming import listening
from tests.servers import running_server

YEAR = 365 * 86_400
MODES = ["ordered", "shared"]
NUMBERS: dict[str, tuple[float, float, float, float]] = {
    "leaseTime": (300, 10, 1, 10 * YEAR),
    "retryLimit": (3, 0, 0, 1000),
    "retryDelay": (0, 5, 0, 10 * YEAR * 1000),
    "retryMultiplier": (1, 2.5, 1, 1000),
    "retryMaxDelay": (3_600_000, 100, 0, 10 * YEAR * 1000),
    "delayedProcessing": (0, 1, 0, 10 * YEAR),
    "windowBuffer": (0, 2, 0, YEAR),
    "priority": (0, 7, -1_000_000, 1_000_000),
    "maxSize": (0, 9, 0, 2**53 - 1),
    "ttl": (0, 60, 0, 100 * YEAR),
    "retentionSeconds": (0, 3, 0, 100 * YEAR),
    "completedRetentionSeconds": (0, 4, 0, 100 * YEAR),
    "maxWaitTimeSeconds": (0, 5, 0, 100 * YEAR),
    "deadLetterRetentionSeconds": (0, 9, 0, 100 * YEAR),
    "maxInFlight": (0, 6, 0, 1_000_000_000),
    "rateLimit": (0, 0.5, 0, 1_000_000),
    "rateBurst": (0, 8, 0, 1_000_000_000),
    "maxInFlightPerPartition": (0, 6, 0, 1_000_000_000),
    "rateLimitPerPartition": (0, 0.5, 0, 1_000_000),
    "rateBurstPerPartition": (0, 8, 0, 1_000_000_000),
    "lockDuration": (0, 1500, 0, 10 * YEAR * 1000),
}
"""Options that are numbers: the default, something else, the least and the most."""
FRACTIONS = {
    "retryMultiplier": "from 1 to 1000",
    "rateLimit": "from 0.0001 to 1000000",
    "rateLimitPerPartition": "from 0.0001 to 1000000",
}
LIMITS = tuple(
    f"{name}{suffix}" for suffix in ("", "PerPartition") for name in ("maxInFlight", "rateLimit", "rateBurst")
)
SWITCHES = {
    "deadLetterQueue": True,
    "dlqAfterMaxRetries": True,
    "retentionEnabled": False,
    "encryptionEnabled": False,
    "dropSettled": False,
}
DEFAULTS = {name: default for name, (default, _, _, _) in NUMBERS.items()} | SWITCHES
OTHERS = {name: other for name, (_, other, _, _) in NUMBERS.items()} | {
    name: not default for name, default in SWITCHES.items() if name != "encryptionEnabled"
}


# Setting and showing ---------------------------------------------------------------------------------------


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
    answer = read(api.post("/configure", {"queue": queue, "namespace": "n", "task": "t", "options": OTHERS}))
    for shown in (answer, read(api.get(f"/resources/queues/{queue}"))):
        assert (shown["namespace"], shown["task"]) == ("n", "t")
        assert shown["options"] == OTHERS | {"encryptionEnabled": False}


def test_configuring_again_replaces_every_option_and_keeps_the_queue(api: Api, queue: str) -> None:
    first = api.configure(queue, leaseTime=10, retryLimit=1)
    api.push(queue, "kept")
    second = api.configure(queue, retryLimit=2)
    assert second["options"] == DEFAULTS | {"retryLimit": 2}
    assert (second["queueId"], second["partitionId"]) == (first["queueId"], first["partitionId"])
    assert api.pop_one(queue)["data"] == "kept"


def test_unknown_options_are_ignored_and_named_and_null_means_absent(api: Api, queue: str) -> None:
    answer = api.configure(queue, leaseTime=7, colour="red", retry_limit=1)
    assert sorted(answer["ignoredOptions"]) == ["colour", "retry_limit"]
    assert answer["options"] == DEFAULTS | {"leaseTime": 7}
    for options in ({"leaseTime": None}, None):
        body = {"queue": queue, "namespace": None, "task": None, "options": options}
        assert read(api.post("/configure", body))["options"] == DEFAULTS


def wrong_numbers(name: str) -> Iterator[tuple[Any, str]]:
    """What a number can't be, each with what is said of it."""
    _, _, low, high = NUMBERS[name]
    kind, bounds = ("a number", FRACTIONS[name]) if name in FRACTIONS else ("an integer", f"from {low} to {high}")
    kind_within = f"{'0 (no limit) or ' if name.startswith('rateLimit') else ''}{kind}"
    for value in (low - 1, high + 1, 10**30, *([0.00001] if name.startswith("rateLimit") else [])):
        yield value, f"expected {kind_within} {bounds}, got "
    others: list[tuple[Any, str]] = [("5", "a string"), (True, "true or false"), ([1], "an array")]
    yield from ((other, f"expected {kind}, got {what}") for other, what in others)
    if name not in FRACTIONS:
        yield 1.5, "expected an integer, got a number"


@pytest.mark.parametrize("option", NUMBERS)
def test_a_number_is_taken_within_its_bounds_and_else_refused_by_name(api: Api, queue: str, option: str) -> None:
    for value in NUMBERS[option][2:]:
        options = {"rateLimit": 1, "rateLimitPerPartition": 1, option: value}
        assert api.configure(queue, **options)["options"] == DEFAULTS | options
    for wrong, problem in wrong_numbers(option):
        body = {"queue": f"{queue}-wrong", "options": {"retryLimit": 1, option: wrong}}
        text = refusal(api.post("/configure", body), 400, "invalid_input")
        assert text.startswith(f"options.{option}: {problem}")
    refusal(api.get(f"/resources/queues/{queue}-wrong"), 404)


@pytest.mark.parametrize("option", SWITCHES)
def test_a_switch_is_true_or_false(api: Api, queue: str, option: str) -> None:
    for value, what in ((1, "an integer"), (0, "an integer"), ("true", "a string")):
        text = refusal(api.post("/configure", {"queue": queue, "options": {option: value}}), 400, "invalid_input")
        assert text == f"options.{option}: expected true or false, got {what}"
    refusal(api.get(f"/resources/queues/{queue}"), 404)


# Effects: time ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def server() -> Iterator[HarkServer]:
    """A server whose clock stands still until a test moves it."""
    with HarkServer() as server:
        yield server


@pytest.fixture(scope="module")
def timed(server: HarkServer) -> Iterator[Api]:
    """Its API."""
    with httpx.Client(base_url=server.url, timeout=30) as client:
        yield Api(client)


def after(server: HarkServer, api: Api, queue: str, seconds: float, **query: Any) -> list[Json]:
    """What a pop gets at that time, after it got nothing a millisecond earlier."""
    if seconds:
        server.clock.advance(seconds - 0.001)
        assert api.pop(queue, **query) == []
        server.clock.advance(0.001)
    return api.pop(queue, **query)


@pytest.mark.parametrize("mode", MODES)
def test_a_lease_lasts_as_the_queue_or_its_consumer_says_unless_it_has_a_lock_duration(
    server: HarkServer, timed: Api, queue: str, mode: str
) -> None:
    timed.configure(queue, leaseTime=60)
    timed.push(queue, 1)
    rows: list[tuple[dict[str, Any], float]] = [({}, 60), ({"leaseTime": 5}, 5), ({"leaseTime": 5000}, 5000)]
    rows += [({"leaseSeconds": 9}, 9), ({"leaseTime": 6, "leaseSeconds": 9}, 6)]
    for lock_duration, cases in ((0, rows), (7000, [({"leaseTime": 60}, 7)])):
        path = f"/keyval/api/queue/settings?queue={queue}"
        read(timed.client.put(path, json={"lockDuration": lock_duration}))
        for params, seconds in cases:
            query: dict[str, Any] = {"consumerGroup": f"{lock_duration} {seconds}", "groupMode": mode}
            first = timed.pop_one(queue, **query, **params)
            [again] = after(server, timed, queue, seconds, **query)
            assert (again["id"], again["deliveryAttempt"]) == (first["id"], 2)
            assert timed.ack(first)["success"] is False
            assert timed.ack(again)["success"] is True


@pytest.mark.parametrize(
    ("options", "fields", "delays"),
    [
        ({"retryDelay": 300}, {}, [0.3, 0.3]),
        ({"retryDelay": 100, "retryMultiplier": 4}, {}, [0.1, 0.4]),
        ({"retryDelay": 1, "retryMultiplier": 1000, "retryMaxDelay": 200}, {}, [0.001, 0.2, 0.2]),
        ({"retryLimit": 0}, {"backoffSchedule": [0, 200]}, [0, 0.2]),
    ],
    ids=["retryDelay", "retryMultiplier", "retryMaxDelay", "backoffSchedule"],
)
def test_a_failed_message_comes_again_after_its_delay(
    server: HarkServer, timed: Api, queue: str, options: Json, fields: Json, delays: list[float]
) -> None:
    timed.configure(queue, **options)
    timed.push(queue, 1, **fields)
    message = timed.pop_one(queue)
    for seconds in delays:
        assert timed.ack(message, "failed")["success"]
        [message] = after(server, timed, queue, seconds)
    assert timed.ack(message, "failed")["dlq"] is ("backoffSchedule" in fields or len(delays) == 3)


@pytest.mark.parametrize(
    ("options", "fields", "seconds"),
    [
        ({"delayedProcessing": 1}, {}, 1),
        ({"windowBuffer": 1}, {}, 1),
        ({}, {"delay": 300}, 0.3),
        ({}, {"deliverAt": 2}, 2),
        ({}, {"deliverAt": -1_000_000}, 0),
    ],
    ids=["delayedProcessing", "windowBuffer", "delay", "deliverAt", "deliverAt in the past"],
)
def test_messages_come_when_their_time_is_there(
    server: HarkServer, timed: Api, queue: str, options: Json, fields: Json, seconds: float
) -> None:
    timed.configure(queue, **options)
    if "deliverAt" in fields:
        fields = {"deliverAt": (server.clock.now() + timedelta(seconds=fields["deliverAt"])).isoformat()}
    timed.push(queue, 1, **fields)
    timed.push(queue, 2, **fields)
    assert data(after(server, timed, queue, seconds, batch=10)) == [1, 2]


@pytest.mark.parametrize(("options", "fields"), [({"ttl": 1}, {}), ({}, {"ttl": 1000})], ids=["queue", "message"])
def test_a_message_beyond_its_time_to_live_is_not_delivered_but_counted(
    server: HarkServer, timed: Api, queue: str, options: Json, fields: Json
) -> None:
    timed.configure(queue, **options)
    timed.push(queue, "short", **fields)
    timed.push(queue, "long", ttl=5000)
    timed.push(queue, "kept", partition="p", **fields)
    server.clock.advance(0.999)
    assert data(timed.pop(queue, "p")) == ["kept"]
    server.clock.advance(0.001)
    assert data(timed.pop(queue, "Default", batch=10)) == ["long"]
    assert read(timed.get(f"/resources/queues/{queue}"))["expired"] == 1


@pytest.mark.parametrize(
    ("options", "left"),
    [
        ({"retentionEnabled": True, "retentionSeconds": 1}, []),
        ({"retentionEnabled": True, "completedRetentionSeconds": 1}, [2]),
        ({"maxWaitTimeSeconds": 1}, [1]),
        ({"retentionEnabled": False, "retentionSeconds": 1, "completedRetentionSeconds": 1}, [1, 2]),
    ],
    ids=["retentionSeconds", "completedRetentionSeconds", "maxWaitTimeSeconds", "retentionEnabled"],
)
def test_retention_removes_what_its_option_names(
    server: HarkServer, timed: Api, queue: str, options: Json, left: list[int]
) -> None:
    timed.configure(queue, **options)
    timed.push(queue, 1, 2)
    timed.ack(timed.pop_one(queue))
    timed.kill(queue, "dead", partition="p")
    server.clock.advance(1.001)
    assert data(timed.pop(queue, "Default", batch=10, consumerGroup="late")) == left
    assert data(timed.dead_letters(queue)) == ["dead"], "they outlive their messages"


def test_a_server_removes_what_is_over_without_being_requested(tmp_path: Path, queue: str) -> None:
    settings = {"HARK_RETENTION_INTERVAL_MS": "100"}
    with running_server(tmp_path, settings=settings) as url, httpx.Client(base_url=url, timeout=30) as client:
        api = Api(client)
        api.configure(queue, maxWaitTimeSeconds=1)
        api.push(queue, 1)
        for _ in range(100):
            if not read(api.get(f"/resources/queues/{queue}"))["totals"]["total"]:
                return
            api.let_pass(queue, 100)
        pytest.fail("it is still there")


# Effects: dead letters, order and size ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "died", "kept"),
    [
        ({}, [True, True], ["sent", "exhausted"]),
        ({"dlqAfterMaxRetries": False}, [False, True], ["sent"]),
        ({"deadLetterQueue": False}, [False, False], []),
    ],
    ids=["all", "dlqAfterMaxRetries", "deadLetterQueue"],
)
def test_what_becomes_no_dead_letter_is_discarded_and_counted(
    api: Api, queue: str, options: Json, died: list[bool], kept: list[str]
) -> None:
    api.configure(queue, retryLimit=0, **options)
    api.push(queue, "exhausted", "sent")
    results = [api.ack(api.pop_one(queue), status) for status in ("failed", "dlq")]
    assert [(result["success"], result["dlq"]) for result in results] == [(True, one) for one in died]
    assert data(api.dead_letters(queue)) == kept
    assert read(api.get(f"/resources/queues/{queue}"))["discarded"] == 2 - len(kept)
    assert api.pop(queue) == []


def test_keys_if_undelivered_get_the_payload(api: Api, queue: str) -> None:
    api.push(queue, {"n": 1}, keysIfUndelivered=[[queue, "one"], [queue, "other"]])
    keys = [f"/keyval/api/keys/{queue}/{name}" for name in ("one", "other")]
    assert [api.client.get(key).status_code for key in keys] == [404, 404]
    api.ack(api.pop_one(queue), "dlq")
    assert [read(api.client.get(key))["value"] for key in keys] == [{"n": 1}, {"n": 1}]


def test_max_size_counts_what_the_slowest_group_has_not_done(api: Api, queue: str) -> None:
    api.configure(queue, maxSize=2)
    api.push(queue, 1)
    [fits, not_] = read(api.post("/push", {"items": [{"queue": queue}, {"queue": queue}]}), 201)
    assert (fits["status"], not_["status"], not_["code"]) == ("queued", "failed", "queue_full")
    api.ack(api.pop_one(queue))
    api.push(queue, 3)
    response = api.post("/push", {"items": [{"queue": queue}]})
    refusal(response, 429, "queue_full")
    assert int(response.headers["retry-after"]) >= 1
    answer = api.transact({"type": "push", "queue": queue})
    assert (answer["success"], answer["code"]) == (False, "queue_full")
    api.configure(queue, maxSize=0)
    api.push(queue, 4)


@pytest.mark.parametrize("mode", MODES)
def test_drop_settled_removes_what_all_groups_have_settled(api: Api, queue: str, mode: str) -> None:
    api.configure(queue, dropSettled=True)
    api.push(queue, 1, 2)
    first, second = api.pop(queue, batch=2, groupMode=mode)
    api.ack(first)
    left = read(api.get("/messages", queue=queue))["messages"]
    assert [message["id"] for message in left] == [second["id"]]
    assert read(api.get(f"/resources/queues/{queue}"))["totals"]["total"] == 1
    assert data(api.pop(queue, batch=10, consumerGroup="late")) == [2]
    api.ack(second)
    assert len(read(api.get("/messages", queue=queue))["messages"]) == 1, "another group has not settled it"


# Effects: encryption ---------------------------------------------------------------------------------------

KEY = "ab" * 32
SECRET = "the quick brown secret"


@contextmanager
def encrypting(directory: Path, key: str | None = KEY) -> Iterator[Api]:
    """A server on the directory's database, with or without a key."""
    settings = {} if key is None else {"HARK_ENCRYPTION_KEY": key}
    with (
        running_server(directory, engine=f"sqlite:///{directory / 'hark.db'}", settings=settings) as url,
        httpx.Client(base_url=url, timeout=30) as client,
    ):
        yield Api(client)


def test_encryption_without_a_key_is_refused(api: Api, queue: str) -> None:
    body = {"queue": queue, "options": {"encryptionEnabled": True}}
    assert "encryption.key" in refusal(api.post("/configure", body), 400, "encryption_unavailable")
    refusal(api.get(f"/resources/queues/{queue}"), 404)


def test_payloads_are_unreadable_at_rest_and_without_the_key_nothing_is_delivered_nor_counted(
    tmp_path: Path, queue: str
) -> None:
    with encrypting(tmp_path) as api:
        api.configure(queue, encryptionEnabled=True)
        api.push(queue, {"text": SECRET})
        api.transact({"type": "push", "queue": queue, "payload": [SECRET]})
        with listening(str(api.client.base_url), f"/queue/{queue}", browse=True, from_="head") as events:
            assert events.message()["data"] == {"text": SECRET}
        first, second = api.pop(queue, batch=10)
        assert (first["data"], second["data"]) == ({"text": SECRET}, [SECRET])
        shown = api.show(first)
        assert (shown["payload"], shown["isEncrypted"]) == ({"text": SECRET}, True)
        api.ack(first, "dlq")
        assert data(api.dead_letters(queue)) == [{"text": SECRET}]
    assert [path.name for path in tmp_path.iterdir() if SECRET.encode() in path.read_bytes()] == []
    with encrypting(tmp_path, key=None) as api:
        assert api.try_pop(queue, consumerGroup="g").status_code == 204
        refusal(api.post("/push", {"items": [{"queue": queue}]}), 503)
    with encrypting(tmp_path) as api:
        message = api.pop_one(queue, consumerGroup="g", wait=True, timeout=20_000)  # It is withheld for some seconds.
        assert (message["data"], message["deliveryAttempt"]) == ({"text": SECRET}, 1)
        assert data(api.pop(queue)) == [[SECRET]]


def test_encryption_can_be_switched_with_messages_in_the_queue_and_ends_with_the_queue(
    tmp_path: Path, queue: str
) -> None:
    with encrypting(tmp_path) as api:
        for number, enabled in enumerate((False, True, False)):
            api.configure(queue, encryptionEnabled=enabled)
            api.push(queue, number)
        assert data(api.pop(queue, batch=10)) == [0, 1, 2]
        api.configure(queue, encryptionEnabled=True)
        read(api.delete(f"/resources/queues/{queue}"))
        api.push(queue, 1)
        message = api.pop_one(queue)
        assert (message["data"], api.show(message)["isEncrypted"]) == (1, False)


# Limits ----------------------------------------------------------------------------------------------------

NONE = dict.fromkeys(LIMITS, 0)


def limits_path(queue: str) -> str:
    """The route of the limits of group g."""
    return f"/consumer-groups/g/queues/{queue}/limits"


def limit(api: Api, queue: str, **limits: Any) -> Json:
    """Set the limits of group g."""
    return read(api.put(limits_path(queue), limits))


def test_limits_of_a_group_are_replaced_and_shown(api: Api, queue: str) -> None:
    for response in (api.get(limits_path(queue)), api.put(limits_path(queue), {"maxInFlight": 1})):
        assert refusal(response, 404, "group_not_found") == "Consumer group not found"
    assert read(api.get("/consumer-groups", queue=queue)) == []
    api.push(queue, 1)
    api.pop(queue, consumerGroup="g")
    answer = {"success": True, "consumerGroup": "g", "queueName": queue}
    assert read(api.get(limits_path(queue))) == answer | {"limits": NONE}
    limits = dict(zip(LIMITS, (3, 0.5, 7, 4, 0.25, 8), strict=True))
    assert limit(api, queue, **limits) == answer | {"limits": limits}
    assert read(api.get(limits_path(queue))) == answer | {"limits": limits}
    [listed] = read(api.get("/consumer-groups", queue=queue))
    assert listed["limits"] == limits
    assert limit(api, queue, rateLimit=2, maxInFlight=None)["limits"] == NONE | {"rateLimit": 2}
    assert limit(api, queue)["limits"] == NONE


def test_a_group_gets_its_limits_before_the_first_push_to_its_queue(api: Api, queue: str) -> None:
    assert api.pop(queue, consumerGroup="g", groupMode="shared") == []
    assert limit(api, queue, maxInFlight=1)["limits"] == NONE | {"maxInFlight": 1}
    api.push(queue, 1, 2)
    api.pop_one(queue, consumerGroup="g")
    assert api.pop(queue, consumerGroup="g") == []


def test_a_wrong_limit_is_refused_by_name_and_changes_nothing(api: Api, queue: str) -> None:
    api.push(queue, 1)
    api.pop(queue, consumerGroup="g")
    limit(api, queue, maxInFlight=9)
    wrong: list[tuple[Json, str]] = [
        ({name: value}, f"{name}: {problem}") for name in LIMITS for value, problem in wrong_numbers(name)
    ]
    wrong += [
        ({"maxInflight": 5}, "'maxInflight': unknown limit; expected maxInFlight, rateLimit, rateBurst, "),
        ({"rateBurst": 5}, "rateBurst: allowed only together with rateLimit; set both"),
        (
            {"rateBurstPerPartition": 5, "rateLimit": 1},
            "rateBurstPerPartition: allowed only together with rateLimitPerPartition; set both",
        ),
    ]
    for body, text in wrong:
        assert refusal(api.put(limits_path(queue), body), 400, "invalid_input").startswith(text)
    assert read(api.get(limits_path(queue)))["limits"] == NONE | {"maxInFlight": 9}


@pytest.mark.parametrize("mode", MODES)
def test_a_group_never_holds_more_than_max_in_flight(api: Api, queue: str, mode: str) -> None:
    group = {"consumerGroup": "g", "groupMode": mode}
    api.push(queue, *range(5))
    api.pop(queue, autoAck=True, **group)
    limit(api, queue, maxInFlight=2)
    leased = api.pop(queue, batch=10, **group)
    assert len(leased) == 2
    assert api.pop(queue, batch=10, **group) == []
    assert data(api.pop(queue, batch=10, consumerGroup="other")) == [0, 1, 2, 3, 4], "it is the limit of one group"
    for message in leased:
        api.ack(message)
    assert data(api.pop(queue, batch=10, **group)) == [3, 4]


def test_room_that_a_settlement_makes_reaches_who_waits(api: Api, queue: str) -> None:
    api.configure(queue, maxInFlight=1)
    api.push(queue, 1, 2)
    leased = api.pop_one(queue, groupMode="shared")
    assert api.pop(queue, consumerGroup="other") == [], "it is the limit of all groups"
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(api.pop_one, queue, groupMode="shared", **WAIT)
        api.ack(leased)
        assert waiting.result()["data"] == 2


@pytest.mark.parametrize("mode", MODES)
def test_a_rate_is_not_passed_and_waiting_brings_the_next(
    server: HarkServer, timed: Api, queue: str, mode: str
) -> None:
    group: dict[str, Any] = {"consumerGroup": "g", "groupMode": mode, "autoAck": True}
    timed.push(queue, *range(5))
    timed.pop(queue, **group)
    limit(timed, queue, rateLimit=4, rateBurst=1)
    assert data(timed.pop(queue, batch=10, **group)) == [1]
    assert data(after(server, timed, queue, 0.25, batch=10, **group)) == [2]
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(timed.pop, queue, batch=10, **group, **WAIT)
        while not server.waiting:
            time.sleep(0.001)
        server.clock.advance(0.249)
        assert server.waiting
        server.clock.advance(0.001)
        assert data(waiting.result()) == [3]
