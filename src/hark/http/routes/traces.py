"""Trace events that consumers record about messages."""

from __future__ import annotations

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from hark.broker.broker import first
from hark.errors import InvalidInput
from hark.http.answers.messages import (
    NamedTrace,
    NamedTraces,
    RecordedTrace,
    TraceEvent,
    TraceNames,
    TracesOfMessage,
)
from hark.http.checks import check_name, check_text, format_time_ms, raw_default
from hark.http.edge.identities import identity_of
from hark.http.edge.reaching import reached
from hark.http.params import paging
from hark.http.push_items import MAX_DEPTH, payload_too_deep
from hark.http.routes.requests import (
    NO_MESSAGE,
    broker_of,
    name_in_path,
    query_of,
    read_json,
    reply,
    text_in_path,
)
from hark.http.routes.table import Reach, Table, read, write
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


async def record(request: Request) -> Response:
    """Record a trace event. Stores an event about a message, with optional names to find it by."""
    body = await read_json(request, TraceBody, "trace")
    if not body.transaction_id or not body.partition_id:
        raise InvalidInput("transactionId and partitionId are required")
    data = bytes(body.data)
    if data == b"null":
        raise InvalidInput("data is required")
    if payload_too_deep(data):
        raise InvalidInput(f"data: must be nested at most {MAX_DEPTH} levels deep")
    partition_id = check_text(body.partition_id, "partitionId")
    trace = NewTrace(
        partition_id=await reached(identity_of(request), broker_of(request), partition_id),
        transaction_id=check_text(body.transaction_id, "transactionId"),
        data=data,
        group=check_name(body.consumer_group or QUEUE_MODE, "consumerGroup"),
        event=check_name(body.event_type or "info", "eventType"),
        names=_names(body.trace_names),
    )
    trace_id = first(await broker_of(request).engine.trace([trace]))
    answer: RecordedTrace = {"success": True, "traceId": trace_id}
    return reply(answer, 201)


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
    answer: TracesOfMessage = {"traces": [_event(trace) for trace in traces]}
    return reply(answer)


async def list_by_name(request: Request) -> Response:
    """List the trace events of a name. Returns a page of events of all messages, the newest first."""
    limit, offset = _BY_NAME.of(query_of(request))
    traces, total = await broker_of(request).traces(name=name_in_path(request, "name"), limit=limit, offset=offset)
    answer: NamedTraces = {
        "traces": [_named(trace) for trace in traces],
        "total": total,
        "pagination": {"limit": limit, "offset": offset},
    }
    return reply(answer)


async def list_names(request: Request) -> Response:
    """List trace names. Returns the names of recorded trace events, with counts."""
    limit, offset = _NAMES.of(query_of(request))
    names, total = await broker_of(request).engine.trace_names(limit, offset)
    answer: TraceNames = {
        "trace_names": [
            {
                "trace_name": item.name,
                "trace_count": item.traces,
                "message_count": item.messages,
                "last_seen": format_time_ms(item.last_seen),
            }
            for item in names
        ],
        "total": total,
        "pagination": {"limit": limit, "offset": offset},
    }
    return reply(answer)


def _names(given: str | list[str] | None) -> tuple[str, ...]:
    names = [given] if isinstance(given, str) else given or []
    if len(names) > MAX_NAMES:
        raise InvalidInput(f"traceNames: at most {MAX_NAMES} names, got {len(names)}")
    checked = (check_name(name, f"traceNames[{index}]") for index, name in enumerate(names))
    return tuple(dict.fromkeys(checked))


def _named(trace: Trace) -> NamedTrace:
    return {
        **_event(trace),
        "transaction_id": trace.transaction_id,
        "partition_id": trace.partition_id,
        "queue_name": trace.queue,
        "partition_name": trace.partition,
        "message_payload": trace.payload,
    }


def _event(trace: Trace) -> TraceEvent:
    return {
        "id": trace.id,
        "event_type": trace.event,
        "data": trace.data,
        "consumer_group": trace.group,
        "worker_id": None,
        "created_at": format_time_ms(trace.created_at),
        "trace_names": trace.names,
    }


TABLE: Table = {
    "/api/v1/traces": {
        "POST": write(record, Reach.ITEMS, body=TraceBody, answer={201: RecordedTrace}, errors=(NO_MESSAGE,))
    },
    "/api/v1/traces/names": {"GET": read(list_names, Reach.SERVER, query=_NAMES, answer=TraceNames)},
    "/api/v1/traces/by-name/{name}": {"GET": read(list_by_name, Reach.SERVER, query=_BY_NAME, answer=NamedTraces)},
    "/api/v1/traces/{partition_id}/{transaction_id}": {
        "GET": read(list_of_message, Reach.ITEMS, query=_OF_MESSAGE, answer=TracesOfMessage)
    },
}
