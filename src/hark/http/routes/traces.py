"""Trace events that consumers record about messages."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from hark.api import operations
from hark.api.types.base import Pagination
from hark.api.types.messages import (
    NamedTrace,
    NamedTraces,
    RecordedTrace,
    TraceEvent,
    TraceName,
    TraceNames,
    TracesOfMessage,
)
from hark.errors import InvalidInput
from hark.http.admission import identity_of, reached
from hark.http.checks import check_name, check_text, decode_unbounded, raw_default, time_of
from hark.http.routes.requests import (
    NO_MESSAGE,
    broker_of,
    check_page,
    name_in_path,
    query_of,
    read_json,
    reply,
    text_in_path,
)
from hark.http.routes.table import LARGE_BODY, Table, bind, paging, table
from hark.model import QUEUE_MODE, NewTrace, Trace

MAX_NAMES = 100
_OF_MESSAGE = paging(1000)
_BY_NAME = paging(100)
_NAMES = paging(50)
_NO_DATA = msgspec.Raw(b"null")


class TraceBody(msgspec.Struct, rename="camel"):
    """A trace event to record. Null means absent."""

    transaction_id: str | None = None
    partition_id: str | None = None
    data: msgspec.Raw = raw_default(_NO_DATA)
    consumer_group: str | None = None
    event_type: str | None = None
    trace_names: str | list[str] | None = None


class _Data(msgspec.Struct):
    """The part of an event that is not decoded."""

    data: msgspec.Raw = raw_default(_NO_DATA)


def _payload(body: bytes) -> Iterator[msgspec.Raw]:
    yield decode_unbounded(body, _Data, "trace").data


async def record(request: Request) -> Response:
    """Record a trace event. Stores an event about a message, with optional names to find it by."""
    body = await read_json(request, TraceBody, "trace", payloads=_payload)
    if not body.transaction_id or not body.partition_id:
        raise InvalidInput("transactionId and partitionId are required")
    data = bytes(body.data)
    if data == b"null":
        raise InvalidInput("data is required")
    partition_id = check_text(body.partition_id, "partitionId")
    trace = NewTrace(
        partition_id=await reached(identity_of(request), broker_of(request), partition_id),
        transaction_id=check_text(body.transaction_id, "transactionId"),
        data=data,
        group=check_name(body.consumer_group or QUEUE_MODE, "consumerGroup"),
        event=check_name(body.event_type or "info", "eventType"),
        names=_names(body.trace_names),
    )
    trace_id = await broker_of(request).trace(trace)
    return reply(RecordedTrace(success=True, trace_id=trace_id), 201)


async def list_of_message(request: Request) -> Response:
    """List the trace events of a message. Returns a page of events, the oldest first."""
    limit, offset = _OF_MESSAGE.of(query_of(request))
    broker = broker_of(request)
    traces, _ = await broker.traces(
        await reached(identity_of(request), broker, text_in_path(request, "partition_id")),
        text_in_path(request, "transaction_id"),
        limit=limit,
        offset=offset,
    )
    check_page(trace.data for trace in traces)
    return reply(TracesOfMessage(traces=tuple(_event(trace) for trace in traces)))


async def list_by_name(request: Request) -> Response:
    """List the trace events of a name. Returns a page of events of all messages, the newest first."""
    limit, offset = _BY_NAME.of(query_of(request))
    traces, total = await broker_of(request).traces(name=name_in_path(request, "name"), limit=limit, offset=offset)
    check_page(value for trace in traces for value in (trace.data, trace.payload))
    return reply(
        NamedTraces(
            items=tuple(_named(trace) for trace in traces),
            total=total,
            pagination=Pagination(limit=limit, offset=offset),
        )
    )


async def list_names(request: Request) -> Response:
    """List trace names. Returns the names of recorded trace events, with counts."""
    limit, offset = _NAMES.of(query_of(request))
    names, total = await broker_of(request).engine.trace_names(limit, offset)
    return reply(
        TraceNames(
            items=tuple(
                TraceName(
                    trace_name=item.name,
                    trace_count=item.traces,
                    message_count=item.messages,
                    last_seen=time_of(item.last_seen),
                )
                for item in names
            ),
            total=total,
            pagination=Pagination(limit=limit, offset=offset),
        )
    )


def _names(given: str | list[str] | None) -> tuple[str, ...]:
    names = [given] if isinstance(given, str) else given or []
    if len(names) > MAX_NAMES:
        raise InvalidInput(f"traceNames: at most {MAX_NAMES} names, got {len(names)}")
    checked = (check_name(name, f"traceNames[{index}]") for index, name in enumerate(names))
    return tuple(dict.fromkeys(checked))


def _named(trace: Trace) -> NamedTrace:
    return NamedTrace(
        **_event_fields(trace),
        transaction_id=trace.transaction_id,
        partition_id=trace.partition_id,
        queue_name=trace.queue,
        partition_name=trace.partition,
        message_payload=_NO_DATA if trace.payload is None else trace.payload,
        payload_error=trace.unreadable,
    )


def _event(trace: Trace) -> TraceEvent:
    return TraceEvent(**_event_fields(trace))


def _event_fields(trace: Trace) -> dict[str, Any]:
    return {
        "id": trace.id,
        "event_type": trace.event,
        "payload": trace.data,
        "consumer_group": trace.group,
        "worker_id": None,
        "created_at": time_of(trace.created_at),
        "trace_names": trace.names,
    }


TABLE: Table = table(
    bind(
        operations.RECORD,
        record,
        body=TraceBody,
        body_bytes=LARGE_BODY,
        answer={201: RecordedTrace},
        errors=(NO_MESSAGE,),
    ),
    bind(operations.LIST_NAMES, list_names, query=_NAMES),
    bind(operations.LIST_BY_NAME, list_by_name, query=_BY_NAME),
    bind(operations.LIST_OF_MESSAGE, list_of_message, query=_OF_MESSAGE),
)
