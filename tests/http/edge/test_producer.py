"""Who pushed a message is said by the token, and by nothing else."""

from __future__ import annotations

import pytest

from tests.http.edge.asking import Asking, Json

FORGED = {"producerSub": "somebody else", "producer": "somebody else"}


async def producer(ask: Asking, queue: str, token: str | None) -> Json:
    """Who is said to have pushed the next message of a queue."""
    popped = (await ask("GET", f"/api/v1/pop/queue/{queue}", token)).json
    return popped["messages"][0]["producerSub"]


def pushes(queue: str) -> list[tuple[str, Json]]:
    """Every way to push a message."""
    item = {"queue": queue, "payload": {"a": 1}} | FORGED
    return [
        ("/api/v1/push", {"items": [item]}),
        ("/api/v1/push", {"items": [item | {"traceId": "11111111-2222-3333-4444-555555555555"}]}),
        ("/api/v1/push", {"items": [{"queue": queue, "payload": 1}]}),
        ("/api/v1/transaction", {"operations": [{"type": "push", "items": [item]}]}),
        ("/api/v1/transaction", {"operations": [{"type": "push"} | item]}),
        ("/keyval/api/queue/enqueue", {"value": 1} | FORGED),
        ("/keyval/api/atomic", {"mutations": [{"type": "enqueue", "value": 1} | FORGED]}),
    ]


@pytest.mark.parametrize("way", range(len(pushes(""))))
async def test_it_is_the_subject_of_the_token_whatever_the_body_says(ask: Asking, way: int) -> None:
    path, body = pushes("q")[way]
    answer = await ask("POST", path, "writer", body, query={"queue": "q"})
    assert answer.status in (200, 201), answer.body
    assert await producer(ask, "q", "admin") == "writer"


@pytest.mark.parametrize("way", range(len(pushes(""))))
async def test_it_is_nobody_without_authentication(ask_open: Asking, way: int) -> None:
    path, body = pushes("q")[way]
    answer = await ask_open("POST", path, None, body, query={"queue": "q"})
    assert answer.status in (200, 201), answer.body
    assert await producer(ask_open, "q", None) is None
