"""Who may ask for what: the whole table of routes, for everybody."""

from __future__ import annotations

import re

import pytest

from hark.access.identity import Identity, Role
from hark.http.app import App
from hark.http.routes.table import WEBSOCKET, Operation, Reach
from tests.http.edge.asking import WHO, Asking, serving

OTHER = "theirs"
"""The queue that those who may use only some may not use."""
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
async def test_every_operation_is_refused_to_exactly_those_that_the_table_says(who: str | None) -> None:
    async with serving() as ask:
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


async def test_the_table_has_what_the_contract_says() -> None:
    async with serving() as ask:
        roles = {(method, path): operation.role for path, method, operation in operations(ask.app)}
    assert roles["POST", "/api/v1/push"] is Role.READ_WRITE
    assert roles["GET", "/api/v1/pop"] is Role.READ_WRITE
    assert roles["GET", "/api/v1/resources/queues"] is Role.READ_ONLY
    assert roles["DELETE", f"/api/v1/resources/queues/{OTHER}"] is Role.ADMIN
    assert roles["POST", f"/api/v1/resources/queues/{OTHER}/purge"] is Role.ADMIN
    assert roles["DELETE", "/api/v1/dlq"] is Role.ADMIN
    assert roles["POST", "/api/v1/system/maintenance"] is Role.ADMIN
    assert roles["GET", "/api/v1/system/audit"] is Role.ADMIN
    assert roles["GET", "/health"] is None
    public = {path for (_, path), role in roles.items() if role is None}
    known = {"/", "/assets/x", "/health", "/health/live", "/health/ready", "/openapi.json", "/api/v1/session"}
    assert public <= known, "a new public route? say here that it gives nothing away"


async def test_what_reading_allows_are_gets_and_searches_with_a_body() -> None:
    async with serving() as ask:
        others = {
            path
            for path, method, operation in operations(ask.app)
            if operation.role is Role.READ_ONLY and method != "GET"
        }
    searches = {"/keyval/api/keys/batch", "/keyval/api/keys/list"}
    assert others == searches, "a new one? say here that it changes nothing"


async def test_tokens_that_are_much_too_long_are_refused_unread_and_not_kept(ask: Asking) -> None:
    edge = ask.app.edge
    assert (await ask("GET", "/api/v1/resources/queues", "x" * 8000)).status == 401
    kept = edge._credential_of.cache_info().currsize
    assert (await ask("GET", "/api/v1/resources/queues", "x" * 60_000)).status == 401
    assert edge._credential_of.cache_info().currsize == kept == 1


async def test_a_token_may_come_bare_or_with_its_scheme_and_no_other_way() -> None:
    async with serving() as ask:
        for value, status in (
            ("reader", 200),
            ("Bearer reader", 200),
            ("bearer  reader", 200),
            ("Basic reader", 401),
            ("", 401),
            ("Bearer nobody", 401),
        ):
            answer = await ask("GET", "/api/v1/resources/queues", headers={"authorization": value})
            assert answer.status == status, value
        assert (await ask("GET", "/api/v1/resources/queues", query={"token": "reader"})).status == 401


async def test_an_answer_to_a_wrong_token_does_not_repeat_it() -> None:
    async with serving() as ask:
        answer = await ask("GET", "/api/v1/resources/queues", "hark_secret_thing")
        assert answer.status == 401
        assert b"hark_secret_thing" not in answer.body


async def test_metrics_need_a_token_unless_the_settings_say_otherwise(ask_public: Asking) -> None:
    async with serving() as ask:
        assert (await ask("GET", "/metrics")).status == 401
    assert (await ask_public("GET", "/metrics")).status == 200
    assert (await ask_public("GET", "/api/v1/resources/queues")).status == 401


async def test_read_only_tokens_see_no_lease_ids_by_any_route(ask: Asking) -> None:
    push = {"items": [{"queue": "q", "payload": 1}]}
    assert (await ask("POST", "/api/v1/push", "writer", push)).status == 201
    popped = (await ask("GET", "/api/v1/pop/queue/q", "writer", query={"consumerGroup": "g"})).json
    message, lease_id = popped["messages"][0], popped["leaseId"].encode()
    values = {"queue": "q", "group": "g", "partition_id": message["partitionId"], "partition": message["partition"]}
    query = {"queue": "q", "minLagSeconds": "0", "partitions": "true", "places": "true", "browse": "true"}
    shown: dict[str, list[str]] = {"reader": [], "writer": []}
    for pattern, methods in ask.app.table.items():
        path = "/".join(
            values.get(word[1:-1], message["id"]) if word.startswith("{") else word for word in pattern.split("/")
        )
        for who, routes in shown.items():
            if "GET" in methods and not pattern.startswith("/api/v1/pop"):
                answer = await ask("GET", path, who, query=query)
                routes += [pattern] if lease_id in answer.body else []
    assert shown["reader"] == []
    assert len(shown["writer"]) >= 4, "where it is shown to those who may settle"
