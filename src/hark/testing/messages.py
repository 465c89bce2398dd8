"""Messages as a test sees them, and their comparison with expectations."""

from __future__ import annotations

import difflib
import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from hark.clock import SECOND
from hark.model import DeadLetter, Delivery, MessageView
from hark.model.messages import MessageState

_SHOWN = 10


class Anything(msgspec.Struct, frozen=True):
    """Matches any value. `None` cannot mean this, because it is a valid value."""

    def __repr__(self) -> str:
        return "..."


ANYTHING: Final = Anything()


class Expected(msgspec.Struct, frozen=True, kw_only=True):
    """What a test expects of a message. Fields that are not given match anything."""

    queue: str
    data: Any = ANYTHING
    """A value that the decoded payload must equal, or a function that checks it."""
    partition: str | None = None
    key: str | None = None
    task: str | None = None
    arguments: Any = ANYTHING

    def differences(self, message: StoredMessage) -> list[str]:
        """The differences from the expectation, as text."""
        pairs = (
            ("partition", self.partition, message.partition),
            ("key", self.key, message.transaction_id),
            ("task", self.task, message.task),
        )
        found = [f"{name} is {was!r}" for name, wanted, was in pairs if wanted is not None and wanted != was]
        if not _fits(self.arguments, message.arguments):
            found.append(_difference("arguments", self.arguments, message.arguments))
        if not _fits(self.data, message.data):
            found.append(_difference("data", self.data, message.data))
        return found

    def __str__(self) -> str:
        fields = (
            ("data", self.data),
            ("partition", self.partition if self.partition is not None else ANYTHING),
            ("key", self.key if self.key is not None else ANYTHING),
            ("task", self.task if self.task is not None else ANYTHING),
            ("arguments", self.arguments),
        )
        described = [f"{name}={_written(value)}" for name, value in fields if value is not ANYTHING]
        return " with " + ", ".join(described) if described else ""


def check_count(expected: Expected, pushed: Sequence[StoredMessage], times: int | None) -> list[StoredMessage]:
    """The matching messages. Raises `AssertionError` unless there are `times` of them (None: at least one)."""
    __tracebackhide__ = True
    matches = [message for message in pushed if not expected.differences(message)]
    if (times is None and matches) or len(matches) == times:
        return matches
    wanted = "at least 1" if times is None else "no" if times == 0 else str(times)
    plural = "" if wanted in ("1", "at least 1") else "s"
    lines = [
        f"expected {wanted} message{plural} in queue {expected.queue!r}{expected}, "
        f"but {len(matches)} of {len(pushed)} pushed messages match"
    ]
    raise AssertionError("\n".join((*lines, *_shown(expected, pushed, bool(matches)))))


def _shown(expected: Expected, pushed: Sequence[StoredMessage], any_matched: bool) -> list[str]:
    """The pushed messages, with those first that are closest to the expectation."""
    if not pushed:
        return [f"no message was pushed to queue {expected.queue!r}"]
    target = _written(expected.arguments if expected.arguments is not ANYTHING else expected.data)

    def distance(message: StoredMessage) -> tuple[int, float]:
        likeness = difflib.SequenceMatcher(None, target, _written(message.data), autojunk=False).ratio()
        return len(expected.differences(message)), -likeness

    lines = []
    for message in sorted(pushed, key=distance)[:_SHOWN]:
        differences = expected.differences(message)
        lines.append(f"  {_line(message)}")
        lines += [f"      {text}" for text in differences] if not any_matched else []
    if len(pushed) > _SHOWN:
        lines.append(f"  and {len(pushed) - _SHOWN} more")
    return ["pushed messages, closest match first:", *lines]


def _line(message: StoredMessage) -> str:
    options = f" priority={message.priority}" if message.priority else ""
    options += f" deliver_at={message.deliver_at.isoformat()}" if message.deliver_at else ""
    return f"{message.partition}  {message.transaction_id}  {message.state}{options}  {_written(message.data)}"


def _fits(wanted: object, was: object) -> bool:
    if wanted is ANYTHING:
        return True
    if callable(wanted):
        return bool(wanted(was))
    return bool(wanted == was)


def _difference(name: str, wanted: object, was: object) -> str:
    """The differing fields of two objects, or the whole value."""
    if isinstance(wanted, dict) and isinstance(was, dict):
        names = [*wanted, *(key for key in was if key not in wanted)]
        parts = [
            f"{key!r} {'is missing' if key not in was else f'is {_written(was[key])}'}"
            + (", which was not expected" if key not in wanted else f", expected {_written(wanted[key])}")
            for key in names
            if key not in was or key not in wanted or wanted[key] != was[key]
        ]
        return f"{name}: {'; '.join(parts)}"
    return f"{name} is {_written(was)}"


def _written(value: object) -> str:
    if value is ANYTHING:
        return ""
    if callable(value):
        return f"<{getattr(value, '__name__', 'a function')}>"
    try:
        text = json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError):
        text = repr(value)
    return text if len(text) <= 400 else text[:397] + "..."


class _Shown(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    """Id of the message."""
    queue: str
    partition: str
    data: Any
    """The payload, decoded from JSON."""
    transaction_id: str
    """Idempotency key of the push."""


class StoredMessage(_Shown, frozen=True, kw_only=True):
    """A message that was pushed, in any state."""

    priority: int
    trace_id: str | None
    state: MessageState
    """`pending`, `scheduled`, `processing`, `completed` or `dead_letter`: the most urgent one of all groups."""
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


class ReceivedMessage(_Shown, frozen=True, kw_only=True):
    """A message that a test received with `drain`."""

    priority: int
    attempt: int
    """Number of this delivery attempt, from 1."""


class DeadMessage(_Shown, frozen=True, kw_only=True):
    """A dead letter. Its `id` is that of the dead letter, as `hark dlq requeue` takes it."""

    message_id: str
    """Id of the message."""
    group: str
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
