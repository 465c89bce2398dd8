"""Who may ask for what: the whole table of routes, for everybody; and as whom a token is known.

A token for some queues shows nothing of the others and changes nothing there, by any route.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from hark.access.tokens import Identity
from hark.api.operations import WEBSOCKET, Reach, Role
from hark.http.app import App
from hark.http.routing import Operation
from hark.settings import Auth, Settings
from tests.http.edge.app_client import WHO, AppClient, Json, serving

OTHER = "theirs-cd81"
"""The queue that those who may use only some may not use."""
SCHEDULE = "their-schedule"
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
async def test_every_operation_is_refused_to_exactly_those_that_the_table_says(ask: AppClient, who: str | None) -> None:
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


async def test_the_table_has_what_the_contract_says(ask: AppClient) -> None:
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


async def test_tokens_that_are_much_too_long_are_refused_unread_and_not_kept(ask: AppClient) -> None:
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
async def test_a_token_may_come_bare_or_with_its_scheme_and_no_other_way(
    ask: AppClient, value: str, status: int
) -> None:
    answer = await ask("GET", QUEUES, headers={"authorization": value})
    assert answer.status == status
    assert b"secret" not in answer.body, "an answer to a wrong token does not repeat it"
    assert (await ask("GET", QUEUES, query={"token": "reader"})).status == 401


async def test_metrics_need_a_token_unless_the_settings_say_otherwise(ask: AppClient) -> None:
    assert (await ask("GET", "/metrics")).status == 401
    async with serving(Settings(auth=Auth(public_metrics=True))) as ask_public:
        assert (await ask_public("GET", "/metrics")).status == 200
        assert (await ask_public("GET", QUEUES)).status == 401


# Whose a lease is ------------------------------------------------------------------------------------------


async def test_lease_ids_are_shown_to_those_who_may_settle_and_no_one_else_by_any_route(ask: AppClient) -> None:
    push = {"items": [{"queue": "mine", "payload": 1}, {"queue": "mine", "payload": 2}]}
    assert (await ask("POST", "/api/v1/push", "writer", push)).status == 201
    popped = (await ask("GET", "/api/v1/pop/queue/mine", "writer", query={"consumerGroup": "g"})).json
    message, lease_id = popped["messages"][0], popped["leaseId"].encode()
    explained = (await ask("GET", f"/api/v1/explain/{message['id']}", "reader")).json["explanations"]
    [holder] = [one["consumer"] for one in explained if one["reason"] == "leased"]
    assert holder.startswith("writer"), "it is known by the subject of its token"
    values = {"queue": "mine", "group": "g", "partition_id": message["partitionId"], "partition": message["partition"]}
    query = {"queue": "mine", "minLagSeconds": "0", "partitions": "true", "positions": "true", "browse": "true"}
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
    ask: AppClient, ask_open: AppClient, way: int
) -> None:
    path, body = pushes("q")[way]
    for server, token, producer in ((ask, "writer", "writer"), (ask_open, None, None)):
        answer = await server("POST", path, token, body, query={"queue": "q"})
        assert answer.status in (200, 201), answer.body
        popped = (await server("GET", "/api/v1/pop/queue/q", token)).json
        assert popped["messages"][0]["producerSub"] == producer


# Other queues ----------------------------------------------------------------------------------------------

PARTITION = "their-partition-5a0e"
GROUP = "their-group-77b2"
TRACE = "their-trace-99c4"
PAYLOAD = "their-payload-3f6d"
SECRETS = (OTHER, PARTITION, GROUP, TRACE, PAYLOAD)
UNKNOWN = "00000000-7770-8000-8000-000040000000"


class OtherQueue(NamedTuple):
    """What there is in the other queue."""

    message_id: str
    transaction_id: str
    partition_id: str
    lease_id: str
    dead_letter_id: str
    dead_message_id: str


@pytest.fixture
async def other_queue(ask: AppClient) -> OtherQueue:
    """A message on a lease, a dead letter, a group, a trace, an intention, and an entry in the key-value store."""
    items = [
        {"queue": OTHER, "partition": PARTITION, "payload": PAYLOAD, "transactionId": f"their-{n}"} for n in (1, 2)
    ]
    assert (await ask("POST", "/api/v1/push", "writer", {"items": items})).status == 201
    pop = (await ask("GET", f"/api/v1/pop/queue/{OTHER}", "writer", query={"consumerGroup": GROUP})).json
    [dead] = pop["messages"]
    settlement = {
        "transactionId": dead["transactionId"],
        "partitionId": dead["partitionId"],
        "leaseId": dead["leaseId"],
    }
    settlement |= {"status": "dlq", "error": PAYLOAD, "consumerGroup": GROUP}
    assert (await ask("POST", "/api/v1/ack", "writer", settlement)).json[0]["dlq"]
    # The default group has both, one of them on a lease.
    pop = (await ask("GET", f"/api/v1/pop/queue/{OTHER}", "writer")).json
    [message] = pop["messages"]
    trace = {"transactionId": "their-1", "partitionId": dead["partitionId"], "data": PAYLOAD, "traceNames": [TRACE]}
    assert (await ask("POST", "/api/v1/traces", "writer", trace)).status == 201
    assert (await ask("PUT", f"/keyval/api/keys/{PARTITION}", "writer", PAYLOAD)).status == 200
    schedule = {"queue": OTHER, "payload": PAYLOAD, "every": "1h"}
    assert (await ask("PUT", f"/api/v1/schedules/{SCHEDULE}", "writer", schedule)).status == 201
    letters = (await ask("GET", "/api/v1/dlq", "reader", query={"queue": OTHER})).json["messages"]
    own = {"items": [{"queue": "mine", "payload": 1}]}
    assert (await ask("POST", "/api/v1/push", "mine-writer", own)).status == 201
    return OtherQueue(
        message["id"], "their-1", message["partitionId"], pop["leaseId"], letters[0]["deadLetterId"], dead["id"]
    )


async def state(ask: AppClient) -> Json:
    """All that there is in the other queue, but for the ages of things."""
    queue = (await ask("GET", f"/api/v1/resources/queues/{OTHER}", "admin")).json
    groups = (await ask("GET", "/api/v1/consumer-groups", "admin", query={"queue": OTHER})).json
    letters = (await ask("GET", "/api/v1/dlq", "admin", query={"queue": OTHER})).json
    messages = (await ask("GET", "/api/v1/messages", "admin", query={"queue": OTHER})).json
    traces = (await ask("GET", f"/api/v1/traces/by-name/{TRACE}", "admin")).json
    keys = (await ask("GET", "/keyval/api/keys", "admin")).json
    schedule = (await ask("GET", f"/api/v1/schedules/{SCHEDULE}", "admin")).json
    for group in groups:
        group.pop("maxTimeLag")
    return [queue, groups, letters, messages, traces, keys, schedule]


def bodies(found: OtherQueue) -> Iterator[tuple[str, str, Json]]:
    """Requests whose bodies name the other queue, or something in it."""
    lease_ids = {"partitionId": found.partition_id, "leaseId": found.lease_id}
    push = {"type": "push", "items": [{"queue": OTHER, "payload": 1}]}
    keys = {"mutations": [{"type": "set", "key": [PARTITION], "value": 1}]}
    yield "POST", "/api/v1/push", {"items": [{"queue": "mine", "payload": 1}, {"queue": OTHER, "payload": 2}]}
    yield "POST", "/api/v1/push", {"items": [{"queue": "mine", "keysIfUndelivered": [[PARTITION]]}]}
    for name in (found.message_id, found.transaction_id):
        for status in ("completed", "failed", "dlq", "retry"):
            ack = {"transactionId": name, "status": status} | lease_ids
            yield "POST", "/api/v1/ack", ack
            yield "POST", "/api/v1/ack/batch", {"acknowledgments": [ack]}
            yield "POST", "/api/v1/transaction", {"operations": [{"type": "ack"} | ack]}
    yield "POST", "/api/v1/ack", {"transactionId": found.message_id, "leaseId": found.lease_id}
    yield "POST", "/api/v1/ack", {"transactionId": found.message_id, "partitionId": found.partition_id}
    yield "POST", "/api/v1/transaction", {"operations": [push]}
    yield "POST", "/api/v1/transaction", {"operations": [], "kv": keys}
    for queue in (OTHER, "mine"):
        yield "PUT", f"/api/v1/schedules/{SCHEDULE}", {"queue": queue, "every": 60}
    yield "PUT", "/api/v1/schedules/new", {"queue": OTHER, "every": 60}
    yield "POST", "/api/v1/configure", {"queue": OTHER, "options": {"leaseTime": 1}}
    trace = {"transactionId": found.transaction_id, "partitionId": found.partition_id, "data": 1}
    yield "POST", "/api/v1/traces", trace
    for name in (found.dead_letter_id, found.dead_message_id):
        yield "POST", "/api/v1/dlq/requeue", {"ids": [name]}
        yield "POST", "/api/v1/dlq/delete", {"ids": [name]}
    yield "POST", "/api/v1/dlq/requeue", {"filter": {"queue": OTHER}}
    yield "POST", "/api/v1/dlq/requeue", {"filter": {}}
    for verb in ("ack", "nack", "cancel"):
        yield "POST", f"/keyval/api/queue/{verb}?queue=mine", {"id": found.message_id}
    yield "POST", "/keyval/api/queue/ack?queue=mine", {"id": found.message_id, "receipt": found.lease_id}
    yield "POST", f"/keyval/api/queue/enqueue?queue={OTHER}", {"value": 1}
    yield "POST", "/keyval/api/queue/enqueue?queue=mine", {"value": 1, "options": {"keysIfUndelivered": [[PARTITION]]}}
    yield "POST", "/keyval/api/atomic?queue=mine", keys
    yield "POST", "/keyval/api/atomic?queue=mine", {"mutations": [{"type": "enqueue", "queue": OTHER, "value": 1}]}
    yield "POST", "/keyval/api/keys/batch", {"keys": [[PARTITION]]}


def paths(ask: AppClient, found: OtherQueue) -> Iterator[tuple[str, str]]:
    """Every route of the table with whatever of the other queue its path can name."""
    ids = [found.message_id, found.dead_letter_id, found.dead_message_id]
    for pattern, methods in ask.app.table.items():
        names = re.findall(r"{([^}]*)}", pattern)
        for id in ids if "id" in names or "message_id" in names else ids[:1]:
            values = {
                "queue": OTHER,
                "partition": PARTITION,
                "group": GROUP,
                "name": TRACE,
                "schedule": SCHEDULE,
                "partition_id": found.partition_id,
                "transaction_id": found.transaction_id,
                "key:path": PARTITION,
            }
            path = "/".join(values.get(word[1:-1], id) if word.startswith("{") else word for word in pattern.split("/"))
            yield from ((method, path) for method in methods if method != WEBSOCKET)


QUERIES: list[dict[str, str]] = [
    {},
    {"queue": OTHER},
    {"namespace": OTHER, "task": OTHER},
    {"minLagSeconds": "0", "search": "their"},
    {"consumerGroup": GROUP, "browse": "true", "from": "head"},
]


async def check(ask: AppClient, who: str, method: str, target: str, body: Json, query: dict[str, str]) -> None:
    """Ask, and look through the answer for what was not in the question."""
    path, _, rest = target.partition("?")
    request = query | dict(part.split("=") for part in rest.split("&") if part)
    answer = await ask(method, path, who, body, query=request)
    assert answer.status < 500, (method, path, answer.body)
    request_text = f"{path} {request} {body}"
    answer_text = answer.body.decode() + str(answer.headers)
    leaked = [secret for secret in SECRETS if secret in answer_text and secret not in request_text]
    assert not leaked, (method, request_text, answer_text)


@pytest.mark.parametrize("who", ["mine-reader", "mine-writer", "mine-admin"])
async def test_nothing_of_another_queue_is_seen_or_changed_by_any_route(
    ask: AppClient, other_queue: OtherQueue, who: str
) -> None:
    before = await state(ask)
    for method, path in paths(ask, other_queue):
        for query in QUERIES:
            await check(ask, who, method, path, None, query)
    for method, path, body in bodies(other_queue):
        await check(ask, who, method, path, body, {})
    assert await state(ask) == before


async def test_an_id_of_another_queue_is_answered_like_one_that_nothing_has(
    ask: AppClient, other_queue: OtherQueue
) -> None:
    real = [*other_queue, OTHER, GROUP, TRACE]

    def general(text: str) -> str:
        for name in (*real, UNKNOWN):
            text = text.replace(name, "ID")
        return re.sub(r'"transactionId":"[^"]*"', "", text)

    def with_unknown(value: str) -> str:
        for name in other_queue:
            value = value.replace(name, UNKNOWN)
        return value

    request = [(method, path, None) for method, path in paths(ask, other_queue)] + list(bodies(other_queue))
    compared = 0
    for method, target, body in request:
        path, _, rest = target.partition("?")
        query = dict(part.split("=") for part in rest.split("&") if part)
        if with_unknown(f"{path}{body}") == f"{path}{body}" or path.startswith("/api/v1/lease/"):
            continue
        ours = await ask(method, path, "mine-admin", body, query=query)
        unknown_body = None if body is None else json.loads(with_unknown(json.dumps(body)))
        unknown = await ask(method, with_unknown(path), "mine-admin", unknown_body, query=query)
        assert ours.status == unknown.status, (method, path, body, ours.body, unknown.body)
        assert general(ours.body.decode()) == general(unknown.body.decode()), (method, path, body)
        compared += 1
    assert compared > 30


async def test_what_one_may_use_works_as_for_everyone(ask: AppClient) -> None:
    pushed = await ask("POST", "/api/v1/push", "mine-writer", {"items": [{"queue": "mine", "payload": 1}] * 3})
    assert pushed.status == 201
    for name in ("transaction_id", "message_id"):
        popped = (await ask("GET", "/api/v1/pop/queue/mine", "mine-writer")).json["messages"][0]
        ack = {"transactionId": popped["transactionId"], "leaseId": popped["leaseId"]}
        ack |= {"partitionId": popped["partitionId"]} if name == "transaction_id" else {}
        assert (await ask("POST", "/api/v1/ack", "mine-writer", ack)).json[0]["success"], name
    popped = (await ask("GET", "/api/v1/pop", "mine-writer", query={"queue": "mine"})).json["messages"][0]
    ack = {"type": "ack", "transactionId": popped["transactionId"], "partitionId": popped["partitionId"]}
    moved = {"type": "push", "items": [{"queue": "mine-too", "payload": 2}]}
    body = {"operations": [ack | {"leaseId": popped["leaseId"]}, moved]}
    assert (await ask("POST", "/api/v1/transaction", "mine-writer", body)).json["success"]
    names = [queue["name"] for queue in (await ask("GET", "/api/v1/resources/queues", "mine-reader")).json["queues"]]
    assert sorted(names) == ["mine", "mine-too"]
    shown = await ask("GET", f"/api/v1/messages/{popped['partitionId']}/{popped['transactionId']}", "mine-reader")
    assert (shown.status, shown.json["payload"]) == (200, 1)
    overview = (await ask("GET", "/api/v1/resources/overview", "mine-reader")).json
    assert overview["queues"] == 2
    enqueued = await ask("POST", "/keyval/api/queue/enqueue", "mine-writer", {"value": 1}, query={"queue": "mine-work"})
    assert enqueued.status == 200
    polled = (await ask("GET", "/keyval/api/queue/poll", "mine-writer", query={"queue": "mine-work"})).json["message"]
    settled = {"id": polled["id"], "receipt": polled["receipt"]}
    assert (await ask("POST", "/keyval/api/queue/ack", "mine-writer", settled)).json == {"ok": True}


# Labels (rule 27) ------------------------------------------------------------------------------------------

ITEM = {"payload": "forged"}
LABELLED = {"namespace": "billing", "task": "inbox", "options": {"priority": 1_000_000}}


@pytest.mark.parametrize(
    ("who", "path", "body"),
    [
        ("mine-writer", "/api/v1/configure", {"queue": "mine", **LABELLED}),
        ("inbox-writer", "/api/v1/configure", {"queue": "billing.inbox.1", **LABELLED}),
        ("inbox-writer", "/api/v1/push", {"items": [{"queue": "billing.inbox.1", **ITEM}]}),
        ("inbox-writer", "/api/v1/push", {"items": [{"queue": "billing.inbox.1", "uniqueKey": "k", **ITEM}]}),
        ("inbox-writer", "/api/v1/flows", {"steps": [{"queue": "billing.inbox.1", "payload": {"task": "forged"}}]}),
        (
            "inbox-writer",
            "/api/v1/transaction",
            {"operations": [{"type": "push", "items": [{"queue": "billing.inbox.1", **ITEM}]}]},
        ),
        ("inbox-writer", "/keyval/api/queue/enqueue", {"value": "forged"}),
        ("inbox-writer", "/keyval/api/queue/poll", None),
    ],
)
async def test_rule_27_a_restricted_token_labels_no_queue_with_a_namespace_of_others(
    ask: AppClient, who: str, path: str, body: Json
) -> None:
    query = {"queue": "billing.inbox.1"} if path.startswith("/keyval") else None
    answer = await ask("POST" if body else "GET", path, who, body, query=query)
    assert answer.status in (200, 201), answer.body
    [queue] = (await ask("GET", QUEUES, "admin")).json["queues"]
    assert (queue["namespace"], queue["task"]) == ("", "")
    assert (await ask("GET", "/api/v1/pop", "writer", query={"namespace": "billing"})).status == 204
    assert (await ask("GET", "/api/v1/pop", "writer", query={"task": "inbox"})).status == 204


async def test_rule_27_a_queue_that_a_schedule_or_a_later_step_makes_has_labels_of_the_token_that_declared_it(
    ask: AppClient,
) -> None:
    for who, queues, labels in (
        ("inbox-writer", ("billing.inbox.1", "billing.inbox.2", "billing.inbox.3"), ("", "")),
        ("mine-writer", ("mine.jobs.1", "mine.jobs.2", "mine.jobs.3"), ("mine", "jobs")),
    ):
        first, second, third = queues
        put = await ask("PUT", f"/api/v1/schedules/{who}", who, {"queue": first, "every": 60, **ITEM})
        assert put.status == 201, put.body
        assert (await ask("POST", f"/api/v1/schedules/{who}/run", "admin")).status == 201
        steps = [{"queue": queue, "payload": {"task": "forged"}} for queue in (second, third)]
        assert (await ask("POST", "/api/v1/flows", who, {"steps": steps})).status == 201
        [message] = (await ask("GET", f"/api/v1/pop/queue/{second}", "writer")).json["messages"]
        end = {"transactionId": message["transactionId"], "flow": message["data"]["flow"]}
        settlement = {"transactionId": message["id"], "leaseId": message["leaseId"], "task": end}
        assert (await ask("POST", "/api/v1/ack", "writer", settlement)).json[0]["success"]
        found = {queue["name"]: queue for queue in (await ask("GET", QUEUES, "admin")).json["queues"]}
        assert [(found[one]["namespace"], found[one]["task"]) for one in queues] == [labels] * 3


async def test_rule_27_a_restricted_token_labels_queues_of_a_namespace_that_its_patterns_cover(ask: AppClient) -> None:
    await ask("POST", "/api/v1/push", "mine-writer", {"items": [{"queue": "mine.jobs.1", **ITEM}]})
    [queue] = (await ask("GET", QUEUES, "admin")).json["queues"]
    assert (queue["namespace"], queue["task"]) == ("mine", "jobs")


async def test_a_restricted_token_sees_no_task_of_another_queue_and_does_not_cancel_it(
    ask: AppClient, other_queue: OtherQueue
) -> None:
    path = f"/api/v1/messages/{other_queue.partition_id}/{other_queue.transaction_id}"
    cancel = f"/api/v1/messages/{other_queue.message_id}/cancel"
    report = {"leaseId": other_queue.lease_id, "progress": 0.5, "note": PAYLOAD}
    assert (await ask("POST", f"{path}/progress", "mine-writer", report)).status in (404, 409)
    assert (await ask("POST", cancel, "mine-writer", query={"running": "true"})).status == 404
    assert "progress" not in (await ask("GET", f"{path}/task", "reader")).json
    popped = {"transactionId": other_queue.message_id, "partitionId": other_queue.partition_id}
    end = {"transactionId": other_queue.transaction_id, "state": "done", "resultTtl": 60, "result": PAYLOAD}
    settlement = popped | {"leaseId": other_queue.lease_id, "task": end}
    assert not (await ask("POST", "/api/v1/ack", "mine-writer", settlement)).json[0]["success"]
    one = {"consumerGroup": "__QUEUE_MODE__"}
    assert (await ask("GET", f"{path}/task", "reader", query=one)).json["state"] == "running"
    assert (await ask("POST", "/api/v1/ack", "writer", settlement)).json[0]["success"]
    assert (await ask("GET", f"{path}/task", "reader")).json == {"state": "done", "result": PAYLOAD}
    for who in ("mine-reader", "mine-admin"):
        found = await ask("GET", f"{path}/task", who, query={"wait": "true"})
        assert found.status == 404 and PAYLOAD not in found.body.decode()


@pytest.mark.usefixtures("other_queue")
async def test_a_similar_name_is_only_of_a_schedule_that_the_token_may_see(ask: AppClient) -> None:
    for who, hint in (("reader", f"; did you mean {SCHEDULE}?"), ("mine-reader", "")):
        missing = await ask("GET", f"/api/v1/schedules/{SCHEDULE}s", who)
        assert (missing.status, missing.json["error"]) == (404, f"Schedule not found{hint}")


async def test_a_flow_needs_the_queues_of_all_steps_and_belongs_to_that_of_the_first(ask: AppClient) -> None:
    steps = [{"queue": queue, "payload": {"task": PAYLOAD}} for queue in ("mine-a", OTHER)]
    refused = await ask("POST", "/api/v1/flows", "mine-writer", {"steps": steps})
    assert (refused.status, refused.code) == (403, "queue_not_allowed")
    flow = (await ask("POST", "/api/v1/flows", "writer", {"steps": steps})).json
    [message] = (await ask("GET", "/api/v1/pop/queue/mine-a", "mine-writer")).json["messages"]
    end = {"transactionId": message["transactionId"], "result": 1, "flow": message["data"]["flow"]}
    settlement = {"transactionId": message["id"], "leaseId": message["leaseId"], "task": end}
    assert (await ask("POST", "/api/v1/ack", "mine-writer", settlement)).json[0]["success"]
    [second] = (await ask("GET", f"/api/v1/pop/queue/{OTHER}", "writer")).json["messages"]
    failed = {"transactionId": second["id"], "leaseId": second["leaseId"], "status": "dlq", "error": "what happened"}
    await ask("POST", "/api/v1/ack", "writer", failed)
    path = f"/api/v1/flows/mine-a/{flow['id']}"
    assert (await ask("GET", path, "reader")).json["steps"][1]["error"] == "what happened"
    shown = (await ask("GET", path, "mine-reader")).json
    assert shown["steps"][1] == {"path": "1", "task": PAYLOAD, "queue": OTHER, "state": "failed"}
    assert "what happened" not in str(shown)
