"""Peers: the other servers on the same store, notified of ready work by signed UDP datagrams."""

from __future__ import annotations

import asyncio
import hmac
import logging
import socket
import struct
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Annotated, Literal, TypeVar

import msgspec

from hark.clock import SECOND, Clock
from hark.engine.hints import HintBook
from hark.keys import InvalidKey, decode_key, encode_key
from hark.model import Hint, Key, KeyNotification
from hark.settings import Address

log = logging.getLogger(__name__)

# Datagrams -------------------------------------------------------------------------------------------------

WINDOW = 1024
"""Number of sequences of a sender that may arrive out of order. An older one is treated as repeated."""
MAX_SENDERS = 1024
"""Maximum number of remembered senders. A new one replaces the one that was heard longest ago."""

_ALL = (1 << WINDOW) - 1


class Senders:
    """For each sender, the highest received sequence and a bit for each of the sequences below it."""

    def __init__(self) -> None:
        self._received: OrderedDict[bytes, tuple[int, int]] = OrderedDict()

    def is_new(self, sender: bytes, sequence: int) -> bool:
        """Note a sequence of a sender. False: it may have been received before."""
        highest, bits = self._received.get(sender, (sequence, 0))
        if sequence > highest:
            ahead = sequence - highest
            # A huge step must not make a huge number.
            highest, bits = sequence, bits << ahead & _ALL if ahead < WINDOW else 0
        behind = highest - sequence
        if behind >= WINDOW or bits >> behind & 1:
            return False
        self._received[sender] = highest, bits | 1 << behind
        self._received.move_to_end(sender)
        if len(self._received) > MAX_SENDERS:
            self._received.popitem(last=False)
        return True


# "HARK" | version | sender, 16 bytes | sequence, u64 | time in microseconds, i64 | notices | HMAC-SHA256 of all that
#
# The notices are msgpack: MESSAGE_AVAILABLE `[1, queue, partitions, counts]` and PARTITION_FREE `[2, queue, group,
# partitions, ended, counts]`, with nil for any group and for any partition. An empty list of partitions comes with
# ended leases that did not fit beside the partitions. There is one count for each partition, or none at all.
# KEYS_CHANGED is `[3, keys]`, with nil for any key; keys are encoded.

MAX_BYTES = 1200
"""Maximum size of a datagram, below the packet size of any path, so that none is fragmented."""
MAX_AGE = 30 * SECOND
"""Maximum difference between the time of a datagram and the clock, in both directions."""

_MAGIC = b"HARK"
_VERSION = 1
_HEAD = struct.Struct(">4sB16sQq")
_SIGNATURE_BYTES = 32
_LIST_BYTES = 3
"""Maximum size of the head of a msgpack list with fewer than 65,536 items."""
_MOST_MESSAGES = 65_535
"""Maximum count of one partition. A larger one has the same effect."""
_COUNT_BYTES = 3
_ROOM = MAX_BYTES - _HEAD.size - _SIGNATURE_BYTES - _LIST_BYTES

T = TypeVar("T", str, bytes)
MessageCounts = tuple[Annotated[int, msgspec.Meta(ge=1, le=_MOST_MESSAGES)], ...]
Reason = Literal["size", "magic", "version", "signature", "own", "time", "replay", "content"]
"""The reason why a datagram is rejected."""


class Refusal(Exception):
    """A rejected datagram."""

    def __init__(self, reason: Reason) -> None:
        super().__init__(reason)
        self.reason: Reason = reason


class MessageAvailable(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """Messages arrived."""

    queue: str
    partitions: tuple[str, ...] | None
    counts: MessageCounts = ()


class PartitionFree(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """Something else made work ready, or leases ended."""

    queue: str
    group: str | None
    partitions: tuple[str, ...] | None
    ended: tuple[str, ...]
    counts: MessageCounts = ()


class KeysChanged(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """Keys were written or removed."""

    keys: tuple[bytes, ...] | None


class Packer:
    """Makes the datagrams of one sender. `sender` and the sequence are new after each start of the process."""

    def __init__(self, secret: bytes, sender: bytes, clock: Clock) -> None:
        self._secret = secret
        self._sender = sender
        self._clock = clock
        self._sequence = 0
        self._encode = msgspec.msgpack.Encoder().encode

    def pack(self, hints: Sequence[Hint], keys: KeyNotification | None = None) -> Iterator[tuple[bytes, int]]:
        """The datagrams for these hints and keys, each with its number of notices."""
        notices: list[msgspec.Raw] = []
        used = 0
        for notice in chain(self._notices(hints), () if keys is None else self._key_notices(keys)):
            if used + len(notice) > _ROOM:
                yield self._signed(notices), len(notices)
                notices, used = [], 0
            notices.append(msgspec.Raw(notice))
            used += len(notice)
        if notices:
            yield self._signed(notices), len(notices)

    def _signed(self, notices: list[msgspec.Raw]) -> bytes:
        self._sequence += 1
        head = _HEAD.pack(_MAGIC, _VERSION, self._sender, self._sequence, self._clock.now())
        content = head + self._encode(notices)
        return content + hmac.digest(self._secret, content, "sha256")

    def _notices(self, hints: Sequence[Hint]) -> Iterator[bytes]:
        """Encoded hints. A hint that does not fit into a datagram is split."""
        for hint in hints:
            notice = self._encode(_notice(hint, hint.partitions, hint.ended, hint.counts))
            if len(notice) <= _ROOM:
                yield notice
            else:
                yield from (self._encode(part) for part in self._parts(hint))

    def _parts(self, hint: Hint) -> Iterator[MessageAvailable | PartitionFree]:
        """The parts of a long hint: first the partitions, then the ended leases, which free no further partition."""
        room = _ROOM - len(self._encode(_notice(hint, (), (), ()))) - 3 * _LIST_BYTES
        if hint.partitions is None:
            yield _notice(hint, None, (), ())
        else:
            merged = 0
            for partitions in self._chunks(hint.partitions, room, _COUNT_BYTES if hint.counts else 0):
                yield _notice(hint, partitions, (), hint.counts[merged : merged + len(partitions)])
                merged += len(partitions)
        for ended in self._chunks(hint.ended, room, 0):
            yield _notice(hint, (), ended, ())

    def _key_notices(self, notification: KeyNotification) -> Iterator[bytes]:
        """Encoded key notifications. If a key does not fit into a datagram, they name no keys: any may have changed."""
        room = _ROOM - len(self._encode(KeysChanged(()))) - _LIST_BYTES
        keys = None if notification.keys is None else [encode_key(key) for key in notification.keys]
        if keys is None or any(len(self._encode(key)) > room for key in keys):
            yield self._encode(KeysChanged(None))
            return
        for chunk in self._chunks(keys, room, 0):
            yield self._encode(KeysChanged(chunk))

    def _chunks(self, names: Sequence[T], room: int, beside: int) -> Iterator[tuple[T, ...]]:
        """Split names into parts of at most `room` bytes, with `beside` more bytes for each name."""
        chunk: list[T] = []
        used = 0
        for name in names:
            size = len(self._encode(name)) + beside
            if used + size > room:
                yield tuple(chunk)
                chunk, used = [], 0
            chunk.append(name)
            used += size
        if chunk:
            yield tuple(chunk)


class Unpacker:
    """Reads the datagrams of peers, and rejects invalid ones."""

    def __init__(self, secret: bytes, sender: bytes, clock: Clock) -> None:
        self._secret = secret
        self._sender = sender
        self._clock = clock
        self._senders = Senders()
        self._decode = msgspec.msgpack.Decoder(list[MessageAvailable | PartitionFree | KeysChanged]).decode

    def unpack(self, datagram: bytes) -> list[Hint | KeyNotification]:
        """The hints and key notifications of a datagram. Raises `Refusal`."""
        if not _HEAD.size + _SIGNATURE_BYTES < len(datagram) <= MAX_BYTES:
            raise Refusal("size")
        magic, version, sender, sequence, time = _HEAD.unpack_from(datagram)
        if magic != _MAGIC:
            raise Refusal("magic")
        if version != _VERSION:
            raise Refusal("version")
        content, signature = datagram[:-_SIGNATURE_BYTES], datagram[-_SIGNATURE_BYTES:]
        if not hmac.compare_digest(signature, hmac.digest(self._secret, content, "sha256")):
            raise Refusal("signature")
        if sender == self._sender:
            raise Refusal("own")
        if abs(self._clock.now() - time) > MAX_AGE:
            raise Refusal("time")
        if not self._senders.is_new(sender, sequence):
            raise Refusal("replay")
        try:
            return [_received(notice) for notice in self._decode(content[_HEAD.size :])]
        except (msgspec.DecodeError, InvalidKey):
            raise Refusal("content") from None


def _notice(
    hint: Hint, partitions: tuple[str, ...] | None, ended: tuple[str, ...], counts: tuple[int, ...]
) -> MessageAvailable | PartitionFree:
    counts = tuple(min(count, _MOST_MESSAGES) for count in counts)
    if hint.kind == "message":
        return MessageAvailable(hint.queue, partitions, counts)
    return PartitionFree(hint.queue, hint.group, partitions, ended, counts)


def _received(notice: MessageAvailable | PartitionFree | KeysChanged) -> Hint | KeyNotification:
    if isinstance(notice, KeysChanged):
        return KeyNotification(None if notice.keys is None else tuple(decode_key(key) for key in notice.keys))
    counts = notice.counts
    if notice.partitions is None or len(counts) != len(notice.partitions):
        counts = ()
    if isinstance(notice, MessageAvailable):
        return Hint(notice.queue, None, notice.partitions, "message", counts=counts)
    return Hint(notice.queue, notice.group, notice.partitions, "free", ended=notice.ended, counts=counts)


# Directory -------------------------------------------------------------------------------------------------

_RETRY_SECONDS = 5.0
_REFRESH_SECONDS = 60.0
"""The address of a name can change, for example after the restart of a container."""

SocketAddress = tuple[str | int | bytes, ...]
"""A numeric address of the socket API: host, port and, for IPv6, two more numbers."""
LookUp = Callable[[str], Awaitable[Sequence[SocketAddress]]]
"""Resolves a host name to addresses without a port. Raises `OSError`."""
Pause = Callable[[float], Awaitable[None]]


class Directory:
    """The known addresses of all peers.

    A numeric address is known at once. A name can have several addresses: all of them are peers.
    """

    def __init__(
        self,
        peers: Sequence[Address],
        family: socket.AddressFamily,
        look_up: LookUp | None = None,
        pause: Pause = asyncio.sleep,
    ) -> None:
        self._family = family
        self._look_up = look_up or self._ask_system
        self._pause = pause
        self._ports: dict[str, list[int]] = {}
        for host, port in peers:
            self._ports.setdefault(host, []).append(port)
        self._hosts = {host: self._numeric(host) for host in self._ports}
        self._names = [host for host, found in self._hosts.items() if not found]
        self.found: tuple[SocketAddress, ...] = ()
        self._join()

    def __bool__(self) -> bool:
        """Whether there are peers, resolved or not."""
        return bool(self._ports)

    async def keep_resolving(self) -> None:
        """Resolve names until cancelled. A name that fails does not delay the others."""
        await asyncio.gather(*(self._keep_resolving(name) for name in self._names))

    async def _keep_resolving(self, name: str) -> None:
        complained = False
        while True:
            try:
                self._hosts[name] = await self._look_up(name)
            except OSError as error:
                # Keep the addresses found before: an outage of the name server must not separate the peers.
                if not complained:
                    text = "cannot resolve peer %s; retrying, check the setting peers and DNS: %s"
                    log.warning(text, name, error.strerror or error)
                    complained = True
                await self._pause(_RETRY_SECONDS)
            else:
                complained = False
                self._join()
                await self._pause(_REFRESH_SECONDS)

    def _join(self) -> None:
        """Combine hosts and ports, without duplicates."""
        found = (
            (host, port, *rest)
            for name, addresses in self._hosts.items()
            for host, _, *rest in addresses
            for port in self._ports[name]
        )
        self.found = tuple(dict.fromkeys(found))

    def _numeric(self, host: str) -> Sequence[SocketAddress]:
        try:
            return [answer[4] for answer in socket.getaddrinfo(host, 0, **self._kind(socket.AI_NUMERICHOST))]
        except OSError:
            return ()

    async def _ask_system(self, name: str) -> Sequence[SocketAddress]:
        return [answer[4] for answer in await asyncio.get_running_loop().getaddrinfo(name, 0, **self._kind())]

    def _kind(self, flags: int = 0) -> dict[str, int]:
        """Arguments of `getaddrinfo` for addresses to which our socket can send."""
        if self._family == socket.AF_INET6:
            flags |= socket.AI_V4MAPPED
        return {"family": self._family, "type": socket.SOCK_DGRAM, "flags": flags}


MAX_KEYS = 1000
"""Maximum number of keys; above it, peers assume that any key may have changed."""


class Gathering:
    """The hints and the changed keys of the last few milliseconds."""

    def __init__(self) -> None:
        self._book: HintBook | None = None
        self._keys: dict[bytes, Key] | None = {}
        """The changed keys by their bytes; None: any key."""

    def __bool__(self) -> bool:
        return self._book is not None or self._keys != {}

    def add(self, hints: Iterable[Hint]) -> None:
        """Add hints that peers need. Arrivals for one group are left out, because the general hint covers them."""
        for hint in hints:
            if hint.kind == "message" and hint.group is not None:
                continue
            if self._book is None:
                self._book = HintBook()
            counts = dict(zip(hint.partitions, hint.counts, strict=True)) if hint.partitions and hint.counts else None
            self._book.add(hint.queue, hint.group, hint.partitions, hint.kind, counts)
            if hint.group is not None:
                for lease in hint.ended:
                    self._book.ended(hint.queue, hint.group, lease)

    def add_keys(self, notification: KeyNotification) -> None:
        """Add changed keys."""
        if self._keys is None:
            return
        if notification.keys is not None:
            self._keys |= {encode_key(key): key for key in notification.keys}
        if notification.keys is None or len(self._keys) > MAX_KEYS:
            self._keys = None

    def take_keys(self) -> KeyNotification | None:
        """Remove and return the keys."""
        keys, self._keys = self._keys, {}
        if keys is None:
            return KeyNotification(None)
        return KeyNotification(tuple(keys.values())) if keys else None

    def take(self) -> list[Hint]:
        """Remove and return the hints, merged by kind, queue and group."""
        book, self._book = self._book, None
        return [] if book is None else book.hints()


_DATAGRAMS_AT_ONCE = 64
"""Maximum number of datagrams to read in one turn of the event loop."""
_SILENCE = 60 * SECOND
"""Minimum time between two log lines about the same problem: any sender could cause them."""

_REMEDIES = {
    "version": "run the same version of Hark on all servers",
    "signature": "use the same store and the same peer.secret on all servers",
    "time": "synchronise the clocks of the servers",
    "replay": "it was received before; no action is needed unless this repeats",
}

OnHints = Callable[[Sequence[Hint]], None]
OnKeys = Callable[[KeyNotification], None]


class Peers:
    """Sends this server's hints to all peers in the directory, merged over a few milliseconds.

    Datagrams can be lost, so waiting consumers also poll. This class neither blocks nor buffers without limit: a
    datagram that the socket does not accept immediately is dropped and counted. Received hints go to the broker, and to
    the other processes of this server (`siblings`): a peer may know the address of only one process.
    """

    def __init__(
        self,
        udp: socket.socket,
        directory: Directory,
        clock: Clock,
        *,
        sender: bytes,
        linger_seconds: float,
        siblings: Sequence[Address] = (),
    ) -> None:
        self._udp = udp
        self._udp.setblocking(False)
        self._directory = directory
        self._siblings = tuple(siblings)
        self._clock = clock
        self._sender = sender
        self._linger = linger_seconds
        self._gathering = Gathering()
        self._packer: Packer | None = None
        self._timer: asyncio.Handle | None = None
        self._resolving: asyncio.Task[None] | None = None
        self._counts: Counter[str] = Counter()
        self._refused: Counter[str] = Counter()
        self._complained_at: dict[str, int] = {}

    async def start(self, secret: bytes, on_hints: OnHints, on_keys: OnKeys) -> None:
        """Start to send and receive. Does not wait until the peers are resolved."""
        self._packer = Packer(secret, self._sender, self._clock)
        unpacker = Unpacker(secret, self._sender, self._clock)
        asyncio.get_running_loop().add_reader(self._udp, self._receive, unpacker, on_hints, on_keys)
        self._resolving = asyncio.create_task(self._directory.keep_resolving(), name="peers")

    async def close(self) -> None:
        """Send the remaining hints, and close the socket."""
        if self._udp.fileno() < 0:
            return
        self._send_gathered()
        self._packer = None
        if self._resolving is not None:
            self._resolving.cancel()
            await asyncio.gather(self._resolving, return_exceptions=True)
            asyncio.get_running_loop().remove_reader(self._udp)
        self._udp.close()

    def notify(self, hints: Sequence[Hint] = (), keys: KeyNotification | None = None) -> None:
        """Notify the peers soon, together with further hints and keys within the linger."""
        if not self._directory or self._packer is None:
            return
        self._gathering.add(hints)
        if keys is not None:
            self._gathering.add_keys(keys)
        if self._timer is None and self._gathering:
            self._timer = asyncio.get_running_loop().call_later(self._linger, self._send_gathered)

    def metrics(self) -> dict[str, float]:
        """Counters since the start. A datagram is counted once for each peer."""
        counters = ("datagrams_sent", "hints_sent", "send_errors", "datagrams_received", "hints_received")
        return {
            "peers": len(self._directory.found),
            **{name: self._counts[name] for name in counters},
            "datagrams_refused": self._refused.total(),
            **{f"refused_{reason}": count for reason, count in self._refused.items()},
        }

    def _send_gathered(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        hints, keys = self._gathering.take(), self._gathering.take_keys()
        if self._packer is None:
            return
        for datagram, notices in self._packer.pack(hints, keys):
            for address in self._directory.found:
                self._send(datagram, notices, address)

    def _send(self, datagram: bytes, notices: int, address: SocketAddress) -> None:
        try:
            self._udp.sendto(datagram, address)
        except OSError as error:
            # For example if the buffers of the system are full: then peers find the work by polling.
            self._counts["send_errors"] += 1
            self._complain(
                "send", f"cannot notify peer {_shown(address)}: {error.strerror}; check the network and peer.host"
            )
        else:
            self._counts["datagrams_sent"] += 1
            self._counts["hints_sent"] += notices

    def _receive(self, unpacker: Unpacker, on_hints: OnHints, on_keys: OnKeys) -> None:
        received: list[Hint | KeyNotification] = []
        for _ in range(_DATAGRAMS_AT_ONCE):
            try:
                # One byte more than allowed: a longer datagram is cut off and must not pass for a whole one.
                datagram, address = self._udp.recvfrom(MAX_BYTES + 1)
            except BlockingIOError:
                break
            except OSError:
                continue  # An earlier datagram had no receiver; this socket still works.
            self._counts["datagrams_received"] += 1
            accepted = self._accepted(unpacker, datagram, address)
            received += accepted
            if accepted and address[:2] not in self._siblings:
                for sibling in self._siblings:
                    self._send(datagram, len(accepted), sibling)
        self._counts["hints_received"] += len(received)
        hints = [one for one in received if isinstance(one, Hint)]
        if hints:
            on_hints(hints)
        for one in received:
            if isinstance(one, KeyNotification):
                on_keys(one)

    def _accepted(self, unpacker: Unpacker, datagram: bytes, address: SocketAddress) -> list[Hint | KeyNotification]:
        try:
            return unpacker.unpack(datagram)
        except Refusal as refusal:
            self._refused[refusal.reason] += 1
            # A list of peers for all servers contains each server itself. A forwarded datagram can arrive twice.
            expected = refusal.reason == "own" or (refusal.reason == "replay" and bool(self._siblings))
            if not expected:
                remedy = _REMEDIES.get(refusal.reason, "it is not from a Hark server; check who can reach this port")
                self._complain(
                    refusal.reason, f"rejected a datagram from {_shown(address)} ({refusal.reason}): {remedy}"
                )
            return []

    def _complain(self, about: str, text: str) -> None:
        now = self._clock.now()
        if now - self._complained_at.get(about, -_SILENCE) >= _SILENCE:
            self._complained_at[about] = now
            log.warning("%s", text)


def _shown(address: SocketAddress) -> str:
    return ":".join(map(str, address[:2]))
