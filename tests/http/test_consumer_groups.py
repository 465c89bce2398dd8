"""Consumer groups over HTTP: list, lagging, show, delete, resubscribe, seek."""

from __future__ import annotations

from typing import Any

import pytest

from tests.http.api import Api, data, read, refusal


def entry(api: Api, queue: str, group: str) -> Any:
    """One group of one queue on the list."""
    found = [item for item in read(api.get("/consumer-groups")) if (item["name"], item["queueName"]) == (group, queue)]
    assert len(found) <= 1
    return found[0] if found else None


def test_groups_are_listed_per_queue(api: Api, queue: str) -> None:
    api.push(queue, 1, 2)
    message = api.pop_one(queue, consumerGroup="g")
    listed = entry(api, queue, "g")
    assert listed["topics"] == [queue]
    assert (listed["members"], listed["partitionsWithLag"], listed["totalLag"]) == (1, 1, 2)
    assert listed["maxTimeLag"] >= 0
    assert (listed["state"], listed["subscriptionMode"]) == ("Stable", "all")
    assert listed["subscriptionTimestamp"] is None
    assert listed["subscriptionCreatedAt"].endswith("Z")
    assert (listed["groupMode"], listed["paused"]) == ("ordered", False)
    api.ack(message)
    assert entry(api, queue, "g")["totalLag"] == 1


def test_one_group_is_shown_by_queue_and_partition(api: Api, queue: str) -> None:
    group = f"{queue}-group"
    api.push(queue, 1, 2, partition="p")
    first, _ = api.pop(queue, consumerGroup=group, batch=2)
    api.ack(first)
    shown = read(api.get(f"/consumer-groups/{group}"))
    assert list(shown) == [queue]
    [place] = shown[queue]["partitions"]
    assert place["partition"] == "p"
    assert (place["totalConsumed"], place["offsetLag"], place["leaseActive"]) == (1, 1, True)
    assert place["workerId"] == first["leaseId"]
    assert place["timeLagSeconds"] >= 0
    assert read(api.get(f"/consumer-groups/{queue}-unknown")) == {}


def test_lagging_lists_places_whose_oldest_message_waits_that_long(api: Api, queue: str) -> None:
    api.push(queue, 1, partition="p")
    api.ack(api.pop_one(queue, consumerGroup="g"), "retry")
    [place] = [
        item for item in read(api.get("/consumer-groups/lagging", minLagSeconds=0)) if item["queue_name"] == queue
    ]
    assert (place["consumer_group"], place["partition_name"], place["offset_lag"]) == ("g", "p", 1)
    assert {"partition_id", "worker_id", "time_lag_seconds", "lag_hours", "last_consumed_at"} <= set(place)
    assert place["oldest_unconsumed_at"].endswith("Z")
    assert all(item["queue_name"] != queue for item in read(api.get("/consumer-groups/lagging")))
    assert refusal(api.get("/consumer-groups/lagging", minLagSeconds="x"), 400).startswith("minLagSeconds")


def test_deleting_a_group_makes_it_start_anew(api: Api, queue: str) -> None:
    group = f"{queue}-group"
    api.push(queue, 1)
    api.ack(api.pop_one(queue, consumerGroup=group))
    answer = read(api.delete(f"/consumer-groups/{group}", deleteMetadata=True))
    assert answer == {
        "success": True,
        "consumerGroup": group,
        "deletedPartitions": 1,
        "metadataDeleted": True,
    }
    assert entry(api, queue, group) is None
    assert data(api.pop(queue, consumerGroup=group)) == [1]
    unknown = read(api.delete(f"/consumer-groups/{queue}-unknown"))
    assert (unknown["success"], unknown["deletedPartitions"]) == (True, 0)
    refusal(api.delete(f"/consumer-groups/{group}", deleteMetadata="perhaps"), 400)


def test_a_kept_subscription_still_counts_after_the_group_was_deleted(api: Api, queue: str) -> None:
    group = f"{queue}-group"
    api.push(queue, "old")
    api.pop(queue, consumerGroup=group, subscriptionMode="new")
    api.push(queue, "new")
    answer = read(api.delete(f"/consumer-groups/{group}", deleteMetadata=False))
    assert answer["metadataDeleted"] is False
    assert data(api.pop(queue, consumerGroup=group, batch=10)) == ["new"]


def test_a_group_can_be_deleted_in_one_queue_only(api: Api, queue: str) -> None:
    other = f"{queue}-other"
    for name in (queue, other):
        api.push(name, 1)
        api.ack(api.pop_one(name, consumerGroup="g"))
    answer = read(api.delete(f"/consumer-groups/g/queues/{queue}"))
    assert (answer["success"], answer["queueName"], answer["deletedPartitions"]) == (True, queue, 1)
    assert data(api.pop(queue, consumerGroup="g")) == [1]
    assert api.pop(other, consumerGroup="g") == []


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
    listed = entry(api, queue, group)
    assert listed["subscriptionMode"] == "timestamp"
    assert listed["subscriptionTimestamp"] == "2020-01-01T00:00:00.000Z"


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ({}, "subscriptionTimestamp is required"),
        ({"subscriptionTimestamp": None}, "subscriptionTimestamp is required"),
        ({"subscriptionTimestamp": "x"}, "subscriptionTimestamp: expected a time"),
        ({"subscriptionTimestamp": []}, "subscriptionTimestamp: expected"),
    ],
)
def test_a_wrong_subscription_is_refused(api: Api, body: Any, text: str) -> None:
    assert refusal(api.post("/consumer-groups/g/subscription", body), 400).startswith(text)


class TestSeek:
    """Moving a group."""

    def path(self, queue: str, partition: str | None = None) -> str:
        """The route of a seek of group g."""
        place = "" if partition is None else f"/partitions/{partition}"
        return f"/consumer-groups/g/queues/{queue}{place}/seek"

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

    def test_to_a_time(self, api: Api, queue: str) -> None:
        self.consume(api, queue, 3)
        answer = read(api.post(self.path(queue), {"timestamp": "2020-01-01T00:00:00Z"}))
        assert (answer["seekToEnd"], answer["partitionsUpdated"]) == (False, 1)
        assert answer["targetTimestamp"] == "2020-01-01T00:00:00.000Z"
        assert data(api.pop(queue, consumerGroup="g", batch=10)) == [1, 2, 3]

    def test_to_an_offset(self, api: Api, queue: str) -> None:
        messages = self.consume(api, queue, 3)
        assert [message["offset"] for message in messages] == [1, 2, 3]
        assert read(api.post(self.path(queue), {"offset": 2}))["targetOffset"] == 2
        assert data(api.pop(queue, consumerGroup="g", batch=10)) == [2, 3]

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
        assert data(api.pop(queue, consumerGroup="g", batch=10)) == [3]

    def test_one_partition_without_a_body_goes_to_the_end(self, api: Api, queue: str) -> None:
        api.push(queue, 1, 2)
        api.ack(api.pop_one(queue, consumerGroup="g"), "retry")
        assert read(api.post(self.path(queue, "Default")))["cursorMovedTo"] == 2
        assert api.pop(queue, consumerGroup="g") == []

    def test_other_groups_stay(self, api: Api, queue: str) -> None:
        self.consume(api, queue, 2)
        api.ack(api.pop_one(queue, consumerGroup="other"))
        read(api.post(self.path(queue), {"offset": 1}))
        assert data(api.pop(queue, consumerGroup="other", batch=10)) == [2]

    @pytest.mark.parametrize(
        "body", [{}, {"toEnd": False}, {"toEnd": True, "offset": 1}, {"timestamp": "2020-01-01", "offset": 1}]
    )
    def test_exactly_one_target_must_be_given(self, api: Api, queue: str, body: Any) -> None:
        self.consume(api, queue, 1)
        text = refusal(api.post(self.path(queue), body), 400)
        assert text == "expected exactly one of toEnd (true), timestamp, offset"

    @pytest.mark.parametrize(
        ("body", "field"),
        [
            ({"offset": 0}, "offset"),
            ({"offset": -1}, "offset"),
            ({"offset": "1"}, "offset"),
            ({"timestamp": "x"}, "timestamp"),
            ({"toEnd": 1}, "toEnd"),
        ],
    )
    def test_wrong_targets_are_refused_by_name(self, api: Api, queue: str, body: Any, field: str) -> None:
        self.consume(api, queue, 1)
        assert refusal(api.post(self.path(queue), body), 400).startswith(f"{field}: expected")

    def test_unknown_queue_and_partition_are_not_found(self, api: Api, queue: str) -> None:
        refusal(api.post(self.path(queue), {"toEnd": True}), 404, "queue_not_found")
        self.consume(api, queue, 1)
        text = refusal(api.post(self.path(queue, "unknown")), 404, "partition_not_found")
        assert text == "Partition not found"
