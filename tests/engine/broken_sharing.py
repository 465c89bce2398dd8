"""More engines broken on purpose: each breaks a promise of shared groups, of limits or of what belongs to them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import msgspec

from hark.clock import Clock
from hark.engine.api import Answers, Engine
from hark.model import (
    CancelOutcome,
    Delivery,
    NewMessage,
    PopRequest,
    PopResult,
    PushOutcome,
    QueueInfo,
    QueueSpec,
    Settlement,
    SettleOutcome,
)

from .broken import BROKEN as BROKEN_IN_ANY_GROUP
from .broken import Broken
from .engines import ENGINES

FOR_EVER = 10_000_000
"""Milliseconds that no machine waits."""


class PassesDelayedMessages(Broken):
    """A delayed message is passed by what was pushed after it, and never comes."""

    def __init__(self, engine: Engine, clock: Clock) -> None:
        super().__init__(engine, clock)
        self._delayed: set[str] = set()
        self._passed: set[tuple[str, str]] = set()

    async def push(self, requests: Sequence[Sequence[NewMessage]]) -> Answers[list[PushOutcome]]:
        """Remember what is delayed."""
        answers = await self.engine.push(requests)
        for request, answer in zip(requests, answers, strict=True):
            if isinstance(answer, list):
                pairs = zip(request, answer, strict=True)
                self._delayed |= {outcome.message_id or "" for new, outcome in pairs if new.delay_ms}
        return answers

    async def pop(self, requests: Sequence[PopRequest]) -> Answers[PopResult]:
        """Pass by what is delayed, and keep back what was passed."""
        answers = await self.engine.pop(requests)
        for request, answer in zip(requests, answers, strict=True):
            if request.group_mode == "shared" and isinstance(answer, PopResult):
                seen = [one for one in answer.messages if (one.id, request.group) not in self._passed]
                self._passed |= {(id_, request.group) for one in seen for id_ in self._before(one)}
                answer.messages = seen
        return answers

    def _before(self, message: Delivery) -> set[str]:
        """Delayed messages with lower offsets: ids sort like offsets, and begin with the partition."""
        return {one for one in self._delayed if one[:12] == message.id[:12] and one < message.id}


class GivesOneMessageToTwo(Broken):
    """Two consumers that come together get the same."""

    async def pop(self, requests: Sequence[PopRequest]) -> Answers[PopResult]:
        """Show the second what the first got."""
        answers = await self.engine.pop(requests)
        for earlier, answer in pairwise(answers):
            if isinstance(earlier, PopResult) and isinstance(answer, PopResult) and answer.messages:
                answer.messages = earlier.messages[: len(answer.messages)]
        return answers


class LosesRetriesWithARestart(Broken):
    """What waits for its retry is forgotten when the store is opened again."""

    kind = ENGINES[0]

    def __init__(self, engine: Engine, clock: Clock) -> None:
        super().__init__(engine, clock)
        self._ids: dict[str, str] = {}
        self._retrying: dict[str, str] = {}

    async def pop(self, requests: Sequence[PopRequest]) -> Answers[PopResult]:
        """Who is delivered again is no longer waiting."""
        answers = await self.engine.pop(requests)
        for answer in answers:
            for one in answer.messages if isinstance(answer, PopResult) else ():
                self._ids |= {one.id: one.id, one.transaction_id: one.id}
                self._retrying.pop(one.id, None)
        return answers

    async def settle(self, requests: Sequence[Sequence[Settlement]]) -> Answers[list[SettleOutcome]]:
        """Remember what is given back."""
        answers = await self.engine.settle(requests)
        for request, answer in zip(requests, answers, strict=True):
            for item, outcome in zip(request, answer if isinstance(answer, list) else (), strict=False):
                if outcome.success and not outcome.dead_lettered and item.status in ("failed", "retry"):
                    lost = self._ids.get(item.transaction_id, "")
                    self._retrying[lost] = lost
        return answers

    async def close(self) -> None:
        """Forget."""
        await self.engine.delete_messages([one for one in self._retrying if one])
        await self.engine.close()


class IgnoresPriority(Broken):
    """First come, first served, whatever was asked for."""

    async def push(self, requests: Sequence[Sequence[NewMessage]]) -> Answers[list[PushOutcome]]:
        """Forget the priorities."""
        return await self.engine.push(
            [[msgspec.structs.replace(item, priority=0) for item in request] for request in requests]
        )


class ExpiryOfABatchCostsNothing(Broken):
    """In a shared group a lease on several messages runs out and nothing is counted, as if the group were ordered."""

    def __init__(self, engine: Engine, clock: Clock) -> None:
        super().__init__(engine, clock)
        self._ends: dict[str, int] = {}

    async def pop(self, requests: Sequence[PopRequest]) -> Answers[PopResult]:
        """Hold batches longer than is said."""
        await self._release_overdue()
        spoilt = [
            msgspec.structs.replace(one, lease_ms=FOR_EVER) if one.group_mode == "shared" and one.batch > 1 else one
            for one in requests
        ]
        answers = await self.engine.pop(spoilt)
        for request, answer in zip(requests, answers, strict=True):
            if request not in spoilt and isinstance(answer, PopResult) and answer.messages:
                self._ends[answer.lease_id] = self.clock.now() + (request.lease_ms or 10_000) * 1000
        return answers

    async def settle(self, requests: Sequence[Sequence[Settlement]]) -> Answers[list[SettleOutcome]]:
        """What is over by then settles nothing."""
        await self._release_overdue()
        return await self.engine.settle(requests)

    async def _release_overdue(self) -> None:
        over = [lease for lease, end in self._ends.items() if end <= self.clock.now()]
        await self.engine.release(over)
        for lease in over:
            del self._ends[lease]


class IgnoresLimits(Broken):
    """Gives as much as is asked for."""

    async def configure(self, specs: Sequence[QueueSpec]) -> Answers[QueueInfo]:
        """Forget the limits of queues."""
        free = [msgspec.structs.replace(one.options, max_in_flight=0, rate_limit=0.0) for one in specs]
        return await self.engine.configure(
            [msgspec.structs.replace(one, options=options) for one, options in zip(specs, free, strict=True)]
        )


class CancelsWhatAnotherHas(Broken):
    """Takes messages back that a consumer already works on."""

    async def cancel(self, message_ids: Sequence[str]) -> list[CancelOutcome]:
        """Remove them, whoever has them."""
        return ["cancelled" if gone else "not_found" for gone in await self.engine.delete_messages(message_ids)]


class KeepsWhatIsSettled(Broken):
    """A queue that should keep nothing keeps everything."""

    async def configure(self, specs: Sequence[QueueSpec]) -> Answers[QueueInfo]:
        """Forget the option."""
        return await self.engine.configure(
            [
                msgspec.structs.replace(one, options=msgspec.structs.replace(one.options, drop_settled=False))
                for one in specs
            ]
        )


BROKEN: list[type[Broken]] = [
    *BROKEN_IN_ANY_GROUP,
    PassesDelayedMessages,
    GivesOneMessageToTwo,
    LosesRetriesWithARestart,
    IgnoresPriority,
    ExpiryOfABatchCostsNothing,
    IgnoresLimits,
    CancelsWhatAnotherHas,
    KeepsWhatIsSettled,
]
