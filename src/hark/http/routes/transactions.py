"""Transactions: pushes, acknowledgements and writes of keys that are applied together or not at all."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import msgspec
from msgspec import UNSET
from starlette.requests import Request
from starlette.responses import Response

from hark.api import operations
from hark.api.types.delivery import AckBody
from hark.api.types.messages import OperationResult, TransactionAnswer, WrittenKeys
from hark.errors import InvalidInput, Refused
from hark.http import admission
from hark.http.admission import identity_of
from hark.http.checks import MAX_ITEMS, array_of, check_name, decode_unbounded, elements, in_turns, raw_default
from hark.http.exchange import exchange_of
from hark.http.headers import carry
from hark.http.items import ITEM_TEXTS, NO_PAYLOAD, Payload, PushItem, settlement_of, to_new_message
from hark.http.keyval import keys
from hark.http.keyval.paths import versionstamp
from hark.http.responses import decode_in_turns
from hark.http.routes.requests import (
    MAINTENANCE,
    NOT_SUPPORTED,
    QUEUE_FULL,
    TOO_MANY,
    broker_of,
    read_json,
    reply,
    settings_of,
)
from hark.http.routes.table import LARGE_BODY, Table, bind, table
from hark.model import (
    QUEUE_MODE,
    KeyWrite,
    KeyWritten,
    NewMessage,
    PushOutcome,
    Settlement,
    Transaction,
    TransactionOutcome,
)

_EMPTY_OBJECT = msgspec.Raw(b"{}")
_NO_KEYS = msgspec.Raw(b"null")
_NO_ITEMS = msgspec.Raw(b"null")
_TEXTS = {name: text for name, text in ITEM_TEXTS.items() if name not in {"items", "transactionId"}} | {
    "operations": "operations array required",
    "type": "expected push or ack",
}


class PushOperation(PushItem, tag_field="type", tag="push", kw_only=True):
    """A push: either several messages in `items`, or the fields of one message."""

    queue: str = ""
    items: list[PushItem] | None = None


class AckOperation(AckBody, tag_field="type", tag="ack"):
    """An acknowledgement."""


class TransactionBody(msgspec.Struct, rename="camel"):
    """The operations of a transaction, in order, and the leases that they require."""

    operations: list[PushOperation | AckOperation]
    required_leases: list[str] | None = None
    kv: msgspec.Raw = raw_default(_NO_KEYS)
    timers: list[msgspec.Raw] | None = None


class KeysBody(msgspec.Struct):
    """The key-value part of a transaction, decoded separately for better error texts."""

    kv: keys.AtomicBody | list[msgspec.Raw] | None


class _Operation(Payload, gc=False):
    """The parts of an operation that are not decoded, or that are not decoded yet."""

    items: msgspec.Raw = raw_default(_NO_ITEMS)


@cache
def _outline() -> Any:
    return msgspec.defstruct("Outline", [("operations", array_of(_Operation)), ("kv", msgspec.Raw, _NO_KEYS)])


def _payloads(body: bytes) -> Iterator[msgspec.Raw]:
    """Return the payloads of a transaction and the values of its keys, for `decode_in_turns`."""
    outline = decode_unbounded(body, _outline(), "transaction", _TEXTS)
    for operation in elements(outline.operations):
        yield operation.payload
        if operation.items is not _NO_ITEMS:
            yield from _payloads_of(bytes(operation.items))
    yield outline.kv  # It is checked when it is decoded.


def _payloads_of(items: bytes) -> Iterator[msgspec.Raw]:
    few = items.count(b"{") <= MAX_ITEMS
    shape: Any = list[Payload] | None if few else array_of(Payload)
    given = decode_unbounded(items, shape, "items")
    for item in (given or ()) if few else elements(given):
        yield item.payload


async def transact(request: Request) -> Response:
    """Apply a transaction.

    Applies pushes, acknowledgements and writes of keys together or not at all. A refused transaction returns 200 with
    `success` false, and nothing is applied.
    """
    body = await read_json(request, TransactionBody, "transaction", _TEXTS, _payloads)
    if body.timers:
        raise Refused(
            "timers: this server does not support timers, and nothing was applied; push with delay or deliverAt instead"
        )
    most = settings_of(request).limits.max_batch
    keys = await _keys(body.kv, most)
    operations = await _flatten(body.operations, most)
    if not operations and keys is None:
        raise InvalidInput("operations array cannot be empty")
    leases = tuple(lease for lease in body.required_leases or () if lease)
    transaction = Transaction(operations, leases, keys)
    carry(exchange_of(request), (*operations, *(keys.messages if keys is not None else ())))
    outcome = await admission.transact(identity_of(request), broker_of(request), transaction)
    return reply(
        TransactionAnswer(
            transaction_id=str(uuid.uuid4()),
            success=outcome.success,
            results=tuple(_results(operations, outcome)),
            error=None if outcome.success else outcome.error,
            code=None if outcome.success else outcome.code,
            kv=None if keys is None else _written(outcome.keys),
        )
    )


async def _keys(given: msgspec.Raw, most: int) -> KeyWrite | None:
    """Return the checks and mutations of the key-value store."""
    body = (await decode_in_turns(b'{"kv":%b}' % bytes(given), KeysBody, "kv", payloads=_values)).kv
    if not body:
        return None
    if isinstance(body, list):
        raise Refused("kv: this server does not support a list of operations; send an object with checks and mutations")
    return await keys.parse_key_write(body, most, where="kv.")


def _values(body: bytes) -> Iterator[msgspec.Raw]:
    yield from keys.payloads_in(body[len(b'{"kv":') : -1])


def _written(keys: KeyWritten | None) -> WrittenKeys:
    if keys is None or keys.version is None:
        return WrittenKeys(ok=False)
    return WrittenKeys(ok=True, versionstamp=versionstamp(keys.version))


async def _flatten(operations: Sequence[PushOperation | AckOperation], most: int) -> list[NewMessage | Settlement]:
    """Return one entry for each pushed message and each acknowledgement."""
    flat: list[NewMessage | Settlement] = []
    async for index, operation in in_turns(enumerate(operations)):
        if isinstance(operation, AckOperation):
            group = check_name(operation.consumer_group or QUEUE_MODE, f"operations[{index}].consumerGroup")
            flat.append(settlement_of(operation, group, f"operations[{index}]."))
        elif operation.items is None:
            flat.append(_message(operation, index, "operations"))
        else:
            where = f"operations[{index}].items"
            flat.extend([_message(item, number, where) async for number, item in in_turns(enumerate(operation.items))])
        if len(flat) > most:
            raise InvalidInput(
                f"operations: at most {most} in one transaction (setting limits.max_batch); split the transaction",
                code="batch_too_large",
            )
    return flat


def _message(item: PushItem, index: int, where: str) -> NewMessage:
    if item.payload is NO_PAYLOAD:
        item.payload = _EMPTY_OBJECT  # Outside of transactions a missing payload is null.
    return to_new_message(item, index, where)


def _results(
    operations: Sequence[NewMessage | Settlement], transaction: TransactionOutcome
) -> Iterator[OperationResult]:
    # The last result of a failed transaction is that of the failed operation.
    failed, count = transaction.failed_index, len(transaction.results)
    start = 0 if failed is None else max(0, failed + 1 - count)
    for index, outcome in enumerate(transaction.results, start):
        operation = operations[index]
        if isinstance(outcome, PushOutcome):
            success = outcome.status != "failed"
            yield OperationResult(
                index=index,
                type="push",
                success=success,
                transaction_id=outcome.transaction_id,
                error=UNSET if success else outcome.error,
                status=outcome.status,
                message_id=outcome.message_id,
                partition_id=outcome.partition_id,
                queue=operation.queue if isinstance(operation, NewMessage) else None,
                dead_lettered=UNSET,
                code=UNSET if success else outcome.code,
            )
        else:
            yield OperationResult(
                index=index,
                type="ack",
                success=outcome.success,
                transaction_id=outcome.transaction_id,
                status=UNSET,
                message_id=UNSET,
                partition_id=UNSET,
                queue=UNSET,
                error=outcome.error,
                dead_lettered=outcome.dead_lettered,
                code=UNSET if outcome.success else outcome.code,
            )


TABLE: Table = table(
    bind(
        operations.TRANSACT,
        transact,
        body=TransactionBody,
        body_bytes=LARGE_BODY,
        errors=(TOO_MANY, NOT_SUPPORTED, MAINTENANCE, QUEUE_FULL),
    ),
)
