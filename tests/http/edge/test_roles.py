"""Who may ask for what: the whole table of routes, for everybody; and as whom a token is known."""

from __future__ import annotations

import re

import pytest

from hark.access.identity import Identity, Role
from hark.http.app import App
from hark.http.routes.table import WEBSOCKET, Operation, Reach
from tests.http.edge.asking import WHO, Asking, Json

OTHER = "theirs"
"""The queue that those who may use only some may not use."""
QUEUES = "/api/v1/resources/queues"
TAKES = ("/api/v1/listen",)
"""Asking for these without saying `browse` takes messages: reading is not enough."""


def operations(app: App) -> list[tuple[str, str, Operation]]:
    """Path, method and operation of everything that is asked for by plain HTTP."""
    return [
        (re.sub(r"{queue}", OTHER, re.sub(r"{(?!queue})[^}]*}", "x", pattern)), method, operation)
        for pattern, methods in app.table.items()
        for method, operation in methods.items()
        if method != WEBSOCKET
    ]


def expected(path: str, operation: Operation, identity: Identity | None) -> str | None:
    """The code of the refusal, if there is to be one."""
    if operation.role is None:
        return None
    if identity is None:
        return "unauthorized"
    role = Role.READ_WRITE if path.startswith(TAKES) else operation.role
    if identity.role < operation.role:
        return "forbidden"
    if identity.restricted and operation.reach in (Reach.PATH, Reach.QUERY, Reach.SERVER):
        return "queue_not_allowed"
    # The endpoint itself looks at the role of those who listen, when it knows what they listen to.
    return "forbidden" if identity.role < role and operation.reach is Reach.PATH else None


@pytest.mark.parametrize("who", [None, *WHO])
async def test_every_operation_is_refused_to_exactly_those_that_the_table_says(ask: Asking, who: str | None) -> None:
    wrong = []
    for path, method, operation in operations(ask.app):
        answer = await ask(method, path, who)
        refusal = answer.code if answer.status in (401, 403) else None
        wanted = expected(path, operation, WHO[who] if who else None)
        if refusal != wanted:
            wrong.append(f"{method} {path}: expected {wanted}, got {answer.status} {refusal}")
        if refusal == "unauthorized":
            assert answer.headers["www-authenticate"] == "Bearer"
    assert wrong == []


async def test_the_table_has_what_the_contract_says(ask: Asking) -> None:
    roles = {(method, path): operation.role for path, method, operation in operations(ask.app)}
    assert roles["POST", "/api/v1/push"] is Role.READ_WRITE
    assert roles["GET", "/api/v1/pop"] is Role.READ_WRITE
    assert roles["GET", QUEUES] is Role.READ_ONLY
    assert roles["DELETE", f"{QUEUES}/{OTHER}"] is Role.ADMIN
    assert roles["POST", f"{QUEUES}/{OTHER}/purge"] is Role.ADMIN
    assert roles["DELETE", "/api/v1/dlq"] is Role.ADMIN
    assert roles["POST", "/api/v1/system/maintenance"] is Role.ADMIN
    assert roles["GET", "/api/v1/system/audit"] is Role.ADMIN
    assert roles["GET", "/health"] is None
    public = {path for (_, path), role in roles.items() if role is None}
    known = {"/", "/assets/x", "/health", "/health/live", "/health/ready", "/openapi.json", "/api/v1/session"}
    assert public <= known, "a new public route? say here that it gives nothing away"
    reading = {path for (method, path), role in roles.items() if role is Role.READ_ONLY and method != "GET"}
    searches = {"/keyval/api/keys/batch", "/keyval/api/keys/list"}
    assert reading == searches, "a new one? say here that it changes nothing"


# Tokens ----------------------------------------------------------------------------------------------------


async def test_tokens_that_are_much_too_long_are_refused_unread_and_not_kept(ask: Asking) -> None:
    edge = ask.app.edge
    assert (await ask("GET", QUEUES, "x" * 8000)).status == 401
    kept = edge._credential_of.cache_info().currsize
    assert (await ask("GET", QUEUES, "x" * 60_000)).status == 401
    assert edge._credential_of.cache_info().currsize == kept == 1


@pytest.mark.parametrize(
    ("value", "status"),
    [
        ("reader", 200),
        ("Bearer reader", 200),
        ("bearer  reader", 200),
        ("Basic reader", 401),
        ("", 401),
        ("Bearer hark_secret_thing", 401),
    ],
)
async def test_a_token_may_come_bare_or_with_its_scheme_and_no_other_way(ask: Asking, value: str, status: int) -> None:
    answer = await ask("GET", QUEUES, headers={"authorization": value})
    assert answer.status == status
    assert b"secret" not in answer.body, "an answer to a wrong token does not repeat it"
    assert (await ask("GET", QUEUES, query={"token": "reader"})).status == 401


async def test_metrics_need_a_token_unless_the_settings_say_otherwise(ask: Asking, ask_public: Asking) -> None:
    assert (await ask("GET", "/metrics")).status == 401
    assert (await ask_public("GET", "/metrics")).status == 200
    assert (await ask_public("GET", QUEUES)).status == 401


# Whose a lease is ------------------------------------------------------------------------------------------


async def test_lease_ids_are_shown_to_those_who_may_settle_and_nobody_else_by_any_route(ask: Asking) -> None:
    push = {"items": [{"queue": "mine", "payload": 1}]}
    assert (await ask("POST", "/api/v1/push", "writer", push)).status == 201
    popped = (await ask("GET", "/api/v1/pop/queue/mine", "writer", query={"consumerGroup": "g"})).json
    message, lease_id = popped["messages"][0], popped["leaseId"].encode()
    explained = (await ask("GET", f"/api/v1/explain/{message['id']}", "reader")).json["explanations"]
    [holder] = [one["consumer"] for one in explained if one["reason"] == "leased"]
    assert holder.startswith("writer"), "it is known by the subject of its token"
    values = {"queue": "mine", "group": "g", "partition_id": message["partitionId"], "partition": message["partition"]}
    query = {"queue": "mine", "minLagSeconds": "0", "partitions": "true", "places": "true", "browse": "true"}
    shown: dict[str, list[str]] = {"reader": [], "mine-reader": [], "writer": [], "mine-writer": []}
    for pattern, methods in ask.app.table.items():
        path = "/".join(
            values.get(word[1:-1], message["id"]) if word.startswith("{") else word for word in pattern.split("/")
        )
        for who, routes in shown.items():
            if "GET" in methods and not pattern.startswith("/api/v1/pop"):
                answer = await ask("GET", path, who, query=query)
                routes += [pattern] if lease_id in answer.body else []
    assert shown["reader"] == shown["mine-reader"] == []
    assert len(shown["writer"]) >= 4, "where it is shown to those who may settle"
    assert "/api/v1/leases" in shown["mine-writer"]


# Whose a message is ----------------------------------------------------------------------------------------

FORGED = {"producerSub": "somebody else", "producer": "somebody else"}


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
async def test_a_message_is_of_the_subject_of_the_token_whatever_the_body_says(
    ask: Asking, ask_open: Asking, way: int
) -> None:
    path, body = pushes("q")[way]
    for server, token, producer in ((ask, "writer", "writer"), (ask_open, None, None)):
        answer = await server("POST", path, token, body, query={"queue": "q"})
        assert answer.status in (200, 201), answer.body
        popped = (await server("GET", "/api/v1/pop/queue/q", token)).json
        assert popped["messages"][0]["producerSub"] == producer
