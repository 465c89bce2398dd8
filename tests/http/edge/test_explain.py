"""What those may see of leases and reasons who may only read, or use only some queues."""

from __future__ import annotations

from tests.http.edge.asking import Asking


async def pushed_and_popped(ask: Asking, queue: str) -> tuple[str, str]:
    """A message on a lease; its id and that of the lease."""
    assert (await ask("POST", "/api/v1/push", "writer", {"items": [{"queue": queue, "payload": 1}]})).status == 201
    pop = (await ask("GET", f"/api/v1/pop/queue/{queue}", "writer")).json
    return pop["messages"][0]["id"], pop["leaseId"]


async def test_a_lease_id_is_shown_to_those_who_may_settle(ask: Asking) -> None:
    _, lease_id = await pushed_and_popped(ask, "mine")
    for who, seen in {"reader": None, "writer": lease_id, "mine-reader": None, "mine-writer": lease_id}.items():
        answer = await ask("GET", "/api/v1/leases", who, query={"queue": "mine"})
        assert [one["leaseId"] for one in answer.json["leases"]] == [seen]


async def test_an_explanation_never_says_a_lease_id(ask: Asking) -> None:
    message_id, lease_id = await pushed_and_popped(ask, "mine")
    answer = await ask("GET", f"/api/v1/explain/{message_id}", "reader")
    assert answer.json["explanations"][0]["reason"] == "leased"
    assert lease_id not in answer.body.decode()


async def test_the_holder_of_a_lease_is_known_by_the_subject_of_its_token(ask: Asking) -> None:
    message_id, _ = await pushed_and_popped(ask, "mine")
    answer = await ask("GET", f"/api/v1/explain/{message_id}", "reader")
    assert answer.json["explanations"][0]["consumer"].startswith("writer")


async def test_messages_of_other_queues_are_as_unknown_as_none(ask: Asking) -> None:
    message_id, _ = await pushed_and_popped(ask, "theirs")
    answer = await ask("GET", f"/api/v1/explain/{message_id}", "mine-reader")
    unknown = await ask("GET", "/api/v1/explain/00000000-7770-8000-8000-000040000000", "mine-reader")
    assert (answer.status, answer.code, answer.body) == (404, "message_not_found", unknown.body)
    assert (await ask("GET", "/api/v1/leases", "mine-reader")).code == "queue_not_allowed"
    assert (await ask("GET", "/api/v1/leases", "mine-reader", query={"queue": "theirs"})).code == "queue_not_allowed"
