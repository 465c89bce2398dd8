"""Answers about why messages are where they are, and about who holds what."""

from __future__ import annotations

from typing import Literal, NotRequired, TypedDict

from hark.http.answers.common import Pagination
from hark.model import GroupMode, Reason


class AheadMessage(TypedDict):
    """A message that a group has to take first, and why it does not."""

    messageId: str
    offset: int
    reason: Literal["leased", "retry", "delayed"]
    consumer: NotRequired[str | None]
    since: NotRequired[str | None]
    until: NotRequired[str]
    attempts: NotRequired[int]
    due: NotRequired[str]
    error: NotRequired[str | None]
    deliverAt: NotRequired[str]


class GroupReason(TypedDict):
    """Why a message was not delivered to a group, or settled by it; which of the fields are there, the reason says."""

    consumerGroup: str | None
    reason: Reason
    text: str
    consumer: NotRequired[str | None]
    since: NotRequired[str | None]
    until: NotRequired[str]
    attempt: NotRequired[int]
    attempts: NotRequired[int]
    retriesAllowed: NotRequired[int]
    due: NotRequired[str]
    error: NotRequired[str | None]
    failedAt: NotRequired[str]
    deadLetterId: NotRequired[str]
    deliverAt: NotRequired[str]
    delayedProcessing: NotRequired[int]
    windowBuffer: NotRequired[int]
    expiredAt: NotRequired[str]
    startsAfter: NotRequired[str]
    owner: NotRequired[str | None]
    settledAtLatest: NotRequired[str]
    certain: NotRequired[bool]
    moved: NotRequired[bool]
    ahead: NotRequired[AheadMessage]
    aheadMessages: NotRequired[int]
    scope: NotRequired[Literal["queue", "group"]]
    limit: NotRequired[float]
    inFlight: NotRequired[int]
    waiting: NotRequired[int]
    askedAt: NotRequired[str]
    askedHereOnly: NotRequired[bool]


class ExplainedMessage(TypedDict):
    """A message, and why it is where it is for each group."""

    messageId: str
    queue: str
    partition: str
    partitionId: str
    offset: int
    transactionId: str | None
    createdAt: str | None
    explanations: list[GroupReason]


class HeldLease(TypedDict):
    """What a live lease holds of one partition."""

    leaseId: str | None
    queue: str
    partition: str
    partitionId: str
    consumerGroup: str
    mode: GroupMode
    consumer: str | None
    since: str | None
    until: str
    messages: int
    firstMessageId: str


class LeasePage(TypedDict):
    """Live leases, oldest first."""

    leases: list[HeldLease]
    total: int
    pagination: Pagination
