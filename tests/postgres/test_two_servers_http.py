"""Two servers on one database, over HTTP: peers that notify each other, and strangers that look for themselves."""

from __future__ import annotations

import asyncio
import os
import re
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import asyncpg
import httpx
import pytest

from tests.broker.peers.ports import free_ports
from tests.cli.test_workers import Serving, address
from tests.cli.test_workers import serving as serving_workers
from tests.http.api import WAIT, Api, acknowledgment, data, read, refusal
from tests.http.keyval.keys import Keys, watching
from tests.http.keyval.test_listen import listening
from tests.http.keyval.work import WAIT as WORK_WAIT
from tests.http.keyval.work import Work
from tests.postgres.serving import CLIENT_SECONDS, NO_LOOKS, serving, wait_for_group

Pair = tuple[Api, Api]
KEY = "ab" * 32
SECRET = "the card 4111 was refused"


@pytest.fixture
def strangers(postgres_url: str, tmp_path: Path) -> Iterator[Pair]:
    """Two servers that do not know each other."""
    with serving(tmp_path, postgres_url) as one, serving(tmp_path, postgres_url) as other:
        yield one, other


@pytest.fixture
def peers(postgres_url: str, tmp_path: Path) -> Iterator[Pair]:
    """Two servers that are peers by the secret of their store, and never look for themselves."""
    port = free_ports(2)
    one_port, other_port = str(port), str(port + 1)
    one = NO_LOOKS | {"HARK_PEER_PORT": one_port, "HARK_PEERS": f"127.0.0.1:{other_port}"}
    other = NO_LOOKS | {"QUEEN_UDP_NOTIFY_PORT": other_port, "QUEEN_UDP_PEERS": f"127.0.0.1:{one_port}"}
    with serving(tmp_path, postgres_url, **one) as here, serving(tmp_path, postgres_url, **other) as there:
        yield here, there


def keys_of(pair: Pair, queue: str) -> tuple[Keys, Keys]:
    """The same keys through both."""
    return Keys(pair[0].client, queue), Keys(pair[1].client, queue)


def work_of(pair: Pair, queue: str) -> tuple[Work, Work]:
    """The same work queue through both."""
    return Work(pair[0].client, queue), Work(pair[1].client, queue)


def stored(postgres_url: str, text: str) -> list[str]:
    """The tables of Hark that contain a text."""

    async def look() -> list[str]:
        connection = await asyncpg.connect(postgres_url)
        try:
            tables = await connection.fetch(
                "select c.oid::regclass::text from pg_class c where relkind = 'r'"
                " and relnamespace = 'hark'::regnamespace"
            )
            found = [
                table
                for (table,) in tables
                if await connection.fetchval(
                    f"select count(*) from {table} t where t::text like '%' || $1 || '%'", text
                )
            ]
        finally:
            await connection.close()
        return found

    return asyncio.run(look())


# Queues ----------------------------------------------------------------------------------------------------


def test_a_pop_that_waits_on_one_gets_what_is_pushed_through_the_other(strangers: Pair, queue: str) -> None:
    one, other = strangers
    with ThreadPoolExecutor(1) as thread:
        waiting = thread.submit(one.pop, queue, consumerGroup="g", **WAIT)
        wait_for_group(other, queue, "g")
        other.push(queue, "at last")
        assert data(waiting.result()) == ["at last"]


def test_a_transaction_through_one_settles_what_the_other_delivered(strangers: Pair, queue: str) -> None:
    one, other = strangers
    one.push(queue, 1)
    message = other.pop_one(queue)
    settled = {"type": "ack"} | acknowledgment(message)
    pushed = {"type": "push", "items": [{"queue": f"{queue}-next", "payload": 2}]}
    assert one.transact(settled, pushed, requiredLeases=[message["leaseId"]])["success"]
    assert not other.transact(settled, pushed, requiredLeases=[message["leaseId"]])["success"]
    assert data(other.pop(f"{queue}-next", batch=10)) == [2]


@pytest.mark.parametrize("key", [KEY, ""], ids=["key", "no key"])
def test_what_is_stated_of_messages_is_encrypted_though_another_server_made_the_queue_so(
    postgres_url: str, tmp_path: Path, queue: str, key: str
) -> None:
    with (
        serving(tmp_path, postgres_url, HARK_ENCRYPTION_KEY=KEY) as one,
        serving(tmp_path, postgres_url, **({"HARK_ENCRYPTION_KEY": key} if key else {})) as other,
    ):
        one.push(queue, 0)
        assert other.ack(other.pop_one(queue))["success"]
        one.configure(queue, encryptionEnabled=True)
        one.push(queue, 1, 2)
        first, second = one.pop(queue, batch=2)
        traced = {name: first[name] for name in ("partitionId", "transactionId")} | {"data": {"card": SECRET}}
        assert other.post("/traces", traced).status_code == (201 if key else 503)
        assert other.ack(second, "dlq", error=SECRET)["success"]
        assert other.transact({"type": "ack"} | acknowledgment(first, "failed", error=SECRET))["success"]
        [letter] = one.dead_letters(queue)
        assert (letter["errorMessage"] == SECRET) == bool(key)
    assert stored(postgres_url, SECRET) == []


def test_maintenance_set_through_one_holds_on_the_other(strangers: Pair, queue: str) -> None:
    one, other = strangers
    one.push(queue, 1)
    read(one.post("/system/maintenance/pop", {"enabled": True}))
    read(one.post("/system/maintenance", {"enabled": True}))
    while not read(other.get("/system/maintenance"))["maintenanceMode"]:
        pass
    refusal(other.post("/push", {"items": [{"queue": queue, "payload": 2}]}), 503, "maintenance")
    assert other.pop(queue, **WAIT) == []


# Peers -----------------------------------------------------------------------------------------------------


def test_a_pop_that_waits_on_one_server_is_woken_by_a_push_to_the_other(peers: Pair, queue: str) -> None:
    with ThreadPoolExecutor(1) as thread:
        for waiter, pusher in (peers, peers[::-1]):
            group = f"of {id(waiter)}"
            waiting = thread.submit(waiter.pop, queue, consumerGroup=group, subscriptionMode="new", **WAIT)
            wait_for_group(pusher, queue, group)
            pusher.push(queue, group, partition="p")
            assert data(waiting.result()) == [group]


def test_a_pop_that_waits_is_woken_when_the_other_server_frees_the_partition(peers: Pair, queue: str) -> None:
    one, other = peers
    one.push(queue, *range(10))
    message = one.pop_one(queue, consumerGroup="g")
    with ThreadPoolExecutor(1) as thread:
        for number in range(1, 10):
            waiting = thread.submit(other.pop, queue, consumerGroup="g", **WAIT)
            assert other.pop(queue, consumerGroup="g") == []  # Most likely the other pop has arrived before this one.
            one.ack(message)
            [message] = waiting.result()
            assert message["data"] == number
            one, other = other, one


@pytest.fixture
def workers(tmp_path: Path, postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Serving]:
    """Two workers of one server."""
    for name, value in NO_LOOKS.items():
        monkeypatch.setenv(name, value)
    with serving_workers(tmp_path, "--workers", "2", "--port", "0", engine=postgres_url) as running:
        yield running


def test_pops_that_wait_on_any_worker_are_woken_by_a_push_to_one_and_also_when_one_was_replaced(
    workers: Serving, queue: str
) -> None:
    _wake_all(workers, queue, address(workers))
    os.kill(workers.workers()[1], signal.SIGKILL)
    workers.wait_for(re.compile("worker 1 ended with signal SIGKILL; starting another"))
    workers.workers(times=3)
    # The new worker hears its peers at the same port.
    _wake_all(workers, f"{queue}-again", address(workers))


def test_pops_that_wait_on_any_worker_are_woken_by_a_server_that_knows_the_address_of_one(
    tmp_path: Path, postgres_url: str, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = free_ports(3)
    settings = NO_LOOKS | {"HARK_PEER_PORT": str(port)}
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    pusher = {"HARK_PEER_PORT": str(port + 2), "HARK_PEERS": f"127.0.0.1:{port}"}
    with (
        serving_workers(tmp_path, "--workers", "2", "--port", "0", engine=postgres_url) as workers,
        serving(tmp_path, postgres_url, **pusher) as other,
    ):
        _wake_all(workers, queue, str(other.client.base_url))


def _wake_all(workers: Serving, queue: str, pusher: str) -> None:
    groups = [f"g{number}" for number in range(12)]
    # Each on a connection of its own, so that the kernel spreads them over the workers.
    with httpx.Client(base_url=pusher, timeout=CLIENT_SECONDS) as client, ThreadPoolExecutor(12) as threads:
        api = Api(client)
        waiting = [threads.submit(_pop, address(workers), queue, group) for group in groups]
        for group in groups:
            wait_for_group(api, queue, group)
        api.push(queue, "for all")
        assert [data(popped.result()) for popped in waiting] == [["for all"]] * 12


def _pop(url: str, queue: str, group: str) -> list[object]:
    with httpx.Client(base_url=url, timeout=CLIENT_SECONDS) as client:
        return Api(client).pop(queue, consumerGroup=group, **WAIT)


# Keys ------------------------------------------------------------------------------------------------------


def url(keys: Keys) -> str:
    """The server of these keys."""
    return str(keys.client.base_url)


def check_that_writes_through_one_reach_the_other(one: Keys, other: Keys) -> None:
    """Watch on one server, write through the other."""
    with (
        watching(url(one), keys=f"{one.root}/a", initial=False) as key,
        watching(url(one), "/watch/prefix", prefix=f"{one.root}/p", initial=False) as prefix,
    ):
        for value in range(3):
            other.put("a", value=value)
            assert key.change() == (one.key("a"), value)
            other.put_exactly("p", "1", True, value=value)
            assert prefix.change() == (one.key("p", "1", True), value)
        other.delete("p")
        assert prefix.change() == (one.key("p", "1", True), ...)
        one.delete("a")
        assert key.change() == (one.key("a"), ...)


def test_a_watch_is_notified_by_the_peer_that_wrote(peers: Pair, queue: str) -> None:
    one, other = keys_of(peers, queue)
    check_that_writes_through_one_reach_the_other(one, other)
    check_that_writes_through_one_reach_the_other(other, one)


def test_a_watch_finds_what_no_one_notified_it(strangers: Pair, queue: str) -> None:
    check_that_writes_through_one_reach_the_other(*keys_of(strangers, queue))


def test_a_watch_is_notified_of_dead_messages_and_expiries_and_a_poll_of_writes_on_another_server(
    peers: Pair, queue: str
) -> None:
    one, other = keys_of(peers, queue)
    with watching(url(one), "/watch/prefix", prefix=f"{one.root}/failed") as watch:
        peers[1].kill(one.root, "payload", keysIfUndelivered=[one.key("failed", 1)])
        assert watch.change() == (one.key("failed", 1), "payload")
    with watching(url(one), keys=f"{one.root}/a", initial=False) as watch:
        other.put("a", value=1, expiresIn=300)
        assert watch.change() == (one.key("a"), 1)
        assert watch.change() == (one.key("a"), ...)
        assert (one.get("a"), other.get("a")) == (None, None)
    stamp = one.put("b", value=1)
    with ThreadPoolExecutor(1) as thread:
        poll = thread.submit(one.poll, keys=f"{one.root}/b", versionstamps=stamp, wait=True, timeout=20_000)
        newer = other.put("b", value=2)
        assert poll.result()["versionstamps"] == [newer]


def test_checks_hold_over_both_servers(strangers: Pair, queue: str) -> None:
    both = keys_of(strangers, queue)
    both[0].put("n", value=0)

    def add(keys: Keys) -> None:
        while True:
            entry = keys.get("n")
            check = {"key": keys.key("n"), "versionstamp": entry["versionstamp"]}
            write = {"type": "set", "key": keys.key("n"), "value": entry["value"] + 1}
            if keys.atomic(write, checks=[check])["ok"]:
                return

    with ThreadPoolExecutor(8) as pool:
        for done in [pool.submit(add, both[number % 2]) for number in range(20)]:
            done.result()
    assert both[0].value("n") == both[1].value("n") == 20


# Work queues -----------------------------------------------------------------------------------------------


def test_what_one_server_was_notified_the_other_knows(strangers: Pair, queue: str) -> None:
    one, other = work_of(strangers, queue)
    one.enqueue("low")
    one.enqueue("high", priority=9, backoffSchedule=[0], keysIfUndelivered=[["failed", 1]])
    one.enqueue("late", delay=3_600_000)
    message = other.take()
    assert (message["value"], message["priority"], message["attempts"]) == ("high", 9, 1)
    assert one.stats() == other.stats() == (2, 1, 0)
    assert one.nack(message, receipt=False) == {"ok": True}
    again = other.take()
    assert again["attempts"] == 2
    refusal(one.post("/ack", {"id": message["id"], "receipt": message["receipt"]}), 409)
    assert other.nack(again, error="boom") == {"ok": True}
    [letter] = one.dead()
    assert (letter["value"], letter["attempts"], letter["errorMessage"]) == ("high", 2, "boom")
    assert read(other.client.get("/keyval/api/keys/failed/1"))["value"] == "high"
    new_id = read(other.post(f"/dlq/{letter['id']}/requeue"))["newId"]
    refusal(one.post(f"/dlq/{letter['id']}/requeue"), 404, "dead_letter_not_found")
    first = one.take()
    assert (first["id"], first["attempts"]) == (new_id, 1)
    for done in (first, other.take()):
        assert one.ack(done) == {"ok": True}
    assert one.poll() is None
    assert other.stats() == (1, 0, 0)


def test_an_unknown_id_or_receipt_is_no_failure_of_the_store(strangers: Pair, queue: str) -> None:
    one, _ = work_of(strangers, queue)
    one.enqueue(1)
    message = one.take()
    for id in ("x", "\0", "é" * 300):
        assert read(one.post("/ack", {"id": id})) == {"ok": True, "found": False}
        assert read(one.post("/cancel", {"id": id}))["cancelled"] is False
    for receipt in ("x", "é" * 100):
        refusal(one.post("/nack", {"id": message["id"], "receipt": receipt}), 409)
    assert one.ack(message) == {"ok": True}
    assert one.ack(message) == {"ok": True}


def test_two_servers_never_give_out_the_same(strangers: Pair, queue: str) -> None:
    works = work_of(strangers, queue)
    ids = [works[number % 2].enqueue(number) for number in range(60)]

    def consume(work: Work) -> list[str]:
        taken = []
        while (message := work.poll()) is not None:
            taken.append(message["id"])
            assert work.ack(message) == {"ok": True}
        return taken

    with ThreadPoolExecutor(2) as pool:
        taken = [id for each in [pool.submit(consume, work) for work in works] for id in each.result()]
    assert sorted(taken) == sorted(ids)


def test_a_lock_of_one_server_ends_for_the_other(strangers: Pair, queue: str) -> None:
    one, other = work_of(strangers, queue)
    read(one.put("/settings", {"lockDuration": 200}))
    one.enqueue(1)
    first = one.take()
    second = other.take(**WORK_WAIT)
    assert (second["id"], second["attempts"]) == (first["id"], 2)


def test_a_listener_notices_what_is_enqueued_through_the_other_server(strangers: Pair, queue: str) -> None:
    one, other = work_of(strangers, queue)
    with listening(str(one.client.base_url), queue, prefetch=1) as events:
        assert events.next()[0] == "ping"
        other.enqueue("first")
        first = events.message()
        other.enqueue("second")
        assert other.ack(first, receipt=False) == {"ok": True}
        assert events.message()["value"] == "second"
