"""The Lua that wrk runs, at a server that writes down what it is sent."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest
from bench import wrk
from msgspec.structs import replace

from hark.cli.bench import Load, generate


class Recorder:
    """Answers pushes, pops and acks in the words of the contract, and keeps what came."""

    def __init__(self, batch: int, refuse: bool = False) -> None:
        self.batch = batch
        self.refuse = refuse
        self.pushed: list[list[dict[str, Any]]] = []
        self.open: dict[str, tuple[str, str]] = {}
        self.acked: Counter[str] = Counter()
        self.wrong: list[dict[str, Any]] = []
        self.paths: Counter[str] = Counter()
        self.serial = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the requests of one connection."""
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                line, *headers = head.decode().lower().split("\r\n")
                length = next((int(h[15:]) for h in headers if h.startswith("content-length:")), 0)
                path = line.split()[1]
                self.paths[path] += 1
                answer = self.answer(path, await reader.readexactly(length))
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(answer), answer))
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.transport.abort()

    def answer(self, path: str, body: bytes) -> bytes:
        """The body of the answer."""
        if path.endswith("/push"):
            items = msgspec.json.decode(body)["items"]
            self.pushed.append(items)
            return msgspec.json.encode([{"index": n, "status": "queued"} for n in range(len(items))])
        if "/pop/" in path:
            return self.pop()
        given = msgspec.json.decode(body)
        return self.settle(given["acknowledgments"] if path.endswith("/batch") else [given])

    def pop(self) -> bytes:
        """A batch under a lease of its own."""
        self.serial += 1
        ids = {"partitionId": f"p{self.serial}", "leaseId": f"l{self.serial}"}
        messages = []
        for number in range(self.batch):
            transaction = f"{self.serial:08d}-t{number}"
            self.open[transaction] = (ids["partitionId"], ids["leaseId"])
            messages.append({"id": "m", "transactionId": transaction, "data": {"pad": "x" * 246}, **ids})
        return msgspec.json.encode({"success": True, "queue": "q", **ids, "messages": messages})

    def settle(self, acks: list[dict[str, Any]]) -> bytes:
        """Check each against what was handed out."""
        for ack in acks:
            if self.open.get(ack["transactionId"]) != (ack["partitionId"], ack["leaseId"]):
                self.wrong.append(ack)
            self.acked[ack["transactionId"]] += 1
        return msgspec.json.encode([{"index": n, "success": not self.refuse} for n in range(len(acks))])


@contextmanager
def listening(recorder: Recorder) -> Iterator[int]:
    """The recorder on a port, in a thread of its own."""
    loop = asyncio.new_event_loop()
    server = loop.run_until_complete(asyncio.start_server(recorder.serve, "127.0.0.1", 0))
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        asyncio.run_coroutine_threadsafe(_stop(server), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


async def _stop(server: asyncio.Server) -> None:
    server.close()
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    await asyncio.sleep(0)  # the sockets of aborted connections are closed in the next turn of the loop


def test_a_script_carries_its_load_as_lua_values() -> None:
    script = wrk.lua_script(Load(kind="push", queue="q", batch=10, spread=True))
    assert script.startswith('config = {queue = "q", batch = 10, partitions = 1000, payload = "{\\"pad\\"')
    assert "spread = true" in script.splitlines()[0]


@dataclass
class Run:
    """A load that wrk sends to a recorder."""

    load: Load
    recorder: Recorder
    sample: wrk.Sample | None = None

    def send(self) -> None:
        """For a second, which is the shortest time that wrk knows."""
        with listening(self.recorder) as port:
            self.sample = wrk.run(port, self.load, 1)


@pytest.fixture(scope="module")
def runs() -> dict[str, Run]:
    """Loads of all kinds, all sent at the same time."""
    if not wrk.available():
        pytest.skip("wrk is not installed: run scripts/test as root, or apt-get install wrk")
    push, pop = Load(kind="push", queue="q", connections=4), Load(kind="pop", queue="q", connections=4)
    made = {
        "push": Run(replace(push, batch=4, partitions=8), Recorder(0)),
        "spread push": Run(replace(push, batch=4, partitions=8, spread=True), Recorder(0)),
        "push with ids": Run(replace(push, batch=3, transaction_ids=True), Recorder(0)),
        "pop 1": Run(replace(pop, batch=1), Recorder(1)),
        "pop 5": Run(replace(pop, batch=5), Recorder(5)),
        "pop without acks": Run(replace(pop, batch=3, auto_ack=True), Recorder(3)),
        "refused acks": Run(replace(pop, batch=2), Recorder(2, refuse=True)),
    }
    with ThreadPoolExecutor(len(made)) as threads:
        for done in [threads.submit(run.send) for run in made.values()]:
            done.result()
    return made


def sent(runs: dict[str, Run], name: str) -> tuple[Recorder, wrk.Sample]:
    """What one of them did."""
    sample = runs[name].sample
    assert sample is not None
    return runs[name].recorder, sample


@pytest.mark.parametrize(("name", "partitions"), [("push", 1), ("spread push", 4)])
def test_wrk_pushes_whole_batches_to_every_partition(runs: dict[str, Run], name: str, partitions: int) -> None:
    recorder, sample = sent(runs, name)
    assert sample.errors == 0
    assert 0 < sample.messages <= 4 * len(recorder.pushed)
    assert {item["partition"] for items in recorder.pushed for item in items} == {f"p{n}" for n in range(8)}
    assert {len({item["partition"] for item in items}) for items in recorder.pushed} == {partitions}
    assert {len(msgspec.json.encode(item["payload"])) for item in recorder.pushed[0]} == {256}


def test_wrk_never_repeats_a_transaction_id(runs: dict[str, Run]) -> None:
    recorder, _ = sent(runs, "push with ids")
    ids = [item["transactionId"] for items in recorder.pushed for item in items]
    assert ids
    assert len(set(ids)) == len(ids)
    assert {len(each) for each in ids} == {36}


@pytest.mark.parametrize(("batch", "route"), [(1, "/api/v1/ack"), (5, "/api/v1/ack/batch")])
def test_wrk_acks_what_it_popped_under_the_right_lease_and_once(runs: dict[str, Run], batch: int, route: str) -> None:
    recorder, sample = sent(runs, f"pop {batch}")
    assert recorder.wrong == []
    assert set(recorder.acked.values()) == {1}
    assert set(recorder.paths) == {f"/api/v1/pop/queue/q?batch={batch}", route}
    assert 0 < sample.messages <= recorder.acked.total()
    assert sample.messages >= recorder.acked.total() - 4 * batch


def test_wrk_counts_what_was_consumed_and_refused_acks_are_errors(runs: dict[str, Run]) -> None:
    recorder, sample = sent(runs, "pop without acks")
    assert list(recorder.paths) == ["/api/v1/pop/queue/q?batch=3&autoack=true"]
    assert sample.messages in {3 * (recorder.serial - n) for n in range(5)}
    _, refused = sent(runs, "refused acks")
    assert refused.messages == 0
    assert refused.errors > 0


def test_the_built_in_generator_sends_exactly_the_requests_it_is_notified_to() -> None:
    recorder = Recorder(0)
    with listening(recorder) as port:
        load = Load(kind="push", queue="q", connections=3, batch=2, requests=10)
        outcome = generate(f"http://127.0.0.1:{port}", load)[0]
    assert (outcome.requests, outcome.messages, len(recorder.pushed)) == (10, 20, 10)


def test_the_built_in_generator_pops_and_acks_at_a_fixed_rate() -> None:
    recorder = Recorder(2)
    with listening(recorder) as port:
        load = Load(kind="pop", queue="q", connections=2, batch=2, rate=100, seconds=0.2)
        outcome = generate(f"http://127.0.0.1:{port}", load)[0]
    assert (outcome.requests, outcome.messages, outcome.errors) == (20, 40, 0)
    assert recorder.wrong == []


def test_a_server_that_is_not_there_is_a_connection_error() -> None:
    with pytest.raises(ConnectionError):
        generate("http://127.0.0.1:9", Load(kind="push", queue="q", connections=1))
