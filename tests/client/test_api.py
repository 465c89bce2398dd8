"""The verbs of a client, one by one: the request that each sends, whether it is sent again when its reply is lost, and
the same for the sync client. What comes of them is in test_administration.py and test_kv.py.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import AsyncIterator, Awaitable, Iterator
from datetime import UTC, datetime
from typing import cast
from urllib.parse import unquote, urlencode

import pytest

import hark.sync
from hark.api.options import QueueOptionsGiven
from hark.client.admin import Admin, Groups, Traces
from hark.client.calling import CallPolicy, ConnectionFailed, query_text
from hark.client.delivery.message import Message
from hark.client.keys import KeyValue
from hark.client.queue import DeadLetters, Queue, QueueAdmin
from hark.client.transaction import Transaction
from hark.model import QueueOptions
from hark.sync import parts
from tests.client.transports import Script

AT = datetime(2026, 1, 2, tzinfo=UTC)
DELAYS = '{"retryDelay":1000,"retryMultiplier":2}'
"""The delays between retries of a queue that names none."""

VERBS = """
admin.queues() => GET /api/v1/resources/queues?sort=newest&limit=10000&offset=0
admin.queues(search="s", namespace="n", task="t", sort="name", limit=2, offset=3)
    => GET /api/v1/resources/queues?search=s&namespace=n&task=t&sort=name&limit=2&offset=3
admin.namespaces(limit=2, offset=3) => GET /api/v1/resources/namespaces?limit=2&offset=3
admin.tasks(limit=2, offset=3) => GET /api/v1/resources/tasks?limit=2&offset=3
admin.overview() => GET /api/v1/resources/overview
admin.consumers(queue="q", limit=2, offset=3) => GET /api/v1/consumers?queue=q&limit=2&offset=3
admin.leases(queue="q", partition="p", group="g", limit=2, offset=3)
    => GET /api/v1/leases?queue=q&partition=p&consumerGroup=g&limit=2&offset=3
admin.messages(queue="q", partition="p", namespace="n", task="t", status="dlq", since=AT, until=AT, limit=2, offset=3)
    => GET /api/v1/messages?queue=q&partition=p&namespace=n&task=t&status=dlq&from=ISO&to=ISO&limit=2&offset=3
admin.message("p", "a/b") => GET /api/v1/messages/p/a%2Fb
admin.explain("i", "g") => GET /api/v1/explain/i?consumerGroup=g
admin.delete_message("i") => DELETE /api/v1/messages/i
admin.delete_message("i", "p") => DELETE /api/v1/messages/p/i
admin.cancel("i") => POST /api/v1/messages/i/cancel once
admin.flow("q", "f/1") => GET /api/v1/flows/q/f%2F1
admin.cancel_flow("q", "f") => POST /api/v1/flows/q/f/cancel
admin.health() => GET /health once
admin.metrics() => GET /api/v1/system/metrics
admin.key_metrics("q") => GET /keyval/api/metrics?queue=q
admin.prometheus("q") => GET /keyval/api/metrics/prometheus?queue=q
admin.maintenance() => GET /api/v1/system/maintenance
admin.set_push_maintenance(True) => POST /api/v1/system/maintenance {"enabled":true}
admin.set_pop_maintenance(False) => POST /api/v1/system/maintenance/pop {"enabled":false}

queue("q").admin.configure(namespace="n", lease_time=5, retry_delay=7, ttl=None)
    => POST /api/v1/configure {"queue":"q","namespace":"n","task":null,"options":{"leaseTime":5,"retryDelay":7}}
queue("q").admin.change(ttl=1) => GET /api/v1/resources/queues/q?limit=1&offset=0
queue("q").admin.limits() => GET /api/v1/resources/queues/q?limit=1&offset=0
queue("q").admin.set_limits(rate_limit=0) => GET /api/v1/resources/queues/q?limit=1&offset=0
queue("a/b c").admin.stats() => GET /api/v1/resources/queues/a%2Fb c?limit=1000&offset=0
queue("q").admin.partitions(limit=2, offset=3, search="s") => GET /api/v1/resources/queues/q?limit=2&offset=3&search=s
queue("q").admin.depth("g", limit=2) => GET /api/v1/resources/queues/q/depth?group=g&limit=2
queue("q").admin.delete() => DELETE /api/v1/resources/queues/q
queue("q").admin.pause() => POST /api/v1/resources/queues/q/pause
queue("q").admin.resume() => POST /api/v1/resources/queues/q/resume
queue("q").admin.purge() => POST /api/v1/resources/queues/q/purge
queue("q").admin.work_stats() => GET /keyval/api/queue/stats?queue=q
queue("q").admin.work_settings() => GET /keyval/api/queue/settings?queue=q
queue("q").admin.set_lock_duration(5) => PUT /keyval/api/queue/settings?queue=q {"lockDuration":5}

queue("q").namespace("n").task("t").configure(retry_delay=7)
    => POST /api/v1/configure {"queue":"q","namespace":"n","task":"t","options":{"retryDelay":7}}
queue("q").create()
    => POST /api/v1/configure {"queue":"q","namespace":null,"task":null,"options":DELAYS}
queue("q").delete() => DELETE /api/v1/resources/queues/q
queue("q").pause() => POST /api/v1/resources/queues/q/pause
queue("q").resume() => POST /api/v1/resources/queues/q/resume
queue("q").purge() => POST /api/v1/resources/queues/q/purge
queue("q").stats() => GET /api/v1/resources/queues/q?limit=1000&offset=0
queue("q").group("g").depth() => GET /api/v1/resources/queues/q/depth?group=g&limit=10000
queue("q").limits() => GET /api/v1/resources/queues/q?limit=1&offset=0
queue("q").group("g").dlq().list() => GET /api/v1/dlq?queue=q&consumerGroup=g&limit=100&offset=0
queue("q").partition("p").push(1, key="k") => POST /api/v1/push
    {"items":[{"queue":"q","partition":"p","payload":1,"transactionId":"k"}]}
queue("q").pop() => GET /api/v1/pop/queue/q?batch=1
queue().namespace("n").task("t").wait().timeout(5).pop()
    => GET /api/v1/pop?namespace=n&task=t&wait=true&timeout=5&batch=1
queue("q").partition("p").group("g", "shared").batch(7).partitions(3).subscription_mode("new").pop()
    => GET /api/v1/pop/queue/q/partition/p?consumerGroup=g&groupMode=shared&partitions=3&subscriptionMode=new&batch=7
queue("q").auto_ack().subscription_from(AT).consumer_priority(4).consumer("me").lease(9).pop()
    => GET /api/v1/pop/queue/q?autoAck=true&subscriptionFrom=ISO&leaseTime=9&consumerPriority=4&consumer=me&batch=1 once

groups.list("q", limit=2, offset=3) => GET /api/v1/consumer-groups?queue=q&limit=2&offset=3
groups.get("g", limit=2) => GET /api/v1/consumer-groups/g?limit=2
groups.lagging() => GET /api/v1/consumer-groups/lagging?minLagSeconds=3600&limit=1000
groups.seek("g", "q", offset=7) => POST /api/v1/consumer-groups/g/queues/q/seek {"offset":7}
groups.seek("g", "q", timestamp=AT) => POST /api/v1/consumer-groups/g/queues/q/seek {"timestamp":"ISO"}
groups.seek("g", "q", to_end=True, partition="p")
    => POST /api/v1/consumer-groups/g/queues/q/partitions/p/seek {"toEnd":true}
groups.set_subscription("g", AT) => POST /api/v1/consumer-groups/g/subscription {"subscriptionTimestamp":"ISO"}
groups.delete("g") => DELETE /api/v1/consumer-groups/g?deleteMetadata=true
groups.delete("g", "q", delete_metadata=False) => DELETE /api/v1/consumer-groups/g/queues/q?deleteMetadata=false
groups.pause("g", "q") => POST /api/v1/resources/queues/q/groups/g/pause
groups.resume("g", "q") => POST /api/v1/resources/queues/q/groups/g/resume
groups.purge("g", "q") => POST /api/v1/resources/queues/q/groups/g/purge
groups.limits("g", "q") => GET /api/v1/consumer-groups/g/queues/q/limits
groups.set_limits("g", "q", rate_limit=0.5)
    => PUT /api/v1/consumer-groups/g/queues/q/limits {"rateLimit":0.5}

dlq("q", "g").list(limit=2, offset=3, since=AT, until=AT, partition="p", search="s")
    => GET /api/v1/dlq?queue=q&consumerGroup=g&partition=p&from=ISO&to=ISO&search=s&limit=2&offset=3
dlq().all(since=AT, until=AT, partition="p", search="s", page_size=4)
    => GET /api/v1/dlq?partition=p&from=ISO&to=ISO&search=s&limit=4&offset=0
dlq("q", "g").get("i") => GET /api/v1/dlq?id=i&queue=q&consumerGroup=g&limit=2
dlq("q", "g").requeue("i", group="h") => POST /api/v1/dlq/i/requeue?consumerGroup=h once
dlq("q").requeue_all(since=AT, until=AT, partition="p", search="s")
    => GET /api/v1/dlq?queue=q&partition=p&from=ISO&to=ISO&search=s&limit=100&offset=0
dlq("q", "g").delete("i") => DELETE /api/v1/dlq/i?consumerGroup=g
dlq("q").purge(since=AT, until=AT, partition="p", search="s")
    => DELETE /api/v1/dlq?queue=q&partition=p&from=ISO&to=ISO&search=s

traces.add(partition_id="p", transaction_id="t", data=[1], event="e", names="n", group="g") => POST /api/v1/traces
    {"partitionId":"p","transactionId":"t","data":[1],"consumerGroup":"g","eventType":"e","traceNames":["n"]} once
traces.of(partition_id="p", transaction_id="t", limit=2, offset=3) => GET /api/v1/traces/p/t?limit=2&offset=3
traces.by_name("n", limit=2, offset=3) => GET /api/v1/traces/by-name/n?limit=2&offset=3
traces.names(limit=2, offset=3) => GET /api/v1/traces/names?limit=2&offset=3

kv.get(("a", 1, True)) => GET /keyval/api/keys/["a",1,true]
kv.get_many([("a",), ("b", 1)]) => POST /keyval/api/keys/batch {"keys":[["a"],["b",1]]}
kv.set(("a",), {"b": 1}, expires_in=1.5) => PUT /keyval/api/keys/["a"]?expiresIn=1500 {"b":1}
kv.delete(("a",), exact=False) => DELETE /keyval/api/keys/["a"]?exact=false
kv.delete_many([("a",)]) => POST /keyval/api/keys/delete-batch {"keys":[["a"]],"exact":true}
kv.list(("a",), start=("b",), end=("c",), limit=3, reverse=True, page_size=9)
    => GET /keyval/api/keys/paginate?prefix=["a"]&start=["b"]&end=["c"]&reverse=true&limit=3
kv.count(("a",)) => GET /keyval/api/keys/count?prefix=["a"]
kv.atomic().set(("a",), 1).commit()
    => POST /keyval/api/atomic {"checks":[],"mutations":[{"type":"set","key":["a"],"value":1}]}
kv.watch([("a",)]) => GET /keyval/api/watch/poll?keys=[["a"]]&wait=false&timeout=30000
kv.watch_prefix(("a",), limit=7) => GET /keyval/api/watch/prefix/poll?prefix=["a"]&limit=7&wait=false&timeout=30000
"""
"""Calls of a client and the requests that they send. `once`: it is not sent again when the reply is lost."""

ROWS = [row.replace("\n   ", "").split(" => ") for row in re.findall(r"^\S.*(?:\n    .*)*", VERBS, re.MULTILINE)]


def call_of(client: object, text: str) -> object:
    """Call a verb as the table says."""
    return eval(f"client.{text}", {"client": client, "AT": AT})


def check(script: Script, wanted: str) -> None:
    """What was sent is what the table says."""
    first = script.requests[0]
    query = {field: query_text(value) for field, value in (first.query or {}).items() if value is not None}
    route = first.path.replace("%2F", "%252F")  # Within a segment, and not between two.
    sent = unquote(f"{first.method} {route}" + (f"?{urlencode(query)}" if query else ""))
    if first.body:
        sent += f" {first.body.decode()}"
    assert sent + (" once" if len(script.requests) == 1 else "") == wanted.replace("ISO", AT.isoformat()).replace(
        "DELAYS", DELAYS
    )


def lost_replies() -> Script:
    """A way to a server whose replies get lost."""
    return Script(ConnectionFailed("the reply was lost", sent=True))


ONCE_AGAIN = CallPolicy(attempts=2, first_delay=0.0)


@pytest.mark.parametrize(("call", "request_"), ROWS, ids=[row[0] for row in ROWS])
async def test_a_verb_sends_its_request(call: str, request_: str) -> None:
    script = lost_replies()
    async with hark.connect(script, retry=ONCE_AGAIN) as client:
        answer = call_of(client, call)
        with pytest.raises(ConnectionFailed):
            await (anext(answer) if isinstance(answer, AsyncIterator) else cast(Awaitable[object], answer))
    check(script, request_)


@pytest.mark.parametrize(("call", "request_"), ROWS, ids=[row[0] for row in ROWS])
def test_a_verb_of_the_sync_client_sends_the_same(call: str, request_: str) -> None:
    script = lost_replies()
    with hark.sync.connect(script, retry=ONCE_AGAIN) as client, pytest.raises(ConnectionFailed):
        next(cast(Iterator[object], call_of(client, call)))  # Those that do not iterate have raised by now.
    check(script, request_)


def test_no_verb_is_missing_in_the_table() -> None:
    attributes = {Admin: "admin", QueueAdmin: r"queue\(.*?\)\.admin", Groups: "groups", DeadLetters: r"dlq\(.*?\)"}
    for kind, attribute in (attributes | {Traces: "traces", KeyValue: "kv"}).items():
        for name in vars(kind):
            assert name.startswith("_") or re.search(rf"^{attribute}\.{name}\(", VERBS, re.MULTILINE), (
                f"{attribute}.{name}"
            )


def test_every_option_of_a_queue_can_be_given() -> None:
    assert set(QueueOptionsGiven.__annotations__) == set(QueueOptions.__struct_fields__)


FACADES: dict[type, tuple[type, set[str]]] = {
    Admin: (parts.Admin, set()),
    DeadLetters: (parts.DeadLetters, set()),
    Groups: (parts.Groups, set()),
    KeyValue: (parts.KeyValue, set()),
    Message: (
        hark.sync.Message,
        {"close_span", "conclude", "in_span", "stop_renewing", "open_span", "released", "settle_at_end"},
    ),
    Queue: (hark.sync.Queue, set()),
    QueueAdmin: (parts.QueueAdmin, set()),
    Traces: (parts.Traces, set()),
    Transaction: (parts.Transaction, set()),
    hark.Client: (hark.sync.Client, {"open", "open_prefetcher", "pop", "retire"}),
}
"""The async classes, their sync faces, and what is only for the parts of the client among themselves."""


@pytest.mark.parametrize("original", FACADES, ids=lambda kind: str(kind.__name__))
def test_the_sync_client_lacks_nothing(original: type) -> None:
    facade, inside = FACADES[original]
    names = {name for name in vars(original) if not name.startswith("_")}
    assert {name for name in names if inspect.getattr_static(facade, name, None) is None} == inside
