"""GET /consume: how much one frame may settle."""

from __future__ import annotations

import pytest

from tests.http.streaming import Socket


@pytest.mark.parametrize("kind", ["ack", "nack"])
def test_too_many_settlements_in_one_frame_are_refused(socket: Socket, kind: str) -> None:
    item = {"transactionId": "t", "partitionId": "p"}
    answer = socket.ask(kind, items=[item] * 10_001)
    assert (answer["type"], answer["code"]) == ("error", "batch_too_large")
    assert len(socket.ask(kind, items=[item] * 10_000)["results"]) == 10_000
