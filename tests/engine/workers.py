"""Words for tests of groups: consumers of one queue that take messages side by side, or in order."""

from __future__ import annotations

from collections.abc import Iterable

from hark.model import DeadLetter, GroupMode, GroupStats, PopRequest, PositionStats, Subscription

from .driver import ALL, Driver, Got, LeasedMessage, payloads

TICK = 0.000_001
"""A microsecond, in seconds: the grain of the engine's clock."""


class Workers:
    """A group of a queue, shared unless the mode says otherwise."""

    def __init__(self, q: Driver, queue: str = "orders", group: str = "workers", mode: GroupMode = "shared") -> None:
        self.q = q
        self.queue = queue
        self.group = group
        self.mode = mode

    async def take(
        self,
        batch: int = 1,
        partition: str | None = None,
        *,
        partitions: int = 1,
        auto_ack: bool = False,
        subscription: Subscription = ALL,
        lease_ms: int | None = None,
    ) -> Got:
        """One of them pops."""
        return await self.q.pop(
            self.queue,
            partition,
            group=self.group,
            group_mode=self.mode,
            batch=batch,
            partitions=partitions,
            auto_ack=auto_ack,
            subscription=subscription,
            lease_ms=lease_ms,
        )

    async def take_together(self, *batches: int, partition: str | None = None) -> list[Got]:
        """Several of them pop in one call."""
        return await self.q.pop_requests(
            *(
                PopRequest(queue=self.queue, partition=partition, group=self.group, group_mode=self.mode, batch=batch)
                for batch in batches
            )
        )

    async def drain(self) -> list[object]:
        """Take and complete one message after the other; the payloads in the order they came."""
        everything: list[object] = []
        while got := await self.take():
            await self.q.ack_all(got)
            everything += payloads(got)
        return everything

    async def take_and_kill(self, error: str = "hopeless") -> DeadLetter:
        """One of them sends the next message to the dead letters; the letter."""
        [leased] = await self.take()
        assert (await self.q.kill(leased, error)).dead_lettered
        letters = await self.q.dead_letters(self.queue, self.group)
        return next(one for one in letters if one.message_id == leased.message.id)

    async def arrive_at(self, moment: int, batch: int = 1) -> Got:
        """Nothing is to be had one microsecond before the moment, of any partition or of p1; then something is."""
        self.q.clock.advance((moment - 1 - self.q.clock.now()) / 1_000_000)
        assert await self.take(1, "p1") == []
        assert await self.take() == []
        self.q.clock.advance(TICK)
        got = await self.take(batch)
        assert got != []
        return got

    async def stats(self) -> GroupStats:
        """What the engine counts about the group."""
        [found] = await self.q.engine.group_stats(self.group, self.queue)
        return found

    async def unsettled(self) -> int:
        """How many messages it has yet to settle."""
        stats = await self.stats()
        return stats.lag + stats.scheduled + stats.in_flight

    async def position(self, partition: str = "p1") -> PositionStats:
        """The group's place in a partition."""
        return await self.q.position(self.queue, partition, self.group)


def attempts(leased: Iterable[LeasedMessage]) -> list[tuple[object, int]]:
    """Payloads with the number of the attempt, in order."""
    return [(one.payload, one.message.attempt) for one in leased]
