"""Messages as a test sees them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

from hark.clock import SECOND
from hark.model import DeadLetter, Delivery, MessageView
from hark.model.words import MessageState


class StoredMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message that was pushed, in any state."""

    id: str
    """Id of the message."""
    queue: str
    partition: str
    data: Any
    """The payload, decoded from JSON."""
    transaction_id: str
    """Idempotency key of the push."""
    priority: int
    trace_id: str | None
    state: MessageState
    """`pending`, `processing`, `completed`, `failed` or `dead_letter`, as seen by the group that is furthest behind."""
    attempts: int
    """Number of failed deliveries, in the group with the most."""
    error: str | None
    """The text of the last failure."""
    created_at: datetime
    deliver_at: datetime | None
    """When it can be delivered, if it was pushed with a delay."""

    @property
    def task(self) -> str | None:
        """Name of the task, if the message was pushed with a worker's `task.push`."""
        name = self.data.get("task") if isinstance(self.data, dict) else None
        return name if isinstance(name, str) else None

    @property
    def arguments(self) -> dict[str, Any] | None:
        """The arguments of the task, by name."""
        return None if self.task is None else self.data.get("arguments", {})


class ReceivedMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message that a test received with `drain`."""

    id: str
    queue: str
    partition: str
    data: Any
    transaction_id: str
    priority: int
    attempt: int
    """Number of this delivery attempt, from 1."""


class DeadMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A dead letter."""

    id: str
    """Id of the dead letter, as `hark dlq requeue` takes it."""
    message_id: str
    """Id of the message."""
    queue: str
    partition: str
    group: str
    data: Any
    transaction_id: str
    attempts: int
    error: str
    """The error of the last attempt."""
    failed_at: datetime


def stored(view: MessageView) -> StoredMessage:
    """The test's view of a stored message."""
    return StoredMessage(
        id=view.id,
        queue=view.queue,
        partition=view.partition,
        data=None if view.payload is None else msgspec.json.decode(view.payload),
        transaction_id=view.transaction_id,
        priority=view.priority,
        trace_id=view.trace_id,
        state=view.state,
        attempts=max((group.attempts for group in view.groups), default=0),
        error=next((group.error for group in view.groups if group.error), None),
        created_at=_moment(view.created_at),
        deliver_at=None if view.deliver_at is None else _moment(view.deliver_at),
    )


def received(deliveries: Sequence[Delivery]) -> list[ReceivedMessage]:
    """The test's view of received messages."""
    return [
        ReceivedMessage(
            id=delivery.id,
            queue=delivery.queue,
            partition=delivery.partition,
            data=msgspec.json.decode(delivery.payload),
            transaction_id=delivery.transaction_id,
            priority=delivery.priority,
            attempt=delivery.attempt,
        )
        for delivery in deliveries
    ]


def dead(letter: DeadLetter) -> DeadMessage:
    """The test's view of a dead letter."""
    return DeadMessage(
        id=letter.id,
        message_id=letter.message_id,
        queue=letter.queue,
        partition=letter.partition,
        group=letter.group,
        data=msgspec.json.decode(letter.payload),
        transaction_id=letter.transaction_id,
        attempts=letter.attempts,
        error=letter.error,
        failed_at=_moment(letter.failed_at),
    )


def _moment(microseconds: int) -> datetime:
    return datetime.fromtimestamp(microseconds / SECOND, UTC)
