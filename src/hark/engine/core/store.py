"""Rows of messages, and statements over many rows.

apsw releases the interpreter lock at every step of a statement, and it takes longer to get the lock back from a busy
event loop than to do the step (measured: 15 us per row instead of 4). So statements over many rows take one step: rows
are inserted 64 at a time, and read as one JSON text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, cast

import apsw
import msgspec

from hark.model import NULL_PAYLOAD

MESSAGE_COLUMNS = 8

Value = None | int | float | str | bytes


def run(connection: apsw.Connection, sql: str, *parameters: Value) -> None:
    """Execute a statement without a result."""
    connection.execute(sql, parameters)


def scalar(connection: apsw.Connection, sql: str, *parameters: Value) -> Any:
    """The first value of the first row, or None."""
    return connection.execute(sql, parameters).get


def for_each(connection: apsw.Connection, sql: str, rows: Sequence[Any]) -> None:
    """Run a statement over `json_each(?1)` of small rows, in one step."""
    if rows:
        connection.execute(sql, (msgspec.json.encode(rows).decode(),))


def delete_traces(connection: apsw.Connection, addresses: Sequence[tuple[int, int]]) -> None:
    """Delete the trace events of messages, given as (partition, offset)."""
    found = "from traces where (partition, offset) in (select value ->> 0, value ->> 1 from json_each(?1))"
    for_each(connection, f"delete from trace_names where trace in (select id {found})", addresses)
    for_each(connection, f"delete {found}", addresses)


DELETE_ROWS = """
delete from {table} where (grp, partition, {key}) in
    (select value ->> 0, value ->> 1, value ->> 2 from json_each(?1))
"""
"""For `for_each`: delete rows of a table of positions by their keys."""


def rows_of(connection: apsw.Connection, sql: str, *parameters: Value, **named: Value) -> list[Any]:
    """All rows of a small result."""
    return list(connection.execute(sql, named or parameters))


def records_of(connection: apsw.Connection, sql: str, *parameters: Value, **named: Value) -> Iterator[dict[str, Any]]:
    """Rows by the names of their columns, each read when it is needed."""
    cursor = connection.execute(sql, named or parameters)
    for row in cursor:
        yield dict(zip((name for name, _ in cursor.get_description()), row, strict=True))


class PayloadLocation(NamedTuple):
    """The place of a payload outside the tables: a range of bytes in a record of the log of the S3 engine."""

    seq: int
    """The number of the record."""
    offset: int
    """Its first byte in the object of the record."""
    length: int

    @property
    def end(self) -> int:
        """The offset behind the last byte."""
        return self.offset + self.length


class Extra(msgspec.Struct, omit_defaults=True, gc=False, frozen=True):
    """Rare attributes of messages. The names have one letter, because they are stored with each such message."""

    t: str | None = None
    """Trace id."""
    u: str | None = None
    """Producer (the subject of its token)."""
    s: bool = False
    """The payload is sealed."""
    b: tuple[int, ...] | None = None
    """Retry schedule of the message, in milliseconds."""
    x: int = 0
    """Expiry of the message."""
    k: tuple[str, ...] = ()
    """Keys that receive the payload of an undeliverable message, encoded, in hex."""
    c: str | None = None
    """Trace context."""
    a: int = 0
    """The delivery time by the system clock, if the producer gave one."""
    r: PayloadLocation | None = None
    """The place of the payload, if it is not in the column, which is `null` then."""


NO_EXTRA = Extra()


class MessageRow(msgspec.Struct, array_like=True, gc=False):
    """A message as a claim reads it; `fetch` is the index of its range."""

    fetch: int
    offset: int
    created_at: int
    priority: int
    deliver_at: int | None
    owner: int | None
    """The only group that receives it, because it is a requeued dead letter."""
    transaction_id: str | None
    extra: Extra | None
    payload: msgspec.Raw


decode_messages = msgspec.json.Decoder(list[MessageRow]).decode
decode_extra = msgspec.json.Decoder(Extra).decode
encode_extra = msgspec.json.Encoder().encode


def extra_of(text: str | None) -> Extra:
    """The decoded column `extra`."""
    return NO_EXTRA if text is None else decode_extra(text)


def payload_of(payload: msgspec.Raw, extra: Extra | None) -> msgspec.Raw:
    """The payload of a row, or a `PayloadLocation`.

    The type omits the location on purpose: only the engine that stores payloads elsewhere gets one, and it replaces it
    before it answers.
    """
    if extra is None or extra.r is None:
        return payload
    return cast("msgspec.Raw", extra.r)


def size_of(payload: msgspec.Raw, extra: Extra | None) -> int:
    """The length of the payload of a row."""
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
    cross join messages as message indexed by messages_offset
    where message.partition = wanted.value ->> 0
      and message.offset between wanted.value ->> 1 and wanted.value ->> 2
)
"""
"""Messages of many ranges (partition, first, last) as one JSON text, in offset order within a range."""

Locate = Callable[[bytes], PayloadLocation | None]
"""Stores a payload elsewhere; None: it stays in its row."""

_EXTRA, _PAYLOAD = 6, 7


def set_locations(flat: list[Value], locate: Locate) -> None:
    """Store the payloads of rows elsewhere, before the rows are inserted.

    Rows with `keysIfUndelivered` keep theirs, because SQL alone may store it as a value. The loop runs for every
    message.
    """
    for start in range(0, len(flat), MESSAGE_COLUMNS):
        text, payload = flat[start + _EXTRA], flat[start + _PAYLOAD]
        assert isinstance(payload, bytes)
        if text is None:
            location = locate(payload)
            if location is None:
                continue
            record, offset, length = location
            flat[start + _EXTRA] = f'{{"r":[{record},{offset},{length}]}}'
        else:
            extra = decode_extra(str(text))
            if extra.k or extra.r is not None:
                continue
            location = locate(payload)
            if location is None:
                continue
            flat[start + _EXTRA] = encode_extra(msgspec.structs.replace(extra, r=location)).decode()
        flat[start + _PAYLOAD] = NULL_PAYLOAD
