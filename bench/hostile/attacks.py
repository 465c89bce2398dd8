"""The attacks: what each sends on how many connections, in a process of its own.

Each is bounded: by its connections, by the time that it runs, and by the times that it connects again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from functools import cache
from itertools import count

import msgspec

HOST = "127.0.0.1"
KIB = 1024
CHUNK = 64 * KIB
MOST_CONNECTIONS = 5_000
"""That one attack opens, one after the other, where the server closes them."""
PAUSE = 0.02
"""Seconds before a closed connection is opened again."""
IN_FLIGHT = 1.05 * (3 * 512 + 256 + 88)
"""Megabytes that large bodies and answers may use: the sum in docs/security.md, without what an idle server uses."""
TRAILERS = EXTENSION = 12 * 1024 * KIB
BODY = 64 * 1024 * KIB
"""More than any server of the benchmark accepts."""
LARGEST = 10 * 1024 * KIB - 1
"""A body that the servers of the benchmark accept."""
HEAD = 1_000 * KIB
LISTS = (
    b"resources/overview",
    b"status",
    b"messages?limit=10000",
    b"messages?status=dead_letter",
    b"messages?status=processing",
    b"consumer-groups",
)
DRIP = 1.0
"""Seconds between two drops of 1 KiB, when all else is sent."""
BYTE = 0.2
"""Seconds between two bytes of a slow head."""

Stream = AsyncIterator[bytes]
_POST = b"POST /api/v1/push HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
_CHUNKED = _POST + b"Transfer-Encoding: chunked\r\n\r\n"


async def _many(line: bytes, size: int) -> Stream:
    """This number of bytes of the same line."""
    chunk = line * (CHUNK // len(line))
    for _ in range(size // len(chunk)):
        yield chunk


async def _dripping(line: bytes) -> Stream:
    while True:
        await asyncio.sleep(DRIP)
        yield line * (KIB // len(line))


async def _heads(_number: int) -> Stream:
    yield b"GET / HTTP/1.1\r\nHost: localhost\r\n"
    async for chunk in _many(b"a:\r\n", HEAD):
        yield chunk
    async for chunk in _dripping(b"a:\r\n"):
        yield chunk


async def _trailers(_number: int) -> Stream:
    yield _CHUNKED + b'c\r\n{"items":[]}\r\n0\r\n'
    async for chunk in _many(b"authorization: Bearer x\r\n", TRAILERS):
        yield chunk
    async for chunk in _dripping(b"a:\r\n"):
        yield chunk


async def _extensions(_number: int) -> Stream:
    yield _CHUNKED + b"c;"
    async for chunk in _many(b"x", EXTENSION):
        yield chunk
    async for chunk in _dripping(b"x"):
        yield chunk


async def _small_chunks(_number: int) -> Stream:
    yield _CHUNKED
    async for chunk in _many(b"1;x=%s\r\n{\r\n" % (b"y" * 1000), EXTENSION):
        yield chunk
    async for chunk in _dripping(b"1\r\n{\r\n"):
        yield chunk


async def _pipelining(_number: int) -> Stream:
    chunk = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n" * 1000
    while True:
        yield chunk


async def _bodies(number: int) -> Stream:
    """Announced by their length, or in chunks that never end."""
    if number % 2:
        yield _CHUNKED
        async for chunk in _many(b"%x\r\n%s\r\n" % (KIB, b"x" * KIB), BODY):
            yield chunk
        return
    yield _POST + b"Content-Length: %d\r\n\r\n" % BODY
    async for chunk in _many(b"x", BODY):
        yield chunk


async def _slow_heads(_number: int) -> Stream:
    for byte in b"GET / HTTP/1.1\r\nHost: localhost\r\nX-Long: ":
        yield bytes((byte,))
        await asyncio.sleep(BYTE)
    while True:
        yield b"x"
        await asyncio.sleep(BYTE)


def _request(path: bytes, start: bytes, part: bytes, end: bytes) -> bytes:
    """A request with a body that repeats one part as often as the limit of bodies allows."""
    body = start + part * ((LARGEST - len(start) - len(end)) // len(part)) + end
    return b"POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%s" % (path, len(body), body)


@cache
def _values() -> tuple[bytes, ...]:
    """Requests that take long to decode: many options, escaped quotes, keys, acknowledgements and checks."""
    return (
        _request(b"/api/v1/configure", b'{"queue":"q","options":{"a":1', b',"":1', b"}}"),
        _request(b"/api/v1/push", b'{"items":[{"queue":"q","payload":["', b'\\"[', b'"]}]}'),
        _request(b"/api/v1/push", b'{"items":[{"queue":"q","delay":"x","payload":[', b"[1,2,3,4,5,6,7,8,9],", b"1]}]}"),
        _request(b"/keyval/api/keys/batch", b'{"keys":[[]', b",[]", b"]}"),
        _request(b"/api/v1/ack/batch", b'{"acknowledgments":[{}', b",{}", b"]}"),
        _request(b"/keyval/api/atomic", b'{"mutations":[],"checks":[{}', b",{}", b"]}"),
    )


async def _decoding(number: int) -> Stream:
    requests = _values()
    while True:
        yield requests[number % len(requests)]


async def _frames(_number: int) -> Stream:
    yield (
        b"GET /api/v1/consume HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
        b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
    )
    ping = b'{"type":"ping"}'
    chunk = (b"\x81" + bytes([0x80 | len(ping)]) + bytes(4) + ping) * 1000
    while True:
        yield chunk


async def _late_times(_number: int) -> Stream:
    body = b'{"items":[{"queue":"q","deliverAt":"9999-12-31T23:59:59-12:00"}]}'
    head = b"POST /api/v1/push HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body)
    chunk = (head + body + b"GET /api/v1/messages HTTP/1.1\r\nHost: localhost\r\n\r\n") * 100
    while True:
        yield chunk


async def _lists(number: int) -> Stream:
    """A queue of 1,000 partitions, and lists and counts of all queues."""
    items = b",".join([b'{"queue":"q%d","partition":"%d","payload":1}' % (number, each) for each in range(1000)])
    body = b'{"items":[%s]}' % items
    yield _POST + b"Content-Length: %d\r\n\r\n" % len(body) + body
    chunk = b"".join([b"GET /api/v1/%s HTTP/1.1\r\nHost: localhost\r\n\r\n" % path for path in LISTS])
    while True:
        yield chunk


async def _unfinished(_number: int) -> Stream:
    """A body of which the last byte never comes."""
    yield _POST + b"Content-Length: %d\r\n\r\n" % LARGEST
    async for chunk in _many(b" ", LARGEST - CHUNK):
        yield chunk
    async for chunk in _dripping(b" "):
        yield chunk


async def _unread_answers(_number: int) -> Stream:
    """Messages, and pops whose answers are not read."""
    body = b'{"items":[%s]}' % b",".join([b'{"queue":"q","payload":"%s"}' % (b"x" * 8 * KIB)] * 1000)
    yield _POST + b"Content-Length: %d\r\n\r\n" % len(body) + body
    while True:
        yield b"GET /api/v1/pop/queue/q?batch=10000&autoAck=true HTTP/1.1\r\nHost: localhost\r\n\r\n"
        await asyncio.sleep(DRIP)


class Attack(msgspec.Struct, frozen=True):
    """One way to hurt a server."""

    name: str
    title: str
    connections: int
    stream: Callable[[int], Stream]
    """What a connection sends; its number is the argument."""
    reads: bool = True
    """Whether it reads the answers."""
    memory: float = 64.0
    """How much more memory the server may use, in MB."""


ATTACKS = (
    Attack("heads", "20 heads of 1,000 KiB that do not end", 20, _heads),
    Attack("trailers", "4 x 12 MiB of trailers, then 1 KiB/s", 4, _trailers),
    Attack("extension", "4 chunk extensions of 12 MiB, then 1 KiB/s", 4, _extensions),
    Attack("chunks", "4 x 12 MiB of chunks of one byte with extensions", 4, _small_chunks),
    Attack("pipelining", "4 x endless pipelining", 4, _pipelining),
    Attack("unread", "4 x endless pipelining, answers not read", 4, _pipelining, reads=False),
    Attack("bodies", "8 x bodies of 64 MiB, over the limit", 8, _bodies),
    Attack("values", "6 x bodies of 10 MiB that take long to decode", 6, _decoding, memory=IN_FLIGHT),
    Attack("frames", "4 WebSockets with endless pings", 4, _frames),
    Attack("times", "4 x endless times after the year 9999", 4, _late_times),
    Attack("lists", "24 x endless lists of 24 queues of 1,000 partitions", 24, _lists, memory=IN_FLIGHT),
    Attack("unfinished", "100 bodies of 10 MiB that do not end", 100, _unfinished, memory=IN_FLIGHT),
    Attack("answers", "8 x answers of 8 MiB, not read", 8, _unread_answers, reads=False, memory=IN_FLIGHT),
    Attack("slow", "500 slow heads, 5 bytes a second each", 500, _slow_heads),
)
CALM = Attack("nothing", "nothing", 0, _pipelining)
"""No attack: what the same client sees on this machine anyway."""
BY_NAME = {attack.name: attack for attack in (CALM, *ATTACKS)}


class Plan(msgspec.Struct, frozen=True):
    """Which attack, where, and for how long."""

    name: str
    port: int
    seconds: float


class Sent(msgspec.Struct, frozen=True):
    """How much an attack got out."""

    connections: int
    """Opened in all."""
    megabytes: float
    began: float
    ended: float
    """By the clock that all processes of the machine share."""


async def attack(plan: Plan) -> Sent:
    """Attack for so long; a connection that the server closes is opened again."""
    chosen = BY_NAME[plan.name]
    began = time.monotonic()
    opened = count()
    total = connections = 0

    async def write(writer: asyncio.StreamWriter, number: int) -> None:
        nonlocal total
        async for chunk in chosen.stream(number):
            writer.write(chunk)
            await writer.drain()
            total += len(chunk)
        await asyncio.sleep(plan.seconds)  # The rest of the attack waits for the answer.

    async def one(number: int) -> None:
        nonlocal connections
        while next(opened) < MOST_CONNECTIONS:
            with suppress(OSError):
                reader, writer = await asyncio.open_connection(HOST, plan.port)
                connections += 1
                writing = asyncio.create_task(write(writer, number))
                waiting = asyncio.create_task(_ended(reader, reads=chosen.reads))
                try:
                    await asyncio.wait({writing, waiting}, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    writing.cancel()
                    waiting.cancel()
                    await asyncio.gather(writing, waiting, return_exceptions=True)
                    writer.transport.abort()
            await asyncio.sleep(PAUSE)

    tasks = [asyncio.create_task(one(number)) for number in range(chosen.connections)]
    await asyncio.sleep(plan.seconds)
    ended = time.monotonic()
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return Sent(connections, total / 2**20, began, ended)


async def _ended(reader: asyncio.StreamReader, *, reads: bool) -> None:
    """Return when the server has closed the connection; who does not read does not see it."""
    if not reads:
        await asyncio.get_running_loop().create_future()
    while await reader.read(CHUNK):
        pass
