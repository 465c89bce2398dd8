"""A thin hand on the HTTP API for tests: requests as a user of curl would send them."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote

import httpx

Json = Any
WAIT: dict[str, Any] = {"wait": True, "timeout": 20_000}
"""The parameters of a pop that waits until there is something."""


class Api:
    """One server, one connection pool. Methods that read an answer check its status first."""

    def __init__(self, client: httpx.Client) -> None:
        self.client = client

    def get(self, path: str, **query: Any) -> httpx.Response:
        """GET under /api/v1."""
        return self.client.get(f"/api/v1{path}", params=texts(query))

    def post(self, path: str, body: Json = None, *, content: bytes | None = None, **query: Any) -> httpx.Response:
        """POST under /api/v1, with a JSON body, or with any bytes, or with none."""
        if content is None and body is not None:
            return self.client.post(f"/api/v1{path}", json=body, params=texts(query))
        return self.client.post(f"/api/v1{path}", content=content or b"", params=texts(query))

    def put(self, path: str, body: Json) -> httpx.Response:
        """PUT under /api/v1, with a JSON body; None: with an empty one."""
        content = b"" if body is None else json.dumps(body).encode()
        return self.client.put(f"/api/v1{path}", content=content)

    def delete(self, path: str, **query: Any) -> httpx.Response:
        """DELETE under /api/v1."""
        return self.client.delete(f"/api/v1{path}", params=texts(query))

    def configure(self, queue: str, **options: Any) -> Json:
        """Make a queue."""
        return read(self.post("/configure", {"queue": queue, "options": options}))

    def push(self, queue: str, *payloads: Json, **fields: Any) -> list[Json]:
        """Push payloads, all with the same fields."""
        items = [{"queue": queue, "payload": payload} | fields for payload in payloads]
        answer: list[Json] = read(self.post("/push", {"items": items}), 201)
        return answer

    def try_pop(self, queue: str, partition: str | None = None, **query: Any) -> httpx.Response:
        """Pop and answer whatever came."""
        path = f"/pop/queue/{quote(queue, safe='')}"
        if partition is not None:
            path += f"/partition/{quote(partition, safe='')}"
        return self.get(path, **query)

    def pop(self, queue: str, partition: str | None = None, **query: Any) -> list[Json]:
        """Pop; no messages when the answer is empty."""
        response = self.try_pop(queue, partition, **query)
        if response.status_code == 204:
            assert response.content == b""
            return []
        messages: list[Json] = read(response)["messages"]
        return messages

    def pop_one(self, queue: str, partition: str | None = None, **query: Any) -> Json:
        """Pop exactly one message."""
        [message] = self.pop(queue, partition, **query)
        return message

    def ack(self, message: Json, status: str = "completed", **fields: Any) -> Json:
        """Settle one message; the one result."""
        body = acknowledgment(message, status) | {"consumerGroup": message["consumerGroup"]} | fields
        [result] = read(self.post("/ack", body))
        return result

    def transact(self, *operations: Json, **fields: Any) -> Json:
        """Run a transaction."""
        return read(self.post("/transaction", {"operations": list(operations)} | fields))

    def dead_letters(self, queue: str, **query: Any) -> list[Json]:
        """The dead letters of a queue."""
        messages: list[Json] = read(self.get("/dlq", queue=queue, **query))["messages"]
        return messages

    def show(self, message: Json) -> Json:
        """A delivered message as an administrator sees it."""
        return read(self.get(f"/messages/{message['partitionId']}/{message['transactionId']}"))

    def let_pass(self, queue: str, milliseconds: int) -> None:
        """Return when that much time has passed for the server: when a message with that delay arrives."""
        clock = f"{queue}-clock"
        self.push(clock, "tick", delay=milliseconds)
        self.pop_one(clock, autoAck=True, **WAIT)

    def kill(self, queue: str, payload: Json, group: str | None = None, **fields: Any) -> Json:
        """Push a message and make it a dead letter; the message as it was delivered."""
        self.push(queue, payload, **fields)
        message = self.pop_one(queue, **({} if group is None else {"consumerGroup": group}))
        result = self.ack(message, "dlq", error="boom")
        assert (result["success"], result["dlq"]) == (True, True)
        return message


def acknowledgment(message: Json, status: str = "completed", **fields: Any) -> Json:
    """What an ack says of a delivered message."""
    return {
        "transactionId": message["transactionId"],
        "partitionId": message["partitionId"],
        "leaseId": message["leaseId"],
        "status": status,
    } | fields


def data(messages: list[Json]) -> list[Json]:
    """The payloads of delivered messages."""
    return [message["data"] for message in messages]


def read(response: httpx.Response, status: int = 200) -> Json:
    """The JSON of an answer with this status."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"].split(";")[0] == "application/json"
    return response.json()


def refusal(response: httpx.Response, status: int, code: str | None = None) -> str:
    """The text of an error answer, which has the one shape that all have."""
    body = read(response, status)
    assert set(body) >= {"error", "code"}, body
    assert isinstance(body["error"], str)
    assert body["error"]
    assert isinstance(body["code"], str)
    if code is not None:
        assert body["code"] == code, body
    return str(body["error"])


def texts(query: dict[str, Any]) -> dict[str, str]:
    """Parameters as they go into a URL."""
    return {
        name.rstrip("_"): str(value).lower() if isinstance(value, bool) else str(value) for name, value in query.items()
    }
