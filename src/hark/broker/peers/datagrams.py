"""Hints as datagrams: bytes that fit into one packet, signed with the secret that all peers share.

    "HARK" | version | sender, 16 bytes | sequence, u64 | time in microseconds, i64 | notices | HMAC-SHA256 of all that

The notices are msgpack: MESSAGE_AVAILABLE `[1, queue, partitions]` and PARTITION_FREE `[2, queue, group, partitions,
ended]`, with nil for any group and for any partition. No list of partitions at all (`[]`) comes with leases that ended
and did not fit beside the partitions.
"""

from __future__ import annotations

import hmac
import struct
from collections.abc import Iterator, Sequence
from typing import Literal

import msgspec

from hark.broker.peers.senders import Senders
from hark.clock import SECOND, Clock
from hark.model import Hint

MAX_BYTES = 1200
"""Of a datagram; below what any path carries in one packet, so that none is taken apart on its way."""
MAX_AGE = 30 * SECOND
"""How old a datagram may be, and how far from the future it may come."""

_MAGIC = b"HARK"
_VERSION = 1
_HEAD = struct.Struct(">4sB16sQq")
_SIGNATURE_BYTES = 32
_LIST_BYTES = 3
"""What msgpack puts before a list, at most (of less than 65,536 items)."""
_ROOM = MAX_BYTES - _HEAD.size - _SIGNATURE_BYTES - _LIST_BYTES

Reason = Literal["size", "magic", "version", "signature", "own", "time", "replay", "content"]
"""Why a datagram is refused."""


class Refusal(Exception):
    """A datagram that is not to be believed."""

    def __init__(self, reason: Reason) -> None:
        super().__init__(reason)
        self.reason: Reason = reason


class MessageAvailable(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """Messages arrived."""

    queue: str
    partitions: tuple[str, ...] | None


class PartitionFree(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """Something else made work ready, or leases ended."""

    queue: str
    group: str | None
    partitions: tuple[str, ...] | None
    ended: tuple[str, ...]


class Packer:
    """Makes the datagrams of one sender; `sender` is new with each start of the process, as the sequence is."""

    def __init__(self, secret: bytes, sender: bytes, clock: Clock) -> None:
        self._secret = secret
        self._sender = sender
        self._clock = clock
        self._sequence = 0
        self._encode = msgspec.msgpack.Encoder().encode

    def pack(self, hints: Sequence[Hint]) -> Iterator[tuple[bytes, int]]:
        """As few datagrams as it takes, each with the number of its notices."""
        notices: list[msgspec.Raw] = []
        used = 0
        for notice in self._notices(hints):
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
        """Each hint as bytes that fit; one that does not fit becomes several."""
        for hint in hints:
            notice = self._encode(_notice(hint, hint.partitions, hint.ended))
            if len(notice) <= _ROOM:
                yield notice
            else:
                yield from (self._encode(part) for part in self._parts(hint))

    def _parts(self, hint: Hint) -> Iterator[MessageAvailable | PartitionFree]:
        """A long hint in parts: first the places, then the leases that ended, which free no further place."""
        room = _ROOM - len(self._encode(_notice(hint, (), ()))) - 2 * _LIST_BYTES
        if hint.partitions is None:
            yield _notice(hint, None, ())
        else:
            for partitions in self._chunks(hint.partitions, room):
                yield _notice(hint, partitions, ())
        for ended in self._chunks(hint.ended, room):
            yield _notice(hint, (), ended)

    def _chunks(self, names: Sequence[str], room: int) -> Iterator[tuple[str, ...]]:
        """Names in their order, as many at a time as have room."""
        chunk: list[str] = []
        used = 0
        for name in names:
            size = len(self._encode(name))
            if used + size > room:
                yield tuple(chunk)
                chunk, used = [], 0
            chunk.append(name)
            used += size
        if chunk:
            yield tuple(chunk)


class Unpacker:
    """Reads the datagrams of others and refuses what is not to be believed."""

    def __init__(self, secret: bytes, sender: bytes, clock: Clock) -> None:
        self._secret = secret
        self._sender = sender
        self._clock = clock
        self._senders = Senders()
        self._decode = msgspec.msgpack.Decoder(list[MessageAvailable | PartitionFree]).decode

    def unpack(self, datagram: bytes) -> list[Hint]:
        """The hints in a datagram; raises `Refusal`."""
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
            return [_hint(notice) for notice in self._decode(content[_HEAD.size :])]
        except msgspec.DecodeError:
            raise Refusal("content") from None


def _notice(hint: Hint, partitions: tuple[str, ...] | None, ended: tuple[str, ...]) -> MessageAvailable | PartitionFree:
    if hint.news == "message":
        return MessageAvailable(hint.queue, partitions)
    return PartitionFree(hint.queue, hint.group, partitions, ended)


def _hint(notice: MessageAvailable | PartitionFree) -> Hint:
    if isinstance(notice, MessageAvailable):
        return Hint(notice.queue, None, notice.partitions, "message")
    return Hint(notice.queue, notice.group, notice.partitions, "free", ended=notice.ended)
