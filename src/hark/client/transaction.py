"""Transactions: settlements, pushes and key-value writes that are applied together or not at all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Generic, TypeVar, Unpack

from hark.api import operations
from hark.api.types.messages import OperationResult, TransactionAnswer
from hark.client.arguments import DeliveredMessage, PushOptions, Wrapped, delivered_message, milliseconds, new_message
from hark.client.calling import Caller
from hark.client.delivery.message import Message
from hark.client.delivery.settling import Settled
from hark.client.keys import KeyChanges
from hark.client.tracing import stamped
from hark.errors import InvalidInput, TransactionRefused
from hark.model import Status

T = TypeVar("T")


class Transaction:
    """Collects pushes, settlements and key-value writes. `commit` applies all of them or none.

    As a context manager it commits at the end of the block. If the block raises, nothing is sent:

        async with client.transaction() as transaction:
            transaction.ack(message).push("invoices", {"order": 17})
            transaction.kv.check(("invoiced", 17), None).set(("invoiced", 17), True)
    """

    def __init__(self, caller: Caller) -> None:
        self._caller = caller
        self._operations: list[dict[str, object]] = []
        self._leases: list[str] = []
        self._messages: dict[int, tuple[Message, Status]] = {}
        """The client's messages that it settles, by the index of the settlement."""
        self._repeatable = True
        self._tried = False
        self._answered = False
        self.kv = KeyChanges()
        """Checks and writes of keys in this transaction."""

    async def __aenter__(self) -> Transaction:
        return self

    async def __aexit__(self, *error: object) -> None:
        if error[0] is None and not self._tried:
            await self.commit()

    def ack(
        self,
        message: DeliveredMessage | Wrapped,
        status: Status = "completed",
        *,
        error: str | None = None,
        delay: float | timedelta | None = None,
    ) -> Transaction:
        """Settle a delivered message: acknowledge it, or give another status.

        `status` is `completed`, `failed`, `retry` or `dlq`. `error` is the error text of a failure. `delay` is the time
        in seconds before the redelivery, for `failed` and `retry` only.
        """
        self._open()
        if status not in ("completed", "failed", "retry", "dlq"):
            raise InvalidInput(f"status: expected completed, failed, retry or dlq, got {status!r}")
        delivered = delivered_message(message)
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
            operation["delay"] = milliseconds(delay, "delay")
        # Completing a completed message succeeds. The server rejects any other repeated settlement.
        self._repeatable = self._repeatable and status == "completed"
        if isinstance(message, Message):
            self._messages[len(self._operations)] = message, status
        self._operations.append(operation)
        return self

    def push(
        self, queue: str, data: object, *, partition: str | None = None, **options: Unpack[PushOptions]
    ) -> Transaction:
        """Push a message. The options are those of `Queue.push`."""
        self._open()
        message = stamped(new_message(queue, data, partition=partition, **options))
        self._operations.append({"type": "push", "items": [message]})
        return self

    def queue(self, name: str) -> TransactionQueue[Transaction]:
        """The queue of a push in the fluent form: `.queue("orders").partition("customer-7").push(data)`."""
        return TransactionQueue(self.push, name)

    def require(self, lease: str | DeliveredMessage | Wrapped) -> Transaction:
        """Require that a lease is still valid, given by its id or a message. Otherwise nothing is applied."""
        self._open()
        self._leases.append(lease if isinstance(lease, str) else delivered_message(lease).lease_id)
        return self

    async def commit(self) -> TransactionAnswer:
        """Apply everything. Returns `results`: one per push and settlement, in order.

        Raises `TransactionRefused` if the server rejects it; nothing was applied in that case.

        If the reply is lost, the client repeats the request when that is safe: with pushes, acknowledgements, and
        `set`, `delete`, `min` or `max` of keys. With other settlements, required leases, checks, sums or appended
        values a second answer would be ambiguous. It then raises `ConnectionFailed`, or `EngineFailure` with the code
        `outcome_unknown`: everything was applied, or nothing. After an error without an answer you can call `commit`
        again; it uses the same idempotency keys.
        """
        self._open()
        self._tried = True
        if not self._operations and self.kv.empty:
            return TransactionAnswer("", True, ())
        body: dict[str, object] = {"operations": self._operations}
        if self._leases:
            body["requiredLeases"] = self._leases
        if not self.kv.empty:
            body["kv"] = self.kv.body()
        safe = self._repeatable and not self._leases and self.kv.repeatable
        answer = await self._caller.ask(operations.TRANSACT, body=body, safe=safe)
        self._answered = True
        if not answer.success:
            refused = next((one.index for one in answer.results if not one.success), None)
            text = answer.error or "the server rejected the transaction"
            raise TransactionRefused(text, code=answer.code, index=refused)
        self._conclude(answer.results)
        return answer

    def _conclude(self, results: Sequence[OperationResult]) -> None:
        """Mark the settled messages, so that the end of their blocks does not settle them again."""
        for result in results:
            if (settled := self._messages.get(result.index)) is not None:
                message, status = settled
                if message.settled is None:
                    message.conclude(status, Settled(True, dead_lettered=result.dead_lettered is True))

    def _open(self) -> None:
        if self._answered:
            raise InvalidInput("this transaction was already committed; start a new one with client.transaction()")


class TransactionQueue(Generic[T]):
    """A queue, and optionally a partition, that a transaction pushes to."""

    def __init__(self, push: Callable[..., T], name: str, partition: str | None = None) -> None:
        self._push = push
        """The `push` of the transaction."""
        self._name = name
        self._partition = partition

    def partition(self, name: str) -> TransactionQueue[T]:
        """Select the partition of the queue."""
        return TransactionQueue(self._push, self._name, name)

    def push(self, data: object, **options: Unpack[PushOptions]) -> T:
        """Push a message to this queue. Returns the transaction."""
        return self._push(self._name, data, partition=self._partition, **options)
