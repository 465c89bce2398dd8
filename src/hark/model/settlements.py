"""Settlements, transactions and lease renewals; the key-value store."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from hark.model.messages import NULL_PAYLOAD, QUEUE_MODE, Key, NewMessage, PushOutcome, Status


class KeyEntry(msgspec.Struct, frozen=True):
    """A stored value. Its version changes with every write."""

    key: Key
    value: msgspec.Raw
    version: int
    expires_at: int | None = None
    sealed_by: str | None = None
    """The queue whose key encrypts the value: it is the payload of an undeliverable message."""
    unreadable: str | None = None
    """Why the value, which is null then, cannot be read (rule 26): code and text."""


class KeyRange(msgspec.Struct, frozen=True, kw_only=True):
    """A page of the keys below a prefix (all keys for an empty prefix)."""

    prefix: Key = ()
    start: Key | None = None
    """The first key of the range, inclusive."""
    end: Key | None = None
    """The end of the range, exclusive."""
    after: Key | None = None
    """Continue after this key: with higher keys, or with lower keys if `reverse`."""
    limit: int = 100
    reverse: bool = False


class KeyCheck(msgspec.Struct, frozen=True):
    """A condition of a write: the key must have this version; None: the key must not exist."""

    key: Key
    version: int | None


class KeyMutation(msgspec.Struct, frozen=True, kw_only=True):
    """A change of one key."""

    kind: Literal["set", "delete", "delete_tree", "sum", "min", "max", "append", "prepend"]
    """`delete_tree`: the key and all keys below it. `sum`, `min`, `max`: of the value and the stored number, exact for
    integers up to 2^53. `append`, `prepend`: the elements of an array. The last five set the value if the key does not
    exist, and remove its expiry."""
    key: Key
    value: bytes = NULL_PAYLOAD
    ttl_ms: int | None = None


class KeyWrite(msgspec.Struct, frozen=True):
    """Checks, changes and messages that are applied together or not at all."""

    checks: Sequence[KeyCheck] = ()
    mutations: Sequence[KeyMutation] = ()
    messages: Sequence[NewMessage] = ()


class KeyWritten(msgspec.Struct, frozen=True):
    """The new version of all written keys, or the first check that failed."""

    success: bool
    version: int | None = None
    failed_check: int | None = None
    deleted: int = 0
    """Number of deleted entries."""
    messages: Sequence[PushOutcome] = ()


class KeyNotification(msgspec.Struct, frozen=True):
    """A notification that keys changed. A lost notification costs latency, never a change."""

    keys: tuple[Key, ...] | None
    """The changed keys; None: any key."""


class KeyStats(msgspec.Struct, frozen=True):
    """The size of the key-value store."""

    entries: int
    bytes: int


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
    damaged: bool = False
    """With `dlq`: the payload cannot be read. It becomes a dead letter even if the queue discards others."""


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
