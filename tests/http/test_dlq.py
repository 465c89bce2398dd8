"""Dead letters over HTTP: list with every filter, requeue once, delete; one at a time, or many, each answered."""

from __future__ import annotations

from tests.http.api import Api, Json, data, read, refusal


def test_a_dead_letter_has_the_contracts_shape(api: Api, queue: str) -> None:
    api.configure(queue, retryLimit=1)
    trace = "0199aaaa-bbbb-4ccc-8ddd-eeeeffff0000"
    [pushed] = api.push(queue, {"n": 1}, partition="p", transactionId="t", traceId=trace)
    for error in ("first", "second"):
        result = api.ack(api.pop_one(queue), "failed", error=error)
    assert result["dlq"] is True
    answer = read(api.get("/dlq", queue=queue))
    [letter] = answer["messages"]
    assert (answer["total"], answer["pagination"]) == (1, {"limit": 100, "offset": 0})
    assert letter.pop("deadLetterId")
    created, failed = letter.pop("createdAt"), letter.pop("failedAt")
    assert created <= failed
    assert len(created) == len(failed) == len("2026-01-02T03:04:05.678Z")
    assert letter == {
        "id": pushed["message_id"],
        "transactionId": "t",
        "partitionId": pushed["partition_id"],
        "traceId": trace,
        "queue": queue,
        "partition": "p",
        "consumerGroup": "__QUEUE_MODE__",
        "errorMessage": "second",
        "retryCount": 1,
        "attempts": 2,
        "data": {"n": 1},
        "payloadError": None,
        "producerSub": None,
    }


def test_the_list_can_be_filtered_and_paged(api: Api, queue: str) -> None:
    for number in range(3):
        api.kill(queue, number, partition=f"p{number}")
    api.push(queue, "g", partition="pg")
    message = api.pop_one(queue, "pg", consumerGroup="g")
    api.ack(message, "dlq")
    letters = api.dead_letters(queue)
    assert [letter["data"] for letter in letters] == ["g", 2, 1, 0]
    assert [letter["data"] for letter in api.dead_letters(queue, limit=2, offset=1)] == [2, 1]
    assert read(api.get("/dlq", queue=queue, limit=1, offset=3))["total"] == 4
    assert [letter["data"] for letter in api.dead_letters(queue, consumerGroup="g")] == ["g"]
    assert [letter["data"] for letter in api.dead_letters(queue, partition="p1")] == [1]
    assert [letter["data"] for letter in api.dead_letters(queue, id=letters[1]["id"])] == [2]
    assert [letter["data"] for letter in api.dead_letters(queue, id=letters[2]["deadLetterId"])] == [1]
    assert api.dead_letters(queue, id="unknown") == []
    assert api.dead_letters(queue, to="2020-01-01T00:00:00Z") == []
    assert len(api.dead_letters(queue, from_="2020-01-01T00:00:00Z", to="2999-01-01")) == 4
    assert api.dead_letters(queue, from_="2999-01-01T00:00:00Z") == []
    assert api.dead_letters(f"{queue}-unknown") == []


def test_requeue_puts_it_back_in_front_with_fresh_attempts_and_once(api: Api, queue: str) -> None:
    dead = api.kill(queue, "dead")
    api.push(queue, "next")
    [letter] = api.dead_letters(queue)
    answer = read(api.post(f"/dlq/{letter['deadLetterId']}/requeue"))
    new_id = answer.pop("messageId")
    assert new_id != dead["id"]
    assert answer == {
        "success": True,
        "deadLetterId": letter["deadLetterId"],
        "queue": queue,
        "partition": "Default",
        "consumerGroup": "__QUEUE_MODE__",
    }
    refusal(api.post(f"/dlq/{letter['deadLetterId']}/requeue"), 404, "dead_letter_not_found")
    assert api.dead_letters(queue) == []
    messages = api.pop(queue, batch=10)
    while len(messages) < 2:
        messages += api.pop(queue, batch=10)
    assert data(messages) == ["dead", "next"]
    assert (messages[0]["id"], messages[0]["deliveryAttempt"]) == (new_id, 1)


def test_requeue_by_message_id_needs_the_group_when_it_died_in_several(api: Api, queue: str) -> None:
    api.push(queue, 1)
    for group in ("g1", "g2"):
        message = api.pop_one(queue, consumerGroup=group)
        api.ack(message, "dlq")
    path = f"/dlq/{message['id']}"
    refusal(api.post(f"{path}/requeue"), 409, "ambiguous")
    refusal(api.delete(path), 409, "ambiguous")
    for verb in ("requeue", "delete"):
        [result] = read(api.post(f"/dlq/{verb}", {"ids": [message["id"]]}))["results"]
        assert (result["success"], result["code"]) == (False, "ambiguous")
    assert len(api.dead_letters(queue)) == 2
    assert read(api.post(f"{path}/requeue", consumerGroup="g1"))["consumerGroup"] == "g1"
    assert data(api.pop(queue, consumerGroup="g1")) == [1]
    assert api.pop(queue, consumerGroup="g2") == []
    assert read(api.delete(path))["deleted"] == 1
    assert api.dead_letters(queue) == []


def test_the_dead_letters_of_a_queue_can_be_deleted(api: Api, queue: str) -> None:
    other = f"{queue}-other"
    api.kill(other, "kept")
    for number in range(3):
        api.kill(queue, number, partition=f"p{number}")
    assert refusal(api.delete("/dlq"), 400) == "queue is required"
    refusal(api.delete("/dlq", queue=queue, from_="x"), 400)
    assert read(api.delete("/dlq", queue=queue, partition="p1"))["deleted"] == 1
    assert read(api.delete("/dlq", queue=queue)) == {"success": True, "queue": queue, "deleted": 2}
    assert api.dead_letters(queue) == []
    assert data(api.dead_letters(other)) == ["kept"]


def test_one_dead_letter_can_be_deleted_and_unknown_ones_are_not_found(api: Api, queue: str) -> None:
    for number in range(2):
        api.kill(queue, number)
    newest, oldest = api.dead_letters(queue)
    answer = read(api.delete(f"/dlq/{newest['deadLetterId']}"))
    assert answer == {"success": True, "deadLetterId": newest["deadLetterId"], "deleted": 1}
    assert api.dead_letters(queue) == [oldest]
    for identifier in ("unknown", newest["deadLetterId"]):
        requeue, delete = api.post(f"/dlq/{identifier}/requeue"), api.delete(f"/dlq/{identifier}")
        for response in (requeue, delete):
            assert refusal(response, 404, "dead_letter_not_found") == "Dead letter not found"


# Many at a time ------------------------------------------------------------------------------------------


def kill_with(api: Api, queue: str, payload: Json, error: str, partition: str = "Default") -> None:
    """Make a dead letter with an error of its own."""
    api.push(queue, payload, partition=partition)
    assert api.ack(api.pop_one(queue, partition), "dlq", error=error)["dlq"]


def drain(api: Api, queue: str) -> list[Json]:
    """All payloads that the default group can get now."""
    found: list[Json] = []
    while messages := api.pop(queue, batch=100, autoAck=True):
        found += data(messages)
    return found


def test_the_list_is_searched_by_what_errors_say(api: Api, queue: str) -> None:
    kill_with(api, queue, 1, "Timeout of the bank")
    kill_with(api, queue, 2, "no such account")
    assert data(api.dead_letters(queue, search="timeout")) == [1]
    assert data(api.dead_letters(queue, search="%")) == []
    assert data(api.dead_letters(queue, payloads=True)) == [2, 1]
    assert data(api.dead_letters(queue, payloads=False)) == [None, None]
    assert read(api.delete("/dlq", queue=queue, search="account"))["deleted"] == 1
    assert data(api.dead_letters(queue)) == [1]


def test_ids_are_requeued_in_their_order_or_deleted_and_each_is_answered_once(api: Api, queue: str) -> None:
    for number in range(5):
        kill_with(api, queue, number, "boom")
    kept, gone, deleted, middle, oldest = api.dead_letters(queue)
    ids = [middle["deadLetterId"], "unknown", oldest["id"], middle["deadLetterId"]]
    answer = read(api.post("/dlq/requeue", {"ids": ids}))
    assert (answer["requeued"], answer["remaining"]) == (2, 0)
    results = answer["results"]
    assert [result["id"] for result in results] == ids
    assert [result["success"] for result in results] == [True, False, True, False]
    assert results[1] == {
        "id": "unknown",
        "success": False,
        "error": "Dead letter not found",
        "code": "dead_letter_not_found",
    }
    got = api.pop(queue, batch=10)
    assert data(got) == [1, 0]
    assert [message["id"] for message in got] == [results[0]["messageId"], results[2]["messageId"]]
    ids = [gone["deadLetterId"], "unknown", deleted["id"]]
    answer = read(api.post("/dlq/delete", {"ids": ids}))
    assert answer["deleted"] == 2
    assert [result["id"] for result in answer["results"]] == ids
    assert [result["success"] for result in answer["results"]] == [True, False, True]
    assert api.dead_letters(queue) == [kept]


def test_a_bounded_requeue_begins_with_the_oldest_and_shows_what_is_left(api: Api, queue: str) -> None:
    for number in range(6):
        kill_with(api, queue, number, "other" if number == 5 else "timeout")
    taken = []
    for left in (3, 1, 0):
        answer = read(api.post("/dlq/requeue", {"filter": {"queue": queue, "search": "timeout"}, "limit": 2}))
        assert answer["remaining"] == left
        taken += drain(api, queue)
    assert taken == list(range(5))
    assert data(api.dead_letters(queue)) == [5]


def test_each_filter_of_a_requeue_counts(api: Api, queue: str) -> None:
    for number in (1, 2, 3):
        kill_with(api, queue, number, "boom", partition=f"p{number}")
    for where, requeued in (
        ({"partition": "p1"}, 1),
        ({"consumerGroup": "nobody"}, 0),
        ({"from": "2999-01-01T00:00:00Z"}, 0),
        ({"to": "2020-01-01T00:00:00Z"}, 0),
        ({}, 2),
    ):
        assert read(api.post("/dlq/requeue", {"filter": {"queue": queue, **where}}))["requeued"] == requeued


def imported(number: int = 1, **fields: Json) -> Json:
    """A dead letter of another store."""
    return {
        "id": f"0189abcd-0000-7000-8000-{number:012}",
        "partition": "p",
        "consumerGroup": "g",
        "transactionId": f"t{number}",
        "payload": number,
        "error": "boom",
        "attempts": 4,
        "createdAt": "2026-01-02T03:04:05.678901Z",
        "failedAt": 1767323046000,
    } | fields


def test_imported_dead_letters_are_listed_and_duplicates_are_counted(api: Api, queue: str) -> None:
    api.configure(queue)
    first = imported(1, id=f"0189abcd-0000-7000-8000-{hash(queue) & 0xFFFFFFFFFFFF:012x}", priority=3)
    assert read(api.post("/dlq/import", {"items": [first, first]}, queue=queue)) == {"imported": 1, "duplicates": 1}
    [letter] = api.dead_letters(queue)
    assert (letter["deadLetterId"], letter["data"], letter["attempts"]) == (first["id"], 1, 4)
    assert (letter["createdAt"], letter["failedAt"]) == ("2026-01-02T03:04:05.678Z", "2026-01-02T03:04:06.000Z")
    read(api.post(f"/dlq/{letter['deadLetterId']}/requeue"))
    message = api.pop_one(queue, consumerGroup="g")
    assert (message["data"], message["priority"]) == (1, 3)


def test_dead_letters_that_can_not_be_imported_are_refused_by_item_and_field(api: Api, queue: str) -> None:
    api.configure(queue)
    [message] = api.push(queue, 1)
    for wrong, shown in (
        ({"id": "x"}, "items[1].id"),
        ({"id": message["message_id"]}, "items[1].id"),
        ({"attempts": -1}, "items[1].attempts"),
        ({"failedAt": "soon"}, "items[1].failedAt"),
        ({"consumerGroup": ""}, "items[1].consumerGroup"),
        ({"priority": 10}, "items[1].priority"),
        ({"delay": 5}, "delay"),
    ):
        response = api.post("/dlq/import", {"items": [imported(), imported(2, **wrong)]}, queue=queue)
        assert shown in refusal(response, 400, "invalid_input")
    assert "queue is required" in refusal(api.post("/dlq/import", {"items": []}), 400, "invalid_input")
    refusal(api.post("/dlq/import", {"items": [imported()]}, queue=f"{queue}-unknown"), 404, "queue_not_found")
    assert api.dead_letters(queue) == []
