"""Responses about dead letters."""

from __future__ import annotations

from typing import NotRequired, TypedDict

import msgspec

from hark.http.answers.common import Pagination, Success


class ListedDeadLetter(TypedDict):
    """A dead letter: a message that could not be delivered to a consumer group."""

    id: str
    deadLetterId: str
    transactionId: str
    partitionId: str
    traceId: str | None
    queue: str
    partition: str
    consumerGroup: str
    errorMessage: str | None
    retryCount: int
    attempts: int
    data: msgspec.Raw
    producerSub: str | None
    createdAt: str
    failedAt: str


class DeadLetterPage(TypedDict):
    """A page of dead letters, the newest failure first."""

    messages: list[ListedDeadLetter]
    pagination: Pagination
    total: int


class RequeuedDeadLetter(Success):
    """The dead letter was requeued as a new message."""

    deadLetterId: str
    messageId: str
    queue: str
    partition: str
    consumerGroup: str


class DeletedDeadLetter(Success):
    """The dead letter was deleted."""

    deadLetterId: str
    deleted: int


class PurgedDeadLetters(Success):
    """The matching dead letters of a queue were deleted."""

    queue: str
    deleted: int


class DeadLetterResult(TypedDict):
    """The result for one dead letter."""

    id: str
    success: bool
    messageId: NotRequired[str]
    error: NotRequired[str]
    code: NotRequired[str]


class RequeuedDeadLetters(TypedDict):
    """The results of a requeue, and the number of further dead letters that match the filter."""

    requeued: int
    remaining: int
    results: list[DeadLetterResult]


class DeletedDeadLetters(TypedDict):
    """The results of a deletion."""

    deleted: int
    results: list[DeadLetterResult]
