"""How rows look between SQL and Python: JSON arrays decoded into structs, in one step for many rows."""

from __future__ import annotations

import msgspec


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
