"""Wraps deliveries into messages for a consumer, and settles them."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import datetime

from hark.client.administration.traces import Traces
from hark.client.calling import Caller
from hark.client.choices import Choices
from hark.client.delivery.holding import Holds, extend, leases_of
from hark.client.delivery.message import Message
from hark.client.delivery.settling import MOST_WITH_POP, PiggybackedAcks, Settled, Settler, Verdict
from hark.client.delivery.sources import Delivered, Wish
from hark.errors import HarkError
from hark.model import QUEUE_MODE, Status

_log = logging.getLogger(__name__)


class Desk:
    """What the messages of a client share: the settler, the lease keeper and the traces."""

    def __init__(self, caller: Caller, settler: Settler, holds: Holds) -> None:
        self.caller = caller
        self._settler = settler
        self._holds = holds
        self._traces = Traces(caller)

    async def receive(
        self, delivered: Sequence[Delivered], choices: Choices, seconds: int | None, begin: bool = True
    ) -> list[Message]:
        """Wrap deliveries with leases of this many seconds. `begin`: renew the leases from now on."""
        renewable = choices.renew is not False and not choices.auto_ack
        every = None if choices.renew_ms is None else choices.renew_ms / 1000
        leases = leases_of(delivered, self._holds if renewable else None, seconds, every)
        messages = [Message(one, self, leases[one.lease_id]) for one in delivered]
        if begin and renewable:
            try:
                for lease in leases.values():
                    await lease.begin(self.extend)
            except BaseException:
                await self.say(messages, "retry")
                raise
        return messages

    def piggyback(self, messages: Sequence[Message]) -> PiggybackedAcks | None:
        """The acknowledgements of all unsettled messages, to send with the next pop; None if there are none."""
        verdicts = [Verdict(message.delivered) for message in _unsettled(messages)]
        return PiggybackedAcks(verdicts) if 0 < len(verdicts) <= MOST_WITH_POP else None

    async def say(
        self,
        messages: Sequence[Message],
        status: Status,
        error: str | None = None,
        road: PiggybackedAcks | None = None,
    ) -> None:
        """Settle all unsettled messages with one request. Rejections are logged; those messages are redelivered."""
        still_open = _unsettled(messages)
        if not still_open:
            return
        verdicts = [Verdict(message.delivered, status, error) for message in still_open]
        try:
            outcomes = await self._settler.settle_many(verdicts, road)
        except HarkError as failure:
            _log.warning(
                "%d messages could not be settled as %s: %s; they are redelivered", len(still_open), status, failure
            )
            return
        for message, outcome in zip(still_open, outcomes, strict=True):
            message.conclude(status, outcome)
            if not outcome.success:
                _log.warning(
                    "message %s of queue %s could not be settled as %s: %s; it is redelivered",
                    message.id,
                    message.queue,
                    status,
                    outcome.error,
                )

    async def settle(self, verdict: Verdict) -> Settled:
        """Settle a message at the server."""
        return await self._settler.settle(verdict)

    async def extend(self, lease_id: str, seconds: int) -> datetime:
        """Renew a lease. Returns when it expires."""
        return await extend(self.caller, lease_id, seconds)

    async def trace(self, message: Delivered, data: object, event: str, names: Sequence[str]) -> None:
        """Record a trace event about a message."""
        await self._traces.add(message, data, event=event, names=names)


def _unsettled(messages: Sequence[Message]) -> list[Message]:
    return [message for message in messages if message.settled is None and message.lease_id]


def wish_of(choices: Choices, *, wait: bool, lease_seconds: int | None, timeout_ms: int | None = None) -> Wish:
    """The pop parameters for these choices. A named queue needs no labels to be found."""
    named = choices.queue is not None
    return Wish(
        queue=choices.queue,
        partition=choices.partition,
        namespace=None if named else choices.namespace,
        task=None if named else choices.task,
        group=choices.group or QUEUE_MODE,
        group_mode=choices.group_mode,
        batch=choices.batch,
        partitions=choices.partitions,
        auto_ack=choices.auto_ack,
        wait=wait,
        timeout_ms=choices.timeout_ms if timeout_ms is None else timeout_ms,
        subscription_mode=choices.subscription_mode,
        subscription_from=choices.subscription_from,
        lease_seconds=lease_seconds,
        consumer_priority=choices.consumer_priority,
        consumer=choices.consumer,
    )
