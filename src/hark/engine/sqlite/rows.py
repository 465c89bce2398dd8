"""How rows look between SQL and Python: JSON arrays decoded into structs, in one step for many rows."""

from __future__ import annotations

from typing import NamedTuple, cast

import msgspec


class Elsewhere(NamedTuple):
    """Where a payload is that is not in the tables: in a record of the log of the S3 engine."""

    record: int
    offset: int
    """Its first byte, from the beginning of the record's object."""
    length: int


class Extra(msgspec.Struct, omit_defaults=True, gc=False, frozen=True):
    """What few messages have. One-letter names: they are stored with every such message."""

    t: str | None = None
    """Trace id."""
    u: str | None = None
    """Producer (the subject of its token)."""
    s: bool = False
    """The payload is sealed."""
    b: tuple[int, ...] | None = None
    """Own retry schedule in milliseconds."""
    x: int = 0
    """Expires at."""
    k: tuple[str, ...] = ()
    """Keys that get the payload if it can't be delivered, encoded, in hex."""
    c: str | None = None
    """Trace context."""
    r: Elsewhere | None = None
    """Where the payload is, if not here: record, place in it, length. The column says `null` then."""


NO_EXTRA = Extra()


class MessageRow(msgspec.Struct, array_like=True, gc=False):
    """A message as a claim reads it; `fetch` is the number of the range that asked for it."""

    fetch: int
    offset: int
    created_at: int
    priority: int
    deliver_at: int | None
    owner: int | None
    """The only group that it is for: it is a requeued dead letter."""
    transaction_id: str | None
    extra: Extra | None
    payload: msgspec.Raw


decode_messages = msgspec.json.Decoder(list[MessageRow]).decode
decode_extra = msgspec.json.Decoder(Extra).decode
encode_extra = msgspec.json.Encoder().encode


def extra_of(text: str | None) -> Extra:
    """What the column `extra` says."""
    return NO_EXTRA if text is None else decode_extra(text)


def payload_of(payload: msgspec.Raw, extra: Extra | None) -> msgspec.Raw:
    """The payload of a row: what the column has, or an `Elsewhere`.

    The type does not say so on purpose. Only an engine that places payloads elsewhere ever gets one, and it puts the
    payload there before it answers: for everybody beyond it a payload is what it always was.
    """
    if extra is None or extra.r is None:
        return payload
    return cast("msgspec.Raw", extra.r)


def size_of(payload: msgspec.Raw, extra: Extra | None) -> int:
    """The length of a row's payload, wherever it is."""
    if extra is None or extra.r is None:
        return len(memoryview(payload))
    return extra.r.length


SELECT_MESSAGES = """
select cast('[' || group_concat(
    '[' || fetch || ',' || offset || ',' || created_at || ',' || priority || ',' || ifnull(deliver_at, 'null')
    || ',' || ifnull(owner, 'null') || ',' || ifnull(json_quote(transaction_id), 'null')
    || ',' || ifnull(extra, 'null') || ',' || payload || ']') || ']' as blob)
from (
    select wanted.key as fetch, message.*
    from json_each(?1) as wanted
    cross join messages as message indexed by messages_place
    where message.partition = wanted.value ->> 0
      and message.offset between wanted.value ->> 1 and wanted.value ->> 2
)
"""
"""Messages of many (partition, first, last) ranges as one JSON text; rows of a range come in offset order."""
