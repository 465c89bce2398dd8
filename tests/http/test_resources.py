"""Queues as resources: list, show, delete, depth, pause, resume, purge; namespaces, tasks, overview."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.http.api import Api, data, read, refusal

SEVEN = {"total", "pending", "scheduled", "processing", "completed", "failed", "deadLetter"}


def test_queues_are_listed_newest_first_with_their_counts(fresh_api: Api) -> None:
    fresh_api.push("n.t.first", 1, 2, 3)
    fresh_api.pop("n.t.first")
    read(fresh_api.post("/configure", {"queue": "second", "namespace": "n", "task": "u"}))
    newest, oldest = read(fresh_api.get("/resources/queues"))["queues"]
    assert newest["name"] == "second"
    assert oldest.pop("id")
    assert oldest.pop("createdAt").endswith("Z")
    messages = oldest.pop("messages")
    assert oldest == {"name": "n.t.first", "namespace": "n", "task": "t", "partitions": 1, "paused": False}
    assert (messages["total"], messages["pending"] + messages["processing"]) == (3, 3)
    assert messages["processing"] >= 1
    [found] = read(fresh_api.get("/resources/queues", task="u"))["queues"]
    assert found["name"] == "second"
    [found] = read(fresh_api.get("/resources/queues", limit=1, offset=1))["queues"]
    assert found["name"] == "n.t.first"


def test_namespaces_tasks_and_overview_sum_up(fresh_api: Api) -> None:
    fresh_api.push("n.t.first", 1, 2)
    fresh_api.push("n.u.second", 3, partition="p")
    [namespace] = read(fresh_api.get("/resources/namespaces"))["namespaces"]
    assert (namespace["namespace"], namespace["queues"]) == ("n", 2)
    assert namespace["messages"] == {"total": 3, "pending": 3, "scheduled": 0}
    tasks = read(fresh_api.get("/resources/tasks"))["tasks"]
    assert [(task["task"], task["queues"], task["partitions"]) for task in tasks] == [("t", 1, 1), ("u", 1, 1)]
    overview = read(fresh_api.get("/resources/overview"))
    assert (overview["queues"], overview["partitions"]) == (2, 2)
    assert (overview["namespaces"], overview["tasks"]) == (1, 2)
    assert set(overview["messages"]) == SEVEN
    assert overview["messages"]["total"] == 3
    assert set(overview["lag"]) == {"time", "offset"}
    assert set(overview["lag"]["time"]) == {"avg", "median", "min", "max"}
    assert set(overview["throughput"]) == {"ingestedPerSecond", "processedPerSecond"}
    assert overview["timestamp"].endswith("Z")


def test_one_queue_is_shown_with_its_partitions(api: Api, queue: str) -> None:
    api.push(queue, 1, 2, 3, partition="p")
    first, second = api.pop(queue, "p", batch=2)
    api.ack(first)
    api.ack(second, "dlq")
    shown = read(api.get(f"/resources/queues/{queue}"))
    assert shown["name"] == queue
    assert set(shown["totals"]) == SEVEN
    assert (shown["totals"]["total"], shown["totals"]["deadLetter"]) == (3, 1)
    assert (shown["totals"]["pending"], shown["totals"]["processing"]) == (1, 0)
    [partition] = [item for item in shown["partitions"] if item["name"] == "p"]
    assert set(partition) == {"id", "name", "createdAt", "stats", "oldestMessage", "newestMessage"}
    assert partition["id"] == first["partitionId"]
    assert set(partition["stats"]) == SEVEN
    assert partition["stats"]["total"] == 3
    assert partition["oldestMessage"] <= partition["newestMessage"]


def test_partitions_are_paged_and_shown_with_the_positions_of_groups(api: Api, queue: str) -> None:
    api.push(queue, 1, 2, 3, partition="p")
    api.push(queue, 1, partition="q")
    api.pop(queue, "p", batch=2, autoAck=True, consumerGroup="g")
    leased = api.pop_one(queue, "p", consumerGroup="h")
    shown = read(api.get(f"/resources/queues/{queue}", positions=True, search="p"))
    [partition] = shown["partitions"]
    of_g, of_h = partition["positions"]
    assert (of_g["consumerGroup"], of_g["cursor"], of_g["lag"], of_g["leaseId"]) == ("g", 2, 1, None)
    assert (of_h["consumerGroup"], of_h["cursor"], of_h["lag"]) == ("h", 0, 2)
    assert (of_h["leaseId"], of_h["leaseUntil"] > leased["createdAt"]) == (leased["leaseId"], True)
    assert "positions" not in read(api.get(f"/resources/queues/{queue}"))["partitions"][0]
    for page, names in (({"limit": 1}, ["p"]), ({"limit": 2, "offset": 1}, ["q"])):
        shown = read(api.get(f"/resources/queues/{queue}", **page))
        assert [one["name"] for one in shown["partitions"]] == names
        assert shown["partitionCount"] == 2


@pytest.mark.parametrize("sort", ["newest", "backlog"])
def test_paused_queues_are_found(api: Api, queue: str, sort: str) -> None:
    for name in (f"{queue}-a", f"{queue}-b"):
        api.configure(name)
    read(api.post(f"/resources/queues/{queue}-b/pause"))
    found = read(api.get("/resources/queues", search=queue, paused=True, sort=sort))
    assert ([one["name"] for one in found["queues"]], found["total"]) == ([f"{queue}-b"], 1)
    assert read(api.get("/resources/queues", search=queue, paused=False, sort=sort))["total"] == 2


def test_an_unknown_queue_or_group_is_not_found(api: Api, queue: str) -> None:
    path = f"/resources/queues/{queue}"
    for suffix in ("", "/depth"):
        assert refusal(api.get(f"{path}{suffix}"), 404, "queue_not_found") == "Queue not found"
    for verb in ("pause", "resume", "purge"):
        assert refusal(api.post(f"{path}/{verb}"), 404, "queue_not_found") == "Queue not found"
    api.push(queue, 1)
    for verb in ("pause", "resume", "purge"):
        text = refusal(api.post(f"{path}/groups/nobody/{verb}"), 404, "group_not_found")
        assert text == "Consumer group not found"
    assert read(api.post("/stats/refresh"))["skipped"] is True


def test_deleting_a_queue_removes_everything_in_it(api: Api, queue: str) -> None:
    api.push(queue, 1, transactionId="t")
    api.pop(queue, consumerGroup="g", subscriptionMode="new")
    api.kill(queue, 2, partition="p")
    path = f"/resources/queues/{queue}"
    assert read(api.delete(path)) == {"deleted": True, "queue": queue, "existed": True}
    assert read(api.delete(path)) == {"deleted": True, "queue": queue, "existed": False}
    refusal(api.get(path), 404)
    assert api.dead_letters(queue) == []
    [pushed] = api.push(queue, "anew", transactionId="t")
    assert pushed["status"] == "queued"
    assert data(api.pop(queue, consumerGroup="g", batch=10)) == ["anew"], "its subscription is gone too"


def test_depth_is_what_waits_for_a_group(api: Api, queue: str) -> None:
    api.push(queue, 1, 2, 3, partition="p1")
    api.push(queue, 4, partition="p2")
    first, _ = api.pop(queue, "p1", consumerGroup="g", batch=2)
    api.ack(first)
    path = f"/resources/queues/{queue}/depth"
    depth = read(api.get(path, group="g"))
    depth["partitions"].sort(key=lambda item: item["partition"])
    assert depth == {
        "queue": queue,
        "group": "g",
        "pending": 2,
        "scheduled": 0,
        "partitionsPending": 2,
        "conflation": False,
        "effectivePending": 2,
        "partitions": [{"partition": "p1", "pending": 1}, {"partition": "p2", "pending": 1}],
    }
    unknown = read(api.get(path, group="never-came"))
    assert (unknown["pending"], unknown["partitionsPending"]) == (4, 2)
    whole = read(api.get(path))
    assert (whole["group"], whole["pending"]) == (None, 2)


def test_a_paused_queue_delivers_nothing_until_it_is_resumed(api: Api, queue: str) -> None:
    api.push(queue, 1)
    path = f"/resources/queues/{queue}"
    assert read(api.post(f"{path}/pause")) == {"success": True, "queue": queue, "paused": True}
    assert read(api.get(path))["paused"] is True
    assert api.pop(queue) == []
    api.push(queue, 2)
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(api.pop, queue, batch=10, wait=True, timeout=20_000)
        assert read(api.post(f"{path}/resume")) == {"success": True, "queue": queue, "paused": False}
        assert data(waiting.result()) == [1, 2]


def test_a_group_is_paused_resumed_and_purged_alone(api: Api, queue: str) -> None:
    api.push(queue, 1)
    for group in ("g", "h"):
        api.ack(api.pop_one(queue, consumerGroup=group), "retry")
    path = f"/resources/queues/{queue}/groups/g"
    answer = {"success": True, "queue": queue, "consumerGroup": "g"}
    assert read(api.post(f"{path}/pause")) == answer | {"paused": True}
    assert api.pop(queue, consumerGroup="g") == []
    assert data(api.pop(queue, consumerGroup="h")) == [1]
    read(api.post(f"{path}/resume"))
    assert data(api.pop(queue, consumerGroup="g")) == [1]
    api.push(queue, 2)
    assert read(api.post(f"{path}/purge")) == answer | {"purged": 2}
    assert api.pop(queue, consumerGroup="g", batch=10) == []
    assert data(api.pop(queue, consumerGroup="late", batch=10)) == [1, 2]


def test_purging_a_queue_removes_its_messages_leased_ones_too(api: Api, queue: str) -> None:
    api.push(queue, 1, 2, 3)
    leased = api.pop_one(queue)
    answer = read(api.post(f"/resources/queues/{queue}/purge"))
    assert answer == {"success": True, "queue": queue, "purged": 3}
    assert api.ack(leased)["success"] is False
    api.push(queue, 4)
    assert data(api.pop(queue, batch=10)) == [4]
    assert data(api.pop(queue, consumerGroup="late", batch=10)) == [4]
