"""What can't be sent is refused before it is, with an error that says which value that is, and harms nobody else."""

from __future__ import annotations

import asyncio
import inspect
import math
import re
from datetime import UTC, datetime

import msgspec
import pytest

import hark
from hark.api.types.delivery import Delivered
from hark.client.calling import Caller
from hark.client.client import Client
from hark.client.delivery.leases import LeaseKeeper
from hark.client.delivery.settling import SettleDecision, Settler
from hark.client.delivery.socket import SocketSource
from hark.client.delivery.sources import PopParams
from hark.client.pushing import NewMessage, Pusher, new_message
from hark.client.queue_admin import QueueAdmin
from hark.client.transport.http import HttpTransport
from hark.clock import FakeClock
from hark.errors import HarkError, InvalidInput
from hark.settings import Settings
from hark.worker import RetryPolicy
from tests.client.transports import Script

HALF = "\ud800"
"""Half of a surrogate pair: a Python string, but no text that UTF-8 could carry."""

WRONG = r"""
client.queue(HALF).push(1) => queue: contains half of a surrogate pair
client.queue(HALF).pop() => queue: contains half of a surrogate pair
client.queue("q").push(1, key=HALF) => key: contains half of a surrogate pair
client.transaction().push(HALF, 1) => queue: contains half of a surrogate pair
client.groups.get(HALF) => ...half of a surrogate pair
client.groups.get(5) => 5: expected a string
client.admin.queues(search=HALF) => ...half of a surrogate pair
client.traces.add(partition_id="p", transaction_id=HALF, data=1) => ...half of a surrogate pair
client.queue("q").partition(7).push(1) => partition: expected a string, got 7
client.queue("q").push_many("abc") => items: expected a list of messages
client.queue("q").buffer().push_many({"a": 1}) => items: expected a list of messages
client.queue().push(1) => ...needs a queue name
client.queue().messages() => ...queue, namespace or task is required
client.traces.add(MESSAGE, object()) => data: cannot be encoded as JSON
client.traces.of(partition_id="p") => ...both partition_id and transaction_id
client.traces.of(MESSAGE, partition_id="p") => ...give either the message, or its
client.dlq("q").list(since=datetime(2026, 1, 1)) => since: expected a datetime with a time zone
client.dlq().purge() => queue: is required to purge dead letters
client.groups.seek("g", "q") => ...exactly one of to_end, timestamp, offset
client.groups.seek("g", "q", to_end=True, offset=1) => ...exactly one of to_end, timestamp, offset
client.groups.seek("g", "q", timestamp=datetime(2026, 1, 1)) => timestamp: expected a datetime with a time zone
client.queue("q").admin.configure(lease_tim=3) => lease_tim: unknown queue option; did you mean lease_time?
client.queue("q").admin.change(leaseTime=3) => leaseTime: unknown queue option; did you mean lease_time?
client.queue("q").configure(colour=3) => colour: unknown queue option; expected one of lease_time
QueueAdmin(caller, "") => queue: must not be empty
client.traces.add("m") => message: expected a delivered message, got 'm'
client.transaction().ack("m").commit() => message: expected a delivered message, got 'm'
client.transaction().ack(None, "done") => status: expected completed, failed, retry or dlq, got 'done'
client.transaction().push("", 1) => queue: must not be empty
client.transaction().kv.sum(("a",), "1") => value: expected a number

queue.queue("") => queue: must not be empty
queue.partition("x" * 256) => partition: expected at most 255 bytes
queue.partition("\0") => partition: must not contain a NUL
queue.namespace("") => namespace: must not be empty
queue.task("") => task: must not be empty
queue.group("") => group: must not be empty
queue.group("g", "broadcast") => group mode: expected 'ordered'
queue.batch(0) => batch: expected an integer from 1 to 10000, got 0
queue.batch(True) => batch: expected an integer
queue.partitions(0) => partitions: expected an integer from 1
queue.wait(1) => wait: expected True or False, got 1
queue.timeout(-1) => timeout: expected an integer from 0 to 600000, got -1
queue.concurrency(0) => concurrency: expected an integer from 1
queue.limit(0) => limit: expected an integer from 1
queue.idle(0) => idle: expected an integer from 1
queue.lease(0) => lease: expected an integer from 1
queue.renew_lease(interval_ms=0) => interval_ms: expected an integer from 1
queue.lease(2).renew_lease(interval_ms=2000) => interval_ms: expected less than the lease of 2 s, got 2000
queue.poll_interval(0) => poll_interval: expected an integer from 1
queue.subscription_mode("old") => subscription_mode: expected one of all
queue.subscription_from(datetime(2026, 1, 1)) => subscription_from: expected a datetime with a time zone
queue.consumer_priority(1001) => consumer_priority: expected an integer
queue.buffer(max_items=0) => max_items: expected an integer from 1
queue.buffer(max_ms=0) => max_ms: expected an integer from 1
queue.consume(None) => handler: expected a function, got None
queue.consume(print).on_success(5) => on_success: expected a function, got 5
queue.consume(print).on_error(5) => on_error: expected a function, got 5

new_message("", 1) => queue: must not be empty
new_message("a\0b", 1) => queue: must not contain a NUL
new_message("x" * 256, 1) => queue: expected at most 255 bytes
new_message("ä" * 128, 1) => queue: expected at most 255 bytes
new_message(7, 1) => queue: expected a string
new_message("q", 1, partition="") => partition: must not be empty
queue.push(1, key="") => key: must not be empty
queue.push(object()) => data: cannot be encoded as JSON
queue.push(HALF) => data:
queue.push({"a": [1, math.nan]}) => data:
queue.push((None, -math.inf)) => data:
queue.push(1, delay=-1) => delay: expected
queue.push(1, delay=math.nan) => delay: expected
queue.push(1, delay=True) => delay: expected
queue.push(1, delay="5") => delay: expected
queue.push(1, delay=11 * 365 * 86_400) => delay: expected
queue.push(1, deliver_at=datetime(2026, 1, 1)) => deliver_at:
queue.push(1, delay=1, deliver_at=datetime(2026, 1, 1, tzinfo=UTC)) => deliver_at:
queue.push(1, priority=10) => priority: expected an integer from 0 to 9
queue.push(1, priority=True) => priority: expected an integer
queue.push(1, ttl=0) => ttl: expected
queue.push(1, retry_delays=[1, -1]) => retry_delays[1]: expected
queue.push(1, retry_delays=[1] * 101) => retry_delays:
queue.push(1, keys_if_undelivered=[[]]) => keys_if_undelivered:
queue.push(1, trace_id="not-a-uuid") => trace_id:

client.kv.get("users") => key: expected a tuple of key parts such as ('users',)
client.kv.set((), 1) => key: Key cannot be empty
client.kv.get_many(("users", 17)) => keys: expected a list of keys
client.kv.get_many([("users",), ()]) => keys[1]: Key cannot be empty
client.kv.set(("users",), object()) => value: cannot be encoded as JSON
client.kv.set(("a",), [math.inf]) => value: contains NaN or infinity
client.kv.set(("users",), 1, expires_in=0) => expires_in: expected 0.001 to
anext(client.kv.list(limit=0)) => limit: expected at least 1
client.kv.watch("users") => keys: expected a list of keys
client.kv.watch_prefix(()) => prefix: Key cannot be empty
client.kv.atomic().set(("a",), math.nan) => value: contains NaN or infinity
client.kv.atomic().sum(("n",), math.nan) => value: expected a finite number
client.kv.atomic().append(("n",), "abc") => values: expected a list of values, got str
client.kv.atomic().enqueue(1, priority=10) => priority: expected an integer

Settler(caller).settle(SettleDecision(MESSAGE, "done")) => status: expected completed, failed, retry or dlq, got 'done'
Settler(caller).settle(SettleDecision(MESSAGE, "completed", None, 5)) => delay_ms: only valid with status failed or retry
Settler(caller).settle(SettleDecision(MESSAGE, "retry", None, -1)) => delay_ms: expected an integer from 0
Settler(caller).settle(SettleDecision(MESSAGE, "failed", None, 1.5)) => delay_ms: expected an integer from 0
PopParams() => queue, namespace or task is required
PopParams(partition="p", task="t") => partition: only valid with a queue
PopParams(queue="q", batch=0) => batch: expected an integer from 1 on, got 0
PopParams(queue="q", partitions=0) => partitions: expected an integer from 1 on
PopParams(queue="q", timeout_ms=-1) => timeout_ms: expected an integer from 0 on
PopParams(queue="q", lease_seconds=0.5) => lease_seconds: expected an integer from 1 on, got 0.5
PopParams(queue="q", group_mode="odd") => group_mode: expected ordered or shared, got 'odd'
SocketSource(caller, PopParams(queue="q")) => ...in this process has no WebSockets
SocketSource(Caller(HttpTransport("http://a:1")), PopParams(queue="q", wait=False)) => wait: cannot be False over a
LeaseKeeper(caller).hold("", 1) => lease_id
LeaseKeeper(caller).hold("a", 0) => seconds
LeaseKeeper(caller).hold("a", -1) => seconds

hark.CallPolicy(attempts=-1) => attempts: expected an integer of at least 1, got -1
hark.CallPolicy(attempts="3") => attempts: expected an integer of at least 1, got '3'
hark.CallPolicy(first_delay=-1) => first_delay: expected a number of seconds of at least 0, got -1
hark.CallPolicy(max_delay=None) => max_delay: expected a number of seconds of at least 0, got None
hark.CallPolicy(give_up_after=-1) => give_up_after: expected a number of seconds of at least 0, got -1
hark.connect("http://a", retry=3) => retry: expected a hark.CallPolicy, got int
hark.connect("http://a", retry=RetryPolicy.never()) => retry: expected a hark.CallPolicy, got RetryPolicy
hark.connect("http://a", polling="fixed") => polling: expected a hark.PollingStrategy, got str
hark.connect("http://a", headers={"a": 5}) => headers: expected strings as names and values, got 5
hark.connect("http://a", settings=Settings()) => settings: only valid if
hark.connect("http://a", clock=FakeClock()) => clock: only valid if
hark.connect(script, headers={"a": "b"}) => headers: only valid if
hark.connect(42) => ...an ASGI application or an engine, got int
hark.connect([]) => ...got none
hark.connect("") => ...got none
hark.connect([1]) => ...expected URLs, got int
hark.connect("localhost:6632") => ...expected for example http://
hark.connect("http://a,ws://b") => ...got both
"""
"""Expressions, and how the texts of their refusals begin; `...`: what they contain."""

ROWS = re.findall(r"^(.+) => (.+)$", WRONG, re.MULTILINE)
MESSAGE = Delivered("i", "t", None, msgspec.Raw(b"null"), None, "", "p", "P", "l", "g", "q", 1, 0, 1)
KINDS = (Caller, FakeClock, HttpTransport, LeaseKeeper, QueueAdmin, RetryPolicy, Settings, Settler, SocketSource)
NAMES = {"HALF": HALF, "MESSAGE": MESSAGE, "UTC": UTC, "datetime": datetime, "hark": hark, "math": math}
NAMES |= {kind.__name__: kind for kind in (*KINDS, SettleDecision, PopParams, new_message)}
"""What the expressions may name, beside a client over a script."""


@pytest.mark.parametrize(("expression", "text"), ROWS, ids=[row[0] for row in ROWS])
async def test_nothing_is_sent_of(expression: str, text: str) -> None:
    script = Script()
    async with Client(script) as client:
        here = {"script": script, "client": client, "caller": client.caller, "queue": client.queue("q")}
        with pytest.raises(InvalidInput) as refused:
            answer = eval(expression, NAMES | here)
            assert inspect.isawaitable(answer)
            await answer
        if text.startswith("..."):
            assert text.removeprefix("...") in refused.value.text
        else:
            assert refused.value.text.startswith(text)
    assert script.requests == []


@pytest.mark.parametrize(
    "url", ["", "localhost:6632", "ftp://x", "http://", "http://x:y", "http://x?a=1", "http://[::1", "http://x:99999"]
)
def test_what_is_not_the_url_of_a_server_is_refused(url: str) -> None:
    with pytest.raises(InvalidInput, match="is not the URL of a server"):
        HttpTransport(url)


async def test_an_option_that_there_is_not_is_a_type_error() -> None:
    with pytest.raises(TypeError, match="priorty"):
        await Client(Script()).queue("q").push(1, priorty=1)  # type: ignore[call-arg]  # On purpose.


async def test_a_message_that_can_not_be_written_harms_no_neighbour(caller: Caller, queue: str) -> None:
    pusher = Pusher(caller)
    messages = [new_message(queue, number) for number in range(3)]
    messages[1] = NewMessage(queue=queue, payload=msgspec.Raw(b"1"), transaction_id=HALF)
    outcomes = await asyncio.gather(*(pusher.push(message) for message in messages), return_exceptions=True)
    assert [isinstance(outcome, HarkError) for outcome in outcomes] == [False, True, False]
    assert isinstance(outcomes[1], InvalidInput)
