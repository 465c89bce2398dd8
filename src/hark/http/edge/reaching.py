"""Permission checks for queues that only the body of a request or an id in it names.

An id of a queue that the token may not use is treated like an unknown id, so that its existence is not revealed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec

from hark.access.identity import Identity
from hark.broker import Broker
from hark.errors import Forbidden
from hark.http.edge.identities import check_unrestricted
from hark.model import (
    DeadLetterFilter,
    KeyWrite,
    NewMessage,
    PopRequest,
    Settlement,
    SettleOutcome,
    Transaction,
    TransactionOutcome,
)

_KEYS = "the key-value store is"
NOWHERE = "-"
"""An id that does not exist."""


def stamp(identity: Identity, messages: Sequence[NewMessage]) -> None:
    """Check the queues of messages, and set their producer to the subject of the token."""
    if identity.restricted:
        for message in messages:
            identity.check_queue(message.queue)
            if message.undelivered_keys:
                check_unrestricted(identity, f"keysIfUndelivered: {_KEYS}")
    if subject := identity.subject:
        for message in messages:
            message.producer = subject


def check_wish(identity: Identity, request: PopRequest) -> None:
    """Raise `Forbidden` for a pop of a queue that the token may not use, or by namespace or task."""
    if not identity.restricted:
        return
    if request.queue is None:
        raise Forbidden(
            "this token is restricted to some queues; name a queue instead of a namespace or a task",
            code="queue_not_allowed",
        )
    identity.check_queue(request.queue)


async def reached(identity: Identity, broker: Broker, id: str) -> str:
    """Return the id of a message or partition, or an unknown id if the token may not use its queue."""
    return NOWHERE if identity.restricted and (await _foreign(identity, broker, [id]))[0] else id


async def _foreign(identity: Identity, broker: Broker, ids: Sequence[str]) -> list[bool]:
    queues = await broker.places.queues_of(ids)
    return [queue is not None and not identity.may_use(queue) for queue in queues]


async def reached_letter(identity: Identity, broker: Broker, where: DeadLetterFilter) -> DeadLetterFilter:
    """Return the filter, or one that matches nothing if the token may not use the queue of the dead letter."""
    if identity.restricted:
        page = await broker.engine.dead_letters(msgspec.structs.replace(where, payloads=False))
        if any(not identity.may_use(letter.queue) for letter in page.items):
            return msgspec.structs.replace(where, ids=(NOWHERE,))
    return where


def settle(identity: Identity, broker: Broker, items: Sequence[Settlement]) -> asyncio.Future[list[SettleOutcome]]:
    """Settle messages of permitted queues."""
    if identity.restricted:
        return asyncio.ensure_future(_settle_own(identity, broker, items))
    return broker.settle(items)


async def _settle_own(identity: Identity, broker: Broker, items: Sequence[Settlement]) -> list[SettleOutcome]:
    return await broker.settle(await _without_foreign(identity, broker, items))


async def _without_foreign(identity: Identity, broker: Broker, items: Sequence[Settlement]) -> list[Settlement]:
    """Return the settlements, with an unknown id in those of queues that the token may not use."""
    foreign = await _foreign(identity, broker, [item.partition_id or item.transaction_id for item in items])
    return [
        msgspec.structs.replace(item, partition_id=NOWHERE) if is_foreign else item
        for item, is_foreign in zip(items, foreign, strict=True)
    ]


async def transact(identity: Identity, broker: Broker, transaction: Transaction) -> TransactionOutcome:
    """Apply a transaction to permitted queues, with the producer set in its messages."""
    operations = transaction.operations
    keys = transaction.keys or KeyWrite()
    stamp(identity, [operation for operation in operations if isinstance(operation, NewMessage)])
    stamp(identity, keys.messages)
    if identity.restricted:
        if keys.checks or keys.mutations:
            check_unrestricted(identity, f"kv: {_KEYS}")
        settled = [operation for operation in operations if isinstance(operation, Settlement)]
        own = iter(await _without_foreign(identity, broker, settled))
        operations = [next(own) if isinstance(operation, Settlement) else operation for operation in operations]
        transaction = msgspec.structs.replace(transaction, operations=operations)
    return await broker.transact(transaction)
