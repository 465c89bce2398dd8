"""Pushed items: how they look on the wire, and their checks (rule 6)."""

from __future__ import annotations

import re
from itertools import accumulate

import msgspec

from hark.errors import InvalidInput, Refused
from hark.http.checks import check_int, check_name, check_text, parse_moment, short
from hark.model import DEFAULT_PARTITION, NULL_PAYLOAD, NewMessage

MAX_PRIORITY = 9
MAX_DEPTH = 256
MAX_BACKOFF_STEPS = 100
YEAR_MS = 365 * 86_400_000
MAX_DELAY_MS = 10 * YEAR_MS
MAX_TTL_MS = 100 * YEAR_MS

NO_PAYLOAD = msgspec.Raw(NULL_PAYLOAD)
"""What an item has that came without a payload; told apart by identity from an explicit null."""
_NO_KEYS = msgspec.Raw(b"null")
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.ASCII | re.IGNORECASE)

ITEM_TEXTS = {
    "items": "items array is required",
    "queue": "Queue must be a string",
    "partition": "Partition must be a string",
    "transactionId": "TransactionId must be a string",
    "traceId": "TraceId must be a string",
}
"""The words of the contract, for `decode_json`."""


class PushItem(msgspec.Struct, gc=False, rename="camel"):
    """A message as a producer sends it."""

    queue: str
    partition: str = DEFAULT_PARTITION
    payload: msgspec.Raw = NO_PAYLOAD
    transaction_id: str = ""
    trace_id: str = ""
    priority: int | None = None
    delay: int | None = None
    deliver_at: str | int | None = None
    backoff_schedule: list[int] | None = None
    ttl: int | None = None
    keys_if_undelivered: msgspec.Raw = _NO_KEYS


class PushBody(msgspec.Struct, gc=False):
    """The body of a push."""

    items: list[PushItem]


def to_new_message(item: PushItem, index: int, where: str = "items") -> NewMessage:
    """The checked message; errors name it as `where[index].field`."""
    queue, partition, transaction_id = item.queue, item.partition, item.transaction_id
    payload = bytes(item.payload)
    # The common item, decided in one expression: a character has at most four bytes, so that below 64 of them
    # only NUL can be wrong; and a payload too short for 257 pairs of brackets is not too deep.
    if (
        0 < len(queue) < 64
        and 0 < len(partition) < 64
        and len(transaction_id) < 64
        and len(payload) <= 2 * MAX_DEPTH
        and "\0" not in queue
        and "\0" not in partition
        and "\0" not in transaction_id
        and not item.trace_id
        and item.priority is None
        and item.delay is None
        and item.deliver_at is None
        and item.backoff_schedule is None
        and item.ttl is None
        and item.keys_if_undelivered is _NO_KEYS
    ):
        return NewMessage(queue, partition, payload, transaction_id or None)
    return _checked(item, payload, f"{where}[{index}]")


def _checked(item: PushItem, payload: bytes, where: str) -> NewMessage:
    message = NewMessage(
        check_name(item.queue, f"{where}.queue"),
        check_name(item.partition, f"{where}.partition"),
        payload,
        check_text(item.transaction_id, f"{where}.transactionId") or None,
    )
    if payload_too_deep(payload):
        raise InvalidInput(f"{where}.payload: nested too deeply, at most {MAX_DEPTH} levels")
    if item.trace_id:
        if not _UUID.fullmatch(item.trace_id):
            raise InvalidInput(f"{where}.traceId: expected a UUID, got {short(item.trace_id)}")
        message.trace_id = item.trace_id
    if item.priority is not None:
        message.priority = check_int(item.priority, f"{where}.priority", 0, MAX_PRIORITY)
    if item.delay is not None:
        message.delay_ms = check_int(item.delay, f"{where}.delay", 0, MAX_DELAY_MS)
    if item.deliver_at is not None:
        if item.delay is not None:
            raise InvalidInput(f"{where}.deliverAt: give either delay or deliverAt, not both")
        message.deliver_at = parse_moment(item.deliver_at, f"{where}.deliverAt")
    if item.backoff_schedule is not None:
        message.backoff_ms = _check_backoff(item.backoff_schedule, f"{where}.backoffSchedule")
    if item.ttl is not None:
        message.ttl_ms = check_int(item.ttl, f"{where}.ttl", 1, MAX_TTL_MS)
    if item.keys_if_undelivered is not _NO_KEYS and bytes(item.keys_if_undelivered) != b"null":
        raise Refused(f"{where}.keysIfUndelivered: not supported yet, it arrives with the key-value store")
    return message


def _check_backoff(schedule: list[int], field: str) -> tuple[int, ...]:
    if len(schedule) > MAX_BACKOFF_STEPS:
        raise InvalidInput(f"{field}: at most {MAX_BACKOFF_STEPS} entries, got {len(schedule)}")
    return tuple(check_int(delay, f"{field}[{step}]", 0, MAX_DELAY_MS) for step, delay in enumerate(schedule))


# Maps brackets to +1 and -1 (as signed bytes), and all else but the quote away.
_BRACKETS = bytes.maketrans(b"[{]}", b"\x01\x01\xff\xff")
_NOT_BRACKETS = bytes(byte for byte in range(256) if byte not in b'[{]}"')
_ESCAPED = re.compile(rb"\\.", re.DOTALL)


def payload_too_deep(payload: bytes) -> bool:
    """Whether valid JSON is nested deeper than 256 levels."""
    if payload.count(b"[") + payload.count(b"{") <= MAX_DEPTH:
        return False
    if b"\\" in payload:
        payload = _ESCAPED.sub(b"", payload)
    # With escapes gone each quote opens or closes a string, so that every other part is outside of strings.
    outside = b"".join(payload.translate(None, _NOT_BRACKETS).split(b'"')[::2])
    steps = memoryview(outside.translate(_BRACKETS)).cast("b")
    return max(accumulate(steps), default=0) > MAX_DEPTH
