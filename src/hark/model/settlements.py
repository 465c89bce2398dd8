"""Settlements (acknowledgements, rejections, retries, dead-letterings), transactions and lease renewals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from hark.model.keys import KeyWrite, KeyWritten
from hark.model.messages import NewMessage, PushOutcome
from hark.model.words import QUEUE_MODE, Status


class Settlement(msgspec.Struct, gc=False):
    """A settlement of one message. Without `lease_id` the message must be leased to a consumer of the group."""

    transaction_id: str
    """The transaction id of the message, or the message id."""
    partition_id: str = ""
    """Can be empty if `transaction_id` is a message id, which contains the partition."""
    status: Status = "completed"
    lease_id: str | None = None
    error: str | None = None
    delay_ms: int | None = None
    """Delay before the redelivery. With `failed` it replaces the delay of the retry schedule."""
    group: str = QUEUE_MODE


class SettleOutcome(msgspec.Struct, gc=False):
    """The result of one settlement. A refused settlement has a code and a text, and changed nothing."""

    transaction_id: str
    success: bool
    code: str | None = None
    error: str | None = None
    queue: str | None = None
    partition: str | None = None
    lease_released: bool = False
    dead_lettered: bool = False
    lease_id: str | None = None
    """The lease of the message; None if the settlement changed nothing."""


CancelOutcome = Literal["cancelled", "not_found", "leased", "settled"]
"""The result of a cancellation."""


class Transaction(msgspec.Struct):
    """Pushes and settlements that are applied together or not at all, in this order."""

    operations: Sequence[NewMessage | Settlement]
    required_leases: Sequence[str] = ()
    """Leases that must not have expired; a settlement without a lease id must belong to one of them."""
    keys: KeyWrite | None = None
    """Checks and writes of the key-value store; its messages count as operations after the others."""


class TransactionOutcome(msgspec.Struct):
    """Whether a transaction was applied, with one result per operation (up to the failed operation)."""

    success: bool
    results: Sequence[PushOutcome | SettleOutcome]
    code: str | None = None
    error: str | None = None
    failed_index: int | None = None
    keys: KeyWritten | None = None
    """The result of the key-value part. If a check failed, the transaction has the code `check_failed`."""


class Renewal(msgspec.Struct, frozen=True):
    """A renewal of a lease until `seconds` from now, unless it already lasts longer."""

    lease_id: str
    seconds: int = 60


class RenewOutcome(msgspec.Struct, frozen=True):
    """The new expiry of the lease, or the reason of the failure."""

    success: bool
    expires_at: int | None = None
    code: str | None = None
    error: str | None = None
