"""Clients that misbehave: each leaves, or stops reading, in one of the states that a consumer can be in."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec

from bench.delivery.sockets import frame, upgrade
from bench.delivery.waiters import ACK, PUSH, item, items
from bench.delivery.wires import HOST, Pool
from hark.cli.bench import ack_body, payload_of

TIMEOUT_MS = 60_000
NARROW = 4096
"""Bytes that the kernel keeps for a client that does not read."""
LONG = payload_of(20_000)[1:]
"""What is too long to be read at once."""
SHORT = b'"pad":0}'
HUGE = payload_of(6_000_000)[1:]
"""One of these is more than all buffers between a server and a client that does not read."""


class Ledger:
    """Which messages were pushed, and what became of each."""

    def __init__(self) -> None:
        self.pushed = 0
        self.settled = 0
        self.open: dict[str, set[int]] = {}
        """By queue, those that are not settled."""

    def push(self, queue: str) -> int:
        """The number of a new message."""
        self.pushed += 1
        self.open.setdefault(queue, set()).add(self.pushed)
        return self.pushed

    def settle(self, queue: str, number: int) -> None:
        """One was settled, which must be once."""
        self.open[queue].remove(number)
        self.settled += 1

    @property
    def lost(self) -> int:
        """How many are not settled."""
        return sum(map(len, self.open.values()))


class Connection:
    """A raw connection that can be left without a word."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._unread = b""

    @classmethod
    async def dial(cls, port: int) -> Connection:
        """Connect, with little room for what is not read."""
        end = socket.socket()
        end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, NARROW)
        end.setblocking(False)
        await asyncio.get_running_loop().sock_connect(end, (HOST, port))
        return cls(*await asyncio.open_connection(sock=end, limit=NARROW))

    def send(self, data: bytes) -> None:
        """Write, without waiting."""
        self._writer.write(data)

    async def read_until(self, mark: bytes) -> None:
        """Read until something has come, and no further."""
        seen = self._unread
        while (at := seen.find(mark)) < 0:
            data = await self._reader.read(NARROW)
            if not data:
                raise ConnectionResetError(f"the connection ended before {mark!r}: {seen!r}")
            seen = seen[-NARROW:] + data
        self._unread = seen[at + len(mark) :]

    def hang_up(self) -> None:
        """Leave when what was sent is on its way."""
        self._writer.close()

    def leave(self) -> None:
        """Be gone at once."""
        self._writer.transport.abort()


class Field:
    """One server and all that its misbehaving clients share."""

    def __init__(self, pool: Pool, ledger: Ledger) -> None:
        self.pool = pool
        self.ledger = ledger
        self._kept: list[Connection] = []

    async def push(self, queue: str, partition: int, padding: bytes = SHORT) -> int:
        """Push a message that somebody will have to settle; its number."""
        number = self.ledger.push(queue)
        await self.pool.answer(b"POST", PUSH, items([item(queue, partition, number, padding)]))
        return number

    async def dial(self) -> Connection:
        """Connect."""
        return await Connection.dial(self.pool.port)

    async def turn(self) -> None:
        """Let the server answer something: by then it has read what was sent before."""
        await self.pool.answer(b"GET", b"/api/v1/system/maintenance")

    def keep(self, connection: Connection) -> None:
        """Stay connected, reading nothing, until all go."""
        self._kept.append(connection)

    def leave(self) -> None:
        """Those who stayed go."""
        while self._kept:
            self._kept.pop().leave()


# Ways to consume -------------------------------------------------------------------------------------------


class PopParams(msgspec.Struct, frozen=True, tag="subscribe"):
    """What a client wants; on a WebSocket this is the frame that says so."""

    queue: str
    partition: str | msgspec.UnsetType = msgspec.UNSET
    batch: int = 1
    id: str = "s"


class Way(msgspec.Struct, frozen=True):
    """How a client consumes: what it sends first, and what it waits for until it is surely waiting."""

    name: str
    begin: Callable[[Connection, PopParams], None]
    ready: Callable[[Field, Connection, PopParams], Coroutine[Any, Any, None]]


def _get(connection: Connection, path: str) -> None:
    connection.send(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())


def _begin_pop(connection: Connection, params: PopParams) -> None:
    path = f"{params.queue}/partition/{params.partition}" if params.partition else params.queue
    _get(connection, f"/api/v1/pop/queue/{path}?wait=true&timeout={TIMEOUT_MS}&batch={params.batch}")


async def _pop_ready(field: Field, _connection: Connection, _params: PopParams) -> None:
    await field.turn()


def _begin_listen(connection: Connection, params: PopParams) -> None:
    partition = f"&partition={params.partition}" if params.partition else ""
    _get(connection, f"/api/v1/listen/queue/{params.queue}?prefetch={params.batch}{partition}")


async def _listen_ready(_field: Field, connection: Connection, _params: PopParams) -> None:
    await connection.read_until(b"\r\n\r\n")


def _begin_consume(connection: Connection, params: PopParams) -> None:
    connection.send(upgrade(b"/api/v1/consume?credit=%d" % params.batch))


async def _consume_ready(_field: Field, connection: Connection, params: PopParams) -> None:
    await connection.read_until(b"\r\n\r\n")
    connection.send(frame(msgspec.json.encode(params)))
    await connection.read_until(b'"subscribed"')


WAYS = (
    Way("pop", _begin_pop, _pop_ready),
    Way("listen", _begin_listen, _listen_ready),
    Way("consume", _begin_consume, _consume_ready),
)
STREAMS = WAYS[1:]


# States to leave in ----------------------------------------------------------------------------------------


async def leaves_at_once(field: Field, way: Way, queue: str, partition: int) -> None:
    """There is a message for it, and it leaves right after it has asked."""
    await field.push(queue, partition)
    connection = await field.dial()
    way.begin(connection, PopParams(queue))
    connection.hang_up()


async def leaves_waiting(field: Field, way: Way, queue: str, partition: int) -> None:
    """It leaves while it waits for messages of a partition that nobody else waits for."""
    connection = await _waiting(field, way, PopParams(queue, f"p{partition}"))
    connection.leave()


async def leaves_as_it_comes(field: Field, way: Way, queue: str, partition: int) -> None:
    """It leaves while a message is on its way to it."""
    connection = await _waiting(field, way, PopParams(queue))
    pushing = asyncio.create_task(field.push(queue, partition))
    await asyncio.sleep(0)
    connection.leave()
    await pushing


async def leaves_unread(field: Field, way: Way, queue: str, partition: int) -> None:
    """It leaves after a message was pushed, and has read nothing of it."""
    connection = await _waiting(field, way, PopParams(queue))
    await field.push(queue, partition)
    connection.leave()


async def leaves_half_read(field: Field, way: Way, queue: str, partition: int) -> None:
    """It leaves in the middle of a long message."""
    connection = await _waiting(field, way, PopParams(queue))
    await field.push(queue, partition, LONG)
    await connection.read_until(b'"pad"')
    connection.leave()


async def never_reads(field: Field, way: Way, queue: str, partition: int) -> None:
    """It stays, and reads nothing."""
    connection = await _waiting(field, way, PopParams(queue))
    await field.push(queue, partition)
    field.keep(connection)


async def _waiting(field: Field, way: Way, params: PopParams) -> Connection:
    connection = await field.dial()
    way.begin(connection, params)
    await way.ready(field, connection, params)
    return connection


State = Callable[[Field, Way, str, int], Coroutine[Any, Any, None]]
MEETING: tuple[State, ...] = (
    leaves_at_once,
    leaves_as_it_comes,
    leaves_unread,
    leaves_half_read,
    never_reads,
)
"""Those in which a client meets a message."""


async def stalls(field: Field, way: Way, queue: str) -> None:
    """It stays and reads nothing of a message that no buffer can hold, so that the server's write waits."""
    connection = await _waiting(field, way, PopParams(queue))
    await field.push(queue, 0, HUGE)
    field.keep(connection)


async def acks_late(field: Field, queue: str, partition: int) -> None:
    """Its ack comes when the lease is over and another one has the message: that one's counts."""
    number = await field.push(queue, partition)
    path = f"/api/v1/pop/queue/{queue}/partition/p{partition}?wait=true&timeout={TIMEOUT_MS}".encode()
    late, _ = ack_body(await field.pool.answer(b"GET", path))
    good, _ = ack_body(await field.pool.answer(b"GET", path))
    if b'"success":true' in await field.pool.answer(b"POST", ACK, late):
        raise RuntimeError("an ack counted although its lease was over")
    if b'"success":true' not in await field.pool.answer(b"POST", ACK, good):
        raise RuntimeError("the ack of a live lease was refused beside a late one")
    field.ledger.settle(queue, number)
