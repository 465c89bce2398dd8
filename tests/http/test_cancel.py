"""POST /messages/{id}/cancel: a message that nobody has got yet is taken back."""

from __future__ import annotations

import pytest

from tests.http.api import WAIT, Api, Json, data, read, refusal


def cancel(message_id: str) -> str:
    """The route."""
    return f"/messages/{message_id}/cancel"


def push(api: Api, queue: str, **fields: Json) -> str:
    """Push one message; its id."""
    [pushed] = api.push(queue, 1, **fields)
    return str(pushed["message_id"])


@pytest.mark.parametrize("fields", [{}, {"delay": 3_600_000}], ids=["ready", "delayed"])
def test_a_message_is_cancelled_once(api: Api, queue: str, fields: Json) -> None:
    message = push(api, queue, **fields)
    api.push(queue, "next")
    assert read(api.post(cancel(message))) == {"success": True, "id": message, "cancelled": True}
    assert data(api.pop(queue, batch=10)) == ["next"]
    assert refusal(api.post(cancel(message)), 404, "message_not_found") == "Message not found"


@pytest.mark.parametrize("mode", ["ordered", "shared"])
def test_what_somebody_holds_or_tried_is_not_cancelled(api: Api, queue: str, mode: str) -> None:
    message = push(api, queue)
    held = api.pop_one(queue, consumerGroup="g", groupMode=mode)
    assert refusal(api.post(cancel(message)), 409, "message_leased").startswith("too late to cancel")
    api.ack(held, "failed", delay=100)
    refusal(api.post(cancel(message)), 409, "message_leased")
    again = api.pop_one(queue, consumerGroup="g", **WAIT)
    api.ack(again)
    refusal(api.post(cancel(message)), 409, "message_settled")


def test_unknown_ids_are_not_found(api: Api) -> None:
    for unknown in ("unknown", "00000000-0010-8000-8000-00005f254e7b", "%20", "a%2Fb"):
        refusal(api.post(cancel(unknown)), 404, "message_not_found")
    assert refusal(api.post(cancel("x" * 256)), 400).startswith("id: ")


def test_a_message_with_the_transaction_id_cancel_is_still_shown(api: Api, queue: str) -> None:
    [pushed] = api.push(queue, 1, transactionId="cancel")
    assert read(api.get(f"/messages/{pushed['partition_id']}/cancel"))["payload"] == 1
    assert read(api.delete(f"/messages/{pushed['partition_id']}/cancel"))["success"] is True
