"""Which datagrams of which senders were heard before."""

from __future__ import annotations

import hmac
import struct
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Annotated, Literal, TypeVar

import msgspec

from hark.clock import SECOND, Clock
from hark.keys import InvalidKey, decode_key, encode_key
from hark.model import Hint, KeyNotification

WINDOW = 1024
"""Sequences of a sender that may overtake each other; what comes later than that counts as repeated."""
MAX_SENDERS = 1024
"""Senders that are remembered; beyond that the one heard of longest ago is forgotten."""

_ALL = (1 << WINDOW) - 1


class Senders:
    """For each sender, the highest sequence heard and a bit for each of those just below it."""

    def __init__(self) -> None:
        self._received: OrderedDict[bytes, tuple[int, int]] = OrderedDict()

    def is_new(self, sender: bytes, sequence: int) -> bool:
        """Note a sequence of a sender; False when it may have been noted before."""
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
# partitions, ended, counts]`, with nil for any group and for any partition. No list of partitions at all (`[]`) comes
# with leases that ended and did not fit beside the partitions. There is one count for each partition, or none at all.
# KEYS_CHANGED is `[3, keys]`, with nil for any key; keys are encoded.


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
_MOST_MESSAGES = 65_535
"""Of one partition; beyond that it makes no difference to anybody."""
_COUNT_BYTES = 3
_ROOM = MAX_BYTES - _HEAD.size - _SIGNATURE_BYTES - _LIST_BYTES

T = TypeVar("T", str, bytes)
Counts = tuple[Annotated[int, msgspec.Meta(ge=1, le=_MOST_MESSAGES)], ...]
Reason = Literal["size", "magic", "version", "signature", "own", "time", "replay", "content"]
"""Why a datagram is refused."""


class Refusal(Exception):
    """A rejected datagram."""

    def __init__(self, reason: Reason) -> None:
        super().__init__(reason)
        self.reason: Reason = reason


class MessageAvailable(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """Messages arrived."""

    queue: str
    partitions: tuple[str, ...] | None
    counts: Counts = ()


class PartitionFree(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """Something else made work ready, or leases ended."""

    queue: str
    group: str | None
    partitions: tuple[str, ...] | None
    ended: tuple[str, ...]
    counts: Counts = ()


class KeysChanged(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """Keys were written or removed."""

    keys: tuple[bytes, ...] | None


class Packer:
    """Makes the datagrams of one sender; `sender` is new with each start of the process, as the sequence is."""

    def __init__(self, secret: bytes, sender: bytes, clock: Clock) -> None:
        self._secret = secret
        self._sender = sender
        self._clock = clock
        self._sequence = 0
        self._encode = msgspec.msgpack.Encoder().encode

    def pack(self, hints: Sequence[Hint], keys: KeyNotification | None = None) -> Iterator[tuple[bytes, int]]:
        """As few datagrams as it takes, each with the number of its notices."""
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
        """Each hint as bytes that fit; one that does not fit becomes several."""
        for hint in hints:
            notice = self._encode(_notice(hint, hint.partitions, hint.ended, hint.counts))
            if len(notice) <= _ROOM:
                yield notice
            else:
                yield from (self._encode(part) for part in self._parts(hint))

    def _parts(self, hint: Hint) -> Iterator[MessageAvailable | PartitionFree]:
        """A long hint in parts: first the places, then the leases that ended, which free no further place."""
        room = _ROOM - len(self._encode(_notice(hint, (), (), ()))) - 3 * _LIST_BYTES
        if hint.partitions is None:
            yield _notice(hint, None, (), ())
        else:
            sent = 0
            for partitions in self._chunks(hint.partitions, room, _COUNT_BYTES if hint.counts else 0):
                yield _notice(hint, partitions, (), hint.counts[sent : sent + len(partitions)])
                sent += len(partitions)
        for ended in self._chunks(hint.ended, room, 0):
            yield _notice(hint, (), ended, ())

    def _key_notices(self, notification: KeyNotification) -> Iterator[bytes]:
        """HintKind of keys as bytes that fit; of a key that does not fit alone it is said that any may have changed."""
        room = _ROOM - len(self._encode(KeysChanged(()))) - _LIST_BYTES
        keys = None if notification.keys is None else [encode_key(key) for key in notification.keys]
        if keys is None or any(len(self._encode(key)) > room for key in keys):
            yield self._encode(KeysChanged(None))
            return
        for chunk in self._chunks(keys, room, 0):
            yield self._encode(KeysChanged(chunk))

    def _chunks(self, names: Sequence[T], room: int, beside: int) -> Iterator[tuple[T, ...]]:
        """Names in their order, as many at a time as have room, each with so many bytes beside it."""
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
        """The hints and the news of keys in a datagram; raises `Refusal`."""
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
            return [
                _key_notification(notice) if isinstance(notice, KeysChanged) else _hint(notice)
                for notice in self._decode(content[_HEAD.size :])
            ]
        except (msgspec.DecodeError, InvalidKey):
            raise Refusal("content") from None


def _notice(
    hint: Hint, partitions: tuple[str, ...] | None, ended: tuple[str, ...], counts: tuple[int, ...]
) -> MessageAvailable | PartitionFree:
    counts = tuple(min(count, _MOST_MESSAGES) for count in counts)
    if hint.kind == "message":
        return MessageAvailable(hint.queue, partitions, counts)
    return PartitionFree(hint.queue, hint.group, partitions, ended, counts)


def _key_notification(notice: KeysChanged) -> KeyNotification:
    return KeyNotification(None if notice.keys is None else tuple(decode_key(key) for key in notice.keys))


def _hint(notice: MessageAvailable | PartitionFree) -> Hint:
    counts = notice.counts
    if notice.partitions is None or len(counts) != len(notice.partitions):
        counts = ()
    if isinstance(notice, MessageAvailable):
        return Hint(notice.queue, None, notice.partitions, "message", counts=counts)
    return Hint(notice.queue, notice.group, notice.partitions, "free", ended=notice.ended, counts=counts)
