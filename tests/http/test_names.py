"""Names of queues, partitions and groups may hold anything but NUL; paths carry them percent-encoded."""

from __future__ import annotations

from urllib.parse import quote

import pytest

from tests.http.api import Api, data, read, refusal

NAMES = ["with space", "with/slash", "ünïcødé 🙂", "100%", "a?b#c&d=e", "%2F", "...", "'\"\\", "+plus+"]


@pytest.mark.parametrize("name", NAMES)
def test_any_name_works_everywhere(api: Api, queue: str, name: str) -> None:
    queue_name, group = f"{queue} {name}", f"group {name}"
    path = f"/resources/queues/{quote(queue_name, safe='')}"
    api.push(queue_name, 1, 2, partition=name, transactionId=name)
    message = api.pop_one(queue_name, name, consumerGroup=group)
    assert (message["partition"], message["transactionId"], message["consumerGroup"]) == (name, name, group)
    assert api.ack(message, "failed", error=name)["success"]
    assert read(api.get(path))["name"] == queue_name
    shown = read(api.get(f"/messages/{message['partitionId']}/{quote(name, safe='')}"))
    assert (shown["transactionId"], shown["queue"]) == (name, queue_name)
    assert list(read(api.get(f"/consumer-groups/{quote(group, safe='')}"))) == [queue_name]
    seek = f"/consumer-groups/{quote(group, safe='')}/queues/{quote(queue_name, safe='')}"
    seek += f"/partitions/{quote(name, safe='')}/seek"
    assert read(api.post(seek, {"toEnd": True}))["partitionName"] == name
    assert read(api.get(f"{path}/depth", group=group))["pending"] == 0
    assert read(api.delete(f"/consumer-groups/{quote(group, safe='')}"))["consumerGroup"] == group
    assert read(api.delete(path)) == {"deleted": True, "queue": queue_name, "existed": True}


def test_a_slash_that_is_not_encoded_is_another_route(api: Api, queue: str) -> None:
    api.push(f"{queue}/x", 1)
    refusal(api.get(f"/resources/queues/{queue}/x"), 404)
    assert data(api.pop(f"{queue}/x")) == [1]


@pytest.mark.parametrize(
    "path",
    [
        "/resources/queues/a%00b",
        "/resources/queues/" + "x" * 256,
        "/resources/queues/%FF",
        "/consumer-groups/a%00b",
        "/pop/queue/a%00b",
        "/pop/queue/" + "x" * 256,
        "/pop/queue/%FF",
        "/pop/queue/q/partition/a%00b",
    ],
)
def test_names_that_no_queue_can_have_are_refused(api: Api, path: str) -> None:
    refusal(api.get(path), 400, "invalid_input")
