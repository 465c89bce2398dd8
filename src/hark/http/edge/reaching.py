"""Queues that only the body of a request names, or an id in it: whoever may use only some is kept to these.

An id of another queue is answered like one that nothing has, so that nobody learns what there is beside their own.
"""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from typing import Any

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

_KEYS = "entries of the key-value store belong to no queue: they are"
NOWHERE = "-"
"""The id of nothing."""


def stamp(identity: Identity, messages: Sequence[NewMessage]) -> None:
    """Check where messages go, and say in them who pushed them; a body can't."""
    if identity.restricted:
        for message in messages:
            identity.check_queue(message.queue)
            if message.undelivered_keys:
                check_unrestricted(identity, f"keysIfUndelivered: {_KEYS}")
    if subject := identity.subject:
        for message in messages:
            message.producer = subject


def check_wish(identity: Identity, request: PopRequest) -> None:
    """Refuse a wish for messages of other queues, or of whatever queues have a label."""
    if not identity.restricted:
        return
    if request.queue is None:
        raise Forbidden(
            "this token may use only some queues; name one instead of a namespace or a task", code="queue_not_allowed"
        )
    identity.check_queue(request.queue)


async def reached(identity: Identity, broker: Broker, id: str) -> str:
    """The id of a message or a partition; of another queue one that nothing has, so that the answer is like that."""
    return NOWHERE if identity.restricted and (await _foreign(identity, broker, [id]))[0] else id


async def _foreign(identity: Identity, broker: Broker, ids: Sequence[str]) -> list[bool]:
    queues = await broker.places.queues_of(ids)
    return [queue is not None and not identity.may_use(queue) for queue in queues]


async def reached_letter(identity: Identity, broker: Broker, where: DeadLetterFilter) -> DeadLetterFilter:
    """What finds a dead letter by its id; of another queue what finds nothing."""
    if identity.restricted:
        page = await broker.engine.dead_letters(msgspec.structs.replace(where, payloads=False))
        if any(not identity.may_use(letter.queue) for letter in page.items):
            return msgspec.structs.replace(where, ids=(NOWHERE,))
    return where


def settle(identity: Identity, broker: Broker, items: Sequence[Settlement]) -> Coroutine[Any, Any, list[SettleOutcome]]:
    """Settle messages, of the queues that may be used. (Not a coroutine itself: the usual case costs no level more.)"""
    return _settle_own(identity, broker, items) if identity.restricted else broker.settle(items)


async def _settle_own(identity: Identity, broker: Broker, items: Sequence[Settlement]) -> list[SettleOutcome]:
    return await broker.settle(await _without_foreign(identity, broker, items))


async def _without_foreign(identity: Identity, broker: Broker, items: Sequence[Settlement]) -> list[Settlement]:
    """The same, but what would settle messages of another queue settles something that is nowhere."""
    foreign = await _foreign(identity, broker, [item.partition_id or item.transaction_id for item in items])
    return [
        msgspec.structs.replace(item, partition_id=NOWHERE) if is_foreign else item
        for item, is_foreign in zip(items, foreign, strict=True)
    ]


async def transact(identity: Identity, broker: Broker, transaction: Transaction) -> TransactionOutcome:
    """Apply a transaction whose messages are stamped, all of it in queues that may be used."""
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
