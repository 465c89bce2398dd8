"""Engines broken on purpose: each breaks one promise. A checker that passes one of them is broken itself."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import msgspec

from hark.clock import Clock
from hark.engine.api import Answers, Engine
from hark.model import (
    Delivery,
    NewMessage,
    PopRequest,
    PopResult,
    PushOutcome,
    Settlement,
    SettleOutcome,
    Subscription,
    Transaction,
    TransactionOutcome,
)

from .engines import MEMORY


class Broken:
    """Hands everything on to a real engine; subclasses spoil some verb."""

    kind = MEMORY

    def __init__(self, engine: Engine, clock: Clock) -> None:
        self.engine = engine
        self.clock = clock

    def __getattr__(self, name: str) -> object:
        return getattr(self.engine, name)


class SettlesWithoutLeaseCheck(Broken):
    """Whoever names a message settles it, whatever lease he has."""

    async def settle(self, requests: Sequence[Sequence[Settlement]]) -> Answers[list[SettleOutcome]]:
        """Forget the lease ids: whoever holds the message, it is settled."""
        spoilt = [[msgspec.structs.replace(item, lease_id=None) for item in request] for request in requests]
        return await self.engine.settle(spoilt)


class SkippingCursor(Broken):
    """A cursor that jumps to the message that was completed, over whatever is before it in the batch."""

    def __init__(self, engine: Engine, clock: Clock) -> None:
        super().__init__(engine, clock)
        self._handed: dict[str, Sequence[Delivery]] = {}

    async def pop(self, requests: Sequence[PopRequest]) -> Answers[PopResult]:
        """Remember the batches."""
        answers = await self.engine.pop(requests)
        self._handed |= {one.lease_id: one.messages for one in answers if isinstance(one, PopResult)}
        return answers

    async def settle(self, requests: Sequence[Sequence[Settlement]]) -> Answers[list[SettleOutcome]]:
        """Complete what came before, too."""
        answers = await self.engine.settle(requests)
        for item in [item for request in requests for item in request if item.status == "completed"]:
            for earlier in self._handed.get(item.lease_id or "", ()):
                if earlier.transaction_id == item.transaction_id:
                    break
                if earlier.partition_id == item.partition_id:
                    passed = msgspec.structs.replace(item, transaction_id=earlier.transaction_id)
                    await self.engine.settle([[passed]])
        return answers


class CursorByTime(Broken):
    """A cursor that is a time: what was created no later than the last completed message is not delivered."""

    def __init__(self, engine: Engine, clock: Clock) -> None:
        super().__init__(engine, clock)
        self._times: dict[str, int] = {}
        self._seen: dict[tuple[str, str], int] = defaultdict(int)

    async def pop(self, requests: Sequence[PopRequest]) -> Answers[PopResult]:
        """Leave out what the clock says is old."""
        answers = await self.engine.pop(requests)
        for request, answer in zip(requests, answers, strict=True):
            if isinstance(answer, PopResult):
                fresh = [one for one in answer.messages if one.created_at > self._seen[one.partition_id, request.group]]
                answer.messages = fresh
                self._times |= {one.transaction_id: one.created_at for one in fresh}
        return answers

    async def settle(self, requests: Sequence[Sequence[Settlement]]) -> Answers[list[SettleOutcome]]:
        """Move the time."""
        for item in [item for request in requests for item in request if item.status == "completed"]:
            self._seen[item.partition_id, item.group] = self._times.get(item.transaction_id, 0)
        return await self.engine.settle(requests)


class NoConsumerIsKeptOut(Broken):
    """A lease that keeps nobody out."""

    async def pop(self, requests: Sequence[PopRequest]) -> Answers[PopResult]:
        """Hand out and let go."""
        answers = await self.engine.pop(requests)
        await self.engine.release([one.lease_id for one in answers if isinstance(one, PopResult)])
        return answers


class AttemptsWithoutEnd(Broken):
    """Failures that are not counted."""

    async def settle(self, requests: Sequence[Sequence[Settlement]]) -> Answers[list[SettleOutcome]]:
        """A failure is only a retry."""
        spoilt = [
            [msgspec.structs.replace(item, status="retry") if item.status == "failed" else item for item in request]
            for request in requests
        ]
        return await self.engine.settle(spoilt)


class LosesMessages(Broken):
    """Answers for messages that it does not store."""

    async def push(self, requests: Sequence[Sequence[NewMessage]]) -> Answers[list[PushOutcome]]:
        """Keep two messages of a request, and say of the others what was said of the second."""
        answers = await self.engine.push([request[:2] for request in requests])
        for request, answer in zip(requests, answers, strict=True):
            if isinstance(answer, list):
                answer.extend(answer[-1:] * (len(request) - 2))
        return answers


class KeysWithoutMemory(Broken):
    """Takes an idempotency key twice."""

    async def push(self, requests: Sequence[Sequence[NewMessage]]) -> Answers[list[PushOutcome]]:
        """Forget the keys."""
        return await self.engine.push(
            [[msgspec.structs.replace(item, transaction_id=None) for item in request] for request in requests]
        )


class ImpatientDelays(Broken):
    """Delivers delayed messages at once."""

    async def push(self, requests: Sequence[Sequence[NewMessage]]) -> Answers[list[PushOutcome]]:
        """Forget the delays."""
        return await self.engine.push(
            [[msgspec.structs.replace(item, delay_ms=0) for item in request] for request in requests]
        )


class TransactionsInParts(Broken):
    """Pushes of a transaction that stay when it is refused."""

    async def transact(self, requests: Sequence[Transaction]) -> Answers[TransactionOutcome]:
        """Push first, then see."""
        for request in requests:
            await self.engine.push([[one for one in request.operations if isinstance(one, NewMessage)]])
        return await self.engine.transact(requests)


class EverythingIsNew(Broken):
    """Groups that always start at the first message."""

    async def pop(self, requests: Sequence[PopRequest]) -> Answers[PopResult]:
        """Forget where the group wants to start."""
        return await self.engine.pop([msgspec.structs.replace(one, subscription=Subscription()) for one in requests])


class FirstPartitionFirst(Broken):
    """Serves the first partition again and again while others wait."""

    async def pop(self, requests: Sequence[PopRequest]) -> Answers[PopResult]:
        """Ask one partition after the other, always in the same order."""
        answers = list(await self.engine.pop(requests)) if any(one.queue is None for one in requests) else []
        for request in requests if not answers else ():
            names = [request.partition] if request.partition else ["p1", "p2", "p3"]
            for name in names:
                [answer] = await self.engine.pop([msgspec.structs.replace(request, partition=name)])
                if isinstance(answer, PopResult) and answer.messages:
                    break
            answers.append(answer)
        return answers


BROKEN: list[type[Broken]] = [
    SettlesWithoutLeaseCheck,
    SkippingCursor,
    CursorByTime,
    NoConsumerIsKeptOut,
    AttemptsWithoutEnd,
    LosesMessages,
    KeysWithoutMemory,
    ImpatientDelays,
    TransactionsInParts,
    EverythingIsNew,
    FirstPartitionFirst,
]
