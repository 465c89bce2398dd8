"""Sends messages in your own PostgreSQL transaction: they arrive when it commits, and never if it rolls back.

```python
from hark import postgres

async with connection.transaction():
    await connection.execute("insert into orders ...")
    await postgres.send(connection, "orders", {"id": 17})
```

The connection is one of asyncpg, psycopg or SQLAlchemy, to the database of Hark. No server is called.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Sequence
from typing import Any, Protocol, Unpack

from hark.client import arguments
from hark.client.arguments import NewMessage, new_message
from hark.client.tracing import stamped
from hark.errors import InvalidInput
from hark.model.messages import DEFAULT_PARTITION

__all__ = [
    "AsyncConnection",
    "Connection",
    "Cursors",
    "SendOptions",
    "send",
    "send_message",
    "send_message_sync",
    "send_sync",
]

_PARAMETERS = {
    "queue": "text",
    "payload": "jsonb",
    "partition": "text",
    "transaction_id": "text",
    "delay": "interval",
    "deliver_at": "timestamptz",
    "priority": "integer",
    "ttl": "interval",
    "backoff_schedule": "bigint[]",
    "trace_id": "uuid",
    "traceparent": "text",
    "tracestate": "text",
}
"""Those of `hark.send`. All are given as text, which every driver passes on unchanged."""


class AsyncConnection(Protocol):
    """A connection of asyncpg, an `AsyncConnection` of psycopg or SQLAlchemy, or an `AsyncSession`."""

    def execute(self, *args: Any, **kwargs: Any) -> Awaitable[Any]:
        """Run a statement."""


class Connection(Protocol):
    """A `Connection` or `Session` of SQLAlchemy."""

    def execute(self, *args: Any, **kwargs: Any) -> Any:
        """Run a statement."""


class Cursors(Protocol):
    """A connection of psycopg, psycopg2 or Django."""

    def cursor(self, *args: Any, **kwargs: Any) -> Any:
        """Open a cursor."""


class SendOptions(arguments.SendOptions, total=False):
    """Options of a message, as for `queue.push`. A `delay` counts from now, a `ttl` from the arrival."""

    partition: str | None
    """The partition of the queue. The default is `Default`."""


async def send(connection: AsyncConnection, queue: str, data: object, **options: Unpack[SendOptions]) -> str:
    """Send a message in the transaction of this connection. Returns its idempotency key.

    `data` is any value that msgspec can encode as JSON. Raises the error of the driver if PostgreSQL refuses it.
    """
    return await send_message(connection, new_message(queue, data, **options))


def send_sync(connection: Connection | Cursors, queue: str, data: object, **options: Unpack[SendOptions]) -> str:
    """Send a message in the transaction of a connection that is not async. Returns its idempotency key."""
    return send_message_sync(connection, new_message(queue, data, **options))


async def send_message(connection: AsyncConnection, message: NewMessage) -> str:
    """Send a message that is checked already."""
    values = _values(message)
    if hasattr(connection, "acquire"):
        raise InvalidInput("connection: expected the one that has your transaction, got a pool; acquire one")
    if hasattr(connection, "fetchval"):  # asyncpg
        marks = [f"${number}" for number in range(1, len(values) + 1)]
        answer = connection.execute(_statement(marks), *values.values())
    elif hasattr(connection, "cursor"):  # psycopg
        answer = connection.execute(_statement(["%s"] * len(values)), list(values.values()))
    else:
        answer = connection.execute(*_for_sqlalchemy(values))
    if not inspect.isawaitable(answer):
        raise InvalidInput("connection: expected one that is async; use send_sync, and roll this transaction back")
    await answer
    return message.transaction_id


def send_message_sync(connection: Connection | Cursors, message: NewMessage) -> str:
    """Send a message that is checked already, on a connection that is not async."""
    values = _values(message)
    cursor = getattr(connection, "cursor", None)
    if hasattr(connection, "fetchval") or inspect.iscoroutinefunction(getattr(connection, "execute", None)):
        raise InvalidInput("connection: expected one that is not async; use: await send(...)")
    if cursor is not None:
        with cursor() as opened:
            opened.execute(_statement(["%s"] * len(values)), list(values.values()))
    else:
        assert hasattr(connection, "execute")
        connection.execute(*_for_sqlalchemy(values))
    return message.transaction_id


def _for_sqlalchemy(values: dict[str, str | None]) -> tuple[Any, dict[str, str | None]]:
    from sqlalchemy import text

    return text(_statement([f":{name}" for name in values])), values


def _statement(marks: Sequence[str]) -> str:
    """The call of `hark.send`, with the marks that the driver has for parameters."""
    arguments = [
        f"{name} => cast(cast({mark} as text) as {kind})"
        for mark, (name, kind) in zip(marks, _PARAMETERS.items(), strict=True)
    ]
    return f"select hark.send({', '.join(arguments)})"


def _values(message: NewMessage) -> dict[str, str | None]:
    """The arguments of `hark.send`, in the order of `_PARAMETERS`."""
    if message.unique_key is not None:
        raise InvalidInput("unique_key: a message in your own transaction cannot have one; give it a key")
    message = stamped(message)
    if message.keys_if_undelivered:
        raise InvalidInput("keys_if_undelivered: not supported in a transaction of your own; push the message instead")
    backoff = message.backoff_schedule
    values = (
        message.queue,
        bytes(message.payload).decode(),
        message.partition or DEFAULT_PARTITION,
        message.transaction_id,
        _interval(message.delay),
        message.deliver_at,
        str(message.priority or 0),
        _interval(message.ttl),
        None if backoff is None else "{" + ",".join(map(str, backoff)) + "}",
        message.trace_id,
        message.traceparent,
        message.tracestate,
    )
    return dict(zip(_PARAMETERS, values, strict=True))


def _interval(milliseconds: int | None) -> str | None:
    return None if milliseconds is None else f"{milliseconds} milliseconds"
