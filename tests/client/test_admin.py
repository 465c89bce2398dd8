"""The server and its messages as an administrator sees them, against a real server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta

import aiohttp
import pytest

from hark import __version__
from hark.client.administration.admin import Admin
from hark.client.administration.queue_admin import QueueAdmin
from hark.client.administration.results import WaitingBrowser, WaitingPop, WaitingStream
from hark.client.calling import Caller, path
from hark.client.transport.api import Answer, ConnectionFailed
from hark.client.transport.http import HttpTransport
from hark.errors import Conflict, InvalidInput, NotFound, Unavailable
from tests.client.deliveries import pop, push, settle
from tests.client.transports import Script
from tests.conftest import running_server


@pytest.fixture
def admin(caller: Caller) -> Admin:
    return Admin(caller)


@pytest.fixture(scope="module")
def own_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server that may be stopped from working without harm to others."""
    with running_server(tmp_path_factory.mktemp("admin-server")) as address:
        yield address


@pytest.fixture
async def own(own_url: str) -> AsyncIterator[Caller]:
    transport = HttpTransport(own_url)
    yield Caller(transport)
    await transport.close()


# Everything there is -------------------------------------------------------------------------------------------


async def test_queues_are_listed_and_found_by_name_and_labels(caller: Caller, admin: Admin, queue: str) -> None:
    await QueueAdmin(caller, queue).configure(namespace=f"ns-{queue}", task=f"task-{queue}")
    await push(caller, queue, 1, 2)
    await pop(caller, queue, batch=1)
    [found] = await admin.queues(search=queue)
    assert (found.name, found.namespace, found.task) == (queue, f"ns-{queue}", f"task-{queue}")
    assert (found.paused, found.partitions) == (False, 1)
    assert (found.messages.total, found.messages.pending, found.messages.processing) == (2, 1, 1)
    assert await admin.queues(namespace=f"ns-{queue}") == await admin.queues(task=f"task-{queue}") == (found,)
    assert await admin.queues(namespace="nowhere") == ()
    assert len(await admin.queues(limit=1)) == 1
    assert await admin.queues(search=queue, sort="backlog") == (found,)


async def test_namespaces_and_tasks_count_their_queues(caller: Caller, admin: Admin, queue: str) -> None:
    for name in (queue, f"{queue}-2"):
        await QueueAdmin(caller, name).configure(namespace=f"ns-{queue}", task=f"task-{queue}")
    await push(caller, queue, 1)
    [space] = [one for one in await admin.namespaces() if one.namespace == f"ns-{queue}"]
    [task] = [one for one in await admin.tasks() if one.task == f"task-{queue}"]
    assert (space.queues, space.messages.total) == (task.queues, task.messages.total) == (2, 1)


async def test_overview_has_totals_and_lags(caller: Caller, admin: Admin, queue: str) -> None:
    await push(caller, queue, 1)
    await pop(caller, queue)
    seen = await admin.overview()
    assert seen.queues >= 1
    assert seen.messages.total >= 1
    assert seen.lag.offset.max >= 1
    assert abs(seen.timestamp - datetime.now(UTC)) < timedelta(minutes=5)


async def test_those_who_wait_are_listed(caller: Caller, admin: Admin, queue: str) -> None:
    route = f"{path('pop', 'queue', queue)}?wait=true&timeout=60000&consumerGroup=g&batch=7&consumer=me"
    waiting = asyncio.create_task(caller.call("GET", route, seconds=70))
    page = await admin.consumers(queue=queue)
    while not page.items:
        page = await admin.consumers(queue=queue)
    [one] = page.items
    assert page.total == 1
    assert isinstance(one, WaitingPop)
    assert (one.queue, one.consumer_group, one.batch, one.consumer) == (queue, "g", 7, "me")
    assert one.deadline - one.waiting_since == timedelta(seconds=60)
    await push(caller, queue, 1)
    assert (await waiting).status == 200


async def test_streams_and_browsers_are_told_apart(admin: Admin, url: str, queue: str) -> None:
    listen = f"{url}{path('listen', 'queue', queue)}"
    async with (
        aiohttp.ClientSession() as session,
        session.get(listen, params={"consumerGroup": "g", "prefetch": "5"}) as streaming,
        session.get(listen, params={"browse": "true", "from": "head"}) as browsing,
    ):
        assert (streaming.status, browsing.status) == (200, 200)
        stream, browser = (await admin.consumers(queue=queue)).items
    assert isinstance(stream, WaitingStream)
    assert isinstance(browser, WaitingBrowser)
    assert (stream.credit, stream.unsettled, stream.subscriptions[0].consumer_group) == (5, 0, "g")
    assert (browser.queue, browser.start) == (queue, "head")


async def test_leases_say_who_holds_what(caller: Caller, admin: Admin, queue: str) -> None:
    await push(caller, queue, 1, 2)
    held = await pop(caller, queue, batch=2, group="g", consumer="me")
    page = await admin.leases(queue=queue, partition="Default", group="g")
    [lease] = page.items
    assert page.total == 1
    assert (lease.lease_id, lease.consumer, lease.messages, lease.mode) == (held[0].lease_id, "me", 2, "ordered")
    assert (lease.partition_id, lease.first_message_id) == (held[0].partition_id, held[0].id)
    assert lease.since is not None
    assert lease.until - lease.since == timedelta(seconds=300)
    assert (await admin.leases(queue=queue, offset=1)).items == ()


# Messages ------------------------------------------------------------------------------------------------------


async def test_a_message_is_explained(caller: Caller, admin: Admin, queue: str) -> None:
    await push(caller, queue, 1, 2)
    [held] = await pop(caller, queue, batch=1, group="g", consumer="me")
    explained = await admin.explain(held.id)
    [told] = explained.reasons
    assert (explained.message_id, explained.queue, explained.offset) == (held.id, queue, 1)
    assert (told.consumer_group, told.reason, told.consumer) == ("g", "leased", "me")
    assert told.until is not None
    assert told.text.startswith('Leased to "me" since ')
    [summary] = [one for one in await admin.messages(queue=queue) if one.offset == 2]
    [behind] = (await admin.explain(summary.id, group="g")).reasons
    assert behind.ahead is not None
    assert (behind.reason, behind.ahead.message_id, behind.ahead.until) == ("behind", held.id, told.until)


async def test_what_never_was_is_not_explained(admin: Admin) -> None:
    with pytest.raises(NotFound) as refused:
        await admin.explain("01890000-0000-7000-8000-000000000000")
    assert refused.value.code == "message_not_found"


async def test_messages_are_listed_newest_first_by_state_and_time(caller: Caller, admin: Admin, queue: str) -> None:
    await push(caller, queue, 1, 2, 3)
    first, _ = await pop(caller, queue, batch=2)
    await settle(caller, first)
    found = await admin.messages(queue=queue)
    assert [(one.offset, one.status) for one in found] == [(3, "pending"), (2, "processing"), (1, "completed")]
    assert [one.offset for one in await admin.messages(queue=queue, status="processing")] == [2]
    assert [one.offset for one in await admin.messages(queue=queue, limit=1, offset=1)] == [2]
    assert found[1].lease_expires_at is not None
    now = datetime.now(UTC)
    assert await admin.messages(queue=queue, since=now + timedelta(hours=1)) == ()
    assert await admin.messages(queue=queue, until=now - timedelta(hours=1)) == ()
    assert await admin.messages(queue=queue, partition="other") == ()


async def test_a_message_is_shown_with_its_payload_and_its_groups(caller: Caller, admin: Admin, queue: str) -> None:
    [pushed] = await push(caller, queue, {"order": 17})
    [message] = await pop(caller, queue, "billing")
    await settle(caller, message, "failed", "card refused")
    shown = await admin.message(pushed.partition_id, pushed.transaction_id)
    assert (shown.id, shown.queue, shown.data, shown.is_encrypted) == (pushed.id, queue, {"order": 17}, False)
    assert shown.decode(dict[str, int]) == {"order": 17}
    [group] = shown.groups
    assert (group.name, group.consumed, group.attempts, group.error) == ("billing", False, 1, "card refused")
    assert await admin.message(pushed.partition_id, pushed.id) == shown
    with pytest.raises(NotFound) as caught:
        await admin.message(pushed.partition_id, "nobody")
    assert caught.value.code == "message_not_found"


async def test_delete_message_says_whether_it_was_there(caller: Caller, admin: Admin, queue: str) -> None:
    [pushed] = await push(caller, queue, 1)
    assert await admin.delete_message(pushed.id) is True
    assert await admin.delete_message(pushed.id) is False
    [other] = await push(caller, queue, 2)
    assert await admin.delete_message(other.transaction_id, other.partition_id) is True
    assert await admin.delete_message(other.transaction_id, other.partition_id) is False
    assert await pop(caller, queue) == []


async def test_a_message_that_nobody_got_can_be_cancelled_once(caller: Caller, admin: Admin, queue: str) -> None:
    [pushed] = await push(caller, queue, 1)
    await admin.cancel(pushed.id)
    assert await pop(caller, queue) == []
    with pytest.raises(NotFound) as caught:
        await admin.cancel(pushed.id)
    assert caught.value.code == "message_not_found"


async def test_it_is_too_late_to_cancel_what_is_held_or_done(caller: Caller, admin: Admin, queue: str) -> None:
    await push(caller, queue, 1)
    [message] = await pop(caller, queue)
    with pytest.raises(Conflict) as leased:
        await admin.cancel(message.id)
    await settle(caller, message)
    with pytest.raises(Conflict) as settled:
        await admin.cancel(message.id)
    assert (leased.value.code, settled.value.code) == ("message_leased", "message_settled")


# The server itself ---------------------------------------------------------------------------------------------


async def test_health_knows_the_version(admin: Admin) -> None:
    health = await admin.health()
    assert (health.healthy, health.status, health.version) == (True, "healthy", __version__)


async def test_an_unhealthy_server_is_an_answer_and_asked_once() -> None:
    body = b'{"status": "unhealthy", "error": "the store did not answer", "code": "unhealthy"}'
    script = Script(Answer(503, body))
    health = await Admin(Caller(script)).health()
    assert (health.healthy, health.error) == (False, "the store did not answer")
    assert len(script.requests) == 1


async def test_a_server_that_is_not_there_has_no_health() -> None:
    script = Script(ConnectionFailed("no server", sent=False))
    with pytest.raises(ConnectionFailed):
        await Admin(Caller(script)).health()
    assert len(script.requests) == 1


async def test_metrics_count_what_was_done(caller: Caller, admin: Admin, queue: str) -> None:
    await push(caller, queue, 1)
    numbers = await admin.metrics()
    assert numbers.batching["push"].requests >= 1
    assert "waiting" in numbers.delivery
    assert numbers.store
    assert "watchers" in numbers.watching


async def test_numbers_of_the_key_value_api_come_as_json_and_as_text(caller: Caller, admin: Admin, queue: str) -> None:
    await caller.call("POST", "/keyval/api/queue/enqueue", query={"queue": queue}, body={"value": 1})
    numbers = await admin.key_metrics(queue)
    assert numbers.queue.pending == 1
    assert numbers.operations.operations["queue_enqueue"].count >= 1
    assert numbers.operations.totals["operations"] >= 1
    assert numbers.storage.entries >= 0
    assert "keyval_queue_pending 1.0" in (await admin.prometheus(queue)).splitlines()


async def test_push_maintenance_refuses_pushes_until_it_ends(own: Caller, queue: str) -> None:
    admin = Admin(own)
    await admin.set_push_maintenance(True)
    seen = await admin.maintenance()
    assert (seen.push, seen.pop) == (True, False)
    with pytest.raises(Unavailable) as caught:
        await own.call("POST", path("push"), body={"items": [{"queue": queue}]}, final={"maintenance"})
    assert caught.value.code == "maintenance"
    await admin.set_push_maintenance(False)
    assert len(await push(own, queue, 1)) == 1


async def test_pop_maintenance_answers_pops_empty_until_it_ends(own: Caller, queue: str) -> None:
    admin = Admin(own)
    await push(own, queue, 1)
    await admin.set_pop_maintenance(True)
    assert (await admin.maintenance()).pop
    assert await pop(own, queue) == []
    await admin.set_pop_maintenance(False)
    assert len(await pop(own, queue)) == 1


async def test_a_wrong_parameter_is_named(admin: Admin) -> None:
    with pytest.raises(InvalidInput, match="limit: expected an integer from 1 to"):
        await admin.queues(limit=0)
