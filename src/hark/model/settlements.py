"""What consumers say of messages, and transactions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from hark.model.keys import KeyWrite, KeyWritten
from hark.model.messages import NewMessage, PushOutcome
from hark.model.words import QUEUE_MODE, Status


class Settlement(msgspec.Struct, gc=False):
    """What a consumer says of one message. Without `lease_id` the group must hold it on a live lease."""

    transaction_id: str
    """Also the id of the message itself."""
    partition_id: str = ""
    """May be left out when `transaction_id` is the id of the message: that says where it is."""
    status: Status = "completed"
    lease_id: str | None = None
    error: str | None = None
    delay_ms: int | None = None
    """With `retry`: how long to wait first. With `failed`: how long to wait instead of what the schedule says."""
    group: str = QUEUE_MODE


class SettleOutcome(msgspec.Struct, gc=False):
    """What became of one settlement. Refused ones have a code, a text, and changed nothing."""

    transaction_id: str
    success: bool
    code: str | None = None
    error: str | None = None
    queue: str | None = None
    partition: str | None = None
    lease_released: bool = False
    dead_lettered: bool = False
    lease_id: str | None = None
    """The lease that it was held under; None where it changed nothing."""


CancelOutcome = Literal["cancelled", "not_found", "leased", "settled"]
"""What became of a wish to take a message back before anybody gets it."""


class Transaction(msgspec.Struct):
    """Pushes and settlements that happen together or not at all, in this order."""

    operations: Sequence[NewMessage | Settlement]
    required_leases: Sequence[str] = ()
    """Leases that must be live; a settlement without a lease id must be held under one of them."""
    keys: KeyWrite | None = None
    """What is checked and written in the key-value store; its messages count as operations behind the others."""


class TransactionOutcome(msgspec.Struct):
    """Whether a transaction was applied, with one outcome per operation (up to the one that failed)."""

    success: bool
    results: Sequence[PushOutcome | SettleOutcome]
    code: str | None = None
    error: str | None = None
    failed_index: int | None = None
    keys: KeyWritten | None = None
    """What became of the key-value part; with a failed check the transaction has the code `check_failed`."""


class Renewal(msgspec.Struct, frozen=True):
    """A wish to hold a lease longer: until now + seconds, if that is later."""

    lease_id: str
    seconds: int = 60


class RenewOutcome(msgspec.Struct, frozen=True):
    """The lease's new end, or why it has none."""

    success: bool
    expires_at: int | None = None
    code: str | None = None
    error: str | None = None
