"""Shared groups over HTTP: many consumers of one partition, each message by itself (semantics of work queues)."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.http.api import WAIT, Api, Json, acknowledgment, data, read, refusal
from tests.http.streaming import Socket, listening

SHARED: dict[str, Any] = {"consumerGroup": "g", "groupMode": "shared"}


def group_of(api: Api, queue: str) -> Json:
    """The group g of a queue as it is listed."""
    [listed] = read(api.get("/consumer-groups", queue=queue))
    return listed


# Pop and ack -----------------------------------------------------------------------------------------------


def test_many_consumers_take_from_one_partition_at_once_and_settle_in_any_order(api: Api, queue: str) -> None:
    api.push(queue, 1, 2, 3)
    messages = [api.pop_one(queue, **SHARED) for _ in range(3)]
    assert data(messages) == [1, 2, 3]
    assert len({message["leaseId"] for message in messages}) == 3
    assert api.pop(queue, **SHARED) == []
    for message in reversed(messages):
        result = api.ack(message)
        assert (result["success"], result["leaseReleased"]) == (True, True)
    assert api.pop(queue, **SHARED) == []


def test_the_default_group_may_be_shared_too(api: Api, queue: str) -> None:
    api.push(queue, 1, 2)
    first, second = (api.pop_one(queue, groupMode="shared") for _ in range(2))
    assert api.ack(second)["success"]
    assert api.ack(first)["success"]


def test_a_lease_of_several_messages_is_over_with_the_last_of_them(api: Api, queue: str) -> None:
    api.push(queue, 1, 2, 3)
    messages = api.pop(queue, batch=3, **SHARED)
    assert len({message["leaseId"] for message in messages}) == 1
    released = [api.ack(message)["leaseReleased"] for message in (messages[2], messages[0], messages[1])]
    assert released == [False, False, True]


def test_higher_priorities_come_first(api: Api, queue: str) -> None:
    for priority in (0, 9, 5, 9):
        api.push(queue, priority, priority=priority)
    assert data(api.pop(queue, batch=10, **SHARED)) == [9, 9, 5, 0]


def test_a_delayed_message_reaches_who_waits_and_holds_nobody_up(api: Api, queue: str) -> None:
    api.push(queue, "later", delay=300)
    api.push(queue, "now")
    assert data(api.pop(queue, batch=10, **SHARED)) == ["now"]
    assert data(api.pop(queue, **SHARED, **WAIT)) == ["later"]


def test_a_failed_message_waits_while_the_others_go_on(api: Api, queue: str) -> None:
    api.configure(queue, retryDelay=3_600_000)
    api.push(queue, 1, 2)
    assert api.ack(api.pop_one(queue, **SHARED), "failed", error="boom")["success"]
    assert data(api.pop(queue, batch=10, **SHARED)) == [2]


@pytest.mark.parametrize(("status", "attempt"), [("failed", 2), ("retry", 1)])
def test_a_delay_says_when_it_comes_again(api: Api, queue: str, status: str, attempt: int) -> None:
    api.configure(queue, retryDelay=3_600_000)
    api.push(queue, 1)
    assert api.ack(api.pop_one(queue, **SHARED), status, delay=100)["success"]
    assert api.pop_one(queue, **SHARED, **WAIT)["deliveryAttempt"] == attempt


def test_a_delay_of_a_failure_counts_in_ordered_groups_too(api: Api, queue: str) -> None:
    api.configure(queue, retryDelay=3_600_000)
    api.push(queue, 1)
    assert api.ack(api.pop_one(queue), "failed", delay=100)["success"]
    assert api.pop_one(queue, **WAIT)["deliveryAttempt"] == 2


def test_a_stale_lease_settles_nothing(api: Api, queue: str) -> None:
    api.push(queue, 1)
    stale = api.pop_one(queue, **SHARED)
    api.ack(stale, "retry")
    live = api.pop_one(queue, **SHARED)
    result = api.ack(stale, "dlq")
    assert (result["success"], result["code"]) == (False, "lease_invalid")
    assert api.ack(live)["success"]


def test_expiry_of_a_lease_costs_each_message_an_attempt(api: Api, queue: str) -> None:
    api.configure(queue, leaseTime=1)
    api.push(queue, 1, 2)
    assert len(api.pop(queue, batch=2, **SHARED)) == 2
    taken = [api.pop_one(queue, **SHARED, **WAIT) for _ in range(2)]
    assert [message["deliveryAttempt"] for message in taken] == [2, 2]


def test_auto_ack_settles_at_delivery(api: Api, queue: str) -> None:
    api.push(queue, 1, 2)
    assert data(api.pop(queue, batch=2, autoAck=True, **SHARED)) == [1, 2]
    assert group_of(api, queue)["totalLag"] == 0


def test_all_of_many_racing_consumers_get_different_messages(api: Api, queue: str) -> None:
    api.push(queue, *range(40))
    with ThreadPoolExecutor(8) as pool:
        taken = list(pool.map(lambda _: api.pop_one(queue, **SHARED)["data"], range(40)))
    assert sorted(taken) == list(range(40))


def test_waiting_consumers_are_all_told_of_one_push(api: Api, queue: str) -> None:
    api.pop(queue, **SHARED)
    with ThreadPoolExecutor(4) as pool:
        waiting = [pool.submit(api.pop_one, queue, **SHARED, **WAIT) for _ in range(4)]
        api.push(queue, 1, 2, 3, 4)
        assert sorted(future.result()["data"] for future in waiting) == [1, 2, 3, 4]


# Modes -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("mode", "other"), [("shared", "ordered"), ("ordered", "shared")])
def test_the_mode_of_a_group_is_kept_and_another_one_is_a_conflict(api: Api, queue: str, mode: str, other: str) -> None:
    api.push(queue, 1)
    assert data(api.pop(queue, consumerGroup="g", groupMode=mode, autoAck=True)) == [1]
    refusal(api.try_pop(queue, consumerGroup="g", groupMode=other), 409, "group_mode_conflict")
    refusal(api.try_pop(queue, consumerGroup="g", groupMode=other, **WAIT), 409, "group_mode_conflict")
    api.push(queue, 2)
    assert data(api.pop(queue, consumerGroup="g")) == [2], "without a mode it is as stored"
    assert group_of(api, queue)["groupMode"] == mode


def test_an_event_stream_of_another_mode_ends_with_an_error(api: Api, server_url: str, queue: str) -> None:
    api.push(queue, 1)
    api.pop_one(queue, **SHARED)
    with listening(server_url, f"/queue/{queue}", consumerGroup="g", groupMode="ordered") as events:
        name, _, problem = events.next()
        assert (name, problem["code"]) == ("error", "group_mode_conflict")
        with pytest.raises(StopIteration):
            events.next()


# Streams ---------------------------------------------------------------------------------------------------


def test_two_event_streams_share_one_partition(api: Api, server_url: str, queue: str) -> None:
    with (
        listening(server_url, f"/queue/{queue}", prefetch=1, **SHARED) as one,
        listening(server_url, f"/queue/{queue}", prefetch=1, **SHARED) as other,
    ):
        api.push(queue, 1, 2)
        messages = [one.message(), other.message()]
        assert sorted(data(messages)) == [1, 2]
        api.push(queue, 3)
        assert api.ack(messages[1])["success"]
        assert other.message()["data"] == 3, "a settled message makes room"


def test_a_socket_takes_from_a_shared_group_and_settles_by_message_id(api: Api, socket: Socket, queue: str) -> None:
    socket.send("credit", n=2)
    socket.subscribe("s", queue, **SHARED)
    api.push(queue, 1, 2, 3)
    first, second = socket.take(2)
    socket.send("nack", items=[{"transactionId": second["id"], "delay": 3_600_000}], consumerGroup="g")
    frames = [socket.receive(), socket.receive()]
    [settled] = [frame for frame in frames if frame["type"] == "settled"]
    assert [result["success"] for result in settled["results"]] == [True]
    [came] = [frame for frame in frames if frame["type"] == "messages"]
    assert data(came["messages"]) == [3]
    assert api.ack(first)["success"]


# What administrators see -----------------------------------------------------------------------------------


def test_a_group_is_listed_with_its_mode_lag_messages_in_flight_and_limits(api: Api, queue: str) -> None:
    api.push(queue, *range(5))
    done, *_ = api.pop(queue, batch=3, **SHARED)
    api.ack(done)
    listed = group_of(api, queue)
    assert (listed["groupMode"], listed["totalLag"], listed["inFlight"], listed["members"]) == ("shared", 4, 2, 1)
    assert listed["limits"] == {"maxInFlight": 0, "rateLimit": 0, "rateBurst": 0}
    [place] = read(api.get("/consumer-groups/g"))[queue]["partitions"]
    assert place["offsetLag"] == 4


def test_a_message_is_shown_with_its_time_its_priority_and_its_state_in_each_group(api: Api, queue: str) -> None:
    [pushed] = api.push(queue, 1, priority=7)
    [later] = api.push(queue, 2, delay=3_600_000, priority=3)
    api.ack(api.pop_one(queue, **SHARED))
    api.pop_one(queue, consumerGroup="other", groupMode="shared")
    shown = read(api.get(f"/messages/{pushed['partition_id']}/{pushed['message_id']}"))
    assert (shown["priority"], shown["deliverAt"]) == (7, None)
    assert {group["name"]: group["status"] for group in shown["consumerGroups"]} == {
        "g": "completed",
        "other": "processing",
    }
    shown = read(api.get(f"/messages/{later['partition_id']}/{later['message_id']}"))
    assert (shown["priority"], shown["status"]) == (3, "pending")
    assert shown["deliverAt"] > shown["createdAt"]


def test_purge_pause_and_resume_of_a_group(api: Api, queue: str) -> None:
    api.push(queue, 1, 2, 3)
    api.pop_one(queue, **SHARED)
    path = f"/resources/queues/{queue}/groups/g"
    assert read(api.post(f"{path}/purge"))["purged"] == 3
    api.push(queue, 4)
    read(api.post(f"{path}/pause"))
    assert api.pop(queue, **SHARED) == []
    read(api.post(f"{path}/resume"))
    assert data(api.pop(queue, **SHARED)) == [4]


def test_dead_letters_and_requeue(api: Api, queue: str) -> None:
    api.push(queue, 1, 2, priority=5)
    message = api.pop_one(queue, **SHARED)
    assert api.ack(message, "dlq", error="boom")["dlq"]
    [letter] = api.dead_letters(queue)
    assert (letter["consumerGroup"], letter["errorMessage"]) == ("g", "boom")
    api.push(queue, 3, priority=9)
    read(api.post(f"/dlq/{letter['deadLetterId']}/requeue"))
    assert data(api.pop(queue, batch=10, **SHARED)) == [1, 3, 2]


def test_a_seek_voids_the_leases(api: Api, queue: str) -> None:
    api.push(queue, 1, 2)
    held = api.pop_one(queue, **SHARED)
    read(api.post(f"/consumer-groups/g/queues/{queue}/seek", {"offset": 1}))
    assert api.ack(held, "failed")["success"] is False
    assert data(api.pop(queue, batch=10, **SHARED)) == [1, 2]


def test_a_transaction_settles_and_pushes(api: Api, queue: str) -> None:
    api.push(queue, 1, 2)
    _, second = api.pop(queue, batch=2, **SHARED)
    ack = {"type": "ack", "consumerGroup": "g"} | acknowledgment(second)
    assert api.transact(ack, {"type": "push", "queue": queue, "payload": 3})["success"]
    assert data(api.pop(queue, batch=10, **SHARED)) == [3]
