"""Transactions: pushes, acknowledgements and writes of keys that are applied together or not at all."""

from __future__ import annotations

import uuid
from collections.abc import Sequence

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from hark.errors import InvalidInput, Refused
from hark.http.acks import AckBody, settlement_of
from hark.http.answers.messages import OperationResult, TransactionAnswer, WrittenKeys
from hark.http.checks import check_name, decode_json, raw_default
from hark.http.edge import reaching
from hark.http.edge.identities import identity_of
from hark.http.edge.trace_contexts import carry
from hark.http.exchange import exchange_of
from hark.http.keyval import atomic
from hark.http.keyval.entries import versionstamp
from hark.http.push_items import ITEM_TEXTS, NO_PAYLOAD, PushItem, to_new_message
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
from hark.http.routes.table import Reach, Table, write
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

    kv: atomic.AtomicBody | list[msgspec.Raw] | None


async def transact(request: Request) -> Response:
    """Apply a transaction.

    Applies pushes, acknowledgements and writes of keys together or not at all. A refused transaction returns 200 with
    `success` false, and nothing is applied.
    """
    body = await read_json(request, TransactionBody, "transaction", _TEXTS)
    if body.timers:
        raise Refused(
            "timers: this server does not support timers, and nothing was applied; push with delay or deliverAt instead"
        )
    most = settings_of(request).limits.max_batch
    keys = _keys(body.kv, most)
    operations = _flatten(body.operations, most)
    if not operations and keys is None:
        raise InvalidInput("operations array cannot be empty")
    leases = tuple(lease for lease in body.required_leases or () if lease)
    transaction = Transaction(operations, leases, keys)
    carry(exchange_of(request), (*operations, *(keys.messages if keys is not None else ())))
    outcome = await reaching.transact(identity_of(request), broker_of(request), transaction)
    answer: TransactionAnswer = {
        "transactionId": str(uuid.uuid4()),
        "success": outcome.success,
        "results": _results(operations, outcome),
    }
    if not outcome.success:
        answer["error"], answer["code"] = outcome.error, outcome.code
    if keys is not None:
        answer["kv"] = _written(outcome.keys)
    return reply(answer)


def _keys(given: msgspec.Raw, most: int) -> KeyWrite | None:
    """Return the checks and mutations of the key-value store."""
    body = decode_json(b'{"kv":%b}' % bytes(given), KeysBody, "kv").kv
    if not body:
        return None
    if isinstance(body, list):
        raise Refused("kv: this server does not support a list of operations; send an object with checks and mutations")
    return atomic.parse_key_write(body, most, where="kv.")


def _written(keys: KeyWritten | None) -> WrittenKeys:
    if keys is None or keys.version is None:
        return {"ok": False}
    return {"ok": True, "versionstamp": versionstamp(keys.version)}


def _flatten(operations: Sequence[PushOperation | AckOperation], most: int) -> list[NewMessage | Settlement]:
    """Return one entry for each pushed message and each acknowledgement."""
    flat: list[NewMessage | Settlement] = []
    for index, operation in enumerate(operations):
        if isinstance(operation, AckOperation):
            group = check_name(operation.consumer_group or QUEUE_MODE, f"operations[{index}].consumerGroup")
            flat.append(settlement_of(operation, group, f"operations[{index}]."))
        elif operation.items is None:
            flat.append(_message(operation, index, "operations"))
        else:
            where = f"operations[{index}].items"
            flat.extend(_message(item, place, where) for place, item in enumerate(operation.items))
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


def _results(operations: Sequence[NewMessage | Settlement], transaction: TransactionOutcome) -> list[OperationResult]:
    # The last result of a failed transaction is that of the failed operation.
    failed, count = transaction.failed_index, len(transaction.results)
    start = 0 if failed is None else max(0, failed + 1 - count)
    results: list[OperationResult] = []
    for index, outcome in enumerate(transaction.results, start):
        operation = operations[index]
        if isinstance(outcome, PushOutcome):
            success = outcome.status != "failed"
            result: OperationResult = {
                "index": index,
                "type": "push",
                "success": success,
                "status": outcome.status,
                "transactionId": outcome.transaction_id,
                "messageId": outcome.message_id,
                "partitionId": outcome.partition_id,
                "queueName": operation.queue if isinstance(operation, NewMessage) else None,
            }
            if not success:
                result["error"] = outcome.error
        else:
            success = outcome.success
            result = {
                "index": index,
                "type": "ack",
                "success": success,
                "transactionId": outcome.transaction_id,
                "error": outcome.error,
                "dlq": outcome.dead_lettered,
            }
        if not success:
            result["code"] = outcome.code
        results.append(result)
    return results


TABLE: Table = {
    "/api/v1/transaction": {
        "POST": write(
            transact,
            Reach.ITEMS,
            body=TransactionBody,
            answer=TransactionAnswer,
            errors=(TOO_MANY, NOT_SUPPORTED, MAINTENANCE, QUEUE_FULL),
        )
    }
}
