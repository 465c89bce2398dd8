"""`hark queue`, `group`, `dlq` and their limits: what they print, and how they fail."""

from __future__ import annotations

from datetime import datetime

import pytest

from .commands import LIMITS, QUEUE
from .conftest import Run, words
from .stub import Stub

# Queues ----------------------------------------------------------------------------------------------------


def test_queue_list_shows_a_table_or_says_how_to_make_a_queue(hark: Run, stub: Stub) -> None:
    queue = {"id": "q1", "name": "orders", "namespace": "shop", "task": "", "partitions": 3}
    stub.answer(200, {"queues": [{**queue, "messages": {"total": 12, "pending": 7, "scheduled": 4, "processing": 1}}]})
    assert ["orders", "shop", "-", "3", "7", "4", "1", "12", "-", "2026-01-02T03:04:05.678Z"] in words(
        hark("queue", "list").stdout
    )
    stub.answer(200, {"queues": []})
    assert "hark push orders" in hark("queue", "list").stdout


def test_queue_show_shows_options_totals_and_partitions(hark: Run, stub: Stub) -> None:
    counts = {"total": 5, "pending": 4, "processing": 0, "completed": 1, "failed": 0, "deadLetter": 2}
    partition = {"id": "p1", "name": "customer-4", "stats": counts, "oldestMessage": None}
    body = {"id": "q1", "name": "orders", "partitions": [partition], "totals": counts}
    stub.answer(200, {**body, "options": {"leaseTime": 60, "deadLetterQueue": True}})
    out = hark("queue", "show", "orders").stdout
    assert "customer-4" in out
    for row in (["leaseTime", "60"], ["deadLetterQueue", "yes"], ["dead_letter", "2"]):
        assert row in words(out)


@pytest.mark.parametrize("form", [[], ["--json"]], ids=["text", "json"])
def test_options_that_the_server_ignored_are_an_error(hark: Run, stub: Stub, form: list[str]) -> None:
    stub.answer(200, {"configured": True, "queue": "orders", "ignoredOptions": ["ttl"]})
    result = hark("queue", "create", "orders", "--set", "ttl=1", *form)
    assert result.exit_code == 1
    assert "does not know these options and configured the queue without them: ttl" in result.stderr


@pytest.mark.parametrize(
    ("line", "answer", "error"),
    [
        (
            "queue delete orders --yes",
            {"deleted": True, "existed": False},
            "queue orders not found (not_found)\nlist the queues with: hark queue list",
        ),
        ("group show g", {}, "group g not found (not_found)\nlist the groups with: hark group list"),
    ],
)
def test_what_the_server_could_not_do_exits_with_1(
    hark: Run, stub: Stub, line: str, answer: dict[str, object], error: str
) -> None:
    stub.answer(200, {"queue": "orders", **answer} if "queue" in line else answer)
    result = hark(*line.split())
    assert (result.exit_code, result.stderr) == (1, f"hark: {error}\n")


# Groups ----------------------------------------------------------------------------------------------------


def test_groups_are_listed_and_shown_with_their_positions(hark: Run, stub: Stub) -> None:
    stub.answer(200, [{"name": "g", "queueName": "orders", "other": 1.0}])
    assert "orders" in hark("group", "list").stdout
    position = {"partition": "p", "offsetLag": 3, "timeLagSeconds": 1, "scheduled": 2, "leaseActive": True}
    stub.answer(200, {"orders": {"partitions": [position]}})
    assert ["orders", "p", "3", "1", "2", "yes", "-"] in words(hark("group", "show", "g").stdout)


def test_group_seek_of_one_partition_says_where_it_is_now(hark: Run, stub: Stub) -> None:
    stub.answer(200, {"success": True, "updated": True, "nextOffset": 7})
    result = hark("group", "seek", "g", "orders", "--offset", "7", "--partition", "p/1")
    assert result.stdout == "moved group g in queue orders (next offset 7)\n"


def test_group_lagging_shows_where_messages_wait_long(hark: Run, stub: Stub) -> None:
    position = {
        "consumer_group": "billing",
        "queue_name": "orders",
        "partition_name": "p1",
        "offset_lag": 12,
        "time_lag_seconds": 75,
        "oldest_unconsumed_at": "2026-01-02T03:04:05.678Z",
        "last_consumed_at": None,
    }
    stub.answer(200, [position])
    row = ["billing", "orders", "p1", "12", "75", position["oldest_unconsumed_at"], "-"]
    assert row in words(hark("group", "lagging").stdout)


# Limits ----------------------------------------------------------------------------------------------------


def test_limits_are_shown_for_people(hark: Run, stub: Stub) -> None:
    stub.answer(200, QUEUE)
    assert hark("queue", "limits", "orders").stdout == "maxInFlight  5 messages\nrateLimit    no limit\n"
    stub.answer(200, QUEUE)
    stub.answer(200, {"queue": "orders", "options": {"maxInFlight": 0, "rateLimit": 2.5, "rateBurst": 0}})
    assert words(hark("queue", "limits", "orders", "--rate-limit", "2.5").stdout) == [
        ["maxInFlight", "no", "limit"],
        ["rateLimit", "2.5", "messages", "per", "second"],
        ["rateBurst", "one", "second's", "worth"],
    ]
    stub.answer(200, LIMITS)
    assert ["rateBurst", "7", "messages"] in words(hark("group", "limits", "g", "orders").stdout)


def test_a_rate_of_a_queue_that_is_taken_away_takes_its_burst_with_it(hark: Run, stub: Stub) -> None:
    stub.answer(200, QUEUE | {"options": {"maxInFlight": 0, "rateLimit": 0.5, "rateBurst": 7}})
    stub.answer(200, {"queue": "orders", "options": {}})
    hark("queue", "limits", "orders", "--rate-limit", "0")
    assert stub.last.json["options"] == {"maxInFlight": 0, "rateLimit": 0.0, "rateBurst": 0}


@pytest.mark.parametrize("line", ["queue limits orders", "group limits g orders"])
def test_limits_of_what_is_not_there_are_not_changed(hark: Run, stub: Stub, line: str) -> None:
    stub.answer(404, {"error": "not found", "code": "queue_not_found"})
    result = hark(*line.split(), "--max-in-flight", "3")
    assert (result.exit_code, result.stderr) == (1, "hark: not found (queue_not_found)\n")
    assert len(stub.seen) == 1


# Dead letters ----------------------------------------------------------------------------------------------


def test_dlq_list_shows_dead_letters_and_mentions_more(hark: Run, stub: Stub) -> None:
    letter = {"id": "m1", "deadLetterId": "d1", "queue": "orders", "attempts": 4, "errorMessage": "boom"}
    stub.answer(200, {"messages": [{**letter, "data": {"n": 1}}], "total": 9})
    result = hark("dlq", "list", "--limit", "1", "--offset", "2")
    assert all(text in result.stdout for text in ("d1", "boom", '{"n":1}', "1 of 9", "--offset 3"))


def test_dlq_requeue_takes_all_that_match_until_none_are_left(hark: Run, stub: Stub) -> None:
    for answer in ({"requeued": 1000, "remaining": 5}, {"requeued": 5, "remaining": 0}):
        stub.answer(200, {**answer, "results": []})
    result = hark("dlq", "requeue", "--all", "--queue", "orders", "--search", "timeout")
    assert result.stdout == "requeued 1005 dead letters\n"
    assert [request.target for request in stub.seen] == ["/api/v1/dlq/requeue"] * 2
    first, second = (request.json for request in stub.seen)
    assert first == second, "what fails meanwhile is newer and stays"
    assert datetime.fromisoformat(first["filter"].pop("to")).tzinfo is not None
    assert first["filter"] == {"queue": "orders", "search": "timeout"}


def test_a_dead_letter_that_fails_does_not_keep_the_others_back(hark: Run, stub: Stub) -> None:
    stub.answer(404, {"error": "no such dead letter", "code": "not_found"})
    result = hark("dlq", "requeue", "d1", "d2")
    assert result.exit_code == 1
    assert result.stdout == "requeued d2\n"
    assert (
        result.stderr
        == "hark: d1: no such dead letter (not_found)\nhark: 1 of 2 dead letters failed; the errors are above\n"
    )
