"""`hark bench`: a load generator over raw sockets in a separate process, and its results."""

from __future__ import annotations

import asyncio
import multiprocessing
import secrets
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from itertools import count, cycle
from multiprocessing.connection import Connection
from typing import Annotated, Literal, cast
from urllib.parse import urlsplit

import httptools
import msgspec
import typer

from hark.api import operations
from hark.cli.output import FAILED, Failure, complain, raw, table
from hark.cli.params import option
from hark.cli.remote import Server
from hark.client.arguments import AUTHORIZATION, bearer, checked_token, trusting

# Closed loop: each connection sends its next request after the response to the last one. Open loop (`rate`): requests
# are due at fixed times, and latency counts from the due time, so that the figures show every delay of a slow server.


GRACE_SECONDS = 5.0
SPIN_BELOW_RATE = 400
clock = time.perf_counter


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """One stream of requests of one kind."""

    kind: Literal["push", "pop"]
    queue: str
    connections: int = 32
    batch: int = 1
    partitions: int = 1000
    size: int = 256
    spread: bool = False
    """Whether each message of a push goes to another partition; otherwise each request has one partition."""
    transaction_ids: bool = False
    auto_ack: bool = False
    shared: bool = False
    """Whether pops belong to a shared group: any number of them receive from one partition at the same time."""
    delay_ms: int = 0
    """Delivery delay of pushed messages."""
    claims: int = 1
    """Number of partitions that one pop can receive from."""
    wait: bool = False
    """Whether an empty pop waits on the server; otherwise its connection ends, because the backlog is drained."""
    seconds: float = 5
    rate: float = 0
    """Requests per second (open loop); 0: as fast as the server responds (closed loop)."""
    requests: int = 0
    """Number of requests to stop after, whatever the time; 0: stop by time only."""


class Outcome(msgspec.Struct, kw_only=True):
    """The result of one stream."""

    kind: str
    messages: int = 0
    requests: int = 0
    errors: int = 0
    empty: int = 0
    seconds: float = 0.0
    latencies_ms: list[float] = []
    """Of each push, or of each pop with its ack."""

    @property
    def throughput(self) -> float:
        """Messages per second."""
        return self.messages / self.seconds if self.seconds else 0.0


class _Message(msgspec.Struct, rename="camel"):
    """What an acknowledgement repeats of a message; the load is not slowed down by decoding more."""

    transaction_id: str
    partition_id: str
    lease_id: str | None = None


class _Popped(msgspec.Struct):
    messages: list[_Message] = []


Reply = tuple[int, bytes]
Mode = Literal["push", "pop", "both"]
"""The operations that `hark bench` measures."""
_popped = msgspec.json.Decoder(_Popped)


def percentile(values: Sequence[float], percent: float) -> float:
    """Return the smallest value that `percent` percent of the values do not exceed; 0 without values."""
    if not values:
        return 0.0
    rank = -(-len(values) * percent // 100)
    return sorted(values)[max(0, int(rank) - 1)]


def payload_of(size: int) -> bytes:
    """Make a JSON object of exactly `size` bytes (at least 10)."""
    return b'{"pad":"' + b"x" * max(0, size - 10) + b'"}'


def push_bodies(load: Load) -> Iterator[bytes]:
    """Yield bodies of pushes without end, cycling through the partitions."""
    payload = payload_of(load.size)
    queue = msgspec.json.encode(load.queue)
    tag, serial = secrets.token_hex(10), count()

    def item(partition: int) -> bytes:
        key = b',"transactionId":"%s-%012x"' % (tag.encode(), next(serial)) if load.transaction_ids else b""
        return b'{"queue":%s,"partition":"p%d"%s%s,"payload":%s}' % (
            queue,
            partition % load.partitions,
            key,
            b',"delay":%d' % load.delay_ms if load.delay_ms else b"",
            payload,
        )

    def body(turn: int) -> bytes:
        indexes = (turn * load.batch + i if load.spread else turn for i in range(load.batch))
        return b'{"items":[' + b",".join(map(item, indexes)) + b"]}"

    if load.transaction_ids:
        return map(body, count())
    turns = -(-load.partitions // load.batch) if load.spread else load.partitions
    return cycle([body(turn) for turn in range(turns)])


def ack_body(reply: bytes) -> tuple[bytes, int]:
    """Make the body that acknowledges all messages of a pop, and count them."""
    messages = _popped.decode(reply).messages
    return msgspec.json.encode({"acknowledgments": messages}), len(messages)


class Wire(asyncio.Protocol):
    """One kept-alive HTTP/1.1 connection with one request in flight."""

    def __init__(self, host: str, token: str | None = None) -> None:
        self._head = f"Host: {host}\r\n".encode()
        if token is not None:
            self._head += f"{AUTHORIZATION}: {bearer(checked_token(token))}\r\n".encode()
        self._parser = httptools.HttpResponseParser(self)
        self._parts: list[bytes] = []
        self._reply: asyncio.Future[Reply] | None = None
        self._transport: asyncio.WriteTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by the event loop."""
        self._transport = cast("asyncio.WriteTransport", transport)  # uvloop's is one, but not by name

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by the event loop."""
        self._transport = None
        if self._reply is not None and not self._reply.done():
            self._reply.set_exception(exc or ConnectionResetError("the server closed the connection"))

    def data_received(self, data: bytes) -> None:
        """Called by the event loop."""
        self._parser.feed_data(data)

    def on_body(self, body: bytes) -> None:
        """Called by the parser."""
        self._parts.append(body)

    def on_message_complete(self) -> None:
        """Called by the parser."""
        body, self._parts = b"".join(self._parts), []
        if self._reply is not None and not self._reply.done():
            self._reply.set_result((self._parser.get_status_code(), body))

    async def request(self, method: bytes, path: bytes, body: bytes = b"") -> Reply:
        """Send one request and wait for its response."""
        if self._transport is None:
            raise ConnectionResetError("the connection is closed")
        self._reply = asyncio.get_running_loop().create_future()
        head = b"%s %s HTTP/1.1\r\n%s" % (method, path, self._head)
        length = b"Content-Type: application/json\r\nContent-Length: %d\r\n" % len(body) if body else b""
        self._transport.write(head + length + b"\r\n" + body)
        return await self._reply

    def close(self) -> None:
        """Close the connection."""
        if self._transport is not None:
            self._transport.close()


class _Stream:
    """Runs one `Load` and counts its results."""

    def __init__(self, load: Load, prefix: str) -> None:
        self.load = load
        self._prefix = prefix.encode()
        self._bodies = push_bodies(load)
        self._pop = self._prefix + operations.POP_OF_QUEUE.at(load.queue).encode() + b"?batch=%d" % load.batch
        self._pop += b"&partitions=%d" % load.claims if load.claims > 1 else b""
        self._pop += b"&autoAck=true" if load.auto_ack else b""
        self._pop += b"&groupMode=shared" if load.shared else b""
        self._pop += b"&wait=true&timeout=500" if load.wait else b""
        self.outcome = Outcome(kind=load.kind)
        self.start = 0.0

    async def run(self, wires: Sequence[Wire]) -> Outcome:
        """Send requests until the time or the number of requests is reached."""
        self.start = clock()
        await (self._open(wires) if self.load.rate else self._closed(wires))
        return self.outcome

    async def _closed(self, wires: Sequence[Wire]) -> None:
        deadline = self.start + self.load.seconds
        left = iter(range(self.load.requests)) if self.load.requests else count()

        async def connection(wire: Wire) -> None:
            while (self.load.requests or clock() < deadline) and next(left, None) is not None:
                got = await self._step(wire, clock())
                if not got and not self.load.wait:
                    return

        await asyncio.gather(*map(connection, wires))

    async def _open(self, wires: Sequence[Wire]) -> None:
        due_times: asyncio.Queue[float] = asyncio.Queue()
        unanswered: set[float] = set()

        async def connection(wire: Wire) -> None:
            while True:
                due = await due_times.get()
                await self._step(wire, due)
                unanswered.discard(due)
                due_times.task_done()

        workers = [asyncio.ensure_future(connection(wire)) for wire in wires]
        for turn in range(int(self.load.rate * self.load.seconds)):
            due = self.start + turn / self.load.rate
            await _sleep_until(due, exact=self.load.rate < SPIN_BELOW_RATE)
            unanswered.add(due)
            due_times.put_nowait(due)
        with suppress(TimeoutError):
            await asyncio.wait_for(due_times.join(), GRACE_SECONDS)
        for worker in workers:
            worker.cancel()
        # Requests without a response have waited until now: without them, a server that cannot keep up looks too good.
        now = clock()
        self.outcome.errors += len(unanswered)
        self.outcome.latencies_ms += [(now - due) * 1e3 for due in unanswered]

    async def _step(self, wire: Wire, due: float) -> int:
        """Do one push, or one pop with its ack; return the number of messages."""
        outcome = self.outcome
        try:
            got = await (self._push(wire) if self.load.kind == "push" else self._consume(wire))
        except (OSError, msgspec.DecodeError):
            got = -1
        outcome.requests += 1
        if got < 0:
            outcome.errors += 1
            return 0
        if got == 0:
            outcome.empty += 1
            return 0
        now = clock()
        outcome.seconds = now - self.start
        outcome.latencies_ms.append((now - due) * 1e3)
        outcome.messages += got
        return got

    async def _push(self, wire: Wire) -> int:
        status, reply = await wire.request(b"POST", self._prefix + operations.PUSH.path.encode(), next(self._bodies))
        return self.load.batch if status in {200, 201} and b'"failed"' not in reply else -1

    async def _consume(self, wire: Wire) -> int:
        status, reply = await wire.request(b"GET", self._pop)
        if status != 200:
            return 0 if status == 204 else -1
        body, messages = ack_body(reply)
        if self.load.auto_ack or not messages:
            return messages
        status, reply = await wire.request(b"POST", self._prefix + operations.ACK_BATCH.path.encode(), body)
        return messages if status == 200 and reply.count(b'"success":true') == messages else -1


async def _sleep_until(due: float, exact: bool) -> None:
    # Event loop timers are exact to a millisecond, so exact latencies need a busy wait at the end.
    while (left := due - clock()) > 0:  # noqa: ASYNC110 (it waits for a time, not an event)
        await asyncio.sleep((left - 0.002 if left > 0.003 else 0) if exact else max(left, 0.001))


async def _run(server: Server, loads: Sequence[Load]) -> list[Outcome]:
    parts = urlsplit(server.url)
    secure = parts.scheme == "https"
    tls = trusting(server.ca_file) if secure and server.ca_file else secure or None
    host, port = parts.hostname or "127.0.0.1", parts.port or (443 if secure else 80)
    loop = asyncio.get_running_loop()
    streams: list[Awaitable[Outcome]] = []
    opened: list[Wire] = []
    for load in loads:
        dials = (
            loop.create_connection(lambda: Wire(parts.netloc, server.token), host, port, ssl=tls)
            for _ in range(load.connections)
        )
        wires = [wire for _, wire in await asyncio.gather(*dials)]
        opened += wires
        streams.append(_Stream(load, parts.path.rstrip("/")).run(wires))
    outcomes = list(await asyncio.gather(*streams))
    for wire in opened:
        wire.close()
    return outcomes


def _child(pipe: Connection, server: Server, loads: Sequence[Load]) -> None:
    runner: Callable[..., list[Outcome]] = asyncio.run
    with suppress(ImportError):
        import uvloop

        runner = uvloop.run
    try:
        pipe.send(runner(_run(server, loads)))
    except OSError as error:
        pipe.send(str(error))


def generate(server: str | Server, *loads: Load) -> list[Outcome]:
    """Run streams side by side in a separate process; raises `ConnectionError` without a server."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    server = Server(server) if isinstance(server, str) else server
    child = context.Process(target=_child, args=(theirs, server, loads), daemon=True)
    child.start()
    theirs.close()
    try:
        answer: list[Outcome] | str = ours.recv()
    except EOFError:
        answer = "the load generator process ended unexpectedly"
    child.join()
    if isinstance(answer, str):
        raise ConnectionError(answer)
    return answer


def plan(mode: Mode, shape: Load, backlog: int) -> tuple[list[Load], list[Load]]:
    """Return the loads to run first, and the loads to measure."""
    replace = msgspec.structs.replace
    if mode == "push":
        return [], [shape]
    if mode == "both":
        half = max(1, shape.connections // 2)
        push = replace(shape, connections=half)
        return [], [push, replace(push, kind="pop", wait=True)]
    prefill = replace(shape, connections=8, batch=100, spread=False, rate=0, requests=-(-backlog // 100))
    return [prefill], [replace(shape, kind="pop")]


def _summary(outcome: Outcome) -> dict[str, float | int | str]:
    """Return the figures of one stream for `--json`."""
    return {
        "kind": outcome.kind,
        "messages": outcome.messages,
        "requests": outcome.requests,
        "errors": outcome.errors,
        "empty": outcome.empty,
        "seconds": round(outcome.seconds, 3),
        "throughput": round(outcome.throughput, 1),
        "p50Ms": round(percentile(outcome.latencies_ms, 50), 3),
        "p99Ms": round(percentile(outcome.latencies_ms, 99), 3),
    }


def _show(outcomes: Sequence[Outcome]) -> None:
    table(
        outcomes,
        {
            "Operation": lambda one: one.kind,
            "Messages/s": lambda one: round(one.throughput),
            "p50 (ms)": lambda one: round(percentile(one.latencies_ms, 50), 2),
            "p99 (ms)": lambda one: round(percentile(one.latencies_ms, 99), 2),
            "Messages": lambda one: one.messages,
            "Errors": lambda one: one.errors,
            "Empty pops": lambda one: one.empty,
        },
    )


def _measure(server: Server, first: Sequence[Load], timed: Sequence[Load], queue: str) -> list[Outcome]:
    """Run the loads, then delete the queue."""
    server.call(operations.HEALTH)
    try:
        if first:
            generate(server, *first)
        return generate(server, *timed)
    except ConnectionError as error:
        raise Failure(
            f"the benchmark of {server.url} stopped early: {error}; check the server with: hark doctor"
        ) from error
    finally:
        server.call(operations.DELETE_QUEUE, queue, timeout=60)


def bench(
    server: Server,
    mode: Annotated[Mode, typer.Option(help="Operation to measure; pop includes the ack.")] = "push",
    connections: Annotated[int, option("N", "Number of connections.", least=1)] = 32,
    batch: Annotated[int, option("N", "Messages per request.", least=1)] = 1,
    partitions: Annotated[int, option("N", "Number of partitions.", least=1)] = 1000,
    size: Annotated[int, option("BYTES", "Payload size, in bytes.", least=10)] = 256,
    seconds: Annotated[float, option("SECONDS", "Duration of the measurement, in seconds.", least=0.1)] = 5,
    rate: Annotated[float, option("N", "Requests per second; 0 sends as fast as possible.", least=0)] = 0,
    backlog: Annotated[int, option("N", "Messages to push before --mode pop starts.", least=1)] = 50_000,
) -> None:
    """Measure the throughput and latency of a running server.

    The command creates a queue with a random name, and deletes it at the end.
    """
    queue = f"bench-{secrets.token_hex(4)}"
    shape = Load(
        kind="push",
        queue=queue,
        connections=connections,
        batch=batch,
        partitions=partitions,
        size=size,
        seconds=seconds,
        rate=rate,
    )
    outcomes = _measure(server, *plan(mode, shape, backlog), queue)
    if server.as_json:
        raw(msgspec.json.encode([_summary(outcome) for outcome in outcomes]))
    else:
        _show(outcomes)
    if any(outcome.errors for outcome in outcomes):
        complain("some requests failed and are not counted in the throughput; the server's log has the reasons")
        raise typer.Exit(FAILED)
