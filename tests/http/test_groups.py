"""Consumer groups over HTTP: list, lagging, show, delete, resubscribe, seek; and shared groups (work queues)."""

from __future__ import annotations

from typing import Any

import pytest

from tests.http.api import WAIT, Api, Json, data, read, refusal
from tests.http.streaming import Socket

SHARED: dict[str, Any] = {"consumerGroup": "g", "groupMode": "shared"}


def group_of(api: Api, queue: str) -> Json:
    """The only group of a queue as it is listed."""
    [listed] = read(api.get("/consumer-groups", queue=queue))
    return listed


def test_groups_are_listed_per_queue(fresh_api: Api, queue: str) -> None:
    api, other = fresh_api, f"{queue}-other"
    api.push(queue, 1, 2)
    message = api.pop_one(queue, consumerGroup="g")
    api.pop(other, consumerGroup="h")
    assert {(one["name"], one["queueName"]) for one in read(api.get("/consumer-groups"))} == {
        ("g", queue),
        ("h", other),
    }
    listed = group_of(api, queue)
    assert (listed["name"], listed["queueName"], listed["topics"]) == ("g", queue, [queue])
    assert (listed["members"], listed["partitionsWithLag"], listed["totalLag"]) == (1, 1, 1)
    assert (listed["maxTimeLag"] >= 0, listed["inFlight"]) == (True, 1)
    assert (listed["state"], listed["subscriptionMode"]) == ("Stable", "all")
    assert listed["subscriptionTimestamp"] is None
    assert listed["subscriptionCreatedAt"].endswith("Z")
    assert (listed["groupMode"], listed["paused"]) == ("ordered", False)
    api.ack(message)
    assert group_of(api, queue)["totalLag"] == 1


def test_one_group_is_shown_by_queue_and_partition(api: Api, queue: str) -> None:
    group = f"{queue}-group"
    api.push(queue, 1, 2, partition="p")
    first, _ = api.pop(queue, consumerGroup=group, batch=2)
    api.ack(first)
    shown = read(api.get(f"/consumer-groups/{group}"))
    assert list(shown) == [queue]
    [position] = shown[queue]["partitions"]
    assert position["partition"] == "p"
    assert (position["totalConsumed"], position["offsetLag"], position["leaseActive"]) == (1, 0, True)
    assert position["workerId"] == first["leaseId"]
    assert position["timeLagSeconds"] >= 0
    assert read(api.get(f"/consumer-groups/{queue}-unknown")) == {}


def test_lagging_lists_positions_whose_oldest_message_waits_that_long(fresh_api: Api, queue: str) -> None:
    api = fresh_api
    api.push(queue, 1, partition="p")
    api.ack(api.pop_one(queue, consumerGroup="g"), "retry")
    api.push(queue, 2, partition="scheduled", delay=3_600_000)
    [position] = read(api.get("/consumer-groups/lagging", minLagSeconds=0))
    assert (position["queue_name"], position["consumer_group"]) == (queue, "g")
    assert (position["partition_name"], position["offset_lag"]) == ("p", 1)
    assert {"partition_id", "worker_id", "time_lag_seconds", "lag_hours", "last_consumed_at"} <= set(position)
    assert position["oldest_unconsumed_at"].endswith("Z")
    assert read(api.get("/consumer-groups/lagging")) == []


def test_deleting_a_group_in_one_queue_or_everywhere_makes_it_start_again(api: Api, queue: str) -> None:
    group, other = f"{queue}-group", f"{queue}-other"
    for name in (queue, other):
        api.push(name, 1)
        api.ack(api.pop_one(name, consumerGroup=group))
    answer = read(api.delete(f"/consumer-groups/{group}/queues/{queue}"))
    assert (answer["success"], answer["queueName"], answer["deletedPartitions"]) == (True, queue, 1)
    assert api.ack(api.pop_one(queue, consumerGroup=group))["success"]
    assert api.pop(other, consumerGroup=group) == []
    answer = read(api.delete(f"/consumer-groups/{group}", deleteMetadata=True))
    assert answer == {"success": True, "consumerGroup": group, "deletedPartitions": 2, "metadataDeleted": True}
    assert read(api.get("/consumer-groups", queue=queue)) == []
    assert data(api.pop(queue, consumerGroup=group)) == [1]
    unknown = read(api.delete(f"/consumer-groups/{queue}-unknown"))
    assert (unknown["success"], unknown["deletedPartitions"]) == (True, 0)


def test_a_kept_subscription_still_counts_after_the_group_was_deleted(api: Api, queue: str) -> None:
    group = f"{queue}-group"
    api.push(queue, "old")
    api.pop(queue, consumerGroup=group, subscriptionMode="new")
    api.push(queue, "new")
    answer = read(api.delete(f"/consumer-groups/{group}", deleteMetadata=False))
    assert answer["metadataDeleted"] is False
    assert data(api.pop(queue, consumerGroup=group, batch=10)) == ["new"]


def test_a_subscription_can_be_moved(api: Api, queue: str) -> None:
    group = f"{queue}-group"
    api.push(queue, "old")
    assert api.pop(queue, consumerGroup=group, subscriptionMode="new") == []
    answer = read(api.post(f"/consumer-groups/{group}/subscription", {"subscriptionTimestamp": "2020-01-01T00:00:00Z"}))
    assert answer == {
        "success": True,
        "consumerGroup": group,
        "newTimestamp": "2020-01-01T00:00:00.000Z",
        "rowsUpdated": 1,
    }
    listed = group_of(api, queue)
    assert listed["subscriptionMode"] == "timestamp"
    assert listed["subscriptionTimestamp"] == "2020-01-01T00:00:00.000Z"


class TestSeek:
    """Moving a group."""

    def path(self, queue: str, partition: str | None = None) -> str:
        """The route of a seek of group g."""
        position = "" if partition is None else f"/partitions/{partition}"
        return f"/consumer-groups/g/queues/{queue}{position}/seek"

    def consume(self, api: Api, queue: str, count: int) -> list[Any]:
        """Push and settle some messages."""
        api.push(queue, *range(1, count + 1))
        messages = api.pop(queue, consumerGroup="g", batch=count)
        for message in messages:
            api.ack(message)
        return messages

    def test_to_the_end(self, api: Api, queue: str) -> None:
        api.push(queue, 1, 2)
        leased = api.pop_one(queue, consumerGroup="g")
        answer = read(api.post(self.path(queue), {"toEnd": True}))
        assert answer == {
            "success": True,
            "consumerGroup": "g",
            "queueName": queue,
            "seekToEnd": True,
            "targetTimestamp": None,
            "targetOffset": None,
            "partitionsUpdated": 1,
        }
        assert api.ack(leased, "failed")["success"] is False, "open leases are void"
        api.push(queue, 3)
        assert data(api.pop(queue, consumerGroup="g", batch=10)) == [3]

    def test_to_a_time_or_an_offset(self, api: Api, queue: str) -> None:
        messages = self.consume(api, queue, 3)
        assert [message["offset"] for message in messages] == [1, 2, 3]
        assert read(api.post(self.path(queue), {"offset": 2}))["targetOffset"] == 2
        assert data(api.pop(queue, consumerGroup="g", batch=10)) == [2, 3]
        answer = read(api.post(self.path(queue), {"timestamp": "2020-01-01T00:00:00Z"}))
        assert (answer["seekToEnd"], answer["partitionsUpdated"]) == (False, 1)
        assert answer["targetTimestamp"] == "2020-01-01T00:00:00.000Z"
        assert data(api.pop(queue, consumerGroup="g", batch=10)) == [1, 2, 3]

    def test_one_partition(self, api: Api, queue: str) -> None:
        self.consume(api, queue, 3)
        answer = read(api.post(self.path(queue, "Default"), {"offset": 3}))
        assert answer == {
            "success": True,
            "consumerGroup": "g",
            "queueName": queue,
            "partitionName": "Default",
            "updated": True,
            "cursorMovedTo": 2,
            "nextOffset": 3,
        }
        assert read(api.post(self.path(queue, "Default")))["cursorMovedTo"] == 3, "without a body it goes to the end"
        assert api.pop(queue, consumerGroup="g") == []

    def test_unknown_queue_and_partition_are_not_found(self, api: Api, queue: str) -> None:
        refusal(api.post(self.path(queue), {"toEnd": True}), 404, "queue_not_found")
        self.consume(api, queue, 1)
        text = refusal(api.post(self.path(queue, "unknown")), 404, "partition_not_found")
        assert text == "Partition not found"


# Shared groups --------------------------------------------------------------------------------------------


def test_consumers_share_a_partition_by_priority_and_a_lease_is_over_with_the_last_of_its_messages(
    api: Api, queue: str
) -> None:
    for priority in (0, 9, 5):
        api.push(queue, priority, priority=priority)
    messages = [api.pop_one(queue, **SHARED) for _ in range(3)]
    assert data(messages) == [9, 5, 0]
    assert len({message["leaseId"] for message in messages}) == 3
    assert api.pop(queue, **SHARED) == []
    results = [api.ack(message, "retry") for message in reversed(messages)]
    assert [(result["success"], result["leaseReleased"]) for result in results] == [(True, True)] * 3
    messages = api.pop(queue, batch=10, **SHARED)
    assert data(messages) == [9, 5, 0]
    assert len({message["leaseId"] for message in messages}) == 1
    released = [api.ack(message)["leaseReleased"] for message in (messages[2], messages[0], messages[1])]
    assert released == [False, False, True]
    assert api.pop(queue, **SHARED) == []


@pytest.mark.parametrize("mode", ["ordered", "shared"])
@pytest.mark.parametrize(("status", "attempt"), [("failed", 2), ("retry", 1)])
def test_a_delay_says_when_it_comes_again(api: Api, queue: str, status: str, attempt: int, mode: str) -> None:
    api.configure(queue, retryDelay=3_600_000)
    api.push(queue, 1)
    assert api.ack(api.pop_one(queue, groupMode=mode), status, delay=50)["success"]
    assert api.pop_one(queue, **WAIT)["deliveryAttempt"] == attempt


@pytest.mark.parametrize(("mode", "other"), [("shared", "ordered"), ("ordered", "shared")])
def test_the_mode_of_a_group_is_kept_and_another_one_is_a_conflict(api: Api, queue: str, mode: str, other: str) -> None:
    api.push(queue, 1)
    assert data(api.pop(queue, consumerGroup="g", groupMode=mode, autoAck=True)) == [1]
    refusal(api.try_pop(queue, consumerGroup="g", groupMode=other), 409, "group_mode_conflict")
    refusal(api.try_pop(queue, consumerGroup="g", groupMode=other, **WAIT), 409, "group_mode_conflict")
    api.push(queue, 2)
    assert data(api.pop(queue, consumerGroup="g")) == [2], "without a mode it is as stored"
    assert group_of(api, queue)["groupMode"] == mode


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


def test_a_group_is_listed_with_its_mode_lag_messages_in_flight_and_limits(api: Api, queue: str) -> None:
    api.push(queue, *range(5))
    group = f"{queue}-group"
    done, *_ = api.pop(queue, batch=3, consumerGroup=group, groupMode="shared")
    api.ack(done)
    listed = group_of(api, queue)
    assert (listed["groupMode"], listed["totalLag"], listed["inFlight"], listed["members"]) == ("shared", 2, 2, 1)
    assert set(listed["limits"].values()) == {0}
    [position] = read(api.get(f"/consumer-groups/{group}"))[queue]["partitions"]
    assert position["offsetLag"] == 2


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
    assert (shown["priority"], shown["status"], shown["reason"]) == (3, "scheduled", "delayed")
    assert shown["dueAt"] == shown["deliverAt"]
    [listed] = read(api.get("/messages", queue=queue, status="scheduled"))["messages"]
    assert (listed["id"], listed["reason"], listed["dueAt"]) == (later["message_id"], "delayed", shown["deliverAt"])
    groups = {one["name"]: one for one in read(api.get("/consumer-groups", queue=queue))}
    assert (groups["g"]["totalLag"], groups["g"]["scheduled"], groups["g"]["maxTimeLag"]) == (0, 1, 0)
    assert shown["deliverAt"] > shown["createdAt"]
