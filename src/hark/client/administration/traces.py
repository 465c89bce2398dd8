"""Trace events that consumers record about messages."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from hark.client.administration.message_results import NamedTracePage, Trace, TraceList, TraceNamePage
from hark.client.calling import Caller, path
from hark.client.parameters import Placed, Wrapped, placed
from hark.client.values import json_value


class Traces:
    """Trace events about messages, `client.traces`. Give the message, or its partition id and transaction id."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller

    async def add(
        self,
        message: Placed | Wrapped | None = None,
        data: object = None,
        *,
        event: str = "info",
        names: str | Sequence[str] = (),
        group: str | None = None,
        partition_id: str | None = None,
        transaction_id: str | None = None,
    ) -> str:
        """Record a trace event about a message. Returns the id of the event.

        `data` is any JSON value, `event` the type of the event. `by_name` finds the event by each of the `names`.
        `group` is the consumer group; the default is the group of the delivery.
        """
        partition, transaction = placed(message, partition_id, transaction_id)
        delivered = getattr(message, "delivered", message)
        body = {
            "partitionId": partition,
            "transactionId": transaction,
            "data": json_value(data, "data"),
            "consumerGroup": group or getattr(delivered, "consumer_group", None),
            "eventType": event,
            "traceNames": [names] if isinstance(names, str) else list(names),
        }
        return (await self._caller.read(_Recorded, "POST", path("traces"), body=body)).trace_id

    async def of(
        self,
        message: Placed | Wrapped | None = None,
        *,
        partition_id: str | None = None,
        transaction_id: str | None = None,
        limit: int = 1000,
        offset: int = 0,
    ) -> tuple[Trace, ...]:
        """The trace events of a message, oldest first."""
        partition, transaction = placed(message, partition_id, transaction_id)
        query = {"limit": limit, "offset": offset}
        return (await self._caller.read(TraceList, "GET", path("traces", partition, transaction), query=query)).traces

    async def by_name(self, name: str, *, limit: int = 100, offset: int = 0) -> NamedTracePage:
        """The trace events with a name, over all messages, newest first."""
        query = {"limit": limit, "offset": offset}
        return await self._caller.read(NamedTracePage, "GET", path("traces", "by-name", name), query=query)

    async def names(self, *, limit: int = 50, offset: int = 0) -> TraceNamePage:
        """The names of recorded trace events."""
        query = {"limit": limit, "offset": offset}
        return await self._caller.read(TraceNamePage, "GET", path("traces", "names"), query=query)


class _Recorded(msgspec.Struct, rename="camel"):
    trace_id: str
