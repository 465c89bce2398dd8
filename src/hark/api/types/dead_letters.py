"""Dead letters: messages that could not be delivered to a consumer group."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Generic, TypeVar

import msgspec
from msgspec import UNSET

from hark.api.types import Answer, Body, OptionalRaw, Page, Success, WithPayload, renamed

T = TypeVar("T")


class ListedDeadLetter(WithPayload, Answer):
    """A dead letter: a message that could not be delivered to a consumer group."""

    _source = "dead letter {0.dead_letter_id}"
    id: str
    dead_letter_id: str
    """Id of the dead letter. A message can be a dead letter in several groups."""
    transaction_id: str
    partition_id: str
    trace_id: str | None
    queue: str
    partition: str
    consumer_group: str
    error: str = msgspec.field(name="errorMessage")
    retry_count: int
    attempts: int
    payload: msgspec.Raw = msgspec.field(name="data")
    producer_sub: str | None
    created_at: datetime
    failed_at: datetime
    payload_error: str | None = None
    """Error code and text if the server cannot read the payload, which is null then."""


DeadLetterPage = renamed(
    Page[ListedDeadLetter],
    "DeadLetterPage",
    "A page of dead letters, the newest failure first, and the number of all matches.",
    items="messages",
)


class RequeuedDeadLetter(Success):
    """The dead letter was requeued as a new message."""

    dead_letter_id: str
    message_id: str
    queue: str
    partition: str
    consumer_group: str


class DeletedCount(Success):
    """One dead letter, or those of a queue, were deleted. `renamed` gives the name of the first field."""

    what: str
    deleted: int


DeletedDeadLetter = renamed(DeletedCount, "DeletedDeadLetter", "The dead letter was deleted.", what="deadLetterId")
PurgedDeadLetters = renamed(
    DeletedCount, "PurgedDeadLetters", "The matching dead letters of a queue were deleted.", what="queue"
)


# Many at a time --------------------------------------------------------------------------------------------


class FilterBody(Body, forbid_unknown_fields=True):
    """A filter of dead letters. Absent fields match all dead letters."""

    queue: str | None = None
    consumer_group: str | None = None
    partition: str | None = None
    since: str | None = msgspec.field(default=None, name="from")
    until: str | None = msgspec.field(default=None, name="to")
    search: str | None = None


class RequeueBody(Body, forbid_unknown_fields=True):
    """The dead letters to requeue: either ids, or a filter with an optional limit."""

    ids: list[str] | None = None
    filter: FilterBody | None = None
    limit: int | None = None


class DeadLetterItem(Body, forbid_unknown_fields=True, kw_only=True):
    """A dead letter of another store, with the options of its message."""

    id: str
    partition: str
    consumer_group: str
    transaction_id: str
    payload: msgspec.Raw
    error: str
    attempts: int
    created_at: str | int
    failed_at: str | int
    trace_id: str = ""
    priority: int | None = None
    backoff_schedule: Sequence[int] | None = None
    keys_if_undelivered: OptionalRaw = UNSET
    traceparent: str | None = None
    tracestate: str | None = None


class ItemsBody(Body, Generic[T], forbid_unknown_fields=True):
    """Several items, in a field whose name `renamed` gives."""

    items: list[T]


ImportBody = renamed(ItemsBody[DeadLetterItem], "ImportBody", "The dead letters to import.")
IdsBody = renamed(
    ItemsBody[str],
    "IdsBody",
    "The ids of dead letters, or of messages that are dead letters in one consumer group.",
    items="ids",
)


class DeadLetterResult(Answer, omit_defaults=True):
    """The result for one dead letter."""

    id: str
    success: bool
    message_id: str | None = None
    error: str | None = None
    code: str | None = None


class RequeuedDeadLetters(Answer):
    """The results of a requeue, and the number of further dead letters that match the filter."""

    requeued: int
    remaining: int
    results: tuple[DeadLetterResult, ...]


class DeletedDeadLetters(Answer):
    """The results of a deletion."""

    deleted: int
    results: tuple[DeadLetterResult, ...]


class ImportedDeadLetters(Answer):
    """How many dead letters were stored, and how many existed."""

    imported: int
    duplicates: int
