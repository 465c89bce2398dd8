"""Transactions: pushes, acknowledgements and writes of keys that are applied together or not at all."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from hark.api import operations, types
from hark.api.types import OptionalRaw, Single, renamed
from hark.api.types.delivery import PushItem
from hark.api.types.keys import AtomicBody
from hark.api.types.messages import AckOperation, PushOperation, TransactionBody
from hark.errors import InvalidInput, Refused
from hark.http import admission, checks
from hark.http.checks import MAX_ITEMS, array_of, decode_unbounded, elements, in_turns, outline_of
from hark.http.items import ITEM_TEXTS, check_not_unique, settlement_of, to_new_message
from hark.http.keyval import keys
from hark.http.keyval.paths import versionstamp
from hark.http.responses import carry, decode_in_turns
from hark.http.routing import LARGE_BODY, MAINTENANCE, NOT_SUPPORTED, QUEUE_FULL, TOO_MANY, Call, bind, table
from hark.model import QUEUE_MODE, NewMessage, PushOutcome, Settlement, Transaction, TransactionOutcome

_KeysBody = renamed(
    Single[AtomicBody | list[msgspec.Raw] | None],
    "KeyValueBody",
    "The key-value part of a transaction, decoded separately for better error texts.",
    value="kv",
)
_TEXTS = {name: text for name, text in ITEM_TEXTS.items() if name not in {"items", "transactionId"}} | {
    "operations": "operations array required",
    "type": "expected push or ack",
}


class _Item(msgspec.Struct, gc=False):
    """The part of an item that is not decoded."""

    payload: OptionalRaw = UNSET


@cache
def _outline() -> Any:
    operations = array_of(outline_of("payload", "items"))
    return msgspec.defstruct("Outline", [("operations", operations), ("kv", OptionalRaw, UNSET)])


def _payloads(body: bytes) -> Iterator[msgspec.Raw]:
    """Return the payloads of a transaction and the values of its keys, for `decode_in_turns`."""
    outline = decode_unbounded(body, _outline(), "transaction", _TEXTS)
    for operation in elements(outline.operations):
        if operation.payload is not UNSET:
            yield operation.payload
        if operation.items is not UNSET:
            yield from _payloads_of(bytes(operation.items))
    if outline.kv is not UNSET:
        yield outline.kv  # It is checked when it is decoded.


def _payloads_of(items: bytes) -> Iterator[msgspec.Raw]:
    few = items.count(b"{") <= MAX_ITEMS
    shape: Any = list[_Item] | None if few else array_of(_Item)
    given = decode_unbounded(items, shape, "items")
    return (item.payload for item in ((given or ()) if few else elements(given)) if item.payload is not UNSET)


async def transact(call: Call) -> types.messages.TransactionAnswer:
    """Apply a transaction.

    Applies pushes, acknowledgements and writes of keys together or not at all. A refused transaction returns 200 with
    `success` false, and nothing is applied.
    """
    body = await call.json(TransactionBody, "transaction", _TEXTS, _payloads)
    if body.timers:
        raise Refused(
            "timers: this server does not support timers, and nothing was applied; push with delay or deliverAt instead"
        )
    most = call.settings.limits.max_batch
    write = None
    # Decoded separately, for better error texts.
    kv = b"null" if isinstance(body.kv, UnsetType) else bytes(body.kv)
    given = (await decode_in_turns(b'{"kv":%b}' % kv, _KeysBody, "kv", payloads=_values)).value
    if isinstance(given, list) and given:
        raise Refused("kv: this server does not support a list of operations; send an object with checks and mutations")
    if isinstance(given, AtomicBody):
        write = await keys.parse_key_write(given, most, where="kv.")
    operations = await _flatten(body.operations, most)
    if not operations and write is None:
        raise InvalidInput("operations array cannot be empty")
    leases = tuple(lease for lease in body.required_leases or () if lease)
    carry(call.exchange, (*operations, *(write.messages if write is not None else ())))
    outcome = await admission.transact(call.identity, call.broker, Transaction(operations, leases, write))
    written = None
    if write is not None:
        version = None if outcome.keys is None else outcome.keys.version
        written = types.messages.WrittenKeys(version is not None, None if version is None else versionstamp(version))
    return types.messages.TransactionAnswer(
        transaction_id=str(uuid.uuid4()),
        success=outcome.success,
        results=tuple(_results(operations, outcome)),
        error=None if outcome.success else outcome.error,
        code=None if outcome.success else outcome.code,
        kv=written,
    )


def _values(body: bytes) -> Iterable[msgspec.Raw]:
    return keys.VALUES(body[len(b'{"kv":') : -1])


async def _flatten(operations: Sequence[PushOperation | AckOperation], most: int) -> list[NewMessage | Settlement]:
    """Return one entry for each pushed message and each acknowledgement."""
    flat: list[NewMessage | Settlement] = []
    async for index, operation in in_turns(enumerate(operations)):
        if isinstance(operation, AckOperation):
            group = checks.check_name(operation.consumer_group or QUEUE_MODE, f"operations[{index}].consumerGroup")
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
    message = check_not_unique(to_new_message(item, index, where), f"{where}[{index}]")
    if item.payload is UNSET:
        message.payload = b"{}"  # Outside of transactions a missing payload is null.
    return message


def _results(
    operations: Sequence[NewMessage | Settlement], transaction: TransactionOutcome
) -> Iterator[types.messages.OperationResult]:
    # The last result of a failed transaction is that of the failed operation.
    failed, count = transaction.failed_index, len(transaction.results)
    start = 0 if failed is None else max(0, failed + 1 - count)
    for index, outcome in enumerate(transaction.results, start):
        operation = operations[index]
        if isinstance(outcome, PushOutcome):
            success = outcome.status != "failed"
            yield types.messages.OperationResult(
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
            yield types.messages.OperationResult(
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


TABLE = table(
    bind(
        operations.TRANSACT,
        transact,
        body=TransactionBody,
        body_bytes=LARGE_BODY,
        errors=(TOO_MANY, NOT_SUPPORTED, MAINTENANCE, QUEUE_FULL),
    ),
)
