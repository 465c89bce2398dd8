"""Answers about dead letters."""

from __future__ import annotations

from typing import NotRequired, TypedDict

import msgspec

from hark.http.answers.common import Pagination, Success


class ListedDeadLetter(TypedDict):
    """A message that could not be delivered, with its payload."""

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
    """Dead letters, newest failure first."""

    messages: list[ListedDeadLetter]
    pagination: Pagination
    total: int


class RequeuedDeadLetter(Success):
    """A dead letter is a message again."""

    deadLetterId: str
    messageId: str
    queue: str
    partition: str
    consumerGroup: str


class DeletedDeadLetter(Success):
    """A dead letter was removed."""

    deadLetterId: str
    deleted: int


class PurgedDeadLetters(Success):
    """How many dead letters of a queue were removed."""

    queue: str
    deleted: int


class DeadLetterResult(TypedDict):
    """What became of one of many dead letters."""

    id: str
    success: bool
    messageId: NotRequired[str]
    error: NotRequired[str]
    code: NotRequired[str]


class RequeuedDeadLetters(TypedDict):
    """What became of many that were to be put back, and how many more match."""

    requeued: int
    remaining: int
    results: list[DeadLetterResult]


class DeletedDeadLetters(TypedDict):
    """What became of many that were to be removed."""

    deleted: int
    results: list[DeadLetterResult]
