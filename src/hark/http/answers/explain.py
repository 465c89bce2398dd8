"""Responses that explain the state of messages, and lists of leases."""

from __future__ import annotations

from typing import Literal, NotRequired, TypedDict

from hark.http.answers.common import Pagination
from hark.model import GroupMode, Reason


class AheadMessage(TypedDict):
    """An earlier message that blocks this message in an ordered group, and the reason."""

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
    """Why a message was not delivered to a consumer group or settled by it. The reason determines the other fields."""

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
    """A message, and an explanation of its state for each consumer group."""

    messageId: str
    queue: str
    partition: str
    partitionId: str
    offset: int
    transactionId: str | None
    createdAt: str | None
    explanations: list[GroupReason]


class HeldLease(TypedDict):
    """The part of a lease that concerns one partition."""

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
    """A page of leases, the oldest first."""

    leases: list[HeldLease]
    total: int
    pagination: Pagination
