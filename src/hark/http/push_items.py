"""Pushed items: the form of the HTTP API and its checks (rule 6)."""

from __future__ import annotations

import re
from itertools import accumulate
from typing import Annotated

import msgspec

from hark.errors import InvalidInput
from hark.http.checks import (
    MAX_NAME_BYTES,
    check_int,
    check_name,
    check_text,
    decode_json,
    parse_moment,
    raw_default,
    short,
)
from hark.keys import InvalidKey, check_keys
from hark.model import DEFAULT_PARTITION, NULL_PAYLOAD, Key, NewMessage
from hark.model.trace_context import MAX_STATE, is_traceparent, is_tracestate, trace_context

MAX_PRIORITY = 9
MAX_DEPTH = 256
MAX_BACKOFF_STEPS = 100
YEAR_MS = 365 * 86_400_000
MAX_DELAY_MS = 10 * YEAR_MS
MAX_TTL_MS = 100 * YEAR_MS

NO_PAYLOAD = msgspec.Raw(NULL_PAYLOAD)
"""The payload of an item without one; compared by identity to distinguish it from an explicit null."""
_NO_KEYS = msgspec.Raw(b"null")
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.ASCII | re.IGNORECASE)

ITEM_TEXTS = {
    "items": "items array is required",
    "queue": "Queue must be a string",
    "partition": "Partition must be a string",
    "transactionId": "TransactionId must be a string",
    "traceId": "TraceId must be a string",
}
"""Error texts that clients rely on, for `decode_json`."""


class PushItem(msgspec.Struct, gc=False, rename="camel"):
    """A message to push."""

    queue: str
    partition: str = DEFAULT_PARTITION
    payload: msgspec.Raw = raw_default(NO_PAYLOAD)
    transaction_id: str = ""
    trace_id: str = ""
    priority: int | None = None
    delay: int | None = None
    deliver_at: str | int | None = None
    backoff_schedule: list[int] | None = None
    ttl: int | None = None
    keys_if_undelivered: msgspec.Raw = raw_default(_NO_KEYS)
    traceparent: str | None = None
    tracestate: str | None = None


class PushBody(msgspec.Struct, gc=False):
    """The messages to push."""

    items: list[PushItem]


_ShortName = Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_NAME_BYTES // 4)]
"""A character has at most four bytes, so a name this short is within the limit."""


class PlainItem(msgspec.Struct, gc=False, rename="camel", forbid_unknown_fields=True):
    """A message without options, the common case. Decoding performs all checks."""

    queue: _ShortName
    partition: _ShortName = DEFAULT_PARTITION
    payload: msgspec.Raw = NO_PAYLOAD
    transaction_id: Annotated[str, msgspec.Meta(max_length=MAX_NAME_BYTES // 4)] = ""


class PlainBody(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    """A push of messages without options."""

    items: list[PlainItem]


_decode_plain = msgspec.json.Decoder(PlainBody).decode


def plain_messages(body: bytes) -> list[NewMessage] | None:
    """Return the messages of a body if all are valid and have no options; None: check the items one by one."""
    # Names must not contain NUL. (The search for a single byte is cheap.)
    if not body.isascii() or (b"\\" in body and b"\\u0000" in body):
        return None
    try:
        items = _decode_plain(body).items
    except (msgspec.MsgspecError, RecursionError):
        return None
    messages = [
        NewMessage(item.queue, item.partition, bytes(item.payload), item.transaction_id or None) for item in items
    ]
    for message in messages:
        # A shorter payload cannot have that many pairs of brackets.
        if len(message.payload) > 2 * MAX_DEPTH and payload_too_deep(message.payload):
            return None
    return messages


def to_new_message(item: PushItem, index: int, where: str = "items") -> NewMessage:
    """Return the checked message. Errors name a field as `where[index].field`."""
    where = f"{where}[{index}]"
    payload = bytes(item.payload)
    message = NewMessage(
        check_name(item.queue, f"{where}.queue"),
        check_name(item.partition, f"{where}.partition"),
        payload,
        check_text(item.transaction_id, f"{where}.transactionId") or None,
    )
    if payload_too_deep(payload):
        raise InvalidInput(f"{where}.payload: must be nested at most {MAX_DEPTH} levels deep")
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
    if item.keys_if_undelivered is not _NO_KEYS:
        message.undelivered_keys = undelivered_keys(item.keys_if_undelivered, f"{where}.keysIfUndelivered")
    if item.traceparent or item.tracestate:
        message.trace_context = check_context(item.traceparent or "", item.tracestate or "", where)
    return message


def check_context(traceparent: str, tracestate: str, where: str) -> str:
    """Return the checked trace context of a message."""
    if not is_traceparent(traceparent):
        raise InvalidInput(
            f"{where}.traceparent: expected version-traceid-spanid-flags in lower-case hexadecimal digits (W3C Trace "
            f"Context), got {short(traceparent)}"
        )
    if tracestate and not is_tracestate(tracestate):
        raise InvalidInput(f"{where}.tracestate: expected at most {MAX_STATE} printable ASCII characters")
    return trace_context(traceparent, tracestate)


def _check_backoff(schedule: list[int], field: str) -> tuple[int, ...]:
    if len(schedule) > MAX_BACKOFF_STEPS:
        raise InvalidInput(f"{field}: at most {MAX_BACKOFF_STEPS} entries, got {len(schedule)}")
    return tuple(check_int(delay, f"{field}[{step}]", 0, MAX_DELAY_MS) for step, delay in enumerate(schedule))


def undelivered_keys(given: msgspec.Raw, field: str) -> tuple[Key, ...]:
    """Return the checked keys that receive the payload of an undeliverable message; null means none."""
    value = bytes(given)
    if value == b"null":
        return ()
    try:
        return check_keys(decode_json(value, object, field))
    except InvalidKey as error:
        raise InvalidInput(f"{field}: {error}") from None


# Maps brackets to +1 and -1 (as signed bytes); all other characters except quotes are removed.
_BRACKETS = bytes.maketrans(b"[{]}", b"\x01\x01\xff\xff")
_NOT_BRACKETS = bytes(byte for byte in range(256) if byte not in b'[{]}"')
_ESCAPED = re.compile(rb"\\.", re.DOTALL)


def payload_too_deep(payload: bytes) -> bool:
    """Return whether valid JSON is nested deeper than 256 levels."""
    if payload.count(b"[") + payload.count(b"{") <= MAX_DEPTH:
        return False
    if b"\\" in payload:
        payload = _ESCAPED.sub(b"", payload)
    # Without escapes each quote opens or closes a string, so every other part is outside of strings.
    outside = b"".join(payload.translate(None, _NOT_BRACKETS).split(b'"')[::2])
    steps = memoryview(outside.translate(_BRACKETS)).cast("b")
    return max(accumulate(steps), default=0) > MAX_DEPTH
