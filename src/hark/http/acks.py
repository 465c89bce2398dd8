"""Acknowledgements: the form of the HTTP API and its checks."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from hark.errors import InvalidInput
from hark.http.checks import MAX_NUMBER, check_int, check_name, check_status
from hark.ids import has_place
from hark.model import QUEUE_MODE, Settlement, SettleOutcome

MAX_ERROR_CHARACTERS = 10_000
"""Longer error texts are cut."""

ACK_TEXTS = {
    "acknowledgments": "acknowledgments array is required",
    "transactionId": "Each acknowledgment must have a valid transactionId string",
    "partitionId": "Each acknowledgment must have a valid partitionId string to ensure message uniqueness",
}
"""Error texts that clients rely on, for `decode_json`."""

_WAITING = ("failed", "retry")
"""Statuses after which the message is redelivered."""


class AckBody(msgspec.Struct, gc=False, rename="camel"):
    """An acknowledgement, rejection, retry or dead-lettering of one message."""

    transaction_id: str | None = None
    partition_id: str | None = None
    status: str | None = None
    consumer_group: str | None = None
    lease_id: str | None = None
    error: str | None = None
    delay: int | None = None


class AckBatchBody(msgspec.Struct, gc=False, rename="camel"):
    """Acknowledgements of several messages of one consumer group."""

    acknowledgments: list[AckBody]
    consumer_group: str | None = None


class AckAnswer(msgspec.Struct, gc=False, omit_defaults=True, rename="camel"):
    """The result of one acknowledgement."""

    index: int
    transaction_id: str
    success: bool
    error: str | None
    queue_name: str | None
    partition_name: str | None
    lease_released: bool
    dlq: bool
    code: str | None = None


def settlements_of(acks: Sequence[AckBody], group: str | None, where: str) -> list[Settlement]:
    """Return checked settlements. Errors name a field as `where[index].field`, or as `field` without `where`."""
    name = QUEUE_MODE if not group else check_name(group, "consumerGroup")
    settlements = []
    for index, ack in enumerate(acks):
        if ack.transaction_id and ack.partition_id and ack.delay is None and ack.status in (None, "completed"):
            settlements.append(
                Settlement(ack.transaction_id, ack.partition_id, "completed", ack.lease_id, None, None, name)
            )
        else:
            settlements.append(settlement_of(ack, name, f"{where}[{index}]." if where else ""))
    return settlements


def settlement_of(ack: AckBody, group: str, where: str) -> Settlement:
    """Return one checked settlement. It has no partition if it names the message by its id."""
    if not ack.transaction_id:
        text = f"{where}transactionId: {ACK_TEXTS['transactionId']}" if where else "transactionId is required"
        raise InvalidInput(text)
    # A message id contains its partition; a transaction id is unique only within its partition.
    if not ack.partition_id and not has_place(ack.transaction_id):
        required = "partitionId is required to ensure message uniqueness"
        raise InvalidInput(f"{where}partitionId: {ACK_TEXTS['partitionId']}" if where else required)
    status = check_status(ack.status or "completed", f"{where}status")
    if ack.delay is not None:
        if status not in _WAITING:
            raise InvalidInput(f"{where}delay: allowed only with status failed or retry, got status {status}")
        check_int(ack.delay, f"{where}delay", 0, MAX_NUMBER)
    error = ack.error[:MAX_ERROR_CHARACTERS] if ack.error else None
    return Settlement(ack.transaction_id, ack.partition_id or "", status, ack.lease_id, error, ack.delay, group)


def ack_answers(outcomes: Sequence[SettleOutcome]) -> list[AckAnswer]:
    """Return the results of settlements, in the order of the request."""
    return [
        AckAnswer(
            index,
            outcome.transaction_id,
            outcome.success,
            outcome.error,
            outcome.queue,
            outcome.partition,
            outcome.lease_released,
            outcome.dead_lettered,
            outcome.code,
        )
        for index, outcome in enumerate(outcomes)
    ]
