"""Transactions: settlements, pushes and writes of keys that happen together or not at all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from types import TracebackType
from typing import Generic, Literal, TypeVar, Unpack

import msgspec

from hark.client.calling import Caller, path
from hark.client.delivery.message import Message
from hark.client.delivery.settling import Settled
from hark.client.parameters import Held, Wrapped, held
from hark.client.producing.atomic import KeyChanges
from hark.client.producing.new_message import MAX_DELAY, new_message
from hark.client.producing.push_options import PushOptions
from hark.client.tracing import stamped
from hark.client.values import milliseconds
from hark.errors import InvalidInput, TransactionRefused
from hark.model import Status

T = TypeVar("T")


class OperationResult(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What became of one push or one settlement of a transaction."""

    index: int
    type: Literal["push", "ack"]
    success: bool
    transaction_id: str | None = None
    status: str | None = None
    """Of a push: `queued` or `duplicate`."""
    message_id: str | None = None
    partition_id: str | None = None
    queue: str | None = msgspec.field(name="queueName", default=None)
    dead_lettered: bool = msgspec.field(name="dlq", default=False)
    """Of a settlement: whether the message became a dead letter."""
    code: str | None = None
    error: str | None = None


class TransactionResult(msgspec.Struct, frozen=True, kw_only=True):
    """What a transaction did: one result per push and settlement, in order."""

    results: tuple[OperationResult, ...] = ()
    versionstamp: str | None = None
    """Of the keys that it wrote."""


class Transaction:
    """Collects what is to happen together; `await transaction.commit()` does it.

    As a context manager it is committed at the end of the block, and dropped when the block raises:

        async with client.transaction() as transaction:
            transaction.ack(message).push("invoices", {"order": 17})
            transaction.kv.check(("invoiced", 17), None).set(("invoiced", 17), True)
    """

    def __init__(self, caller: Caller) -> None:
        self._caller = caller
        self._operations: list[dict[str, object]] = []
        self._leases: list[str] = []
        self._messages: dict[int, tuple[Message, Status]] = {}
        """Messages of the client that it settles, by the place of the settlement."""
        self._repeatable = True
        self._tried = False
        self._answered = False
        self.kv = KeyChanges()
        """Checks and changes of keys that belong to it."""

    async def __aenter__(self) -> Transaction:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is None and not self._tried:
            await self.commit()

    # What is to happen -------------------------------------------------------------------------------------

    def ack(
        self,
        message: Held | Wrapped,
        status: Status = "completed",
        *,
        error: str | None = None,
        delay: float | timedelta | None = None,
    ) -> Transaction:
        """Settle a delivered message; `delay` is in seconds, for `failed` and `retry`."""
        self._open()
        if status not in ("completed", "failed", "retry", "dlq"):
            raise InvalidInput(f"status: expected completed, failed, retry or dlq, got {status!r}")
        delivered = held(message)
        operation: dict[str, object] = {
            "type": "ack",
            "transactionId": delivered.transaction_id,
            "partitionId": delivered.partition_id,
            "leaseId": delivered.lease_id or None,
            "consumerGroup": delivered.consumer_group,
            "status": status,
            "error": error,
        }
        if delay is not None:
            operation["delay"] = milliseconds(delay, "delay", 0, MAX_DELAY)
        # To complete what is completed is a success. Anything else that is said twice is refused the second time.
        self._repeatable = self._repeatable and status == "completed"
        if isinstance(message, Message):
            self._messages[len(self._operations)] = message, status
        self._operations.append(operation)
        return self

    def push(
        self, queue: str, data: object, *, partition: str | None = None, **options: Unpack[PushOptions]
    ) -> Transaction:
        """Push a message, with the options of a push."""
        self._open()
        message = stamped(new_message(queue, data, partition=partition, **options))
        self._operations.append({"type": "push", "items": [message]})
        return self

    def queue(self, name: str) -> TransactionQueue[Transaction]:
        """The queue for a push in the long form: `.queue("orders").partition("customer-7").push(data)`."""
        return TransactionQueue(self.push, name)

    def require(self, lease: str | Held | Wrapped) -> Transaction:
        """A lease that must be live, given by its id or by a message; else nothing happens."""
        self._open()
        self._leases.append(lease if isinstance(lease, str) else held(lease).lease_id)
        return self

    # Doing it ----------------------------------------------------------------------------------------------

    async def commit(self) -> TransactionResult:
        """Do all of it; raises `TransactionRefused` when the server does not, and then nothing was done.

        When the reply is lost it is sent again if that can't do anything twice: pushes have keys, and completed stays
        completed. With other settlements, required leases, checks, sums or appended values it can't be told what a
        second answer means, and `ConnectionFailed` or `outcome_unknown` is raised: it was done whole, or not at all.
        After an error without an answer it may be committed again, with the same keys.
        """
        self._open()
        self._tried = True
        if not self._operations and self.kv.empty:
            return TransactionResult()
        body: dict[str, object] = {"operations": self._operations}
        if self._leases:
            body["requiredLeases"] = self._leases
        if not self.kv.empty:
            body["kv"] = self.kv.body()
        safe = self._repeatable and not self._leases and self.kv.repeatable
        answer = await self._caller.read(_Answer, "POST", path("transaction"), body=body, safe=safe)
        self._answered = True
        if not answer.success:
            refused = next((one.index for one in answer.results if not one.success), None)
            raise TransactionRefused(answer.error or "the transaction was refused", code=answer.code, index=refused)
        self._conclude(answer.results)
        return TransactionResult(results=answer.results, versionstamp=answer.kv.versionstamp if answer.kv else None)

    def _conclude(self, results: Sequence[OperationResult]) -> None:
        """Nothing more is to be said of the messages that it settled, not even at the end of their blocks."""
        for result in results:
            if (settled := self._messages.get(result.index)) is not None:
                message, status = settled
                if message.settled is None:
                    message.conclude(status, Settled(True, dead_lettered=result.dead_lettered))

    def _open(self) -> None:
        if self._answered:
            raise InvalidInput("this transaction was committed already; begin a new one")


class TransactionQueue(Generic[T]):
    """A queue, and maybe a partition of it, that a transaction, async or sync, pushes to."""

    def __init__(self, push: Callable[..., T], name: str, partition: str | None = None) -> None:
        self._push = push
        """That of the transaction."""
        self._name = name
        self._partition = partition

    def partition(self, name: str) -> TransactionQueue[T]:
        """The partition of the queue."""
        return TransactionQueue(self._push, self._name, name)

    def push(self, data: object, **options: Unpack[PushOptions]) -> T:
        """Push a message there, and go on with the transaction."""
        return self._push(self._name, data, partition=self._partition, **options)


class _Keys(msgspec.Struct):
    versionstamp: str | None = None


class _Answer(msgspec.Struct):
    success: bool
    results: tuple[OperationResult, ...] = ()
    error: str | None = None
    code: str | None = None
    kv: _Keys | None = None
